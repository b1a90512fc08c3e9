"""`explorer journey`: every published kernel, and the search's best, in one run."""

from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

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
from explorer.cli.output import (
    check_nothing_is_measured,
    is_given,
    keep_result,
    say,
    show_result,
    stopped,
)
from explorer.cli.own_kernel import OwnOptions, With
from explorer.cli.problem import with_problem_unless
from explorer.model.query import ProblemKeywords, ProblemQuery, needed, query_from_keywords
from explorer.system.user_files import JOURNEY, check_replaceable

if TYPE_CHECKING:
    from explorer.tuning.journey import Journey

_SAVE_REMEDY = "name another --save"

Budget = Annotated[
    float | None,
    option(
        "--budget TIME",
        "Time for a search first, such as 30s or 2m; default: 40s where none is stored.",
        duration_s,
    ),
]
Save = Annotated[Path | None, option("--save FILE", "Keep the result as JSON.")]


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
    save: Save = None,
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
        _ladder(query or _usual_query(context), kept, out)
        return
    if kept is not None:
        made = report.read_journey(kept)
    else:
        if save is not None:
            check_replaceable(save, JOURNEY, _SAVE_REMEDY)
        made = _run(needed(query), of, budget, own.beside(with_))
        if save is not None:
            keep_result(save, made.as_dict(), _SAVE_REMEDY)
    show_result(
        out.form,
        partial(report.print_journey, made, kept=kept is not None),
        partial(report.journey_data, made),
        rows=partial(report.journey_rows, made),
        markdown=partial(report.journey_markdown, made),
        plot=plot,
        chart=partial(report.journey_picture, made),
    )


def _usual_query(context: typer.Context) -> ProblemQuery:
    """Return the problem of a ladder where no columns are given, with whatever else is given."""
    from explorer.presets.ladder import usual_problem

    names = ProblemKeywords.__annotations__.keys() & context.params.keys()
    given = {name: context.params[name] for name in names if is_given(context, name)}
    return needed(query_from_keywords({**usual_problem(given.get("op")), **given}))


def _ladder(query: ProblemQuery, kept: Path | None, out: TableOptions) -> None:
    """Print the ladder for a problem, or for that of the journey that is named."""
    from explorer.devices.names import gpu_limits
    from explorer.model.gpu_spec import is_known_gpu
    from explorer.report.journey import read_journey
    from explorer.report.ladder import kept_journey, ladder_data, ladder_steps, print_ladder

    journey = None if kept is None else read_journey(kept)
    problem = journey.problem if journey else query.problem()
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
    own: dict[str, Any],
) -> "Journey":
    """Measure a journey, with a line of progress. Raises as `explorer.journey`."""
    from explorer import api
    from explorer.report.progress import JourneyLine, ProgressLine
    from explorer.report.table import notices

    with (
        stopped("; nothing was kept but what a search found"),
        JourneyLine(notices()) as line,
        ProgressLine(query.problem(), notices()) as searching,
    ):
        return api.journey(
            query,
            **own,
            budget_s=budget_s,
            **asdict(of),
            progress=searching,
            on_kernel=line,
            notice=say,
        )
