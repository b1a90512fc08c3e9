"""Commands of the studies: what was searched, what came of it, and trials to be added."""

from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from explorer.cli.help import HELP_NAMES, Command, Group
from explorer.cli.options import (
    Json,
    Plot,
    RowsOptions,
    Storage,
    StudyOptions,
    TableOptions,
    argument,
    option,
    with_options,
)
from explorer.cli.output import say, show_result
from explorer.cli.problem import with_any_problem, with_problem_unless
from explorer.model.errors import InvalidInput
from explorer.model.query import ProblemQuery, whole_number

# ------------------------------------------------------------------ explorer studies


studies = typer.Typer(cls=Group, context_settings=HELP_NAMES, rich_markup_mode=None)


@studies.callback(invoke_without_command=True)
@with_options
def list_(context: typer.Context, out: TableOptions, storage: Storage = None) -> None:
    """List what was searched so far; delete or rename a study."""
    if context.invoked_subcommand is not None:
        if storage is not None or out.form:
            raise InvalidInput(f"give the options of {context.invoked_subcommand} after its name")
        return
    from explorer import api
    from explorer.report.studies import markdown_notices, markdown_table, print_studies
    from explorer.tuning.storage import open_storage
    from explorer.tuning.study_reader import list_views

    found = api.studies(storage=storage, notice=say)
    views = list_views(open_storage(storage, read_only=True)) if out.markdown else []
    for notice in markdown_notices(found, views) if out.markdown else []:
        say(notice)
    show_result(
        out.form,
        partial(print_studies, found),
        found.to_dict,
        rows=found.records,
        markdown=partial(markdown_table, views),
    )


Named = Annotated[str, argument("STUDY", "The study, or a part of its name that no other has.")]
Force = Annotated[bool, option("--force", "Delete it, with all of its trials, for good.")]
NewName = Annotated[str, argument("NAME", "The new name, which no study has.")]


@studies.command(cls=Command, epilog="explorer studies delete 'softmax f32 8192x4096' --force")
def delete(study: Named, force: Force = False, storage: Storage = None) -> None:
    """Delete a study and its trials."""
    from explorer.report.text import counted
    from explorer.tuning.storage import open_storage
    from explorer.tuning.study_writer import delete_study

    gone = delete_study(open_storage(storage, read_only=True), study, force=force)
    say(f"study '{gone.study}' and its {counted(gone.trials, 'trial')} deleted")


@studies.command(cls=Command, epilog="explorer studies rename 'softmax f32 8192x4096' before")
def rename(study: Named, name: NewName, storage: Storage = None) -> None:
    """Give a study another name, under which it is kept: a search then begins a new one.

    Commands mean a renamed study where it is the only one of its problem, and where --study names
    it.
    """
    from explorer.tuning.storage import open_storage
    from explorer.tuning.study_writer import rename_study

    was = rename_study(open_storage(storage, read_only=True), study, name)
    say(f"study '{was}' is now '{name}'")


# ------------------------------------------------------------------ explorer show


@with_problem_unless("--study says it")
def show(
    query: ProblemQuery | None,
    of: StudyOptions,
    out: RowsOptions,
    plot: Plot = None,
) -> None:
    """Print the result of a search: the best, its ties, rejections, what parameters do.

    With --csv it prints every trial of the study.
    """
    from explorer import api
    from explorer.report.charts import check_plot
    from explorer.report.pages import study_picture
    from explorer.report.studies import print_study

    check_plot(plot)
    history = api.show(query, notice=say, **of.given)
    show_result(
        out.form,
        lambda console: print_study(history.view, console, of.storage),
        history.to_dict,
        rows=history.records,
        plot=plot,
        chart=lambda: study_picture(history),
    )


# ------------------------------------------------------------------ explorer report


LARGE_MB = 1.5
"""Above this a page is said to be large; one of a study of 2500 trials has 1.41 MB."""

Output = Annotated[
    Path, option("--output FILE.html", "The page to write; only another page of ours is replaced.")
]
Kept = Annotated[
    list[str] | None,
    option(
        "--from NAME",
        "Show a file with a comparison, a journey or a tuned table, a table of the package, or a "
        "study by its name. May be given several times, which puts those of one kind side by "
        "side, and with --cols.",
    ),
]


@with_any_problem
def report(
    query: ProblemQuery | None,
    of: StudyOptions,
    kept: Kept = None,
    output: Output = Path("report.html"),
) -> None:
    """Write a page with charts of a study, a comparison, a journey or a tuned table.

    The page is one file, which opens offline in any browser. It takes the extra
    report: pip install '.[report]' in the checkout.
    """
    from explorer import api

    path = api.write_report(query, output=output, from_=kept or (), notice=say, **of.given)
    size = path.stat().st_size / 1e6
    several = len(kept or ()) + bool(query or of.study) > 1
    large = "; a page of fewer files is smaller" if size > LARGE_MB and several else ""
    say(f"{path}: written, {size:.2f} MB{large}")


# ------------------------------------------------------------------ explorer merge


Files = Annotated[list[Path], argument("FILE", "The files that the search named.")]


def merge(files: Files, storage: Storage = None, json: Json = False) -> None:
    """Store the trials that a search kept in files because it could not write its database."""
    from explorer.report.text import as_json, counted
    from explorer.tuning.storage import open_storage
    from explorer.tuning.study_writer import merge_trials

    opened = open_storage(storage)
    merged = [one for file in files for one in merge_trials(opened, file)]
    if json:
        print(as_json({"studies": [one._asdict() for one in merged]}))
        return
    for one in merged:
        known = f"; {one.known} were there before" if one.known else ""
        say(f"{counted(one.added, 'trial')} added to study '{one.study}'{known}")
    again = "run the search again, so that its finals know of them; "
    say(f"{again if any(one.added for one in merged) else ''}the files can be deleted")


# ------------------------------------------------------------------ explorer dashboard


Port = Annotated[int, option("--port PORT", "TCP port.", whole_number("port", 1, 65535))]


@with_any_problem
def dashboard(query: ProblemQuery | None, of: StudyOptions, port: Port = 8080) -> None:
    """Open the studies in optuna-dashboard; with --cols or --study, print a study's address."""
    import subprocess

    from explorer.report.studies import dashboard_command

    command = dashboard_command(of.storage, port)
    if query is not None or of.study:
        study, number = of.found(query)
        say(f"study '{study}': http://127.0.0.1:{port}/dashboard/studies/{number}")
    elif of.gpu:
        raise InvalidInput("--gpu chooses among the studies of a problem: give --cols")
    try:
        code = subprocess.call(command)
    except OSError as error:
        raise InvalidInput(
            f"{command[0]} cannot be run ({error.strerror}): install it again with pip install "
            "'.[dashboard]' in the checkout"
        ) from None
    if code:  # 1 would say that a kernel is wrong
        raise InvalidInput(
            f"{command[0]} ended with exit code {code}, and says why above; where the port is "
            "taken, name another --port"
        )
