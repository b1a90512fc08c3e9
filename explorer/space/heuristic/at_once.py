"""How many blocks are resident on the GPU at once, as estimated before a kernel is compiled."""

from explorer.config import Config
from explorer.gpu_spec import MAX_REGISTERS, GpuSpec, occupancy, registers_left
from explorer.outcome import Resources
from explorer.problem import Problem
from explorer.work_split import WorkSplit

BESIDE_NUMBERS = {2: 24, 4: 20, 8: 24}
"""Registers that a thread takes beside the numbers it keeps, by bytes of an element.

Of 8 bytes it was not measured: the number is that of 2 bytes.
"""

FOR_A_CLUSTER = 8
"""Registers more where rows that a cluster shares start anywhere within an access."""

FOR_A_SPAN = 8
"""Registers more where a span brings elements of 32 bits."""

FOR_SIXTEEN = 8
"""Registers more in a cluster of sixteen."""

SURELY = 0.95
"""The share of the rows that a GPU is estimated to hold, up to which it surely holds all.

It is for 16-bit rows without clusters. On an H200, 650 x 6301 takes 18 % more time by a kernel
whose rows are 98 % of the estimate than by one whose rows are 82 % of it.
"""


def blocks_at_once(gpu: GpuSpec, threads: int, registers: int = 0) -> int:
    """Blocks of so many threads, of so many registers each if these are known."""
    resources = Resources(registers=registers)
    return occupancy(resources, threads, 1, gpu).blocks_per_sm * gpu.sm_count


def likely_registers(problem: Problem, idea: Config) -> int:
    """Registers a thread of a kernel that loads its share of a row and keeps it, else loops.

    Of 751 kernels for sm_90 by NVRTC 13.0, in the multiples of eight that are allotted, 86 % take
    as many or eight fewer, 12 % more. What is kept packed is unpacked at once if min_blocks allows.
    """
    split = WorkSplit(problem, idea)
    size = problem.dtype.itemsize
    kept = split.slots * split.width * idea.rows_per_thread if idea.cache == "registers" else 0
    kept *= max(1, problem.dtype.arithmetic.itemsize // 4) * split.cached_matrices
    registers = kept + BESIDE_NUMBERS[size]
    if idea.staging == "span":
        registers += FOR_A_SPAN if size == 4 else 0
    elif not split.aligned and idea.cluster > 1:
        registers += FOR_A_CLUSTER
    elif not split.aligned and size > 2:
        registers += 2 + kept // 8
    if idea.cluster >= 16:
        registers += FOR_SIXTEEN
    return registers


def rows_at_once(problem: Problem, idea: Config, gpu: GpuSpec) -> int:
    """Rows that the blocks on the GPU at once work on."""
    registers = min(likely_registers(problem, idea), MAX_REGISTERS)
    if idea.min_blocks > 1:
        registers = min(registers, registers_left(idea.threads, idea.min_blocks, gpu))
    blocks = blocks_at_once(gpu, idea.threads, registers)
    split = WorkSplit(problem, idea)
    return blocks // (idea.cluster * split.parts) * split.block_rows


def are_at_once(problem: Problem, idea: Config, gpu: GpuSpec, *, times: int = 1) -> bool:
    """Whether the blocks of all rows, so many times, are likely to be on the GPU at once."""
    sure = SURELY if problem.dtype.itemsize == 2 and idea.cluster == 1 else 1
    return times * problem.rows <= sure * rows_at_once(problem, idea, gpu)
