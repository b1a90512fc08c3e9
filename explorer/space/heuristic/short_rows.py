"""Configs without a search for rows of a few hundred elements: what an H200 says of them."""

import math

from explorer.config import Config
from explorer.dtype import DType
from explorer.gpu_spec import WARP, GpuSpec
from explorer.problem import Problem, power_of_two
from explorer.space.design_rules import has_spans
from explorer.space.heuristic.at_once import blocks_at_once

LONGEST_SHORT_ROW = 1280
"""Elements of the longest row that is short, unless words of 16 bytes divide it."""

LONGEST_ODD_ROW = 960
"""The same of 16-bit rows that only single elements divide."""

LONGEST_SPAN_ROW = 400
"""Elements of the longest row that is better off in a span than by narrow words."""

FILLED = 4
"""Spans are worth it if rows are enough for one in this many of the blocks that a GPU holds."""

FILLED_16_BIT = (6, 2)
"""The same for 16-bit rows: for rows of fewer than eight threads, and for rows of eight."""

LONGEST_PAIRED_SPAN = 340
"""The same as LONGEST_SPAN_ROW of 16-bit rows, which they have only if no pairs divide them: on an
H200, 33733 x 387 takes 10 % more time by way of a span, 78336 x 297 16 % less."""

FEW = 8
"""Elements of a row that take no span: a thread's loads of them share their lines of memory."""

MANY = 2 * WARP
"""Elements of a row that is as well worked on as longer ones, where words of 16 bytes divide it."""

BYTES_A_THREAD = 32
"""Bytes of a row that a thread takes of it, straight from memory."""

ELEMENTS_A_THREAD = 6
VECTORS_A_THREAD = 8
"""Elements one by one, or vectors, that a thread takes of a row, straight from memory, at most."""

MOST_IDLE = 4 / 3
"""Room of a row's threads over what they take, above which narrower vectors are tried."""

LEAST_IDLE = 1.1
"""The same of these, above which still narrower ones are."""


def of_short_rows(problem: Problem, gpu: GpuSpec) -> Config | None:
    """Rows straight to their threads where words divide them, else by way of a span.

    None for longer rows, and for those whose words do not divide them and which no span can be of.
    On an H200, of copy, with 100000 rows (200000 of 5 columns): in f32 97 % at 5 columns, 97 at 17,
    99 at 33; in bf16 92, 88 and 93 %. With 20 to 40 times as many rows, 17, 24, 33 and 48 columns
    come to 97 to 99 %, as do most of 400 to 1280.
    """
    word = _widest_word(problem)
    if problem.inner > 1 or problem.cols > LONGEST_SHORT_ROW:
        return None
    if word == 16 and problem.cols >= MANY:
        return None
    if problem.cols > LONGEST_SPAN_ROW:
        return _by_narrow_words(problem, word)
    if _divides(word, problem):
        return _direct(problem, word)
    if problem.dtype.itemsize == 2 and problem.cols > LONGEST_PAIRED_SPAN:
        return _by_narrow_words(problem, word)
    if has_spans(problem):
        span = _span(problem)
        return span if _fill(span, problem, gpu) else _by_elements(problem)
    return _direct(problem, word) if problem.cols <= WARP else None


def _fill(span: Config, problem: Problem, gpu: GpuSpec) -> bool:
    """Whether there are rows for enough of the blocks that are on the GPU at once.

    The time of one block is longer by way of a span: on an H200, 3000 x 9 bf16 takes 11 % more
    time, 6000 x 177 24 %, 8831 x 291 f16 28 %, but 11954 x 75 8 % less.
    """
    filled = FILLED
    if problem.dtype.itemsize == 2:
        filled = FILLED_16_BIT[span.threads_per_row >= 8]
    return filled * problem.rows >= span.rows_per_block * blocks_at_once(gpu, span.threads)


def _by_elements(problem: Problem) -> Config:
    """Four elements a thread of rows of up to 128, by one warp of longer ones."""
    return Config(
        threads=128,
        threads_per_row=min(power_of_two(-(-problem.cols // 4)), WARP),
        vector_bytes=problem.dtype.itemsize,
        exp="ex2.approx",
    )


def _widest_word(problem: Problem) -> int:
    """Bytes of the widest word at whose multiples all rows start."""
    return math.gcd(problem.row_bytes, problem.input_stride * problem.dtype.itemsize, 16)


def _divides(word: int, problem: Problem) -> bool:
    """Whether words divide rows well enough for these to go straight to their threads."""
    if problem.cols <= FEW:
        return True
    if problem.dtype.itemsize == 2:
        pairs = problem.cols <= WARP or problem.cols > 2 * WARP
        return word >= 8 or (word == 4 and pairs)
    if word == 8 and problem.dtype is DType.F32:
        return 3 * WARP < problem.cols <= 8 * WARP
    return word == 16 and problem.cols <= WARP and _direct(problem, word).vector_bytes == 16


def _direct(problem: Problem, word: int) -> Config:
    """The fewest threads that suffice, and the widest vectors that leave few of them idle."""
    narrowest, most_idle = max(problem.dtype.itemsize, min(word, 4)), MOST_IDLE
    while True:
        vectors = problem.row_bytes // word
        share = ELEMENTS_A_THREAD if vectors == problem.cols else VECTORS_A_THREAD
        least = max(problem.row_bytes / BYTES_A_THREAD, vectors / share)
        threads = min(power_of_two(math.ceil(least)), WARP)
        slots = -(-vectors // threads)
        if slots * threads <= most_idle * vectors or word == narrowest:
            break
        word, most_idle = word // 2, LEAST_IDLE
    return Config(
        threads=256 if threads == 1 and word == problem.dtype.itemsize else 128,
        threads_per_row=threads,
        vector_bytes=word,
        exp="ex2.approx",
    )


def _by_narrow_words(problem: Problem, word: int) -> Config | None:
    """The widest words that divide rows; some, where only single 16-bit elements would."""
    if problem.dtype.itemsize > 2:
        threads, vector_bytes = (64 if problem.cols <= 800 else 128), word
    elif word > 2:
        threads, vector_bytes = power_of_two(math.ceil(problem.cols / 20)), word
    elif problem.cols <= LONGEST_ODD_ROW:
        threads, vector_bytes = WARP, 8 if problem.cols > LONGEST_SPAN_ROW else 4
    else:
        return None
    return Config(threads=128, threads_per_row=threads, vector_bytes=vector_bytes, exp="ex2.approx")


def _span(problem: Problem) -> Config:
    """The more threads a row the longer it is; in small blocks, which wait at different times."""
    share = _pairs if problem.dtype.itemsize == 2 else _elements
    threads, threads_per_row = share(problem.cols)
    return Config(
        threads=threads,
        threads_per_row=threads_per_row,
        exp="ex2.approx",
        staging="span",
    )


def _pairs(cols: int) -> tuple[int, int]:
    """Threads of a block, and of a row of 16-bit elements, which they take two at a time."""
    if cols <= 52:
        return (64 if cols < 24 else 32), 1
    if cols <= 72:
        return 32, 2
    return 64, (4 if cols <= 110 else 8)


def _elements(cols: int) -> tuple[int, int]:
    """The same of larger elements: where rows lie a multiple of banks apart, fewer of them."""
    if abs(cols - 2 * WARP) <= 4:
        return 32, 4
    if cols > 48:
        return 128, min(power_of_two(math.ceil(cols / 10)), WARP)
    threads = max(1 if cols < 24 else 2, math.gcd(cols, WARP) // 2)
    return (64 if threads <= 2 else 128), threads
