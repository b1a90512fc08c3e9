"""Configs without a search for gradients along memory, which read two matrices and keep both."""

import math
from dataclasses import replace

from explorer.config import Config
from explorer.gpu_spec import WARP, GpuSpec
from explorer.parameters import WARPS
from explorer.problem import Op, Problem, power_of_two
from explorer.space.heuristic.row_threads import ACCESS_BYTES, starts_anywhere
from explorer.space.rules import Point, registers_fit
from explorer.work_split import WorkSplit

MAX_BLOCK_THREADS = 1024

MIN_BLOCK_THREADS = 4 * WARP
"""Threads of a block, in which shorter rows share one."""

MAX_COLS_BY_ELEMENTS = 64
"""Columns of the longest row that is loaded by single elements, where 16 bytes do not divide it."""

ELEMENTS_PER_THREAD = 4
"""Single elements that a thread has of such a row, about.

On an H200, rows of 33 bf16 take 21 to 29 % less time by 8 threads than by words of 16 bytes.
"""

ELEMENTS_PER_THREAD_NO_EXPONENTIAL = 2
"""The same of 32-bit rows of softmax_backward, which computes no exponential: on an H200, 17
columns take 14 % less time by 8 threads than by 4."""

MAX_8_BYTE_ACCESSES_PER_THREAD = 12
"""Accesses to a 16-bit row that starts anywhere: words of 8 bytes cross fewer of the words that
memory has. On an H200, 6710 x 5001 bf16 takes 12 to 16 % less time by 10 of them for each of 128
threads than by four words of 16 bytes for each of 160."""

POWERS_THAT_FILL_AN_SM = (32, 512, 1024)
"""Sizes of blocks that are powers of two and yet worth it: others lose 1 % to the next size that is
none, of which an SM holds fewer threads."""

SIZES = tuple(n for n in WARPS if n & (n - 1) or n in POWERS_THAT_FILL_AN_SM)


def are_by_elements(problem: Problem) -> bool:
    """Whether rows are so short, and start anywhere, that threads load them by single elements."""
    odd = problem.row_bytes % ACCESS_BYTES > 0
    return odd and problem.inner == 1 and problem.cols <= MAX_COLS_BY_ELEMENTS


def of_many_waves(problem: Problem) -> Config:
    """A row by a warp or block, each of whose threads has as few accesses as a block can have.

    On an H200, from 300 to 4096 columns, 1 to 2 % less time with one access than with two.
    """
    if are_by_elements(problem):
        return _by_elements(problem)
    if starts_anywhere(problem) and problem.dtype.is_half:
        words = WorkSplit(problem, Config(vector_bytes=8)).row_vectors
        threads = power_of_two(math.ceil(words / MAX_8_BYTE_ACCESSES_PER_THREAD))
        return replace(_by(min(max(WARP, threads), MAX_BLOCK_THREADS)), vector_bytes=8)
    vectors = WorkSplit(problem, Config(vector_bytes=ACCESS_BYTES)).row_vectors
    if vectors <= WARP:
        return _by(power_of_two(vectors))
    accesses = math.ceil(vectors / MAX_BLOCK_THREADS)
    return _by(next((n for n in SIZES if n * accesses >= vectors), MAX_BLOCK_THREADS))


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


def _by_elements(problem: Problem) -> Config:
    """Few elements for each thread of a row, one by one."""
    exponentiates = problem.op is not Op.SOFTMAX_BACKWARD or problem.dtype.is_half
    share = ELEMENTS_PER_THREAD if exponentiates else ELEMENTS_PER_THREAD_NO_EXPONENTIAL
    threads = min(1 << max(1, problem.cols // share).bit_length() - 1, WARP)
    return replace(_by(threads), vector_bytes=problem.dtype.itemsize)


def _by(threads: int) -> Config:
    """A row by so many threads, in blocks of MIN_BLOCK_THREADS at least if they are whole rows."""
    whole = MIN_BLOCK_THREADS % threads == 0
    return Config(
        threads=MIN_BLOCK_THREADS if whole else threads,
        threads_per_row=threads,
        exp="ex2.approx",
    )
