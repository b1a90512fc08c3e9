"""A table of a report: its cells are text; one writer prints it, another makes Markdown of it."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from enum import Enum

from rich import table as rich_table
from rich.text import Text


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


def words(*headings: str) -> tuple[Column, ...]:
    """Columns of names, values and the like."""
    return tuple(map(Column, headings))


def numbers(*headings: str) -> tuple[Column, ...]:
    """Columns of numbers with their units."""
    return tuple(Column(heading, Kind.NUMBER) for heading in headings)


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
