"""`explorer show`: what a study found."""

from explorer.asked import AskedProblem
from explorer.cli.options import Json, Storage
from explorer.cli.problem import needed, with_problem


@with_problem
def show(asked: AskedProblem | None, storage: Storage = None, json: Json = False) -> None:
    """Print what a study found: best, ties, rejections, parameters."""
    from explorer.report.console import results
    from explorer.report.json_data import as_text, study_data
    from explorer.report.study_report import print_study
    from explorer.search import load_study, open_storage

    view = load_study(open_storage(storage, read_only=True), needed(asked))
    if json:
        print(as_text(study_data(view, storage)))
    else:
        print_study(view, results(), storage)
