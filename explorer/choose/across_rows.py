"""Rows over a middle axis: neighbouring threads load neighbouring rows, by tiles of them."""

import math
from dataclasses import replace
from typing import NamedTuple

from explorer.choose.residency import row_of, waves
from explorer.model.config import Config
from explorer.model.gpu_spec import GpuSpec
from explorer.model.problem import Problem, power_of_two

LONGEST_SHORT_COLUMN = 64
"""Elements of the longest row that a few threads of a block have."""

LONGEST_SMALL_TILE = 512
"""Elements of the longest row that threads of one block share where rows are few."""

SHORTEST_SHARED = 128
"""Elements of the shortest row that several blocks may share."""

TILE_THREADS = 256
"""Threads of a block of tiles."""

BUSY = 0.45
"""Share of the threads the GPU has room for that are enough to load memory."""


def across_rows(problem: Problem, gpu: GpuSpec) -> Config:
    """Return a kernel for rows over a middle axis."""
    if problem.dtype.itemsize <= 4:
        if problem.cols <= LONGEST_SHORT_COLUMN:
            return _short(problem, gpu)
        if problem.cols <= LONGEST_SMALL_TILE:
            idea = _small_tile(problem, gpu)
            if idea is not None:
                return idea
    if problem.cols >= SHORTEST_SHARED and gpu.cluster_blocks > 1:
        return _shared(problem, gpu)
    lanes = power_of_two(math.ceil(problem.row_bytes / 48))
    return row_of(min(1024, lanes), math.gcd(16, _bytes_side_by_side(problem)))


def _bytes_side_by_side(problem: Problem) -> int:
    return problem.inner * problem.dtype.itemsize


def _busy(problem: Problem, gpu: GpuSpec, vector: int, lanes: int) -> float:
    """Return the threads, so many a vector side by side, over those that the GPU has room for."""
    threads = problem.rows * problem.dtype.itemsize / vector * lanes
    return threads / (gpu.sm_count * gpu.threads_per_sm)


def _short(problem: Problem, gpu: GpuSpec) -> Config:
    """Return a kernel of wide vectors if rows are many; else of narrow ones and more threads."""
    size = problem.dtype.itemsize
    vector = math.gcd(16, _bytes_side_by_side(problem))
    lanes = 1 << max(0, round(math.log2(problem.row_bytes / 16)))
    if vector > size and _busy(problem, gpu, vector, lanes) >= 1 / 3:
        return row_of(lanes, vector)
    return _by_few_threads(problem, gpu, math.gcd(4, _bytes_side_by_side(problem)))


def _by_few_threads(problem: Problem, gpu: GpuSpec, vector: int) -> Config:
    """Return a kernel of few elements a thread, and of fewer where there is room for threads."""
    size, cols = problem.dtype.itemsize, problem.cols
    most: float = 7.5
    if problem.operator.is_gradient:
        most = 4 if size == 4 else 5 if cols > 8 else cols
    idea = row_of(power_of_two(math.ceil(cols / most)), vector)
    least = 2 if cols <= 32 else 4
    while cols >= 2 * least * idea.threads_per_row:
        more = replace(idea, threads_per_row=2 * idea.threads_per_row)
        if waves(problem, more, gpu) > 0.8:
            break
        idea = more
    return idea


# ------------------------------------------------------------------ small tiles


def _small_tile(problem: Problem, gpu: GpuSpec) -> Config | None:
    """Return a kernel by which a block keeps few rows side by side; None for many longer rows."""
    size, longer = problem.dtype.itemsize, problem.cols >= SHORTEST_SHARED
    widest = 16 if longer and size == 4 else 8
    vector = math.gcd(widest, _bytes_side_by_side(problem))
    if longer:
        keeps_exp = problem.operator.allows("cache_holds", "exp") and vector == widest
        return _longer_tile(problem, gpu, vector) if keeps_exp else None
    if vector == size:
        if problem.dtype.itemsize == 4:
            return replace(row_of(16, 4), threads=TILE_THREADS)
        return row_of(power_of_two(math.ceil(problem.cols / 12)), 2)
    lanes = next((n for n in (8, 16) if _busy(problem, gpu, vector, n) >= BUSY), 32)
    if size == 4 and lanes == 8:
        return None
    return replace(row_of(lanes, vector), threads=TILE_THREADS if lanes == 32 else 128)


def _longer_tile(problem: Problem, gpu: GpuSpec, vector: int) -> Config | None:
    """Return a kernel of rows in 128, 64 or 32 bytes side by side, the fewer rows there are."""
    half = problem.dtype.is_half
    lanes = 32 if half else 64
    if half and problem.cols <= 160:
        lanes = 16 if _busy(problem, gpu, vector, 16) >= BUSY else lanes
    elif _busy(problem, gpu, vector, lanes) >= BUSY:
        return None
    if _busy(problem, gpu, vector, lanes) < TILE_THREADS / gpu.threads_per_sm:
        lanes = 64
    idea = replace(row_of(lanes, vector), threads=TILE_THREADS, min_blocks=4)
    if half:
        return replace(idea, cache_holds="input")
    return replace(idea, algorithm="online-block-max")


# ------------------------------------------------------------------ tiles that blocks share


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
"""Tiles for elements of so many bytes, the fastest first."""


def _shared(problem: Problem, gpu: GpuSpec) -> Config:
    """Return a kernel of the first tile that a cluster keeps; what none keeps is read twice."""
    size, grad = problem.dtype.itemsize, problem.operator.is_gradient
    vector = math.gcd(16, _bytes_side_by_side(problem))
    vectors = problem.cols * (2 if grad else 1)
    for tile in TILES[size]:
        side_by_side = power_of_two(math.ceil(_bytes_side_by_side(problem) / vector))
        groups = min(tile.bytes // vector, side_by_side)
        lanes = min(TILE_THREADS // groups, 1 << problem.cols.bit_length() - 1)
        part = lanes * (4 * tile.kept // max(4, vector))
        most = min(tile.most_blocks, gpu.cluster_blocks)
        if vectors <= most * part:
            break
    more = grad or (problem.operator.is_log and problem.dtype.is_half)
    idea = replace(
        row_of(lanes, vector),
        algorithm="online-block-max",
        threads=lanes * groups,
        min_blocks=min(tile.min_blocks, 3) if more else tile.min_blocks,
    )
    blocks = next((b for b in (1, 2, 4, 8) if vectors <= b * part), most)
    if blocks > most or vectors > most * part:
        return _read_twice(problem, gpu, idea, groups)
    if problem.dtype.is_half:
        idea = replace(idea, algorithm="three-pass", cache_holds="input")
    return replace(idea, cluster=blocks, exchange="mbarrier") if blocks > 1 else idea


def _read_twice(problem: Problem, gpu: GpuSpec, idea: Config, groups: int) -> Config:
    """Return a kernel of many threads, whose sums are short; of clusters where tiles are few."""
    threads = 512 if problem.dtype.in_double else 1024  # doubles take twice the registers
    idea = replace(idea, threads=threads, threads_per_row=threads // groups, min_blocks=1)
    idea = replace(idea, cache="none", cache_holds="input", unroll=4)
    tiles = problem.rows // (groups * (idea.vector_bytes // problem.dtype.itemsize))
    if tiles >= gpu.sm_count:
        return idea
    return replace(idea, cluster=min(8, gpu.cluster_blocks), exchange="mbarrier")


# ------------------------------------------------------------------ rows with targets

ROWS_TOGETHER = 4
"""Most neighbouring rows of a thread, each of which has a target, a maximum and a sum of its own:
with eight, kernels take half as many registers again, and fewer threads load."""

MOST_NUMBERS = 40
"""Elements of its rows that a thread keeps, which then has 80 to 130 registers."""

MOST_LANES = 128
"""Most threads of a row: each block has rows side by side that fill lines of memory."""

LOADS_IN_FLIGHT = 4
"""Most loads of a thread in flight: 16777216 x 19 bf16, inner 2097152, take 238 us so, and 293 with
eight."""

LONGEST_READ_TWICE = 32
"""Elements of the longest row that is read again for its gradient, from the caches, instead of
kept: 16777216 x 19 bf16, inner 2097152, take 491 us so, and 590 where two threads keep a row."""


def with_targets(problem: Problem, gpu: GpuSpec) -> Config:
    """Return a kernel whose threads read their rows once, some elements in flight at a time.

    Rows whose gradient is stored besides their loss are kept, or read twice if they are short or if
    no block can keep them.
    """
    size, cols = problem.dtype.itemsize, problem.cols
    vector = math.gcd(16, ROWS_TOGETHER * size, _bytes_side_by_side(problem))
    keeps = problem.operator.reduces and problem.fills_rows and cols > LONGEST_READ_TWICE
    lanes = 1
    while 2 * lanes * LOADS_IN_FLIGHT <= cols and lanes < MOST_LANES:
        if _busy(problem, gpu, vector, lanes) >= BUSY:
            break
        lanes *= 2
    needed = power_of_two(math.ceil(cols * (vector // size) / MOST_NUMBERS))
    keeps = keeps and needed <= MOST_LANES
    lanes = max(lanes, needed) if keeps else lanes
    threads = max(128, min(1024, 8 * lanes))
    idea = replace(row_of(lanes, vector), threads=threads, cache_holds="input")
    idea = replace(idea, algorithm="online-block-max")
    if keeps:
        return idea
    unroll = min(LOADS_IN_FLIGHT, 1 << (cols // lanes).bit_length() - 1)
    return replace(idea, cache="none", unroll=unroll)
