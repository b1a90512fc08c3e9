"""`explorer show`: what a study found."""

from explorer.asked import AskedProblem
from explorer.cli.exits import say
from explorer.cli.options import AccuracyOrNone, Json, Minimised, Storage
from explorer.cli.problem import needed, with_problem
from explorer.tuning.goal import Goal
from explorer.tuning.objectives import Objectives


@with_problem
def show(
    asked: AskedProblem | None,
    accuracy: AccuracyOrNone = None,
    objectives: Minimised = Objectives.TIME,
    storage: Storage = None,
    json: Json = False,
) -> None:
    """Print what a study found: best or front, ties, rejections, parameters."""
    from explorer.report.console import results
    from explorer.report.json_data import as_text, study_data
    from explorer.report.pareto_report import print_front_study
    from explorer.report.study_report import print_study
    from explorer.tuning import load_study, open_storage

    opened = open_storage(storage, read_only=True)
    view = load_study(opened, needed(asked), Goal.of(objectives, accuracy))
    if view.passed_over:
        say(view.passed_over)
    if json:
        print(as_text(study_data(view, storage)))
    elif objectives is Objectives.TIME_ERROR:
        print_front_study(view, results(), storage)
    else:
        print_study(view, results(), storage)
