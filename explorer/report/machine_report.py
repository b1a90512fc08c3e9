"""What `explorer doctor` prints."""

from collections.abc import Sequence

from rich.console import Console

from explorer.report.check import Check
from explorer.report.console import cell, plain_table


def print_machine(checks: Sequence[Check], console: Console) -> None:
    """One line a check, then whether all is there that the package itself needs."""
    table = plain_table()
    table.add_column("", no_wrap=True)
    table.add_column("what", no_wrap=True)
    table.add_column("found", overflow="fold", ratio=3)
    table.add_column("needed for", overflow="fold", ratio=2)
    for check in checks:
        state = cell("ok" if check.ok else "missing")
        state.stylize("green" if check.ok else "red" if check.required else "yellow")
        table.add_row(state, check.name, cell(check.detail), check.needed_for)
    console.print(table)
    console.print()
    console.print(verdict(checks))


def verdict(checks: Sequence[Check]) -> str:
    """What follows from the checks, in a sentence."""
    missing = [check.name for check in checks if check.required and not check.ok]
    if missing:
        return f"The package cannot work: {', '.join(missing)} missing."
    if not any(check.name == "gpu" and check.ok for check in checks):
        return (
            "Kernels can be emitted, compiled and verified here, not timed: search replays "
            "recordings."
        )
    return "Kernels can be emitted, compiled, verified and timed here."
