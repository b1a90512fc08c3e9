"""Configs without a search for rows of one block each, or of one warp: what an H200 says."""

import math
from dataclasses import replace

from explorer.config import Config
from explorer.dtype import DType
from explorer.gpu_spec import WARP, GpuSpec
from explorer.problem import Mask, Problem
from explorer.space.design_rules import WIDE_ROW
from explorer.space.heuristic.at_once import are_at_once, blocks_at_once
from explorer.space.heuristic.row_threads import fewest_threads, starts_anywhere, threads_for
from explorer.space.heuristic.short_rows import FILLED, LONGEST_SHORT_ROW, LONGEST_SPAN_ROW

MOST_HELD = 128 * 1024
"""Bytes of a row, for a gradient of two, that a block of 1024 threads keeps."""

BESIDE_A_ROW = 1024
"""Bytes of shared memory that a block takes beside a row: what its warps have found, its ends."""

LEAST_BLOCK = 4 * WARP
"""Threads of a block, in which shorter rows share one."""

MOST_ACCESSES = 9
"""Accesses of a thread to a row, at most, where all rows are resident at the same time.

With more accesses, rows gain nothing by being resident together.
"""

MOST_ACCESSES_16_BIT = 5
"""The same of 16-bit rows, one less of those that share a block."""

A_WARP_BYTES = 512
"""Bytes of one access of a warp. 16-bit rows of about as many have one: on an H200, 65536 x 256 f16
takes 1 % less time so than by half a warp."""

LONGEST_BY_TWO = 4096
"""Bytes of the longest row of which each thread has two accesses."""

FEW_WAVES = 2
"""Waves of blocks up to which rows are few, so that a faster reduction pays.

On an H200, 2000 x 4000 bf16 takes 3 % less time by redux.
"""


def of_one_block(problem: Problem, gpu: GpuSpec, wave: Config | None) -> Config:
    """A row by one warp or block; as of `wave`, what `of_one_wave` says, of all rows at once."""
    idea = wave or replace(
        _by(_threads_of_one_block(problem)),
        algorithm="online-block-max" if problem.cols >= 2000 else "three-pass",
    )
    at_once = blocks_at_once(gpu, idea.threads) * idea.rows_per_block
    if problem.inner == 1 and idea.threads_per_row >= WARP and problem.rows <= FEW_WAVES * at_once:
        idea = replace(idea, reduction=soonest_reduction(gpu))
    if problem.mask is Mask.CAUSAL:
        idea = _under_a_causal_mask(idea, problem, gpu)
    return _kept(idea, problem, gpu)


def _under_a_causal_mask(idea: Config, problem: Problem, gpu: GpuSpec) -> Config:
    """On an H200, up to 1 % less time: 26.0 us instead of 26.2 at 4096 x 4096 f32."""
    if problem.dtype.itemsize == 2 and idea.threads_per_row >= WARP:
        return replace(idea, reduction=soonest_reduction(gpu))
    if problem.dtype is DType.F32 and 4096 <= problem.cols <= 8192:
        return replace(idea, cache_holds="input")
    return idea


def _kept(idea: Config, problem: Problem, gpu: GpuSpec) -> Config:
    """A row in registers; wide 16-bit rows in shared memory; what neither holds is read twice."""
    held = problem.row_bytes * (2 if problem.op.is_backward else 1)
    if problem.dtype is DType.F64:
        held *= 2  # its exponential takes as many registers as the row
    numbers = held * max(1, 4 // problem.dtype.itemsize)  # as fp32 takes them
    fits_shared = idea.threads == 1024 and problem.dtype.itemsize == 2 and held <= _room(gpu, 1)
    if held > MOST_HELD or (numbers > MOST_HELD and not fits_shared):
        return replace(idea, cache="none", cache_holds="input", unroll=4)
    if not fits_shared:
        return idea
    unroll = 4 if held >= 4 * 1024 * idea.vector_bytes else 2
    shared = replace(idea, cache="shared", cache_holds="input", unroll=unroll)
    return replace(shared, min_blocks=2) if held <= _room(gpu, 2) else shared


def _room(gpu: GpuSpec, blocks: int) -> int:
    """Bytes of a row that each of so many blocks of 1024 threads an SM has shared memory for."""
    if gpu.threads_per_sm < 1024 * blocks:
        return 0
    room = gpu.shared_per_sm_bytes // blocks - gpu.shared_reserved_bytes
    return min(gpu.shared_per_block_bytes, room) - BESIDE_A_ROW


def most_few_rows(gpu: GpuSpec) -> int:
    """Return a number of rows beyond which more rows change no choice of any regime along memory.

    A row has a warp at least in `of_one_block`, and a thread in `of_short_rows`. A config that is
    batch-invariant is chosen for one row more (`regimes`): if a regime tells numbers of rows apart
    that are larger than this, this number must grow, or such configs depend on the rows.
    """
    waves = FEW_WAVES * blocks_at_once(gpu, LEAST_BLOCK) * (LEAST_BLOCK // WARP)
    return max(waves, gpu.sm_count * gpu.threads_per_sm // FILLED)


def of_one_wave(problem: Problem, gpu: GpuSpec) -> Config | None:
    """A block a row where all are on the GPU at once: what counts is the time of one.

    Each thread has the fewest 16-byte accesses, two at least, with which all rows are on the GPU at
    once; in place of two warps, which would wait for each other, there are one or, for longer rows,
    four. On an H200, 650 x 6301 bf16 takes 11 % less time by 160 threads that have five accesses
    than by 320 that have three, of which not all blocks are there at once. None for more rows, and
    for those of `of_short_rows` that 16 bytes do not divide: 64 x 540 bf16 takes 23 % more time by
    words of 16.
    """
    odd = problem.row_bytes % 16 > 0
    short = LONGEST_SPAN_ROW if problem.row_bytes % 4 else LONGEST_SHORT_ROW
    if problem.inner > 1 or problem.row_bytes < WARP * 16 or (odd and problem.cols <= short):
        return None
    for accesses in range(2, MOST_ACCESSES + 1):
        threads = fewest_threads(problem, accesses)
        if threads == 2 * WARP and not odd:
            threads = WARP if problem.cols <= 512 else LEAST_BLOCK
        most = MOST_ACCESSES_16_BIT - (threads < LEAST_BLOCK)
        if problem.dtype.itemsize == 2 and accesses > most:
            return None
        idea = replace(
            _by(threads),
            algorithm="online-block-max",
            vector_bytes=16 if odd else _fullest_words(problem, threads),
            reduction=soonest_reduction(gpu),
        )
        if are_at_once(problem, idea, gpu):
            return idea
    return None


def _by(threads: int) -> Config:
    """A row by so many threads, in blocks of LEAST_BLOCK at least if these are whole rows."""
    whole = LEAST_BLOCK % threads == 0
    return Config(
        threads=LEAST_BLOCK if whole else threads, threads_per_row=threads, exp="ex2.approx"
    )


def _fullest_words(problem: Problem, threads: int) -> int:
    """Bytes of the widest words that leave few threads idle for the last access to a row.

    On an H200, 1087 x 1344 bf16 takes 11 % more time by 16 bytes, of which 128 threads have one and
    a third. Of fp32 rows it makes no difference.
    """
    if problem.dtype.itemsize > 2:
        return 16

    def full(width: int) -> float:
        words = problem.row_bytes / width / threads
        return words / math.ceil(words)

    widths = (16, 8)
    return next((width for width in widths if full(width) >= 0.8), max(widths, key=full))


def soonest_reduction(gpu: GpuSpec) -> str:
    """Of rows so few that it counts how soon their threads have combined."""
    return "shuffle-redux" if gpu.reduces_warps else "shuffle"


def _threads_of_one_block(problem: Problem) -> int:
    """Threads for few 16-byte accesses of the row each.

    One of the shortest rows, two of rows up to 4 KiB and of gradients, which read two matrices;
    of longer ones three in 16 bits and six in fp32: on an H200, three to six are within 2 % of the
    best from 1280 to 8191 columns, two take up to 3 % more time in fp32, 13 % in 16 bits. Under a
    causal mask, on whose short rows large blocks would be lost, 32 elements, and two thirds of them
    where rows are longer.
    """
    wide = problem.dtype.itemsize == 2 and problem.cols >= WIDE_ROW
    if problem.cols <= 64:
        accesses = 1.0
    elif problem.mask is Mask.CAUSAL:
        longer = problem.dtype.itemsize == 4 and problem.cols >= 4096
        accesses = 16 / 3 if longer else min(8, 2 * problem.dtype.itemsize)
    elif starts_anywhere(problem):
        accesses = 3.5 if problem.dtype.itemsize == 2 else 3
    elif wide:
        accesses = 4
    elif problem.dtype.itemsize == 2 and 0.95 * A_WARP_BYTES < problem.row_bytes <= A_WARP_BYTES:
        accesses = 1
    elif problem.row_bytes <= LONGEST_BY_TWO or problem.op.is_backward:
        accesses = 2
    else:
        accesses = 3 if problem.dtype.itemsize == 2 else 6
    return threads_for(problem, accesses)
