"""A table of a report: its cells are text; one writer prints it, another makes Markdown of it."""

import os
import re
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Literal, TextIO

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.containers import Lines
from rich.measure import Measurement
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
    follows: bool = False
    """Whether it stands beside the column before it in each part of a table."""


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

    def only(self, places: Iterable[int]) -> "Table":
        """Some of the columns, by their places from 0, under the same title."""
        kept = list(places)
        rows: list[Sequence[Cell]] = [[row[place] for place in kept] for row in self.rows]
        return Table([self.columns[place] for place in kept], rows, self.title)


def as_markdown(table: Table) -> str:
    """The table for a document, without its title; a bar within a cell does not end it."""
    headings = [column.heading for column in table.columns]
    rule = ["---:" if column.kind is Kind.NUMBER else "---" for column in table.columns]
    return "\n".join(
        [_markdown_line(headings), f"|{'|'.join(rule)}|", *map(_markdown_line, table.rows)]
    )


def _markdown_line(cells: Sequence[Cell]) -> str:
    return "| " + " | ".join(str(cell).replace("|", "\\|") for cell in cells) + " |"


# ------------------------------------------------------------------ console


GAP = 2
"""Character cells between two columns of a table."""

LEAST_PROSE = 16
"""Character cells that a column of sentences has at least, unless its cells are shorter."""

LONGEST_WORD = 24
"""A word of a sentence is broken only if it is longer, and then only in too short a line."""

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
    """A table; one with a title stands under it, after an empty line.

    No number and no word is cut. Where the console is too narrow for all columns, those that are
    left follow below, beside the first column again. Where one is too wide for that, each row is a
    list of its cells.
    """
    if table.title:
        console.print()
        console.print(table.title, style="bold")
    measured = [_Measured.of(table, place) for place in range(len(table.columns))]
    follows = [column.follows for column in table.columns]
    parts = _parts([column.least for column in measured], follows, table.keys, console.width)
    if parts is None:
        for line in _rows_as_lists(table):
            console.print(line)
        return
    for number, places in enumerate(parts):
        if number:
            console.print()
        columns = [measured[place] for place in places]
        console.print(_as_rich(table.only(places), _widths(columns, console.width)))


def whole_rows(table: Table, width: int) -> Iterator[RenderableType]:
    """A table whose rows stay whole: side by side, else each is a list of its cells."""
    measured = [_Measured.of(table, place) for place in range(len(table.columns))]
    if sum(column.least + GAP for column in measured) - GAP <= width:
        yield _as_rich(table, _widths(measured, width))
    else:
        yield from _rows_as_lists(table)


@dataclass(frozen=True, slots=True)
class _Measured:
    """What a column takes: character cells at least, and at most."""

    least: int
    most: int
    share: int
    """Of the width that is left, in relation to other columns."""

    @classmethod
    def of(cls, table: Table, place: int) -> "_Measured":
        """The widths of the column at `place`, from 0, of a table."""
        column = table.columns[place]
        heading = _heading(column)
        lines = [line for row in table.rows for line in str(row[place]).split("\n")]
        most = max(map(cell_len, [*heading.split("\n"), *lines]))
        if column.kind is not Kind.PROSE:
            return cls(most, most, 1)
        longest_word = max(cell_len(word) for line in [heading, *lines] for word in line.split(" "))
        least = max(column.least_width or LEAST_PROSE, min(longest_word, LONGEST_WORD))
        return cls(min(least, most), most, column.share or 1)


def _heading(column: Column) -> str:
    """Headings of numbers fold at a dash."""
    return column.heading.replace("-", "-\n") if column.kind is Kind.NUMBER else column.heading


def _parts(
    least: Sequence[int], follows: Sequence[bool], keys: int, width: int
) -> list[list[int]] | None:
    """Places of columns side by side, part below part; None where one fits in no part.

    The keys are in each part, and a column that follows another one is in its part.
    """
    parts = [list(range(keys))]
    places = range(keys, len(least))
    while places:
        end = next((place for place in places[1:] if not follows[place]), len(least))
        together, places = list(range(places[0], end)), range(end, len(least))
        if sum(least[place] + GAP for place in [*parts[-1], *together]) - GAP > width:
            parts.append(list(range(keys)))
        parts[-1] += together
    widths = (sum(least[place] + GAP for place in part) - GAP for part in parts)
    return parts if max(widths) <= width else None


def _widths(columns: Sequence[_Measured], width: int) -> list[int]:
    """Each column's width: the least, and its share of what is left."""
    widths = [column.least for column in columns]
    for _ in range(width - sum(widths) - GAP * (len(widths) - 1)):
        growing = [i for i, column in enumerate(columns) if widths[i] < column.most]
        if not growing:
            break
        widths[min(growing, key=lambda i: widths[i] / columns[i].share)] += 1
    return widths


def _as_rich(table: Table, widths: Sequence[int]) -> RichTable:
    """The table for a terminal, without a frame."""
    made = RichTable(box=None, pad_edge=False)
    for column, width in zip(table.columns, widths, strict=True):
        justify: Literal["left", "right"] = "right" if column.kind is Kind.NUMBER else "left"
        heading = folded(_heading(column), width)
        made.add_column(heading, justify=justify, width=width, overflow="fold")
    for row in table.rows:
        made.add_row(*(_rich_cell(one, width) for one, width in zip(row, widths, strict=True)))
    return made


def _rich_cell(cell: Cell, width: int) -> Text:
    """Text taken as it is, brackets are no markup, on lines of at most `width`."""
    text = folded(str(cell), width)
    return Text(text, cell.style) if isinstance(cell, Styled) else Text(text)


def _rows_as_lists(table: Table) -> Iterator[RenderableType]:
    """Each row's keys on a line, and its other cells that are not empty as notes below it."""
    keys = table.keys
    yield cell("  ".join(column.heading for column in table.columns[:keys]))
    for row in table.rows:
        yield Text("  ".join(map(str, row[:keys])), style="bold")
        headed = zip(table.columns[keys:], row[keys:], strict=True)
        told = [(f"  {column.heading}", str(one)) for column, one in headed if str(one)]
        yield notes(told)


BEFORE_UNIT = re.compile(
    r"(?<=\d) (?=(?:%|×|[µm]?s|min|[KMG]iB|[kMG]?B|GB/s|MHz|bytes?|ulp)(?![\w/]))"
)
"""The space between a number and its unit, at which no line ends."""

_HELD = "\ue000"
"""What stands for such a space while lines are broken, at white space: of Unicode's private use."""


def folded(text: str, width: int) -> str:
    """Text on lines of at most `width` characters, broken between words, but before no unit.

    A word that is longer than a line is broken after a stroke, a dash or an underscore, if it has
    one: paths are such words.
    """
    lines: list[str] = []
    for paragraph in BEFORE_UNIT.sub(_HELD, text).split("\n"):
        if len(paragraph) <= width:
            lines.append(paragraph)
            continue
        line = ""
        for word in paragraph.split(" "):
            joined = f"{line} {word}" if line else word
            if len(joined) <= width:
                line = joined
                continue
            lines += [line] if line else []
            while len(word) > width:
                place = max(word.rfind(mark, 0, width) for mark in "/-_,=") + 1
                lines.append(word[: place or width])
                word = word[place or width :]
            line = word
        lines.append(line)
    return "\n".join(lines).replace(_HELD, " ")


class _Sentence(Text):
    """Text of which no line ends between a number and its unit."""

    def __rich__(self) -> "_AsItIs":
        return _AsItIs(self)

    def wrap(self, console: Console, width: int, **options: Any) -> Lines:
        """Break as the base class does, which takes a no-break space for any other."""
        held = self.copy()
        held.plain = BEFORE_UNIT.sub(_HELD, self.plain)
        lines = held.wrap(console, width, **options)
        for line in lines:
            line.plain = line.plain.replace(_HELD, " ")
        return lines


@dataclass(frozen=True, slots=True)
class _AsItIs:
    """A sentence to print: a console would make plain text of one, joined to what is beside it."""

    sentence: _Sentence

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        yield from self.sentence.__rich_console__(console, options)

    def __rich_measure__(self, console: Console, options: ConsoleOptions) -> Measurement:
        return self.sentence.__rich_measure__(console, options)


def notes(lines: Sequence[tuple[str, str]]) -> RichTable:
    """Sentences under a table, each with a word in the margin that says what it is about."""
    grid = RichTable.grid(padding=(0, 2))
    grid.add_column(style="bold", no_wrap=True)
    grid.add_column(overflow="fold")
    for label, sentence in lines:
        grid.add_row(label, cell(sentence))
    return grid


def cell(text: str) -> Text:
    """Text taken as it is: brackets are no markup, and no line ends before a unit."""
    return _Sentence(text)


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
