"""A table of a report: its cells are text; one writer prints it, another makes Markdown of it."""

import os
import re
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import TextIO

from rich import table as rich_table
from rich.console import Console
from rich.table import Table as RichTable
from rich.text import Text

# ------------------------------------------------------------------ table


class Kind(Enum):
    """How the cells of a column are set."""

    WORD = "on one line, at the left"
    NUMBER = "on one line, at the right"
    PROSE = "over as many lines as it takes"


@dataclass(frozen=True, slots=True)
class Column:
    """A heading and how the cells under it are set."""

    heading: str
    kind: Kind = Kind.WORD
    share: int | None = None
    """Of prose: its share of the width that is left, beside those of other such columns."""
    least_width: int | None = None


@dataclass(frozen=True, slots=True)
class Styled:
    """A cell in a style of Rich, such as bold; Markdown has the text alone."""

    text: str
    style: str

    def __str__(self) -> str:
        return self.text


Cell = str | Styled


def word(heading: str) -> Column:
    """A column of names, values and the like."""
    return Column(heading)


def number(heading: str) -> Column:
    """A column of numbers with their units."""
    return Column(heading, Kind.NUMBER)


def words(*headings: str) -> tuple[Column, ...]:
    """Columns of names, values and the like."""
    return tuple(map(word, headings))


def numbers(*headings: str) -> tuple[Column, ...]:
    """Columns of numbers with their units."""
    return tuple(map(number, headings))


def prose(heading: str, share: int | None = None, least_width: int | None = None) -> Column:
    """A column of sentences."""
    return Column(heading, Kind.PROSE, share, least_width)


@dataclass(slots=True)
class Table:
    """Columns, and rows with a cell for each. A title says what it is, where that is needed."""

    columns: Sequence[Column]
    rows: list[Sequence[Cell]] = field(default_factory=list)
    title: str = ""

    def add(self, *cells: Cell) -> None:
        """Put a row below the others; raises ValueError unless it has a cell for each column."""
        if len(cells) != len(self.columns):
            raise ValueError(f"{len(cells)} cells for {len(self.columns)} columns")
        self.rows.append(cells)

    def only(self, places: Iterable[int]) -> "Table":
        """Some of the columns, by their places from 0, under the same title."""
        kept = list(places)
        rows: list[Sequence[Cell]] = [[row[place] for place in kept] for row in self.rows]
        return Table([self.columns[place] for place in kept], rows, self.title)


def as_rich(table: Table) -> rich_table.Table:
    """The table for a terminal, without a frame; headings of numbers fold at a dash."""
    made = rich_table.Table(box=None, pad_edge=False)
    for column in table.columns:
        if column.kind is Kind.PROSE:
            made.add_column(
                column.heading, overflow="fold", ratio=column.share, min_width=column.least_width
            )
        elif column.kind is Kind.NUMBER:
            made.add_column(column.heading.replace("-", "-\n"), justify="right", no_wrap=True)
        else:
            made.add_column(column.heading, no_wrap=True)
    for row in table.rows:
        made.add_row(*map(_rich_cell, row))
    return made


def as_markdown(table: Table) -> str:
    """The table for a document, without its title; a bar within a cell does not end it."""
    headings = [column.heading for column in table.columns]
    rule = ["---:" if column.kind is Kind.NUMBER else "---" for column in table.columns]
    return "\n".join(
        [_markdown_line(headings), f"|{'|'.join(rule)}|", *map(_markdown_line, table.rows)]
    )


def _rich_cell(cell: Cell) -> Text:
    """Text taken as it is: brackets are no markup."""
    return Text(cell.text, cell.style) if isinstance(cell, Styled) else Text(cell)


def _markdown_line(cells: Sequence[Cell]) -> str:
    return "| " + " | ".join(str(cell).replace("|", "\\|") for cell in cells) + " |"


# ------------------------------------------------------------------ console


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
