"""A config for a problem without any search: what measurements on an H200 say of each regime."""

import random
from dataclasses import replace

from explorer.config import Config
from explorer.gpu_spec import GpuSpec
from explorer.op import Mask
from explorer.problem import Problem
from explorer.space.space import Space

SHORT_ROW = 48
"""Elements of the longest row that one or two threads work on, out of a span in shared memory."""

LEAST_SHARED = 8192
"""Elements of the narrowest row that several blocks share."""

LEAST_PART = 2048
"""Elements of a row that are worth a block where the GPU has more SMs than rows."""

FEWEST_THREADS = 128
"""Threads of a cluster's block: small blocks leave an SM room for several clusters' parts."""

MOST_KEPT = 128
"""Elements of a row that a thread keeps in registers."""


def config_for(problem: Problem, gpu: GpuSpec, *, batch_invariant: bool = False) -> Config:
    """A legal config that needs no search.

    It depends on rows where they are too few to fill the GPU. A `batch_invariant` one does not, so
    that neither does the kernel: a row comes to the same bits however many rows there are.

    Row-wise softmax has its regimes; whatever else a problem asks for, an idea that is illegal is
    repaired by the fewest changes. One problem and GPU, one answer.
    """
    if batch_invariant and problem.inner == 1:  # over a middle axis rows have no say
        problem = problem.resized(rows=max(problem.rows, gpu.sm_count))
    space = Space(problem, gpu)
    idea = promising(problem, gpu)
    return idea if space.is_legal(idea) else space.repair(idea, random.Random(0))


def promising(problem: Problem, gpu: GpuSpec) -> Config:
    """What fits the regime of a problem, legal or not."""
    if problem.cols <= SHORT_ROW and problem.inner == 1:
        return _short(problem)
    if problem.inner == 1 and problem.cols >= LEAST_SHARED and gpu.cluster_blocks > 1:
        blocks = _blocks_of_a_row(problem, gpu)
        if blocks > 1:
            return _shared_by(blocks, problem, gpu)
    threads = _threads_of_one_block(problem)
    idea = Config(
        algorithm="online-block-max" if problem.cols >= 2048 else "three-pass",
        threads=max(threads, 128),
        threads_per_row=threads,
        exp="ex2.approx",
        store_hint="cs" if problem.cols < 8192 else "default",
    )
    if problem.dtype.itemsize > 2:
        return idea
    if threads == 1024:
        shared = replace(idea, cache="shared", cache_holds="input", unroll=4)
        return replace(shared, store_hint="cs", min_blocks=2)
    if problem.row_bytes % 16 and 2048 <= problem.cols < 8192:
        return _odd(idea, problem)
    return idea


def _odd(idea: Config, problem: Problem) -> Config:
    """16-bit rows of odd width: their ends cost less in words of 8 bytes, of 32 elements a thread.

    On an H200, 8192 x 4097 bf16 comes to 95 % of copy, and to 75 % in words of 16 bytes.
    """
    threads = 1 << (problem.cols // 32 - 1).bit_length()
    return replace(
        idea, algorithm="three-pass", threads=threads, threads_per_row=threads, vector_bytes=8
    )


def _short(problem: Problem) -> Config:
    """Rows of 8 elements or fewer straight to a thread each; longer ones by way of a span.

    On an H200, 200000 x 5 f32 comes to 97 % of copy, 100000 x 17 to 91 % and in bf16 to 82 %.
    """
    size = problem.dtype.itemsize
    plain = Config(exp="ex2.approx", store_hint="cs", threads_per_row=1)
    if problem.cols <= 8 or problem.mask is not Mask.NONE:
        return replace(plain, threads=128, vector_bytes=size)
    if size == 2:
        return replace(plain, threads=64, vector_bytes=4, staging="span")
    return replace(plain, threads=128, threads_per_row=2, staging="span")


def _threads_of_one_block(problem: Problem) -> int:
    """Threads for two 16-byte accesses of the row each, four of wide 16-bit rows; 1024 at most."""
    accesses = 4 if problem.dtype.itemsize == 2 and problem.cols >= 8192 else 2
    wanted = max(1, problem.cols * problem.dtype.itemsize // (16 * accesses))
    return min(1024, 1 << (wanted - 1).bit_length())


def _share(problem: Problem) -> int:
    """Elements of a wide row for each thread of a cluster: as few as its 2048 threads allow."""
    if problem.dtype.itemsize == 2:
        return 32 if problem.cols <= 16384 else 64
    return 16 if problem.cols <= 16384 else 32


def _blocks_of_a_row(problem: Problem, gpu: GpuSpec) -> int:
    """Blocks for a thread's share of a wide row; more of them where rows leave SMs idle."""
    blocks = 1
    while blocks < gpu.cluster_blocks and problem.cols > blocks * FEWEST_THREADS * _share(problem):
        blocks *= 2
    few = min(8 if problem.rows > 2 else 16, gpu.cluster_blocks)
    if problem.rows * few <= gpu.sm_count:
        blocks = few
        while blocks > 1 and problem.cols < blocks * LEAST_PART:
            blocks //= 2
    return blocks


def _shared_by(blocks: int, problem: Problem, gpu: GpuSpec) -> Config:
    """A row over a cluster, in registers where they hold it.

    On an H200, of copy in f32: 99 % at 16384, 98 % at 32768 and 65536, 97 % at 50257 and 131072,
    95 % at 262144; in bf16: 98, 97, 96, 91, 96 and 89 %.
    """
    few = problem.rows * blocks <= 8 * gpu.sm_count
    kept = Config(
        algorithm="online-block-max",
        exp="ex2.approx",
        store_hint="cs" if few else "default",
        cluster=blocks,
        exchange="mbarrier",
    )
    threads = FEWEST_THREADS
    if problem.cols > blocks * threads * _share(problem):
        threads *= 2  # beyond 2 x 128 threads more clusters wait for room than a share is worth
    if problem.cols > blocks * threads * MOST_KEPT:
        return _read_twice(problem, gpu)
    return replace(kept, threads=threads, threads_per_row=threads)


def _read_twice(problem: Problem, gpu: GpuSpec) -> Config:
    """What no cluster keeps: few rows over all SMs in two launches, others a row a block.

    On an H200, 1 x 1048576 f32 comes to 55 % of copy; the second reading is from L2.
    """
    looped = Config(
        algorithm="online-block-max",
        exp="ex2.approx",
        cache="none",
        cache_holds="input",
        load_hint="nc",
        store_hint="cs",
        unroll=8,
    )
    if problem.rows < gpu.sm_count and gpu.cluster_blocks > 1:
        return replace(looped, launches="two-overlapped")
    return replace(looped, threads=1024, threads_per_row=1024, load_hint="default", unroll=4)
