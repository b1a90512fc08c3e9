"""Configs without a search for rows over a middle axis: what two GPUs say of each regime."""

import math
from dataclasses import replace
from typing import NamedTuple

from explorer.model.config import Config
from explorer.model.dtype import DType
from explorer.model.gpu_spec import GpuSpec
from explorer.model.problem import Op, Problem, power_of_two
from explorer.space.heuristic.residency import resident_threads, waves
from explorer.space.heuristic.row_threads import MIN_BLOCK_THREADS, row_of, threads_for
from explorer.space.heuristic.wide_rows import fewest_blocks

TILE_THREADS = 256
"""Threads of a block."""

MAX_ROWS_OF_A_TILE = 128
"""Rows side by side that a block works on, at most: 16-bit elements of 256 bytes."""

MAX_COLS_FEW_ELEMENTS = 64
"""Elements of the longest row over a middle axis that a few threads of a block have."""

MIN_SHARE_OF_THREADS_WIDE_WORDS = 1 / 3
"""Threads over those that the GPU has room for, from which words of up to 16 bytes are worth it,
which hold elements of several rows: narrower ones have more threads. On an H100, 25600 x 16 f32, of
64 rows side by side, takes 21 % less time by single elements than by words of 16 bytes, by which
only a tenth of the threads that the GPU has room for are in use, on an H200 13 % less; 102400 x 16
takes 4 % more on an H100."""

NARROW_WORD = 4
"""Bytes of a word where rows are too few for wide words. On an H200, 51200 x 32 bf16, of 256 rows
side by side, takes 15 % less time by pairs than by single elements, 12800 x 48 4 %. On an H100,
pairs were not timed."""

MAX_ELEMENTS_PER_THREAD = 7.5
"""Elements of a row that a thread takes by narrow words, at most. On an H200, 50001 x 24 f32 takes
13 % less time by 4 threads than by 8, and 30006 x 48 10 % less by 8 than by 16; on an H100 5 and
7 % less."""

MAX_ELEMENTS_PER_THREAD_GRADIENT = {2: 5, 4: 4}
"""The same of gradients, by the bytes of an element. On an H100, 100100 x 20 bf16 takes 13 % less
time by 4 threads than by 2, 50001 x 24 f32 12 % less by 8 than by 4, without hints."""

MAX_COLS_ONE_THREAD_GRADIENT = 8
"""Elements of the longest 16-bit row of a gradient that one thread has: on an H200, 300200 x 8 bf16
takes 11 % more time by two, on an H100 3 %."""

MAX_COLS_TWO_ELEMENTS = 32
"""Elements of the longest row of which a thread takes two at least where rows are few, so that more
threads have them; of longer ones it takes four: 12800 x 48 bf16 takes 4 % more time on an H200 by
16 threads than by 8."""

MAX_WAVES_MORE_THREADS = 0.8
"""Waves of blocks, at most, for more threads to have a row. On an H200, 25600 x 16 f32 takes 5 %
less time by 8 threads than by 4, with 0.8 waves; 65536 x 16 bf16 5 % more by 8 threads than by 4,
which load pairs, with 1."""


MAX_COLS_BY_SMALL_TILES = 512
"""Elements of the longest row over a middle axis that the threads of one block share, if rows are
few: a thread keeps 16 elements of each of its rows at most."""

MIN_COLS_OF_TILES = 128
"""Elements of the shortest row over a middle axis for tiles that several blocks may share."""

MAX_COLS_ONE_BLOCK_16_BIT = 160
"""Elements of the longest 16-bit row of MIN_COLS_OF_TILES elements or more that has one block even
if rows are not few: on an H200, 65536 x 150 bf16, of 16384 rows side by side, takes 7 % less time
by one block and words of 8 bytes than by two and words of 16, on an H100 2 %."""

WORD, WORD_LONGER_F32 = 8, 16
"""Bytes of a word, at most, by which rows are loaded that have small tiles, and the same of f32
rows of MIN_COLS_OF_TILES elements or more. On an H200, 2048 x 300 bf16 takes 22 % less time by
words of 8 bytes than by words of 16, on an H100 21 %."""

THREADS_OF_A_SHORTER_ROW = (8, 16, 32)
"""Threads that rows of up to MIN_COLS_OF_TILES elements may have: the fewest with which the threads
of all rows are MIN_SHARE_OF_THREADS_TILES of those that the GPU has room for, or else the most."""

MIN_SHARE_OF_THREADS_TILES = 0.45
"""Share of the GPU's threads that rows are to give work to. On an H200, 12800 x 96 bf16 takes 46 %
less time by 32 threads a row than by 4 and words of 16 bytes, its gradient 69 %, 16384 x 80 f32
23 % less by 16 than by 8, and 131072 x 80 f16, of which 8 are enough, 30 %; on an H100 48, 65, 14
and 23 %. On the H200, 32768 x 96 bf16 of log_softmax takes 23 % less by 16 threads, of which a
block has 128, than by 32 of 256. Of longer rows, 4096 x 512 f32 takes 20 % less by 64 threads of
one block than by 16 of each of four, 8192 x 200 f16 28 % less by 32 than by 16 of each of two, on
an H100 15 and 29 %."""

MAX_ELEMENTS_PER_THREAD_16_BIT_ODD, THREADS_OF_ODD_F32 = 12, 16
"""Elements of a shorter 16-bit row that a thread has, at most, where only single elements divide
what lies side by side, and the threads of such an f32 row. On an H200, 20020 x 96 bf16, of 13 rows
side by side, takes 21 % less time by 8 threads than by 4, 20020 x 120 8 % less by 16 than by 8,
13013 x 72 f32 4 % less by 16 than by 8, on an H100 22, 7 and 4 %."""


class Tile(NamedTuple):
    """Rows side by side that the blocks of a cluster keep."""

    bytes: int
    """Bytes of memory side by side."""
    kept: int
    """Registers in which a thread keeps its share."""
    min_blocks: int
    """Blocks that an SM holds then."""
    most_blocks: int
    """Blocks of the largest cluster that is worth it."""


TILES = {
    8: (Tile(64, 32, 3, 4), Tile(64, 64, 2, 16)),
    4: (Tile(256, 32, 4, 8), Tile(256, 64, 2, 16), Tile(128, 64, 2, 16), Tile(64, 64, 2, 16)),
    2: (Tile(256, 32, 4, 8), Tile(128, 32, 4, 16), Tile(64, 32, 4, 16), Tile(64, 64, 2, 16)),
}
"""Tiles for elements of so many bytes, the fastest first.

On an H200, in f32, axis 0 of 1024 x 32768 comes to 92 % of copy, 2048 x 16384 to 88 %, 4096 x 8192
to 85 %, 8192 x 4096 to 81 %, 16384 x 2048 to 70 %; of twice as wide matrices in bf16 the first four
to 86, 82, 79 and 73 %.
"""


def enough_rows(gpu: GpuSpec) -> int:
    """Return a number of rows over a middle axis from which more of them change no choice.

    A row of few elements has a thread at least, and the widest words hold eight rows.
    """
    return gpu.sm_count * max(MAX_ROWS_OF_A_TILE, 8 * gpu.threads_per_sm)


def of_few_elements(problem: Problem, gpu: GpuSpec) -> Config | None:
    """A config for rows of few elements over a middle axis; None for longer ones, and for f64.

    Threads side by side have rows that lie side by side: by wide words if these are many.
    """
    if problem.cols > MAX_COLS_FEW_ELEMENTS or problem.dtype.itemsize > 4:
        return None
    side_by_side = problem.inner * problem.dtype.itemsize
    word = math.gcd(16, side_by_side)
    if word > problem.dtype.itemsize:
        wide = replace(row_of(threads_for(problem, 1)), vector_bytes=word)
        threads = _threads_of_all_rows(problem, word, wide.threads_per_row)
        if threads >= MIN_SHARE_OF_THREADS_WIDE_WORDS * resident_threads(gpu):
            return wide
    return _by_few_threads(problem, gpu, math.gcd(NARROW_WORD, side_by_side))


def _by_few_threads(problem: Problem, gpu: GpuSpec, word: int) -> Config:
    """Few elements for each thread, and fewer where rows are so few that there is room for more."""
    size, cols = problem.dtype.itemsize, problem.cols
    share: float = MAX_ELEMENTS_PER_THREAD
    if problem.op.is_backward:
        alone = size == 2 and cols <= MAX_COLS_ONE_THREAD_GRADIENT
        share = cols if alone else MAX_ELEMENTS_PER_THREAD_GRADIENT[size]
    idea = replace(row_of(power_of_two(math.ceil(cols / share))), vector_bytes=word)
    least = 2 if cols <= MAX_COLS_TWO_ELEMENTS else 4
    while cols >= 2 * least * idea.threads_per_row:
        more = replace(idea, threads_per_row=2 * idea.threads_per_row)
        if waves(problem, more, gpu) > MAX_WAVES_MORE_THREADS:
            break
        idea = more
    return idea


def of_small_tiles(problem: Problem, gpu: GpuSpec) -> Config | None:
    """A config for rows of some elements over a middle axis, of which blocks keep few side by side.

    None for f64, for longer rows, for many rows that `of_middle_axis` suits, and for what was not
    timed: gradients and log_softmax of MIN_COLS_OF_TILES elements or more.
    """
    longer = problem.cols >= MIN_COLS_OF_TILES
    size, untimed = problem.dtype.itemsize, longer and problem.op is not Op.SOFTMAX
    is_short = MAX_COLS_FEW_ELEMENTS < problem.cols <= MAX_COLS_BY_SMALL_TILES
    if size > 4 or not is_short or untimed:
        return None
    widest = WORD_LONGER_F32 if longer and size == 4 else WORD
    word = math.gcd(widest, problem.inner * size)
    if longer:
        return _of_longer_rows(problem, gpu, word) if word == widest else None
    if word == size:
        return _of_single_elements(problem)
    fewest, *_, most = THREADS_OF_A_SHORTER_ROW
    enough = (n for n in THREADS_OF_A_SHORTER_ROW if _are_enough(problem, gpu, word, n))
    lanes = next(enough, most)
    if size == 4 and lanes == fewest:
        return None
    return replace(
        row_of(lanes),
        threads=TILE_THREADS if lanes == most else MIN_BLOCK_THREADS,
        vector_bytes=word,
    )


def _of_single_elements(problem: Problem) -> Config:
    """Rows of which each thread loads single elements."""
    if problem.dtype is DType.F32:
        return replace(row_of(THREADS_OF_ODD_F32), threads=TILE_THREADS, vector_bytes=4)
    lanes = power_of_two(math.ceil(problem.cols / MAX_ELEMENTS_PER_THREAD_16_BIT_ODD))
    return replace(row_of(lanes), vector_bytes=2)


def _of_longer_rows(problem: Problem, gpu: GpuSpec, word: int) -> Config | None:
    """One block for some rows; None for many of more elements.

    A block has rows in 128, 64 or 32 bytes side by side, the fewer rows there are.
    """
    halves = problem.dtype.is_half
    lanes = 32 if halves else 64
    if halves and problem.cols <= MAX_COLS_ONE_BLOCK_16_BIT:
        lanes = 16 if _are_enough(problem, gpu, word, 16) else lanes
    elif _are_enough(problem, gpu, word, lanes):
        return None
    if _threads_of_all_rows(problem, word, lanes) < gpu.sm_count * TILE_THREADS:
        lanes = 64
    idea = replace(row_of(lanes), threads=TILE_THREADS, vector_bytes=word, min_blocks=4)
    if halves:
        return replace(idea, cache_holds="input")
    return replace(idea, algorithm="online-block-max")


def _are_enough(problem: Problem, gpu: GpuSpec, word: int, lanes: int) -> bool:
    """Whether so many threads for each word side by side give the GPU work."""
    threads = _threads_of_all_rows(problem, word, lanes)
    return threads >= MIN_SHARE_OF_THREADS_TILES * resident_threads(gpu)


def _threads_of_all_rows(problem: Problem, word: int, lanes: int) -> float:
    """Return the threads of all rows, so many for each word of so many bytes side by side."""
    return problem.rows * problem.dtype.itemsize / word * lanes


def of_middle_axis(problem: Problem, gpu: GpuSpec) -> Config:
    """A config, legal or not, for rows that several blocks share: what they cannot keep is read
    twice.
    """
    vector_bytes = math.gcd(16, problem.inner * problem.dtype.itemsize)
    # Vectors that hold an element of a row each, of all matrices that are kept.
    vectors = problem.cols * (2 if problem.op.is_backward else 1)
    for tile in TILES[problem.dtype.itemsize]:
        groups = _groups(problem, tile, vector_bytes)
        lanes = min(TILE_THREADS // groups, 1 << problem.cols.bit_length() - 1)
        part = lanes * (4 * tile.kept // max(4, vector_bytes))
        most = min(tile.most_blocks, gpu.cluster_blocks)
        if vectors <= most * part:
            break
    idea = Config(
        algorithm="online-block-max",
        threads=lanes * groups,
        threads_per_row=lanes,
        vector_bytes=vector_bytes,
        exp="ex2.approx",
        min_blocks=min(tile.min_blocks, 3) if _needs_registers(problem) else tile.min_blocks,
    )
    blocks = fewest_blocks(vectors, part, least=1, most=most)
    if vectors > blocks * part:
        return _read_twice(problem, gpu, idea, groups)
    if problem.dtype.is_half:
        idea = replace(idea, algorithm="three-pass", cache_holds="input")
    return replace(idea, cluster=blocks, exchange="mbarrier") if blocks > 1 else idea


def _read_twice(problem: Problem, gpu: GpuSpec, idea: Config, groups: int) -> Config:
    """By many threads, whose sums one by one are short; by several blocks where tiles are few."""
    threads = 512 if problem.dtype is DType.F64 else 1024  # doubles take twice the registers
    looped = replace(idea, threads=threads, threads_per_row=threads // groups, min_blocks=1)
    looped = replace(looped, cache="none", cache_holds="input", unroll=4)
    tiles = problem.rows // (groups * (idea.vector_bytes // problem.dtype.itemsize))
    if tiles >= gpu.sm_count:
        return looped
    return replace(looped, cluster=min(8, gpu.cluster_blocks), exchange="mbarrier")


def _needs_registers(problem: Problem) -> bool:
    """Whether more are in use than what is kept and what a softmax takes."""
    return problem.op.is_backward or (problem.op.is_log and problem.dtype.is_half)


def _groups(problem: Problem, tile: Tile, vector_bytes: int) -> int:
    """Vectors side by side, a power of two: no more than lie so."""
    vectors = -(-problem.inner * problem.dtype.itemsize // vector_bytes)
    return min(tile.bytes // vector_bytes, power_of_two(vectors))
