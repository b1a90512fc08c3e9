"""Numbers of elements and of rows, and powers of two."""

from explorer.errors import InvalidInput
from explorer.plain_data import shown

MAX_COLS = 2**31 - 1 - 2**16
"""Kernels index within a row by 32-bit integers; the margin covers one block's stride."""

MAX_ROWS = 2**31 - 1
"""The largest grid: one row a block."""


def check_extent(name: str, value: int, limit: int) -> None:
    """Raises InvalidInput for what is not from 1 to the limit."""
    if not 1 <= value <= limit:
        raise InvalidInput(f"{name} is {shown(value)}; it must be a whole number from 1 to {limit}")


def power_of_two(count: int) -> int:
    """The smallest power of two that is not below `count`; 1 for none."""
    return 1 << (max(1, count) - 1).bit_length()
