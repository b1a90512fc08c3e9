"""How many threads a row is worth: sizes of blocks that leave few of them idle."""

import math

from explorer.model.config import Config
from explorer.model.gpu_spec import WARP
from explorer.model.parameters import ROW_THREADS, WARPS
from explorer.model.problem import Mask, Problem, power_of_two
from explorer.model.work_split import WorkSplit
from explorer.space.design_rules import WIDE_ROW, widest_word

ACCESS_BYTES = 16

MAX_BLOCK_THREADS = 1024
"""Threads of a block, at most, of any GPU."""

MIN_BLOCK_THREADS = 4 * WARP
"""Threads of a block, in which shorter rows share one."""

SIZES_BETWEEN_POWERS = tuple(size for size in WARPS if size != power_of_two(size))
"""Whole warps between powers of two."""

MAX_SHARE_AT_ROW_END = 1 / 16
"""A row's end is apart if less than this share of a block's threads has the last access to it."""

MAX_SHARE_AT_ROW_END_ONE_WAVE = 1 / 12
"""The same of fp32 rows that are all resident at the same time: on an H100, 275 x 6301 takes 9 %
less time by 512 threads, of which 40 have the last access, than by 320, and 326 x 6301 6 %."""

MAX_SHARE_NOT_COUNTED = 1 / 64
"""A last access to a 16-bit row by no more than this share of the threads is not counted.

On an H200, 8192 x 4097 takes 3 to 10 % less time by 128 threads, of which one has a fifth access,
than by 192 to 224.
"""

MIN_COLS_UNALIGNED = 512
"""Elements of the shortest row whose ends, where it starts anywhere, make a difference."""

IDLE_WEIGHT = 1.4
IDLE_WEIGHT_UNALIGNED = 3
"""Weights of the share of accesses that idle threads leave out, when a size is chosen.

The logarithm of a thread's accesses over the accesses asked for has weight 1. The first weight is
for rows that whole accesses cover, the second for rows that start anywhere.
"""


def starts_anywhere(problem: Problem) -> bool:
    """Whether rows, not of the shortest, start anywhere within 16 bytes."""
    return problem.row_bytes % ACCESS_BYTES > 0 and problem.cols >= MIN_COLS_UNALIGNED


def is_of_8_byte_words(problem: Problem) -> bool:
    """Whether rows are of 16 bits, and words of 8 bytes divide them that 16 bytes do not.

    On an H200, 100 x 1500 bf16 takes 12 % less time by words of 8 bytes than by words of 16, for
    which each row starts elsewhere; on an H100, 438 x 7900 7 %, 1095 x 7900 5 %.
    """
    return problem.dtype.is_half and widest_word(problem) == 8


def is_plain_forward(problem: Problem) -> bool:
    """Whether whole rows along memory are computed, not their gradients."""
    return problem.inner == 1 and problem.mask is Mask.NONE and not problem.op.is_backward


def row_of(threads: int) -> Config:
    """A row by so many threads, in blocks of MIN_BLOCK_THREADS at least if they are whole rows."""
    whole = MIN_BLOCK_THREADS % threads == 0
    return Config(
        threads=MIN_BLOCK_THREADS if whole else threads, threads_per_row=threads, exp="ex2.approx"
    )


def threads_for(problem: Problem, accesses: float) -> int:
    """Threads that have about so many 16-byte accesses of a row each; 1024 at most.

    The fewer of them are idle for the last access, the better: on an H200, rounding up to a power
    of two cost 10 to 40 % between 2048 and 8192 columns.
    """
    vectors = problem.row_bytes / ACCESS_BYTES
    anywhere = starts_anywhere(problem)
    little = MAX_SHARE_NOT_COUNTED if anywhere and problem.dtype.is_half else 0
    counts = IDLE_WEIGHT_UNALIGNED if anywhere else IDLE_WEIGHT

    def misfit(size: int) -> float:
        each = vectors / size
        slots = math.ceil(each - little) or 1
        return abs(math.log(each / accesses)) + counts * (1 - each / slots)

    return min(_sizes(problem), key=misfit)


def fewest_threads(problem: Problem, accesses: int, access_bytes: int = ACCESS_BYTES) -> int:
    """The fewest, of a warp at least, that have so many accesses each, or else the most there are.

    Not 512 or 1024 of an fp32 row that starts anywhere within an access, unless its end is apart:
    on an H200, 47 x 6759 takes 15 % more time by 1024 threads than by 768, 472 x 7565 13 % by 512
    than by 256.
    """
    vectors = WorkSplit(problem, Config(vector_bytes=access_bytes)).row_vectors
    sizes: tuple[int, ...] = WARPS
    whole_words = problem.row_bytes % access_bytes == 0
    if starts_anywhere(problem) and not problem.dtype.is_half and not whole_words:
        sizes = tuple(
            size
            for size in sizes
            if size <= 256
            or size in SIZES_BETWEEN_POWERS
            or _has_end_apart(problem, size, MAX_SHARE_AT_ROW_END_ONE_WAVE)
        )
    return next((size for size in sizes if size * accesses >= vectors), sizes[-1])


def _sizes(problem: Problem) -> tuple[int, ...]:
    """Sizes to choose from.

    Of fp32 rows that start anywhere, the largest whose last access is to the row's end alone, for
    which the accesses before it do not wait; else none that is a power of two: on an H200, 3333
    columns take 20 % more time by 512 threads than by 384, 7999 8 %. Of 16-bit rows that one block
    has to itself, no more than 256, and not 224, but 224 in place of 256 if they start anywhere: by
    the other, 3200 x 5000 bf16 takes 3 % more time, 650 x 7900 12 %.
    """
    if problem.dtype.is_half:
        most = 256 if problem.cols < WIDE_ROW else 1024
        other = 256 if starts_anywhere(problem) else 224
        return tuple(size for size in ROW_THREADS if size <= most and size != other)
    if not starts_anywhere(problem):
        return ROW_THREADS
    apart = tuple(size for size in ROW_THREADS if size <= 512 and _has_end_apart(problem, size))
    return apart[-1:] or SIZES_BETWEEN_POWERS


def _has_end_apart(problem: Problem, threads: int, share: float = MAX_SHARE_AT_ROW_END) -> bool:
    """Whether a row's end, wherever it starts, is an access, third to sixth, of few threads."""
    width = ACCESS_BYTES // problem.dtype.itemsize
    first, last = (problem.cols - 1) // width, (problem.cols + width - 2) // width
    slot = last // threads
    return 2 <= slot <= 5 and first // threads == slot and last % threads < share * threads
