"""The application: its commands, in the order in which `explorer --help` lists them.

Commands import what they need when they run, so that help and usage errors come at once.
"""

from typing import Annotated

import typer

from explorer import __version__
from explorer.cli.benchmark import benchmark, recordings
from explorer.cli.compare import compare
from explorer.cli.emit import emit
from explorer.cli.journey import journey
from explorer.cli.look import dashboard, doctor, guide, presets, show, space, studies
from explorer.cli.merge import merge
from explorer.cli.output import SentenceErrors
from explorer.cli.profile import profile
from explorer.cli.record import record
from explorer.cli.report import report
from explorer.cli.search import search
from explorer.cli.table import table
from explorer.cli.time import time
from explorer.cli.tune import tune
from explorer.cli.verify import verify

app = typer.Typer(
    cls=SentenceErrors,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"softmax-explorer {__version__}")
        raise typer.Exit


@app.callback(invoke_without_command=True)
def explorer(
    context: typer.Context,
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Print the version and leave."
        ),
    ] = False,
) -> None:
    """Emit, verify and time CUDA softmax kernels; keep the fastest for each problem."""
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())


COMMANDS = (
    search,
    tune,
    emit,
    verify,
    time,
    profile,
    studies,
    show,
    report,
    space,
    presets,
    journey,
    compare,
    record,
    recordings,
    benchmark,
    merge,
    dashboard,
    doctor,
    guide,
)

for command in COMMANDS:
    app.command()(command)
app.add_typer(table, name="table")
