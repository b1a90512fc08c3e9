"""Rows of up to 400 elements: a few accesses of each thread, or a tile staged in shared memory."""

import math
from dataclasses import replace

from explorer.choose.residency import row_of, waves
from explorer.model.config import Config
from explorer.model.gpu_spec import WARP, GpuSpec
from explorer.model.problem import Problem, power_of_two
from explorer.space.design_rules import has_spans, widest_vector

LONGEST_SHORT_ROW = 400
"""Elements."""

SHORT_ALIGNED_ROW_BYTES = 2048
"""Bytes of a row of whole 16-byte vectors from which it is worth a warp or a block."""

FEW_WAVES = 0.6
"""Waves of blocks up to which the time of one row counts, not the bandwidth."""

FEW_WAVES_UNEVEN, FEW_WAVES_GRADIENT = 0.35, 0.125


def short_row(problem: Problem, gpu: GpuSpec) -> Config | None:
    """Return a kernel for short rows; None for longer ones, and for those worth a warp or more."""
    width = widest_vector(problem)
    if problem.cols > LONGEST_SHORT_ROW or (
        width == 16 and problem.row_bytes >= SHORT_ALIGNED_ROW_BYTES
    ):
        return None
    if problem.operator.is_gradient:
        return _gradient(problem, gpu, width)
    few = _of_few_accesses(problem, gpu, width)
    uneven = problem.dtype.itemsize == 4 and problem.cols > 64 and problem.cols % WARP > 0
    if waves(problem, few, gpu) <= (FEW_WAVES_UNEVEN if uneven else FEW_WAVES):
        return few
    if problem.dtype.is_half:
        return _of_16_bits(problem, gpu, width)
    if uneven and has_spans(problem):
        return _long_f32(problem, gpu, width)
    if width == 16 or problem.cols <= 8:
        return _direct(problem, width) if problem.cols <= 80 or width < 16 else None
    lanes = 1 if problem.cols < 24 else 2 if problem.cols <= 48 else _lanes(problem.cols, 10)
    return _tile_or_direct(problem, gpu, _tile(64 if lanes <= 2 else 128, lanes))


def _lanes(number: float, each: float) -> int:
    """Return the threads, a power of two within a warp, that have so many of a number each."""
    return min(WARP, power_of_two(math.ceil(number / each)))


def _of_few_accesses(problem: Problem, gpu: GpuSpec, width: int) -> Config:
    """Return the kernel of the lowest latency: two to five accesses of each thread."""
    size, half = problem.dtype.itemsize, problem.dtype.is_half
    vector = max(size, min(width, 8))
    each: float = 5 if vector == size else 4
    if vector == 8:
        each = 2.7 if half and problem.rows > gpu.sm_count else 2
    number = math.ceil(problem.row_bytes / vector)
    return row_of(_lanes(number, each) if problem.cols > 3 else 1, vector)


def _direct(problem: Problem, width: int) -> Config:
    """Return a kernel of two or three accesses of 16 bytes a thread, or four to eight narrow."""
    number = math.ceil(problem.row_bytes / width)
    if width == problem.dtype.itemsize:
        each: float = 6
    else:
        each = {16: 3 if problem.cols > 64 else 2.4, 8: 4.75, 4: 8}[width]
    idea = row_of(_lanes(number, each), width)
    if problem.dtype.itemsize == 4 and width == 16 and problem.cols <= WARP:
        return replace(idea, cache_holds="input")
    if idea.threads_per_row == 1 and problem.row_bytes * idea.threads < 1024:
        return replace(idea, threads=2 * idea.threads)
    return idea


# ------------------------------------------------------------------ staged tiles
# A block loads its rows as one tile by 16-byte vectors, wherever each of them starts.


def _tile(threads: int, lanes: int) -> Config:
    return Config(threads=threads, threads_per_row=lanes, exp="ex2.approx", staging="span")


def _lanes_of_a_16_bit_tile(cols: int) -> int:
    """Return the threads of a row that meet few conflicts of shared memory's banks."""
    return 1 if cols <= 56 else 2 if cols <= 68 else 4 if cols <= 110 else 8


def _tile_or_direct(problem: Problem, gpu: GpuSpec, tile: Config) -> Config:
    """Return a kernel of staged tiles if rows fill enough of the GPU, else one of direct loads."""
    size, half = problem.dtype.itemsize, problem.dtype.is_half
    share = {1: 6, 2: 3, 4: 6}.get(tile.threads_per_row, 2) if half else 4
    blocks = gpu.sm_count * min(gpu.blocks_per_sm, gpu.threads_per_sm // tile.threads)
    staged = has_spans(problem)
    if staged and share * problem.rows >= tile.rows_per_block * blocks:
        return tile
    if half and staged:
        return row_of(_lanes(problem.cols, 7 if problem.cols <= 64 else 8), size)
    if staged or half:
        return row_of(_lanes(problem.cols, 8), size if staged else min(widest_vector(problem), 4))
    return _direct(problem, widest_vector(problem))


def _long_f32(problem: Problem, gpu: GpuSpec, width: int) -> Config:
    """Return a kernel for f32 rows of 65 elements or more that a warp does not divide."""
    share = problem.rows * 16 / (gpu.sm_count * gpu.threads_per_sm)
    in_shared = problem.rows * problem.row_bytes / (gpu.sm_count * gpu.shared_per_sm_bytes)
    if share <= (0.9 if problem.cols <= 100 else 0.62) and in_shared <= 0.37:
        return row_of(16 if problem.cols <= 320 else WARP, width)
    few = share <= (4 if problem.cols <= 300 else 1)
    lanes = 8 if problem.cols <= 100 else 16 if few else _lanes(problem.cols, 10)
    return _tile(64 if share <= 0.8 else 128, lanes)


def _of_16_bits(problem: Problem, gpu: GpuSpec, width: int) -> Config:
    """Return a kernel for many 16-bit rows."""
    cols = problem.cols
    if width >= 8 or cols <= 8:
        return _direct(problem, width)
    direct = _direct(problem, width)
    if width == 4 and not 32 < cols <= 64:
        return direct
    most = 1.0 if direct.threads_per_row >= 8 else FEW_WAVES
    if waves(problem, direct, gpu) <= most:
        return direct
    if cols > 340:
        return row_of(16, 8)
    lanes = _lanes_of_a_16_bit_tile(cols)
    if lanes == 8 and cols <= 120 and waves(problem, _tile(64, 4), gpu) > 2:
        lanes = 4
    tile = _tile(64 if lanes > 2 or cols < 24 else 32, lanes)
    if cols in (15, 17) and not problem.operator.is_log:  # three passes take too many registers
        tile = replace(tile, algorithm="online-block-max")
    return _tile_or_direct(problem, gpu, tile)


# ------------------------------------------------------------------ gradients

LONGEST_SHORT_GRADIENT = 400
"""Elements of a row of which a gradient has less than a block."""


def _gradient(problem: Problem, gpu: GpuSpec, width: int) -> Config | None:
    """Return a kernel for a gradient of short rows."""
    size, half, cols = problem.dtype.itemsize, problem.dtype.is_half, problem.cols
    vector = min(width, 2 * size)
    number = math.ceil(problem.row_bytes / vector)
    few = row_of(_lanes(number, 2.5 if number <= 10 else 2) if cols > 3 else 1, vector)
    if number <= 80 and waves(problem, few, gpu) <= FEW_WAVES_GRADIENT:
        return None if half and width == 2 and cols >= 200 else few
    if width >= 8:
        number = math.ceil(problem.row_bytes / 8)
        few = row_of(_lanes(number, 2), 8)
        if number <= 3 * WARP and waves(problem, few, gpu) <= FEW_WAVES:
            return few
    if width == 16 or cols > LONGEST_SHORT_GRADIENT:
        return None
    if cols > (160 if half else 80) or (half and width == 8):
        warp = row_of(WARP, width)
        if half and width < 8 and waves(problem, warp, gpu) > FEW_WAVES:
            lanes = 16 if cols <= 255 else WARP
            return row_of(lanes, 8 if width == 2 else 4)
        return _direct(problem, width) if width == 8 else warp
    return _gradient_tile(problem, gpu, width) or _direct_gradient(problem, width)


def _gradient_tile(problem: Problem, gpu: GpuSpec, width: int) -> Config | None:
    """Return a kernel of staged tiles for many of the shortest rows; None for others."""
    half, log, cols = problem.dtype.is_half, problem.operator.is_log, problem.cols
    pairs = half and width == 4
    if not has_spans(problem) or problem.dtype.itemsize == 8:
        return None
    if pairs and not (log and 10 < cols <= 24):
        return None
    many = problem.bytes > (0.5 if half else 2.0) * gpu.l2_bytes
    lanes = _lanes_of_a_16_bit_tile(cols) if half else 4 if cols >= 15 and not many else 2
    shortest = 6 <= cols <= 56 if half else cols <= (40 if log else 16) and (log or width == 4)
    threads = problem.rows * lanes / (gpu.sm_count * gpu.threads_per_sm)
    enough = threads >= (0.3 if half else 0.5) and problem.bytes > 0.08 * gpu.l2_bytes
    if (many and (half or cols <= 40)) or (shortest and enough):
        return _tile((64 if lanes > 2 or cols < 24 else 32) if half else 128, lanes)
    return None


def _direct_gradient(problem: Problem, width: int) -> Config:
    """Return a kernel of two or three accesses a thread."""
    size, half, log = problem.dtype.itemsize, problem.dtype.is_half, problem.operator.is_log
    pairs = half and width == 4
    vector = width if pairs or log else size
    number = math.ceil(problem.row_bytes / vector)
    if log and not pairs:  # three to eight elements a thread, and few threads that compute nothing
        most = 8 * size // vector
        sizes = [t for t in (1, 2, 4, 8, 16, 32) if 3 <= math.ceil(number / t) <= most]
        filled = max(sizes, key=lambda t: (number / t / math.ceil(number / t), t), default=1)
        return row_of(filled, vector)
    each = (number if number <= 5 else 2) if pairs else 2.5 if half else 2
    return row_of(min(WARP, 1 << max(1, int(number / each)).bit_length() - 1), vector)
