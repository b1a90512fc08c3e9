"""A config for a problem without any search: what measurements on an H200 say of each regime."""

import random
from dataclasses import replace

from explorer.model.accuracy import Accuracy
from explorer.model.config import Config
from explorer.model.dtype import DType
from explorer.model.gpu_spec import GpuSpec
from explorer.model.problem import Mask, Op, Problem
from explorer.space.design_rules import WIDE_ROW, is_plain
from explorer.space.heuristic import across_rows, gradients, short_gradients, wide_gradients
from explorer.space.heuristic.many_rows import of_many_pairs, of_many_rows
from explorer.space.heuristic.one_block import (
    most_few_rows,
    of_one_block,
    of_one_wave,
    that_fits,
)
from explorer.space.heuristic.residency import hinted
from explorer.space.heuristic.short_rows import of_short_rows
from explorer.space.heuristic.wide_rows import in_two_launches, of_wide_rows
from explorer.space.space import Space

MAX_TERMS_STRICT_SUM = 32
"""Terms that a thread adds one by one which are too many where a wide row's sum is to be exact."""


def config_for(
    problem: Problem,
    gpu: GpuSpec,
    *,
    batch_invariant: bool = False,
    accuracy: Accuracy = Accuracy.DEFAULT,
) -> Config:
    """A legal config that needs no search, as exact as `accuracy` asks.

    It depends on the number of rows where these are too few to fill the GPU. A `batch_invariant`
    config does not, so that a row's bits do not depend on the number of rows.

    The regimes are those of a row-wise softmax. If a problem's rules exclude what its regime says,
    and what is like it, `Space.repair` mends one broken rule after another by random changes. Their
    seed is fixed, so that one problem and GPU have one answer.
    """
    if batch_invariant:
        problem = problem.resized(rows=_many_rows(problem, gpu))
    space = Space(problem, gpu)
    idea = promising(problem, gpu, accuracy)
    if batch_invariant:  # these change no bits, but would change with rows
        idea = replace(idea, row_order="ascending", load_hint="default", store_hint="default")
    return idea if space.is_legal(idea) else space.repair(idea, random.Random(0))


def _many_rows(problem: Problem, gpu: GpuSpec) -> int:
    """Return a number of rows from which more of them do not change the choice."""
    if problem.inner == 1:
        spans = short_gradients.least_rows_of_spans(problem, gpu) if problem.op.is_backward else 0
        return max(problem.rows, most_few_rows(gpu) + 1, spans)
    slices = -(-across_rows.enough_rows(gpu) // problem.inner)
    return max(problem.rows, slices * problem.inner)


def promising(problem: Problem, gpu: GpuSpec, accuracy: Accuracy = Accuracy.DEFAULT) -> Config:
    """Return the config of a problem's regime, which rules allow but for a few problems."""
    idea = hinted(_of_regime(problem, gpu, accuracy), problem, gpu)
    if problem.mask is Mask.CAUSAL and problem.mask_rows == problem.rows:
        idea = replace(idea, row_order="descending")  # the last rows are the longest
    return that_fits(exact(adapted(idea, problem), problem, accuracy), problem, gpu)


def exact(idea: Config, problem: Problem, accuracy: Accuracy) -> Config:
    """The idea as exact as `strict` asks where 32 bits or more are stored.

    Exponentials relative to a thread's own maximum, rescaled, are 20 to 28 ulp off, those of three
    passes 17 to 19, at 1000 to 65536 columns of f32.
    """
    if not _asks_exact(problem, accuracy):
        return idea
    normalise = "divide" if problem.op is Op.SOFTMAX else idea.normalise
    idea = replace(idea, algorithm="three-pass", exp="expf", normalise=normalise)
    while (
        idea.cluster > 1 and idea.threads < 1024 and _share(problem, idea) >= MAX_TERMS_STRICT_SUM
    ):
        threads = min(2 * idea.threads, 1024)  # not all sizes are 1024 halved
        idea = replace(
            idea,
            threads=threads,
            threads_per_row=threads,
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
    narrow = gradients.of_narrow_words(problem, gpu) if problem.op.is_backward else None
    if narrow is not None:
        return narrow
    pairs = of_many_pairs(problem, gpu)
    chosen = pairs or of_one_wave(problem, gpu) or of_many_rows(problem, gpu)
    short = None if chosen else _of_short_rows(problem, gpu)
    if short is not None:
        return short
    if (
        problem.inner > 1
        and problem.cols >= across_rows.MIN_COLS_OF_TILES
        and gpu.cluster_blocks > 1
    ):
        return across_rows.of_middle_axis(problem, gpu)
    splits = is_plain(problem) and not _asks_exact(problem, accuracy)
    if problem.cols >= WIDE_ROW and _are_shared(problem, gpu):
        if problem.op.is_backward:
            return wide_gradients.of_wide_rows(problem, gpu)
        return of_wide_rows(problem, gpu, splits=splits)
    whole = of_one_block(problem, gpu, chosen)
    # Blocks of whole rows would leave SMs idle, and read the rows twice as well.
    idle = gpu.cluster_blocks == 1 and problem.rows < gpu.sm_count and whole.cache == "none"
    return in_two_launches(problem, gpu) if splits and idle else whole


def _of_short_rows(problem: Problem, gpu: GpuSpec) -> Config | None:
    """What suits short rows; None for longer ones."""
    if problem.inner > 1:
        few = across_rows.of_few_elements(problem, gpu)
        return few or across_rows.of_small_tiles(problem, gpu)
    gradient = short_gradients.of_short_rows(problem, gpu) if problem.op.is_backward else None
    return gradient or of_short_rows(problem, gpu)


def adapted(idea: Config, problem: Problem) -> Config:
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


def _are_shared(problem: Problem, gpu: GpuSpec) -> bool:
    """Whether rules let the blocks of a cluster share rows that lie along memory."""
    along_memory = problem.inner == 1 and problem.mask is Mask.NONE
    return gpu.cluster_blocks > 1 and along_memory
