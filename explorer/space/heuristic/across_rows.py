"""Configs without a search for rows over a middle axis: what an H200 says of each regime."""

import math
from dataclasses import replace
from typing import NamedTuple

from explorer.config import Config
from explorer.dtype import DType
from explorer.gpu_spec import GpuSpec
from explorer.problem import Problem, power_of_two
from explorer.space.heuristic.wide_rows import fewest_blocks

TILE_THREADS = 256
"""Threads of a block."""

MAX_ROWS_OF_A_TILE = 128
"""Rows side by side that a block works on, at most: 16-bit elements of 256 bytes."""


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
