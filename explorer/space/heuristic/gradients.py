"""Configs without a search for gradients along memory, which read two matrices and keep both."""

import math
from dataclasses import replace

from explorer.config import Config
from explorer.gpu_spec import WARP, GpuSpec
from explorer.parameters import WARPS
from explorer.problem import Mask, Op, Problem, power_of_two
from explorer.space.design_rules import WIDE_ROW, has_spans, widest_word
from explorer.space.heuristic.residency import elements_of_an_sm, resident_rows
from explorer.space.heuristic.row_threads import ACCESS_BYTES, starts_anywhere
from explorer.space.heuristic.short_rows import span_of
from explorer.space.heuristic.wide_rows import (
    THREADS_OF_FIRST_WARP,
    are_fewest,
    fewest_blocks,
    shared_by,
)
from explorer.space.rules import Point, registers_fit
from explorer.work_split import WorkSplit

MAX_BLOCK_THREADS = 1024

MIN_BLOCK_THREADS = 4 * WARP
"""Threads of a block, in which shorter rows share one."""

MAX_8_BYTE_ACCESSES_PER_THREAD = 12
"""Accesses to a 16-bit row that starts anywhere: words of 8 bytes cross fewer of the words that
memory has. On an H200, 6710 x 5001 bf16 takes 12 to 16 % less time by 10 of them for each of 128
threads than by four words of 16 bytes for each of 160."""

POWERS_THAT_FILL_AN_SM = (32, 512, 1024)
"""Sizes of blocks that are powers of two and yet worth it: others lose 1 % to the next size that is
none, of which an SM holds fewer threads."""

SIZES = tuple(n for n in WARPS if n & (n - 1) or n in POWERS_THAT_FILL_AN_SM)

LATENCY_NS = 1140
"""Nanoseconds for which an SM's share of the memory's bandwidth is to be busy with what its blocks
load at once. On an H200, 6452 x 5200 bf16 takes 15 % more time by two blocks of 768 threads, with
740 ns, than by three of 384, with 1320. On an H100, whose memory is slower, it takes 1 % more."""

BLOCKS_NOT_LOADING = 0.7
"""Blocks of an SM, in the mean, that store or wait for their threads."""


# ------------------------------------------------------------------ rows that a cluster shares


MIN_ROW_BYTES_8_BLOCKS = 32 * 1024
"""Bytes of the shortest row that eight blocks share; four share shorter ones. On an H200, 4096 x
8192 bf16 takes 58 % more time by eight blocks, with 2 KiB of each matrix for each."""

MAX_REGISTERS_OF_A_BLOCK = {2: 14 * 1024, 4: 16 * 1024}
"""Registers of a block that hold its part of both rows, at most, by the bytes of an element, where
eight share them or less: wider rows have the largest cluster. On an H200, 262 x 128256 bf16 takes
9 % more time by eight blocks, 8 x 65536 f32 10 % less."""

MIN_BLOCKS_PER_SM_UNALIGNED = 4
"""Blocks for each SM that 16-bit rows which start anywhere are to have by the fewest blocks that
hold them: on an H200, 34 x 27674 f16 takes 12 % more time by 2 blocks than by 8."""

MAX_REGISTERS_PER_THREAD = {2: 64, 4: 56}
"""Registers of a thread that hold its share of both rows, at most, by the bytes of an element."""

MAX_REGISTERS_PER_THREAD_LARGEST = 64
"""The same for elements of 32 bits in the largest cluster."""

MAX_REGISTERS_PER_THREAD_LOGARITHM = 40
"""The same where exponentials are computed, too: on an H200, the gradient of log_softmax at 131 x
128256 f32 takes 30 % more time by 256 threads, which hold 62, than by 512."""

MAX_REGISTERS_PER_THREAD_UNALIGNED = 100
"""The same of 32-bit rows that start anywhere: on an H200, 32 x 50257 takes 12 % more time by 256
threads than by 128, which hold 98."""

MAX_REGISTERS_KEPT = 80
"""Registers of a thread that hold its share, at most, in the largest blocks: on an H100, 3 x 767895
bf16 takes 24 % less time from shared memory than if threads hold 94."""

MAX_REGISTERS_KEPT_BY_FEW_ROWS = 60
"""The same of rows of which four blocks each find an SM, but not sixteen: on an H200, 8 x 262144
f32 takes 17 % less time by 8 blocks that read it twice than by 16 of whose threads each holds 64,
32 x 524288 bf16 12 % less."""

MANY_REGISTERS = 40
"""Registers of a thread's share of 16-bit rows beyond which the compiler is told to leave room for
MIN_THREADS_PER_SM. On an H200, 400 x 100001 bf16 takes 36 % more time without it."""

MIN_THREADS_PER_SM = 512

MAX_REGISTERS_PER_THREAD_FEW_ROWS = 40
"""Registers of a thread's share where rows are so few that eight blocks for each have an SM of
their own: on an H200, 8 x 131072 bf16 takes 10 % less time by 8 blocks of 512 threads than by 16 of
256."""

MIN_ROW_BYTES_LARGEST_FEW_ROWS = 64 * 1024
"""Bytes of the shortest of those rows that the largest cluster shares, if three of its blocks in
four find an SM."""

BLOCK_THREADS = {2: (128, 256, 512), 4: (128, 256, 384, 512)}
"""Threads of a block, by the bytes of an element: on an H200, 16-bit rows take up to 45 % more time
by blocks of 384 than by 256."""

MAX_CLUSTER_THREADS = 512

MAX_BLOCKS_ALL_WARPS = 8
"""Blocks of a cluster up to which all warps combine what they found, however many there are: by a
first warp alone, the gradient of log_softmax at 8 x 151936 takes 8 to 13 % more time."""


def of_wide_rows(problem: Problem, gpu: GpuSpec) -> Config:
    """A row by a cluster, which keeps both matrices, or by large blocks that read them twice.

    On an H200, a block a row takes 1.0 to 1.3 times as long at 8192 to 32768 columns, 1.7 times at
    128256, and 7 times for 1 x 262144.
    """
    few = 8 * problem.rows <= gpu.sm_count
    if few and (problem.dtype.is_half or not are_fewest(problem, gpu)):
        kept = _of_few_rows(problem, gpu)
        if kept is not None:
            return kept
    return _of_many_rows(problem, gpu)


def _of_few_rows(problem: Problem, gpu: GpuSpec) -> Config | None:
    """Many threads for each row; None where they would keep more than they should."""
    most, fewest = gpu.cluster_blocks, are_fewest(problem, gpu)
    largest = fewest and problem.row_bytes >= MIN_ROW_BYTES_LARGEST_FEW_ROWS
    sizes = ((min(8, most), not largest), (most, fewest))
    for blocks in (blocks for blocks, applies in sizes if applies):
        threads = _threads_of_a_part(problem, blocks, MAX_REGISTERS_PER_THREAD_FEW_ROWS)
        if _registers(problem, blocks, threads) <= MAX_REGISTERS_KEPT:
            return _shared_by(blocks, threads)
    return None


def _of_many_rows(problem: Problem, gpu: GpuSpec) -> Config:
    blocks = _blocks_of_a_row(problem, gpu)
    threads = _threads_of_a_part(problem, blocks, _most_registers(problem, gpu, blocks))
    share = _registers(problem, blocks, threads)
    few = 4 * problem.rows <= gpu.sm_count and not are_fewest(problem, gpu)
    most = MAX_REGISTERS_KEPT_BY_FEW_ROWS if few else MAX_REGISTERS_KEPT
    if threads == MAX_CLUSTER_THREADS and share > most:
        return _of_rows_too_wide(problem, gpu)
    kept = _shared_by(blocks, threads)
    if problem.dtype.is_half and share > MANY_REGISTERS:
        return replace(kept, min_blocks=max(1, MIN_THREADS_PER_SM // threads))
    return kept


def _blocks_of_a_row(problem: Problem, gpu: GpuSpec) -> int:
    """Eight, if they hold the row; and fewer for shorter rows, or for 16-bit rows that start
    anywhere where these are many.

    On an H200, 668 x 50257 bf16 takes 1 to 3 % less time by 4 blocks than by 8, 406 x 8943 9 % less
    by 2 than by 4.
    """
    most = gpu.cluster_blocks
    least = min(most, 8 if problem.row_bytes >= MIN_ROW_BYTES_8_BLOCKS else 4)
    if problem.dtype.is_half and starts_anywhere(problem):
        each = MIN_BLOCKS_PER_SM_UNALIGNED * gpu.sm_count / problem.rows
        least = next((blocks for blocks in (2, 4) if blocks >= each), least)
    held = MAX_REGISTERS_OF_A_BLOCK[min(4, problem.dtype.itemsize)]
    return fewest_blocks(problem.row_bytes // 2, held, least=least, most=most)


def _most_registers(problem: Problem, gpu: GpuSpec, blocks: int) -> int:
    """Registers of a thread's share of both rows for which its block is large enough."""
    largest = blocks == gpu.cluster_blocks > 8
    if problem.op.is_log and largest:
        return MAX_REGISTERS_PER_THREAD_LOGARITHM
    if problem.dtype.is_half:
        return MAX_REGISTERS_PER_THREAD[2]
    if starts_anywhere(problem):
        return MAX_REGISTERS_PER_THREAD_UNALIGNED
    return MAX_REGISTERS_PER_THREAD_LARGEST if largest else MAX_REGISTERS_PER_THREAD[4]


def _of_rows_too_wide(problem: Problem, gpu: GpuSpec) -> Config:
    """Few rows from the shared memory of the largest clusters, others read twice.

    On an H200, 3 x 767895 bf16 takes 15 % less time so than by blocks of 256 threads.
    """
    most = gpu.cluster_blocks
    in_shared = replace(
        _shared_by(most, MAX_CLUSTER_THREADS), cache="shared", cache_holds="input", unroll=4
    )
    fits = WorkSplit(problem, in_shared).shared_bytes <= gpu.shared_per_block_bytes
    if are_fewest(problem, gpu) and fits:
        return in_shared
    twice = _shared_by(min(8, most), MAX_BLOCK_THREADS)
    return replace(twice, cache="none", cache_holds="input", unroll=4)


def _threads_of_a_part(problem: Problem, blocks: int, most_registers: int) -> int:
    """The smallest block whose threads hold no more than that, or the largest."""
    sizes = BLOCK_THREADS[min(4, problem.dtype.itemsize)]
    fitting = (n for n in sizes if _registers(problem, blocks, n) <= most_registers)
    return next(fitting, MAX_CLUSTER_THREADS)


def _registers(problem: Problem, blocks: int, threads: int) -> float:
    """Registers of a thread that hold its share of both rows, as they were loaded."""
    return 2 * problem.row_bytes / 4 / (blocks * threads)


def _shared_by(blocks: int, threads: int) -> Config:
    """As rows of the forward, with the reduction that suits both rows of a gradient."""
    first_warp = blocks > MAX_BLOCKS_ALL_WARPS and threads >= THREADS_OF_FIRST_WARP
    reduction = "shuffle-first-warp" if first_warp else "shuffle"
    return replace(shared_by(blocks, threads), reduction=reduction)


# ------------------------------------------------------------------ short rows that start anywhere


MAX_COLS_SHORT = 80
"""Columns of the longest row that is loaded by single elements or by way of a span, where 16 bytes
do not divide it: on an H200, 300000 x 65 f32 takes 6 % less time so than by words of 16 bytes."""

MAX_COLS_SHORT_16_BIT = 160
"""The same of 16-bit rows that 8 bytes do not divide: on an H200, 100000 x 129 bf16 takes 1 % more
time by way of a span than by elements, on an H100 6 % less, and 174756 x 209 f16 1 % more than by
words of 8 bytes on both."""

ELEMENTS_PER_THREAD = 4
"""Single elements of more than 16 bits that a thread has of such a row, at least."""

ELEMENTS_PER_THREAD_NO_EXPONENTIAL = 2
"""The same of softmax_backward, which computes no exponential: on an H200, 17 columns take 14 %
less time by 8 threads than by 4."""

ELEMENTS_PER_THREAD_16_BIT = 2.5
"""The same of 16 bits: on an H200, 49166 x 23 f16 takes 38 % more time by 4 threads than by 8, on
an H100 33 %, and 500000 x 65 bf16 22 and 6 % more by 32 than by 16."""

PAIRS_PER_THREAD = 2
"""Pairs of 16-bit elements that a thread has, at least, where they divide rows."""

MIN_L2_SHARE_SPANS = {2: 0.5, 4: 2.0}
"""Bytes of all three matrices over those of the L2 cache, by the bytes of an element, above which
spans bring them. On an H200, 1973790 x 17 bf16 takes 37 % less time so, 1016801 x 33 30 %, 300000 x
21 15 %, but 60000 x 45, of 16 MB, 4 % more; on an H100 13, 14, 4 and 3 %. In f32, 508400 x 33 takes
2 to 4 % less time so and 986895 x 17 7 to 9 %, on an H100 1 % less to 2 % more. With 50 MB, 200000
x 21 takes 1 % more on both."""

MAX_COLS_SPAN_F32 = 40
"""Columns of the longest row of f32 that was tried with so many rows."""


def are_short(problem: Problem) -> bool:
    """Whether rows are so short, and start anywhere, that words of 16 bytes do not suit them."""
    word = widest_word(problem)
    if problem.inner > 1 or word == ACCESS_BYTES:
        return False
    if problem.dtype.is_half:
        return word < 8 and problem.cols <= MAX_COLS_SHORT_16_BIT
    return problem.cols <= MAX_COLS_SHORT


def of_short_rows(problem: Problem, gpu: GpuSpec) -> Config:
    """Many rows by way of spans, others straight to their threads, by elements or in pairs.

    Of 16 bits, rows of whole pairs take 1 to 28 % less time by these than by a span or by elements
    on an H200, but 800000 x 34 4 % more.
    """
    word = widest_word(problem)
    if problem.dtype.is_half and word == 4:
        threads = _power_of_two_below(problem.cols / 2 / PAIRS_PER_THREAD)
        return replace(_by(min(threads, WARP)), vector_bytes=word)
    if _are_brought_by_spans(problem, gpu):
        span = span_of(problem, gpu)
        return span if problem.dtype.is_half else replace(span, threads=128, threads_per_row=2)
    threads = _power_of_two_below(problem.cols / _least_elements(problem))
    return replace(_by(min(threads, WARP)), vector_bytes=problem.dtype.itemsize)


def _are_brought_by_spans(problem: Problem, gpu: GpuSpec) -> bool:
    size = problem.dtype.itemsize
    if size not in MIN_L2_SHARE_SPANS or not has_spans(problem):
        return False
    if size == 4 and problem.cols > MAX_COLS_SPAN_F32:
        return False
    return problem.bytes > MIN_L2_SHARE_SPANS[size] * gpu.l2_bytes


def least_rows_of_spans(problem: Problem, gpu: GpuSpec) -> int:
    """A number of rows from which more of them change no choice between spans and elements."""
    most = max(MIN_L2_SHARE_SPANS.values()) * gpu.l2_bytes
    return int(most * problem.rows / problem.bytes) + 1


def _least_elements(problem: Problem) -> float:
    if problem.dtype.is_half:
        return ELEMENTS_PER_THREAD_16_BIT
    exponentiates = problem.op is not Op.SOFTMAX_BACKWARD
    return ELEMENTS_PER_THREAD if exponentiates else ELEMENTS_PER_THREAD_NO_EXPONENTIAL


def _power_of_two_below(most: float) -> int:
    return 1 << max(1, int(most)).bit_length() - 1


# ------------------------------------------------------------------ few rows that start anywhere


MIN_COLS_NARROW_WORDS = 481
"""Elements of the shortest row of a gradient that has a block of its own, by narrow words."""

MIN_COLS_NARROW_WORDS_MORE_ROWS = 1001
"""Elements of the shortest such row where rows are more than SMs: 700 x 701 bf16 takes 2 % less
time by a warp for each."""

MAX_ELEMENTS_PER_SM = {(2, 2): 16_000, (2, 4): 33_000, (4, 4): 16_000}
"""Elements of the rows of an SM up to which narrow words are faster than wider ones, by the bytes
of an element and of the widest word that divides rows. On an H200, 700 x 1501 bf16 takes 3 % less
time so than by words of 8 bytes."""

MAX_COLS_MANY_ELEMENTS, MAX_ELEMENTS_PER_SM_LONGER = 1536, 10_000
"""Elements of the longest 16-bit row for which these are so many if single elements are loaded, and
how many they may be for others: 700 x 2501 bf16 takes 6 % more time so than by 8 bytes. The
gradient of log_softmax was not timed with more."""

MAX_COLS_NARROW_WORDS_F32 = 4096
"""Elements of the longest row of f32 that has a block of its own, by words of 4 bytes: 300 x 5001
takes as long by words of 16."""

THREADS_NARROW_WORDS = 256
"""Threads of a row by narrow words, at least: 192 to 512 are within 2 % of each other."""

PAIRS_OF_A_THREAD = 4
"""Pairs of 16-bit elements that a thread has, at most: on an H200, by 256 threads 434 x 8170 bf16
takes 8 % more time than by 1024, 1000 x 3002 2 % more than by 384."""

MAX_ELEMENTS_PER_SM_8_BYTES = 60_000
"""Elements of the rows of an SM up to which 16-bit rows that are loaded by 8 bytes have more
threads than many rows have: 1731 x 1121, 2500 x 1501 and 6000 x 1121 bf16 take 2 to 15 % less time
on an H200."""

MIN_COLS_8_BYTES, MAX_COLS_8_BYTES = 701, 4096
"""Elements of the shortest and of the longest row that has these threads."""

ELEMENTS_OF_A_THREAD_8_BYTES = 15
"""Elements that a thread of a few 16-bit rows by 8 bytes has, at most, if fewer than 128 do."""


def of_narrow_words(problem: Problem, gpu: GpuSpec) -> Config | None:
    """A block for each of few rows that start anywhere, by the words that divide them.

    Wider words start elsewhere in each row, and their ends are a matter of other loads. On an H200,
    1 x 1683 bf16 takes 26 % less time by single elements than by words of 16 bytes, 1 x 1502 32 %
    by pairs, 1000 x 1121 f32 13 %. A few more rows of 16 bits are loaded by 8 bytes. None for
    others, nor for the logarithm's of f32: 60 x 2201 takes 45 % more time by 256 threads.
    """
    plain = problem.inner == 1 and problem.mask is Mask.NONE and problem.cols < WIDE_ROW
    if not plain or (problem.op.is_log and not problem.dtype.is_half):
        return None
    word = widest_word(problem)
    if _are_few_for_narrow_words(problem, gpu, word):
        return replace(_by(_threads_of_narrow_words(problem, word)), vector_bytes=word)
    few = word == 2 and elements_of_an_sm(problem, gpu) <= MAX_ELEMENTS_PER_SM_8_BYTES
    if not few or not MIN_COLS_8_BYTES <= problem.cols <= MAX_COLS_8_BYTES:
        return None
    needed = problem.cols / ELEMENTS_OF_A_THREAD_8_BYTES
    threads = next((n for n in (2 * WARP, 3 * WARP) if n >= needed), MIN_BLOCK_THREADS)
    return replace(_by(threads), vector_bytes=8)


def _are_few_for_narrow_words(problem: Problem, gpu: GpuSpec, word: int) -> bool:
    """Whether an SM has so few elements of rows that words of so many bytes divide."""
    size = problem.dtype.itemsize
    if (size, word) not in MAX_ELEMENTS_PER_SM:
        return False
    more_rows = problem.rows > gpu.sm_count
    least = MIN_COLS_NARROW_WORDS_MORE_ROWS if more_rows else MIN_COLS_NARROW_WORDS
    most = MAX_COLS_NARROW_WORDS_F32 if size == 4 else WIDE_ROW
    longer = word == 2 and (problem.cols > MAX_COLS_MANY_ELEMENTS or problem.op.is_log)
    allowed = MAX_ELEMENTS_PER_SM_LONGER if longer else MAX_ELEMENTS_PER_SM[size, word]
    return least <= problem.cols <= most and elements_of_an_sm(problem, gpu) <= allowed


def _threads_of_narrow_words(problem: Problem, word: int) -> int:
    if word == problem.dtype.itemsize:
        return THREADS_NARROW_WORDS
    sizes = (n for n in WARPS if n % MIN_BLOCK_THREADS == 0)
    needed = max(THREADS_NARROW_WORDS, problem.cols / 2 / PAIRS_OF_A_THREAD)
    return next((n for n in sizes if n >= needed), MAX_BLOCK_THREADS)


# ------------------------------------------------------------------ rows of one block


def of_many_waves(problem: Problem, gpu: GpuSpec) -> Config:
    """A row by a warp or block, each of whose threads has as few accesses as a block can have.

    On an H200, from 300 to 4096 columns, 1 to 2 % less time with one access than with two, unless
    blocks are so large that their loads do not keep the memory busy.
    """
    if problem.row_bytes % ACCESS_BYTES > 0 and problem.dtype.is_half:
        words = WorkSplit(problem, Config(vector_bytes=8)).row_vectors
        threads = power_of_two(math.ceil(words / MAX_8_BYTE_ACCESSES_PER_THREAD))
        return replace(_by(min(max(WARP, threads), MAX_BLOCK_THREADS)), vector_bytes=8)
    vectors = WorkSplit(problem, Config(vector_bytes=ACCESS_BYTES)).row_vectors
    if vectors <= WARP:
        return _by(power_of_two(vectors))
    if vectors > MAX_BLOCK_THREADS:
        accesses = math.ceil(vectors / MAX_BLOCK_THREADS)
        return _by(next((n for n in SIZES if n * accesses >= vectors), MAX_BLOCK_THREADS))
    by_one_access = next(place for place, n in enumerate(SIZES) if n >= vectors)
    sizes = [n for n in SIZES[: by_one_access + 1] if n < 2 * vectors]  # half of them have work
    ideas = [_by(n) for n in reversed(sizes)]
    return next((idea for idea in ideas if _keeps_memory_busy(idea, problem, gpu)), ideas[0])


def _keeps_memory_busy(idea: Config, problem: Problem, gpu: GpuSpec) -> bool:
    """Whether the loads of an SM's blocks last for LATENCY_NS; on an unknown GPU they do."""
    kept = replace(idea, cache_holds="input")
    resident = resident_rows(problem, kept, gpu) / gpu.sm_count
    rows = resident - BLOCKS_NOT_LOADING * kept.rows_per_block
    return rows * 2 * problem.row_bytes >= LATENCY_NS * gpu.peak_gbps / gpu.sm_count


def kept(idea: Config, problem: Problem, gpu: GpuSpec) -> Config:
    """The idea with both matrices in registers, or reading them twice where these are too many.

    On an H200, rows of 20000 f32 leave few registers of a thread in a block of 1024, and take 10 to
    14 % less time so than if they are read twice; rows of 32768 bf16 take 4 to 28 % less time than
    from shared memory.
    """
    held = replace(idea, cache_holds="input")
    if registers_fit(Point(problem, gpu, held)):
        return held
    return replace(
        held,
        threads=MAX_BLOCK_THREADS,
        threads_per_row=MAX_BLOCK_THREADS,
        vector_bytes=16,
        cache="none",
        unroll=4,
    )


def _by(threads: int) -> Config:
    """A row by so many threads, in blocks of MIN_BLOCK_THREADS at least if they are whole rows."""
    whole = MIN_BLOCK_THREADS % threads == 0
    return Config(
        threads=MIN_BLOCK_THREADS if whole else threads,
        threads_per_row=threads,
        exp="ex2.approx",
    )
