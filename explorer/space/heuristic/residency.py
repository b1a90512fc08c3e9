"""How many blocks are resident on the GPU together, and what follows for hints and reductions."""

import math
from dataclasses import replace

from explorer.model.config import Config
from explorer.model.dtype import DType
from explorer.model.gpu_spec import WARP, GpuSpec, occupancy, registers_left
from explorer.model.outcome import Resources
from explorer.model.problem import Mask, Problem
from explorer.model.work_split import WorkSplit
from explorer.space.design_rules import WIDE_ROW, widest_word
from explorer.space.heuristic.registers import likely_registers
from explorer.space.heuristic.row_threads import is_plain_forward


def resident_blocks(gpu: GpuSpec, threads: int, registers: int = 0) -> int:
    """Blocks of so many threads, of so many registers each if these are known."""
    resources = Resources(registers=registers)
    return occupancy(resources, threads, 1, gpu).blocks_per_sm * gpu.sm_count


def resident_threads(gpu: GpuSpec) -> int:
    """Threads that the GPU has room for at once."""
    return gpu.sm_count * gpu.threads_per_sm


def resident_rows(problem: Problem, idea: Config, gpu: GpuSpec) -> int:
    """Rows that the blocks on the GPU at once work on."""
    left = registers_left(idea.threads, idea.min_blocks, gpu)  # the compiler keeps to them
    registers = min(likely_registers(problem, idea), left)
    blocks = resident_blocks(gpu, idea.threads, registers)
    split = WorkSplit(problem, idea)
    return blocks // (idea.cluster * split.parts) * split.block_rows


def waves(problem: Problem, idea: Config, gpu: GpuSpec) -> float:
    """Rows over the rows that are resident together with hints; infinite if not one block fits.

    Where rows start anywhere within an access, a kernel takes more registers with hints. If rows
    count as resident by the registers without hints, a few of them wait for others: on an H200, 550
    x 2131 f32 of log_softmax takes 15 % more time by 320 threads, by which 528 rows are resident,
    than by 256.
    """
    hinted_idea = replace(idea, load_hint="cs", store_hint="cs")
    held = resident_rows(problem, hinted_idea, gpu)
    return problem.rows / held if held else math.inf


def fits_one_wave(problem: Problem, idea: Config, gpu: GpuSpec) -> bool:
    """Whether the blocks of all rows are likely to be on the GPU at once."""
    return waves(problem, idea, gpu) <= 1


def rows_of_a_wave(idea: Config, gpu: GpuSpec) -> int:
    """Rows that the GPU's blocks have at once, if registers are enough for all of them."""
    return resident_blocks(gpu, idea.threads) * idea.rows_per_block


def elements_of_an_sm(problem: Problem, gpu: GpuSpec) -> int:
    """Return the elements of the rows that an SM has, if each row is one block's."""
    return problem.cols * math.ceil(problem.rows / gpu.sm_count)


def fastest_reduction(gpu: GpuSpec) -> str:
    """Of rows so few that it counts how soon their threads have combined."""
    return "shuffle-redux" if gpu.reduces_warps else "shuffle"


MAX_GBPS_OF_AN_SM_LITTLE = 30.0
"""Memory bandwidth, in GB/s for each SM, up to which it is little, so that threads have fewer
accesses each to many rows, of the forward and of gradients, and some rows have other blocks.

An H100's SMs have 25, an H200's 36. By one access instead of two, 50000 x 512 f32 takes 1 % less
time on the former, and rows of 1 to 4 KiB take 2 to 12 % more on the latter. No other GPU was
measured.
"""

UNKNOWN_GBPS_OF_AN_SM = 36.0
"""Memory bandwidth, in GB/s for each SM, that is assumed where it is not known: an H200's."""


def gbps_of_an_sm(gpu: GpuSpec) -> float:
    """Return an SM's share of the memory's bandwidth in GB/s, or bytes in a nanosecond."""
    return gpu.peak_gbps / gpu.sm_count or UNKNOWN_GBPS_OF_AN_SM


def has_little_bandwidth(gpu: GpuSpec) -> bool:
    """Whether an SM has so little bandwidth that few accesses of each thread keep it busy."""
    return gbps_of_an_sm(gpu) <= MAX_GBPS_OF_AN_SM_LITTLE


# ------------------------------------------------------------------ cache hints


MAX_WAVES_EVICT_FIRST = 1.4
"""Waves of blocks up to which loads and stores are evicted first, where no two rows share a line.

Of 149 kernels of the H200's table that have 0.9 to 1.4 waves and were timed with both hints, 124
take up to 19 % less time with this one, and 25 up to 8 % more. Of 705 that have more than 3 waves,
670 take up to 38 % more.
"""

MAX_WAVES_EVICT_FIRST_CLUSTERS = 1.7
"""The same of clusters: of 22 such kernels with 1.4 to 1.7 waves, 19 take up to 8 % less time, of
the H100's 17 10 up to 4 %; of 66 with 1.7 to 4 waves, 55 take up to 6 % more."""

MAX_WAVES_EVICT_FIRST_UNALIGNED = 1.02
"""The same where a row's ends share lines of memory with its neighbours.

A line that is evicted between two rows is read twice. On an H200, of 94 such kernels with 0.4 to
1.02 waves, 87 take up to 19 % less time with the hint; of 19 with 1.02 to 1.4, 14 take up to 13 %
more. Spans, whose rows share lines within a block, have the same limit: of 6 with 1.02 to 1.4
waves, 4 take up to 4 % more and one 0.2 % less; of the H100's 10, 7 take up to 1 % less.
"""

MAX_WAVES_EVICT_FIRST_NARROW_HALVES = 0.9
"""The same of rows of 16 bits of a forward op that warps load by pairs, or by words of 8 bytes that
do not divide them: on an H200, 2000 x 1030 of log_softmax and 3000 x 1030 by pairs, of 0.5 and 0.6
waves, take 3 % less time with hints, 4000 x 1182 of log_softmax, of 0.95, 2 % more, 5000 x 866, of
0.95, as long, 3000 x 1598, 3000 x 2002 and 4000 x 1402, of 1.1 to 1.3, 1 to 4 % more, and the
log_softmax of 1200 x 3002 by 8 bytes, of 1.1, 5 % more."""

MAX_WAVES_EVICT_FIRST_SHORT_UNALIGNED = 0.7
"""The same of rows of 32 bits below SHORT_ROW_BYTES, which share more of their lines.

On an H200, 2000 x 1001 takes 1 to 5 % less time without hints, 528 x 1001 4 to 15 % more. With 0.7
to 1.02 waves, 10 of 11 kernels of such rows take up to 7 % more time with hints on an H100, but 12
of 15 of rows of 16 bits up to 4 % less, and 11 of 14 on an H200.
"""

MAX_WAVES_EVICT_FIRST_SPANS_F32, MIN_THREADS_EVICT_FIRST_SPANS_F32 = 1.3, 8
"""The same of f32 rows in spans, if so many threads have each at least: on an H200, 10165 x 381, of
1.07 waves, takes 6 % less time with hints, 26642 x 116 by eight, of 1.26, 2 %; 13861 x 335, of
1.46, takes 3 % more, and 200000 x 17 by one thread, of 1.18, 1 % more."""

SHORT_ROW_BYTES = 8192

MAX_ELEMENTS_PER_SM_EVICT_FIRST_NARROW = {2: 9500, 4: 3000}
"""Elements of the rows of an SM up to which gradients that blocks load by narrow words have hints,
by the bytes of an element; rows are a quarter of the SMs at least. On both GPUs, 100 x 2501 and
132 x 3001 bf16 take 5 to 8 % less time with hints, and of 1 to 3 rows none takes less. 1000 x 1501
bf16, of 12 000 elements, takes 1 to 5 % more, 1000 x 1121 f32 5 to 11 %: two loads of a warp share
a line."""

MAX_ELEMENTS_PER_SM_EVICT_FIRST_8_BYTES_F32 = 4000
"""The same of f32 by words of 8 bytes that divide rows: on an H200, 52 x 3766 takes 5 % less time
with hints."""

MAX_L2_SHARE_EVICT_FIRST_NARROW = 0.08
"""Bytes of all three matrices over those of the L2 cache up to which gradients have hints of whose
rows a warp or less loads narrow words: on an H200, 23076 x 13 bf16 takes 8 % less time with hints,
11111 x 27 f32 2 %, but 171428 x 14 bf16 8 % more and 12646 x 39 f32 4 %."""

MAX_L2_SHARE_EVICT_FIRST_WIDE = 0.13
"""The same of wide gradients of 16 bits that start anywhere. On an H200, 132 x 9502 bf16, of 7.5
MB, takes 5 % less time with hints, but 250 x 14002, 150 x 11002, 100 x 20002 and 200 x 8402, of 10
to 21 MB, 2 to 5 % more."""

MAX_BYTES_LITTLE = 4096
"""Bytes of each matrix, at most, of a gradient that is little. In f32, where a warp or less loads a
row by narrow words, 1 x 125 and 8 x 125 of log_softmax take 1 to 2 % less time without hints on two
GPUs, 3 x 5 and 46 x 5 1 %, but 300 x 16, of 19 KB, 1 % more on an H200; 31 x 6 and 3 x 29 of
softmax take 1 to 2 % less there and up to 1 % on an H100. Where one thread has a row, 4 x 3 of
log_softmax takes 3 % less time with hints on an H200 and 1 % on an H100."""

L2_SHARES_WITHOUT_HINTS_F32 = (0.15, 0.28)
"""Bytes of both matrices over those of the L2 cache between which some short rows of f32 have no
hints: those that only single elements divide and that a warp or less loads straight from memory. On
an H200, 13813 x 87, 10000 x 127 and 10000 x 177, of 0.15 to 0.23, take 3 to 5 % less time without
hints, but 3087 x 113, of 0.04, 7 % more and 6812 x 399 and 10000 x 297, of 0.35 and 0.38, 2 %; on
an H100 10000 x 177, of 0.27, takes 1 % less."""

MAX_COLS_OF_L2_SHARES_F32 = 700
"""Elements of the longest of these rows: of longer ones, all above the next share have no hints. On
an H200, 5000 x 615, of 0.39, takes 3 % more time by a warp without hints, 3500 x 905, of 0.4, 4 %
less."""

MIN_L2_SHARE_WITHOUT_HINTS_BY_A_WARP_F32 = 0.25
"""Bytes of both matrices over those of the L2 cache above which such longer rows have no hints: on
an H200, 2600 x 1001, of 0.33, takes 1 % less time without, 1500 x 827, of 0.16, 3 % more."""

MIN_L2_SHARE_WITHOUT_HINTS_BY_WARPS_F32 = 0.2
"""The same of rows that two warps or four load by single elements: by four, 2600 x 1001 takes 9 %
less time without hints, 1800 x 903, of 0.21, 5 %, and 1500 x 827 1 %; by two 4500 x 701 and 5000 x
615 2 to 3 % less, and 2200 x 701, of 0.20, 3 % more."""

L2_SHARES_WITHOUT_HINTS_GRADIENT_F32 = (0.15, 0.4)
"""Bytes of all three matrices over those of the L2 cache between which gradients of f32 have no
hints whose rows a block loads by words of 16 bytes that divide them. On an H200, 1199 x 760, 1555 x
884 and 1049 x 1796, of 0.17 to 0.36, take 1 to 4 % less time without hints, 352 x 5240, of 0.35, 3
% by blocks of 128 threads, but 128 x 4696, of 0.11, takes 2 % more."""

MAX_ACCESSES_EVICT_FIRST_NARROW_F32 = 6
"""Accesses of a thread to a row of f32 or f64 that a block loads, at most: with hints 60 x 2201 f32
takes 3 % less time by 384 threads, which have 6, and 2 to 8 % more by 192 to 256."""


MAX_COLS_WITHOUT_HINTS = 4096
"""Elements of the longest row of f32 whose hints may lose lines: on an H200, few longer rows of
narrow words gain by them, 16 x 6002 9 % and 3 x 4510 1 %."""


def hinted(idea: Config, problem: Problem, gpu: GpuSpec) -> Config:
    """Return the idea with evict-first hints if about all of its blocks are resident together.

    All is loaded then before much is stored, and nothing gains by staying in the cache. On an H200,
    behind a flush, most launches take 2 to 10 % less time: 7 % of 32 x 4096 f32, 5 % of 64 x 151936
    bf16. Of more blocks most take 1 to 4 % more: they never displace what others have left in the
    cache, and have the rest of it to write through.
    """
    once = _is_read_once(idea) and not _loses_lines(idea, problem, gpu)
    hint = "cs" if once and _fits(idea, problem, gpu) else "default"
    return replace(idea, load_hint=hint, store_hint=hint)


def _is_read_once(idea: Config) -> bool:
    """By a kernel; the second of two launches has come to its loads before the first has ended."""
    return idea.cache != "none" or idea.splits_launches


def _loses_lines(idea: Config, problem: Problem, gpu: GpuSpec) -> bool:
    """Whether hints evict lines that are loaded once more, or that would stay in the L2 cache.

    Lines are loaded more than once where narrow words load a gradient's rows. By blocks, hints lose
    where an SM has many elements, or a thread of 32-bit rows many accesses, and gain nothing where
    rows are fewest. Rows of f64, which were not timed, are taken for rows of f32.
    """
    if _are_wide_gradients_that_start_anywhere(problem, idea):
        return problem.bytes > MAX_L2_SHARE_EVICT_FIRST_WIDE * gpu.l2_bytes
    if _gains_by_the_cache(problem, idea, gpu):
        return True
    narrow = idea.vector_bytes < 16 and idea.staging == "direct" and idea.cluster == 1
    if not problem.op.is_backward or not narrow or problem.inner > 1:
        return False
    if idea.threads_per_row <= WARP:
        many_bytes = problem.bytes > MAX_L2_SHARE_EVICT_FIRST_NARROW * gpu.l2_bytes
        return many_bytes or (is_of_few_bytes(problem) and idea.threads_per_row > 1)
    size = min(4, problem.dtype.itemsize)
    if size == 4 and problem.cols > MAX_COLS_WITHOUT_HINTS:
        return False
    elements = elements_of_an_sm(problem, gpu)
    most = MAX_ELEMENTS_PER_SM_EVICT_FIRST_NARROW[size]
    if size == 4 and widest_word(problem) == 8:
        most = MAX_ELEMENTS_PER_SM_EVICT_FIRST_8_BYTES_F32
    many = size == 4 and WorkSplit(problem, idea).slots > MAX_ACCESSES_EVICT_FIRST_NARROW_F32
    return many or are_few_for_hints(problem, gpu) or elements > most


def _gains_by_the_cache(problem: Problem, idea: Config, gpu: GpuSpec) -> bool:
    """Whether a kernel for rows of f32 gains more by what stays in the L2 cache than by hints."""
    if problem.dtype is not DType.F32 or problem.inner > 1 or idea.cluster > 1:
        return False
    if idea.staging != "direct" or idea.vector_bytes != widest_word(problem):
        return False
    least, most = _l2_shares_without_hints(problem, idea)
    return least < problem.bytes / gpu.l2_bytes <= most


def _l2_shares_without_hints(problem: Problem, idea: Config) -> tuple[float, float]:
    """Shares of the L2 cache between which rows of f32 have no hints; none for most kernels.

    These are kernels for rows of a forward op of which single elements are loaded, or for rows of a
    gradient that a block loads by words of 16 bytes.
    """
    none = math.inf, math.inf
    by_a_warp = idea.threads_per_row <= WARP
    if problem.op.is_backward:
        by_blocks = idea.vector_bytes == 16 and not by_a_warp
        return L2_SHARES_WITHOUT_HINTS_GRADIENT_F32 if by_blocks else none
    if idea.vector_bytes != 4 or idea.threads_per_row == 1:
        return none
    if by_a_warp and problem.cols <= MAX_COLS_OF_L2_SHARES_F32:
        return L2_SHARES_WITHOUT_HINTS_F32
    if by_a_warp:
        return MIN_L2_SHARE_WITHOUT_HINTS_BY_A_WARP_F32, math.inf
    timed = problem.mask is Mask.NONE
    return (MIN_L2_SHARE_WITHOUT_HINTS_BY_WARPS_F32, math.inf) if timed else none


def is_of_few_bytes(problem: Problem) -> bool:
    """Whether each matrix is of f32 and has few bytes."""
    return problem.dtype.itemsize == 4 and problem.rows * problem.row_bytes <= MAX_BYTES_LITTLE


def are_few_for_hints(problem: Problem, gpu: GpuSpec) -> bool:
    """Whether rows are so few that hints gain nothing, of gradients by blocks and narrow words."""
    return problem.rows < gpu.sm_count // 4


def _are_wide_gradients_that_start_anywhere(problem: Problem, idea: Config) -> bool:
    """Whether registers keep wide rows of 16 bits, whose ends share lines of memory."""
    wide = problem.cols >= WIDE_ROW and problem.inner == 1 and problem.dtype.is_half
    return (
        idea.cache == "registers"
        and wide
        and problem.op.is_backward
        and not WorkSplit(problem, idea).aligned
    )


def _is_of_narrow_halves(problem: Problem, idea: Config) -> bool:
    """Whether whole warps load 16-bit rows of a forward op by pairs, or by words of 8 bytes that do
    not divide them.
    """
    if not (is_plain_forward(problem) and problem.dtype.is_half and idea.cluster == 1):
        return False
    narrow = idea.vector_bytes == 4 or (idea.vector_bytes == 8 and widest_word(problem) < 8)
    return narrow and idea.threads_per_row >= WARP


def _fits(idea: Config, problem: Problem, gpu: GpuSpec) -> bool:
    """Whether the blocks, of two launches those of both, are few enough for evict-first hints."""
    launches = 2 if idea.splits_launches else 1
    is_span = idea.staging == "span"
    many_threads = idea.threads_per_row >= MIN_THREADS_EVICT_FIRST_SPANS_F32
    if is_span and problem.dtype is DType.F32 and many_threads:
        most = MAX_WAVES_EVICT_FIRST_SPANS_F32
    elif _is_of_narrow_halves(problem, idea):
        most = MAX_WAVES_EVICT_FIRST_NARROW_HALVES
    elif WorkSplit(problem, idea).aligned and not is_span:
        most = MAX_WAVES_EVICT_FIRST_CLUSTERS if idea.cluster > 1 else MAX_WAVES_EVICT_FIRST
    elif problem.row_bytes < SHORT_ROW_BYTES and not problem.dtype.is_half and not is_span:
        most = MAX_WAVES_EVICT_FIRST_SHORT_UNALIGNED
    else:
        most = MAX_WAVES_EVICT_FIRST_UNALIGNED
    return launches * waves(problem, idea, gpu) <= most
