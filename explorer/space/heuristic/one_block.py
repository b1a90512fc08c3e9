"""Configs without a search for rows of one block each, or of one warp: what an H200 says."""

import math
from collections.abc import Iterator
from dataclasses import replace

from explorer.model.config import Config
from explorer.model.dtype import DType
from explorer.model.gpu_spec import WARP, GpuSpec
from explorer.model.parameters import ROW_THREADS
from explorer.model.problem import Mask, Op, Problem
from explorer.space.design_rules import WIDE_ROW, widest_word
from explorer.space.heuristic import gradients
from explorer.space.heuristic.many_rows import (
    algorithm_of_many_waves,
    are_many,
)
from explorer.space.heuristic.residency import (
    elements_of_an_sm,
    fastest_reduction,
    has_little_bandwidth,
    resident_blocks,
    resident_threads,
    rows_of_a_wave,
    waves,
)
from explorer.space.heuristic.row_threads import (
    ACCESS_BYTES,
    MIN_BLOCK_THREADS,
    fewest_threads,
    is_of_8_byte_words,
    is_plain_forward,
    row_of,
    starts_anywhere,
    threads_for,
)
from explorer.space.heuristic.short_rows import MAX_COLS_BY_HALVES, MAX_COLS_SHORT_ROW
from explorer.space.space import Space

MAX_BYTES_IN_REGISTERS = 128 * 1024
"""Bytes of a row that a block of 1024 threads keeps in registers."""

SHARED_BYTES_BESIDE_A_ROW = 1024
"""Bytes of shared memory that a block takes beside a row: what its warps have found, its ends."""

MAX_ACCESSES_PER_THREAD_ONE_WAVE = 9
"""Accesses of a thread to a row, at most, where all rows are resident at the same time.

With more accesses, rows gain nothing by being resident together.
"""

MAX_ACCESSES_PER_THREAD_ONE_WAVE_GRADIENT = 6
"""The same of f32 gradients that start anywhere within an access: on an H200, 300 x 7001 takes 24 %
more time by 256 threads, which have seven accesses, than by 1024 and more waves."""

MIN_THREADS_ONE_WAVE_F32 = 96
"""Threads of an f32 row that starts anywhere within an access, at least, so that all rows are
resident together: rows that would have fewer have more, and wait for others. 2017 x 1501 takes 1 %
more time by 64 threads than by 96 on an H100, and more than by any of 96 to 192 on an H200, where
1848 x 1555 of log_softmax lost 9 % to Triton by 64; by more it was not timed."""

MAX_ACCESSES_PER_THREAD_ONE_WAVE_16_BIT = 5
"""The same of 16-bit rows, one less of those that share a block."""

MAX_ACCESSES_FEW_WARPS = {2 * WARP: 5, WARP: 8}
"""Accesses of a thread, at most, to a 16-bit row that has one warp or two because not all rows
would be resident with more, by the threads of a row. On an H200, 1478 x 4096 bf16 takes 3 % more
time by 64 threads, which have eight, than by 128."""

COLS_OF_WHOLE_WORDS_BY_A_WARP = range(701, 1551)
"""Elements of f32 rows that words of 16 bytes divide and that a warp each loads, if all rows are
resident so. On an H200, 3500 x 800 takes 4 % less time so than by the best of two warps to four,
2218 x 1128 1 % less, and 2000 x 1000, 1836 x 1296, 3337 x 1296 and 2000 x 1504 take as long, where
the fewest accesses with which all are resident would take 2 to 4 % more; on an H100 three of these
take 1 to 2 % less than by the best of two to four."""

MIN_ROWS_PER_SM_BY_A_WARP = 12
"""Rows of an SM then, at least: three for each quarter of it. With 12.0 and 13.4, 1585 x 1296 and
1770 x 1344 take 1 % more time so than by the fewest accesses on an H200, and 4 and 2 % less on an
H100; with 9.8 the log_softmax of 1300 x 1128 takes 5 % more on an H200."""

MAX_ROWS_PER_SM_8_BYTES_F32 = 5
"""Rows of an SM, at most, of f32 that are loaded by words of 8 bytes where these divide rows and 16
bytes do not. Words of 16 take more registers with hints (`registers`), so that they need more
accesses for all rows to be resident. On an H200, the log_softmax of 515 x 5798, 550 x 2126 and 390
x 7502 takes 3 to 5 % less time so than by the best words of 16, that of 131 x 3002 as long and of
700 x 3002 1 % more. On an H100 none was timed."""

MAX_COLS_8_BYTES_F32 = 3100
"""Elements of the longest of these rows, but of log_softmax: on an H200, 20 x 2126, 131 x 2126, 260
x 2126 and 131 x 3002 take 2 to 3 % less time so than by the best words of 16, 400 x 3002 1 % more,
and 260 x 4002 and 260 x 7502 2 and 6 % more, but 515 x 5798 1 % less."""

MAX_THREADS_OF_ONE_ACCESS = 512
"""Threads of a block, at most, that have one access each to a 16-bit row, of rows that are no more
than SMs: on an H200, 40 x 4096 bf16 takes 2 % less time by 512 threads than by 256."""

MAX_THREADS_OF_ONE_ACCESS_GRADIENT = {Op.SOFTMAX_BACKWARD: 256, Op.LOG_SOFTMAX_BACKWARD: 640}
"""The same of gradients; of log_softmax, also of f32 rows for which 512 threads are too few. On an
H200, 4 x 4000 and 4 x 2992 bf16 take 3 and 1 % less time by two accesses than by one. Of
log_softmax, 2 x 4920 and 11 x 4664 bf16 take 10 and 9 % less time by one access of 640 threads than
by two of 320, 5 x 2248 and 21 x 2072 f32 6 and 7 %: by these and with hints, the compiler moves
loads or exponentials behind the sum."""

MAX_THREADS_OF_ONE_ACCESS_ODD = 384
"""The same of rows that start anywhere: on an H100, 4 x 2501 bf16 takes 6 % less time by 320
threads than by 160, 8 x 3333 7 % more by 512 than by 224."""

MIN_COLS_BY_HALVES = 400
"""Elements of the shortest 16-bit row that has a block, whose threads load single elements."""

MAX_ELEMENTS_PER_SM_NARROW_WORDS = {2: 4096, 4: 5600}
"""Elements of the rows that each SM has, at most, for blocks that load words of so many bytes.

On an H200, single elements take 11 % less time than words of 16 bytes at 1 x 4095, and 3 % more at
1 x 4097, which 256 threads load 17 times instead of 16. Pairs take 10 % less at 1 x 5002, and 2 %
more at 1 x 6002.
"""

MAX_COLS_PAIRS_OF_384 = 3400
"""Elements of the longest row of which 384 threads load pairs; of longer ones 512 do.

On an H200, 1 x 2050 takes as long by either, and 1 x 3554 4 % less by 512.
"""

MAX_COLS_SHORT_ROW_FEW_F32 = 600
"""Elements of the longest f32 row that is short if 16 bytes do not divide it and rows are no more
than SMs: on an H100, 1 x 1153 takes 9 % less time by a block that loads 16 bytes than by single
elements, 100 x 1153 6 %."""

MAX_WAVES_ONE_WAVE = 1.05
"""Waves of blocks up to which 32-bit rows that start at whole accesses count as resident together.

What hints gain does not end at one wave: on an H200, 548 x 7900 f32 takes 4 % less time by 512
threads, 1.04 waves, with hints than without. By 320, which have five accesses, it takes another 1
to 2 % less.
"""

WARP_ACCESS_BYTES = 512
"""Bytes of one access of a warp. 16-bit rows of about as many have one: on an H200, 65536 x 256 f16
takes 1 % less time so than by half a warp."""

MAX_ROW_BYTES_TWO_ACCESSES = 4096
"""Bytes of the longest row of which each thread has two accesses."""

MIN_SHARE_ONE_ACCESS = 0.95
"""Share of the threads, at least, that have an access to a row where each has one at most. Of 256
threads, 19 would have none of a row of 3792 bytes, and 35395 x 1896 f16 takes 2 % more time."""

HALF_WARP_ROW_BYTES = 1024
"""Bytes of an f32 row that half a warp loads in four accesses: on an H200 and an H100, 50000 x 256
takes 0.3 and 0.8 % less time so than by a warp."""

MAX_WAVES_FAST_REDUCTION = 2
"""Waves of blocks up to which rows are few, so that a faster reduction pays.

On an H200, 2000 x 4000 bf16 takes 3 % less time by redux.
"""


def of_one_block(problem: Problem, gpu: GpuSpec, chosen: Config | None) -> Config:
    """A row by one warp or block: as `of_one_wave` or `of_many_rows` has chosen, if one has."""
    if chosen is None and problem.op.is_backward and problem.inner == 1:
        return gradients.kept(gradients.of_many_waves(problem, gpu), problem, gpu)
    idea = chosen or replace(
        _of_many_waves(problem, gpu),
        algorithm=algorithm_of_many_waves(problem),
    )
    # What `of_one_wave` chooses by one warp keeps shuffles, which the tables timed everywhere.
    by_warps = idea.threads_per_row > WARP or (idea.threads_per_row == WARP and chosen is None)
    if problem.inner == 1 and by_warps and _are_few(problem, idea, gpu):
        idea = replace(idea, reduction=fastest_reduction(gpu))
    if problem.mask is not Mask.NONE:
        idea = _under_a_mask(idea, problem, gpu)
    return _kept(idea, problem, gpu)


def _are_few(problem: Problem, idea: Config, gpu: GpuSpec) -> bool:
    """Whether the rows are so few waves of blocks, of any registers, that one row's time counts."""
    return problem.rows <= MAX_WAVES_FAST_REDUCTION * rows_of_a_wave(idea, gpu)


def _under_a_mask(idea: Config, problem: Problem, gpu: GpuSpec) -> Config:
    """Return the idea with what a mask changes in it.

    On an H200, 16-bit rows take 1 to 3 % less time by two exchanges, at 2048 and 4096 columns, than
    by one for which threads rescale their sums; causal f32 rows of 16 to 32 KiB take 1 % less if
    their elements are kept as they came.
    """
    if problem.dtype.is_half and problem.cols < WIDE_ROW:
        idea = replace(idea, algorithm="three-pass")
    if problem.mask is Mask.ADDITIVE:
        return idea
    if problem.dtype.is_half and idea.threads_per_row >= WARP:
        return replace(idea, reduction=fastest_reduction(gpu))
    if problem.mask is Mask.CAUSAL and problem.dtype is DType.F32 and 4096 <= problem.cols <= 8192:
        return replace(idea, cache_holds="input")
    return idea


def _kept(idea: Config, problem: Problem, gpu: GpuSpec) -> Config:
    """A row in registers; wide 16-bit rows in shared memory; what neither holds is read twice."""
    if problem.op.is_backward and problem.inner == 1:
        return gradients.kept(idea, problem, gpu)
    held = problem.row_bytes * (2 if problem.op.is_backward else 1)
    if problem.dtype is DType.F64:
        held *= 2  # its exponential takes as many registers as the row
    numbers = held * max(1, 4 // problem.dtype.itemsize)  # as fp32 takes them
    fits_shared = idea.threads == 1024 and problem.dtype.is_half and held <= _room(gpu, 1)
    too_wide = held > MAX_BYTES_IN_REGISTERS or (
        numbers > MAX_BYTES_IN_REGISTERS and not fits_shared
    )
    if too_wide and (problem.mask is Mask.NONE or problem.inner > 1):
        return _read_twice(idea)
    if too_wide or not fits_shared or (problem.mask is Mask.ADDITIVE and problem.inner == 1):
        return idea  # what registers do not hold under a mask, `that_fits` keeps elsewhere
    unroll = 4 if held >= 4 * 1024 * idea.vector_bytes else 2
    shared = replace(idea, cache="shared", cache_holds="input", unroll=unroll)
    return replace(shared, min_blocks=2) if held <= _room(gpu, 2) else shared


def that_fits(idea: Config, problem: Problem, gpu: GpuSpec) -> Config:
    """Return the idea, or what is like it where registers do not hold its rows: by fewer threads,
    in shared memory, or read twice. It is the first that rules allow, and the idea if they allow
    none.

    On an H100, rows under a mask take less time if they are kept: 1024 x 40000 f32 with lengths
    7 % less in registers than read twice, 1024 x 56000 13 % less in shared memory, 1024 x 80000
    bf16 5 %; 1024 x 48000 bf16 under an additive mask 12 % less by 512 threads. Under that mask a
    kernel keeps fp32, and 16-bit rows take more time from shared memory than if they are read
    twice: 1024 x 56000 f16 15 % more. Rows of f64 take less time if 512 threads read them twice
    than if 1024 do, or if they come from shared memory: 1024 x 25000 26 % less.
    """
    space = Space(problem, gpu)
    if space.is_legal(idea):
        return idea
    return next(filter(space.is_legal, _kept_elsewhere(idea, problem)), idea)


def _kept_elsewhere(idea: Config, problem: Problem) -> Iterator[Config]:
    """What is like the idea for rows that its registers do not hold, the fastest first."""
    looped = _read_twice(idea)
    along_memory, wide_type = problem.inner == 1, problem.dtype is DType.F64
    fewer = min(idea.threads, 512)
    if along_memory and problem.mask is not Mask.NONE:
        if fewer < idea.threads:
            yield replace(idea, threads=fewer, threads_per_row=fewer)
        in_fp32 = problem.mask is Mask.ADDITIVE and problem.dtype.is_half
        if not in_fp32 and not wide_type:
            yield replace(looped, cache="shared")
    if along_memory and wide_type:
        looped = replace(looped, threads=fewer, threads_per_row=fewer)
    yield from (looped, replace(looped, unroll=2))


def _read_twice(idea: Config) -> Config:
    """The idea without a cache: its threads read their share of a row again."""
    return replace(idea, cache="none", cache_holds="input", unroll=4, min_blocks=1)


def _room(gpu: GpuSpec, blocks: int) -> int:
    """Bytes of a row that each of so many blocks of 1024 threads an SM has shared memory for."""
    if gpu.threads_per_sm < 1024 * blocks:
        return 0
    room = gpu.shared_per_sm_bytes // blocks - gpu.shared_reserved_bytes
    return min(gpu.shared_per_block_bytes, room) - SHARED_BYTES_BESIDE_A_ROW


def most_few_rows(gpu: GpuSpec) -> int:
    """Return a number of rows beyond which more rows change no choice of any regime along memory.

    A row has a warp at least in `of_one_block`, and a thread in `of_short_rows`. Gradients of short
    rows have a number of their own, `short_gradients.least_rows_of_spans`. A config that is
    batch-invariant is chosen for more rows (`regimes`): if a regime tells numbers of rows apart
    that are larger, these numbers must grow, or such configs depend on the rows.
    """
    rows_of_a_wave = resident_blocks(gpu, MIN_BLOCK_THREADS) * (MIN_BLOCK_THREADS // WARP)
    return max(MAX_WAVES_FAST_REDUCTION * rows_of_a_wave, resident_threads(gpu))


def of_one_wave(problem: Problem, gpu: GpuSpec) -> Config | None:
    """A block a row where all are on the GPU at once: what counts is the time of one.

    Each thread has the fewest accesses with which all rows are on the GPU at once, but for rows of
    narrow words and those of which a warp each is enough. On an H200,
    650 x 6301 bf16 takes 11 % less time by 160 threads that have five accesses than by 320 that
    have three, of which not all blocks are there at once. None for more rows, and for those of
    `of_short_rows` that 16 bytes do not divide: 64 x 540 bf16 takes 23 % more time by words of 16.
    """
    special = _of_narrow_words(problem, gpu) or _of_whole_words_by_a_warp(problem, gpu)
    if special is not None:
        return special
    odd = problem.row_bytes % 16 > 0
    short = odd and problem.cols <= _longest_short_row(problem, gpu)
    if problem.inner > 1 or problem.row_bytes < WARP * 16 or short:
        return None
    most_waves = 1.0 if odd or problem.dtype.is_half else MAX_WAVES_ONE_WAVE
    for threads, vector_bytes in _shapes_of_one_wave(problem, gpu):
        idea = replace(
            row_of(threads),
            algorithm="online-block-max",
            vector_bytes=vector_bytes,
            reduction=fastest_reduction(gpu),
        )
        if waves(problem, idea, gpu) <= most_waves:
            return idea
    may_have_few_warps = is_plain_forward(problem) and problem.dtype.is_half and not odd
    return _by_few_warps(problem, gpu) if may_have_few_warps else None


def _by_few_warps(problem: Problem, gpu: GpuSpec) -> Config | None:
    """Two warps or one for each 16-bit row, with more accesses, where all rows are resident so.

    On an H200, 2400 x 1600 bf16 takes 10 % less time by two warps than by three, of which not all
    rows are resident, and by one warp 3171 x 1296 and 4200 x 1152 8 %, 3000 x 1600 4 % and 2957 x
    2048 3 %; on an H100 4 % less, 2 % more, 1, 1 and 5 % less. log_softmax has the same, untimed.
    """
    for threads, most in MAX_ACCESSES_FEW_WARPS.items():
        idea = replace(
            row_of(threads),
            algorithm=algorithm_of_many_waves(problem),
            vector_bytes=_fullest_words(problem, threads),
            reduction=fastest_reduction(gpu),
        )
        accesses = problem.row_bytes / ACCESS_BYTES / threads
        if accesses <= most and waves(problem, idea, gpu) <= 1:
            return idea
    return None


def _longest_short_row(problem: Problem, gpu: GpuSpec) -> int:
    """Elements of the longest row, which 16 bytes do not divide, that is left to short rows."""
    if problem.row_bytes % 4:
        return MAX_COLS_BY_HALVES
    few = problem.dtype is DType.F32 and problem.rows <= gpu.sm_count
    return MAX_COLS_SHORT_ROW_FEW_F32 if few else MAX_COLS_SHORT_ROW


def _of_narrow_words(problem: Problem, gpu: GpuSpec) -> Config | None:
    """A block for each of a few 16-bit rows, by the words of 2 or 4 bytes that divide them.

    Wider words would start elsewhere in each row. On an H100, 1 x 1153 bf16 takes 18 % less time by
    single elements than by words of 16 bytes, 100 x 2501 5 %, and 1 x 2502 13 % by pairs. None for
    rows that wider words divide, and for longer or more rows: by single elements, 1 x 4097 takes
    3 % more time, 528 x 2501 7 %.
    """
    word = widest_word(problem)
    elements = elements_of_an_sm(problem, gpu)
    narrow = problem.dtype.is_half and word <= 4
    if (
        not (is_plain_forward(problem) and narrow)
        or elements > MAX_ELEMENTS_PER_SM_NARROW_WORDS[word]
    ):
        return None
    if problem.cols < MIN_COLS_BY_HALVES or (word == 4 and problem.cols <= MAX_COLS_SHORT_ROW):
        return None
    narrow_block = replace(
        row_of(_threads_of_narrow_words(problem, word)),
        algorithm="online-block-max",
        vector_bytes=word,
    )
    # On an H200, 1 x 901 takes 3 % less time by shuffles alone than by redux.
    short = word == 2 and problem.cols <= MAX_COLS_BY_HALVES
    return replace(narrow_block, reduction="shuffle") if short else narrow_block


def _of_whole_words_by_a_warp(problem: Problem, gpu: GpuSpec) -> Config | None:
    """A warp for each f32 row where an SM has enough of them; None for others."""
    whole = problem.row_bytes % ACCESS_BYTES == 0
    suits = whole and is_plain_forward(problem) and problem.dtype is DType.F32
    enough = problem.rows >= MIN_ROWS_PER_SM_BY_A_WARP * gpu.sm_count
    if not (suits and enough and problem.cols in COLS_OF_WHOLE_WORDS_BY_A_WARP):
        return None
    idea = row_of(WARP)
    return idea if waves(problem, idea, gpu) <= MAX_WAVES_ONE_WAVE else None


def _threads_of_narrow_words(problem: Problem, word: int) -> int:
    if word == 2:
        return MIN_BLOCK_THREADS if problem.cols <= MAX_COLS_BY_HALVES else 256
    return 384 if problem.cols <= MAX_COLS_PAIRS_OF_384 else 512


def _shapes_of_one_wave(problem: Problem, gpu: GpuSpec) -> Iterator[tuple[int, int]]:
    """Threads of a row and bytes of their accesses, the fewest accesses first.

    In place of two warps, which would wait for each other, there are one or, for longer rows, four.
    """
    halves = problem.dtype.is_half
    odd = problem.row_bytes % 16 > 0
    if is_of_8_byte_words(problem) or _are_few_of_8_byte_words(problem, gpu):
        for accesses in range(2, MAX_8_BYTE_ACCESSES + 1):
            threads = fewest_threads(problem, accesses, access_bytes=8)
            if threads <= MAX_THREADS_OF_ONE_ACCESS:
                yield threads, 8
    most_of_one = _most_threads_of_one_access(problem, gpu)
    gradient = problem.op.is_backward and odd and not halves
    plain_f32 = is_plain_forward(problem) and problem.dtype is DType.F32
    most = (
        MAX_ACCESSES_PER_THREAD_ONE_WAVE_GRADIENT if gradient else MAX_ACCESSES_PER_THREAD_ONE_WAVE
    )
    for accesses in range(1 if most_of_one else 2, most + 1):
        threads = fewest_threads(problem, accesses)
        if threads == 2 * WARP and not odd:
            threads = WARP if problem.cols <= 512 else MIN_BLOCK_THREADS
        if accesses == 1 and threads > most_of_one:
            continue
        if odd and plain_f32 and threads < MIN_THREADS_ONE_WAVE_F32:
            return
        fewer = threads < MIN_BLOCK_THREADS
        if halves and accesses > MAX_ACCESSES_PER_THREAD_ONE_WAVE_16_BIT - fewer:
            return
        yield threads, 16 if odd else _fullest_words(problem, threads)


def _are_few_of_8_byte_words(problem: Problem, gpu: GpuSpec) -> bool:
    """Whether rows are few and of f32, and words of 8 bytes divide them but words of 16 do not."""
    few = problem.rows <= MAX_ROWS_PER_SM_8_BYTES_F32 * gpu.sm_count
    suits = is_plain_forward(problem) and problem.dtype is DType.F32 and widest_word(problem) == 8
    return suits and few and (problem.op.is_log or problem.cols <= MAX_COLS_8_BYTES_F32)


def _most_threads_of_one_access(problem: Problem, gpu: GpuSpec) -> int:
    """Threads of a block, at most, that have one access each to a row; 0 where two are better."""
    if problem.rows > gpu.sm_count:
        return 0
    if problem.row_bytes % ACCESS_BYTES > 0:
        suits = problem.dtype.is_half or _is_short_f32(problem)
        return MAX_THREADS_OF_ONE_ACCESS_ODD if suits else 0
    most = MAX_THREADS_OF_ONE_ACCESS_GRADIENT.get(problem.op, MAX_THREADS_OF_ONE_ACCESS)
    accesses = problem.row_bytes // ACCESS_BYTES
    by_640 = problem.dtype is DType.F32 and MAX_THREADS_OF_ONE_ACCESS < accesses <= most
    return most if problem.dtype.is_half or by_640 else 0


def _is_short_f32(problem: Problem) -> bool:
    """Whether rows are of fp32, and of a length that only many rows are worked on as short at."""
    short = MAX_COLS_SHORT_ROW_FEW_F32 < problem.cols <= MAX_COLS_SHORT_ROW
    return problem.dtype is DType.F32 and problem.row_bytes % 16 > 0 and short


MAX_8_BYTE_ACCESSES = 8
"""Accesses of 8 bytes that a thread has to a row, at most."""

MIN_COLS_8_BYTE_WORDS = 4096
"""Elements of the shortest row that has them where not all rows are on the GPU at once."""


def _of_many_waves(problem: Problem, gpu: GpuSpec) -> Config:
    """A row a block, or a warp, where not all rows are on the GPU at once.

    On an H200, the log_softmax of 7825 x 1484 bf16 takes 3 % less time by words of 8 bytes than by
    16, and as many threads.
    """
    plain = is_plain_forward(problem)
    if plain and is_of_8_byte_words(problem) and MIN_COLS_8_BYTE_WORDS <= problem.cols < WIDE_ROW:
        threads = fewest_threads(problem, MAX_8_BYTE_ACCESSES, access_bytes=8)
        return replace(row_of(threads), vector_bytes=8)
    if plain and problem.dtype is DType.F32 and _fills(problem, HALF_WARP_ROW_BYTES):
        return row_of(WARP // 2)
    one = _of_one_access(problem, gpu) if plain else None
    idea = one or row_of(_threads_of_one_block(problem))
    of_8_bytes = problem.op is Op.LOG_SOFTMAX and is_of_8_byte_words(problem)
    suits = plain and of_8_bytes and problem.cols < WIDE_ROW
    return replace(idea, vector_bytes=8) if suits else idea


def _fills(problem: Problem, size: int) -> bool:
    """Whether a row has so many bytes, or hardly fewer."""
    return MIN_SHARE_ONE_ACCESS * size < problem.row_bytes <= size


def _of_one_access(problem: Problem, gpu: GpuSpec) -> Config | None:
    """A row by one access of each thread, where that suits the GPU's SMs; None where it does not.

    None as well for rows of a warp's access or less, of which the H100's table says nothing else
    than the H200's, and for those of which threads have three accesses or more.
    """
    suits = has_little_bandwidth(gpu) and problem.dtype is not DType.F64  # which was not measured
    if not suits or not WARP_ACCESS_BYTES < problem.row_bytes <= MAX_ROW_BYTES_TWO_ACCESSES:
        return None
    full = (size for size in ROW_THREADS if _fills(problem, size * ACCESS_BYTES))
    idea = next(map(row_of, full), None)
    if idea is None or starts_anywhere(problem):
        return None
    return idea if are_many(problem, idea, gpu) else None


def _fullest_words(problem: Problem, threads: int) -> int:
    """Bytes of the widest words that leave few threads idle for the last access to a row.

    On an H200, 1087 x 1344 bf16 takes 11 % more time by 16 bytes, of which 128 threads have one and
    a third. Of fp32 rows it makes no difference.
    """
    if not problem.dtype.is_half:
        return 16

    def full(width: int) -> float:
        words = problem.row_bytes / width / threads
        return words / math.ceil(words)

    widths = (16, 8)
    return next((width for width in widths if full(width) >= 0.8), max(widths, key=full))


def _threads_of_one_block(problem: Problem) -> int:
    """Threads for few 16-byte accesses of the row each.

    One of the shortest rows, two of rows up to 4 KiB and of gradients, which read two matrices;
    of longer ones three in 16 bits and six in fp32: on an H200, three to six are within 2 % of the
    best from 1280 to 8191 columns, two take up to 3 % more time in fp32, 13 % in 16 bits. Under a
    causal mask, on whose short rows large blocks would be lost, 32 elements, and two thirds of them
    where rows are longer, but two accesses of those that a warp has one of. The same for lengths of
    16-bit rows, which take 7 to 9 % more time by twice as many threads.
    """
    halves = problem.dtype.is_half
    wide = halves and problem.cols >= WIDE_ROW
    if problem.cols <= 64:
        accesses = 1.0
    elif problem.mask is Mask.CAUSAL and problem.row_bytes <= WARP_ACCESS_BYTES:
        accesses = 2
    elif problem.mask is Mask.LENGTHS and halves:
        accesses = 4
    elif problem.mask is Mask.CAUSAL:
        longer = problem.dtype.itemsize == 4 and problem.cols >= 4096
        accesses = 16 / 3 if longer else min(8, 2 * problem.dtype.itemsize)
    elif starts_anywhere(problem):
        accesses = 3.5 if halves else 3
    elif wide:
        accesses = 4
    elif halves and 0.95 * WARP_ACCESS_BYTES < problem.row_bytes <= WARP_ACCESS_BYTES:
        accesses = 1
    elif problem.row_bytes <= MAX_ROW_BYTES_TWO_ACCESSES or problem.op.is_backward:
        accesses = 2
    else:
        accesses = 3 if halves else 6
    return threads_for(problem, accesses)
