"""Configs without a search for rows that several blocks share: what an H200 says of each regime."""

from dataclasses import replace
from typing import NamedTuple

from explorer.config import Config
from explorer.gpu_spec import GpuSpec
from explorer.problem import Problem
from explorer.space.one_block import soonest_reduction
from explorer.work_split import WorkSplit

MOST_KEPT = 128
"""Elements of a row that a thread keeps in registers."""

LEAST_PART = 1024
"""Elements of a row that are worth a block where the GPU has room for more of them."""

LARGE_PART = 10 * 1024
"""Elements of a row that are worth a block of 512 threads where rows are few."""

LEAST_TWICE = 160 * 1024
"""Bytes of a row, for each row there is, that all SMs read twice sooner than the few of clusters
once: fewer rows count as three."""

LEAST_TWICE_16_BIT = 384 * 1024
"""The same of 16-bit rows, however few."""

WIDEST_UNPACKED = 32768
"""Elements of the widest 16-bit row whose exponentials are kept; of wider ones what was loaded."""

WIDEST_TWO_EXCHANGES = 8192
"""Elements of the widest row whose exponentials are not rescaled, for an exchange more: on an H200,
16384 x 8192 bf16 comes to 98.5 % of copy, instead of 97.4, f32 to 98.7 instead of 98.2."""

MOST_PARTS = 256
"""Parts of a row whose pairs each warp of the second of two launches combines soon enough."""

WIDEST_IN_ONE_WAVE = 65536
"""Elements of the widest row that half the blocks of the largest cluster keep unpacked."""

PACKED = 80
"""Elements that a thread keeps so, two in a register, where four blocks of 256 share an SM."""


class Shape(NamedTuple):
    """A cluster for rows."""

    blocks: int
    threads: int
    """Of each block."""
    share: int
    """Elements of a row that each thread keeps, at most."""


SHAPES = {
    2: (Shape(2, 128, 52), Shape(2, 256, 31), Shape(4, 128, 55), Shape(4, 256, 32)),
    4: (Shape(4, 128, 30), Shape(8, 128, 44), Shape(16, 128, 50)),
}
"""Clusters for elements of so many bytes, the smallest first.

Shares are where, on an H200, the next came to be faster between 8200 and 100000 columns.
"""

LOOPED = Config(
    algorithm="online-block-max",
    exp="ex2.approx",
    cache="none",
    cache_holds="input",
)
"""Rows that nothing keeps: they are read twice."""


def of_wide_rows(problem: Problem, gpu: GpuSpec, *, splits: bool) -> Config:
    """A config, legal or not, for rows of WIDE_ROW elements or more on a GPU with clusters.

    `splits` says whether two launches may have a part of a row for each block.
    """
    too_wide = numbers_of_row(problem) > gpu.cluster_blocks * 256 * MOST_KEPT
    if splits and problem.rows < gpu.sm_count and (too_wide or _sooner_twice(problem, gpu)):
        return in_two_launches(problem, gpu)
    if too_wide:
        return _looped(problem, gpu)
    if _are_few(problem, gpu):
        return _few(problem, gpu)
    is_packed = _is_packed(problem, gpu)
    kept = _packed(problem, gpu) if is_packed else _shared_by(*_shape(problem, gpu))
    algorithm = "three-pass" if problem.cols <= WIDEST_TWO_EXCHANGES else kept.algorithm
    return replace(kept, algorithm=algorithm)


def numbers_of_row(problem: Problem) -> int:
    """Registers that a row takes as it is computed with: its elements, or twice as many in f64."""
    return problem.cols * problem.dtype.arithmetic.itemsize // 4


def fewest_blocks(row: int, part: int, *, least: int, most: int) -> int:
    """The fewest blocks, from `least` on and `most` at most, for parts of `part` at most."""
    blocks = least
    while blocks < most and row > blocks * part:
        blocks *= 2
    return blocks


def _sooner_twice(problem: Problem, gpu: GpuSpec) -> bool:
    """Whether all SMs read the rows twice sooner than clusters, on few SMs or one wave, once."""
    if problem.dtype.itemsize > 2:
        return problem.row_bytes >= LEAST_TWICE * max(3, problem.rows)
    one_wave = problem.rows * gpu.cluster_blocks <= 2 * gpu.sm_count
    return one_wave and problem.row_bytes >= LEAST_TWICE_16_BIT


def _are_few(problem: Problem, gpu: GpuSpec) -> bool:
    """Whether clusters of all rows are on the GPU at once, half as large ones at most."""
    blocks = problem.rows * gpu.cluster_blocks
    room = 4 if numbers_of_row(problem) < gpu.cluster_blocks * LARGE_PART else 2
    return blocks <= room * gpu.sm_count


def _few(problem: Problem, gpu: GpuSpec) -> Config:
    """Each row over as many blocks as its parts are worth: what counts is the time of one row.

    On an H200, 16 x 131072 f32 comes to 71 % of copy, 8 x 151936 to 70 %. More rows than six, whose
    largest clusters do not have an SM for each block, take 4 to 8 % less by half as many blocks, as
    long as these are not many large ones.
    """
    cols, most = numbers_of_row(problem), gpu.cluster_blocks
    fewest = 4 * problem.rows * most <= 3 * gpu.sm_count
    is_large = cols > most // 2 * 8192
    one_an_sm = problem.dtype.itemsize > 2 and problem.rows * most <= gpu.sm_count
    if fewest or (is_large and not one_an_sm):
        blocks, large = most, 3 * LARGE_PART // 2
    else:
        blocks, large = most // 2, LARGE_PART
    while blocks > 1 and cols < blocks * LEAST_PART:
        blocks //= 2
    part = cols // blocks
    threads = 128 if part < 2 * LEAST_PART else 256 if part < large else 512
    return _shared_by(blocks, threads)


def _shape(problem: Problem, gpu: GpuSpec) -> tuple[int, int]:
    """Blocks of a row and threads of each: small blocks, of which an SM holds several clusters'.

    Blocks of less than 6 KiB are fewer bytes than the GPU can launch blocks for. On an H200, with
    rows for 64 MB, from 8200 columns to 36000: 97 to 98 % of copy in f32, 94 to 98 in bf16; 96 %
    at 60000 and 80000 f32. The widest rows are kept by the fewest threads that can: 256 x 262144
    f32 comes to 95 % so.
    """
    cols, most = numbers_of_row(problem), gpu.cluster_blocks
    if problem.rows < gpu.sm_count and cols <= WIDEST_IN_ONE_WAVE:
        return _of_one_wave(problem, gpu)
    widest = (Shape(most, 256, 50), Shape(most, 128, MOST_KEPT), Shape(most, 256, MOST_KEPT))
    shapes = (s for s in SHAPES[min(4, problem.dtype.itemsize)] + widest if s.blocks <= most)
    shape = next(s for s in shapes if cols <= s.blocks * s.threads * s.share)
    return shape.blocks, shape.threads


def _of_one_wave(problem: Problem, gpu: GpuSpec) -> tuple[int, int]:
    """The same for rows fewer than SMs: as many threads as are on the GPU at once.

    On an H200, 100 x 28000 bf16 takes 12 % less time than by half as many blocks of half as many
    threads, 100 x 20000 f32 6 %.
    """
    cols, half = numbers_of_row(problem), max(1, gpu.cluster_blocks // 2)
    if cols <= 16384 and problem.dtype.itemsize == 2:
        return min(4, half), 256
    if cols <= 16384:
        return fewest_blocks(cols, 128 * 16, least=min(4, half), most=half), 128
    fits = cols <= 32768 or problem.rows <= gpu.sm_count // 2
    return half, 256 if fits or gpu.cluster_blocks < 16 else 128


def _is_packed(problem: Problem, gpu: GpuSpec) -> bool:
    """Whether rows of 16 bits are better off packed: fewer than SMs only if they start anywhere."""
    if problem.dtype.itemsize > 2:
        return False
    if problem.rows < gpu.sm_count and problem.row_bytes % 16 == 0:
        return problem.cols > WIDEST_IN_ONE_WAVE
    return problem.cols > WIDEST_UNPACKED


def _packed(problem: Problem, gpu: GpuSpec) -> Config:
    """16-bit rows that stay packed in half the registers, for twice the blocks an SM.

    On an H200, of copy in bf16: 96 % at 50257, 65536 and 131072, 97 % at 262144, there by words of
    8 bytes and a first warp that folds: by words of 16 and all warps, 95.6 %. With fewer rows, 89
    to 94 % from 36000 to 151936.
    """
    shapes = ((blocks, threads) for threads in (128, 256) for blocks in _clusters(gpu))
    fitting = (shape for shape in shapes if _kept(problem, *shape) <= PACKED)
    shape = next(fitting, None)
    blocks, threads = shape or (gpu.cluster_blocks, 256)
    room = 1024 if shape else 512
    kept = replace(_shared_by(blocks, threads), cache_holds="input", min_blocks=room // threads)
    if threads == 128:
        return kept
    return replace(kept, vector_bytes=8, reduction="shuffle-redux-first-warp")


def _clusters(gpu: GpuSpec) -> list[int]:
    return [blocks for blocks in (2, 4, 8, 16) if blocks <= gpu.cluster_blocks]


def _kept(problem: Problem, blocks: int, threads: int) -> int:
    """Elements of a row for each thread, wherever the row starts."""
    split = WorkSplit(problem, _shared_by(blocks, threads))
    return split.slots * split.width


def _looped(problem: Problem, gpu: GpuSpec) -> Config:
    """Few rows by clusters, others a row a block, whose threads read their share twice."""
    looped = replace(LOOPED, threads=1024, threads_per_row=1024, unroll=4)
    if problem.rows < gpu.sm_count:
        return replace(looped, cluster=gpu.cluster_blocks, exchange="mbarrier")
    return looped


def in_two_launches(problem: Problem, gpu: GpuSpec) -> Config:
    """Parts of rows over all SMs, which overlapping launches read twice, the second time in L2.

    On an H200, 1 x 1048576 f32 comes to 62 % of copy, 4 x 1048576 to 69 %. Parts are the smaller
    ones of which a row has few.
    """
    smallest = LOOPED.threads * LOOPED.vector_bytes
    largest = 4 if problem.dtype.itemsize == 2 else 8
    fitting = (u for u in (2, 4) if problem.row_bytes <= MOST_PARTS * u * smallest)
    return replace(
        LOOPED,
        reduction=soonest_reduction(gpu),
        unroll=next(fitting, largest),
        launches="two-overlapped" if gpu.overlaps_launches else "two",
    )


def _shared_by(blocks: int, threads: int) -> Config:
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
