"""`explorer journey`: every published kernel, and the search's best, in one run."""

from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from explorer.cli.options import (
    Device,
    Kept,
    MeasureOptions,
    Plot,
    Storage,
    TableOptions,
    duration_s,
    option,
)
from explorer.cli.output import check_nothing_is_measured, keep_result, say, show_result, stopped
from explorer.cli.own_kernel import OwnOptions, With
from explorer.cli.problem import with_problem_unless
from explorer.model.errors import InvalidInput, NotFound
from explorer.model.query import ProblemQuery, needed, rows_notice
from explorer.system.user_files import JOURNEY, check_replaceable, studies_folder

if TYPE_CHECKING:
    from explorer.model.evaluator import Evaluator
    from explorer.model.peer import PeerName
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


Ladder = Annotated[
    bool,
    option(
        "--ladder",
        "Instead: the ideas in their order, each with its file, its profile and why. Times are "
        "those of a kept journey.",
    ),
]


@dataclass(frozen=True, slots=True)
class Where(MeasureOptions):
    """Where kernels are timed, or replayed, and where the search's best is stored."""

    device: Device = "auto"
    storage: Storage = None


@with_problem_unless("--from names a file")
def journey(
    context: typer.Context,
    query: ProblemQuery | None,
    of: Where,
    own: OwnOptions,
    out: TableOptions,
    with_: With = None,
    budget: Budget = None,
    plot: Plot = None,
    save: Save = False,
    kept: Kept = None,
    ladder: Ladder = False,
) -> None:
    """Time every published kernel and the search's best, the slowest first."""
    from explorer.report import journey as report
    from explorer.report.charts import check_plot

    if kept is not None:
        check_nothing_is_measured(cols=query, save=save, budget=budget, **{"with": with_})
    check_plot(plot)
    if ladder:
        _ladder(query, kept, out)
        return
    if kept is None:
        peers = own.peers(with_, needed(query).problem())
        made = _run(needed(query), of, budget, save, peers)
    else:
        made = report.read_journey(kept)
    show_result(
        out.form,
        partial(report.print_journey, made, kept=kept is not None),
        partial(report.journey_data, made),
        rows=partial(report.journey_rows, made),
        markdown=partial(report.journey_markdown, made),
        plot=plot,
        chart=partial(report.journey_picture, made),
    )


def _ladder(query: ProblemQuery | None, kept: Path | None, out: TableOptions) -> None:
    """Print the ladder for a problem, by default that of the journey that is named or shipped."""
    from explorer.devices.names import gpu_limits
    from explorer.model.gpu_spec import is_known_gpu
    from explorer.report.journey import read_journey
    from explorer.report.ladder import kept_journey, ladder_data, ladder_steps, print_ladder

    journey = None if kept is None else read_journey(kept)
    problem = journey.problem if journey else (query or ProblemQuery(4096)).problem()
    journey = journey or kept_journey(problem)
    name = journey.environment.gpu if journey else None
    gpu = gpu_limits(name if name and is_known_gpu(name) else None)
    steps = ladder_steps(problem, gpu, journey)
    show_result(
        out.form,
        partial(print_ladder, steps, journey),
        partial(ladder_data, steps, journey),
        rows=lambda: ladder_data(steps, journey)["rungs"],
    )


def _run(
    query: ProblemQuery,
    of: Where,
    budget_s: float | None,
    save: bool,
    own: "tuple[PeerName, ...]",
) -> "Journey":
    """Measure a journey, and keep it where that is wanted.

    Raises InvalidInput if no published kernel computes the op, or if there is neither a GPU nor a
    recording of the problem. The shipped recordings lack the presets, so that naming them would
    help nobody.
    """
    from explorer.devices.names import why_no_gpu
    from explorer.evaluate.open_evaluator import open_evaluator
    from explorer.presets.published import unpublished
    from explorer.report.progress import JourneyLine
    from explorer.report.table import notices
    from explorer.tuning.journey import run_journey

    why, problem = why_no_gpu(of.device), query.problem()
    if told := unpublished(problem.op):
        raise InvalidInput(told)
    try:
        with stopped("; nothing was kept but what a search found"), ExitStack() as stack:
            opening = open_evaluator(problem, of.device, of.timing, of.seed, of.accuracy)
            try:
                evaluator = stack.enter_context(opening)
            except NotFound:
                if not why:
                    raise
                raise InvalidInput(
                    f"a journey needs a GPU, and there is none: {why}; show one that "
                    "comes with the package: --from journey-h200-f32-4096"
                ) from None
            path = _path(evaluator) if save else None
            for notice in [*evaluator.notices, *rows_notice(problem, query.rows)]:
                say(notice)
            with JourneyLine(notices()) as line:
                best = partial(_best, evaluator, of, budget_s)
                made = run_journey(evaluator, best, own=own, on_progress=line)
    except NotFound as error:
        raise NotFound(f"{why}, and {error}" if why else str(error)) from None
    if path is not None:
        keep_result(path, made.as_dict(), _FOLDER_REMEDY)
    return made


def _best(evaluator: "Evaluator", of: Where, budget_s: float | None) -> "Entry":
    """Return the stored search's best; where there is none, or a budget, that of a search now."""
    from explorer.report.progress import ProgressLine
    from explorer.report.table import notices
    from explorer.report.text import seconds
    from explorer.tuning.contest import Entry
    from explorer.tuning.journey import stored_best
    from explorer.tuning.search import run_search
    from explorer.tuning.storage import open_storage

    storage = open_storage(of.storage)
    found = stored_best(evaluator, storage)
    if found is not None and budget_s is None:
        say(f"the search's best is {found.origin}")
        return found
    budget_s = budget_s or DEFAULT_BUDGET_S
    if found is None:
        say(f"no search of this problem is stored: searching for {seconds(budget_s)} first")
    with ProgressLine(evaluator.problem, notices()) as line:
        result = run_search(evaluator, storage, budget_s=budget_s, seed=of.seed, on_progress=line)
    winner = result.finals.winner.trial
    return Entry(winner.config, f"trial {winner.number} of study {result.study}")


def _path(evaluator: "Evaluator") -> Path:
    """Return where the journey is kept, checked before it is measured. Raises InvalidInput."""
    from explorer.devices.recording import SUFFIX, local_path

    made = evaluator.environment
    file = local_path(evaluator.problem, evaluator.gpu, made.timing, made.accuracy)
    name = file.name.removesuffix(SUFFIX)
    path = studies_folder() / "results" / f"journey-{name}.json"
    check_replaceable(path, JOURNEY, _FOLDER_REMEDY)
    return path
