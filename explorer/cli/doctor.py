"""Commands that help a user on: what this machine lacks, its cache, and the guides."""

from functools import partial
from typing import Annotated

import typer

from explorer.cli import completions
from explorer.cli.help import HELP_NAMES, Command, Group
from explorer.cli.options import At, JsonOption, Storage, argument, with_options
from explorer.cli.output import say, show_result

# ------------------------------------------------------------------ explorer doctor


BROKEN = 1


@with_options
def doctor(out: JsonOption, storage: Storage = None, cluster: At = None) -> None:
    """Say what this machine, or a cluster's workers, have and lack, and what that is needed for."""
    from explorer.report.machine import checks, cluster_checks, machine_data, print_machine

    found = checks(storage) if cluster is None else cluster_checks(cluster)
    show_result(out.form, partial(print_machine, found), partial(machine_data, found))
    if any(check.required and not check.ok for check in found):
        raise typer.Exit(BROKEN)


# ------------------------------------------------------------------ explorer cache


cache = typer.Typer(cls=Group, context_settings=HELP_NAMES, rich_markup_mode=None)


@cache.callback(invoke_without_command=True)
def cached(context: typer.Context) -> None:
    """Say where compiled kernels are kept, and how much that is; delete them."""
    from explorer import api

    if context.invoked_subcommand is None:
        found = api.cache()
        print(f"{found.path}: {found}")


@cache.command(cls=Command, epilog="explorer cache clear")
def clear() -> None:
    """Delete the kernels that were compiled; each is compiled again where it is needed."""
    from explorer import api

    gone = api.cache(clear=True)
    say(f"{gone.path}: {gone} deleted")


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
