"""Commands that look at what there is: guides, studies, the space, presets, this machine."""

from typing import Annotated

import typer

from explorer.asked import AskedProblem
from explorer.cli.options import AccuracyOrNone, Gpu, Json, Minimised, Plot, Storage, whole_number
from explorer.cli.output import say
from explorer.cli.problem import needed, with_problem
from explorer.errors import InvalidInput
from explorer.tuning.objective import Goal, Objectives

# ------------------------------------------------------------------ explorer guide


def guide(
    name: Annotated[
        str | None,
        typer.Argument(metavar="NAME", help="The guide to show.", show_default=False),
    ] = None,
) -> None:
    """List the guides, or show one: how to use, tune, read and measure kernels."""
    from explorer.report.guides import print_guide, print_guides, read_guide
    from explorer.report.table import results

    if name is None:
        print_guides(results())
    else:
        print_guide(read_guide(name), results())


# ------------------------------------------------------------------ explorer studies


def studies(
    storage: Storage = None,
    json: Json = False,
    markdown: Annotated[
        bool, typer.Option("--markdown", help="Print a Markdown table of their results.")
    ] = False,
) -> None:
    """List the studies of a storage."""
    from explorer.report.json_data import as_text, summary_data
    from explorer.report.studies import markdown_notices, markdown_table, print_studies
    from explorer.report.table import results
    from explorer.tuning import list_views, open_storage, survey

    opened = open_storage(storage, read_only=True)
    found = survey(opened)
    summaries = found.summaries
    if found.faults and not summaries:
        raise InvalidInput(f"the storage has no study that can be read: {found.faults[0]}")
    for fault in found.faults:
        say(fault)
    if json:
        print(as_text({"studies": [summary_data(summary) for summary in summaries]}))
    elif markdown:
        views = list_views(opened)
        for notice in markdown_notices(summaries, views):
            say(notice)
        print(markdown_table(views), end="")
    else:
        print_studies(summaries, results())


# ------------------------------------------------------------------ explorer show


@with_problem
def show(
    asked: AskedProblem | None,
    accuracy: AccuracyOrNone = None,
    objectives: Minimised = Objectives.TIME,
    storage: Storage = None,
    plot: Plot = None,
    json: Json = False,
) -> None:
    """Print what a study found: best or front, ties, rejections, parameters."""
    from explorer.report.charts import check_plot, write_chart
    from explorer.report.json_data import as_text, study_data
    from explorer.report.pareto_report import print_front_study
    from explorer.report.studies import print_study
    from explorer.report.table import results
    from explorer.tuning import load_history, load_study, open_storage

    asked, goal = needed(asked), Goal.of(objectives, accuracy)
    check_plot(plot)
    opened = open_storage(storage, read_only=True)
    view = load_study(opened, asked, goal)
    if view.passed_over:
        say(view.passed_over)
    if json:
        print(as_text(study_data(view, storage)))
    elif objectives is Objectives.TIME_ERROR:
        print_front_study(view, results(), storage)
    else:
        print_study(view, results(), storage)
    if plot is not None:
        from explorer.report.study_page import study_chart

        write_chart(study_chart(load_history(opened, asked, goal)), plot)
        say(f"{plot}: drawn")


# ------------------------------------------------------------------ explorer dashboard


def dashboard(
    storage: Storage = None,
    port: Annotated[
        int,
        typer.Option(
            "--port", metavar="PORT", parser=whole_number("port", 1, 65535), help="TCP port."
        ),
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


# ------------------------------------------------------------------ explorer space


@with_problem
def space(asked: AskedProblem | None, gpu: Gpu = None, json: Json = False) -> None:
    """Print the parameters, their values and the rules."""
    from explorer.api import gpu_limits
    from explorer.report.json_data import as_text, space_data
    from explorer.report.space import print_space
    from explorer.report.table import results
    from explorer.space import Space

    points = Space(needed(asked).problem(), gpu_limits(gpu))
    if json:
        print(as_text(space_data(points)))
    else:
        print_space(points, results())


# ------------------------------------------------------------------ explorer presets


@with_problem
def presets(asked: AskedProblem | None, gpu: Gpu = None, json: Json = False) -> None:
    """List published kernels; with --cols, which of them can compute the problem."""
    from explorer.api import gpu_limits
    from explorer.report.json_data import as_text
    from explorer.report.space import preset_lines, presets_data, print_presets
    from explorer.report.table import results

    problem = None if asked is None else asked.problem()
    lines = preset_lines(problem, None if problem is None else gpu_limits(gpu))
    if json:
        print(as_text(presets_data(lines)))
    else:
        print_presets(lines, problem, results())


# ------------------------------------------------------------------ explorer doctor


BROKEN = 1


def doctor(storage: Storage = None, json: Json = False) -> None:
    """Say what this machine has and lacks, and for what."""
    from explorer.report.json_data import as_text, machine_data
    from explorer.report.machine import checks, print_machine
    from explorer.report.table import results

    found = checks(storage)
    if json:
        print(as_text(machine_data(found)))
    else:
        print_machine(found, results())
    if any(check.required and not check.ok for check in found):
        raise typer.Exit(BROKEN)
