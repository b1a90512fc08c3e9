"""A config for a problem without any search: what measurements on an H200 say of each regime."""

import random
from dataclasses import replace

from explorer.accuracy import Accuracy
from explorer.config import Config
from explorer.dtype import DType
from explorer.gpu_spec import GpuSpec
from explorer.op import Mask, Op
from explorer.problem import Problem
from explorer.space.across_rows import MOST_ROWS_OF_A_TILE, of_middle_axis
from explorer.space.cluster_rules import WIDE_ROW
from explorer.space.design_rules import is_plain
from explorer.space.space import Space
from explorer.space.wide_rows import of_wide_rows
from explorer.work_split import WARP

SHORT_ROW = 48
"""Elements of the longest row that one or two threads work on, out of a span in shared memory."""

MOST_HELD = 128 * 1024
"""Bytes of a row, for a gradient of two, that a block of 1024 threads keeps."""

LEAST_SHARED_ACROSS = 128
"""Elements of the shortest row over a middle axis for tiles that several blocks may share."""

LEAST_BLOCK = 4 * WARP
"""Threads of a block, in which shorter rows share one."""

LONG_SUM = 32
"""Terms that a thread adds one by one which are too many where a wide row's sum is to be exact."""


def config_for(
    problem: Problem,
    gpu: GpuSpec,
    *,
    batch_invariant: bool = False,
    accuracy: Accuracy = Accuracy.DEFAULT,
) -> Config:
    """A legal config that needs no search, as exact as `accuracy` asks.

    It depends on rows where they are too few to fill the GPU. A `batch_invariant` one does not, so
    that neither does the kernel: a row comes to the same bits however many rows there are.

    Row-wise softmax has its regimes; whatever else a problem asks for, an idea that is illegal is
    repaired by the fewest changes. One problem and GPU, one answer.
    """
    if batch_invariant:
        problem = problem.resized(rows=_many_rows(problem, gpu))
    space = Space(problem, gpu)
    idea = promising(problem, gpu, accuracy)
    if batch_invariant:
        idea = replace(idea, row_order="ascending")
    return idea if space.is_legal(idea) else space.repair(idea, random.Random(0))


def _many_rows(problem: Problem, gpu: GpuSpec) -> int:
    """So many that no more of them change the choice: tiles of a middle axis fill the GPU, too."""
    if problem.inner == 1:
        return max(problem.rows, gpu.sm_count * gpu.threads_per_sm // LEAST_BLOCK + 1)
    slices = -(-gpu.sm_count * MOST_ROWS_OF_A_TILE // problem.inner)
    return max(problem.rows, slices * problem.inner)


def promising(problem: Problem, gpu: GpuSpec, accuracy: Accuracy = Accuracy.DEFAULT) -> Config:
    """What fits the regime of a problem, legal or not."""
    return exact(_adapted(_of_regime(problem, gpu, accuracy), problem), problem, accuracy)


def exact(idea: Config, problem: Problem, accuracy: Accuracy) -> Config:
    """The idea as exact as `strict` asks where 32 bits or more are stored.

    Exponentials relative to a thread's own maximum, rescaled, are 20 to 28 ulp off, those of three
    passes 17 to 19, at 1000 to 65536 columns of f32.
    """
    if not _asks_exact(problem, accuracy):
        return idea
    normalise = "divide" if problem.op is Op.SOFTMAX else idea.normalise
    idea = replace(idea, algorithm="three-pass", exp="expf", normalise=normalise)
    while idea.cluster > 1 and idea.threads < 1024 and _share(problem, idea) >= LONG_SUM:
        idea = replace(
            idea,
            threads=2 * idea.threads,
            threads_per_row=2 * idea.threads_per_row,
            min_blocks=max(1, idea.min_blocks // 2),
        )
    return idea


def _asks_exact(problem: Problem, accuracy: Accuracy) -> bool:
    """Whether the usual exponentials are too inexact."""
    if problem.op is Op.SOFTMAX_BACKWARD:  # it has none
        return False
    return accuracy is Accuracy.STRICT and problem.output_dtype.itemsize >= 4


def _share(problem: Problem, config: Config) -> float:
    """Elements of a row for each thread of a cluster."""
    return problem.cols / (config.cluster * config.threads_per_row)


def _of_regime(problem: Problem, gpu: GpuSpec, accuracy: Accuracy) -> Config:
    if problem.cols <= SHORT_ROW and problem.inner == 1:
        return _short(problem)
    if problem.inner > 1 and problem.cols >= LEAST_SHARED_ACROSS and gpu.cluster_blocks > 1:
        return of_middle_axis(problem, gpu)
    if problem.cols >= WIDE_ROW and _are_shared(problem, gpu):
        splits = is_plain(problem) and not _asks_exact(problem, accuracy)
        return of_wide_rows(problem, gpu, splits=splits)
    return _of_one_block(problem, gpu)


def _adapted(idea: Config, problem: Problem) -> Config:
    """What a gradient, a logarithm or double takes of it: none has all choices that fp32 has."""
    if problem.op is Op.LOG_SOFTMAX:
        idea = replace(idea, cache_holds="input")
    if problem.op.is_backward:
        idea = replace(idea, algorithm="three-pass", exp=Config().exp, cache_holds="input")
    if problem.dtype is DType.F64:
        idea = replace(idea, exp="exp2f")
    if problem.op.is_backward or problem.dtype is DType.F64:
        return replace(idea, reduction=idea.reduction.replace("-redux", ""))
    return idea


def _of_one_block(problem: Problem, gpu: GpuSpec) -> Config:
    """A row in registers; wide 16-bit rows in shared memory; what neither holds is read twice."""
    threads = _threads_of_one_block(problem)
    last_are_longest = problem.mask is Mask.CAUSAL and problem.mask_rows == problem.rows
    idea = Config(
        algorithm="online-block-max" if problem.cols >= 2048 else "three-pass",
        threads=max(threads, LEAST_BLOCK),
        threads_per_row=threads,
        exp="ex2.approx",
        row_order="descending" if last_are_longest else "ascending",
    )
    few = _of_one_wave(problem, gpu)
    if few is not None:
        idea, threads = replace(few, row_order=idea.row_order), few.threads
    held = problem.row_bytes * (2 if problem.op.is_backward else 1)
    if problem.dtype is DType.F64:
        held *= 2  # its exponential takes as many registers as the row
    if held > MOST_HELD:
        return replace(idea, cache="none", cache_holds="input", unroll=4)
    if problem.dtype.itemsize > 2 or threads < 1024:
        return idea
    shared = replace(idea, cache="shared", cache_holds="input", store_hint="cs", unroll=4)
    return replace(shared, min_blocks=2) if held <= MOST_HELD * 5 // 6 else shared


def _of_one_wave(problem: Problem, gpu: GpuSpec) -> Config | None:
    """A block a row where all are on the GPU at once: what counts is the time of one.

    Each thread has two 16-byte accesses; in place of two warps, which would wait for each other,
    there are one or, for longer rows, four. On an H200, against a warp or two for each row,
    1056 x 2048 f32 takes 9 % less time, 64 x 2048 22 %.
    """
    threads = min(max(_power_of_two(problem.row_bytes // 32), WARP), 1024)
    if threads == 2 * WARP:
        threads = WARP if problem.cols <= 512 else LEAST_BLOCK
    block = max(threads, LEAST_BLOCK)
    most = gpu.sm_count * (gpu.threads_per_sm // block)
    if problem.inner > 1 or problem.rows > most or problem.row_bytes < WARP * 16:
        return None
    return Config(
        algorithm="online-block-max",
        threads=block,
        threads_per_row=threads,
        reduction="shuffle-redux" if gpu.reduces_warps else "shuffle",
        exp="ex2.approx",
        store_hint="cs",
    )


def _are_shared(problem: Problem, gpu: GpuSpec) -> bool:
    """Whether rules let the blocks of a cluster share rows that lie along memory."""
    plain = problem.mask is Mask.NONE and not problem.op.is_backward
    return gpu.cluster_blocks > 1 and problem.inner == 1 and plain


def _short(problem: Problem) -> Config:
    """Rows of 8 elements or fewer straight to a thread each; longer ones by way of a span.

    On an H200, 200000 x 5 f32 comes to 93 % of copy, 100000 x 17 to 94 % and in bf16 to 86 %.
    """
    plain = Config(exp="ex2.approx", store_hint="cs", threads_per_row=1)
    if problem.cols <= 8 or problem.mask is not Mask.NONE:
        return replace(plain, threads=128, vector_bytes=problem.dtype.itemsize)
    if problem.dtype.itemsize == 2:
        return replace(plain, threads=64, staging="span")
    return replace(plain, threads=128, threads_per_row=2, staging="span")


def _is_odd(problem: Problem) -> bool:
    """Whether 16-bit rows start anywhere within a vector.

    On an H200, 8192 x 4097 bf16 comes to 97 % of copy, as does 65536 x 1001.
    """
    return problem.dtype.itemsize == 2 and problem.row_bytes % 16 > 0 and problem.cols >= 512


def _threads_of_one_block(problem: Problem) -> int:
    """Threads for two 16-byte accesses of the row each; 1024 at most.

    One of the shortest rows; four of 16-bit rows that are wide or odd, whose ends cost less among
    more elements; eight of fp32 rows that two warps can hold. 32 elements under a causal mask, on
    whose short rows large blocks would be lost, and two thirds of them where rows are longer: on an
    H200, 8192 x 8192 f32 takes 2 % less time by 384 threads a row than by 256.
    """
    wide = problem.dtype.itemsize == 2 and problem.cols >= 8192
    accesses = 4 if wide or _is_odd(problem) else 2
    if problem.cols <= 64:
        accesses = 1
    elif problem.mask is Mask.CAUSAL:
        accesses = min(8, 2 * problem.dtype.itemsize)
    elif problem.dtype.itemsize == 4 and 1536 <= problem.cols <= 3072:
        accesses = 8
    threads = _power_of_two(problem.row_bytes // (16 * accesses))
    if problem.mask is Mask.CAUSAL and problem.dtype.itemsize == 4 and problem.cols >= 4096:
        threads += threads // 2
    return min(1024, threads)


def _power_of_two(count: int) -> int:
    """The smallest that is not below `count`."""
    return 1 << (max(1, count) - 1).bit_length()
