"""How many threads a row is worth: sizes of blocks that leave few of them idle."""

import math

from explorer.config import Config
from explorer.problem import Problem
from explorer.space.cluster_rules import WIDE_ROW
from explorer.work_split import WARP, WorkSplit

ACCESS_BYTES = 16

TRIPLES = tuple(3 * WARP << doublings for doublings in range(1, 4))
"""Threads in three times a power of two warps: 192, 384 and 768."""

SIZES = tuple(sorted((*(1 << doublings for doublings in range(11)), *TRIPLES)))

LITTLE = 1 / 16
"""Of a block's threads, those that alone have a last access to the row."""

LEAST_ODD = 512
"""Elements of the shortest row whose ends, where it starts anywhere, make a difference."""


def starts_anywhere(problem: Problem) -> bool:
    """Whether rows, not of the shortest, start anywhere within 16 bytes."""
    return problem.row_bytes % ACCESS_BYTES > 0 and problem.cols >= LEAST_ODD


def threads_for(problem: Problem, accesses: float) -> int:
    """Threads that have about so many 16-byte accesses of a row each; 1024 at most.

    The fewer of them are idle for the last access, the better: on an H200, rounding up to a power
    of two cost 10 to 40 % between 2048 and 8192 columns.
    """
    vectors = problem.row_bytes / ACCESS_BYTES

    def misfit(size: int) -> float:
        each = vectors / size
        return abs(math.log(each / accesses)) + 1 - each / math.ceil(each)

    return min(_sizes(problem), key=misfit)


def fewest_threads(problem: Problem, accesses: int) -> int:
    """The fewest, of a warp at least, that have so many accesses each at most; 1024 at most.

    Not 512 or 1024 of an fp32 row that starts anywhere: on an H200, 47 x 6759 takes 15 % more time
    by 1024 threads than by 768, 472 x 7565 13 % by 512 than by 256.
    """
    vectors = WorkSplit(problem, Config(vector_bytes=ACCESS_BYTES)).row_vectors
    sizes = [size for size in SIZES if size >= WARP]
    if starts_anywhere(problem) and problem.dtype.itemsize > 2:
        sizes = [size for size in sizes if size <= 256 or size in TRIPLES]
    return next((size for size in sizes if size * accesses >= vectors), sizes[-1])


def _sizes(problem: Problem) -> tuple[int, ...]:
    """Sizes to choose from.

    Of fp32 rows that start anywhere, the largest whose last access is to the row's end alone, for
    which the accesses before it do not wait; else three times a power of two: on an H200, 3333
    columns take 20 % more time by 512 threads than by 384, 7999 8 %. Of 16-bit rows that one block
    has to itself, no more than 256.
    """
    if problem.dtype.itemsize == 2:
        most = 256 if problem.cols < WIDE_ROW else 1024
        return tuple(size for size in SIZES if size <= most)
    if not starts_anywhere(problem):
        return SIZES
    apart = tuple(size for size in SIZES if _has_end_apart(problem, size))
    return apart[-1:] or TRIPLES


def _has_end_apart(problem: Problem, threads: int) -> bool:
    """Whether a row's end, wherever it starts, is an access, third to sixth, of few threads."""
    width = ACCESS_BYTES // problem.dtype.itemsize
    first, last = (problem.cols - 1) // width, (problem.cols + width - 2) // width
    slot = last // threads
    return 2 <= slot <= 5 and first // threads == slot and last % threads < LITTLE * threads
