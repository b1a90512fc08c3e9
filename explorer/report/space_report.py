"""What `explorer space` prints: parameters, their values, and what the rules exclude."""

from rich.console import Console
from rich.table import Table

from explorer.report.console import plain_table, print_titled
from explorer.report.figures import count, percent
from explorer.space import RULES, Space
from explorer.space.parameters import MEANING


def print_space(space: Space, console: Console) -> None:
    """Every parameter with its values and meaning, the counts, and each rule with its sentence."""
    console.print(f"{space.problem} on {space.gpu.name} ({space.gpu.arch})", style="bold")
    console.print()
    console.print(_parameters_table(space))
    console.print()
    legal, points = space.legal_count(), space.point_count
    console.print(
        f"{count(points)} points, {count(legal)} of them legal ({percent(legal / points)}); "
        "many emit the same code."
    )
    print_titled("Rules: what each excludes by itself", _rules_table(space), console)


def _parameters_table(space: Space) -> Table:
    table = plain_table()
    table.add_column("parameter", no_wrap=True)
    table.add_column("values", overflow="fold", ratio=2)
    table.add_column("meaning", overflow="fold", ratio=3)
    for name, values in space.parameters.items():
        table.add_row(name, ", ".join(map(str, values)), MEANING[name])
    return table


def _rules_table(space: Space) -> Table:
    table = plain_table()
    table.add_column("excluded", justify="right", no_wrap=True)
    table.add_column("rule", no_wrap=True)
    table.add_column("what a legal config satisfies", overflow="fold")
    for rule in RULES:
        table.add_row(percent(space.excluded_share(rule)), rule.name, rule.sentence)
    return table
