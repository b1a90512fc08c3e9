"""`explorer search`: find the fastest variant of a problem."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import typer

from explorer.accuracy import Accuracy
from explorer.asked import AskedProblem
from explorer.cli.options import (
    AccuracyOrNone,
    Device,
    Json,
    Minimised,
    Seed,
    Storage,
    Timing,
    duration_s,
    whole_number,
)
from explorer.cli.output import INTERRUPTED, say
from explorer.cli.problem import needed, rows_notice, with_problem
from explorer.errors import ExplorerError, NotFound
from explorer.problem import Problem
from explorer.tuning.objective import Objectives

if TYPE_CHECKING:
    from explorer.evaluate.verify import FinalistCheck
    from explorer.evaluator import Evaluator
    from explorer.tuning.results import SearchResult

Trials = Annotated[
    int | None,
    typer.Option(
        "--trials",
        metavar="N",
        parser=whole_number("trials", 1),
        help="Kernels to evaluate in this run; 200 where no budget is given either.",
        show_default=False,
    ),
]
Budget = Annotated[
    float | None,
    typer.Option(
        "--budget",
        metavar="TIME",
        parser=duration_s,
        help="Time for search and finals, such as 30s, 2m or 90.",
        show_default=False,
    ),
]


@with_problem
def search(
    asked: AskedProblem | None,
    trials: Trials = None,
    budget: Budget = None,
    device: Device = "auto",
    storage: Storage = None,
    seed: Seed = 0,
    timing: Timing = "cold",
    accuracy: AccuracyOrNone = None,
    objectives: Minimised = Objectives.TIME,
    json: Json = False,
) -> None:
    """Find the fastest kernel of a problem. The same command again goes on."""
    from explorer.report.json_data import as_text, search_data
    from explorer.report.pareto_report import print_front
    from explorer.report.studies import print_search
    from explorer.report.table import results

    asked = needed(asked)
    accuracy = accuracy or objectives.usual_accuracy
    plan = _Plan(
        asked.problem(),
        asked.rows,
        device,
        timing,
        trials,
        budget,
        seed,
        storage,
        accuracy,
        objectives,
    )
    result = _run(plan)
    if result.passed_over:
        say(result.passed_over)
    checked = _check_finalists(result) if result.replayed else None
    if json:
        print(as_text(search_data(result, storage, checked)))
    elif objectives is Objectives.TIME_ERROR:
        print_front(result, results(), storage, checked)
    else:
        print_search(result, results(), storage, checked)


@dataclass(frozen=True, slots=True)
class _Plan:
    """The command's options, read."""

    problem: Problem
    rows: int | None
    device: str
    timing: str
    trials: int | None
    budget_s: float | None
    seed: int
    storage: str | None
    accuracy: Accuracy
    objectives: Objectives


def _run(plan: _Plan) -> "SearchResult":
    from explorer.evaluate.open_evaluator import open_evaluator
    from explorer.report.progress import ProgressLine
    from explorer.report.table import notices
    from explorer.tuning import open_storage, run_search

    storage = open_storage(plan.storage)
    why = _why_replay(plan.device)
    progress = ProgressLine(plan.problem, notices())
    try:
        with open_evaluator(
            plan.problem, plan.device, plan.timing, plan.seed, plan.accuracy
        ) as evaluator:
            for notice in _notices(plan, evaluator, why):
                say(notice)
            with progress:
                return run_search(
                    evaluator,
                    storage,
                    trials=plan.trials,
                    budget_s=plan.budget_s,
                    seed=plan.seed,
                    on_progress=progress,
                    objectives=plan.objectives,
                )
    except NotFound as error:
        raise NotFound(f"{why}, and {error}" if why else str(error)) from None
    except KeyboardInterrupt:
        kept = progress.last.trials if progress.last else 0
        trials = "1 trial is" if kept == 1 else f"{kept} trials are"
        say(f"stopped; {trials} kept; run the same command again to go on")
        raise typer.Exit(INTERRUPTED) from None


def _check_finalists(result: "SearchResult") -> "FinalistCheck | None":
    """Emulate the best and those tied with it, or the front; raises WrongKernel.

    No NVRTC is no error.
    """
    from explorer.compile import nvrtc_version
    from explorer.evaluate.verify import check_finalists
    from explorer.tuning.finals import front_of

    try:
        nvrtc_version()
    except ExplorerError as error:
        say(f"finalists are not verified: {error}")
        return None
    two = result.objectives is Objectives.TIME_ERROR
    front = [member.finalist for member in front_of(result.finals)] if two else []
    configs = [finalist.trial.config for finalist in front or result.finals.ties]
    circumstances = result.circumstances
    return check_finalists(
        result.problem, configs, circumstances.arch, accuracy=circumstances.accuracy
    )


def _why_replay(device: str) -> str | None:
    """Why there is no GPU, where one was left to be found."""
    from explorer.devices.cuda import driver_problem

    return driver_problem() if device == "auto" else None


def _notices(plan: _Plan, evaluator: "Evaluator", why: str | None) -> list[str]:
    """What is said before the first trial: whose times a replay shows, how many rows."""
    from explorer.evaluate.replay import ReplayEvaluator
    from explorer.report.text import replay_notice

    replay = []
    if isinstance(evaluator, ReplayEvaluator):
        replay = [replay_notice(evaluator.circumstances, why)]
        replay += evaluator.notices
    return replay + rows_notice(plan.problem, plan.rows)
