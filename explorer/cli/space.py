"""`explorer space`: parameters, their values, and what the rules exclude."""

from explorer.asked import AskedProblem
from explorer.cli.options import Gpu, Json
from explorer.cli.problem import needed, with_problem


@with_problem
def space(asked: AskedProblem | None, gpu: Gpu = None, json: Json = False) -> None:
    """Print the parameters, their values and the rules."""
    from explorer.cli.gpu_limits import gpu_limits
    from explorer.report.console import results
    from explorer.report.json_data import as_text, space_data
    from explorer.report.space_report import print_space
    from explorer.space import Space

    points = Space(needed(asked).problem(), gpu_limits(gpu))
    if json:
        print(as_text(space_data(points)))
    else:
        print_space(points, results())
