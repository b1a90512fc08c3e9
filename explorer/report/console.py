"""Where reports are printed: results on stdout, notices and progress on stderr."""

import os
import re
import sys
from collections.abc import Sequence
from typing import TextIO

from rich.console import Console
from rich.table import Table
from rich.text import Text

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


def plain_table() -> Table:
    """A table without a frame."""
    return Table(box=None, pad_edge=False)


def print_titled(title: str, table: Table, console: Console) -> None:
    """A table under a title that may be wider than it, after an empty line."""
    console.print()
    console.print(title, style="bold")
    console.print(table)


def notes(lines: Sequence[tuple[str, str]]) -> Table:
    """Sentences under a table, each with a word in the margin that says what it is about."""
    grid = Table.grid(padding=(0, 2))
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
