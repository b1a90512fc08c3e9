"""Commands of the studies: what was searched, what came of it, and trials to be added."""

from functools import partial
from pathlib import Path
from typing import Annotated

from explorer.cli.options import (
    AccuracyOrNone,
    Csv,
    Json,
    Minimised,
    Plot,
    Storage,
    Study,
    StudyGpu,
    argument,
    one_format,
    option,
)
from explorer.cli.output import say, show_result
from explorer.cli.problem import with_problem
from explorer.model.asked import AskedProblem, needed, whole_number
from explorer.model.errors import InvalidInput, NotFound
from explorer.tuning.objective import Goal, Objectives

# ------------------------------------------------------------------ explorer studies


def studies(
    storage: Storage = None,
    json: Json = False,
    csv: Csv = False,
    markdown: Annotated[
        bool,
        option("--markdown", "Print a Markdown table of their results."),
    ] = False,
) -> None:
    """List what was searched so far."""
    from explorer.report.studies import SUMMARY, markdown_notices, markdown_table, print_studies
    from explorer.report.table import data_of
    from explorer.tuning import list_views, open_storage, survey
    from explorer.tuning.storage import SEARCH, file_of

    form = one_format(json=json, csv=csv, markdown=markdown)
    opened = open_storage(storage, read_only=True)
    found = survey(opened)
    summaries = found.summaries
    if found.faults and not summaries:
        raise InvalidInput(f"the storage has no study that can be read: {found.faults[0]}")
    if not summaries:
        raise NotFound(f"no study yet: storage {file_of(opened) or storage} has none; run {SEARCH}")
    for fault in found.faults:
        say(fault)
    views = list_views(opened) if markdown else []
    for notice in markdown_notices(summaries, views) if markdown else []:
        say(notice)
    rows = [data_of(SUMMARY, summary) for summary in summaries]
    show_result(
        form,
        partial(print_studies, summaries),
        lambda: {"studies": rows},
        rows=lambda: rows,
        markdown=partial(markdown_table, views),
    )


# ------------------------------------------------------------------ explorer show


@with_problem
def show(
    asked: AskedProblem | None,
    accuracy: AccuracyOrNone = None,
    objectives: Minimised = Objectives.TIME,
    storage: Storage = None,
    study: Study = None,
    gpu: StudyGpu = None,
    plot: Plot = None,
    json: Json = False,
    csv: Csv = False,
) -> None:
    """Print the result of a search: the best, its ties, rejections, what parameters do.

    With --csv it prints every trial of the study.
    """
    from explorer.report.charts import check_plot
    from explorer.report.studies import print_study, study_data, trial_rows
    from explorer.report.study_page import study_picture
    from explorer.tuning import load_history, open_storage, searching

    form = one_format(json=json, csv=csv)
    check_plot(plot)
    asked, goal = needed(asked), Goal.of(objectives, accuracy, study, gpu)
    opened = open_storage(storage, read_only=True, command=searching(asked, goal))
    history = load_history(opened, asked, goal)
    view = history.view
    if view.passed_over:
        say(view.passed_over)
    trials = {attempt.number: attempt.trial for attempt in history.attempts}
    problem, copy_us = view.summary.problem, view.environment.copy_us
    show_result(
        form,
        lambda console: print_study(view, console, storage),
        lambda: study_data(view, storage),
        rows=lambda: trial_rows(trials, problem, copy_us),
        plot=plot,
        chart=lambda: study_picture(history),
    )


# ------------------------------------------------------------------ explorer merge


Files = Annotated[list[Path], argument("FILE", "The files that the search named.")]


def merge(files: Files, storage: Storage = None, json: Json = False) -> None:
    """Store the trials that a search kept in files because it could not write its database."""
    from explorer.report.text import as_json, counted
    from explorer.tuning import merge_trials, open_storage

    opened = open_storage(storage)
    merged = [one for file in files for one in merge_trials(opened, file)]
    if json:
        print(as_json({"studies": [one._asdict() for one in merged]}))
        return
    for one in merged:
        known = f"; {one.known} were there before" if one.known else ""
        say(f"{counted(one.added, 'trial')} added to study '{one.study}'{known}")
    say("run the search again, so that its finals know of them; the files can be deleted")


# ------------------------------------------------------------------ explorer dashboard


def dashboard(
    storage: Storage = None,
    port: Annotated[
        int,
        option("--port PORT", "TCP port.", whole_number("port", 1, 65535)),
    ] = 8080,
) -> None:
    """Open the studies in optuna-dashboard."""
    import subprocess

    from explorer.report.studies import dashboard_command

    command = dashboard_command(storage, port)
    try:
        code = subprocess.call(command)
    except OSError as error:
        raise InvalidInput(
            f"{command[0]} cannot be run ({error.strerror}): install it again with pip install "
            "'softmax-explorer[dashboard]'"
        ) from None
    if code:  # 1 would say that a kernel is wrong
        raise InvalidInput(
            f"{command[0]} ended with exit code {code}, and says why above; where the port is "
            "taken, name another --port"
        )
