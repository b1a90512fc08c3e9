"""Results as a program and a notebook take them: plain data, records, a frame of pandas, HTML."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from html import escape
from importlib import import_module
from typing import Any, Generic, TypeVar, overload

from explorer.model.errors import InvalidInput
from explorer.report.page import table_html
from explorer.report.table import Field, Table, data_of, flat, table_of

Data = dict[str, Any]


class Tabular:
    """What a result has beside its own attributes, so that it can be taken elsewhere.

    A subclass defines `to_dict`, and where it has rows `records` and `tables`.
    """

    __slots__ = ()

    def to_dict(self) -> Data:
        """Return plain data: what the command prints under `--json`."""
        raise NotImplementedError

    def records(self) -> list[Data]:
        """Return the rows as plain data: what the command prints under `--csv`."""
        raise NotImplementedError

    def tables(self) -> list[Table]:
        """Return the tables that a notebook shows."""
        return []

    def to_frame(self) -> Any:
        """Return the records as a `pandas.DataFrame`, whose columns are those of `--csv`.

        A problem and a config have a column for each field. Raises InvalidInput where pandas is not
        installed.
        """
        try:
            pandas = import_module("pandas")
        except ImportError:
            raise InvalidInput("pandas is not installed: pip install pandas") from None
        return pandas.DataFrame([flat(row) for row in self.records()])

    def _repr_html_(self) -> str:
        """Return the tables as HTML, which a notebook shows in place of the repr."""
        shown = "".join(table_html(table) for table in self.tables())
        return f"<p>{escape(repr(self))}</p>{shown}"


Item = TypeVar("Item")


@dataclass(frozen=True, slots=True, repr=False)
class Records(Tabular, Sequence[Item], Generic[Item]):
    """Typed rows of one kind, such as studies or presets."""

    name: str
    """Of the list under `--json`."""
    items: tuple[Item, ...]
    fields: Sequence[Field[Item]] = field(repr=False)
    rows: Callable[[Sequence[Item]], list[Data]] | None = None
    """Makes the records, where they are others than the items' own data."""

    def __repr__(self) -> str:
        """Return a line for a notebook."""
        return f"{len(self.items)} of {self.name}"

    def __len__(self) -> int:
        return len(self.items)

    @overload
    def __getitem__(self, place: int) -> Item: ...

    @overload
    def __getitem__(self, place: slice) -> tuple[Item, ...]: ...

    def __getitem__(self, place: int | slice) -> Item | tuple[Item, ...]:
        return self.items[place]

    def __iter__(self) -> Iterator[Item]:
        return iter(self.items)

    def to_dict(self) -> Data:
        """Return what the command prints under `--json`."""
        return {self.name: [data_of(self.fields, one) for one in self.items]}

    def records(self) -> list[Data]:
        """Return the data of each item."""
        if self.rows is not None:
            return self.rows(self.items)
        return [data_of(self.fields, one) for one in self.items]

    def tables(self) -> list[Table]:
        """Return the items as a table."""
        return [table_of(self.fields, self.items)]


def as_kind(kind: type[Item], of: Any, **more: Any) -> Item:
    """Return a dataclass as one of its subclasses; `more` are fields to change or to add."""
    return kind(**{**{name: getattr(of, name) for name in of.__dataclass_fields__}, **more})
