"""What to compute: op, rows, cols, dtype."""

from dataclasses import dataclass
from enum import StrEnum

from explorer.errors import InvalidInput

DEFAULT_TRAFFIC_BYTES = 256 * 2**20
"""Traffic of a problem whose rows were left out: several times the L2 of any GPU there is."""

MAX_COLS = 2**31 - 1 - 2**16
"""Kernels index within a row by 32-bit integers; the margin covers one block's stride."""

MAX_ROWS = 2**31 - 1
"""The largest grid: one row a block."""


class DType(StrEnum):
    """Element types of input and output; arithmetic is fp32 for each of them."""

    F32 = "f32"
    F16 = "f16"
    BF16 = "bf16"

    @property
    def itemsize(self) -> int:
        """Bytes of one element."""
        return 4 if self is DType.F32 else 2

    @classmethod
    def parse(cls, text: str) -> "DType":
        """Read a dtype's name; raises InvalidInput naming those there are."""
        try:
            return cls(text)
        except ValueError:
            names = ", ".join(cls)
            raise InvalidInput(f"dtype '{text}' is not known; choose one of {names}") from None


@dataclass(frozen=True, slots=True)
class Problem:
    """Row-wise softmax of a dense row-major (rows, cols) matrix. Raises InvalidInput."""

    rows: int
    cols: int
    dtype: DType = DType.F32
    op: str = "softmax"

    def __post_init__(self) -> None:
        _check_extent("rows", self.rows, MAX_ROWS)
        _check_extent("cols", self.cols, MAX_COLS)
        if self.op != "softmax":
            raise InvalidInput(f"op '{self.op}' is not known; the only op is 'softmax'")

    @property
    def bytes(self) -> int:
        """The model's traffic: each element read once and written once."""
        return self.rows * self.cols * 2 * self.dtype.itemsize

    @property
    def row_bytes(self) -> int:
        """Bytes of one input row."""
        return self.cols * self.dtype.itemsize

    def gbps(self, time_us: float) -> float:
        """Achieved bandwidth at `time_us` microseconds a launch, in 1e9 bytes a second."""
        return self.bytes / time_us * 1e-3

    def __str__(self) -> str:
        return f"{self.op} {self.dtype} {self.rows}x{self.cols}"


def default_rows(cols: int, dtype: DType) -> int:
    """As many rows as make 256 MiB of traffic, one at least."""
    _check_extent("cols", cols, MAX_COLS)
    return max(1, DEFAULT_TRAFFIC_BYTES // (cols * 2 * dtype.itemsize))


def _check_extent(name: str, value: int, limit: int) -> None:
    if not 1 <= value <= limit:
        raise InvalidInput(f"{name} is {value}; it must be a whole number from 1 to {limit}")
