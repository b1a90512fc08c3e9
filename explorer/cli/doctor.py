"""Commands that help a user on: what this machine lacks, and the guides."""

from functools import partial
from typing import Annotated

import typer

from explorer.cli import completions
from explorer.cli.options import JsonOption, Storage, argument, with_options
from explorer.cli.output import show_result

# ------------------------------------------------------------------ explorer doctor


BROKEN = 1


@with_options
def doctor(out: JsonOption, storage: Storage = None) -> None:
    """Say what this machine has, what it lacks, and what that is needed for."""
    from explorer.report.machine import checks, machine_data, print_machine

    found = checks(storage)
    show_result(out.form, partial(print_machine, found), partial(machine_data, found))
    if any(check.required and not check.ok for check in found):
        raise typer.Exit(BROKEN)


# ------------------------------------------------------------------ explorer guide


def guide(
    name: Annotated[
        str | None,
        argument("NAME", "The guide to show.", completions.guides),
    ] = None,
) -> None:
    """List the guides, or show one: how to use, tune, read and measure kernels."""
    from explorer.report.guides import print_guide, print_guides, read_guide
    from explorer.report.table import results

    if name is None:
        print_guides(results())
    else:
        print_guide(read_guide(name), results())
