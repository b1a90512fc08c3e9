"""Rows of which one number is stored: each element is read once, and nothing of it is kept after.

What limits such a kernel is how many loads are in flight, and for short rows of 16-bit elements how
many instructions an element takes. The figures are of 60 problems of log-sum-exp on an H200.
"""

import math
from dataclasses import replace

from explorer.choose.residency import cluster_of, row_of
from explorer.model.config import WARPS, Config
from explorer.model.gpu_spec import WARP, GpuSpec
from explorer.model.problem import Mask, Problem, power_of_two
from explorer.model.work_split import masks_ends
from explorer.space.design_rules import LEAST_THREADS, WIDE_ROW, has_spans, widest_vector

LONGEST_STAGED_BYTES = 128
"""Bytes of a row up to which the rows of a block come by staged tiles. Of 19 to 51 columns of bf16
that takes 3 to 37 % less time than the best kernel of another kind."""

MOST_ACCESSES = {2: 30, 4: 13, 8: 12, 16: 6}
"""Accesses of a thread to its share of a row, by their bytes: all of them in flight at once. In f32
threads have half as many of 16 bytes, which are as much work as those of eight elements."""

MOST_MASKED, MOST_MASKED_SHORT = 9, 5
"""The same of 8 bytes where masks hide a row's ends, and for rows of less than 160 bytes: the ends
take so little then that more threads of a row gain. With these and three passes, 48 random problems
of 40 to 1300 columns of 16 bits take 2.9 % more time than the best; with 12 and one pass, 6.4 %."""

SHORTEST_VECTOR_BYTES = 90
"""Bytes of a row from which 16-bit elements are loaded by vectors wherever rows start."""

MOST_BLOCK_BYTES = 24 * 1024
"""Bytes of a row up to which a block alone reads it."""

SHARE_BYTES = 16 * 7
"""Bytes of a row for each thread of a cluster."""

CLUSTER_THREADS, FEW_ROWS_THREADS = 288, 160
"""Most threads of a cluster's block, and where rows are so few that more blocks reach more SMs."""

TARGETS_FACTOR = 2
"""How many times as much of a short row, or of a cluster's, a thread has whose target is added
apart: that is as much work for each of a row's threads. With 16 threads of a row in place of 32,
and accesses of 8 bytes, 131072 x 1000 bf16 take 63 us in place of 72; 8192 x 50257 take 191 by
clusters of 4 x 128 threads, and 221 by 4 x 224. Threads that store a gradient as well have a usual
share of a short row: it takes their registers."""

LOOPED_BYTES = 256 * 1024
"""Bytes of an aligned row from which a block alone reads it piece by piece where it has a target:
4096 x 151936 bf16 take 275 us so, and 304 or more by clusters that keep it."""

HEAVIER = 2
"""How many times as much of a row a thread has that combines more than a maximum and a sum: to
combine all of an entropy, a rank and an argmax takes as many instructions as some 20 elements."""

HEAVY_THREADS = 896
"""Threads that an SM is to hold of such kernels at least: a thread then has 72 registers at most,
in place of up to 190 that NVRTC takes where nothing bounds them. Of log-probabilities with all
other results, 8192 rows of 50257 columns of bf16 take 217 us so, and 280 with half the threads."""


def read_once(problem: Problem, gpu: GpuSpec) -> Config:
    """Return a kernel by a staged tile, a part of a warp, a block, or a cluster for each row."""
    many = problem.rows > gpu.sm_count * gpu.threads_per_sm // 2
    if many and problem.row_bytes <= LONGEST_STAGED_BYTES and has_spans(problem):
        short = problem.row_bytes <= LONGEST_STAGED_BYTES // 2
        lanes = 1 if short or problem.dtype.is_half else 2
        threads = 64 if short else 128
        return Config(threads=threads, threads_per_row=lanes, staging="span", exp="ex2.approx")
    idea = replace(_by_threads(problem, gpu), algorithm="online-block-max", cache_holds="input")
    heavy = idea.cache == "registers" and _factor(problem) > 1
    if idea.threads_per_row <= WARP and not heavy and masks_ends(problem, idea):
        return replace(idea, algorithm="three-pass")  # two numbers cost less than two pairs
    return replace(idea, min_blocks=max(1, HEAVY_THREADS // idea.threads)) if heavy else idea


def _factor(problem: Problem) -> int:
    """Return how many times the usual share of a row a thread has.

    What losses combine besides, a sum and a count, takes less than a second share's registers do.
    """
    heavy = any(result.combines for result in problem.results) and not problem.has_target
    return HEAVIER if heavy else 1


def _by_threads(problem: Problem, gpu: GpuSpec) -> Config:
    """Return a kernel whose threads load their shares of a row straight to registers."""
    if problem.row_bytes > MOST_BLOCK_BYTES * _factor(problem):
        if gpu.cluster_blocks > 1 and problem.mask is Mask.NONE:
            return _by_cluster(problem, gpu)
        kept = problem.row_bytes <= 16 * MOST_ACCESSES[16] * 512
        return row_of(512) if kept else replace(row_of(320), cache="none", unroll=4)
    vector = _vector_bytes(problem)
    most = MOST_ACCESSES[vector] // (2 if vector == 16 and not problem.dtype.is_half else 1)
    if vector == 8 and masks_ends(problem, row_of(WARP, vector)):
        most = MOST_MASKED_SHORT if problem.row_bytes < 160 else MOST_MASKED
    most *= _factor(problem)
    threads = math.ceil(problem.row_bytes / (vector * most))
    if problem.has_target and not problem.fills_rows and threads <= WARP:
        threads = math.ceil(threads / TARGETS_FACTOR)
    if threads <= WARP:
        return row_of(power_of_two(threads), vector)
    return row_of(next(size for size in WARPS if size >= threads), vector)


def _vector_bytes(problem: Problem) -> int:
    """Return the bytes of an access: the widest at which rows start, or wider ones.

    Where rows start anywhere, 16-bit elements that are loaded one at a time take 5 to 15 % more
    time than by vectors of which a row's first and last are taken apart.
    """
    widest, size = max(widest_vector(problem), problem.dtype.itemsize), problem.dtype.itemsize
    if problem.has_target and problem.cols <= 1024 and size == 2:
        return 8 if widest >= 8 else 16
    if problem.cols > 1024 or widest == 16:
        return 16
    by_vectors = size == 2 and problem.row_bytes > SHORTEST_VECTOR_BYTES
    return max(widest, 8) if by_vectors else widest


def _by_cluster(problem: Problem, gpu: GpuSpec) -> Config:
    """Return a kernel by a cluster for each row, whose threads keep their share if it is small.

    A row that no cluster holds is read piece by piece: 2048 rows of 262144 columns of bf16 take
    242 us so, 265 and more where sixteen blocks keep them.
    """
    few = problem.rows < 2 * gpu.sm_count
    looped = problem.row_bytes >= LOOPED_BYTES and widest_vector(problem) == 16
    if problem.has_target and looped and not few:
        return replace(row_of(320), cache="none", unroll=4)
    factor = TARGETS_FACTOR if problem.has_target and not few else _factor(problem)
    wanted = problem.row_bytes / (SHARE_BYTES * factor)
    each = (FEW_ROWS_THREADS if few else CLUSTER_THREADS) // factor
    if wanted > each * gpu.cluster_blocks and not few:
        return replace(cluster_of(2, 256), cache="none", unroll=4)
    blocks = min(gpu.cluster_blocks, power_of_two(math.ceil(wanted / each)))
    threads = min(WARPS, key=lambda size: abs(size - wanted / blocks))
    threads = max(LEAST_THREADS, threads)
    if wanted > 2 * blocks * threads:
        return replace(cluster_of(blocks, 256), cache="none", unroll=4)
    if wanted > blocks * threads and _factor(problem) > 1 and not few:
        return replace(cluster_of(2, 128), cache="none", unroll=4)  # no registers are left
    return cluster_of(blocks, min(threads, 512))


# ------------------------------------------------------------------ elements that stand alone


ELEMENT_ACCESSES, RAGGED_ACCESSES = 4, 8
"""Accesses of a thread to a short row of whose elements each stands alone, and to one that begins
between vectors, of which the first and the last are taken apart. With two accesses, the gradient of
a cross-entropy takes 12 % more time at 131072 x 1000 bf16, 7 % at 65536 x 1003, and half as much
again at 262144 x 257 f16."""

ELEMENT_BLOCK_BYTES = 52 * 1024
"""Bytes of a wide row that a block takes at most: 4 to 9 % less time than whole rows of 100 to 500
KB take, whose blocks end at different times."""


def each_element(problem: Problem, gpu: GpuSpec) -> Config:
    """Return a kernel whose threads each take some elements of a row, up to four in flight at once.

    Wide rows are shared by blocks, and few ones by so many that each SM has some.
    """
    vector = 16 if problem.cols >= 256 else max(widest_vector(problem), problem.dtype.itemsize)
    most = ELEMENT_ACCESSES if widest_vector(problem) == vector else RAGGED_ACCESSES
    threads = power_of_two(min(math.ceil(problem.row_bytes / (vector * most)), 256))
    blocks = 1
    if problem.cols >= WIDE_ROW:
        by_bytes = power_of_two(math.ceil(problem.row_bytes / ELEMENT_BLOCK_BYTES))
        by_sms = power_of_two(math.ceil(4 * gpu.sm_count / problem.rows))
        least = problem.row_bytes // (vector * threads * ELEMENT_ACCESSES)
        blocks = min(gpu.cluster_blocks, max(by_bytes, min(by_sms, power_of_two(max(1, least)))))
    accesses = math.ceil(problem.row_bytes / (vector * threads * blocks))
    unroll = 4 if accesses >= 8 or accesses % 4 == 0 else min(2, accesses)
    idea = row_of(threads, vector)
    return replace(idea, cache="none", cache_holds="input", unroll=unroll, cluster=blocks)
