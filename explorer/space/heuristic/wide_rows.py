"""Configs without a search for rows that several blocks share: by which blocks, and how kept."""

import math
from collections.abc import Iterator
from dataclasses import replace
from typing import NamedTuple

from explorer.model.config import Config
from explorer.model.dtype import DType
from explorer.model.gpu_spec import GpuSpec
from explorer.model.problem import Op, Problem
from explorer.model.work_split import WorkSplit
from explorer.space.heuristic.residency import fastest_reduction, fits_one_wave, waves
from explorer.space.heuristic.row_threads import (
    MIN_BLOCK_THREADS,
    is_of_8_byte_words,
    starts_anywhere,
)
from explorer.space.rules import Point, registers_fit

MAX_ELEMENTS_PER_THREAD = 128
"""Elements of a row that a thread keeps in registers."""

MIN_ELEMENTS_PER_BLOCK = 1024
"""Elements of a row that are worth a block where the GPU has room for more of them."""

MIN_ELEMENTS_PER_BLOCK_OF_512 = 10 * 1024
"""Elements of a row that are worth a block of 512 threads where rows are few."""

MIN_BYTES_TWO_LAUNCHES, ONE_ROW_COUNTS_AS = 128 * 1024, 3.5
"""Bytes of a row from which two launches are faster, over the number of rows. One row of f32 counts
as 3.5 rows, and one or two others as three.

Two launches read a row twice, but on all SMs. Clusters of so few rows read it once, on few SMs: on
an H200, 16 x 524288 f32 takes 2 to 10 % more time by clusters, by their threads, and 1 x 128256
10 %. At 1 x 100277 clusters take 7 and 6 % less by two measurements there, 4 % more by a third, and
7 % less on an H100. Of two and three rows, nothing of this length was timed.
"""

MAX_L2_SHARE_TWO_LAUNCHES = 0.6
"""Bytes of the rows over those of the L2 cache, at most, for them to be read twice: on an H100,
whose cache holds less than an H200's, 16 x 524288 f32 takes 9 % less time by clusters. It is the
only problem of the tables that tells the two apart."""

MIN_ROW_BYTES_TWO_LAUNCHES_16_BIT = 512 * 1024
"""Bytes of a 16-bit row from which the same holds of three rows or more.

Of one or two rows it holds from three quarters of that on. On an H200, 16 x 262144 bf16 takes 13 %
less time so.
"""

MAX_COLS_TWO_EXCHANGES = 8192
"""Elements of the widest row whose exponentials are not rescaled, for an exchange more: on an H200,
16384 x 8192 bf16 comes to 98.5 % of copy, instead of 97.4, f32 to 98.7 instead of 98.2."""

THREADS_OF_ROWS_THAT_START_ANYWHERE = 192
"""Threads of a block for few 16-bit rows that start anywhere, by half as many blocks as other rows.

They have at most two accesses each. On an H100, 1 x 10650 bf16 takes 9 % less time by 4 blocks of
192 threads than by 8 of 128, and 1 x 17982 f16 11 % less by 8 blocks than by 16 of 128.
"""

MIN_ELEMENTS_PER_BLOCK_8_BYTE_WORDS = 1000
"""Elements of a row that are worth one of the most blocks, if words of 8 bytes divide all rows and
16 bytes do not: on an H200, 2 x 16004 bf16 takes 4 % less time by 16 blocks than by 8."""

MAX_COLS_8_BYTE_WORDS = 65536
"""Elements of the widest 16-bit row for words of 8 bytes where 16 bytes do not divide it. On an
H200, 300 x 12300 bf16 takes 18 % less time by them, 1000 x 30004 9 %, 100 x 50260 6 %, 500 x 20004
3 %, and gradients 6 to 26 %: 215 x 8548 26 % (17 % on an H100), 64 x 50260 19 %. 215 x 146084 f16
takes 3 % more, on an H100 as long. On an H100, nothing else of these was timed."""

THREADS_NOT_BY_8_BYTES = 160
"""Threads of a block that were not timed with words of 8 bytes: 300 x 12300 and 100 x 50260 bf16
were by blocks of 128, in place of 160 with words of 16."""

MAX_8_BYTE_WORDS_OF_FEW_ROWS = 6
"""Such words of a thread, at most: of more, no time by them is known. On an H200, few rows of 8192
to 30004 elements take 5 to 16 % less time by them than by 16 bytes, for which each row starts
elsewhere."""

THREADS_OF_8_BYTE_WORDS = (128, 192)

MAX_PARTS_OF_A_ROW = 256
"""Parts of a row whose pairs each warp of the second of two launches combines soon enough."""


class Shape(NamedTuple):
    """A cluster for rows."""

    blocks: int
    threads: int
    """Of each block."""
    share: float
    """Elements of a row that each thread keeps, at most."""


SHAPES = {
    2: (Shape(2, 128, 52), Shape(2, 256, 31), Shape(4, 128, 55), Shape(4, 256, 32)),
    4: (Shape(4, 128, 30), Shape(8, 128, 44), Shape(8, 256, 25), Shape(16, 128, 50)),
}
"""Clusters for elements of so many bytes, the smallest first.

Shares are where, on an H200, the next came to be faster between 8200 and 100000 columns.
"""

SHARE_FACTOR_FEW_ROWS = 1.2
"""Factor of the shares in `SHAPES` if rows are fewer than SMs.

For so few rows the next larger shape would leave a wave less full. On an H200, 100 x 50257 f32
takes 16 % less time by 8 blocks than by 16, and 66 x 120000 4 % less by 16 blocks of 128 threads
than by 16 of 256. With many rows it does not pay: 2048 x 50257 takes 1 % more time by 8 blocks.
"""

SHAPES_OF_WIDEST_ROWS = (
    (192, 50),
    (256, 50),
    (384, 50),
    (512, 64),
    (128, MAX_ELEMENTS_PER_THREAD),
    (256, MAX_ELEMENTS_PER_THREAD),
)
"""Threads and shares of the largest clusters for wider rows: on an H200, 128 x 262144 f32 takes 5 %
less time by 384 threads, of which the first warp combines what all found, than by 128; on an H100,
100 x 524288 takes 11 % less by 512 threads so than by 256, and 40 x 524288 9 %."""

MIN_THREADS_OF_WIDEST_LOGARITHM = 256
"""Of SHAPES_OF_WIDEST_ROWS, the fewest threads for log_softmax: on an H200, 131 x 128256 f32 takes
7 % less time by 256 threads than by 192, on an H100 3 %."""

SHAPE_NOT_OF_LOGARITHM = (8, 256)
"""Blocks and threads of `SHAPES` that f32 rows of log_softmax do not have: 334 x 50257 takes 6 %
less time by the next, 16 blocks of 128 threads, on an H200, on an H100 4 %."""

THREADS_OF_FIRST_WARP = 384
"""Threads of a block from which the first warp alone combines what a cluster's warps found."""

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
    too_wide = numbers_of_row(problem) > gpu.cluster_blocks * 256 * MAX_ELEMENTS_PER_THREAD
    if splits and problem.rows < gpu.sm_count and (too_wide or _sooner_twice(problem, gpu)):
        return in_two_launches(problem, gpu)
    if too_wide:
        return _looped(problem, gpu)
    few = _few(problem, gpu)
    if _are_few(problem, gpu) and fits_one_wave(problem, few, gpu):
        return few
    kept = all_at_once(problem, gpu)
    if kept is None or kept.cache_holds == "input":
        kept = _hardly_more_than_one_wave(problem, gpu) or kept or _in_waves(problem, gpu)
    algorithm = "three-pass" if problem.cols <= MAX_COLS_TWO_EXCHANGES else kept.algorithm
    return by_8_byte_words(replace(kept, algorithm=algorithm), problem, gpu)


def is_wide_of_8_byte_words(problem: Problem) -> bool:
    """Whether words of 8 bytes are worth it for 16-bit rows that 16 bytes do not divide."""
    return is_of_8_byte_words(problem) and problem.cols <= MAX_COLS_8_BYTE_WORDS


def by_8_byte_words(kept: Config, problem: Problem, gpu: GpuSpec) -> Config:
    """The config with words of 8 bytes where these divide 16-bit rows that 16 bytes do not.

    Blocks of 160 threads have 128 then, as was timed. Rows of log_softmax, and packed rows that are
    as many as SMs, keep their words of 16, because none were timed by 8.
    """
    packed_rows = kept.cache_holds == "input" and problem.rows >= gpu.sm_count
    untimed = problem.op is Op.LOG_SOFTMAX or packed_rows
    if untimed or not is_wide_of_8_byte_words(problem):
        return kept
    threads = MIN_BLOCK_THREADS if kept.threads == THREADS_NOT_BY_8_BYTES else kept.threads
    return replace(kept, threads=threads, threads_per_row=threads, vector_bytes=8, min_blocks=1)


def _hardly_more_than_one_wave(problem: Problem, gpu: GpuSpec) -> Config | None:
    """Eight blocks of 128 threads where all but a few rows are resident so; None for other rows.

    Each thread keeps many exponentials. None for log_softmax and f64, which were not timed.
    """
    idea = shared_by(min(8, gpu.cluster_blocks), MIN_BLOCK_THREADS)
    split = WorkSplit(problem, idea)
    timed = problem.op is Op.SOFTMAX and problem.dtype is not DType.F64
    suits = split.aligned and split.keeps_numbers and timed
    if not suits or split.cached_registers not in REGISTERS_HARDLY_MORE_THAN_ONE_WAVE:
        return None
    return idea if 1 < waves(problem, idea, gpu) <= MAX_WAVES_HARDLY_MORE_THAN_ONE else None


def numbers_of_row(problem: Problem) -> int:
    """Registers that a row takes as it is computed with: its elements, or twice as many in f64."""
    return problem.cols * problem.dtype.arithmetic.itemsize // 4


def are_fewest(problem: Problem, gpu: GpuSpec) -> bool:
    """Whether the blocks of the largest clusters find an SM each, with a quarter of them left."""
    return 4 * problem.rows * gpu.cluster_blocks <= 3 * gpu.sm_count


def fewest_blocks(row: int, part: int, *, least: int, most: int) -> int:
    """The fewest blocks, from `least` on and `most` at most, for parts of `part` at most."""
    blocks = least
    while blocks < most and row > blocks * part:
        blocks *= 2
    return blocks


def _sooner_twice(problem: Problem, gpu: GpuSpec) -> bool:
    """Whether all SMs read the rows twice sooner than clusters, on few SMs or one wave, once."""
    if problem.rows * problem.row_bytes > MAX_L2_SHARE_TWO_LAUNCHES * gpu.l2_bytes:
        return False
    if not problem.dtype.is_half:
        one_of_f32 = problem.rows == 1 and problem.dtype is DType.F32
        least = ONE_ROW_COUNTS_AS if one_of_f32 else 3
        return problem.row_bytes >= MIN_BYTES_TWO_LAUNCHES * max(least, problem.rows)
    one_wave = problem.rows * gpu.cluster_blocks <= 2 * gpu.sm_count
    share = 1 if problem.rows > 2 else 3 / 4
    return one_wave and problem.row_bytes >= share * MIN_ROW_BYTES_TWO_LAUNCHES_16_BIT


def _are_few(problem: Problem, gpu: GpuSpec) -> bool:
    """Whether clusters of all rows are on the GPU at once, half as large ones at most."""
    blocks = problem.rows * gpu.cluster_blocks
    room = 4 if numbers_of_row(problem) < gpu.cluster_blocks * MIN_ELEMENTS_PER_BLOCK_OF_512 else 2
    return blocks <= room * gpu.sm_count


def _few(problem: Problem, gpu: GpuSpec) -> Config:
    """Each row over as many blocks as its parts are worth: what counts is the time of one row.

    On an H200, 16 x 131072 f32 comes to 71 % of copy, 8 x 151936 to 70 %. More rows than six, whose
    largest clusters do not have an SM for each block, take 4 to 8 % less by half as many blocks, as
    long as these are not many large ones.
    """
    cols, most = numbers_of_row(problem), gpu.cluster_blocks
    fewest = are_fewest(problem, gpu)
    is_large = cols > most // 2 * 8192
    one_an_sm = not problem.dtype.is_half and problem.rows * most <= gpu.sm_count
    if fewest or (is_large and not one_an_sm):
        blocks, large = most, 3 * MIN_ELEMENTS_PER_BLOCK_OF_512 // 2
    else:
        blocks, large = most // 2, MIN_ELEMENTS_PER_BLOCK_OF_512
    while blocks > 1 and cols < blocks * MIN_ELEMENTS_PER_BLOCK:
        blocks //= 2
    if problem.row_bytes % 16 == 8:
        worth = problem.cols >= most * MIN_ELEMENTS_PER_BLOCK_8_BYTE_WORDS
        by_words = _of_8_byte_words(problem, most if fewest and worth else most // 2)
        if by_words is not None:
            return by_words
    if blocks > 2 and starts_anywhere(problem) and problem.dtype.is_half:
        half = shared_by(blocks // 2, THREADS_OF_ROWS_THAT_START_ANYWHERE)
        if WorkSplit(problem, half).slots <= 2:
            return half
    part = cols // blocks
    sizes = (
        (128,) if part < 2 * MIN_ELEMENTS_PER_BLOCK else (192, 256) if part < large else (384, 512)
    )
    return _fewest_threads(problem, [shared_by(blocks, threads) for threads in sizes])


def _of_8_byte_words(problem: Problem, blocks: int) -> Config | None:
    """A row over so many blocks, by words of 8 bytes; None where a thread would have too many.

    On an H200, 8 x 12010 f32 takes 5 % less time by shuffles than by redux, 16-bit rows no less.
    """
    if problem.dtype.itemsize > 4:
        return None
    reduction = "shuffle-redux" if problem.dtype.is_half else "shuffle"
    for threads in THREADS_OF_8_BYTE_WORDS:
        idea = replace(shared_by(blocks, threads), vector_bytes=8, reduction=reduction)
        if WorkSplit(problem, idea).slots <= MAX_8_BYTE_WORDS_OF_FEW_ROWS:
            return idea
    return None


def _fewest_threads(problem: Problem, ideas: list[Config]) -> Config:
    """The first of some that has as few accesses a thread as the last.

    On an H200, 4 x 45001 bf16 takes 4 % less time by 192 threads that have two than by 256.
    """
    accesses = [WorkSplit(problem, idea).slots for idea in ideas]
    return ideas[accesses.index(accesses[-1])]


def _in_waves(problem: Problem, gpu: GpuSpec) -> Config:
    """Small blocks, of which an SM holds several clusters'.

    Blocks of less than 6 KiB are fewer bytes than the GPU can launch blocks for. On an H200, with
    rows for 64 MB, from 8200 columns to 36000: 97 to 98 % of copy in f32, 94 to 98 in bf16; 96 %
    at 60000 and 80000 f32. The widest rows are kept by the fewest threads that can: 256 x 262144
    f32 comes to 94 % so.
    """
    cols, most = numbers_of_row(problem), gpu.cluster_blocks
    if stays_packed(problem):
        return all_packed(problem, gpu)
    stretch = SHARE_FACTOR_FEW_ROWS if problem.rows < gpu.sm_count else 1
    small = (s._replace(share=stretch * s.share) for s in SHAPES[min(4, problem.dtype.itemsize)])
    least = MIN_THREADS_OF_WIDEST_LOGARITHM if problem.op.is_log else 0
    widest = (
        Shape(most, threads, share) for threads, share in SHAPES_OF_WIDEST_ROWS if threads >= least
    )
    of_f32 = problem.op.is_log and problem.dtype is DType.F32
    left_out = SHAPE_NOT_OF_LOGARITHM if of_f32 else None
    shapes = (s for s in (*small, *widest) if s.blocks <= most and s[:2] != left_out)
    shape = next(s for s in shapes if cols <= s.blocks * s.threads * s.share)
    kept = shared_by(shape.blocks, shape.threads)
    if shape.threads < THREADS_OF_FIRST_WARP:
        return kept
    return replace(kept, reduction="shuffle-first-warp")


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
    largest = 4 if problem.dtype.is_half else 8
    fitting = (u for u in (2, 4) if problem.row_bytes <= MAX_PARTS_OF_A_ROW * u * smallest)
    return replace(
        LOOPED,
        reduction=fastest_reduction(gpu),
        unroll=next(fitting, largest),
        launches="two-overlapped" if gpu.overlaps_launches else "two",
    )


# ------------------------------------------------------------------ clusters


MAX_ELEMENTS_PER_THREAD_ONE_WAVE = 72
"""Elements of a row that a thread keeps, at most, so that all rows are on the GPU at once."""

MIN_BYTES_PER_BLOCK_ONE_WAVE = 5 * 1024
"""Bytes of a row that are worth a block then: on an H200, 185 x 14104 bf16 takes 27 % more time by
8 blocks of 128 threads than by 4 of 256."""

BLOCK_THREADS_ONE_WAVE = (128, 160, 192, 256, 320, 384, 512)
"""Threads of a block where all rows are on the GPU at once."""

MAX_BLOCK_THREADS_ONE_WAVE = {2: 256, 4: 256, 8: 512, 16: 384}
"""Of these, the most for clusters of so many blocks."""

MAX_WAVES_ALIGNED_CLUSTERS = 1.02
"""Waves of blocks up to which clusters count as resident together, if rows start at whole accesses
and their exponentials are kept: on an H200, 100 x 32000 bf16 takes 5 % less time by 8 blocks of 256
threads, 1.01 of the estimated wave, than by 8 of 128."""

MAX_WAVES_HARDLY_MORE_THAN_ONE = 1.23
REGISTERS_HARDLY_MORE_THAN_ONE_WAVE = range(56, 65)
"""Waves up to which softmax of rows that start at whole accesses has eight blocks of 128 threads if
each thread keeps so many exponentials, rather than packed elements of 16 bits or sixteen blocks. On
an H200, 100 x 65536, of 1.22 waves, takes 7 % less time so in bf16 and 6 % in f32, on an H100 5 and
4 %. It is the one length that was timed with so many; 100 x 80000, of 80 and 1.5 waves, takes more
time so."""

MAX_COLS_UNPACKED = 32768
"""Elements of the widest 16-bit row whose exponentials are kept; of wider ones what was loaded."""

PACKED_ONE_WAVE = [(t, n) for t in BLOCK_THREADS_ONE_WAVE for n in (2, 3, 4, 6, 8) if t * n <= 1152]
"""Threads of a block, and blocks an SM, that have packed rows which are on the GPU all at once."""

PACKED_ONE_WAVE_SMALL_CLUSTERS = [(160, 8)]
"""The same, but not for the largest clusters: on an H200, 66 x 110000 f16 takes 8 % more so."""

PACKED_MANY_WAVES = [(128, 8), (160, 6), (160, 8), (192, 6), (192, 8), (256, 4)]
"""The same of more rows: 960 to 1536 threads."""

PACKED_LOGARITHMS = [(128, 4)]
"""The same of log_softmax, which needs more registers beside what is kept: on an H200, 668 x 50257
bf16 takes 11 % less time by 4 blocks of these than by 8 of 160 threads, of which an SM has 8."""

MAX_REGISTERS_PACKED_LOGARITHM = 64
"""Registers of a thread that hold what was loaded, at most, for log_softmax."""


def cluster_sizes(gpu: GpuSpec) -> list[int]:
    """Blocks of the clusters that there are: 2, 4, 8, 16."""
    return [blocks for blocks in (2, 4, 8, 16) if blocks <= gpu.cluster_blocks]


def stays_packed(problem: Problem) -> bool:
    """Whether rows are of 16 bits and so wide that what was loaded is better kept as it came."""
    return problem.dtype.is_half and problem.cols > MAX_COLS_UNPACKED


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
    kept = [
        split
        for split in splits
        if 1 < split.slots <= MAX_ELEMENTS_PER_THREAD_ONE_WAVE // split.width
    ]
    for split in sorted(kept, key=_preferred):
        whole = split.aligned and split.keeps_numbers
        most_waves = MAX_WAVES_ALIGNED_CLUSTERS if whole else 1.0
        if waves(problem, split.config, gpu) <= most_waves:
            return split.config
    return None


def _preferred(split: WorkSplit) -> tuple[int, bool, int]:
    """Return the order of clusters: fewer accesses a thread first, then exponentials, few blocks.

    On an H200, 300 x 12288 bf16 takes 12 % less time by 2 blocks of 256 threads than by 4 of 128.
    """
    numbers = split.keeps_numbers
    return split.slots, not numbers, split.config.cluster if numbers else 0


def _for_one_wave(problem: Problem, gpu: GpuSpec) -> Iterator[Config]:
    """All clusters for few rows: the largest but one first, the largest last."""
    *smaller, largest = cluster_sizes(gpu)
    for blocks in (*reversed(smaller), largest):
        if problem.row_bytes < blocks * MIN_BYTES_PER_BLOCK_ONE_WAVE:
            continue
        yield from (
            shared_by(blocks, t)
            for t in BLOCK_THREADS_ONE_WAVE
            if t <= MAX_BLOCK_THREADS_ONE_WAVE[blocks]
        )
        closely = PACKED_ONE_WAVE_SMALL_CLUSTERS if blocks < largest else []
        yield from _packed(problem, gpu, blocks, PACKED_ONE_WAVE + closely)


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
    shapes = PACKED_LOGARITHMS if problem.op.is_log else PACKED_MANY_WAVES
    sizes = cluster_sizes(gpu)
    ideas = [idea for blocks in sizes for idea in _packed(problem, gpu, blocks, shapes)]
    if problem.op.is_log:
        held = ((WorkSplit(problem, idea).cached_registers, idea) for idea in ideas)
        ideas = [idea for number, idea in held if number <= MAX_REGISTERS_PACKED_LOGARITHM]
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
