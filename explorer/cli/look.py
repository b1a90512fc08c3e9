"""Commands that look at what there is: guides, studies, the space, presets, this machine."""

from typing import Annotated, Any

import typer

from explorer.asked import AskedProblem
from explorer.cli import completions
from explorer.cli.help import RESULTS
from explorer.cli.options import (
    AccuracyOrNone,
    Csv,
    Gpu,
    Json,
    Minimised,
    Plot,
    Storage,
    check_one_format,
    sub_space,
    whole_number,
)
from explorer.cli.output import say
from explorer.cli.problem import needed, with_problem
from explorer.errors import InvalidInput
from explorer.tuning.objective import Goal, Objectives

# ------------------------------------------------------------------ explorer guide


def guide(
    name: Annotated[
        str | None,
        typer.Argument(
            metavar="NAME",
            help="The guide to show.",
            show_default=False,
            autocompletion=completions.guides,
        ),
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
    csv: Csv = False,
    markdown: Annotated[
        bool,
        typer.Option(
            "--markdown", help="Print a Markdown table of their results.", rich_help_panel=RESULTS
        ),
    ] = False,
) -> None:
    """List what was searched so far."""
    from explorer.report.csv_data import as_csv, study_rows
    from explorer.report.json_data import as_text, summary_data
    from explorer.report.studies import markdown_notices, markdown_table, print_studies
    from explorer.report.table import results
    from explorer.tuning import list_views, open_storage, survey

    check_one_format(json=json, csv=csv, markdown=markdown)
    opened = open_storage(storage, read_only=True)
    found = survey(opened)
    summaries = found.summaries
    if found.faults and not summaries:
        raise InvalidInput(f"the storage has no study that can be read: {found.faults[0]}")
    for fault in found.faults:
        say(fault)
    if json:
        print(as_text({"studies": [summary_data(summary) for summary in summaries]}))
    elif csv:
        print(as_csv(study_rows(summaries)), end="")
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
    csv: Csv = False,
) -> None:
    """Print the result of a search: the best, its ties, rejections, what parameters do.

    With --csv it prints every trial of the study.
    """
    from explorer.report.charts import check_plot, write_chart
    from explorer.report.csv_data import as_csv, trial_rows
    from explorer.report.json_data import as_text, study_data
    from explorer.report.pareto_report import print_front_study
    from explorer.report.studies import print_study
    from explorer.report.table import results
    from explorer.tuning import load_history, load_study, load_trials, open_storage, searching

    check_one_format(json=json, csv=csv)
    check_plot(plot)
    asked, goal = needed(asked), Goal.of(objectives, accuracy)
    opened = open_storage(storage, read_only=True, command=searching(asked, goal))
    view = load_study(opened, asked, goal)
    if view.passed_over:
        say(view.passed_over)
    if plot is not None:  # before stdout may be closed
        from explorer.report.study_page import study_chart

        write_chart(study_chart(load_history(opened, asked, goal)), plot)
        say(f"{plot}: drawn")
    if json:
        print(as_text(study_data(view, storage)))
    elif csv:
        trials = load_trials(opened, asked, goal)
        print(as_csv(trial_rows(trials, view.summary.problem, view.circumstances.copy_us)), end="")
    elif objectives is Objectives.TIME_ERROR:
        print_front_study(view, results(), storage)
    else:
        print_study(view, results(), storage)


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


Where = Annotated[
    list[str] | None,
    typer.Option(
        "--where",
        metavar="NAME=V,V",
        help="Only configs with these values of a parameter; may be repeated.",
        show_default=False,
        autocompletion=completions.conditions,
    ),
]
Parameters = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[PARAMETER]...",
        help="Only these parameters, and the rules that read one of them.",
        show_default=False,
        autocompletion=completions.parameters,
    ),
]


@with_problem
def space(
    asked: AskedProblem | None,
    parameter: Parameters = None,
    where: Where = None,
    gpu: Gpu = None,
    json: Json = False,
    csv: Csv = False,
) -> None:
    """Print the parameters, their values and the rules.

    With --csv it prints a line for each value of each parameter.
    """
    from explorer.api import gpu_limits
    from explorer.report.csv_data import as_csv, parameter_rows
    from explorer.report.json_data import as_text, space_data
    from explorer.report.space import SpaceView, print_space
    from explorer.report.table import results
    from explorer.space import Space

    check_one_format(json=json, csv=csv)
    problem = needed(asked).problem()
    fixed = sub_space(where or [], problem.dtype)
    view = SpaceView(Space(problem, gpu_limits(gpu), fixed), fixed, tuple(parameter or ()))
    if json:
        print(as_text(space_data(view)))
    elif csv:
        print(as_csv(parameter_rows(view.parameters)), end="")
    else:
        print_space(view, results())


# ------------------------------------------------------------------ explorer presets


Text = Annotated[
    str | None,
    typer.Argument(
        metavar="[TEXT]",
        help="Only presets with this text in a name or in what they are from.",
        show_default=False,
        autocompletion=completions.presets,
    ),
]
Legal = Annotated[
    bool, typer.Option("--legal", help="With --cols: only those that can compute the problem.")
]


@with_problem
def presets(
    context: typer.Context,
    asked: AskedProblem | None,
    text: Text = None,
    legal: Legal = False,
    where: Where = None,
    gpu: Gpu = None,
    json: Json = False,
    csv: Csv = False,
) -> None:
    """List published kernels; with --cols, which of them can compute the problem.

    Without --cols, --op and --dtype list the presets that can compute that op and type.
    """
    from explorer.api import gpu_limits
    from explorer.report.csv_data import as_csv, preset_rows
    from explorer.report.json_data import as_text
    from explorer.report.space import PresetFilter, preset_lines, presets_data, print_presets
    from explorer.report.table import results

    check_one_format(json=json, csv=csv)
    problem = None if asked is None else asked.problem()
    if problem is None and (legal or where):
        raise InvalidInput("--legal and --where ask what a preset is for a problem: give --cols")
    op, dtype = (None if problem else _given(context, name) for name in ("op", "dtype"))
    fixed = {} if problem is None else sub_space(where or [], problem.dtype)
    wanted = PresetFilter(text or "", op, dtype, fixed, only_legal=legal)
    every = preset_lines(problem, None if problem is None else gpu_limits(gpu))
    lines = [line for line in every if wanted.passes(line)]
    if json:
        print(as_text({"presets": presets_data(lines)}))
    elif csv:
        print(as_csv(preset_rows(lines)), end="")
    else:
        print_presets(lines, problem, results())


def _given(context: typer.Context, name: str) -> Any:
    """What a user gave for an option; None for its default."""
    source = context.get_parameter_source(name)
    return context.params[name] if source is not None and source.name == "COMMANDLINE" else None


# ------------------------------------------------------------------ explorer doctor


BROKEN = 1


def doctor(storage: Storage = None, json: Json = False) -> None:
    """Say what this machine has, what it lacks, and what that is needed for."""
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
