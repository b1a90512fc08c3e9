"""Where reports are printed: results on stdout, notices and progress on stderr."""

import os
import re
import sys
from collections.abc import Sequence
from typing import TextIO

from rich.console import Console
from rich.table import Table as RichTable
from rich.text import Text

from explorer.report.table import Table, as_rich

WIDTH_WITHOUT_TERMINAL = 100
"""Columns of a report that goes to a file or a pipe."""

_SIZE = re.compile("[1-9][0-9]{0,4}")
"""What the environment can say of a terminal's size."""


def results() -> Console:
    """The console of results; nothing in it but what was asked for."""
    return _console(sys.stdout)


def notices() -> Console:
    """The console of notices and progress."""
    return _console(sys.stderr)


def print_table(table: Table, console: Console) -> None:
    """A table; one with a title stands under it, after an empty line."""
    if table.title:
        console.print()
        console.print(table.title, style="bold")
    console.print(as_rich(table))


def notes(lines: Sequence[tuple[str, str]]) -> RichTable:
    """Sentences under a table, each with a word in the margin that says what it is about."""
    grid = RichTable.grid(padding=(0, 2))
    grid.add_column(style="bold", no_wrap=True)
    grid.add_column()
    for label, sentence in lines:
        grid.add_row(label, cell(sentence))
    return grid


def cell(text: str) -> Text:
    """Text taken as it is: brackets are no markup."""
    return Text(text)


def _console(stream: TextIO) -> Console:
    sizes = {"COLUMNS", "LINES"}  # of which Rich takes what it cannot read
    nonsense = {name for name in sizes if not _SIZE.fullmatch(os.environ.get(name, ""))}
    known = {name: value for name, value in os.environ.items() if name not in nonsense}
    width = None
    if not stream.isatty() and "COLUMNS" not in known:
        width = WIDTH_WITHOUT_TERMINAL
    return Console(
        file=stream, width=width, highlight=False, markup=False, emoji=False, _environ=known
    )
