"""Comparisons with peers on a console, and as Markdown."""

from rich.console import Console
from rich.table import Table

from explorer.report.compare_table import LEGEND, OURS, notes_of, tables
from explorer.report.console import cell, notes, plain_table, print_titled
from explorer.tuning.peer_results import PeerRun

_WORDS = {"rows × cols", ""}
"""Headings of columns that hold words."""


def print_compared(run: PeerRun, console: Console, *, kept: bool = False) -> None:
    """Two tables for each op and dtype, ours beside the best peer and then every peer; and notes.

    `kept` runs are from a file.
    """
    for title, rows in tables(run):
        print_titled(title, _table([row[:OURS] for row in rows]), console)
        if len(rows[0]) > OURS:
            every = _table([[row[0], *row[OURS:]] for row in rows])
            print_titled("every peer, µs (at the bottom, % of copy)", every, console)
    console.print()
    console.print(cell(LEGEND.replace("`", "")))
    console.print(notes([*notes_of(run), *([("shown", "from a file")] if kept else [])]))


def compared_markdown(run: PeerRun) -> str:
    """The same for documents."""
    blocks = []
    for title, (head, *rows) in tables(run):
        rule = ["---" if heading in _WORDS else "---:" for heading in head]
        blocks.append("\n".join([f"**{title}**", "", *map(_line, (head, rule, *rows))]))
    blocks.append(LEGEND)
    blocks.append("\n".join(f"- {label}: {text}" for label, text in notes_of(run)))
    return "\n\n".join(blocks) + "\n"


def _table(rows: list[list[str]]) -> Table:
    """The first row holds the headings; those of peers fold at a dash."""
    table = plain_table()
    for heading in rows[0]:
        folded = heading.replace("-", "-\n")
        if heading in _WORDS:
            table.add_column(folded, no_wrap=True)
        else:
            table.add_column(folded, justify="right", no_wrap=True)
    for row in rows[1:]:
        table.add_row(*map(cell, row))
    return table


def _line(texts: list[str]) -> str:
    return "| " + " | ".join(text.replace("|", "\\|") for text in texts) + " |"
