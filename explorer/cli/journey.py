"""`explorer journey`: every published kernel, and the search's best, in one run."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from explorer.cli.options import (
    AccuracyLevel,
    Csv,
    Device,
    Json,
    Kept,
    Markdown,
    Plot,
    Seed,
    Storage,
    Timing,
    duration_s,
    one_format,
    option,
)
from explorer.cli.output import (
    INTERRUPTED,
    check_nothing_is_measured,
    keep_result,
    say,
    show_result,
)
from explorer.cli.problem import with_problem_unless
from explorer.model.accuracy import Accuracy
from explorer.model.asked import AskedProblem, needed, rows_notice
from explorer.model.errors import InvalidInput, NotFound
from explorer.model.problem import Problem
from explorer.system.user_files import JOURNEY, check_replaceable, studies_folder

if TYPE_CHECKING:
    from explorer.model.evaluator import Evaluator
    from explorer.tuning.contest import Entry
    from explorer.tuning.journey import Journey

_FOLDER_REMEDY = "run it in another folder"
DEFAULT_BUDGET_S = 40.0
"""For a search where the problem was not searched before."""

Budget = Annotated[
    float | None,
    option(
        "--budget TIME",
        "Time for a search first, such as 30s or 2m; default: 40s where none is stored.",
        duration_s,
    ),
]
Save = Annotated[bool, option("--save", "Keep the result in results/ among the studies.")]


@with_problem_unless("--from names a file")
def journey(
    asked: AskedProblem | None,
    budget: Budget = None,
    device: Device = "auto",
    plot: Plot = None,
    save: Save = False,
    kept: Kept = None,
    markdown: Markdown = False,
    storage: Storage = None,
    seed: Seed = 0,
    timing: Timing = "cold",
    accuracy: AccuracyLevel = Accuracy.DEFAULT,
    json: Json = False,
    csv: Csv = False,
) -> None:
    """Time every published kernel and the search's best, the slowest first."""
    from explorer.report import journey as report
    from explorer.report.charts import check_plot

    form = one_format(json=json, csv=csv, markdown=markdown)
    if kept is not None:
        check_nothing_is_measured(cols=asked, save=save, budget=budget)
    check_plot(plot)
    if kept is not None:
        made = report.read_journey(kept)
    else:
        wanted = needed(asked)
        plan = _Plan(
            wanted.problem(), wanted.rows, device, timing, accuracy, seed, storage, budget, save
        )
        made = _run(plan)
    show_result(
        form,
        partial(report.print_journey, made, kept=kept is not None),
        partial(report.journey_data, made),
        rows=partial(report.journey_rows, made),
        markdown=partial(report.journey_markdown, made),
        plot=plot,
        chart=partial(report.journey_picture, made),
    )


@dataclass(frozen=True, slots=True)
class _Plan:
    """The command's options, read."""

    problem: Problem
    rows: int | None
    device: str
    timing: str
    accuracy: Accuracy
    seed: int
    storage: str | None
    budget_s: float | None
    save: bool


def _run(plan: _Plan) -> "Journey":
    from explorer.devices.names import why_no_gpu
    from explorer.evaluate.replay import ReplayEvaluator
    from explorer.report.progress import JourneyLine
    from explorer.report.table import notices
    from explorer.tuning import run_journey

    why = why_no_gpu(plan.device)
    try:
        with _opened(plan, why) as evaluator:
            path = _path(evaluator) if plan.save else None
            replayed = evaluator.notices if isinstance(evaluator, ReplayEvaluator) else []
            for notice in [*replayed, *rows_notice(plan.problem, plan.rows)]:
                say(notice)
            with JourneyLine(notices()) as line:
                made = run_journey(evaluator, partial(_best, plan, evaluator), on_progress=line)
    except NotFound as error:
        raise NotFound(f"{why}, and {error}" if why else str(error)) from None
    except KeyboardInterrupt:
        say("stopped; nothing was kept but what a search found")
        raise typer.Exit(INTERRUPTED) from None
    if path is not None:
        keep_result(path, made.as_dict(), _FOLDER_REMEDY)
    return made


@contextmanager
def _opened(plan: _Plan, why: str | None) -> "Iterator[Evaluator]":
    """Open what measures; `why` says that there is no GPU.

    Raises InvalidInput if there is neither a GPU nor a recording of the problem. The shipped
    recordings lack the presets, so that naming them would help nobody.
    """
    from explorer.evaluate.open_evaluator import open_evaluator

    with ExitStack() as stack:
        opening = open_evaluator(plan.problem, plan.device, plan.timing, plan.seed, plan.accuracy)
        try:
            evaluator = stack.enter_context(opening)
        except NotFound:
            if not why:
                raise
            raise InvalidInput(
                f"a journey needs a GPU, and there is none: {why}; show one that was kept, as the "
                "repository's studies/results/journey-*.json: --from FILE"
            ) from None
        yield evaluator


def _best(plan: _Plan, evaluator: "Evaluator") -> "Entry":
    """The stored search's best; where there is none, or a budget is given, of a search now."""
    from explorer.report.progress import ProgressLine
    from explorer.report.table import notices
    from explorer.report.text import seconds
    from explorer.tuning import open_storage, run_search, stored_best
    from explorer.tuning.contest import Entry

    storage = open_storage(plan.storage)
    found = stored_best(evaluator, storage)
    if found is not None and plan.budget_s is None:
        say(f"the search's best is {found.origin}")
        return found
    budget_s = plan.budget_s or DEFAULT_BUDGET_S
    if found is None:
        say(f"no search of this problem is stored: searching for {seconds(budget_s)} first")
    with ProgressLine(plan.problem, notices()) as progress:
        result = run_search(
            evaluator, storage, budget_s=budget_s, seed=plan.seed, on_progress=progress
        )
    winner = result.finals.winner.trial
    return Entry(winner.config, f"trial {winner.number} of study {result.study}")


def _path(evaluator: "Evaluator") -> Path:
    """Where the journey is kept; asked before it is measured. Raises InvalidInput."""
    from explorer.devices.recorded import SUFFIX, local_path

    made = evaluator.environment
    file = local_path(evaluator.problem, evaluator.gpu, made.timing, made.accuracy)
    name = file.name.removesuffix(SUFFIX)
    path = studies_folder() / "results" / f"journey-{name}.json"
    check_replaceable(path, JOURNEY, _FOLDER_REMEDY)
    return path
