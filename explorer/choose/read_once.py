"""Rows of which one number is stored: each element is read once, and nothing of it is kept after.

What limits such a kernel is how many loads are in flight, and for short rows of 16-bit elements how
many instructions an element takes. The figures are of 40 problems on an H200.
"""

import math
from dataclasses import replace

from explorer.choose.residency import cluster_of, row_of
from explorer.model.config import WARPS, Config
from explorer.model.gpu_spec import WARP, GpuSpec
from explorer.model.problem import Mask, Problem, power_of_two
from explorer.space.design_rules import WIDE_ROW, has_spans, widest_vector

LONGEST_STAGED_BYTES = 128
"""Bytes of a row up to which the rows of a block come by staged tiles. Of 21 to 30 columns that
takes 3 to 12 % less time than any other kernel."""

MOST_ACCESSES = {2: 30, 4: 13, 8: 9, 16: 6}
"""Accesses of a thread to its share of a row, by their bytes: all of them in flight at once. In f32
threads have half as many of 16 bytes, which are as much work as those of eight elements."""

MOST_THREADS = 512
"""Threads of a row above which a cluster shares it, or its threads read it piece by piece."""

CLUSTER_THREADS, CLUSTER_ACCESSES = 128, 10
"""Threads of a cluster's block, and the 16-byte accesses of each to its share."""


def read_once(problem: Problem, gpu: GpuSpec) -> Config:
    """Return a kernel by a staged tile, a warp's part, a block, or a cluster for each row."""
    many = problem.rows > gpu.sm_count * gpu.threads_per_sm // 2
    if many and problem.row_bytes <= LONGEST_STAGED_BYTES and has_spans(problem):
        lanes = 1 if problem.row_bytes <= LONGEST_STAGED_BYTES / 2 else 2
        return Config(threads=64 * lanes, threads_per_row=lanes, staging="span", exp="ex2.approx")
    vector = _vector_bytes(problem)
    most = MOST_ACCESSES[vector] // (2 if vector == 16 and not problem.dtype.is_half else 1)
    threads = math.ceil(problem.row_bytes / (vector * most))
    if threads <= WARP:
        return row_of(power_of_two(threads), vector)
    blocks = _blocks(problem, gpu)
    if blocks > 1:
        return _cluster(problem, blocks)
    if problem.row_bytes <= MOST_THREADS * vector * MOST_ACCESSES[vector]:
        threads = min(threads, MOST_THREADS)
        return row_of(next(size for size in WARPS if size >= threads), vector)
    return replace(row_of(320), algorithm="online-block-max", cache="none", unroll=4)


def _vector_bytes(problem: Problem) -> int:
    """Return the bytes of an access: the widest at which rows start, or wider ones for long rows.

    Rows without gaps have neighbours of which an access may hold elements at their ends.
    """
    widest, size = max(widest_vector(problem), problem.dtype.itemsize), problem.dtype.itemsize
    if problem.cols > 1024:
        return 16
    if size == 2 and widest < 8 and problem.is_dense and problem.cols >= 350:
        return 8
    return widest if size == 2 or widest < 16 else 16


def _blocks(problem: Problem, gpu: GpuSpec) -> int:
    """Return the blocks of a cluster for each row: so many that each keeps its share in registers.

    Or 1 where blocks alone, each with a row, have work for all SMs.
    """
    wanted = problem.row_bytes / (16 * CLUSTER_THREADS * CLUSTER_ACCESSES)
    fewer_rows = problem.rows < 2 * gpu.sm_count
    alone = problem.cols < WIDE_ROW or problem.mask is not Mask.NONE
    if alone or gpu.cluster_blocks == 1 or not (fewer_rows or wanted > 4):
        return 1
    most = max(1, 4 * gpu.sm_count // problem.rows) if fewer_rows and wanted <= 4 else 16
    return min(gpu.cluster_blocks, power_of_two(math.ceil(wanted)), power_of_two(most))


def _cluster(problem: Problem, blocks: int) -> Config:
    """Return a kernel by a cluster for each row, whose threads keep their share if it is small."""
    share = problem.row_bytes / (16 * blocks * CLUSTER_THREADS)
    threads = CLUSTER_THREADS if share <= 1.2 * CLUSTER_ACCESSES else 2 * CLUSTER_THREADS
    idea = replace(cluster_of(blocks, threads, holds="input"), algorithm="online-block-max")
    return idea if share <= 2 * CLUSTER_ACCESSES else replace(idea, cache="none", unroll=4)
