"""What an operator is: what it reads and writes along each row, and what is known of it.

The floors above ask an operator's object for what they need (its matrices, the extent of its
result, its truth), and never for its name.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from explorer.ops.truth import Doubles, Truth, Wide


class Extent(StrEnum):
    """How many elements an operand or a result has."""

    MATRIX = "matrix"
    """Rows x columns, as the input."""
    ROW = "row"
    """One for each row."""
    IDS = "ids"
    """As many for each row as it has ids: columns that are asked for."""
    HEAD = "head"
    """A vector of `head_dim` elements for each row, which is a query head."""
    CACHE = "cache"
    """Such a vector for each column, which is a key, of each key head."""


class Limit(StrEnum):
    """The fastest plain access to the bytes of an operator, with which its times are compared."""

    COPY = "copy"
    """As much is written as is read."""
    READ = "read"
    """Little is written."""


@dataclass(frozen=True, slots=True)
class Choice:
    """The values of a parameter that make sense for an operator, and why others do not."""

    values: tuple[Any, ...]
    """The first stands in for a value that makes no sense."""
    says: str
    """A sentence without a full stop."""


@dataclass(frozen=True, slots=True, eq=False)
class Result:
    """An array that an operator writes."""

    truth: Callable[[Mapping[str, Wide], Any, Any], Truth]
    """The truth of the operands by name: matrices as (rows, cols), ids as (rows, k). The second
    argument is the scale, by which a gradient's result is multiplied; elements of a forward
    operator are scaled already. The third is an `Underflow`."""
    extent: Extent = Extent.MATRIX
    name: str = "output"
    are_columns: bool = False
    """Whether it consists of whole numbers, of the ids' type: columns, or how many."""
    stored: str = ""
    """What a kernel stores as it, by a name that the templates know; empty: by its own."""
    combines: tuple[str, ...] = ()
    """What a row's threads combine for it, beside their maxima and sums: `weighted`, the sum of
    e^(x - max) (x - max); `above`, how many elements exceed that of the first id; `greatest` and
    `first`, the greatest number and its first column; `gaps` and `numbers`, by how much the
    elements are below the maximum, all together, and how many of them are not -inf."""


@dataclass(frozen=True, slots=True, eq=False)
class Operator:
    """What is computed of each row, as data and as NumPy functions.

    A forward operator reads one matrix, `input`, whose elements count scaled and masked. A gradient
    reads the result of its forward operator as `input`, and the gradient of that as `grad`.
    """

    name: str
    title: str
    """What it is called in a sentence: log-softmax."""
    results: tuple[Result, ...]
    """The first is `output`, which is always computed; the others are computed on request."""
    of_ones: Callable[[Doubles, float], tuple[Doubles, Doubles]]
    """The results, and the magnitudes that errors are relative to, of rows whose sums have n terms
    of 1: of n, shape (k,), and of the scale. Of a gradient n are the terms of dy that are 1."""
    patterns: tuple[str, ...]
    """The groups of input patterns (`reference.patterns.GROUPS`) that tell right from wrong."""
    takes: Mapping[str, Choice] = field(default_factory=dict)
    """By the name of a parameter of the space, what it can be; all values of the others make
    sense."""
    gradient_of: str = ""
    """The name of the operator whose gradient this is; empty if it is none."""
    operands: Mapping[str, Extent] = field(default_factory=lambda: {"input": Extent.MATRIX})
    """The extent of each array that it reads, by its name."""
    options: tuple[str, ...] = ()
    """The fields of a problem that it takes beside those of all: `ignore_index`. Its truths find
    their values by these names beside the operands."""
    is_log: bool = False
    """Whether the results are logarithms, or gradients by way of them."""
    torch: str = ""
    """PyTorch's operator of the same meaning, in its namespace `aten`."""

    def __str__(self) -> str:
        return self.name

    @property
    def is_gradient(self) -> bool:
        """Whether it computes the gradient of the input of another operator."""
        return bool(self.gradient_of)

    def allows(self, parameter: str, value: Any) -> bool:
        """Return whether a value of a parameter of the space makes sense."""
        return parameter not in self.takes or value in self.takes[parameter].values

    @property
    def reduces(self) -> bool:
        """Whether a row's elements are combined, and not each taken with what is known of its row.

        A kernel of the latter has neither maxima nor sums: of each row it reads the sum, or a
        factor alone.
        """
        beside = self.operands.keys() - {"input"}
        return "log_sum" not in beside and beside != {"loss_grad"}

    @property
    def over(self) -> Extent:
        """What its rows run over: those of a matrix, or the keys of a cache."""
        return Extent.CACHE if self.caches else Extent.MATRIX

    @property
    def across(self) -> str:
        """What the places of a row are called in a sentence."""
        return "keys" if self.caches else "columns"

    @property
    def forward(self) -> str:
        """The name of the operator whose gradient this is, or its own."""
        return self.gradient_of or self.name

    @property
    def matrices(self) -> tuple[str, ...]:
        """The names of the (rows, cols) matrices that it reads."""
        return tuple(name for name, extent in self.operands.items() if extent is Extent.MATRIX)

    @property
    def caches(self) -> tuple[str, ...]:
        """The names of the arrays that it reads with a vector for each key."""
        return tuple(name for name, extent in self.operands.items() if extent is Extent.CACHE)

    @property
    def extent(self) -> Extent:
        """The extent of its first result."""
        return self.results[0].extent

    @property
    def limit(self) -> Limit:
        """What its times are compared with: reading alone where no result is a matrix."""
        return Limit.COPY if self.extent is Extent.MATRIX else Limit.READ

    def asked_for(self, also: str) -> tuple[Result, ...]:
        """Return the output and the results of these names, as lse,entropy, in their own order."""
        first, *others = self.results
        wanted = also.split(",")
        return (first, *(result for result in others if result.name in wanted))

    @property
    def on_request(self) -> tuple[str, ...]:
        """The names of the results that are computed on request."""
        return tuple(result.name for result in self.results[1:])
