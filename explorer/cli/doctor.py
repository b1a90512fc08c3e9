"""`explorer doctor`: what this machine has, and what is missing for what."""

import typer

from explorer.cli.options import Json, Storage

BROKEN = 1


def doctor(storage: Storage = None, json: Json = False) -> None:
    """Say what this machine has and lacks, and for what."""
    from explorer.report.console import results
    from explorer.report.json_data import as_text, machine_data
    from explorer.report.machine import checks
    from explorer.report.machine_report import print_machine

    found = checks(storage)
    if json:
        print(as_text(machine_data(found)))
    else:
        print_machine(found, results())
    if any(check.required and not check.ok for check in found):
        raise typer.Exit(BROKEN)
