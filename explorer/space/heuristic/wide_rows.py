"""Configs without a search for rows that several blocks share: what an H200 says of each regime."""

from dataclasses import replace
from typing import NamedTuple

from explorer.config import Config
from explorer.gpu_spec import GpuSpec
from explorer.problem import Problem
from explorer.space.heuristic.at_once import are_at_once
from explorer.space.heuristic.one_block import soonest_reduction
from explorer.space.heuristic.row_clusters import (
    all_at_once,
    all_packed,
    shared_by,
    stays_packed,
)

MOST_KEPT = 128
"""Elements of a row that a thread keeps in registers."""

LEAST_PART = 1024
"""Elements of a row that are worth a block where the GPU has room for more of them."""

LARGE_PART = 10 * 1024
"""Elements of a row that are worth a block of 512 threads where rows are few."""

LEAST_TWICE = 160 * 1024
"""Bytes of a row, times the number of rows (three at least), from which two launches are faster.

They read a row twice, but on all SMs. Clusters of so few rows read it once, on few SMs.
"""

LEAST_TWICE_16_BIT = 512 * 1024
"""Bytes of a 16-bit row above which the same holds of three rows or more.

Of one or two rows it holds above three quarters of that.
"""

WIDEST_TWO_EXCHANGES = 8192
"""Elements of the widest row whose exponentials are not rescaled, for an exchange more: on an H200,
16384 x 8192 bf16 comes to 98.5 % of copy, instead of 97.4, f32 to 98.7 instead of 98.2."""

MOST_PARTS = 256
"""Parts of a row whose pairs each warp of the second of two launches combines soon enough."""


class Shape(NamedTuple):
    """A cluster for rows."""

    blocks: int
    threads: int
    """Of each block."""
    share: float
    """Elements of a row that each thread keeps, at most."""


SHAPES = {
    2: (Shape(2, 128, 52), Shape(2, 256, 31), Shape(4, 128, 55), Shape(4, 256, 32)),
    4: (Shape(4, 128, 30), Shape(8, 128, 44), Shape(16, 128, 50)),
}
"""Clusters for elements of so many bytes, the smallest first.

Shares are where, on an H200, the next came to be faster between 8200 and 100000 columns.
"""

STRETCHED = 1.2
"""Factor of the shares in `SHAPES` if rows are fewer than SMs.

For so few rows the next larger shape would leave a wave less full. On an H200, 100 x 50257 f32
takes 16 % less time by 8 blocks than by 16, and 66 x 120000 4 % less by 16 blocks of 128 threads
than by 16 of 256. With many rows it does not pay: 2048 x 50257 takes 1 % more time by 8 blocks.
"""

WIDEST_SHARES = ((192, 49), (256, 50), (128, MOST_KEPT), (256, MOST_KEPT))
"""Threads and shares of the largest clusters for wider rows."""

LOOPED = Config(
    algorithm="online-block-max",
    exp="ex2.approx",
    cache="none",
    cache_holds="input",
)
"""Rows that nothing keeps: they are read twice."""


def of_wide_rows(problem: Problem, gpu: GpuSpec, *, splits: bool) -> Config:
    """A config, legal or not, for rows of WIDE_ROW elements or more on a GPU with clusters.

    `splits` says whether two launches may have a part of a row for each block.
    """
    too_wide = numbers_of_row(problem) > gpu.cluster_blocks * 256 * MOST_KEPT
    if splits and problem.rows < gpu.sm_count and (too_wide or _sooner_twice(problem, gpu)):
        return in_two_launches(problem, gpu)
    if too_wide:
        return _looped(problem, gpu)
    few = _few(problem, gpu)
    if _are_few(problem, gpu) and are_at_once(problem, few, gpu):
        return few
    kept = all_at_once(problem, gpu) or _in_waves(problem, gpu)
    algorithm = "three-pass" if problem.cols <= WIDEST_TWO_EXCHANGES else kept.algorithm
    return replace(kept, algorithm=algorithm)


def numbers_of_row(problem: Problem) -> int:
    """Registers that a row takes as it is computed with: its elements, or twice as many in f64."""
    return problem.cols * problem.dtype.arithmetic.itemsize // 4


def fewest_blocks(row: int, part: int, *, least: int, most: int) -> int:
    """The fewest blocks, from `least` on and `most` at most, for parts of `part` at most."""
    blocks = least
    while blocks < most and row > blocks * part:
        blocks *= 2
    return blocks


def _sooner_twice(problem: Problem, gpu: GpuSpec) -> bool:
    """Whether all SMs read the rows twice sooner than clusters, on few SMs or one wave, once."""
    if problem.dtype.itemsize > 2:
        return problem.row_bytes >= LEAST_TWICE * max(3, problem.rows)
    one_wave = problem.rows * gpu.cluster_blocks <= 2 * gpu.sm_count
    least = LEAST_TWICE_16_BIT if problem.rows > 2 else 3 * LEAST_TWICE_16_BIT // 4
    return one_wave and problem.row_bytes > least


def _are_few(problem: Problem, gpu: GpuSpec) -> bool:
    """Whether clusters of all rows are on the GPU at once, half as large ones at most."""
    blocks = problem.rows * gpu.cluster_blocks
    room = 4 if numbers_of_row(problem) < gpu.cluster_blocks * LARGE_PART else 2
    return blocks <= room * gpu.sm_count


def _few(problem: Problem, gpu: GpuSpec) -> Config:
    """Each row over as many blocks as its parts are worth: what counts is the time of one row.

    On an H200, 16 x 131072 f32 comes to 71 % of copy, 8 x 151936 to 70 %. More rows than six, whose
    largest clusters do not have an SM for each block, take 4 to 8 % less by half as many blocks, as
    long as these are not many large ones.
    """
    cols, most = numbers_of_row(problem), gpu.cluster_blocks
    fewest = 4 * problem.rows * most <= 3 * gpu.sm_count
    is_large = cols > most // 2 * 8192
    one_an_sm = problem.dtype.itemsize > 2 and problem.rows * most <= gpu.sm_count
    if fewest or (is_large and not one_an_sm):
        blocks, large = most, 3 * LARGE_PART // 2
    else:
        blocks, large = most // 2, LARGE_PART
    while blocks > 1 and cols < blocks * LEAST_PART:
        blocks //= 2
    part = cols // blocks
    threads = 128 if part < 2 * LEAST_PART else 256 if part < large else 512
    return shared_by(blocks, threads)


def _in_waves(problem: Problem, gpu: GpuSpec) -> Config:
    """Small blocks, of which an SM holds several clusters'.

    Blocks of less than 6 KiB are fewer bytes than the GPU can launch blocks for. On an H200, with
    rows for 64 MB, from 8200 columns to 36000: 97 to 98 % of copy in f32, 94 to 98 in bf16; 96 %
    at 60000 and 80000 f32. The widest rows are kept by the fewest threads that can: 256 x 262144
    f32 comes to 94 % so.
    """
    cols, most = numbers_of_row(problem), gpu.cluster_blocks
    if stays_packed(problem):
        return all_packed(problem, gpu)
    stretch = STRETCHED if problem.rows < gpu.sm_count else 1
    small = (s._replace(share=stretch * s.share) for s in SHAPES[min(4, problem.dtype.itemsize)])
    widest = (Shape(most, threads, share) for threads, share in WIDEST_SHARES)
    shapes = (s for s in (*small, *widest) if s.blocks <= most)
    shape = next(s for s in shapes if cols <= s.blocks * s.threads * s.share)
    return shared_by(shape.blocks, shape.threads)


def _looped(problem: Problem, gpu: GpuSpec) -> Config:
    """Few rows by clusters, others a row a block, whose threads read their share twice."""
    looped = replace(LOOPED, threads=1024, threads_per_row=1024, unroll=4)
    if problem.rows < gpu.sm_count:
        return replace(looped, cluster=gpu.cluster_blocks, exchange="mbarrier")
    return looped


def in_two_launches(problem: Problem, gpu: GpuSpec) -> Config:
    """Parts of rows over all SMs, which overlapping launches read twice, the second time in L2.

    On an H200, 1 x 1048576 f32 comes to 62 % of copy, 4 x 1048576 to 69 %. Parts are the smaller
    ones of which a row has few.
    """
    smallest = LOOPED.threads * LOOPED.vector_bytes
    largest = 4 if problem.dtype.itemsize == 2 else 8
    fitting = (u for u in (2, 4) if problem.row_bytes <= MOST_PARTS * u * smallest)
    return replace(
        LOOPED,
        reduction=soonest_reduction(gpu),
        unroll=next(fitting, largest),
        launches="two-overlapped" if gpu.overlaps_launches else "two",
    )
