"""Configs without a search for rows of a few hundred elements: what an H200 says of them."""

import math
from dataclasses import replace

from explorer.model.config import Config
from explorer.model.dtype import DType
from explorer.model.gpu_spec import WARP, GpuSpec
from explorer.model.problem import Op, Problem, power_of_two
from explorer.space.design_rules import has_spans, widest_word
from explorer.space.heuristic.residency import (
    fastest_reduction,
    has_little_bandwidth,
    resident_blocks,
    resident_threads,
    waves,
)
from explorer.space.heuristic.row_threads import ACCESS_BYTES, is_plain_forward

MAX_COLS_SHORT_ROW = 1280
"""Elements of the longest row that is short, unless words of 16 bytes divide it."""

MAX_COLS_BY_HALVES = 960
"""The same of 16-bit rows that only single elements divide."""

MAX_COLS_SPAN = 400
"""Elements of the longest row that is better off in a span than by narrow words."""

MIN_COLS_LONG_GRADIENT, MIN_WAVES_LONG_GRADIENT = 513, 1.2
"""Elements of the shortest rows of a gradient in f32 that are worked on as longer ones are, with
one access for each thread, and the waves of blocks, by the words that divide rows, from which they
are. On an H200, 4092 x 571, 5813 x 554 and 3648 x 803, of 1.3 to 1.8 waves, take 4 to 7 % less time
so, 7195 x 581 and 10874 x 566, of 2.3 and 3.4, 1 to 2 %, 100000 x 513 and 514, 109145 x 610 and
50000 x 802 1 %, 50000 x 777 and 20000 x 1001 2 %; on an H100, where many rows of an even length
were timed, 1 to 2 %."""

COLS_BY_A_WARP = range(MAX_COLS_SPAN + 1, 501)
"""Elements of f32 rows of softmax that only single elements divide and that have a warp each, by
way of a span if rows are more than one wave. On an H200, 5729 x 487 takes 12 % less time by a warp
than by two and 3500 x 487 4 %, on an H100 8 and 3 %; 12000 x 487 1 % less by spans on both. Few
rows, as `_in_one_exchange` has them, were not timed."""

MAX_COLS_BY_HALF_A_WARP = 440
"""Elements of the longest of these that half a warp has in a span: 9000 x 401 takes 2 % less time
so than by a warp on an H200, 7 % on an H100, 12000 x 487 15 and 6 % more."""

MIN_COLS_PAIRS_BY_A_WARP = 641
"""Elements of the shortest 16-bit row of many that a warp loads by the pairs that divide it, and
not two warps. Shorter rows have a warp in any case. On an H200, 12921 x 866, 30000 x 866 and 4000 x
1182 bf16 of log_softmax take 2 to 5 % less time by a warp, of softmax 5000 x 866 5 %, and 12921 x
866 as long. On an H100 none were timed."""

MIN_ROWS_PER_SM_PAIRS_BY_A_WARP = 15
"""Rows of an SM then, at least: with 15.2, 2000 x 1030 of log_softmax takes 2 % less time by a warp
than by two; 13 x 1110 f16 takes 6 % more. Between these, none were timed."""

COLS_BY_A_WARP_ANY_F32 = range(550, MAX_COLS_SHORT_ROW + 1)
"""Elements of f32 rows that words of 16 bytes do not divide and that a warp each loads by the words
that do, if all are resident. On an H200, 2600 x 1001, 3500 x 905, 1500 x 827 and 5000 x 615 take 1
to 4 % less time so than by the best of two warps or four and as wide words, 4000 x 555 as long, and
1800 x 903, 2000 x 1201 and 2900 x 1101 1 % more; by words of 16 bytes, three warps take as long at
two of these. On an H200 and an H100, 2727 x 902 takes as long by a warp as by two."""

MIN_ROWS_PER_SM_BY_A_WARP_F32 = 11
"""Rows of an SM then, at least: 1500 x 827 has 11.4. With 6.8, 898 x 1039 was not timed so."""

MAX_WAVES_BY_A_WARP_F32 = 0.9
"""Waves of blocks then, at most: 5000 x 1001, of 0.95, takes 5 % more time by a warp than by
four."""

MAX_COLS_BY_TWO_WARPS_F32 = 800
"""Elements of the longest f32 row that two warps load if no warp does, and not four."""

MAX_BLOCKS_OVER_MEAN = 1.19
"""The most blocks of an SM over the mean of all SMs, where two warps would load a row: above it, a
warp each leaves too many SMs idle at the end. Of 2200 x 701, an SM has up to five blocks of four
rows, and 4.2 in the mean: it takes 1 % more time by a warp than by two, of log_softmax 8 %."""

BLOCKS_HELD_PER_SPAN = 4
"""Spans are worth it if rows are enough for one in this many of the blocks that a GPU holds."""

BLOCKS_HELD_PER_SPAN_16_BIT = (6, 2)
"""The same for 16-bit rows: for rows of fewer than eight threads, and for rows of eight."""

MAX_COLS_SPAN_16_BIT = 340
"""The same as MAX_COLS_SPAN of 16-bit rows, which they have only if no pairs divide them: on an
H200, 33733 x 387 takes 10 % more time by way of a span, 78336 x 297 16 % less."""

COLS_SPAN_OF_FEW_THREADS = range(111, 201)
"""Elements of 16-bit rows that have 4 threads in a span instead of 8 if there are many of them: on
an H200, 450395 x 149 f16 takes 4 % less time so."""

MAX_COLS_OF_ONE_THREAD, MAX_COLS_OF_TWO_THREADS = 56, 68
"""Elements of the longest 16-bit rows that one thread and two have in a span: on an H200, 20120 x
71 bf16 takes 22 % more time by two than by four."""

MAX_COLS_FROM_WHOLE_BANKS = 8
"""Elements by which such rows differ from 128, at most, so that rows side by side start at nearly
the same bank of shared memory: with 4 threads for each of them, 200000 x 127 bf16 takes 19 % more
time on an H200 than with 8, and 3 % more on an H100."""

MIN_WAVES_SPAN_OF_FEW_THREADS = 2
"""Waves of blocks of these, above which rows are that many."""

MAX_COLS_FOUR_THREADS = 48
"""Elements of the longest f32 row that has one or two threads in a span of many rows, and four if
rows are fewer."""

COLS_ONLINE = (15, 17)
"""Elements of 16-bit rows in a span whose sums are rescaled as they grow: a thread takes 40
registers so, and 46 to 48 by three passes (NVRTC 13.0). On an H200, 200000 x 15 f16 and 200000 x 17
bf16 take 10 and 9 % less time, 400000 x 17 1 %; on an H100 200000 x 15 4 %, 100000 x 17 as long and
60000 x 15 1 % more. 150000 x 19 takes 2 % more on an H200. Rows of log_softmax take as long."""

MAX_COLS_ANY_WORD = 8
"""Elements of a row that take no span: a thread's loads of them share their lines of memory."""

MIN_COLS_LONG = 2 * WARP
"""Elements of a row that is as well worked on as longer ones, where words of 16 bytes divide it."""

MAX_BYTES_PER_THREAD = 38
"""Bytes of a row that a thread takes of it, straight from memory, at most: on an H200, rows of 300
bf16 take 1 to 11 % less time by 16 threads, 37.5 bytes for each, than by 32."""

MAX_ELEMENTS_PER_THREAD = 6
MAX_VECTORS_PER_THREAD = 8
"""Elements one by one, or vectors, that a thread takes of a row, straight from memory, at most."""

COLS_OF_SPANS_F32 = range(2 * WARP + 1, MAX_COLS_SPAN + 1)
"""Elements of f32 rows of a forward op that come by way of a span where they are many, whatever
words divide them. Where 32 divides their number, rows start at one bank of shared memory, and other
kernels are faster.

A *share*, below, is that of the threads that the GPU has room for, if each of these rows has half a
warp.
"""

MIN_SHARE_HALF_A_WARP_F32 = 0.15
"""Share from which half a warp is better for a row than a warp: on an H200, 2929 x 103, of 0.17,
takes 2 % less time so, but 2000 x 100, of 0.12, 1 % more and 13 x 125 5 %."""

MAX_COLS_BY_HALF_A_WARP_F32 = 20 * WARP // 2
"""Elements of the longest of these rows for half a warp, where a row's threads load it straight
from memory: on an H200, 7059 x 186 takes 2 % less time so than by a warp, 3381 x 175 and 4066 x 157
3 %, but 5792 x 355 1 % more and 6812 x 399 2 %."""

MAX_COLS_BY_A_QUARTER_F32 = 100
"""Elements of the longest of these rows that have a quarter of a warp each in a span, and go
straight to half a warp while they are more: on an H200, 27843 x 69 takes 7 % less time by a quarter
than by half a warp, both in spans, 80074 x 76 3 %, but 35861 x 103 2 % more."""

MAX_SHARE_DIRECT_SHORTER_F32, MAX_SHARE_DIRECT_F32 = 0.85, 0.62
"""Shares up to which rows go straight to their threads, of those of a quarter of a warp and of the
others: on an H200, 13813 x 87, of 0.82, takes 3 % less time so than by way of any span; 12803 x
102, of 0.76, takes 2 % more, 10912 x 120, of 0.65, 1 % more and 10000 x 177, of 0.59, 2 % less."""

MAX_L1_SHARE_DIRECT_F32 = 0.37
"""Bytes of an SM's rows over those of its shared memory, from which the L1 cache has its own, up to
which rows go straight to their threads: on an H200, 6812 x 399, of 0.35, takes 3 % less time so
than by way of any span, 10000 x 297, of 0.39, 3 % more."""

MAX_SHARE_SMALL_SPANS_F32 = 0.8
"""Share up to which spans are of 64 threads, and larger ones of 128: on an H200, 12803 x 102, of
0.76, takes 3 % less time by 64, 15043 x 172, of 0.89, 5 % more and 17302 x 279, of 1.02, 2 %."""

MAX_SHARE_HALF_A_WARP_F32, MAX_SHARE_HALF_A_WARP_SHORTER_F32 = 1.0, 4.0
"""Shares up to which half a warp has a row in a span: the second is for rows of up to
MAX_COLS_SHORTER_F32 elements. With more rows, `_elements` says how many threads have each. On an
H200, 17302 x 279 and 30919 x 204 take 2 % less time by half a warp than by a warp, but 27165 x 317
and 34752 x 333 1 and 2 % more, and 325089 x 204 1 %."""

MAX_COLS_SHORTER_F32 = 300

MAX_WAVES_FEW_ROWS = 0.6
"""Waves of blocks up to which short rows are few, so that the time of one row counts.

On an H200, 2000 x 128 bf16 takes 5 % less time by 16 threads and one exchange than by 8 and two,
10000 x 63 f32 12 % less than by way of a span.
"""

MAX_WAVES_DIRECT_16_BIT = 1.0
"""Waves of blocks up to which 16-bit rows go straight to eight threads or more although few words
divide them: on an H100, 24000 x 45 bf16 takes 11 % less time so than by way of a span, 32000 x 29
9 %, and 40000 x 29, of 1.2 waves, 4 % more. For fewer threads MAX_WAVES_FEW_ROWS is the limit."""

MAX_WAVES_HALF_A_WARP_16_BIT = 1.4
"""The same for rows that have half a warp each, and not one thread in a span: on an H200, 20120 x
71 bf16, of 1.2 waves, takes 3 % less time so than by way of the best span."""

FEW_ROWS_8_BYTE_ACCESSES = 2
FEW_ROWS_PAIRS = 4
FEW_ROWS_ELEMENTS = 5
"""Accesses of a thread to a row then, at most, while a warp suffices: of 8 bytes, of two 16-bit
elements, and of single ones. On an H200 and on an H100, 10000 x 33 bf16 takes 5 % less time with
five elements than with three, f32 2 %."""

FEW_ROWS_8_BYTE_ACCESSES_16_BIT = 2.7
"""The same of 8 bytes to 16-bit rows of a forward op that are more than SMs: on an H200, 8236 x 84
bf16 takes 4 % less time with 2.6 of them than with 1.3 and 12137 x 76 3 % less than by 4 threads,
but 2000 x 96 9 % more with three than with 1.5."""

MAX_ROOM_PER_VECTOR = 4 / 3
"""Room of a row's threads over what they take, above which narrower vectors are tried."""

MAX_ROOM_PER_NARROW_VECTOR = 1.1
"""The same of these, above which still narrower ones are."""


def of_short_rows(problem: Problem, gpu: GpuSpec) -> Config | None:
    """Rows straight to their threads where words divide them, else by way of a span; most of 65 to
    400 elements of f32 by way of a span where they are many.

    None for longer rows, and for those whose words do not divide them and which no span can be of.
    On an H200, of copy, with 100000 rows (200000 of 5 columns): in f32 97 % at 5 columns, 97 at 17,
    99 at 33; in bf16 92, 88 and 93 %. With 20 to 40 times as many rows, 17, 24, 33 and 48 columns
    come to 97 to 99 %, as do most of 400 to 1280.
    """
    word = widest_word(problem)
    if problem.inner > 1 or problem.cols > MAX_COLS_SHORT_ROW:
        return None
    if _are_by_spans(problem):
        return _of_f32(problem, word, gpu)
    few = _of_few_rows(problem, word, gpu)
    if few is not None and waves(problem, few, gpu) <= MAX_WAVES_FEW_ROWS:
        return few
    if word == 16 and problem.cols >= MIN_COLS_LONG:
        return None
    if problem.cols in COLS_BY_A_WARP and problem.dtype is DType.F32 and word == 4:
        by_a_warp = _by_a_warp(problem, gpu)
        if by_a_warp is not None:
            return by_a_warp
    if _are_long_gradients(problem, word, gpu):
        return None
    if problem.cols > MAX_COLS_SPAN:
        one = _of_many_longer_rows(problem, word, gpu)
        return one or _in_one_exchange(_by_narrow_words(problem, word), problem, gpu)
    if _divides(word, problem):
        return _direct(problem, word)
    if problem.dtype.is_half:
        direct = _direct_while_resident(problem, word, gpu)
        if direct is not None:
            return direct
        if problem.cols > MAX_COLS_SPAN_16_BIT:
            return _in_one_exchange(_by_narrow_words(problem, word), problem, gpu)
    if problem.op.is_backward:
        return _direct(problem, word) if problem.cols <= WARP else None
    if has_spans(problem):
        spans = [span_of(problem, gpu), *_spans_of_fewer_rows(problem)]
        filling = (span for span in spans if _fill(span, problem, gpu))
        return next(filling, _by_elements(problem, problem.dtype.itemsize))
    if problem.dtype.is_half:
        return _by_elements(problem, min(word, 4))
    return _direct(problem, word) if problem.cols <= WARP else None


def _are_by_spans(problem: Problem) -> bool:
    """Whether rows are of f32, of a forward op, and spans are likely to suit many of them."""
    f32 = problem.dtype is DType.F32 and not problem.op.is_backward and has_spans(problem)
    return f32 and problem.cols in COLS_OF_SPANS_F32 and problem.cols % WARP > 0


def _of_f32(problem: Problem, word: int, gpu: GpuSpec) -> Config | None:
    """Rows straight to their threads while they are few, else by spans: of small blocks at first.

    None for few rows that words of 16 bytes divide, and that are not of the shortest.
    """
    share = problem.rows * (WARP // 2) / resident_threads(gpu)
    if share < MIN_SHARE_HALF_A_WARP_F32:
        return _of_few_rows(problem, word, gpu)
    quarter = problem.cols <= MAX_COLS_BY_A_QUARTER_F32
    of_an_sm = problem.rows * problem.row_bytes / gpu.sm_count
    fits = of_an_sm <= MAX_L1_SHARE_DIRECT_F32 * gpu.shared_per_sm_bytes
    if fits and share <= (MAX_SHARE_DIRECT_SHORTER_F32 if quarter else MAX_SHARE_DIRECT_F32):
        half = problem.cols <= MAX_COLS_BY_HALF_A_WARP_F32
        return Config(
            algorithm="online-block-max",
            threads=128,
            threads_per_row=WARP // 2 if half else WARP,
            vector_bytes=word,
            exp="ex2.approx",
        )
    return Config(
        threads=64 if share <= MAX_SHARE_SMALL_SPANS_F32 else 128,
        threads_per_row=_threads_of_f32(problem.cols, share),
        exp="ex2.approx",
        staging="span",
    )


def _threads_of_f32(cols: int, share: float) -> int:
    """Threads of such a row in a span."""
    if cols <= MAX_COLS_BY_A_QUARTER_F32:
        return WARP // 4
    shorter = cols <= MAX_COLS_SHORTER_F32
    most = MAX_SHARE_HALF_A_WARP_SHORTER_F32 if shorter else MAX_SHARE_HALF_A_WARP_F32
    return WARP // 2 if share <= most else _elements(cols)[1]


def _of_few_rows(problem: Problem, word: int, gpu: GpuSpec) -> Config | None:
    """Few accesses a thread, and one exchange of a row's threads: what counts is one row's time.

    None for rows that words of 16 bytes divide and that are long enough for `of_one_wave`, and for
    longer ones that words of 4 bytes divide.
    """
    narrow = max(problem.dtype.itemsize, min(word, 8))
    longest = MAX_COLS_BY_HALVES if narrow == 2 else MAX_COLS_SPAN
    if problem.cols > longest or (word == 16 and problem.row_bytes >= 16 * WARP):
        return None
    single = FEW_ROWS_ELEMENTS if narrow == problem.dtype.itemsize else FEW_ROWS_PAIRS
    share = _8_byte_accesses(problem, gpu) if narrow == 8 else single
    threads = min(power_of_two(math.ceil(problem.row_bytes / narrow / share)), WARP)
    return Config(
        algorithm="online-block-max" if threads > 1 else "three-pass",
        threads=128,
        threads_per_row=threads,
        vector_bytes=narrow,
        reduction=fastest_reduction(gpu) if threads == WARP else "shuffle",
        exp="ex2.approx",
    )


def _8_byte_accesses(problem: Problem, gpu: GpuSpec) -> float:
    """Accesses of 8 bytes that a thread has to one of few rows, at most."""
    halves = problem.dtype.is_half and not problem.op.is_backward
    more = halves and problem.rows > gpu.sm_count
    return FEW_ROWS_8_BYTE_ACCESSES_16_BIT if more else FEW_ROWS_8_BYTE_ACCESSES


def _in_one_exchange(idea: Config | None, problem: Problem, gpu: GpuSpec) -> Config | None:
    """The idea with one exchange of a row's threads instead of two, if rows are few."""
    if idea is None or waves(problem, idea, gpu) > MAX_WAVES_FEW_ROWS:
        return idea
    return replace(idea, algorithm="online-block-max")


def _are_long_gradients(problem: Problem, word: int, gpu: GpuSpec) -> bool:
    """Whether rows are of a gradient in f32, of MIN_COLS_LONG_GRADIENT elements, and so many."""
    is_f32 = problem.op.is_backward and problem.dtype is DType.F32
    if not is_f32 or problem.cols < MIN_COLS_LONG_GRADIENT:
        return False
    narrow = _by_narrow_words(problem, word)
    return narrow is not None and waves(problem, narrow, gpu) >= MIN_WAVES_LONG_GRADIENT


def _by_a_warp(problem: Problem, gpu: GpuSpec) -> Config | None:
    """A warp or half of one for each row of f32; None where no span can be of it, and for few rows.

    None as well for gradients, which take other paths, and for log_softmax, which was not timed.
    """
    two_warps = _by_narrow_words(problem, problem.dtype.itemsize)
    few = two_warps is None or waves(problem, two_warps, gpu) <= MAX_WAVES_FEW_ROWS
    if problem.op is not Op.SOFTMAX or few or not has_spans(problem):
        return None
    direct = _by_elements(problem, problem.dtype.itemsize)
    if waves(problem, direct, gpu) <= 1:
        return direct
    half = replace(direct, threads=64, threads_per_row=WARP // 2)
    idea = half if problem.cols <= MAX_COLS_BY_HALF_A_WARP else direct
    return replace(idea, vector_bytes=ACCESS_BYTES, staging="span")


def _of_many_longer_rows(problem: Problem, word: int, gpu: GpuSpec) -> Config | None:
    """A warp for each of many longer rows, by the words that divide them; None for other rows."""
    idea = Config(threads=128, threads_per_row=WARP, vector_bytes=word, exp="ex2.approx")
    rows_of_an_sm = problem.rows / gpu.sm_count
    if not is_plain_forward(problem):
        return None
    if problem.dtype.is_half:
        longer = problem.cols >= MIN_COLS_PAIRS_BY_A_WARP
        many = rows_of_an_sm >= MIN_ROWS_PER_SM_PAIRS_BY_A_WARP
        timed = word == 4 and not has_little_bandwidth(gpu)
        return idea if longer and many and timed else None
    if problem.dtype is not DType.F32 or problem.cols not in COLS_BY_A_WARP_ANY_F32:
        return None
    blocks = rows_of_an_sm / idea.rows_per_block
    by_four = problem.cols > MAX_COLS_BY_TWO_WARPS_F32
    even = by_four or math.ceil(blocks) <= MAX_BLOCKS_OVER_MEAN * blocks
    many = rows_of_an_sm >= MIN_ROWS_PER_SM_BY_A_WARP_F32
    few_waves = waves(problem, idea, gpu) <= MAX_WAVES_BY_A_WARP_F32
    return idea if even and many and few_waves else None


def _fill(span: Config, problem: Problem, gpu: GpuSpec) -> bool:
    """Whether there are rows for enough of the blocks that are on the GPU at once.

    The time of one block is longer by way of a span: on an H200, 3000 x 9 bf16 takes 11 % more
    time, 6000 x 177 24 %, 8831 x 291 f16 28 %, but 11954 x 75 8 % less.
    """
    filled = BLOCKS_HELD_PER_SPAN
    if problem.dtype.is_half:
        filled = BLOCKS_HELD_PER_SPAN_16_BIT[span.threads_per_row >= 8]
    return filled * problem.rows >= span.rows_per_block * resident_blocks(gpu, span.threads)


def _by_elements(problem: Problem, word: int) -> Config:
    """Eight elements a thread of rows of up to 256, by one warp of longer ones.

    On an H200, 10000 x 127 bf16 takes 12 % less time so than with four, on an H100 5 %. Pairs are
    for rows that no span can bring, as those under a mask: there, 150474 x 62 f16 takes 52 % less
    time by them than by words of 16 bytes, 23051 x 89 bf16 34 % less by elements.
    """
    return Config(
        threads=128,
        threads_per_row=min(power_of_two(-(-problem.cols // 8)), WARP),
        vector_bytes=word,
        exp="ex2.approx",
    )


def _divides(word: int, problem: Problem) -> bool:
    """Whether words divide rows well enough for these to go straight to their threads."""
    if problem.cols <= MAX_COLS_ANY_WORD:
        return True
    if problem.dtype.is_half:
        pairs = problem.cols <= WARP or problem.cols > 2 * WARP
        return word >= 8 or (word == 4 and pairs)
    if word == 8 and problem.dtype is DType.F32:
        return 3 * WARP < problem.cols <= 8 * WARP
    return word == 16 and problem.cols <= WARP and _direct(problem, word).vector_bytes == 16


def _direct(problem: Problem, word: int) -> Config:
    """The fewest threads that suffice, and the widest vectors that leave few of them idle."""
    narrowest, most_idle = max(problem.dtype.itemsize, min(word, 4)), MAX_ROOM_PER_VECTOR
    while True:
        vectors = problem.row_bytes // word
        share = MAX_ELEMENTS_PER_THREAD if vectors == problem.cols else MAX_VECTORS_PER_THREAD
        least = max(problem.row_bytes / MAX_BYTES_PER_THREAD, vectors / share)
        threads = min(power_of_two(math.ceil(least)), WARP)
        slots = -(-vectors // threads)
        if slots * threads <= most_idle * vectors or word == narrowest:
            break
        word, most_idle = word // 2, MAX_ROOM_PER_NARROW_VECTOR
    return Config(
        threads=256 if threads == 1 and word == problem.dtype.itemsize else 128,
        threads_per_row=threads,
        vector_bytes=word,
        cache_holds="input" if _keeps_input(problem, word) else "exp",
        exp="ex2.approx",
    )


def _keeps_input(problem: Problem, word: int) -> bool:
    """Whether exponentials are computed twice: for 20, 24, 28 and 32 elements of f32.

    On an H200, 50000 x 24 takes 6 % less time so, and 50000 x 32 3 %; on an H100 4 and 3 %. Rows of
    96 take as long, and 16-bit rows of 32 up to 5 % more.
    """
    return problem.dtype is DType.F32 and word == ACCESS_BYTES and WARP // 2 < problem.cols <= WARP


def _direct_while_resident(problem: Problem, word: int, gpu: GpuSpec) -> Config | None:
    """16-bit rows that few words divide, straight to their threads; None for too many rows."""
    direct = _direct(problem, word)
    most = MAX_WAVES_DIRECT_16_BIT if direct.threads_per_row >= 8 else MAX_WAVES_FEW_ROWS
    needed = waves(problem, direct, gpu)
    if needed <= most:
        return replace(direct, algorithm="online-block-max")
    half = direct.threads_per_row == WARP // 2 and problem.cols > MAX_COLS_OF_ONE_THREAD
    return direct if half and needed <= MAX_WAVES_HALF_A_WARP_16_BIT else None


def _by_narrow_words(problem: Problem, word: int) -> Config | None:
    """The widest words that divide rows; 8 bytes, where only single 16-bit elements would.

    Of these, rows up to MAX_COLS_SPAN have half a warp: on an H200, 10000 x 395 bf16 takes 8 % less
    time so than by a warp and words of 4 bytes, 10000 x 345 15 %, on an H100 5 and 7 %. Gradients
    have a warp: there, they take 15 to 20 % less time so than by words of 4, on an H100 7 to 13 %.
    """
    if not problem.dtype.is_half:
        two_warps = problem.cols <= MAX_COLS_BY_TWO_WARPS_F32
        threads, vector_bytes = (64 if two_warps else 128), word
    elif word > 2:
        threads, vector_bytes = power_of_two(math.ceil(problem.cols / 20)), word
    elif problem.cols <= MAX_COLS_BY_HALVES:
        half = problem.cols <= MAX_COLS_SPAN and not problem.op.is_backward
        threads, vector_bytes = (WARP // 2 if half else WARP), 8
    else:
        return None
    return Config(threads=128, threads_per_row=threads, vector_bytes=vector_bytes, exp="ex2.approx")


def span_of(problem: Problem, gpu: GpuSpec) -> Config:
    """The more threads a row the longer it is; in small blocks, which wait at different times."""
    halves = problem.dtype.is_half
    threads, threads_per_row = (_pairs if halves else _elements)(problem.cols)
    span = Config(
        threads=threads,
        threads_per_row=threads_per_row,
        exp="ex2.approx",
        staging="span",
    )
    if halves and problem.cols in COLS_ONLINE and not problem.op.is_log:
        return replace(span, algorithm="online-block-max")
    near_banks = abs(problem.cols - 4 * WARP) <= MAX_COLS_FROM_WHOLE_BANKS
    if not halves or problem.cols not in COLS_SPAN_OF_FEW_THREADS or near_banks:
        return span
    fewer = replace(span, threads_per_row=4)
    wave = fewer.rows_per_block * resident_blocks(gpu, threads)
    return fewer if problem.rows > MIN_WAVES_SPAN_OF_FEW_THREADS * wave else span


def _spans_of_fewer_rows(problem: Problem) -> list[Config]:
    """Spans of more threads a row, for rows that are too few for spans of fewer.

    On an H100, 24000 x 29 f32 takes 4 % less time by four threads so than one element after the
    other, 21350 x 43 10 %, and 10000 x 297 bf16 by 16 threads 8 %, 5 % on an H200.
    """
    if problem.dtype.is_half and problem.cols > 8 * WARP:
        return [Config(threads=128, threads_per_row=16, exp="ex2.approx", staging="span")]
    if problem.dtype is not DType.F32 or problem.cols > MAX_COLS_FOUR_THREADS:
        return []
    threads = 64 if problem.cols <= WARP else 32
    return [Config(threads=threads, threads_per_row=4, exp="ex2.approx", staging="span")]


def _pairs(cols: int) -> tuple[int, int]:
    """Threads of a block, and of a row of 16-bit elements, which they take two at a time.

    On an H200, 29748 x 55 bf16 takes 11 % less time by one thread than by two, on an H100 8 %, but
    200000 x 63 takes 9 % more.
    """
    if cols <= MAX_COLS_OF_ONE_THREAD:
        return (64 if cols < 24 else 32), 1
    if cols <= MAX_COLS_OF_TWO_THREADS:
        return 32, 2
    return 64, (4 if cols <= 110 else 8)


def _elements(cols: int) -> tuple[int, int]:
    """The same of larger elements: where rows lie a multiple of banks apart, fewer of them."""
    if abs(cols - 2 * WARP) <= 4:
        return 32, 4
    if cols > MAX_COLS_FOUR_THREADS:
        return 128, min(power_of_two(math.ceil(cols / 10)), WARP)
    threads = max(1 if cols < 24 else 2, math.gcd(cols, WARP) // 2)
    return (64 if threads <= 2 else 128), threads
