"""Configs without a search for many rows of one block each: the largest that keep memory busy.

A block that has loaded its row computes, stores and leaves, and meanwhile the SM's other blocks
must load enough for the memory not to wait. What they load at once has to last for the memory's
latency at an SM's share of the bandwidth: `LATENCY_NS`. With fewer bytes under way, kernels take 5
to 20 % more time by the next sizes of block, and up to 47 % by the largest that were timed; with
more, 1 to 4 %, because threads have more accesses each. So each row has the largest block of which
enough rows are resident. The same nanoseconds suit an H100 and an H200, whose SMs have 25 and 36
GB/s.
"""

from collections.abc import Sequence
from dataclasses import replace

from explorer.model.config import Config
from explorer.model.gpu_spec import WARP, GpuSpec
from explorer.model.parameters import WARPS
from explorer.model.problem import Op, Problem
from explorer.model.work_split import WorkSplit
from explorer.space.design_rules import WIDE_ROW, widest_word
from explorer.space.heuristic.registers import likely_registers
from explorer.space.heuristic.residency import (
    fits_one_wave,
    gbps_of_an_sm,
    has_little_bandwidth,
    resident_rows,
    rows_of_a_wave,
)
from explorer.space.heuristic.row_threads import (
    ACCESS_BYTES,
    is_of_8_byte_words,
    is_plain_forward,
    row_of,
)
from explorer.space.heuristic.short_rows import MAX_COLS_SHORT_ROW

LATENCY_NS = {4: 1120, 2: 1260}
"""Nanoseconds for which an SM's share of the bandwidth is to be busy with what its blocks load at
once, by the bytes of an element, where words of 16 bytes divide each row.

They and the other two are where softmax and log_softmax lose the least, or 0.2 % more: by the
tables of an H200 and an H100 and by grids of random lengths. 20 ns more or less change what is lost
in the mean of a kind by 0.2 % at most.
"""

LATENCY_NS_ANYWHERE = {4: 1190, 2: 1390}
"""The same where rows are loaded by words of 16 bytes and start anywhere within these. That of 16
bits is of 15 problems of an H100: an H200 has such rows by other rules."""

LATENCY_NS_8_BYTES = 1290
"""The same of 16-bit rows by words of 8 bytes, almost all of log_softmax."""

LATENCY_NS_GRADIENT = 1130
"""The same of gradients, which load two matrices. On an H200, 6452 x 5200 bf16 takes 15 % more time
by two blocks of 768 threads, with 715 ns, than by three of 384, with 1290; on an H100 1 %."""

BLOCKS_NOT_LOADING, SHARE_NOT_LOADING = 0.75, 1 / 4
"""Blocks of an SM, in the mean, that store or wait for their threads; of 32 bits or more no more
than a quarter of all: an SM of an H200 has two blocks of 768 threads, by which 8000 x 7524 f32
takes 2 % less time than by three of 640."""

MAX_THREADS_FORWARD = 768
"""Threads of a block, at most, unless it loads two matrices: on an H100, 5461 x 6144 f32 takes 1 %
more time by 1024 threads, on an H200 5 %."""

MAX_REGISTERS_OF_MANY_ROWS = 128
"""Registers of a thread, at most, as they are guessed: of more, an SM has room for 512 threads, and
the guess was seldom compared with what a compiler took."""

MIN_BLOCKS_OF_AN_SM = 2
"""Blocks that an SM is to have at once, if any size of block leaves room for as many: while one
stores, another loads."""

MIN_SHARE_OF_MOST_BYTES = 0.9
"""Share of the most bytes under way for which the largest block is taken where no block has enough:
on GPUs with more bandwidth than an H200's, whose bytes under way suffice by no size."""

MIN_ACCESSES_BEYOND_ONE = 1.2
"""Accesses of 16 bytes for each thread to a 16-bit row, at least, if some threads have two: on an
H100, 33554 x 2000 bf16 takes 2 % more time by 224 threads, which have 1.1, than by 192."""

MIN_COLS_OF_MANY_ROWS = {
    ("softmax", 4): 480,
    ("softmax", 2): 1100,
    ("log_softmax", 4): 480,
    ("log_softmax", 2): 900,
}
"""Elements of the shortest rows that this is for, by the op and the bytes of an element, where
words of 16 bytes divide them: shorter rows of 16 bits share blocks, of which others are faster."""

MIN_COLS_OF_MANY_ODD_ROWS = 513
"""The same of other rows, which start anywhere from this length on (`MIN_COLS_UNALIGNED`): on an
H200, the log_softmax of 55857 x 495 f32 takes 9 % less time by 64 threads and single elements than
by as many and words of 16 bytes, which this would choose."""

COLS_OF_MANY_PAIRS = range(MAX_COLS_SHORT_ROW + 1, 2101)
"""Elements of 16-bit rows that two warps each load by pairs where words of 8 bytes do not divide
them. On an H200, 3000 x 1598 bf16 takes 8 % less time so than by the best words of 16 bytes and its
log_softmax 10 % less than by the best of 8, 4000 x 1402 3 and 8 %, 3000 x 2002 1 and 7 %, 9000 x
2002 1 % more and as long. Longer rows take as long by wider words."""

MIN_ROWS_PER_SM_OF_PAIRS = 15
"""Rows of an SM then, at least: with 11.4, 1500 x 2002 takes 14 % more time so than by words of 16
bytes, with 22.7 3000 x 2002 less."""

MIN_ROWS_PER_SM_OF_PAIRS_LOGARITHM = 11
"""The same of log_softmax: with 11.4, 1500 x 2002 takes 7 % less time so than by the 96 threads and
words of 16 bytes that it would have, and 5 % more than by as many and words of 8."""

MIN_WAVES_OF_MANY_ROWS = 4
"""Waves of blocks, of any registers, from which rows are many: on an H100, 2957 x 2048 bf16, of
three, takes 1 % more time by one access of each thread than by two."""

MIN_WAVES_LARGE_BLOCKS, MAX_THREADS_SMALL_BLOCK = 8, 512
"""Waves of larger blocks, of any registers, from which rows are many: on an H100, 1502 x 5837 f32,
of 5.7, takes 2 % more time by 768 threads than by 384; 3000 x 7116, of 11, 1 % less than by 256, on
an H200 0.2 % less, where 640 take another 1.8 % less."""

MIN_COLS_ONLINE = 2000
"""Elements of the shortest row whose sums are rescaled as they grow, of rows that are not all
resident at the same time."""


def of_many_rows(problem: Problem, gpu: GpuSpec) -> Config | None:
    """The largest block for each of many rows that keeps memory busy; None for other rows."""
    if not _is_of_many_rows(problem, gpu):
        return None
    idea = largest_that_keeps_memory_busy(_shapes(problem, gpu), problem, gpu)
    enough = are_many(problem, idea, gpu) or _are_odd_logarithms(problem, idea, gpu)
    return idea if enough else None


def _are_odd_logarithms(problem: Problem, idea: Config, gpu: GpuSpec) -> bool:
    """Whether these rows have such a block, too, although they are fewer waves than `are_many`
    asks: 16-bit rows of log_softmax that words of 8 bytes do not divide, and that are not all
    resident.

    On an H200, 1000 x 4002, 2500 x 4002 and 2300 x 3501 bf16 take 6 to 14 % less time by 128
    threads and words of 8 bytes than by the 128 and words of 16 that they would have, 898 x 5517 13
    % less than by 192, and 1092 x 4442 2 % more; 2300 x 3501 takes as long by 96 and words of 16. A
    warp each was timed at 22355 x 1501 alone, which takes 3 % more time by it.
    """
    odd = problem.op.is_log and problem.dtype.is_half and widest_word(problem) < 8
    timed = odd and problem.cols > MAX_COLS_SHORT_ROW and not has_little_bandwidth(gpu)
    by_warps = idea.threads_per_row > WARP
    return timed and by_warps and not fits_one_wave(problem, idea, gpu)


def of_many_pairs(problem: Problem, gpu: GpuSpec) -> Config | None:
    """Two warps for each of many 16-bit rows, by the pairs that divide them; None for others."""
    pairs = is_plain_forward(problem) and problem.dtype.is_half and widest_word(problem) == 4
    least = MIN_ROWS_PER_SM_OF_PAIRS_LOGARITHM if problem.op.is_log else MIN_ROWS_PER_SM_OF_PAIRS
    enough = problem.rows >= least * gpu.sm_count
    timed = problem.cols in COLS_OF_MANY_PAIRS and not has_little_bandwidth(gpu)
    if not (pairs and enough and timed):
        return None
    algorithm = algorithm_of_many_waves(problem)
    return replace(row_of(2 * WARP), algorithm=algorithm, vector_bytes=4)


def _is_of_many_rows(problem: Problem, gpu: GpuSpec) -> bool:
    """Whether rows are of a type and length for which this was timed.

    On an H200, softmax of 16-bit rows that start anywhere has blocks of other sizes, by how many
    threads are idle at the last access, and loses 0.3 % by them in the mean instead of 0.5.
    """
    kind = (problem.op, problem.dtype.itemsize)
    if not is_plain_forward(problem) or kind not in MIN_COLS_OF_MANY_ROWS:
        return False
    if widest_word(problem) >= ACCESS_BYTES:
        return MIN_COLS_OF_MANY_ROWS[kind] <= problem.cols < WIDE_ROW
    if kind == (Op.SOFTMAX, 2) and not has_little_bandwidth(gpu):
        return False
    return MIN_COLS_OF_MANY_ODD_ROWS <= problem.cols < WIDE_ROW


def _shapes(problem: Problem, gpu: GpuSpec) -> list[Config]:
    """A row by all sizes of blocks, the largest first.

    On an H200, 16-bit rows of log_softmax that start anywhere take less time by words of 8 bytes.
    """
    odd_logarithm = problem.op.is_log and widest_word(problem) < ACCESS_BYTES
    narrow = is_of_8_byte_words(problem) or (
        problem.dtype.is_half and odd_logarithm and not has_little_bandwidth(gpu)
    )
    algorithm, word = algorithm_of_many_waves(problem), 8 if narrow else ACCESS_BYTES
    return [
        replace(row_of(n), algorithm=algorithm, vector_bytes=word)
        for n in sizes_of_blocks(problem)
        if n <= MAX_THREADS_FORWARD and not _leaves_most_idle(n, problem)
    ]


def sizes_of_blocks(problem: Problem) -> list[int]:
    """Threads of which half have an access of 16 bytes to a row at least, the most first."""
    vectors = WorkSplit(problem, Config(vector_bytes=ACCESS_BYTES)).row_vectors
    return [n for n in reversed(WARPS) if n < 2 * vectors or n == WARP]


def _leaves_most_idle(threads: int, problem: Problem) -> bool:
    """Whether so many threads have one access to a 16-bit row, and few of them a second one."""
    accesses = problem.row_bytes / ACCESS_BYTES / threads
    return problem.dtype.is_half and 1 < accesses < MIN_ACCESSES_BEYOND_ONE


def largest_that_keeps_memory_busy(
    ideas: Sequence[Config], problem: Problem, gpu: GpuSpec
) -> Config:
    """The first of some blocks, the largest first, that keeps memory busy; if none does, the first
    that has at least MIN_SHARE_OF_MOST_BYTES of the most bytes under way.

    Blocks whose threads take many registers, or of which an SM has only one, count only if there
    are no others.
    """
    # All ideas load words of one width, on which the latency depends.
    enough = _latency_ns(problem, ideas[0]) * gbps_of_an_sm(gpu)
    others = []
    for idea in ideas:
        blocks = resident_rows(problem, idea, gpu) / gpu.sm_count / idea.rows_per_block
        under_way = _bytes_under_way(blocks, idea, problem)
        few_registers = likely_registers(problem, idea) <= MAX_REGISTERS_OF_MANY_ROWS
        in_pairs = few_registers and blocks >= MIN_BLOCKS_OF_AN_SM
        if in_pairs and under_way >= enough:
            return idea
        others.append(((in_pairs, few_registers), under_way, idea))
    best_kind = max(kind for kind, _, _ in others)
    suitable = [(size, idea) for kind, size, idea in others if kind == best_kind]
    most = max(size for size, _ in suitable)
    least = enough if most >= enough else MIN_SHARE_OF_MOST_BYTES * most
    return next(idea for size, idea in suitable if size >= least)


def _latency_ns(problem: Problem, idea: Config) -> int:
    """Nanoseconds for which what an SM's blocks load at once is to last."""
    if problem.op.is_backward:
        return LATENCY_NS_GRADIENT
    if idea.vector_bytes < ACCESS_BYTES:
        return LATENCY_NS_8_BYTES
    aligned = widest_word(problem) >= ACCESS_BYTES
    return (LATENCY_NS if aligned else LATENCY_NS_ANYWHERE)[problem.dtype.itemsize]


def _bytes_under_way(blocks: float, idea: Config, problem: Problem) -> float:
    """Bytes that so many blocks of an SM, but for those that have loaded theirs, load at once."""
    waiting = BLOCKS_NOT_LOADING
    if problem.dtype.itemsize >= 4:
        waiting = min(waiting, SHARE_NOT_LOADING * blocks)
    matrices = 2 if problem.op.is_backward else 1
    return (blocks - waiting) * idea.rows_per_block * matrices * problem.row_bytes


def algorithm_of_many_waves(problem: Problem) -> str:
    """Sums that are rescaled as they grow for the longer rows, three passes for others."""
    return "online-block-max" if problem.cols >= MIN_COLS_ONLINE else "three-pass"


def are_many(problem: Problem, idea: Config, gpu: GpuSpec) -> bool:
    """Whether the rows are so many waves of blocks, of any registers, that the time of one row
    counts little: more waves of large blocks.
    """
    large = idea.threads > MAX_THREADS_SMALL_BLOCK
    least = MIN_WAVES_LARGE_BLOCKS if large else MIN_WAVES_OF_MANY_ROWS
    return problem.rows >= least * rows_of_a_wave(idea, gpu)
