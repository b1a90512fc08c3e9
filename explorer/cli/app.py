"""The application: its commands, in the order in which `explorer --help` lists them.

Commands import what they need when they run, so that help and usage errors come at once.
"""

from collections.abc import Callable
from typing import Annotated

import typer

from explorer import __version__
from explorer.cli.benchmark import benchmark, recordings
from explorer.cli.compare import compare
from explorer.cli.doctor import cache, doctor, guide
from explorer.cli.emit import emit
from explorer.cli.help import HELP_NAMES, Command
from explorer.cli.journey import journey
from explorer.cli.output import SentenceErrors
from explorer.cli.profile import diff, profile
from explorer.cli.record import record
from explorer.cli.search import search
from explorer.cli.space import presets, space
from explorer.cli.studies import dashboard, merge, report, show, studies
from explorer.cli.tune import table, tune
from explorer.cli.verify import time, verify

app = typer.Typer(
    cls=SentenceErrors,
    context_settings=HELP_NAMES,
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
    """Emit, verify and time CUDA softmax kernels; keep the fastest found."""
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())


COMMANDS: dict[str, dict[Callable[..., None], str]] = {
    "Find and use kernels": {
        search: "explorer search --cols 4096 --dtype bf16 --budget 30s",
        tune: "explorer tune --cols 64:131072:log --dtype f32,bf16",
        emit: "explorer emit best --cols 4096 --for torch",
        verify: "explorer verify heuristic --cols 1000",
        time: "explorer time generated/softmax.cu",
    },
    "Look at kernels and results": {
        show: "explorer show --cols 4096",
        report: "explorer report --cols 4096 --output report.html",
        profile: "explorer profile best --cols 4096",
        diff: "explorer diff heuristic oneflow-warp --cols 1024",
        compare: "explorer compare --cols 4096,50257 --dtype f32,bf16",
        journey: "explorer journey --cols 4096 --plot journey.svg",
        dashboard: "explorer dashboard --port 8081",
    },
    "Look up": {
        guide: "explorer guide pytorch",
        presets: "explorer presets --cols 4096",
        space: "explorer space --cols 4096",
        doctor: "explorer doctor",
    },
    "Record and contribute": {
        record: "explorer record --cols 4096 --sample 500",
        recordings: "explorer recordings",
        benchmark: "explorer benchmark --seeds 3",
        merge: "explorer merge unsaved-trials-1a2b3c4d.journal",
    },
}
"""The commands by group, in the order of `explorer --help`, each with the example of its help."""

GROUPS = {
    "Find and use kernels": {"table": table},
    "Look at kernels and results": {"studies": studies},
    "Look up": {"cache": cache},
}
"""The groups of commands, which stand behind the commands of theirs."""

for group, commands in COMMANDS.items():
    for command, example in commands.items():
        app.command(cls=Command, epilog=example, rich_help_panel=group)(command)
for group, typers in GROUPS.items():
    for name, one in typers.items():
        app.add_typer(one, name=name, rich_help_panel=group)
