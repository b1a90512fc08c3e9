"""`explorer search`: find the fastest variant of a problem."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from explorer.cli import completions
from explorer.cli.options import (
    AccuracyOrNone,
    Device,
    Json,
    Minimised,
    Plot,
    Seed,
    Storage,
    Timing,
    duration_s,
)
from explorer.cli.output import INTERRUPTED, say
from explorer.cli.problem import with_problem
from explorer.model.asked import AskedProblem, needed, whole_number
from explorer.tuning.objective import Effort, Objectives

if TYPE_CHECKING:
    from explorer.tuning.results import SearchResult

Trials = Annotated[
    int | None,
    typer.Option(
        "--trials",
        metavar="N",
        parser=whole_number("trials", 1),
        help="Kernels to evaluate in this run, in place of --effort.",
        show_default=False,
    ),
]
Budget = Annotated[
    float | None,
    typer.Option(
        "--budget",
        metavar="TIME",
        parser=duration_s,
        help="Time for search and finals, such as 30s, 2m or 90, in place of --effort. Starting, "
        "and checking a replay, come on top.",
        show_default=False,
    ),
]
Sampler = Annotated[
    str | None,
    typer.Option(
        "--sampler",
        metavar="MODULE:CLASS",
        help="An Optuna sampler that proposes what comes after the first few kernels.",
        show_default=False,
    ),
]
EffortOrNone = Annotated[
    Effort | None,
    typer.Option(
        "--effort",
        metavar="HOW",
        parser=Effort.parse,
        help=Effort.told(),
        show_default=False,
        autocompletion=completions.among(*Effort),
    ),
]


@with_problem
def search(
    asked: AskedProblem | None,
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
    plot: Plot = None,
    json: Json = False,
) -> None:
    """Find the fastest kernel of a problem. To continue a search, give the same command again."""
    from explorer import api
    from explorer.report.charts import check_plot
    from explorer.report.progress import ProgressLine
    from explorer.report.table import notices

    asked = needed(asked)
    check_plot(plot)
    progress = ProgressLine(asked.problem(), notices())
    try:
        with progress:
            result = api.search(
                asked,
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
                progress=progress,
                notice=say,
            )
    except KeyboardInterrupt:
        kept = progress.last.trials if progress.last else 0
        trials_kept = "1 trial is" if kept == 1 else f"{kept} trials are"
        say(f"stopped; {trials_kept} kept; run the same command again to go on")
        raise typer.Exit(INTERRUPTED) from None
    try:  # before stdout may be closed, and what was found is told even if nothing can be drawn
        _draw(result, storage, plot)
    finally:
        _print(result, storage, json=json)


def _draw(result: "SearchResult", storage: str | None, plot: Path | None) -> None:
    if plot is None:
        return
    from explorer.report.charts import write_chart
    from explorer.report.study_page import study_chart
    from explorer.tuning import load_history, open_storage

    opened = open_storage(storage, read_only=True)
    write_chart(study_chart(load_history(opened, result.problem, result.goal)), plot)
    say(f"{plot}: drawn")


def _print(result: "SearchResult", storage: str | None, *, json: bool) -> None:
    # What prints takes half a second to import, which the search need not wait for.
    from explorer.report.json_data import search_data
    from explorer.report.pareto_front import print_front
    from explorer.report.studies import print_search
    from explorer.report.table import results
    from explorer.report.text import as_json

    checked = result.verification
    if json:
        print(as_json(search_data(result, storage, checked)))
    elif result.objectives is Objectives.TIME_ERROR:
        print_front(result, results(), storage, checked)
    else:
        print_search(result, results(), storage, checked)
