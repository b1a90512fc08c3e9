"""Gradients of rows of 8192 elements or more, of which a cluster's blocks keep both matrices."""

import math

from explorer.choose.residency import cluster_of, read_twice, waves
from explorer.model.config import Config
from explorer.model.gpu_spec import GpuSpec
from explorer.model.problem import Problem, power_of_two
from explorer.model.work_split import WorkSplit
from explorer.space.design_rules import widest_vector


class _Row:
    """A problem's row, its alignment, and the registers that its shares take."""

    def __init__(self, problem: Problem, gpu: GpuSpec) -> None:
        self.problem, self.gpu, self.most = problem, gpu, gpu.cluster_blocks
        self.half, self.log = problem.dtype.is_half, problem.operator.is_log
        self.odd = problem.row_bytes % 16 > 0 and not (self.half and widest_vector(problem) == 8)
        self.rows = problem.rows / gpu.sm_count

    @property
    def fewest(self) -> bool:
        """Whether clusters of the most blocks leave a quarter of the SMs idle."""
        return 4 * self.rows * self.most <= 3

    def share(self, blocks: int, threads: int) -> float:
        """Return the 32-bit registers in which a thread keeps its share of both matrices."""
        return 2 * self.problem.row_bytes / 4 / (blocks * threads)

    def threads(self, blocks: int, registers: float) -> int:
        """Return the threads of a block that keep a share in so many registers each."""
        sizes = (128, 256, 512) if self.half else (128, 256, 384, 512)
        return next((size for size in sizes if self.share(blocks, size) <= registers), 512)


def wide_gradient(problem: Problem, gpu: GpuSpec) -> Config:
    """Return a kernel of four or eight blocks; more for few and the widest rows, fewer for odd."""
    row = _Row(problem, gpu)
    by_8_bytes = row.half and widest_vector(problem) == 8 and problem.cols <= 65_536
    few = _few_rows(row)
    blocks = few.cluster if few and by_8_bytes else _blocks(row)
    if by_8_bytes:
        return cluster_of(blocks, row.threads(blocks, 32), 8)
    special = _log_softmax(row) or few
    if special:
        return special
    if row.half and row.odd:
        odd = _odd_16_bit(row, blocks)
        if odd:
            return odd
    largest = blocks == row.most > 8
    if row.half:
        registers = 40 if row.log and largest else 64
    else:
        registers = 40 if row.log and largest else 100 if row.odd else 64 if largest else 56
    threads = row.threads(blocks, registers)
    if not row.half and row.odd and threads == 128 and 256 < problem.row_bytes / 16 / blocks <= 384:
        threads = 192
    share = row.share(blocks, threads)
    if threads == 512 and share > (60 if 4 * row.rows <= 1 and not row.fewest else 80):
        return _too_wide(row)
    if row.half and blocks == 8 and threads == 128 and 32 < share <= 45:
        return cluster_of(8, 192, min_blocks=4 if share > 40 else 1)
    resident = max(1, 512 // threads) if row.half and share > 40 else 1
    return cluster_of(blocks, threads, min_blocks=resident)


def _log_softmax(row: _Row) -> Config | None:
    """Return a kernel for some rows of log_softmax's gradient, which computes exponentials."""
    if not row.log or row.odd:
        return None
    held = math.ceil(2 * row.rows)
    if 2 * row.rows >= 0.9 and row.share(2, 512) <= {1: 64, 2: 32}.get(held, 0):
        return cluster_of(2, 512, min_blocks=held)
    several = 8 * row.rows >= 1 and row.most >= 8
    if row.half and several and row.problem.row_bytes >= 60 * 1024:
        idea = cluster_of(8, min(512, power_of_two(math.ceil(row.problem.row_bytes / 128))))
        return idea if waves(row.problem, idea, row.gpu) <= 1 else None
    return None


def _few_rows(row: _Row) -> Config | None:
    """Return a kernel of eight blocks or more for rows of which SMs have one in eight."""
    if 8 * row.rows > 1 or not (row.half or not row.fewest):
        return None
    widest = row.fewest and row.problem.row_bytes >= 65_536
    blocks = row.most if widest else min(8, row.most)
    threads = row.threads(blocks, 40)
    return cluster_of(blocks, threads) if row.share(blocks, threads) <= 80 else None


def _blocks(row: _Row) -> int:
    """Return the blocks of a cluster."""
    blocks = min(row.most, 8 if row.problem.row_bytes >= 32_768 else 4)
    if blocks == 4 and 1 < 4 * row.rows <= 1.5:
        blocks = min(8, row.most)
    if row.half and row.odd:
        blocks = next((b for b in (2, 4) if b * row.rows >= 4), blocks)
    limit = 14_336 if row.half else 16_384
    while blocks < row.most and row.problem.row_bytes // 2 > blocks * limit:
        blocks *= 2
    return blocks


def _odd_16_bit(row: _Row, blocks: int) -> Config | None:
    """Return a kernel of one block or two for odd 16-bit rows: each block has ends of its own."""
    alone = row.share(1, 256)
    if 1.75 <= row.rows <= 2 and 48 < alone <= 68:
        return cluster_of(1, 256, min_blocks=2)
    if blocks != 2:
        return None
    if row.share(2, 256) <= 24:
        return cluster_of(2, 256, min_blocks=4)
    if row.rows < 3 and row.share(2, 512) <= 24 and alone > 68:
        return cluster_of(2, 512, min_blocks=2)
    if row.rows >= 3 and alone <= 68:
        return cluster_of(1, 256, 8 if alone <= 52 else 16, min_blocks=2)
    return None


def _too_wide(row: _Row) -> Config:
    """Return a kernel for rows that registers do not hold."""
    shared = read_twice(512, row.most, cache="shared")
    fits = WorkSplit(row.problem, shared).shared_bytes <= row.gpu.shared_per_block_bytes
    return shared if row.fewest and fits else read_twice(1024, min(8, row.most))
