"""Configs without a search for gradients of short rows that words of 16 bytes do not divide."""

import math
from dataclasses import replace

from explorer.model.config import Config
from explorer.model.dtype import DType
from explorer.model.gpu_spec import WARP, GpuSpec
from explorer.model.problem import Problem, power_of_two
from explorer.space.design_rules import has_spans, widest_word
from explorer.space.heuristic.residency import is_of_few_bytes, resident_threads
from explorer.space.heuristic.row_threads import ACCESS_BYTES, row_of
from explorer.space.heuristic.short_rows import span_of

MAX_COLS_SHORT = 80
"""Columns of the longest row that is loaded by single elements or by way of a span, where 16 bytes
do not divide it: on an H200, 300000 x 65 f32 takes 6 % less time so than by words of 16 bytes."""

MAX_COLS_SHORT_16_BIT = 160
"""The same of 16-bit rows that 8 bytes do not divide: on an H200, 100000 x 129 bf16 takes 1 % more
time by way of a span than by elements, on an H100 6 % less, and 174756 x 209 f16 1 % more than by
words of 8 bytes on both."""

ELEMENTS_PER_THREAD = 2
"""Single elements of more than 16 bits that a thread has of such a row, at least, where it computes
no exponentials: on an H200, 17 columns take 14 % less time by 8 threads than by 4."""

ELEMENTS_PER_THREAD_16_BIT = 2.5
"""The same of 16 bits: on an H200, 49166 x 23 f16 takes 38 % more time by 4 threads than by 8, on
an H100 33 %, and 500000 x 65 bf16 22 and 6 % more by 32 than by 16."""

PAIRS_PER_THREAD, MAX_PAIRS_OF_ONE_THREAD = 2, 5
"""Pairs of 16-bit elements that a thread has, at least, where they divide rows, and how many one
thread has alone: on an H200, 240000 x 10 bf16 takes 7 % less time by one thread than by two."""

MAX_PAIRS_SPAN_LOGARITHM = 12
"""Pairs of the longest row that spans may bring where exponentials are computed: on an H200, the
gradient of log_softmax takes 3 to 5 % less time so at 171428 x 14 and 109090 x 22 bf16."""

MIN_L2_SHARE_SPANS = {2: 0.5, 4: 2.0}
"""Bytes of all three matrices over those of the L2 cache, by the bytes of an element, above which
spans bring any rows. On an H200, 1973790 x 17 bf16 takes 37 % less time so, 1016801 x 33 30 %, on
an H100 13 and 14 %. In f32, 508400 x 33 takes 2 to 4 % less time so and 986895 x 17 7 to 9 %, on an
H100 1 % less to 2 % more. With 50 MB, 200000 x 21 f32 takes 1 % more on both."""

MAX_COLS_SPAN_F32 = 40
"""Columns of the longest row of f32 that was tried with so many rows."""

MIN_L2_SHARE_SPANS_OF_SHORTEST, MIN_SHARE_OF_THREADS = 0.08, {2: 0.3, 4: 0.5}
"""The same for the shortest rows, and the threads that work on spans over those that the GPU holds,
at least. On an H200, 184615 x 13, 342857 x 7 and 88888 x 27 bf16 take 8 to 20 % less time by
spans, 143012 x 7 f16 7 %, but 60000 x 45 bf16 4 % more. In f32, 184615 x 13 takes 9 % less, 23076 x
13 6 % more."""

MIN_COLS_SHORTEST_16_BIT, MAX_COLS_SHORTEST_16_BIT = 6, 56
"""Columns of these rows of 16 bits: on an H200, 1000000 x 5 takes as long by a span."""

MAX_COLS_SHORTEST_F32 = 16
"""Columns of the longest of these rows of f32 that 8 bytes do not divide: 88888 x 27 takes 1 % more
time by spans. Where exponentials are computed, too, it is MAX_COLS_SPAN_F32, whatever divides rows:
the gradient of log_softmax at 88888 x 27 takes 31 % less time so than by 4 threads a row."""

MIN_COLS_SPAN_OF_FOUR = 15
"""Columns of the shortest row of f32 that four threads work on in a span, unless rows are very
many: 88888 x 27 takes 5 % more time by two."""


def _are_short(problem: Problem) -> bool:
    """Whether rows are so short, and start anywhere, that words of 16 bytes do not suit them."""
    word = widest_word(problem)
    if problem.inner > 1 or word == ACCESS_BYTES:
        return False
    if problem.dtype.is_half:
        return word < 8 and problem.cols <= MAX_COLS_SHORT_16_BIT
    return problem.cols <= MAX_COLS_SHORT


def of_short_rows(problem: Problem, gpu: GpuSpec) -> Config | None:
    """Many rows by way of spans, others straight to their threads, by elements or in pairs.

    Of 16 bits, rows of whole pairs take 1 to 28 % less time by these than by a span or by elements
    on an H200, but 800000 x 34 4 % more. None for rows that are not so short.
    """
    timed = problem.op.is_log or problem.dtype is not DType.F64 or is_of_few_bytes(problem)
    few = _of_few_rows(problem, gpu) if timed else None
    if few is not None or not _are_short(problem):
        return few
    span = _span_of(problem, gpu)
    if span is not None:
        return span
    threads, word = _direct(problem)
    return replace(row_of(min(threads, WARP)), vector_bytes=word)


def _direct(problem: Problem) -> tuple[int, int]:
    """Return threads of a row that goes straight to them, and the bytes of their words."""
    word, half = widest_word(problem), problem.dtype.is_half
    pairs = _pairs(problem)
    if pairs:
        alone = pairs <= MAX_PAIRS_OF_ONE_THREAD
        return (1 if alone else _power_of_two_below(pairs / PAIRS_PER_THREAD)), word
    if problem.op.is_log:
        return _threads_of_logarithm(problem.cols, word // problem.dtype.itemsize), word
    each = ELEMENTS_PER_THREAD_16_BIT if half else ELEMENTS_PER_THREAD
    return _power_of_two_below(problem.cols / each), problem.dtype.itemsize


def _pairs(problem: Problem) -> int:
    """Return the pairs of 16-bit elements of a row that no wider words divide; 0 of others."""
    return problem.cols // 2 if problem.dtype.is_half and widest_word(problem) == 4 else 0


WORDS_OF_A_THREAD = 2
"""Words of one or two elements that a thread has at most, where rows are few. On an H200, at nine
gradients of log_softmax of 3 to 32 columns, two words lose 0.6 % in the mean to the best of a grid,
one word 2.4 and the words of many rows 2.1. At 170 x 55 seven lose 1 to 4 % on two GPUs. Gradients
of softmax take as long, but 2 x 34 f32 takes 2 and 1 % less by words of two than of one."""

WORDS_OF_FOUR_THREADS = 2.5
"""The same where two or four threads so suffice: 3 x 5 and 46 x 5 f32 take 2 % less time by two
threads than by four on both, 2000 x 20 f32 and 1000 x 9 bf16 1 % by four than by eight."""

MAX_WORDS_OF_FEW_ROWS = 80
"""Words of the longest such row: on an H200, 11 x 256 bf16 takes 1 % less time by words of 16."""

MAX_SHARE_OF_THREADS_FEW_ROWS = 0.125
"""Threads of such rows over those that the GPU holds, at most."""

MAX_COLS_OF_ONE_THREAD = 3
"""Columns of the longest row that one thread has alone where rows are few: on an H200, 371 x 3 f32
and bf16 take 4 % less time so than by four threads, on an H100 3 x 3 f32 2 %. On an H200, 118 x 4
f32 and 3 x 4 bf16 take 1 % more time so than by two threads."""


def _of_few_rows(problem: Problem, gpu: GpuSpec) -> Config | None:
    """Two or three words for each thread; None for rows that are longer, or of a middle axis.

    Words have two elements, but one where matrices have few bytes (`is_of_few_bytes`) and
    exponentials are computed: on an H200, 1 x 60 and 46 x 10 f32 take 1 % less time so.
    """
    few_bytes = problem.op.is_log and is_of_few_bytes(problem)
    single = few_bytes and problem.cols <= MAX_WORDS_OF_FEW_ROWS
    word = min(widest_word(problem), problem.dtype.itemsize * (1 if single else 2))
    words = -(-problem.row_bytes // word)
    threads = min(words, WARP, max(2, power_of_two(math.ceil(words / WORDS_OF_A_THREAD))))
    if problem.cols <= MAX_COLS_OF_ONE_THREAD and problem.dtype is not DType.F64:
        threads = 1
    most = MAX_SHARE_OF_THREADS_FEW_ROWS * resident_threads(gpu)
    if problem.rows * threads > most or words > MAX_WORDS_OF_FEW_ROWS or problem.inner > 1:
        return None
    fewer = power_of_two(math.ceil(words / WORDS_OF_FOUR_THREADS))
    if 2 <= fewer <= 4 and problem.dtype is not DType.F64:
        threads = min(threads, fewer)
    return replace(row_of(threads), vector_bytes=word)


def _span_of(problem: Problem, gpu: GpuSpec) -> Config | None:
    """The spans that bring rows, or None where these go straight to their threads."""
    size, pairs = problem.dtype.itemsize, _pairs(problem)
    if size not in MIN_L2_SHARE_SPANS or not has_spans(problem):
        return None
    spanned = MAX_PAIRS_OF_ONE_THREAD < pairs <= MAX_PAIRS_SPAN_LOGARITHM
    if pairs and not (problem.op.is_log and spanned):
        return None
    many = problem.bytes > MIN_L2_SHARE_SPANS[size] * gpu.l2_bytes
    span = span_of(problem, gpu)
    if size == 4:
        threads = 4 if problem.cols >= MIN_COLS_SPAN_OF_FOUR and not many else 2
        span = replace(span, threads=128, threads_per_row=min(threads, problem.cols))
    if many and (size == 2 or problem.cols <= MAX_COLS_SPAN_F32):
        return span
    few = problem.bytes <= MIN_L2_SHARE_SPANS_OF_SHORTEST * gpu.l2_bytes
    threads = problem.rows * span.threads_per_row
    fills = threads >= MIN_SHARE_OF_THREADS[size] * resident_threads(gpu)
    return span if fills and not few and _is_of_shortest(problem) else None


def _is_of_shortest(problem: Problem) -> bool:
    """Whether rows are so short that spans bring them faster from fewer bytes on."""
    if problem.dtype.is_half:
        return MIN_COLS_SHORTEST_16_BIT <= problem.cols <= MAX_COLS_SHORTEST_16_BIT
    if problem.op.is_log:
        return problem.cols <= MAX_COLS_SPAN_F32
    return problem.cols <= MAX_COLS_SHORTEST_F32 and widest_word(problem) == 4


def least_rows_of_spans(problem: Problem, gpu: GpuSpec) -> int:
    """A number of rows from which more of them change no choice between spans and elements."""
    most = max(MIN_L2_SHARE_SPANS.values()) * gpu.l2_bytes
    return int(most * problem.rows / problem.bytes) + 1


MIN_WORDS_LOGARITHM, MAX_ELEMENTS_LOGARITHM = 3, 8
"""Words and elements that a thread has of rows whose exponentials it computes."""


def _threads_of_logarithm(cols: int, width: int) -> int:
    """Return threads of which few compute exponentials of nothing, by words of `width` elements.

    On an H200, the gradient of log_softmax takes 10 % less time at 23076 x 13 bf16 by 2 threads,
    which have 7 elements, than by 4, 8 % at 11111 x 27 by 4 instead of 8, 9 % at 42857 x 7 by one
    instead of 2.
    """
    words = -(-cols // width)

    def filled(threads: int) -> tuple[float, int]:
        return words / (threads * math.ceil(words / threads)), threads

    sizes = [
        threads
        for threads in (1, 2, 4, 8, 16, WARP)
        if MIN_WORDS_LOGARITHM <= math.ceil(words / threads) <= MAX_ELEMENTS_LOGARITHM // width
    ]
    return max(sizes, key=filled, default=1)


def _power_of_two_below(most: float) -> int:
    return 1 << max(1, int(most)).bit_length() - 1
