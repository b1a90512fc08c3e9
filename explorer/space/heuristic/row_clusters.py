"""A row over a cluster of blocks, without a search: by which blocks, and how they keep it."""

import math
from collections.abc import Iterator
from dataclasses import replace

from explorer.config import Config
from explorer.gpu_spec import GpuSpec
from explorer.problem import Problem
from explorer.space.heuristic.at_once import are_at_once
from explorer.space.rules import Point, registers_fit
from explorer.work_split import WorkSplit

MOST_AT_ONCE = 72
"""Elements of a row that a thread keeps, at most, so that all rows are on the GPU at once."""

LEAST_PART_BYTES = 5 * 1024
"""Bytes of a row that are worth a block then: on an H200, 185 x 14104 bf16 takes 27 % more time by
8 blocks of 128 threads than by 4 of 256."""

FILLING = (128, 160, 192, 256, 320, 384, 512)
"""Threads of a block where all rows are on the GPU at once."""

MOST_FILLING = {2: 256, 4: 256, 8: 512, 16: 384}
"""Of these, the most for clusters of so many blocks."""

WIDEST_UNPACKED = 32768
"""Elements of the widest 16-bit row whose exponentials are kept; of wider ones what was loaded."""

PACKED_AT_ONCE = [(t, n) for t in FILLING for n in (2, 3, 4, 6, 8) if t * n <= 1152]
"""Threads of a block, and blocks an SM, that have packed rows which are on the GPU all at once."""

PACKED_CLOSELY = [(160, 8)]
"""The same, but not for the largest clusters: on an H200, 66 x 110000 f16 takes 8 % more so."""

PACKED_IN_WAVES = [(128, 8), (160, 6), (160, 8), (192, 6), (192, 8), (256, 4)]
"""The same of more rows: 960 to 1536 threads."""


def cluster_sizes(gpu: GpuSpec) -> list[int]:
    """Blocks of the clusters that there are: 2, 4, 8, 16."""
    return [blocks for blocks in (2, 4, 8, 16) if blocks <= gpu.cluster_blocks]


def stays_packed(problem: Problem) -> bool:
    """Whether rows are of 16 bits and so wide that what was loaded is better kept as it came."""
    return problem.dtype.itemsize == 2 and problem.cols > WIDEST_UNPACKED


def shared_by(blocks: int, threads: int) -> Config:
    """A row over a cluster, in registers, exchanged by asynchronous stores."""
    return Config(
        algorithm="online-block-max",
        threads=threads,
        threads_per_row=threads,
        reduction="shuffle-redux",
        exp="ex2.approx",
        cluster=blocks,
        exchange="mbarrier" if blocks > 1 else "barrier",
    )


def packed(blocks: int, threads: int, blocks_per_sm: int) -> Config:
    """16-bit rows that stay packed, in registers for so many blocks an SM."""
    return replace(shared_by(blocks, threads), cache_holds="input", min_blocks=blocks_per_sm)


def all_at_once(problem: Problem, gpu: GpuSpec) -> Config | None:
    """Clusters of all rows on the GPU at once, whose threads have the fewest accesses to a row.

    Of those with as few, exponentials kept as they are. On an H200, 45 x 45001 f16 takes 11 % less
    time by 8 blocks of 384 threads that have two accesses than by 128 that have six. None for more
    rows.
    """
    splits = [WorkSplit(problem, idea) for idea in _for_one_wave(problem, gpu)]
    kept = [split for split in splits if 1 < split.slots <= MOST_AT_ONCE // split.width]
    for split in sorted(kept, key=lambda it: (it.slots, not it.keeps_numbers)):
        if are_at_once(problem, split.config, gpu):
            return split.config
    return None


def _for_one_wave(problem: Problem, gpu: GpuSpec) -> Iterator[Config]:
    """All clusters for few rows: the largest but one first, the largest last."""
    *smaller, largest = cluster_sizes(gpu)
    for blocks in (*reversed(smaller), largest):
        if problem.row_bytes < blocks * LEAST_PART_BYTES:
            continue
        yield from (shared_by(blocks, t) for t in FILLING if t <= MOST_FILLING[blocks])
        closely = PACKED_CLOSELY if blocks < largest else []
        yield from _packed(problem, gpu, blocks, PACKED_AT_ONCE + closely)


def _packed(
    problem: Problem, gpu: GpuSpec, blocks: int, shapes: list[tuple[int, int]]
) -> Iterator[Config]:
    """Clusters that keep wide 16-bit rows packed, where registers suffice."""
    if stays_packed(problem):
        ideas = (packed(blocks, threads, per_sm) for threads, per_sm in shapes)
        yield from (idea for idea in ideas if registers_fit(Point(problem, gpu, idea)))


def all_packed(problem: Problem, gpu: GpuSpec) -> Config:
    """16-bit rows, packed, of several waves: many rows at once, and many threads.

    On an H200, of copy in bf16: 96 to 97 % at 50257, 65536, 131072 and 262144, there by words of 8
    bytes and a first warp that folds: by words of 16 and all warps, 95.6 %. With fewer rows, for 64
    MB, 89 to 94 % from 36000 to 151936, 83 % at 200001. The widest rows leave an SM two blocks.
    """
    ideas = [
        idea
        for blocks in cluster_sizes(gpu)
        for idea in _packed(problem, gpu, blocks, PACKED_IN_WAVES)
    ]
    widest = packed(gpu.cluster_blocks, 256, 2)
    kept = max(ideas, key=lambda idea: (_in_flight(idea), -idea.threads), default=widest)
    if kept.threads < 256:
        return kept
    return replace(kept, vector_bytes=8, reduction="shuffle-redux-first-warp")


def _in_flight(idea: Config) -> float:
    """Return a score by which the fastest cluster of a problem is chosen: the largest is best.

    It grows with the rows that are resident at once, and more than that with the threads of an SM.
    On an H200, the cluster of the largest score takes at most 2 % more time than the fastest of up
    to 57, from 36000 to 200001 columns.
    """
    return idea.min_blocks / idea.cluster * math.pow(idea.threads * idea.min_blocks, 1.5)
