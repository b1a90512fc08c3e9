"""`explorer dashboard`: the storage in optuna-dashboard."""

from typing import Annotated

import typer

from explorer.cli.options import Storage
from explorer.cli.values import whole_number
from explorer.errors import InvalidInput


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
