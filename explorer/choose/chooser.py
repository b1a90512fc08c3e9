"""A kernel for a problem without a search: its shape by the length of a row, then the rest."""

import math
import random
from collections.abc import Iterator
from dataclasses import replace

from explorer.choose.across_rows import across_rows, with_targets
from explorer.choose.attention import attention
from explorer.choose.one_block import one_block
from explorer.choose.read_once import MOST_BLOCK_BYTES, each_element, read_once
from explorer.choose.residency import elements_of_an_sm, row_of, waves, with_likely_residency
from explorer.choose.short_rows import FEW_WAVES, short_row
from explorer.choose.wide_rows import two_launches, wide_row
from explorer.model.accuracy import Accuracy
from explorer.model.config import Config
from explorer.model.gpu_spec import WARP, GpuSpec, occupancy
from explorer.model.outcome import Resources
from explorer.model.problem import Mask, Problem
from explorer.model.work_split import WorkSplit
from explorer.space.candidates import adapted, may_split
from explorer.space.design_rules import WIDE_ROW
from explorer.space.space import Space


def config_for(
    problem: Problem,
    gpu: GpuSpec,
    *,
    batch_invariant: bool = False,
    accuracy: Accuracy = Accuracy.DEFAULT,
) -> Config:
    """Return a legal config that needs no search, as exact as `accuracy` asks.

    It depends on the number of rows where these are too few to fill the GPU. A `batch_invariant`
    config does not, so that a row's bits do not depend on the number of rows. Where rules exclude
    every idea for the problem, `Space.repair` mends the last one, always in the same way.
    """
    if problem.attends:
        idea = attention(problem, gpu, batch_invariant=batch_invariant)
        return _mended(idea, problem, gpu)
    if batch_invariant:
        problem = problem.resized(rows=_many_rows(problem, gpu))
    idea, _ = _first_legal(problem, gpu, accuracy)
    if batch_invariant:  # these change no bits, but would change with rows
        idea = replace(idea, row_order="ascending", load_hint="default", store_hint="default")
    return _mended(idea, problem, gpu)


def _mended(idea: Config, problem: Problem, gpu: GpuSpec) -> Config:
    """Return an idea, or the legal config that it is repaired to."""
    if Space(problem, gpu).is_legal(idea):
        return idea
    return Space.searched(problem, gpu).repair(idea, random.Random(0))


def _many_rows(problem: Problem, gpu: GpuSpec) -> int:
    """Return a number of rows from which more of them change no choice.

    A thread takes 16 bytes of rows at most, and no rule compares with more than 1.3 waves of
    blocks or eight times the L2 cache.
    """
    least = max(
        problem.rows,
        16 * gpu.sm_count * gpu.threads_per_sm,
        math.ceil(8 * gpu.l2_bytes / problem.row_bytes),
    )
    return math.ceil(least / problem.inner) * problem.inner


def promising(problem: Problem, gpu: GpuSpec, accuracy: Accuracy = Accuracy.DEFAULT) -> Config:
    """Return the first legal idea for a problem; the last one, illegal, where none is legal."""
    return _first_legal(problem, gpu, accuracy)[0]


def _first_legal(problem: Problem, gpu: GpuSpec, accuracy: Accuracy) -> tuple[Config, bool]:
    """Return the first legal idea, or the last one of all, and whether it is legal."""
    if problem.attends:
        idea = attention(problem, gpu)
        return idea, Space(problem, gpu).is_legal(idea)
    space, exactly, legal = Space(problem, gpu), _asks_exact(problem, accuracy), False
    for idea in _ideas(problem, gpu, may_split=may_split(problem) and not exactly):
        idea = exact(_finished(idea, problem, gpu), problem, accuracy)
        legal = space.is_legal(idea)
        if legal:
            break
    stated = with_likely_residency(idea, problem, gpu)
    return stated if legal and space.is_legal(stated) else idea, legal


def _ideas(problem: Problem, gpu: GpuSpec, *, may_split: bool) -> Iterator[Config]:
    """Yield the kernel that suits the rows, then such as need fewer registers or none."""
    idea = _shape(problem, gpu, may_split=may_split)
    yield idea
    if problem.mask is not Mask.NONE and idea.threads > 512:
        yield replace(idea, threads=512, threads_per_row=512)
    if idea.cluster == 1 and problem.inner == 1:
        idea = row_of(512 if problem.dtype.in_double else 1024, idea.vector_bytes)
    idea = replace(idea, cache_holds="input")
    yield idea
    idea = replace(idea, algorithm="online-block-max", min_blocks=1)
    f32_kept = problem.mask is Mask.ADDITIVE and problem.dtype.is_half
    if not f32_kept:
        yield replace(idea, cache="shared", unroll=4)
    few_wide = problem.cols >= WIDE_ROW and problem.rows < gpu.sm_count
    if may_split and idea.cluster == 1 and few_wide:
        yield two_launches(problem, gpu)
    for unroll in (4, 2, 1):
        yield replace(idea, cache="none", unroll=unroll)


def _shape(problem: Problem, gpu: GpuSpec, *, may_split: bool) -> Config:
    """Return the threads, blocks and accesses that suit the length of a row."""
    if problem.inner > 1:
        return (with_targets if problem.has_target else across_rows)(problem, gpu)
    if not problem.operator.reduces:
        return each_element(problem, gpu)
    if not problem.fills_rows or (problem.has_target and problem.row_bytes <= MOST_BLOCK_BYTES):
        return read_once(problem, gpu)
    if problem.cols >= WIDE_ROW and gpu.cluster_blocks > 1 and problem.mask is Mask.NONE:
        return wide_row(problem, gpu, may_split=may_split)
    return short_row(problem, gpu) or one_block(problem, gpu)


# ------------------------------------------------------------------ what is left to choose


def _finished(idea: Config, problem: Problem, gpu: GpuSpec) -> Config:
    """Return the idea with the algorithm, reduction, cache policy and row order that suit it."""
    if problem.inner == 1 and idea.staging == "direct":
        idea = _combined(idea, problem, gpu)
    policy = "cs" if _evicts_first(idea, problem, gpu) else "default"
    longest_last = problem.mask is Mask.CAUSAL and problem.mask_rows == problem.rows
    order = "descending" if longest_last else "ascending"
    finished = replace(idea, load_hint=policy, store_hint=policy, row_order=order)
    return adapted(finished, problem)


def _combined(idea: Config, problem: Problem, gpu: GpuSpec) -> Config:
    """Return the idea with the algorithm and the reduction of its threads' maxima and sums.

    An online pass has one exchange instead of two, which counts for few rows and for long ones.
    """
    blocks = occupancy(Resources(registers=0), idea.threads, 1, gpu).blocks_per_sm * gpu.sm_count
    few = problem.rows <= 2 * blocks * idea.rows_per_block / idea.cluster
    split, within_a_warp = WorkSplit(problem, idea), idea.threads_per_row < WARP
    if within_a_warp:
        few = few and waves(problem, idea, gpu) <= FEW_WAVES
    light = split.slots * split.width <= (12 if within_a_warp else 32)
    masked = problem.mask is not Mask.NONE and problem.dtype.is_half
    reduction = "shuffle"
    if not problem.operator.is_gradient:
        online = idea.threads_per_row > 1 and not (masked and problem.cols < WIDE_ROW)
        online = online and ((few and light) or problem.cols >= 2000)
        if idea.cluster > 1 and problem.cols <= WIDE_ROW:
            online = False
        if idea.cache == "registers" and problem.fills_rows:
            idea = replace(idea, algorithm="online-block-max" if online else "three-pass")
        by_warps = idea.threads_per_row >= WARP and not problem.dtype.in_double
        saves = few or masked or idea.cluster > 1 or split.combined_too
        if by_warps and gpu.reduces_warps and saves:
            reduction = "shuffle-redux"
    if idea.cluster > 8:
        reduction = _of_many_warps(idea, problem, reduction)
    return replace(idea, reduction=reduction)


def _of_many_warps(idea: Config, problem: Problem, reduction: str) -> str:
    """Return the reduction of a cluster whose many warps would each read all others' values."""
    if problem.dtype.is_half and not problem.operator.is_gradient:
        narrow = idea.min_blocks > 1 and idea.vector_bytes == 8
        return f"{reduction}-first-warp" if narrow else reduction
    return "shuffle-first-warp" if idea.threads >= 384 else reduction


# ------------------------------------------------------------------ cache policy

MOST_WAVES, MOST_WAVES_CLUSTERS, MOST_WAVES_SHARED_LINES = 1.3, 1.7, 1.05
"""Waves up to which lines are evicted first: more gain by what stays in the L2 cache."""

MOST_ELEMENTS_OF_AN_SM_NARROW = {2: 9500, 4: 4000, 8: 4000}
"""Elements of an SM's rows up to which lines that narrow accesses load again stay in its L1."""


def _evicts_first(idea: Config, problem: Problem, gpu: GpuSpec) -> bool:
    """Whether lines are evicted first: about all blocks are resident, and no line is read again."""
    if idea.cache == "none" and not idea.splits_launches:
        return False
    if problem.inner == 1 and idea.staging == "direct" and _gains_by_caches(idea, problem, gpu):
        return False
    most = MOST_WAVES
    if idea.staging == "span":
        several = problem.dtype.itemsize == 4 and idea.threads_per_row >= 8
        most = MOST_WAVES if several else MOST_WAVES_SHARED_LINES
    elif not WorkSplit(problem, idea).aligned:
        most = MOST_WAVES_SHARED_LINES
    elif idea.cluster > 1 and not problem.operator.is_gradient:
        most = MOST_WAVES_CLUSTERS
    return (2 if idea.splits_launches else 1) * waves(problem, idea, gpu) <= most


def _gains_by_caches(idea: Config, problem: Problem, gpu: GpuSpec) -> bool:
    """Whether lines that are loaded again, or results that stay in the L2 cache, are worth more."""
    share, half = problem.bytes / gpu.l2_bytes, problem.dtype.is_half
    if idea.cluster > 1:
        kept = problem.operator.is_gradient and idea.cache == "registers"
        return kept and share > 0.13 and not WorkSplit(problem, idea).aligned
    if not problem.operator.is_gradient:
        return idea.vector_bytes == 4 and not half and share > 0.15
    if idea.vector_bytes < 16:
        return _reads_lines_again(idea, problem, gpu)
    return not half and idea.threads_per_row > WARP and 0.15 < share <= 0.4


def _reads_lines_again(idea: Config, problem: Problem, gpu: GpuSpec) -> bool:
    """Whether a gradient's narrow accesses load lines more often than caches hold them."""
    size = problem.dtype.itemsize
    if idea.threads_per_row <= WARP:
        return problem.bytes > 0.08 * gpu.l2_bytes
    if size > 2 and (problem.cols > 4096):
        return False
    fewest = 4 * problem.rows < gpu.sm_count
    most = MOST_ELEMENTS_OF_AN_SM_NARROW[size]
    many = elements_of_an_sm(problem, gpu) > most
    return fewest or many or (size > 2 and WorkSplit(problem, idea).slots > 6)


# ------------------------------------------------------------------ strict accuracy

MOST_TERMS_STRICT = 32
"""Terms that a thread of a cluster adds one by one, where its sum is to be exact."""


def exact(idea: Config, problem: Problem, accuracy: Accuracy) -> Config:
    """Return the idea as exact as `strict` asks where 32 bits or more are stored.

    Rescaled exponentials are 20 to 28 ulp off, those of three passes 17 to 19.
    """
    if not _asks_exact(problem, accuracy):
        return idea
    divides = problem.operator.allows("normalise", "divide")
    normalise = "divide" if divides else idea.normalise
    three = problem.operator.allows("algorithm", "three-pass")
    algorithm = "three-pass" if three else idea.algorithm
    idea = replace(idea, algorithm=algorithm, exp="expf", normalise=normalise)
    terms = problem.cols / (idea.cluster * idea.threads_per_row)
    while idea.cluster > 1 and idea.threads < 1024 and terms >= MOST_TERMS_STRICT:
        threads = min(2 * idea.threads, 1024)  # not all sizes are 1024 halved
        terms *= idea.threads / threads
        fewer = max(1, idea.min_blocks // 2)
        idea = replace(idea, threads=threads, threads_per_row=threads, min_blocks=fewer)
    return idea


def _asks_exact(problem: Problem, accuracy: Accuracy) -> bool:
    """Whether the usual exponentials are too inexact; a gradient of softmax has none."""
    if problem.operator.is_gradient and not problem.operator.is_log:
        return False
    return accuracy is Accuracy.STRICT and problem.output_dtype.itemsize >= 4
