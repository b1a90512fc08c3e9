"""Gradients of wide rows, without a search: a cluster has each row, and keeps both matrices."""

import math
from dataclasses import replace

from explorer.model.config import Config
from explorer.model.dtype import DType
from explorer.model.gpu_spec import GpuSpec
from explorer.model.problem import Op, Problem, power_of_two
from explorer.model.work_split import WorkSplit
from explorer.space.heuristic.residency import has_little_bandwidth
from explorer.space.heuristic.row_threads import (
    ACCESS_BYTES,
    MAX_BLOCK_THREADS,
    MIN_BLOCK_THREADS,
    starts_anywhere,
)
from explorer.space.heuristic.wide_rows import (
    THREADS_OF_FIRST_WARP,
    are_fewest,
    by_8_byte_words,
    fewest_blocks,
    is_wide_of_8_byte_words,
    shared_by,
)

MIN_ROW_BYTES_8_BLOCKS = 32 * 1024
"""Bytes of the shortest row that eight blocks share; four share shorter ones. On an H200, 4096 x
8192 bf16 takes 58 % more time by eight blocks, with 2 KiB of each matrix for each."""

MAX_BLOCKS_PER_SM_UNEVEN = 1.5
"""Blocks for each SM, at most and more than one, for which rows that four would share have eight:
some SMs would have two blocks, most of them one. On an H200, 41 x 13294 bf16 takes 15 % less time
by eight."""

MAX_ROWS_PER_SM_FOUR_BLOCKS = 2.5
"""Rows for each SM, at most and more than one, of which four blocks share each row of f32 of up to
MAX_COLS_FOUR_BLOCKS, where words of 16 bytes divide them, unless exponentials are computed: on an
H200, 215 x 8548 and 300 x 8200 take 4 % less time so, 250 x 10000 and 180 x 9004 0.5 %."""

MAX_COLS_FOUR_BLOCKS, THREADS_OF_FOUR_BLOCKS = 10_240, 256
"""Elements of the longest f32 row that four blocks share instead of eight, and threads of each
block, for many rows that start anywhere, where an SM has much bandwidth. About a wave of other rows
(`MAX_ROWS_PER_SM_FOUR_BLOCKS`) has the same limit. On an H200, 12968 x 8963 takes 3 % less time so
and 9000 x 9001 2 %, but 6000 x 12001 0.6 % more, and on an H100 the first two 0.6 % more."""

MIN_WAVES_OF_FOUR_BLOCKS = 4
"""Waves of these blocks, of any registers, from which rows are many: no fewer were timed."""

MAX_REGISTERS_OF_A_BLOCK = {2: 14 * 1024, 4: 16 * 1024}
"""Registers of a block that hold its part of both rows, at most, by the bytes of an element, where
eight share them or less: wider rows have the largest cluster. On an H200, 262 x 128256 bf16 takes
9 % more time by eight blocks, 8 x 65536 f32 10 % less."""

MIN_BLOCKS_PER_SM_UNALIGNED = 4
"""Blocks for each SM that 16-bit rows which start anywhere are to have by the fewest blocks that
hold them: on an H200, 34 x 27674 f16 takes 12 % more time by 2 blocks than by 8."""

MAX_REGISTERS_PER_THREAD = {2: 64, 4: 56}
"""Registers of a thread that hold its share of both rows, at most, by the bytes of an element."""

MAX_REGISTERS_8_BYTE_WORDS = 32
"""The same of 16-bit rows by words of 8 bytes: on an H200, 64 x 50260 bf16 takes 10 % less time
by 256 threads, which hold 25, than by 128."""

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

REGISTERS_OF_MORE_THREADS, THREADS_OF_MORE_REGISTERS = (32, 45), 192
"""Registers of a thread's share of 16-bit rows, from and to, for which each of eight blocks has 192
threads instead of 128. On an H200, 21 x 33907, 150 x 36360 and 195 x 36464 bf16 take 10 to 11 %
less time so, 300 x 33000 5 %; of more registers, 260 x 50264 takes 2 % more, 200 x 60000 as
long."""

BLOCKS_PER_SM_MORE_THREADS = 4
"""Such blocks that are to fit an SM if 128 threads would hold more than MANY_REGISTERS: 150 x 43344
bf16 takes 12 % less time with it than without, and 212 x 43344 9 %."""

THREADS_OF_TWO_BLOCKS, BLOCKS_PER_SM_TWO_BLOCKS = 256, 4
"""Threads of a block where two share each of many 16-bit rows that start anywhere, and how many
such blocks are to fit an SM, if no thread holds more than MAX_REGISTERS_TWO_BLOCKS. On an H200,
300 x 8943 bf16 takes 13 % less time so than by blocks of 128, 1000 x 9001 5, 400 x 12001 3 and
2000 x 8943 2 %, on an H100 10, 2, 1 and 1 %. With room for one or two of these blocks, 300 x 8943
takes 8 % more time. No more than 2000 rows, no f16 and no other GPU were timed."""

MAX_REGISTERS_TWO_BLOCKS = 24
"""Registers of a thread's share of such rows, at most: on an H200, 300 x 20001 bf16 takes 25 % more
time if four blocks of 256 threads are to fit, each of which holds 39."""

MAX_REGISTERS_ONE_BLOCK = 68
"""Registers of a thread's share, at most, of a row that has a single block of 256 threads, where
rows are many and two such blocks would hold too much of it; two blocks are to fit an SM. On an
H200, 1117 x 12310 bf16 takes 5 % less time so than by two blocks of 128, 500 x 15001 4 % less, and
400 x 17003 of log_softmax 5 % less than by two blocks of 256; on an H100 2, 1 and 4 % less."""

MAX_REGISTERS_ONE_BLOCK_8_BYTES = 52
"""The same where such a block loads words of 8 bytes: 1550 x 12538 bf16 takes 2 % less time so than
by words of 16 on an H200, 1 % on an H100, 2500 x 13001 0.3 and 0.2 % less, but 1200 x 15002, of 59
registers, 0.7 % more on an H200."""

MIN_ROWS_PER_SM_ONE_BLOCK = 3
"""Rows for each SM from which rows are many: of fewer rows that one block holds so, and of more
than 1117, nothing was timed."""

MIN_ROWS_PER_SM_TWO_FILLED = 1.75
"""Rows for each SM, from this to two, for which two such blocks of an SM have about all rows at
once: on an H200, 250 x 14002 bf16 takes 17 % less time so than by four blocks of 128 threads."""

TWO_LARGE_BLOCKS_PER_SM = 2
"""Blocks of MAX_CLUSTER_THREADS that are to fit an SM where two share each of wider rows that are
fewer: on an H200, 300 x 20001 takes 6 % less time so than by blocks of 256, and 320 x 22003 5 %, on
an H100 6, 5 and, for 270 x 18001, 8 %."""

MIN_SHARE_OF_SMS_BY_PAIRS = 0.9
"""Share of the SMs, at least, for which there are blocks if pairs of them share each of few rows of
a gradient of log_softmax. Its sum is of one of both rows, so that blocks wait for each other less
than in a gradient of softmax. On an H200, 64 x 50264 bf16 takes 17 % less time by two blocks of 512
threads than by eight of 128, 128 x 16384 14 %, 64 x 32000 8 %, on an H100 11, 8 and 5 %. But 48 x
40000 f32 takes 5 % more so, of which a quarter of the SMs would have none."""

MIN_ROW_BYTES_OF_LARGE_EIGHTS = 60 * 1024
"""Bytes of the shortest 16-bit row of which eight large blocks have a part each, where there are
too few pairs, but eight blocks for each row are as many as SMs at least. They have one access for
each thread, or 512 threads: on an H200, 40 x 32000 bf16 takes 8 % less time by 512 threads than by
128, 32 x 65536 5 %, on an H100 5 and 2 %. Of f32 this was not so."""

MAX_REGISTERS_OF_A_PAIR = {1: 64, 2: 32}
"""Registers that hold a thread's share of both rows, at most, where two blocks of
MAX_CLUSTER_THREADS share them, by the blocks that an SM is to hold."""

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

THREADS_OF_TWO_ACCESSES = 192
"""Threads of a block where rows of f32 start anywhere, and 128 would have a third access: on an
H200, 150 x 10001 and 374 x 10715 take 14 % less time so, on an H100 9 and 3 %."""

MAX_CLUSTER_THREADS = 512

MAX_BLOCKS_ALL_WARPS = 8
"""Blocks of a cluster up to which all warps combine what they found, however many there are: by a
first warp alone, the gradient of log_softmax at 8 x 151936 takes 8 to 13 % more time."""


def of_wide_rows(problem: Problem, gpu: GpuSpec) -> Config:
    """A row by a cluster, which keeps both matrices, or by large blocks that read them twice.

    On an H200, a block a row takes 1.0 to 1.3 times as long at 8192 to 32768 columns, 1.7 times at
    128256, and 7 times for 1 x 262144.
    """
    of_logarithm = _wide_rows_of_logarithm(problem, gpu) if problem.op.is_log else None
    if of_logarithm is not None:
        return of_logarithm
    few = 8 * problem.rows <= gpu.sm_count
    if few and (problem.dtype.is_half or not are_fewest(problem, gpu)):
        kept = _of_few_rows(problem, gpu)
        if kept is not None:
            return by_8_byte_words(kept, problem, gpu)
    if is_wide_of_8_byte_words(problem):
        return _of_8_byte_words(problem, gpu)
    return _of_many_rows(problem, gpu)


def _of_8_byte_words(problem: Problem, gpu: GpuSpec) -> Config:
    """Four or eight blocks, as for rows that start at whole accesses, of few registers a thread.

    On an H200, 1000 x 9004 and 500 x 12300 bf16 take 1 % less time by four blocks than by two, and
    300 x 20004 1 % less by eight of 128 threads than by four of 256.
    """
    blocks = min(gpu.cluster_blocks, 8 if problem.row_bytes >= MIN_ROW_BYTES_8_BLOCKS else 4)
    threads = _threads_of_a_part(problem, blocks, MAX_REGISTERS_8_BYTE_WORDS)
    return by_8_byte_words(_shared_by(blocks, threads), problem, gpu)


def _wide_rows_of_logarithm(problem: Problem, gpu: GpuSpec) -> Config | None:
    """Two large blocks for each row, where these are one or two for each SM, or else eight.

    None for other numbers of rows, and for what was not timed: rows that start anywhere, f64, and
    for eight blocks rows of more than 128 KiB. Pairs for rows of 8192 to 11999 elements were not
    timed either.
    """
    blocks_per_sm = math.ceil(2 * problem.rows / gpu.sm_count)
    most = MAX_REGISTERS_OF_A_PAIR.get(blocks_per_sm, 0)
    untimed = starts_anywhere(problem) or problem.dtype.itemsize > 4
    if untimed or _registers(problem, 2, MAX_CLUSTER_THREADS) > most:
        return None
    if 2 * problem.rows >= MIN_SHARE_OF_SMS_BY_PAIRS * gpu.sm_count:
        return replace(_shared_by(2, MAX_CLUSTER_THREADS), min_blocks=blocks_per_sm)
    wide = problem.dtype.is_half and problem.row_bytes >= MIN_ROW_BYTES_OF_LARGE_EIGHTS
    if not wide or 8 * problem.rows < gpu.sm_count or gpu.cluster_blocks < 8:
        return None
    one_access = power_of_two(math.ceil(problem.row_bytes / ACCESS_BYTES / 8))
    return _shared_by(8, min(one_access, MAX_CLUSTER_THREADS))


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
    if blocks == 8 and _are_of_four_blocks(problem, gpu):
        return _shared_by(4, THREADS_OF_FOUR_BLOCKS)
    if _fill_pairs_of_blocks(problem, gpu):
        return replace(_shared_by(1, THREADS_OF_TWO_BLOCKS), min_blocks=2)
    by_two = _by_two_blocks(problem, gpu) if blocks == 2 else None
    if by_two is not None:
        return by_two
    threads = _threads_of_a_part(problem, blocks, _most_registers(problem, gpu, blocks))
    if blocks == 8 and threads == MIN_BLOCK_THREADS and _have_more_threads_of_halves(problem):
        many = _registers(problem, 8, threads) > MANY_REGISTERS
        more = _shared_by(8, THREADS_OF_MORE_REGISTERS)
        return replace(more, min_blocks=BLOCKS_PER_SM_MORE_THREADS if many else 1)
    share = _registers(problem, blocks, threads)
    few = 4 * problem.rows <= gpu.sm_count and not are_fewest(problem, gpu)
    most = MAX_REGISTERS_KEPT_BY_FEW_ROWS if few else MAX_REGISTERS_KEPT
    if threads == MAX_CLUSTER_THREADS and share > most:
        return _of_rows_too_wide(problem, gpu)
    kept = _shared_by(blocks, threads)
    if problem.dtype.is_half and share > MANY_REGISTERS:
        return replace(kept, min_blocks=max(1, MIN_THREADS_PER_SM // threads))
    return kept


def _fill_pairs_of_blocks(problem: Problem, gpu: GpuSpec) -> bool:
    """Whether 16-bit rows that start anywhere fill the two blocks of an SM that hold one each."""
    odd_halves = problem.dtype.is_half and starts_anywhere(problem)
    filled = MIN_ROWS_PER_SM_TWO_FILLED <= problem.rows / gpu.sm_count <= 2
    least, most = MAX_REGISTERS_TWO_BLOCKS, MAX_REGISTERS_ONE_BLOCK
    one_holds = 2 * least < _registers(problem, 1, THREADS_OF_TWO_BLOCKS) <= most
    return odd_halves and filled and one_holds


def _have_more_threads_of_halves(problem: Problem) -> bool:
    """Whether 128 threads of each of eight blocks would hold more of a 16-bit row than is best."""
    held = _registers(problem, 8, MIN_BLOCK_THREADS)
    least, most = REGISTERS_OF_MORE_THREADS
    return problem.dtype.is_half and least < held <= most


def _by_two_blocks(problem: Problem, gpu: GpuSpec) -> Config | None:
    """Two blocks, or one where rows are many, for each row that starts anywhere.

    None where nothing was timed: for few rows of 12289 to 17408 elements, for many of more, and for
    all of more than 24576.
    """
    if _registers(problem, 2, THREADS_OF_TWO_BLOCKS) <= MAX_REGISTERS_TWO_BLOCKS:
        small = _shared_by(2, THREADS_OF_TWO_BLOCKS)
        return replace(small, min_blocks=BLOCKS_PER_SM_TWO_BLOCKS)
    are_many = problem.rows >= MIN_ROWS_PER_SM_ONE_BLOCK * gpu.sm_count
    held = _registers(problem, 1, THREADS_OF_TWO_BLOCKS)
    one_holds = held <= MAX_REGISTERS_ONE_BLOCK
    if are_many and one_holds:
        word = 8 if held <= MAX_REGISTERS_ONE_BLOCK_8_BYTES else ACCESS_BYTES
        return replace(_shared_by(1, THREADS_OF_TWO_BLOCKS), vector_bytes=word, min_blocks=2)
    large = _registers(problem, 2, MAX_CLUSTER_THREADS) <= MAX_REGISTERS_TWO_BLOCKS
    if not are_many and not one_holds and large:
        return replace(_shared_by(2, MAX_CLUSTER_THREADS), min_blocks=TWO_LARGE_BLOCKS_PER_SM)
    return None


def _are_of_four_blocks(problem: Problem, gpu: GpuSpec) -> bool:
    """Whether rows are many, of f32, and hardly longer than those that four blocks share."""
    unaligned = problem.dtype is DType.F32 and starts_anywhere(problem)
    if not unaligned or has_little_bandwidth(gpu):
        return False
    wave = gpu.sm_count * (gpu.threads_per_sm // (4 * THREADS_OF_FOUR_BLOCKS))
    many = problem.rows >= MIN_WAVES_OF_FOUR_BLOCKS * wave
    return many and problem.cols <= MAX_COLS_FOUR_BLOCKS


def _blocks_of_a_row(problem: Problem, gpu: GpuSpec) -> int:
    """Eight, if they hold the row; and fewer for shorter rows, or for 16-bit rows that start
    anywhere where these are many. More for numbers of rows of which SMs would have uneven shares.

    On an H200, 668 x 50257 bf16 takes 1 to 3 % less time by 4 blocks than by 8, 406 x 8943 9 % less
    by 2 than by 4.
    """
    most = gpu.cluster_blocks
    least = min(most, 8 if problem.row_bytes >= MIN_ROW_BYTES_8_BLOCKS else 4)
    if _are_about_a_wave_of_four_blocks(problem, gpu):
        least = min(most, 4)
    if least == 4 and 1 < 4 * problem.rows / gpu.sm_count <= MAX_BLOCKS_PER_SM_UNEVEN:
        least = min(most, 8)
    if problem.dtype.is_half and starts_anywhere(problem):
        each = MIN_BLOCKS_PER_SM_UNALIGNED * gpu.sm_count / problem.rows
        least = next((blocks for blocks in (2, 4) if blocks >= each), least)
    held = MAX_REGISTERS_OF_A_BLOCK[min(4, problem.dtype.itemsize)]
    return fewest_blocks(problem.row_bytes // 2, held, least=least, most=most)


def _are_about_a_wave_of_four_blocks(problem: Problem, gpu: GpuSpec) -> bool:
    """Whether rows of f32 are hardly more than SMs, and hardly longer than those of four blocks."""
    suits = problem.op is Op.SOFTMAX_BACKWARD and problem.dtype is DType.F32
    about = 1 < problem.rows / gpu.sm_count <= MAX_ROWS_PER_SM_FOUR_BLOCKS
    return suits and about and not starts_anywhere(problem) and problem.cols <= MAX_COLS_FOUR_BLOCKS


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
    threads = next(fitting, MAX_CLUSTER_THREADS)
    if problem.dtype.itemsize == 4 and starts_anywhere(problem) and threads == sizes[0]:
        words = problem.row_bytes / ACCESS_BYTES / blocks
        if 2 * threads < words <= 2 * THREADS_OF_TWO_ACCESSES:
            return THREADS_OF_TWO_ACCESSES
    return threads


def _registers(problem: Problem, blocks: int, threads: int) -> float:
    """Registers of a thread that hold its share of both rows, as they were loaded."""
    return 2 * problem.row_bytes / 4 / (blocks * threads)


def _shared_by(blocks: int, threads: int) -> Config:
    """As rows of the forward, with the reduction that suits both rows of a gradient."""
    first_warp = blocks > MAX_BLOCKS_ALL_WARPS and threads >= THREADS_OF_FIRST_WARP
    reduction = "shuffle-first-warp" if first_warp else "shuffle"
    return replace(shared_by(blocks, threads), reduction=reduction)
