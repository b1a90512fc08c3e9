"""`explorer dashboard`: the storage in optuna-dashboard."""

from typing import Annotated

import typer

from explorer.cli.options import Storage
from explorer.cli.values import whole_number


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

    from explorer.report.dashboard import dashboard_command

    raise typer.Exit(subprocess.call(dashboard_command(storage, port)))
