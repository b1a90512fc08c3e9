"""Gradients of rows of one block or less, without a search: both matrices are kept."""

import math
from dataclasses import replace

from explorer.model.config import Config
from explorer.model.gpu_spec import WARP, GpuSpec
from explorer.model.problem import Mask, Problem, power_of_two
from explorer.model.work_split import WorkSplit
from explorer.space.design_rules import WIDE_ROW, widest_word
from explorer.space.heuristic.many_rows import (
    largest_that_keeps_memory_busy,
    sizes_of_blocks,
)
from explorer.space.heuristic.residency import (
    are_few_for_hints,
    elements_of_an_sm,
    resident_blocks,
)
from explorer.space.heuristic.row_threads import (
    ACCESS_BYTES,
    MAX_BLOCK_THREADS,
    MIN_BLOCK_THREADS,
    row_of,
)
from explorer.space.rules import Point, registers_fit

MIN_8_BYTE_ACCESSES_PER_THREAD = 2.8
"""Accesses that each thread has, at least, to a 16-bit row that starts anywhere, by words of 8
bytes: these cross fewer of the words that memory has than words of 16 do. On an H200, 22355 x 1501
bf16 takes 1 % less time by 128 threads, which have 2.9, than by 64, and 16384 x 2047 18 % more by
256, which have 2.0, than by 128."""

SIZES_OF_8_BYTE_WORDS = (256, 128, 96, 64)
"""Threads of such a row, the most first. Rows too short for 64 threads get a warp each. On an H200,
9000 x 6546 bf16 takes 9 % more time by 512 threads than by 256, 9000 x 7001, 440 x 6821 and 896 x
7015 5 to 6 %, 17628 x 6852 4 %, and 3572 x 7574 1 % less; on an H100 500 x 6002 2 % more and 434 x
8170, which have other kernels, 1 % less to 7 % more."""

MAX_8_BYTE_ACCESSES_OF_WIDE_ROWS = 12
"""Accesses of a thread to a wider row, at most, where GPUs have no clusters that share it: 40001
elements are so kept in the registers of 1024 threads. Such rows were not timed."""

MAX_COLS_HALF_A_WARP = 255
"""Elements of the longest such row that half a warp has: on an H200, nine gradients of 171 to 255
columns and 14145 to 174756 rows take 5 to 26 % less time so than by a warp, on an H100 0 to 7 %,
but 30000 x 255 bf16 2 % more."""


# ------------------------------------------------------------------ rows that start anywhere


MIN_COLS_NARROW_WORDS = 330
"""Elements of the shortest row of a gradient that has a block of its own, by narrow words. On an
H200, 13 x 394 bf16 takes 5 % less time so than by a warp, and 3978 x 501 bf16 10 % less than by
words of 8 bytes; 5100 x 338 f32 2 % less than by 96 threads and words of 16."""

MIN_COLS_SINGLE_HALVES = 200
"""The same of 16-bit elements that only single words divide, in a gradient of softmax of no more
rows than SMs: on an H200, 8 x 321 bf16 takes 4 % less time so than by a warp, 22 x 291 2 %, 3 x 201
and 60 x 271 1 %, but 100 x 301 1 % more."""

MIN_COLS_NARROW_PAIRS_MORE_ROWS = 896
"""The same by pairs of 16-bit elements where rows are more than SMs. Shorter rows of these were not
timed by blocks; by a warp, 5100 x 338 bf16 is as fast as Triton on an H100."""

MIN_COLS_256_THREADS, MIN_COLS_256_THREADS_MORE_ROWS = 481, 896
"""Elements of the shortest row that may have more than 128 threads, and where rows are more than
SMs. On an H200, 2000 x 901 f32 takes 3 % more time by 128 threads than by 256, 300 x 701 bf16 1 %,
and 700 x 701 bf16 2 % more by 256 than by a warp."""

MAX_ELEMENTS_PER_SM = {(2, 2): 16_000, (2, 4): 33_000, (4, 4): 16_000, (4, 8): 16_000}
"""Elements of the rows of an SM up to which narrow words are faster than wider ones, by the bytes
of an element and of the widest word that divides rows. On an H200, 700 x 1501 bf16 takes 3 % less
time so than by words of 8 bytes."""

MAX_COLS_OF_MANY_PAIRS = 5120
"""Elements of the longest 16-bit row that is loaded by pairs however many rows there are: on an
H200, 4299 x 1758 bf16 takes 7 % less time by pairs than by words of 8 bytes, 10413 x 3826 2 % and
25872 x 1554 1 %, but 2819 x 6546 of log_softmax, which would have 768 threads, 6 % more."""

MIN_COLS_256_THREADS_MANY_PAIRS = 1280
"""Elements of the shortest row of pairs that has more than 128 threads, if an SM has more elements
than MAX_ELEMENTS_PER_SM: on an H200, 7280 x 1014 bf16 takes 6 % less time by 128 threads than by
256, which have less than two pairs each."""

MAX_COLS_MANY_ELEMENTS, MAX_ELEMENTS_PER_SM_LONGER = 1640, 10_000
"""Elements of the longest 16-bit row for which these are so many if single elements are loaded, and
how many they may be for others: 700 x 2501 bf16 takes 6 % more time so than by 8 bytes, 800 x 1801
3 %, but 900 x 1601 2 and 1143 x 1571 8 % less."""

MAX_COLS_NARROW_WORDS = {(2, 2): 4096, (2, 4): WIDE_ROW, (4, 4): 4096, (4, 8): 4096}
"""Elements of the longest row, by the same: 300 x 5001 f32 takes as long by words of 16 bytes."""

LONGER_ROWS_OF_NARROW_WORDS = {(2, 2): (7200, 512), (4, 8): (6500, 256)}
"""Elements of longer rows that are no more than SMs, by the same, and the threads that they have.
On an H200, 1 x 5001 and 3 x 4509 bf16 take 18 % less time by single elements than by words of 16
bytes, 60 x 4301 11 %, 132 x 4501 8 %, 3 x 7001 7 %, 40 x 5701 3 %, but 132 x 6001 as long and 24 x
7501 more; 3 x 4510 f32 5 % less by pairs and 16 x 6002 2 %, 2 x 8002 more."""

SIZES_NARROW_WORDS = (256, 384, 512, 768, MAX_BLOCK_THREADS)
"""Threads of a row by narrow words. Of shorter rows 192 to 512 are within 2 % of each other; the
gradient of log_softmax at 60 x 2201 f32 takes 5 % more time by 640 threads than by 768."""

MOST_WORDS_OF_A_THREAD = {(2, 2): 16, (2, 4): 6, (4, 4): 16, (4, 8): 4}
"""Narrow words that a thread has, at most. Pairs of 16-bit elements: on an H200, 500 x 6002 bf16
takes 10 % more time by 768 threads, which have 4, than by 512, on an H100 3 %, and 434 x 8170 8 %
more by 256 than by 1024."""

MOST_WORDS_OF_A_THREAD_F32 = 4
"""The same of the logarithm's rows of f32, and of single elements of softmax's where an SM has many
of rows of up to MAX_COLS_MORE_THREADS_F32: 60 x 2201 of the logarithm takes 45 % more time by 256
threads, 1000 x 1501 3 % more by 256 than by 384, 1143 x 1571 and 800 x 2001 2 % more than by
512."""

MIN_ELEMENTS_MORE_THREADS_F32, MAX_COLS_MORE_THREADS_F32 = 9_000, 2500
"""Elements of an SM that are many for that, and of the longest such row: 400 x 3501 takes 2 % more
time by 384 threads than by 256, 530 x 3001 1.5 %."""

MIN_COLS_MORE_THREADS_F32 = 600
"""Elements of the shortest such row: 2500 x 701 takes 4 % more time by 128 threads than by 256."""

MAX_WAVES_HALF_A_BLOCK = 1.25
"""Waves of blocks of 256 threads, from one on, for which 16-bit rows of single elements have 128:
on an H200, 1143 x 1571 bf16 takes 5 % less time so, 1200 x 1451 3 %."""

MIN_ELEMENTS_PER_SM_8_BYTES, MAX_ELEMENTS_PER_SM_8_BYTES = 10_000, 60_000
"""Elements of the rows of an SM for which 16-bit rows of single elements are loaded by 8 bytes, as
more rows are: 2500 x 1501 and 6000 x 1121 bf16 take 2 to 15 % less time so on an H200."""

COLS_8_BYTES = range(701, 5633)
"""Elements of the rows that are loaded so. On an H200, 300 and 400 x 5001 bf16 take 4 to 7 % less
time by words of 8 bytes than by words of 16."""

COLS_OF_256_THREADS = range(400, 513)
"""Elements of rows of f32, of which words of 16 bytes divide each, that 256 threads load by single
elements for the gradient of log_softmax: on an H200, 60, 132 and 400 x 512 take 2 to 3 % less time
so than by a warp, 1 x 512 4 %, on an H100 1 to 5 %."""

MAX_ELEMENTS_PER_SM_OF_256_THREADS = 2000
"""Elements of such rows of an SM, at most: on both GPUs, 1000 x 512 takes 1 % more time by 256
threads than by a warp."""

COLS_OF_128_THREADS = range(641, 1281)
"""Elements of rows of 16 bits, of which words of 8 bytes divide each, that 128 threads have for the
gradient of log_softmax where hints gain nothing: by 64, of which a block has two rows, the compiler
moves loads behind the sum, and 1 x 700 takes 20 % more time on two GPUs."""


def of_narrow_words(problem: Problem, gpu: GpuSpec) -> Config | None:
    """A block for each of few rows that start anywhere, by the words that divide them, and for many
    rows by pairs of 16 bits.

    So also for some rows of a logarithm that wider words divide (`_of_few_rows_of_logarithm`).
    Wider words start elsewhere in each row, and their ends are a matter of other loads. On an H200,
    1 x 1683 bf16 takes 26 % less time by single elements than by words of 16 bytes, 1 x 1502 32 %
    by pairs, 1000 x 1121 f32 13 %. A few more rows of 16 bits are loaded by 8 bytes.
    """
    if problem.inner > 1 or problem.mask is not Mask.NONE or problem.cols >= WIDE_ROW:
        return None
    word, elements = widest_word(problem), elements_of_an_sm(problem, gpu)
    if _suit_narrow_words(problem, gpu, word):
        return replace(row_of(_threads_of_narrow_words(problem, gpu, word)), vector_bytes=word)
    if problem.op.is_log and word > 2 * problem.dtype.itemsize:
        return _of_few_rows_of_logarithm(problem, gpu, word)
    few = MIN_ELEMENTS_PER_SM_8_BYTES < elements <= MAX_ELEMENTS_PER_SM_8_BYTES
    if word != 2 or not few or problem.cols not in COLS_8_BYTES:
        return None
    return _by_8_byte_words_that_start_anywhere(problem)


def _of_few_rows_of_logarithm(problem: Problem, gpu: GpuSpec, word: int) -> Config | None:
    """A block for each of few rows that words of 8 or 16 bytes divide; None for most of them.

    By single elements of f32, or by words of 8 bytes for elements of 16 bits.
    """
    size, cols = problem.dtype.itemsize, problem.cols
    if (size, word) == (4, ACCESS_BYTES) and cols in COLS_OF_256_THREADS:
        few = elements_of_an_sm(problem, gpu) <= MAX_ELEMENTS_PER_SM_OF_256_THREADS
        return replace(row_of(256), vector_bytes=4) if few else None
    if (size, word) == (2, 8) and cols in COLS_OF_128_THREADS and are_few_for_hints(problem, gpu):
        return replace(row_of(128), vector_bytes=8)
    return None


def _suit_narrow_words(problem: Problem, gpu: GpuSpec, word: int) -> bool:
    """Whether rows are loaded by the words of so many bytes that divide them: most only where an SM
    has few of their elements.
    """
    kind = (problem.dtype.itemsize, word)
    if kind not in MAX_ELEMENTS_PER_SM:
        return False
    if _are_longer_of_narrow_words(problem, gpu, word):
        return True
    shorter = COLS_8_BYTES.start <= problem.cols < MIN_COLS_256_THREADS_MORE_ROWS
    by_8_bytes = word == 2 and (
        (shorter and problem.rows > gpu.sm_count) or problem.cols > MAX_COLS_MANY_ELEMENTS
    )
    allowed = MAX_ELEMENTS_PER_SM_LONGER if by_8_bytes else MAX_ELEMENTS_PER_SM[kind]
    pairs = kind == (2, 4) and problem.cols <= MAX_COLS_OF_MANY_PAIRS
    fits = pairs or elements_of_an_sm(problem, gpu) <= allowed
    least = _min_cols_of_narrow_words(problem, gpu, kind)
    return least <= problem.cols <= MAX_COLS_NARROW_WORDS[kind] and fits


def _min_cols_of_narrow_words(problem: Problem, gpu: GpuSpec, kind: tuple[int, int]) -> int:
    """Elements of the shortest row that has a block, by the bytes of an element and of a word."""
    more_rows = problem.rows > gpu.sm_count
    if kind == (2, 4) and more_rows:
        return MIN_COLS_NARROW_PAIRS_MORE_ROWS
    single = kind == (2, 2) and not problem.op.is_log
    return MIN_COLS_SINGLE_HALVES if single and not more_rows else MIN_COLS_NARROW_WORDS


def _are_longer_of_narrow_words(problem: Problem, gpu: GpuSpec, word: int) -> bool:
    """Whether rows are longer than others that narrow words suit, and no more than SMs."""
    kind = (problem.dtype.itemsize, word)
    longest, _ = LONGER_ROWS_OF_NARROW_WORDS.get(kind, (0, 0))
    longer = MAX_COLS_NARROW_WORDS[kind] < problem.cols <= longest
    return longer and problem.rows <= gpu.sm_count


def _threads_of_narrow_words(problem: Problem, gpu: GpuSpec, word: int) -> int:
    """So many that each has no more words than is best; 128 of shorter rows.

    Also 128 where 256 would leave hardly more rows than are resident at once.
    """
    kind = (problem.dtype.itemsize, word)
    if _are_longer_of_narrow_words(problem, gpu, word):
        return LONGER_ROWS_OF_NARROW_WORDS[kind][1]
    most = MOST_WORDS_OF_A_THREAD[kind]
    more = kind == (4, 4) and _have_more_threads(problem, gpu)
    if more or (problem.op.is_log and problem.dtype.itemsize == 4):
        most = MOST_WORDS_OF_A_THREAD_F32
    few = problem.rows <= gpu.sm_count
    least = MIN_COLS_256_THREADS if few else MIN_COLS_256_THREADS_MORE_ROWS
    if kind == (2, 4) and elements_of_an_sm(problem, gpu) > MAX_ELEMENTS_PER_SM[kind]:
        least = MIN_COLS_256_THREADS_MANY_PAIRS
    if problem.cols < (MIN_COLS_MORE_THREADS_F32 if more else least):
        return MIN_BLOCK_THREADS
    needed = problem.row_bytes / word / most
    threads = next((n for n in SIZES_NARROW_WORDS if n >= needed), MAX_BLOCK_THREADS)
    hardly_more = 1 < problem.rows / resident_blocks(gpu, threads) <= MAX_WAVES_HALF_A_BLOCK
    return MIN_BLOCK_THREADS if kind == (2, 2) and threads == 256 and hardly_more else threads


def _have_more_threads(problem: Problem, gpu: GpuSpec) -> bool:
    """Whether an SM has many elements of rows of f32 that are not long."""
    many = elements_of_an_sm(problem, gpu) > MIN_ELEMENTS_MORE_THREADS_F32
    return many and problem.cols <= MAX_COLS_MORE_THREADS_F32


# ------------------------------------------------------------------ rows of one block


def of_many_waves(problem: Problem, gpu: GpuSpec) -> Config:
    """A row by the largest block that keeps memory busy; 16-bit rows that start anywhere by words
    of 8 bytes; the shortest by a warp or less.

    On an H200, 300 to 4096 columns take 1 to 2 % less time with one access of each thread than with
    two, if its blocks keep memory busy. On an H100, fewer bytes under way are enough, and blocks
    may have threads without an access.
    """
    if problem.row_bytes % ACCESS_BYTES > 0 and problem.dtype.is_half:
        return _by_8_byte_words_that_start_anywhere(problem)
    vectors = WorkSplit(problem, Config(vector_bytes=ACCESS_BYTES)).row_vectors
    if vectors <= WARP:
        return row_of(power_of_two(vectors))
    ideas = [replace(row_of(n), cache_holds="input") for n in sizes_of_blocks(problem)]
    return largest_that_keeps_memory_busy(ideas, problem, gpu)


def _by_8_byte_words_that_start_anywhere(problem: Problem) -> Config:
    """16-bit rows by words of 8 bytes, of which a thread of most rows has three to eight."""
    words = WorkSplit(problem, Config(vector_bytes=8)).row_vectors
    if problem.cols >= WIDE_ROW:
        threads = power_of_two(math.ceil(words / MAX_8_BYTE_ACCESSES_OF_WIDE_ROWS))
        return replace(row_of(min(threads, MAX_BLOCK_THREADS)), vector_bytes=8)
    most = words / MIN_8_BYTE_ACCESSES_PER_THREAD
    least = WARP // 2 if problem.cols <= MAX_COLS_HALF_A_WARP else WARP
    threads = next((n for n in SIZES_OF_8_BYTE_WORDS if n <= most), least)
    return replace(row_of(threads), vector_bytes=8)


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
