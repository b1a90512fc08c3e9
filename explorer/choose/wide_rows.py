"""Rows of 8192 elements or more along memory: in two launches, or shared by a cluster's blocks."""

from collections.abc import Iterator
from dataclasses import replace

from explorer.choose.residency import cluster_of, read_twice, waves
from explorer.choose.wide_gradients import wide_gradient
from explorer.model.config import Config
from explorer.model.gpu_spec import GpuSpec
from explorer.model.problem import Problem
from explorer.model.work_split import WorkSplit
from explorer.space.design_rules import widest_vector
from explorer.space.rules import Point, has_working_registers

KIB = 1024

LEAST_PART, LEAST_PART_UNALIGNED = 1024, 1536
"""Elements of a row that are worth a block of a cluster; of unaligned 16-bit rows."""

LEAST_PART_BYTES = 5120
"""Bytes of a row that are worth a block where all rows are resident."""

SIZES = (128, 160, 192, 256, 320, 384, 512)
"""Threads of a cluster's block."""


def wide_row(problem: Problem, gpu: GpuSpec, *, may_split: bool) -> Config:
    """Return a kernel by two launches, if they may split rows, or by a cluster for each row."""
    if problem.operator.is_gradient:
        return wide_gradient(problem, gpu)
    too_wide = _numbers(problem) > gpu.cluster_blocks * 256 * 128
    few = may_split and problem.rows < gpu.sm_count
    if few and (too_wide or _gains_by_two_launches(problem, gpu)):
        return two_launches(problem, gpu)
    if too_wide:
        return read_twice(1024, gpu.cluster_blocks if problem.rows < gpu.sm_count else 1)
    idea = _forward(problem, gpu)
    packed = idea.min_blocks > 1 and problem.rows >= gpu.sm_count
    by_8_bytes = problem.dtype.is_half and widest_vector(problem) == 8 and problem.cols <= 65_536
    if not by_8_bytes or packed:
        return idea
    threads = 128 if idea.threads == 160 else idea.threads
    return replace(idea, vector_bytes=8, min_blocks=1, threads=threads, threads_per_row=threads)


def _numbers(problem: Problem) -> int:
    """Return the registers of a row, computed with."""
    return problem.cols * problem.dtype.arithmetic.itemsize // 4


def _gains_by_two_launches(problem: Problem, gpu: GpuSpec) -> bool:
    """Whether so few rows, which the L2 cache holds, are so wide that a cluster is too small."""
    if problem.rows * problem.row_bytes > 0.6 * gpu.l2_bytes:
        return False
    share = problem.rows * gpu.cluster_blocks / gpu.sm_count  # of the SMs that clusters have
    if problem.dtype.is_half:
        return share <= 2 and problem.row_bytes >= KIB * (384 if share <= 0.25 else 512)
    return problem.row_bytes >= KIB * max(400, 1056 * share)


def two_launches(problem: Problem, gpu: GpuSpec) -> Config:
    """Return a kernel whose launches read the rows' parts by all SMs: once each, and once more."""
    most = 4 if problem.dtype.is_half else 8
    unroll = next((u for u in (2, 4) if problem.row_bytes <= 256 * u * 4096), most)
    return replace(
        read_twice(256),
        unroll=unroll,
        reduction="shuffle-redux" if gpu.reduces_warps else "shuffle",
        launches="two-overlapped" if gpu.overlaps_launches else "two",
    )


def _forward(problem: Problem, gpu: GpuSpec) -> Config:
    """Return a kernel of few rows, of rows that are all resident, or of more."""
    packed = problem.dtype.is_half and problem.cols > 32_768
    return (
        _few_rows(problem, gpu)
        or _all_resident(problem, gpu, packed=packed)
        or (_packed(problem, gpu) if packed else _in_waves(problem, gpu))
    )


def _few_rows(problem: Problem, gpu: GpuSpec) -> Config | None:
    """Return a kernel of many blocks with few accesses each, if all are resident; None if not."""
    most, half, numbers = gpu.cluster_blocks, problem.dtype.is_half, _numbers(problem)
    blocks_of_all = problem.rows * most
    if blocks_of_all > (4 if numbers < most * 10_240 else 2) * gpu.sm_count:
        return None
    fewest = 4 * blocks_of_all <= 3 * gpu.sm_count
    large = numbers > most * 4096
    every = fewest or (large and (half or blocks_of_all > gpu.sm_count))
    blocks, vector = most if every else most // 2, 16
    ends = half and widest_vector(problem) < 8  # of a part, that are loaded once more
    while blocks > 1 and numbers < blocks * (LEAST_PART_UNALIGNED if ends else LEAST_PART):
        blocks //= 2
    part, edge = numbers / blocks, 15_360 if blocks == most else 10_240
    largest = 128 if part < 2048 else 256 if part < edge else 512
    if widest_vector(problem) == 8 and problem.dtype.itemsize <= 4:
        every = (fewest and problem.cols >= 1000 * most) or numbers > 9000 * most
        blocks, vector = most if every else most // 2, 8
        largest = 192 if problem.row_bytes <= 8 * 6 * 192 * blocks else largest
    idea = _of_few_threads(problem, cluster_of(blocks, largest, vector))
    return idea if waves(problem, idea, gpu) <= 1 else None


def _of_few_threads(problem: Problem, idea: Config) -> Config:
    """Return the idea with the fewest threads that have no more accesses each."""
    accesses = max(WorkSplit(problem, idea).slots, 6 if idea.vector_bytes == 8 else 1)
    smaller = (
        replace(idea, threads=threads, threads_per_row=threads)
        for threads in (128, 192, 256, 384)
        if threads < idea.threads
    )
    return next((c for c in smaller if WorkSplit(problem, c).slots <= accesses), idea)


def _all_resident(problem: Problem, gpu: GpuSpec, *, packed: bool) -> Config | None:
    """Return the kernel of the fewest accesses with which all rows are resident; None for more.

    Of several it keeps exponentials rather than packed pairs, and has the fewest blocks a row.
    """
    found = []
    for idea in _shapes(problem, gpu, packed=packed):
        split, alone = WorkSplit(problem, idea), idea.min_blocks == 1
        most_waves = 1.02 if split.aligned and alone else 1.0
        if not 1 < split.slots <= 72 // split.width or waves(problem, idea, gpu) > most_waves:
            continue
        if alone or has_working_registers(Point(problem, gpu, idea), idea.min_blocks):
            order = idea.cluster if alone else (8, 4, 2, 16).index(idea.cluster)
            found.append(((split.slots, not alone, order), idea))
    return min(found, key=lambda kernel: kernel[0])[1] if found else None


def _shapes(problem: Problem, gpu: GpuSpec, *, packed: bool) -> Iterator[Config]:
    """Yield clusters that keep exponentials, and such as keep packed pairs in bounded registers."""
    for blocks, largest in ((2, 256), (4, 256), (8, 512), (16, 384)):
        if blocks > gpu.cluster_blocks or problem.row_bytes < blocks * LEAST_PART_BYTES:
            continue
        yield from (cluster_of(blocks, threads) for threads in SIZES if threads <= largest)
        for threads in SIZES if packed else ():
            for held in (2, 3, 4, 6, 8):
                if threads * held <= 1152 or ((threads, held) == (160, 8) and blocks < 16):
                    yield cluster_of(blocks, threads, min_blocks=held, holds="input")


def _packed(problem: Problem, gpu: GpuSpec) -> Config:
    """Return a kernel of 16-bit rows that are kept in pairs, of as many threads as an SM holds."""
    log = problem.operator.is_log
    shapes = ((128, 4),) if log else ((128, 8), (160, 6), (160, 8), (192, 6), (192, 8), (256, 4))
    ideas = [
        cluster_of(blocks, threads, min_blocks=held, holds="input")
        for blocks in (2, 4, 8, 16)
        if blocks <= gpu.cluster_blocks
        for threads, held in shapes
    ]
    fitting = [
        idea
        for idea in ideas
        if has_working_registers(Point(problem, gpu, idea), idea.min_blocks)
        and (not log or WorkSplit(problem, idea).cached_registers <= 64)
    ]
    best = max(
        fitting,
        key=lambda c: (c.min_blocks / c.cluster * (c.threads * c.min_blocks) ** 1.5, -c.threads),
        default=cluster_of(gpu.cluster_blocks, 256, min_blocks=2, holds="input"),
    )
    return replace(best, vector_bytes=8) if best.threads >= 256 else best


def _in_waves(problem: Problem, gpu: GpuSpec) -> Config:
    """Return a kernel of the fewest threads a row that keep its share in their registers."""
    numbers = _numbers(problem)
    for blocks, threads, share in STEPS_16_BIT if problem.dtype.is_half else STEPS:
        blocks = min(blocks, gpu.cluster_blocks)
        few = problem.rows < gpu.sm_count and threads == SIZES[0]
        most = blocks * threads * share * (1.2 if few else 1)
        spills = problem.operator.is_log and (blocks, threads) == (16, 192)
        if numbers <= most and not spills:
            return cluster_of(blocks, threads)
    return cluster_of(gpu.cluster_blocks, 512)


WIDEST_STEPS = (
    (16, 192, 50),
    (16, 256, 50),
    (16, 384, 50),
    (16, 512, 64),
    (16, 128, 128),
    (16, 256, 128),
)
STEPS_16_BIT = ((2, 128, 52), (2, 256, 31), (4, 128, 55), (4, 256, 32), *WIDEST_STEPS)
STEPS = ((4, 128, 30), (8, 128, 44), (8, 256, 25), (16, 128, 50), *WIDEST_STEPS)
"""Blocks of a cluster, threads of a block, and the most elements of a thread: in that order."""
