"""Rows that a block, a warp or less has to itself, forward and gradients.

By the widest vectors that pay, a thread has the fewest accesses with which all rows are resident
together. Where no block size makes them resident, it is the largest block that keeps memory busy.
"""

import math
from dataclasses import replace

from explorer.choose.residency import (
    LATENCY_NS,
    blocks_of_an_sm,
    busy_ns,
    elements_of_an_sm,
    likely_registers,
    row_of,
    row_vectors,
    waves,
)
from explorer.choose.short_rows import FEW_WAVES
from explorer.model.config import WARPS, Config
from explorer.model.gpu_spec import WARP, GpuSpec
from explorer.model.problem import Mask, Problem, power_of_two
from explorer.space.design_rules import widest_vector

MANY_ROWS_OF_AN_SM = 11.3
LONGEST_ODD_16_BIT = 960
"""Elements of the longest 16-bit row that single elements divide and warps load by 8 bytes."""


def one_block(problem: Problem, gpu: GpuSpec) -> Config:
    """Return a kernel by which a block has one row or several."""
    vector, width = vector_bytes(problem, gpu), widest_vector(problem)
    number, half = row_vectors(problem, vector), problem.dtype.is_half
    grad = problem.operator.is_gradient
    if number <= WARP and width == 16:
        return row_of(power_of_two(number if grad else math.ceil(number / 2)), vector)
    if vector == width < 16 and not (half and vector == 8) and (grad or vector < 8):
        return _by_narrow_vectors(problem, gpu, vector, number)
    if half and width < 8 and vector == 8:
        return _unaligned_by_8_bytes(problem, gpu, number)
    return (
        _of_few_warps(problem, gpu, number)
        or _all_resident(problem, gpu, vector, range(1, 3))
        or _of_one_warp(problem, gpu, number)
        or _all_resident(problem, gpu, vector, range(3, 10))
        or _many_rows(problem, gpu, vector)
    )


def _fewest_threads(number: int, accesses: float) -> int:
    """Return the threads, in whole warps, that have at most so many of the accesses to a row."""
    return next((size for size in WARPS if size * accesses >= number), WARPS[-1])


def _fitting_threads(number: int) -> int:
    """Return the threads of about four accesses each, few of which are idle at the last one."""

    def misfit(threads: int) -> float:
        each = number / threads
        slots = math.ceil(each - 1 / 64)  # a last access by so few threads hardly counts
        return abs(math.log(each / 4)) + 3 * max(0, 1 - each / slots)

    return min((size for size in WARPS if size <= 224 or number > 1100), key=misfit)


def _many_rows(problem: Problem, gpu: GpuSpec, vector: int) -> Config:
    """Return a kernel for rows of more than a wave: a large block, or few accesses of a thread."""
    half, grad = problem.dtype.is_half, problem.operator.is_gradient
    number = row_vectors(problem, vector)
    if problem.mask is not Mask.NONE:
        return _masked(problem, vector, number)
    if half and widest_vector(problem) < 8:
        if problem.operator.is_log and problem.rows > 5 * gpu.sm_count:
            return row_of(_fewest_threads(row_vectors(problem, 8), 8), 8)
        return row_of(_fitting_threads(number), vector)
    if not half and not grad and problem.cols > LONGEST_NARROW_F32:
        vector = 16
    busy = _keeps_memory_busy(problem, gpu, vector)
    wave = gpu.sm_count * (gpu.threads_per_sm // busy.threads) * busy.rows_per_block
    if grad or problem.rows >= (4 if busy.threads <= 512 else 8) * wave:
        return busy
    return row_of(_fewest_threads(row_vectors(problem, vector), 4 * 16 / vector), vector)


def _masked(problem: Problem, vector: int, number: int) -> Config:
    """Return a kernel for many masked rows, whose lengths may differ."""
    causal, additive = problem.mask is Mask.CAUSAL, problem.mask is Mask.ADDITIVE
    if problem.dtype.is_half:
        accesses = 3.0 if additive else 5.5 if problem.cols < 4096 else 4.5
    elif causal and problem.cols < 4096:
        accesses = 8
    else:
        accesses = 2.6 if problem.row_bytes <= 4096 else 5.6
    if vector < 16:
        accesses *= 1.25
    return row_of(next((t for t in (8, 16, *WARPS) if t * accesses >= number), 1024), vector)


# ------------------------------------------------------------------ width of an access

LONGEST_NARROW_F32 = 1280
"""Elements of the longest f32 row that is loaded by the vectors that divide it."""


def vector_bytes(problem: Problem, gpu: GpuSpec) -> int:
    """Return the bytes of an access: the widest that divide rows, or wider unaligned ones."""
    width, size = widest_vector(problem), problem.dtype.itemsize
    if width == 16 or (size == 2 and width == 8):
        return width
    if problem.mask is not Mask.NONE and problem.cols > LONGEST_ODD_16_BIT:
        return 16
    if problem.operator.is_gradient:
        return _gradient_vector(problem, gpu, width)
    return _f32_vector(problem, gpu, width) if size >= 4 else _16_bit_vector(problem, gpu, width)


def _gradient_vector(problem: Problem, gpu: GpuSpec, width: int) -> int:
    """Return the bytes of an access of a gradient: its two matrices share no alignment."""
    size, cols, rows = problem.dtype.itemsize, problem.cols, problem.rows / gpu.sm_count
    pairs = (size, width) == (2, 4)
    most = 33_000 if pairs else 16_000
    if (size, width) == (2, 2) and cols > 1640:
        most = 10_000
    few = size <= 4 and elements_of_an_sm(problem, gpu) <= most and (pairs or cols <= 4096)
    if few or (pairs and cols <= 5120):
        return width
    if size == 2:
        if width == 2 and rows <= 1:
            return width if cols <= 7200 else 16
        return 8
    return width if width == 8 and rows <= 1 and cols <= 6500 else 16


def _f32_vector(problem: Problem, gpu: GpuSpec, width: int) -> int:
    """Return the bytes of an access to f32 or f64 rows that 16 bytes do not divide."""
    cols, rows = problem.cols, problem.rows / gpu.sm_count
    if rows > gpu.threads_per_sm / 32 and cols > 512:
        return 16
    if width == 8 and rows <= 5 and (problem.operator.is_log or cols <= 3100):
        return 8
    return width if cols <= (600 if rows <= 1 else LONGEST_NARROW_F32) else 16


def _16_bit_vector(problem: Problem, gpu: GpuSpec, width: int) -> int:
    """Return the bytes of an access to 16-bit rows that 8 bytes do not divide."""
    cols = problem.cols
    if cols >= 400 and elements_of_an_sm(problem, gpu) <= (4096 if width == 2 else 5600):
        return width
    many = problem.rows >= MANY_ROWS_OF_AN_SM * gpu.sm_count
    if width == 4 and cols <= (2100 if many else 1280):
        return 4
    return 8 if cols <= LONGEST_ODD_16_BIT else 16


def _by_narrow_vectors(problem: Problem, gpu: GpuSpec, vector: int, number: int) -> Config:
    """Return a kernel of blocks with few accesses a thread, or of a warp or two for many rows."""
    size, cols = problem.dtype.itemsize, problem.cols
    grad, rows = problem.operator.is_gradient, problem.rows / gpu.sm_count
    if not grad and size >= 4:
        warp = row_of(WARP, vector)
        by_warps = rows >= 11 and waves(problem, warp, gpu) <= 0.9
        return warp if by_warps else row_of(64 if cols <= 800 else 128, vector)
    if not grad and rows >= MANY_ROWS_OF_AN_SM:
        return row_of(WARP if cols <= 1280 else 64, vector)
    if size == 2 and vector == 4 and cols <= (608 if grad and rows <= 1 else 1024):
        return row_of(_few_warps(cols), vector)
    if grad:
        f32_log = problem.operator.is_log and size == 4
        single = vector == size and not f32_log and size < 8
        accesses = (
            16 if single else 4 if size == 8 or (size == 4 and problem.operator.is_log) else 6
        )
    else:
        if vector == 2:
            return row_of(128 if cols <= 1024 else 256, vector)
        accesses = 5
    least = 256 if grad and cols > (1300 if size == 2 < vector else 895) else 128
    sizes = (size for size in (128, 256, 384, 512, 768) if size >= least)
    return row_of(next((size for size in sizes if size * accesses >= number), 1024), vector)


def _unaligned_by_8_bytes(problem: Problem, gpu: GpuSpec, number: int) -> Config:
    """Return a kernel for unaligned 16-bit rows: three accesses of 8 bytes a thread, or more."""
    narrow = row_of(WARP, widest_vector(problem))
    if not problem.operator.is_gradient:
        return narrow if waves(problem, narrow, gpu) <= FEW_WAVES else row_of(WARP, 8)
    least = WARP if problem.cols > 255 else 16
    return row_of(next((t for t in (256, 128, 96, 64) if t * 2.8 <= number), least), 8)


# ------------------------------------------------------------------ size of a block


def _of_few_warps(problem: Problem, gpu: GpuSpec, number: int) -> Config | None:
    """Return a kernel for resident rows of up to 1024 elements; None for others.

    A warp has up to 16 elements a thread, which need no barrier; else a thread has one access.
    """
    half, grad, cols = problem.dtype.is_half, problem.operator.is_gradient, problem.cols
    width, warp = widest_vector(problem), row_of(WARP)
    if width == 8 and half and not grad and cols <= 1024:
        warp = row_of(_few_warps(cols), 8)
    elif width < 16 or cols > (1024 if half else 512):
        return None
    elif cols > 512:
        once = row_of(_fewest_threads(number, 1))
        if waves(problem, once, gpu) <= (1 if grad else FEW_WAVES):
            return once
        if problem.mask is not Mask.NONE:
            return None
    return warp if waves(problem, warp, gpu) <= 1 else None


def _of_one_warp(problem: Problem, gpu: GpuSpec, number: int) -> Config | None:
    """Return a kernel of a warp for each of some resident rows; None for others."""
    if problem.operator.is_gradient or problem.mask is not Mask.NONE or widest_vector(problem) < 16:
        return None
    warp = row_of(WARP)
    few = problem.cols <= 1600 and number <= 12 * WARP
    return warp if few and waves(problem, warp, gpu) <= 1 else None


def _few_warps(cols: int) -> int:
    """Return the threads of a row of up to 1024 elements, of 16 to 19 each."""
    return WARP if cols <= 608 else 64


def _all_resident(problem: Problem, gpu: GpuSpec, vector: int, tried: range) -> Config | None:
    """Return the kernel of the fewest accesses with which all rows are resident; None for more."""
    number = row_vectors(problem, vector)
    half, grad, log = problem.dtype.is_half, problem.operator.is_gradient, problem.operator.is_log
    whole = problem.row_bytes % 16 == 0
    largest = 512 if vector == 8 else 1024 if half or whole or vector < 8 else 768
    sizes = [size for size in WARPS if size <= largest]
    most = 8 if vector == 8 else 5 if half else 6 if grad and not whole else 4 if grad else 9
    few = problem.rows <= gpu.sm_count and (half or (grad and log and number > 512))
    large = (640 if grad and log else 256 if grad else 512) if whole else 384
    for accesses in tried:
        if not (1 if few else 2) <= accesses <= most:
            continue
        threads = next((t for t in sizes if t * accesses >= number), sizes[-1])
        if accesses == 1 and threads > large:
            continue
        idea = row_of(threads, vector)
        idea = replace(idea, algorithm="three-pass" if grad else "online-block-max")
        if half and whole and accesses == 2 and 2 * number <= 3 * threads:
            idea = replace(idea, vector_bytes=8)  # three of them leave fewer threads idle than two
        if waves(problem, idea, gpu) <= 1.0:
            return idea
    return None


def _keeps_memory_busy(problem: Problem, gpu: GpuSpec, vector: int) -> Config:
    """Return the largest block of which an SM's others load enough meanwhile, or nearly the most.

    Blocks of more than 128 registers a thread, and those that an SM holds alone, come last.
    """
    grad, number, kernels = problem.operator.is_gradient, row_vectors(problem, vector), []
    for threads in reversed(WARPS):
        if threads >= 2 * number or threads > (1024 if grad else 768):
            continue
        online = problem.cols >= 2000 and not grad
        idea = row_of(threads, vector)
        idea = replace(idea, algorithm="online-block-max" if online else "three-pass")
        light = likely_registers(problem, idea) <= 128
        several = blocks_of_an_sm(problem, idea, gpu) >= 2
        lasts_ns = busy_ns(problem, idea, gpu)
        if light and several and lasts_ns >= LATENCY_NS:
            return idea
        kernels.append((light, several, lasts_ns, idea))
    best = max(kernels, key=lambda kernel: kernel[:3])
    alike = (k for k in kernels if k[:2] == best[:2] and k[2] >= 0.9 * best[2])
    return next(idea for *_, idea in alike)
