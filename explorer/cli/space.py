"""`explorer space`: parameters, their values, and what the rules exclude."""

from explorer.cli.options import Cols, Dtype, Gpu, Json, Rows
from explorer.cli.problem import problem_of
from explorer.dtype import DType


def space(
    cols: Cols, rows: Rows = None, dtype: Dtype = DType.F32, gpu: Gpu = None, json: Json = False
) -> None:
    """Print the parameters, their values and the rules."""
    from explorer.cli.gpu_limits import gpu_limits
    from explorer.report.console import results
    from explorer.report.json_data import as_text, space_data
    from explorer.report.space_report import print_space
    from explorer.space import Space

    points = Space(problem_of(cols, rows, dtype), gpu_limits(gpu))
    if json:
        print(as_text(space_data(points)))
    else:
        print_space(points, results())
