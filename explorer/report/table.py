"""Tables: the fields of a result, each written once, for a terminal, Markdown, CSV and JSON."""

import csv
import io
import json
import os
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Generic, TextIO, TypeVar

from rich.cells import cell_len
from rich.console import Console
from rich.table import Table as RichTable
from rich.text import Text

# ------------------------------------------------------------------ columns and rows


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


Cell = str | Text
"""Text, or text in a style of Rich, which a terminal alone shows."""


def words(*headings: str) -> tuple[Column, ...]:
    """Return columns of names, values and the like."""
    return tuple(map(Column, headings))


def numbers(*headings: str) -> tuple[Column, ...]:
    """Return columns of numbers with their units."""
    return tuple(Column(heading, Kind.NUMBER) for heading in headings)


def prose(heading: str) -> Column:
    """Return a column of sentences."""
    return Column(heading, Kind.PROSE)


@dataclass(slots=True)
class Table:
    """Columns, and rows with a cell for each. A title says what it is, where that is needed.

    The first `keys` columns say what a row is of. They stand beside each part of a table that is
    too wide for a terminal.
    """

    columns: Sequence[Column]
    rows: list[Sequence[Cell]] = field(default_factory=list)
    title: str = ""
    keys: int = 1

    def add(self, *cells: Cell) -> None:
        """Put a row below the others; raises ValueError unless it has a cell for each column."""
        if len(cells) != len(self.columns):
            raise ValueError(f"{len(cells)} cells for {len(self.columns)} columns")
        self.rows.append(cells)

    def add_under(self, cells: Mapping[str, Cell]) -> None:
        """Put a row below the others, with cells by heading; the others are empty."""
        self.add(*(cells.get(column.heading, "") for column in self.columns))

    def only(self, places: Iterable[int], title: str = "") -> "Table":
        """Return some of the columns, by their places from 0, under the same or another title."""
        kept = list(places)
        rows: list[Sequence[Cell]] = [[row[place] for place in kept] for row in self.rows]
        return Table([self.columns[place] for place in kept], rows, title or self.title, self.keys)


# ------------------------------------------------------------------ fields


Row = TypeVar("Row")
Shown = TypeVar("Shown", contravariant=True)


@dataclass(frozen=True, slots=True)
class Field(Generic[Shown]):
    """One thing that is known of each row of a result: its name, heading, value and cell."""

    name: str
    """Of the value in JSON and CSV; empty for a column of tables alone."""
    value: Callable[[Shown], Any]
    """The plain value with all digits, which JSON and CSV have; None where it is not known."""
    heading: str | Callable[[Sequence[Shown]], str] | None = None
    """Of the column of tables, or what says it of their rows; None for JSON and CSV alone."""
    show: Callable[[Any], Cell] = str
    """Makes the cell of a value that is known; a cell without one is empty."""
    cell: Callable[[Shown], Cell] | None = None
    """Makes the cell of a row that shows more than this value."""
    kind: Kind = Kind.NUMBER

    def text(self, row: Shown) -> Cell:
        """Return the cell of a row."""
        if self.cell is not None:
            return self.cell(row)
        value = self.value(row)
        return "" if value is None else self.show(value)


def picked(fields: Sequence[Field[Row]], *names: str) -> list[Field[Row]]:
    """Return the fields of these names, in the order of the names."""
    by_name = {one.name: one for one in fields}
    return [by_name[name] for name in names]


def data_of(fields: Sequence[Field[Row]], row: Row) -> dict[str, Any]:
    """Return a row as plain data."""
    return {one.name: one.value(row) for one in fields if one.name}


def table_of(
    fields: Sequence[Field[Row]], rows: Iterable[Row], title: str = "", keys: int = 1
) -> Table:
    """Return rows as a table: a column for each field that has a heading."""
    listed = list(rows)
    shown = [(one, one.heading) for one in fields if one.heading is not None]
    columns = [
        Column(said if isinstance(said, str) else said(listed), one.kind) for one, said in shown
    ]
    return Table(columns, [[one.text(row) for one, _ in shown] for row in listed], title, keys)


# ------------------------------------------------------------------ Markdown and CSV


def as_markdown(table: Table) -> str:
    """Return a table for a document, without its title; a bar within a cell does not end it."""
    headings = [column.heading for column in table.columns]
    rule = ["---:" if column.kind is Kind.NUMBER else "---" for column in table.columns]
    lines = [_markdown_line(headings), f"|{'|'.join(rule)}|", *map(_markdown_line, table.rows)]
    return "\n".join(lines)


def _markdown_line(cells: Sequence[Cell]) -> str:
    return "| " + " | ".join(str(cell).replace("|", "\\|") for cell in cells) + " |"


_SPREAD_OUT = ("problem", "config")
"""Objects whose fields are columns by their own names."""


def as_csv(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return rows of plain data with a heading, by RFC 4180 but for line ends, which are Unix's.

    The names are those of JSON. A column is there if any row has it. Numbers have all of their
    digits, and a cell is empty where a value is not known. A problem and a config have a column for
    each field.
    """
    lines = [flat(row, _csv_cell) for row in rows]
    text = io.StringIO()
    names = list(dict.fromkeys(name for line in lines for name in line))
    writer = csv.DictWriter(text, names, restval="", lineterminator="\n")
    writer.writeheader()
    writer.writerows(lines)
    return text.getvalue()


def flat(
    row: Mapping[str, Any], cell: Callable[[Any], Any] = lambda value: value
) -> dict[str, Any]:
    """Return a row's cells, of which `cell` makes each: objects become columns."""
    cells: dict[str, Any] = {}
    for name, value in row.items():
        if isinstance(value, Mapping):
            prefix = "" if name in _SPREAD_OUT else f"{name}_"
            cells |= {f"{prefix}{key}": cell(one) for key, one in value.items()}
        else:
            cells[name] = cell(value)
    return cells


def _csv_cell(value: Any) -> Any:
    if value is None:
        return ""
    if isinstance(value, bool):
        return json.dumps(value)
    if isinstance(value, list | tuple):
        return ";".join(str(_csv_cell(one)) for one in value)
    return value


# ------------------------------------------------------------------ console


GAP = 2
"""Character cells between two columns of a table."""

LEAST_PROSE = 16
"""Character cells that a column of sentences has at least, unless its cells are shorter."""

LONGEST_WORD = 24
"""A word of a sentence is broken only if it is longer, and then only in too short a line."""

WIDTH_WITHOUT_TERMINAL = 100
"""Columns of a report that goes to a file or a pipe."""


def print_table(table: Table, console: Console) -> None:
    """Print a table; one with a title stands under it, after an empty line."""
    if table.title:
        console.print()
        console.print(table.title, style="bold")
    for number, part in enumerate(in_parts(table, console.width)):
        if number:
            console.print()
        console.print(part)


def in_parts(table: Table, width: int) -> Iterator[RichTable]:
    """Yield a table for a terminal of a width.

    Where that is too narrow for all columns, those that are left follow below, beside the first
    ones again. No number is cut.
    """
    least = _least_widths(table)
    for places in _parts(least, table.keys, width):
        is_whole = _width(least, places) <= width
        yield _as_rich(table.only(places), is_whole=is_whole)


def _least_widths(table: Table) -> list[int]:
    """Return the character cells that each column takes at least.

    Rich gives columns of sentences that share a line equal widths, so each of them must have room
    for the longest word of all.
    """
    texts = [
        [_heading(column), *(str(row[place]) for row in table.rows)]
        for place, column in enumerate(table.columns)
    ]
    most = [max(cell_len(line) for text in each for line in text.split("\n")) for each in texts]
    are_prose = [column.kind is Kind.PROSE for column in table.columns]
    prose = [
        text for each, is_prose in zip(texts, are_prose, strict=True) if is_prose for text in each
    ]
    longest = max((cell_len(word) for text in prose for word in text.split()), default=0)
    folded = max(LEAST_PROSE, min(longest, LONGEST_WORD))
    return [min(m, folded) if is_prose else m for m, is_prose in zip(most, are_prose, strict=True)]


def _heading(column: Column) -> str:
    """Return a column's heading: those of numbers fold at a dash."""
    return column.heading.replace("-", "-\n") if column.kind is Kind.NUMBER else column.heading


def _width(least: Sequence[int], places: Sequence[int]) -> int:
    return sum(least[place] + GAP for place in places) - GAP


def _parts(least: Sequence[int], keys: int, width: int) -> list[list[int]]:
    """Return the places of the columns side by side, part below part, beside keys that fit."""
    parts = [list(range(keys))]
    for place in range(keys, len(least)):
        if len(parts[-1]) > 1 and _width(least, [*parts[-1], place]) > width:
            beside = list(range(keys))
            while len(beside) > 1 and _width(least, [*beside, place]) > width:
                beside.pop(0)
            parts.append(beside)
        parts[-1].append(place)
    return parts


def _as_rich(table: Table, *, is_whole: bool) -> RichTable:
    """Return a table for a terminal, without a frame: whole, or else with its words folded."""
    made = RichTable(box=None, pad_edge=False)
    for column in table.columns:
        made.add_column(
            Text(_heading(column)),
            justify="right" if column.kind is Kind.NUMBER else "left",
            no_wrap=is_whole and column.kind is not Kind.PROSE,
            overflow="fold",
        )
    for row in table.rows:
        made.add_row(*(cell if isinstance(cell, Text) else Text(cell) for cell in row))
    return made


def notes(lines: Sequence[tuple[str, str]]) -> RichTable:
    """Return sentences under a table, each with a word in the margin that says its subject."""
    grid = RichTable.grid(padding=(0, 2))
    grid.add_column(style="bold", no_wrap=True)
    grid.add_column(overflow="fold")
    for label, sentence in lines:
        grid.add_row(label, Text(sentence))
    return grid


_SIZE = re.compile("[1-9][0-9]{0,4}")
"""What the environment can say of a terminal's size; Rich fails on other text."""


def results() -> Console:
    """Return the console of results, which has nothing but what was asked for."""
    return _console(sys.stdout)


def notices() -> Console:
    """Return the console of notices and progress."""
    return _console(sys.stderr)


def _console(stream: TextIO) -> Console:
    known = {
        name: value
        for name, value in os.environ.items()
        if name not in ("COLUMNS", "LINES") or _SIZE.fullmatch(value)
    }
    width = WIDTH_WITHOUT_TERMINAL if not stream.isatty() and "COLUMNS" not in known else None
    return Console(
        file=stream, width=width, highlight=False, markup=False, emoji=False, _environ=known
    )
