"""`explorer search`: find the fastest variant of a problem."""

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from explorer.cli.options import (
    AccuracyOrNone,
    Device,
    JsonOption,
    Minimised,
    Plot,
    Seed,
    SpreadOptions,
    Storage,
    Timing,
    Where,
    duration_s,
    option,
)
from explorer.cli.output import INTERRUPTED, say, show_result
from explorer.cli.problem import with_problem
from explorer.model.query import ProblemQuery, needed, whole_number
from explorer.tuning.objective import Effort, Objectives

if TYPE_CHECKING:
    from explorer.tuning.results import SearchResult

Trials = Annotated[
    int | None,
    option(
        "--trials N",
        "Kernels to evaluate in this run, in place of --effort.",
        whole_number("trials", 1),
    ),
]
Budget = Annotated[
    float | None,
    option(
        "--budget TIME",
        "Time for search and finals, such as 30s, 2m or 90, in place of --effort. Starting, "
        "and checking a replay, come on top.",
        duration_s,
    ),
]
Sampler = Annotated[
    str | None,
    option(
        "--sampler MODULE:CLASS",
        "An Optuna sampler that proposes what comes after the first few kernels.",
    ),
]
EffortOrNone = Annotated[Effort | None, option("--effort HOW", Effort.help(), choices=Effort)]


@with_problem
def search(
    query: ProblemQuery | None,
    many: SpreadOptions,
    out: JsonOption,
    budget: Budget = None,
    effort: EffortOrNone = None,
    trials: Trials = None,
    device: Device = "auto",
    storage: Storage = None,
    seed: Seed = 0,
    timing: Timing = "cold",
    accuracy: AccuracyOrNone = None,
    objectives: Minimised = Objectives.TIME,
    sampler: Sampler = None,
    where: Where = None,
    plot: Plot = None,
) -> None:
    """Find the fastest kernel of a problem. To continue a search, give the same command again."""
    from explorer import api
    from explorer.report.charts import check_plot
    from explorer.report.progress import ProgressLine
    from explorer.report.table import notices

    query = needed(query)
    check_plot(plot)
    progress = ProgressLine(query.problem(), notices())
    try:
        with progress:
            result = api.search(
                query,
                trials=trials,
                budget_s=budget,
                effort=effort,
                device=device,
                storage=storage,
                seed=seed,
                timing=timing,
                accuracy=accuracy,
                objectives=objectives,
                sampler=sampler,
                where=where,
                **asdict(many),
                progress=progress,
                notice=say,
            )
    except KeyboardInterrupt:
        kept = progress.last.trials if progress.last else 0
        trials_kept = "1 trial is" if kept == 1 else f"{kept} trials are"
        say(f"stopped; {trials_kept} kept; run the same command again to go on")
        raise typer.Exit(INTERRUPTED) from None
    _show(result, storage, plot, out.form)


def _show(result: "SearchResult", storage: str | None, plot: Path | None, form: str) -> None:
    # What prints takes half a second to import, which the search need not wait for.
    from explorer.report.pages import study_picture
    from explorer.report.studies import print_search, search_data
    from explorer.tuning.storage import open_storage
    from explorer.tuning.study_reader import load_history

    def chart() -> Any:
        opened = open_storage(storage, read_only=True)
        return study_picture(load_history(opened, result.problem, result.goal))

    checked = result.verification
    show_result(
        form,
        lambda console: print_search(result, console, storage, checked),
        lambda: search_data(result, storage, checked),
        plot=plot,
        chart=chart,
    )
