"""`explorer show`: what a study found."""

from explorer.cli.options import Cols, Dtype, Json, Rows, Storage
from explorer.dtype import DType


def show(
    cols: Cols,
    rows: Rows = None,
    dtype: Dtype = DType.F32,
    storage: Storage = None,
    json: Json = False,
) -> None:
    """Print what a study found: best, ties, rejections, parameters."""
    from explorer.report.console import results
    from explorer.report.json_data import as_text, study_data
    from explorer.report.study_report import print_study
    from explorer.search import ProblemFilter, load_study, open_storage

    wanted = ProblemFilter(cols, dtype, rows)
    view = load_study(open_storage(storage, read_only=True), wanted)
    if json:
        print(as_text(study_data(view, storage)))
    else:
        print_study(view, results(), storage)
