"""`explorer presets`: the published kernels that the space holds."""

from explorer.asked import AskedProblem
from explorer.cli.options import Gpu, Json
from explorer.cli.problem import with_problem


@with_problem
def presets(asked: AskedProblem | None, gpu: Gpu = None, json: Json = False) -> None:
    """List published kernels; with --cols, which of them can compute the problem."""
    from explorer.cli.gpu_limits import gpu_limits
    from explorer.report.console import results
    from explorer.report.json_data import as_text
    from explorer.report.presets_report import preset_lines, presets_data, print_presets

    problem = None if asked is None else asked.problem()
    lines = preset_lines(problem, None if problem is None else gpu_limits(gpu))
    if json:
        print(as_text(presets_data(lines)))
    else:
        print_presets(lines, problem, results())
