"""How many blocks and rows of a kernel an SM and a GPU hold at once, before it is compiled."""

import math
from dataclasses import replace

from explorer.model.config import Config
from explorer.model.gpu_spec import GpuSpec, occupancy, registers_left, with_residency
from explorer.model.outcome import Resources
from explorer.model.problem import Problem
from explorer.model.work_split import WorkSplit

LEAST_BLOCK_THREADS = 128
"""Threads of a block that has several rows."""

UNKNOWN_GBPS_OF_AN_SM = 4800 / 132
"""Memory bandwidth, in GB/s for each SM, that is assumed where it is unknown: an H200's."""


def row_of(threads: int, vector_bytes: int = 16) -> Config:
    """Return a kernel that gives each row so many threads; rows of less than a block share one."""
    whole = LEAST_BLOCK_THREADS % threads == 0
    return Config(
        threads=LEAST_BLOCK_THREADS if whole else threads,
        threads_per_row=threads,
        vector_bytes=vector_bytes,
        exp="ex2.approx",
    )


def cluster_of(
    blocks: int, threads: int, vector_bytes: int = 16, min_blocks: int = 1, holds: str = "exp"
) -> Config:
    """Return a kernel that gives each row so many blocks, of so many threads each."""
    return replace(
        row_of(threads, vector_bytes),
        algorithm="online-block-max",
        cluster=blocks,
        exchange="mbarrier" if blocks > 1 else "barrier",
        min_blocks=min_blocks,
        cache_holds=holds,
    )


def read_twice(threads: int, blocks: int = 1, cache: str = "none") -> Config:
    """Return a kernel for rows that registers do not hold: read twice, or kept in shared memory."""
    return replace(cluster_of(blocks, threads, holds="input"), cache=cache, unroll=4)


def row_vectors(problem: Problem, vector_bytes: int) -> int:
    """Return the accesses of so many bytes that cover a row, wherever it starts."""
    return WorkSplit(problem, Config(vector_bytes=vector_bytes)).row_vectors


def elements_of_an_sm(problem: Problem, gpu: GpuSpec) -> int:
    """Return the elements of the rows that the busiest SM has."""
    return problem.cols * math.ceil(problem.rows / gpu.sm_count)


def likely_registers(problem: Problem, config: Config) -> int:
    """Return a guess of a thread's registers: what it keeps, and what it computes with.

    NVRTC 13.0 allots as many for 7 of 10 kernels on sm_90, and within a multiple of 8 for 96 %.
    """
    size, split = problem.dtype.itemsize, WorkSplit(problem, config)
    kept = 0
    if config.cache == "registers":
        each = max(1, problem.dtype.arithmetic.itemsize // 4) * split.cached_matrices
        kept = split.slots * split.width * each
    if not problem.fills_rows and config.staging == "direct" and config.cluster == 1:
        return math.ceil(kept * (0.75 if size == 2 else 1)) + (20 if size == 8 else 12)
    registers = kept + (24 if size == 8 else 16)
    if problem.operator.is_log and not problem.operator.is_gradient and size < 8:
        registers += math.ceil((0.25 if size == 2 else 0.4) * max(0, kept - 16 // size))
    if config.staging == "span":
        return registers + (12 if size == 4 else 0)
    return registers + _registers_for_loads(problem, config, unaligned=not split.aligned)


def _registers_for_loads(problem: Problem, config: Config, *, unaligned: bool) -> int:
    """Return the registers for unaligned rows, cache policies and a cluster's exchange."""
    size = problem.dtype.itemsize
    if config.cluster > 1 or problem.inner > 1:
        registers = 8 * unaligned + 8 * (config.cluster >= 16)
        return registers + (
            0 if problem.operator.is_gradient and size > 2 else {2: 8, 4: 4, 8: 0}[size]
        )
    online = config.algorithm == "online-block-max"
    early = config.load_hint != "default" and (size > 2 or online)  # loads are issued earlier
    return unaligned * (8 * (size == 2) + 8 * early)


def blocks_of_an_sm(problem: Problem, config: Config, gpu: GpuSpec) -> int:
    """Return how many blocks of a kernel an SM is likely to hold."""
    most = registers_left(config.threads, config.min_blocks, gpu)
    resources = Resources(registers=min(likely_registers(problem, config), most))
    return occupancy(resources, config.threads, 1, gpu).blocks_per_sm


def with_likely_residency(config: Config, problem: Problem, gpu: GpuSpec) -> Config:
    """Return the config with launch bounds for the blocks that an SM is likely to hold.

    Rules count on them, and a compiler that gives a thread eight registers more would have an SM
    hold fewer. Bounds that a rule has set stay, and none are set where eight registers make no
    difference or where their number is hard to guess: clusters and tiles that are staged have as
    many as was guessed, to a step of eight, in 3 of 10 kernels, rows straight from memory in 7.
    """
    direct = config.cache == "registers" and config.staging == "direct" and config.cluster == 1
    if config.min_blocks > 1 or not direct or problem.inner > 1:
        return config
    split = WorkSplit(problem, config)
    grid = math.ceil(problem.rows / split.block_rows)
    likely = Resources(likely_registers(problem, config), split.shared_bytes)
    likely = with_residency(likely, config.threads, grid, gpu)
    return (
        replace(config, min_blocks=likely.resident_blocks) if likely.rests_on_registers else config
    )


def waves(problem: Problem, config: Config, gpu: GpuSpec) -> float:
    """Return the rows over those that are resident together; infinite if not one block fits.

    A kernel may take more registers with evict-first loads: those count.
    """
    config = replace(config, load_hint="cs")
    split = WorkSplit(problem, config)
    groups = blocks_of_an_sm(problem, config, gpu) * gpu.sm_count // (config.cluster * split.parts)
    return problem.rows / (groups * split.block_rows) if groups else math.inf


LATENCY_NS = 1190
"""For this long the loads of an SM's other blocks must last where one waits for memory."""


def busy_ns(problem: Problem, config: Config, gpu: GpuSpec) -> float:
    """Return how long memory is busy with what an SM's blocks load at once, in nanoseconds.

    A block does not load while it combines its row's sums and stores: most of a block counts less.
    """
    blocks = blocks_of_an_sm(problem, config, gpu)
    storing = 0.75 if problem.dtype.is_half else min(0.75, blocks / 4)
    matrices = WorkSplit(problem, config).cached_matrices
    loaded = (blocks - storing) * config.rows_per_block * problem.row_bytes * matrices
    return loaded / (gpu.peak_gbps / gpu.sm_count or UNKNOWN_GBPS_OF_AN_SM)
