"""A problem: op, rows, cols, dtypes, mask, the layout of its matrices, and a kernel's arguments."""

import math
from dataclasses import MISSING, dataclass, fields, replace
from enum import StrEnum
from numbers import Real
from typing import Any

from explorer.model.element import USUAL_TYPE, DType, ElementType, IndexType
from explorer.model.errors import InvalidInput
from explorer.ops import DEFAULT_OP, OPERATORS, Extent, Op, Operator, Result
from explorer.system.plain_data import (
    parse_name,
    read_fields,
    read_number,
    read_object,
    shown,
    whole_of,
)

# ------------------------------------------------------------------ numbers of elements


MAX_COLS = 2**31 - 1 - 2**16
"""Most columns: kernels index within a row by 32-bit integers, less one block's stride."""

MAX_INNER = 2**31 - 1
"""Most elements between neighbours of a row."""

MAX_ROWS = 2**33 - 1
"""Most rows, which kernels count by 64-bit integers: so many rows of three 16-bit elements, with
their results, take 96 GiB. A grid has at most 2^31 - 1 blocks, so kernels with a block for each row
have fewer."""


def check_extent(name: str, value: int, limit: int) -> None:
    """Raise InvalidInput unless `value` is a whole number from 1 to `limit`."""
    if not 1 <= value <= limit:
        raise InvalidInput(f"{name} is {shown(value)}; it must be a whole number from 1 to {limit}")


def _is_number(value: Any) -> bool:
    """Return whether a value is a number that a float can hold, NaN and infinities included."""
    if not isinstance(value, Real) or isinstance(value, bool):
        return False
    try:
        float(value)
    except OverflowError:
        return False
    return True


def power_of_two(count: int) -> int:
    """Return the smallest power of two that is at least `count`."""
    return 1 << (max(1, count) - 1).bit_length()


# ------------------------------------------------------------------ masks


class Mask(StrEnum):
    """Which elements are masked: they count as -inf."""

    NONE = "none"
    CAUSAL = "causal"
    LENGTHS = "lengths"
    ADDITIVE = "additive"

    @classmethod
    def parse(cls, text: str) -> "Mask":
        """Read a mask's name; raises InvalidInput, which lists the known names."""
        return parse_name(cls, "mask", text)


# ------------------------------------------------------------------ caches of keys and values


class Layout(StrEnum):
    """The order of the axes of a cache of keys or values: heads, keys (N), head dimension."""

    HND = "HND"
    """(sequences, key heads, keys, head_dim), as PyTorch's attention has it."""
    NHD = "NHD"
    """(sequences, keys, key heads, head_dim), as FlashAttention has it."""


HEAD_DIMS = (64, 128, 256)
"""The head dimensions that kernels of attention are for."""

MOST_GROUP = 8
"""Most query heads that share a key head: a tile of the tensor cores has 8 columns for them."""

# ------------------------------------------------------------------ problem


NAMED_FIELDS: dict[str, type[StrEnum]] = {
    "dtype": DType,
    "op": Op,
    "out_dtype": DType,
    "mask": Mask,
    "ids_dtype": IndexType,
    "layout": Layout,
}
"""The fields whose values have names."""

DEFAULT_TRAFFIC_BYTES = 256 * 2**20
"""Traffic of a problem whose rows are not given: several times the L2 cache of any GPU."""


MAX_STRIDE = 2**40
"""Elements from a row to the next: more than any memory holds."""

WHOLE_FIELDS = {
    "rows": MAX_ROWS,
    "cols": MAX_COLS,
    "mask_rows": MAX_ROWS,
    "inner": MAX_INNER,
    "input_stride": MAX_STRIDE,
    "output_stride": MAX_STRIDE,
    "ids_per_row": MAX_COLS,
    "ids_stride": MAX_STRIDE,
    "head_dim": max(HEAD_DIMS),
    "group": MOST_GROUP,
    "key_heads": MAX_INNER,
}
"""The fields that are whole numbers, with the largest."""

_WHOLE_OR_NONE = ("mask_rows", "input_stride", "output_stride", "ids_per_row", "ids_stride")
"""Those for which None means the default, as 0 does."""

OPTIONS: dict[str, Any] = {
    "ignore_index": -100,
    "label_smoothing": 0.0,
    "z_loss": 0.0,
    "softcap": 0.0,
    "head_dim": 128,
    "group": 1,
    "key_heads": 1,
    "layout": Layout.HND,
}
"""The fields that some operators take, and the values that None stands for there."""

MOST_Z_LOSS = 0.5
"""With a larger factor, 2 z lse could overflow where a share of the sum is 0."""

LEAST_SOFTCAP, MOST_SOFTCAP = 1e-6, 1e6
"""The least and the largest cap of logits; 0 is none. The largest changes logits of 1000 by 3e-7 of
their size, hardly more than fp32 rounds them by."""

_NUMBERS = ("scale", "label_smoothing", "z_loss", "softcap")
"""The fields that are numbers, whole or not, and None where there is none."""
_FLOATS = {float, type(None)}
_WHOLE_OPTIONS = ("ignore_index", "head_dim", "group", "key_heads")
_WHOLES = {int, type(None)}

_NAMES_OR_NONE = ("out_dtype", "ids_dtype", "layout")
"""The names for which None means the default."""


def read_field(name: str, value: Any) -> Any:
    """Return a value of a field as a `Problem` keeps it. Raises InvalidInput.

    The value may be a name, a type of another library, or a number of NumPy's. Whether a number is
    within its limits is not looked at.
    """
    if name in NAMED_FIELDS:
        kind: Any = NAMED_FIELDS[name]
        meant = DType.meant_by(value) if kind is DType else None
        if meant is not None:
            return meant
        if not isinstance(value, str):
            raise InvalidInput(f"{name} is {shown(value)}; it must be one of {', '.join(kind)}")
        plain = value.upper() if kind is Layout else value.lower()
        return parse_name(kind, name, plain, value)
    if name in WHOLE_FIELDS:
        number, most = whole_of(value), WHOLE_FIELDS[name]
        if number is None:
            raise InvalidInput(
                f"{name} is {shown(value)}; it must be a whole number from 1 to {most}"
            )
        return number
    if name == "ignore_index":
        number = whole_of(value)
        if number is None or not -(2**63) <= number < 2**63:
            raise InvalidInput(f"{name} is {shown(value)}; it must be a whole number of 64 bits")
        return number
    if name in _NUMBERS and not _is_number(value):
        raise InvalidInput(f"{name} is {shown(value)}; it must be a finite number")
    if name == "in_place" and not isinstance(value, bool):
        raise InvalidInput(f"in_place is {shown(value)}; it must be True or False")
    if name == "also":
        names = value.split(",") if value and isinstance(value, str) else value or ()
        words = isinstance(names, list | tuple) and all(isinstance(n, str) for n in names)
        if not words or not all(name.strip() for name in names):
            raise InvalidInput(f"also is {shown(value)}; it must be names, such as lse,entropy")
        return ",".join(name.strip() for name in names)
    return float(value) if name in _NUMBERS else value


@dataclass(frozen=True, slots=True)
class Problem:
    """An op over each row of a (rows, cols) matrix. Raises InvalidInput.

    Types are `DType` members, or whatever `DType.meant_by` knows: "half", torch.float16. Rows lie
    one after the other, `input_stride` and `output_stride` elements apart (0: `cols`). If `inner`
    is more than 1, the matrix is instead an array (rows / inner, cols, inner), and the op runs over
    its middle axis. The op is computed of scale * x + mask.
    """

    rows: int
    cols: int
    dtype: DType = USUAL_TYPE
    op: Op = DEFAULT_OP
    out_dtype: DType | None = None
    """None becomes `dtype`, or the arithmetic's type where a row has fewer results than columns."""
    scale: float | None = None
    """A run-time argument of kernels that take one; None for those that do not."""
    mask: Mask = Mask.NONE
    mask_rows: int = 0
    """0 becomes all rows (causal) or one (additive)."""
    inner: int = 1
    input_stride: int = 0
    output_stride: int = 0
    in_place: bool = False
    ids_per_row: int = 0
    """0 becomes 1 for an operator that reads ids, which are columns of each row."""
    ids_dtype: IndexType | None = None
    """None becomes int64 there."""
    ids_stride: int = 0
    """Ids from the first of a row to the first of the next; 0 becomes `ids_per_row`."""
    also: str = ""
    """The results on request, as lse,entropy; they come in the operator's order."""
    ignore_index: int | None = None
    """The id of rows that do not count; None becomes -100 for an operator that ignores rows."""
    label_smoothing: float | None = None
    """The part of a target that is spread evenly over all columns; None becomes 0 for an operator
    that takes it."""
    z_loss: float | None = None
    """The factor of the squared log-sum-exp that is added to a loss; None likewise."""
    softcap: float | None = None
    """Logits x, once scaled, count as softcap * tanh(x / softcap); None becomes 0 likewise, which
    is no cap. Kernels are emitted for it, since a model has one, and none of the others changes."""
    head_dim: int | None = None
    """Of attention, the elements of each query, key and value; None becomes 128 there."""
    group: int | None = None
    """Query heads, which are rows, that share a key head; None becomes 1 there."""
    key_heads: int | None = None
    """Key heads of a sequence; None becomes 1 there."""
    layout: Layout | None = None
    """The order of a cache's axes; None becomes HND there."""

    def __post_init__(self) -> None:
        if not self._has_plain_types:
            self._check_types()
        check_extent("rows", self.rows, MAX_ROWS)
        check_extent("cols", self.cols, MAX_COLS)
        for name, kind in NAMED_FIELDS.items():  # text is read, such as "bf16"
            value = getattr(self, name)
            if not isinstance(value, kind) and (value or name not in _NAMES_OR_NONE):
                self._default(name, read_field(name, value))
        self._set_options()
        self._default("out_dtype", self.out_dtype or self.usual_result)
        if self._has_ids:
            self._default("ids_per_row", self.ids_per_row or 1)
            self._default("ids_dtype", self.ids_dtype or IndexType.INT64)
            self._default("ids_stride", self.ids_stride or self.ids_per_row)
        self._default("input_stride", self.input_stride or self.cols)
        self._default("output_stride", self.output_stride or self.result_cols)
        if self.mask is Mask.CAUSAL:
            self._default("mask_rows", self.mask_rows or self.rows)
        elif self.mask is Mask.ADDITIVE:
            self._default("mask_rows", self.mask_rows or 1)
        if self.also:
            self._default("also", self._in_order(self.also))
        faults = (
            self._options_fault(),
            self._ids_fault(),
            self._cache_fault(),
            self._layout_fault(),
            self._mask_fault(),
            self._kind_fault(),
        )
        for fault in faults:
            if fault:
                raise InvalidInput(fault)

    @property
    def _has_plain_types(self) -> bool:
        """Whether values are Python's own: one test, because programs make many problems."""
        return (
            type(self.rows) is type(self.cols) is type(self.inner) is int
            and type(self.mask_rows) is type(self.input_stride) is type(self.output_stride) is int
            and type(self.in_place) is bool
            and type(self.ids_per_row) is type(self.ids_stride) is int
            and type(self.also) is str
            and {type(getattr(self, name)) for name in _WHOLE_OPTIONS} <= _WHOLES
            and {type(getattr(self, name)) for name in _NUMBERS} <= _FLOATS
        )

    def _set_options(self) -> None:
        for name in self.operator.options:
            if getattr(self, name) is None:
                self._default(name, OPTIONS[name])

    def _check_types(self) -> None:
        """Convert NumPy's numbers to Python's; raises InvalidInput for a value of a wrong type."""
        for name in WHOLE_FIELDS.keys() - OPTIONS.keys():
            value = getattr(self, name)
            left_out = value is None and name in _WHOLE_OR_NONE
            self._default(name, 0 if left_out else read_field(name, value))
        read_field("in_place", self.in_place)
        self._default("also", read_field("also", self.also or ""))
        for name in ("scale", *OPTIONS):
            if getattr(self, name) is not None:
                self._default(name, read_field(name, getattr(self, name)))

    def _default(self, name: str, value: Any) -> None:
        object.__setattr__(self, name, value)

    def _in_order(self, also: str) -> str:
        """Return the names of results on request in the operator's order; raises InvalidInput."""
        known = self.operator.on_request
        names = also.split(",")
        for name in names:
            if name not in known:
                there_are = f"it has {', '.join(known)}" if known else "it has none on request"
                raise InvalidInput(f"also is {shown(name)}; no result of {self.op}: {there_are}")
        return ",".join(name for name in known if name in names)

    def _options_fault(self) -> str:
        taken = self.operator.options
        given = [name for name in OPTIONS if getattr(self, name) is not None and name not in taken]
        if given:
            return f"{self.op} takes no {given[0]}: leave it out"
        if "ignore_index" in taken and self.ids_per_row > 1:
            return (
                f"ids_per_row is {self.ids_per_row}; {self.op} has one target a row: leave it out"
            )
        for name, most in (("label_smoothing", 1.0), ("z_loss", MOST_Z_LOSS)):
            if name in taken and not 0 <= getattr(self, name) <= most:
                return f"{name} is {getattr(self, name)}; it must be from 0 to {most}"
        if self.softcap and not LEAST_SOFTCAP <= self.softcap <= MOST_SOFTCAP:
            limits = f"from {LEAST_SOFTCAP} to {MOST_SOFTCAP:g}, or 0 for no cap"
            return f"softcap is {self.softcap}; it must be {limits}"
        if self.ignore_index is not None and self.ids_dtype:
            bits = 8 * self.ids_dtype.itemsize - 1
            if not -(2**bits) <= self.ignore_index < 2**bits:
                return f"ignore_index is {self.ignore_index}; no id of {self.ids_dtype} is that"
        return ""

    def _cache_fault(self) -> str:
        """Return what is wrong with the heads of attention."""
        if not self.attends:
            return ""
        if self.dtype.in_double:
            return (
                f"dtype is {self.dtype}; kernels of {self.op} compute in fp32: take a narrower one"
            )
        if self.head_dim not in HEAD_DIMS:
            return f"head_dim is {self.head_dim}; it must be {' or '.join(map(str, HEAD_DIMS))}"
        for name in ("group", "key_heads"):
            check_extent(name, getattr(self, name), WHOLE_FIELDS[name])
        if self.rows % self.heads:
            return (
                f"rows is {self.rows}; they are the query heads of whole sequences: it must be a "
                f"multiple of key_heads * group, which is {self.heads}"
            )
        if self.mask not in (Mask.NONE, Mask.LENGTHS):
            return f"mask is {self.mask}; {self.op} takes none but lengths: leave it out"
        given = [name for name in ("inner", "in_place") if getattr(self, name) != USUAL[name]]
        given += ["input_stride"] * (self.input_stride != self.cols)
        given += ["output_stride"] * (self.output_stride != self.result_cols)
        given += ["out_dtype"] * (self.output_dtype is not self.dtype)
        return f"{self.op} takes no {given[0]}: leave it out" if given else ""

    def _ids_fault(self) -> str:
        beside = {Extent.IDS, Extent.ROW} & set(self.operator.operands.values())
        if self.mask is not Mask.NONE and beside:
            return f"mask is {self.mask}; {self.op} takes none: leave it out"
        if self.inner > 1 and beside and not self.has_target:
            return f"inner is {self.inner}; {self.op} is for rows that are contiguous: it must be 1"
        if not self._has_ids:
            given = [name for name in USUAL if name.startswith("ids_") and getattr(self, name)]
            return f"{self.op} takes no ids: leave {' and '.join(given)} out" if given else ""
        check_extent("ids_per_row", self.ids_per_row, MAX_COLS)
        if self.ids_stride < self.ids_per_row:
            return (
                f"ids_stride is {self.ids_stride}; a row has {self.ids_per_row} ids: it must be "
                f"{self.ids_per_row} at least"
            )
        if self.inner > 1 and self.ids_stride > 1:
            return (
                f"ids_stride is {self.ids_stride}; with inner {self.inner} ids are dense: omit it"
            )
        return ""

    def _layout_fault(self) -> str:
        check_extent("inner", self.inner, MAX_INNER)
        if self.rows % self.inner:
            return f"rows is {self.rows}; it must be a multiple of inner, which is {self.inner}"
        for name, cols in (("input_stride", self.cols), ("output_stride", self.result_cols)):
            stride = getattr(self, name)
            if self.inner > 1 and stride != cols:
                return f"{name} is {stride}; with inner {self.inner} the array must be dense"
            if stride < cols:
                return (
                    f"{name} is {stride}; rows of {cols} elements would overlap: it must be "
                    f"{cols} at least"
                )
        return ""

    def _mask_fault(self) -> str:
        if self.mask is Mask.NONE or self.mask is Mask.LENGTHS:
            if self.mask_rows:
                there_is = "there is no mask" if self.mask is Mask.NONE else "lengths have no rows"
                return (
                    f"mask_rows is {self.mask_rows}, but {there_is}; leave it out, or add a causal "
                    "or an additive mask"
                )
        elif self.mask_rows < 1 or (self.rows % self.mask_rows and not self._begins_mask):
            more = ", or be more" if self.mask is Mask.CAUSAL else ""
            return (
                f"mask_rows is {self.mask_rows}; it must be at least 1 and divide rows, "
                f"which is {self.rows}{more}"
            )
        if self.mask is not Mask.NONE and self.inner > 1:
            return f"mask is {self.mask}; masks are for rows that are contiguous: inner must be 1"
        if self.mask is not Mask.NONE and self.operator.is_gradient:
            return (
                f"mask is {self.mask}; {self.op} needs none: what the forward pass masked is in "
                "its output"
            )
        return ""

    @property
    def _begins_mask(self) -> bool:
        """Whether a causal mask has more rows than the problem, whose rows are its first ones."""
        return self.mask is Mask.CAUSAL and self.rows < self.mask_rows

    def _kind_fault(self) -> str:
        if self.dtype.in_double != self.output_dtype.in_double:
            return f"out_dtype is {self.output_dtype}; for {self.dtype} it must be of the same kind"
        if self.scale is not None and not math.isfinite(self.scale):
            return f"scale is {self.scale}; it must be a finite number"
        if self.scale and not self.dtype.arithmetic.holds(self.scale):
            return f"scale is {self.scale}; kernels take it in fp32: from 1.2e-38 to 3.4e38, or 0"
        if not self.in_place:
            return ""
        if self.operator.is_gradient:
            return f"in_place is for forward ops; {self.op} reads two matrices: leave it out"
        if not self.fills_rows:
            return (
                f"in_place is for results as large as the input; {self.op} has fewer: leave it out"
            )
        if self.output_dtype is not self.dtype:
            return f"in_place needs one dtype; input is {self.dtype}, output {self.output_dtype}"
        if self.input_stride != self.output_stride:
            return (
                f"in_place needs one stride; input's is {self.input_stride}, output's "
                f"{self.output_stride}"
            )
        return ""

    @property
    def output_dtype(self) -> DType:
        """Element type of the output."""
        return self.out_dtype or self.dtype

    @property
    def input_elements(self) -> int:
        """Elements from the first to the last of the input, gaps between rows included."""
        return (self.rows - 1) * self.input_stride + self.cols

    @property
    def output_elements(self) -> int:
        """Elements from the first to the last of the output, gaps between rows included."""
        return (self.rows - 1) * self.output_stride + self.result_cols

    def place(self, result: "Operand", row: int, col: int) -> int:
        """Return the index in a result of the element at a row and column."""
        if self.inner == 1:
            return row * result.stride + col
        outer, place = divmod(row, self.inner)
        return (outer * result.cols + col) * self.inner + place

    @property
    def is_dense(self) -> bool:
        """Whether there are no gaps between rows."""
        dense = self.input_stride == self.cols and self.output_stride == self.result_cols
        return dense and self.ids_stride == self.ids_per_row

    @property
    def visible(self) -> int:
        """Elements that no causal mask hides, which a kernel has to read."""
        if self.mask is not Mask.CAUSAL:
            return self.rows * self.cols
        hidden = self.cols - self.mask_rows  # row r sees r + 1 + hidden columns, where any
        rows = min(self.rows, self.mask_rows)
        blind = min(rows, max(0, -hidden))
        seen = (rows - blind) * (blind + 1 + hidden + rows + hidden) // 2
        return self.rows // rows * seen

    @property
    def read_bytes(self) -> int:
        """Bytes that must be read: each visible element of each input matrix once.

        With lengths whole rows count, since lengths are data.
        """
        ids = self.rows * self.ids_per_row * self.ids_dtype.itemsize if self.ids_dtype else 0
        of_rows = list(self.operator.operands.values()).count(Extent.ROW)
        numbers = of_rows * self.rows * self.dtype.arithmetic.itemsize
        queries = self.rows * self.of_head
        return (self.elements_read + queries) * self.dtype.itemsize + ids + numbers

    @property
    def elements_read(self) -> int:
        """Elements that must be read: each visible one of each input matrix once, and of a mask.

        Of attention the keys and values, once for each key head.
        """
        if self.attends:
            return 2 * self.rows // self.of_group * self.cols * self.of_head
        masked = self.mask_rows * self.cols if self.mask is Mask.ADDITIVE else 0
        return len(self.operator.matrices) * self.visible + masked

    @property
    def written_bytes(self) -> int:
        """Bytes that must be written: each element of each result once."""
        return sum(self.rows * result.cols * result.dtype.itemsize for result in results(self))

    @property
    def bytes(self) -> int:
        """Bytes that must be read and written, whatever a variant really moves."""
        return self.read_bytes + self.written_bytes

    @property
    def row_bytes(self) -> int:
        """Bytes of one input row."""
        return self.cols * self.dtype.itemsize

    @property
    def operator(self) -> Operator:
        """What is known of the op."""
        return OPERATORS[self.op]

    @property
    def fills_rows(self) -> bool:
        """Whether a row has as many results as elements."""
        return self.operator.extent is Extent.MATRIX

    @property
    def has_target(self) -> bool:
        """Whether each row has a target, by which it may be ignored."""
        return "ignore_index" in self.operator.options

    @property
    def attends(self) -> bool:
        """Whether rows are query heads, and columns the keys of a cache that they attend to."""
        return self.operator.over is Extent.CACHE

    @property
    def of_head(self) -> int:
        """Elements of a query, a key or a value; 0 for other operators."""
        return self.head_dim or 0

    @property
    def of_group(self) -> int:
        """Query heads that share a key head."""
        return self.group or 1

    @property
    def heads(self) -> int:
        """Query heads of a sequence."""
        return self.of_group * (self.key_heads or 1)

    @property
    def is_product(self) -> bool:
        """Whether each row is multiplied by a number of its own, and nothing else."""
        return not self.operator.reduces and not self.has_target

    @property
    def may_stay(self) -> bool:
        """Whether a kernel in place may leave rows whose results are their own elements."""
        return self.in_place and self.is_product

    @property
    def _has_ids(self) -> bool:
        """Whether the operator reads ids, which are columns of each row."""
        return Extent.IDS in self.operator.operands.values()

    @property
    def results(self) -> tuple[Result, ...]:
        """What is computed: the operator's output, and what is asked for beside it."""
        return self.operator.asked_for(self.also)

    def elements_of(self, extent: Extent) -> int:
        """Return how many elements of an operand or a result a row has."""
        return {
            Extent.MATRIX: self.cols,
            Extent.ROW: 1,
            Extent.IDS: self.ids_per_row,
            Extent.HEAD: self.of_head,
        }[extent]

    @property
    def result_cols(self) -> int:
        """Elements of a row of the output."""
        return self.elements_of(self.operator.extent)

    @property
    def usual_result(self) -> DType:
        """Element type of the output where none is named."""
        return self.dtype if self.fills_rows or self.attends else self.dtype.arithmetic

    @property
    def limit(self) -> str:
        """What a time is compared with: the fastest plain `copy` or `read` of the same bytes."""
        return self.operator.limit

    def of_limit(self, time_us: float, limit_us: float) -> str:
        """Return the limit's time over another, as `98.2 % of copy`; empty if it was not timed."""
        return f"{100 * limit_us / time_us:.1f} % of {self.limit}" if limit_us > 0 else ""

    def gbps(self, time_us: float) -> float:
        """Return the bandwidth in 1e9 bytes a second if a launch takes `time_us` microseconds."""
        return self.bytes / time_us * 1e-3

    def resized(self, rows: int | None = None, cols: int | None = None) -> "Problem":
        """Return the problem with other rows or cols, but the same gaps between rows.

        If the rows of a repeating mask do not divide the new rows, it gets the smallest number that
        does. Raises InvalidInput for rows that `inner` does not divide.
        """
        rows, cols = rows or self.rows, cols or self.cols
        mask_rows = rows if self.mask_rows == self.rows else self.mask_rows
        begins = self._begins_mask and rows < mask_rows
        if mask_rows and rows % mask_rows and not begins:
            divisors = (n for n in range(2, math.isqrt(rows) + 1) if rows % n == 0)
            mask_rows = next(divisors, rows)
        return replace(
            self,
            rows=rows,
            cols=cols,
            mask_rows=mask_rows,
            input_stride=cols + self.input_stride - self.cols,
            output_stride=self.output_stride + (cols - self.cols) * self.fills_rows,
        )

    def as_dict(self) -> dict[str, Any]:
        """Return the fields as plain values: rows, cols, dtype, op, and what is not the default."""
        usual = Problem(
            *(self.rows, self.cols, self.dtype, self.op),
            ids_per_row=self.ids_per_row,
            head_dim=self.head_dim,
        )
        always = {"rows", "cols", "dtype", "op", *(["ids_per_row"] if self.ids_per_row > 1 else [])}
        always |= {"head_dim"} if self.head_dim not in (None, OPTIONS["head_dim"]) else set()
        values = {f.name: getattr(self, f.name) for f in fields(self)}
        return {
            name: str(value) if isinstance(value, str) else value
            for name, value in values.items()
            if name in always or value != getattr(usual, name)
        }

    @classmethod
    def from_dict(cls, values: Any) -> "Problem":
        """Read what `as_dict` wrote. Raises InvalidInput for an unknown name or a wrong value."""
        given = read_object(values, "problem")
        unusual = {name: given.get(name) for name in ("scale", "ignore_index", *_NUMBERS)}
        read = read_fields(cls, {**given, **dict.fromkeys(unusual)}, "problem")
        if (scale := unusual.pop("scale")) is not None:
            read = replace(read, scale=read_number(scale, "scale", least=-math.inf))
        told = {name: value for name, value in unusual.items() if value is not None}
        return replace(read, **told) if told else read

    def __str__(self) -> str:
        same = self.output_dtype is self.usual_result
        dtypes = str(self.dtype) if same else f"{self.dtype}->{self.output_dtype}"
        return " ".join([f"{self.op} {dtypes} {self.rows}x{self.cols}", *self._particulars()])

    @property
    def _unusual_options(self) -> list[str]:
        """The names of options that have another value than they usually have."""
        return [name for name in self.operator.options if getattr(self, name) != OPTIONS[name]]

    @property
    def _strides(self) -> tuple[int, ...]:
        ids = (self.ids_stride,) if self.ids_dtype else ()
        return (self.input_stride, self.output_stride, *ids)

    def _particulars(self) -> list[str]:
        """Return the fields that are not the default, in a few words each."""
        every = f"/{self.mask_rows}" if self.mask_rows else ""
        dense = self.is_dense
        return [
            *([f"scale {self.scale:g}"] if self.scale is not None else []),
            *([f"{self.mask}{every}"] if self.mask is not Mask.NONE else []),
            *([f"inner {self.inner}"] if self.inner > 1 else []),
            *([] if dense else [f"strides {','.join(map(str, self._strides))}"]),
            *(["in place"] if self.in_place else []),
            *([f"{self.ids_per_row} {self.ids_dtype} ids"] if self.ids_dtype else []),
            *([f"with {self.also}"] if self.also else []),
            *(f"{name} {getattr(self, name)}" for name in self._unusual_options),
        ]


USUAL: dict[str, Any] = {
    f.name: None if f.default is MISSING else f.default for f in fields(Problem)
}
"""The default of each field; None for rows and cols."""


def default_rows(
    cols: int, dtype: DType, op: Op = DEFAULT_OP, head_dim: int = 0, group: int = 1
) -> int:
    """Return as many rows as make 256 MiB of traffic, at least one.

    A matrix that is read counts, and another that is written where an op fills rows; of attention
    keys and values, which a group of rows shares.
    """
    check_extent("cols", cols, MAX_COLS)
    if OPERATORS[op].over is Extent.CACHE:
        return group * max(1, DEFAULT_TRAFFIC_BYTES // (2 * cols * head_dim * dtype.itemsize))
    matrices = 2 if OPERATORS[op].extent is Extent.MATRIX else 1
    return max(1, DEFAULT_TRAFFIC_BYTES // (cols * matrices * dtype.itemsize))


# ------------------------------------------------------------------ operands


@dataclass(frozen=True, slots=True)
class Operand:
    """An array in device memory: `count` elements from its address on."""

    name: str
    dtype: ElementType
    count: int
    cols: int = 1
    """Elements of a row; `stride` is the distance of the rows."""
    stride: int = 1

    @property
    def bytes(self) -> int:
        """Bytes from the first element to the last."""
        return self.count * self.dtype.itemsize

    @classmethod
    def of_rows(
        cls, name: str, dtype: ElementType, rows: int, cols: int, stride: int = 0
    ) -> "Operand":
        """Return an array of rows, which are dense without a `stride`."""
        stride = stride or cols
        return cls(name, dtype, (rows - 1) * stride + cols, cols, stride)


@dataclass(frozen=True, slots=True)
class Scalar:
    """A number that a launch can name, and the type in which it is passed."""

    dtype: ElementType
    value: int | float


def inputs(problem: Problem) -> tuple[Operand, ...]:
    """Return the arrays that a problem's kernel reads.

    `input` is the matrix, or for a backward op the forward's output; `grad` that output's
    gradient, of the same type and place; `ids` some columns of each row; `lengths` a number of
    columns a row, or of attention a sequence; `query` a vector of each row, and `key` and `value`
    one of each column of a key head; `mask` a dense (mask_rows, cols) matrix that is added. What
    has another number for each row is of the arithmetic's type.
    """
    rows, cols, dtype = problem.rows, problem.cols, problem.dtype
    of_extent: dict[Extent, tuple[ElementType, int]] = {
        Extent.MATRIX: (dtype, problem.input_stride),
        Extent.IDS: (_ids_dtype(problem), problem.ids_stride),
        Extent.ROW: (dtype.arithmetic, 1),
        Extent.HEAD: (dtype, problem.of_head),
    }
    arrays = []
    for name, extent in problem.operator.operands.items():
        if extent is Extent.CACHE:
            arrays.append(_cache(problem, name))
            continue
        kind, stride = of_extent[extent]
        arrays.append(Operand.of_rows(name, kind, rows, problem.elements_of(extent), stride))
    if problem.mask is Mask.LENGTHS:
        counted = rows // problem.heads if problem.attends else rows
        arrays.append(Operand.of_rows("lengths", IndexType.INT32, counted, 1))
    if problem.mask is Mask.ADDITIVE:
        arrays.append(Operand.of_rows("mask", dtype, problem.mask_rows, cols))
    return tuple(arrays)


def _cache(problem: Problem, name: str) -> Operand:
    """Return a cache of attention, of which a row is the vector of a key."""
    keys = problem.rows // problem.of_group * problem.cols
    return Operand.of_rows(name, problem.dtype, keys, problem.of_head)


def _ids_dtype(problem: Problem) -> IndexType:
    """Return the type of the ids, and of results that are columns."""
    return problem.ids_dtype or IndexType.INT64


def results(problem: Problem) -> tuple[Operand, ...]:
    """Return the arrays that a problem's kernel writes; in place the first has the input's address.

    The first has the output's type and stride. The others are dense: columns are of the ids' type,
    numbers of the arithmetic's.
    """
    first, *others = problem.results
    output = Operand.of_rows(
        first.name, problem.output_dtype, problem.rows, problem.result_cols, problem.output_stride
    )
    return (
        output,
        *(
            Operand.of_rows(
                result.name,
                _ids_dtype(problem) if result.are_columns else problem.dtype.arithmetic,
                problem.rows,
                problem.elements_of(result.extent),
            )
            for result in others
        ),
    )


def output(problem: Problem) -> Operand:
    """Return the first array that a problem's kernel writes."""
    return results(problem)[0]


def scalars(problem: Problem) -> dict[str, Scalar]:
    """Return the numbers that a launch can name."""
    return {
        **_strides_of_cache(problem),
        "rows": Scalar(IndexType.INT64, problem.rows),
        "cols": Scalar(IndexType.INT32, problem.cols),
        "inner": Scalar(IndexType.INT64, problem.inner),
        "mask_rows": Scalar(IndexType.INT64, problem.mask_rows),
        "input_stride": Scalar(IndexType.INT64, problem.input_stride),
        "output_stride": Scalar(IndexType.INT64, problem.output_stride),
        "ids_stride": Scalar(IndexType.INT64, problem.ids_stride),
        "scale": Scalar(problem.dtype.arithmetic, 1.0 if problem.scale is None else problem.scale),
    }


def _strides_of_cache(problem: Problem) -> dict[str, Scalar]:
    """Return the key heads of attention, and by how many elements neighbours in a cache differ."""
    if not problem.attends:
        return {}
    heads, keys, dim = problem.key_heads or 1, problem.cols, problem.of_head
    within = (dim, keys * dim) if problem.layout is Layout.HND else (heads * dim, dim)
    strides = dict(zip(("key_stride", "head_stride"), within, strict=True))
    strides |= {"key_heads": heads, "sequence_stride": heads * keys * dim}
    return {name: Scalar(IndexType.INT64, value) for name, value in strides.items()}
