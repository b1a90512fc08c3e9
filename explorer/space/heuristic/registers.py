"""How many registers a thread is likely to take, guessed before its kernel is compiled.

The registers of an SM limit its resident blocks, and blocks that do not fit wait until another has
ended. They are allotted to a thread in multiples of eight. Of 550 rows of 2131 elements of f32
(log_softmax, H200), 528 fit by 320 threads with cache hints: the kernel takes 15 % more time than
one by 256 threads, of which all fit.

The guess is what NVRTC 13.0 took for the kernels of the table of an H200 (sm_90). Of 22 288 kernels
of softmax and log_softmax by one block a row, it is right for 71 %, of those whose rows start
anywhere for about 65 %, and within one multiple for 96 %. At 16 problems of wide rows of
log_softmax, by clusters, which were drawn at random and whose kernel changed by it, the new kernels
take 6 % less time in the mean.
"""

import math

from explorer.model.config import Config
from explorer.model.gpu_spec import WARP
from explorer.model.problem import Op, Problem
from explorer.model.work_split import WorkSplit

REGISTERS_BESIDE_NUMBERS = {2: 16, 4: 16, 8: 24}
"""Registers that a thread takes beside the numbers it keeps, by bytes of an element. Of 8 bytes it
was not measured."""

SHARE_FOR_A_LOGARITHM = {2: 0.25, 4: 0.4}
"""Registers that a thread of log_softmax takes for each number that it keeps above
KEPT_WITHOUT_MORE, by bytes of an element. Where it keeps 32 numbers, it takes 60 or 61 registers in
32 bits, and 55 or 56 in 16 bits by an online pass; a thread of softmax takes 48."""

KEPT_WITHOUT_MORE = {2: 8, 4: 4}

REGISTERS_FOR_A_CLUSTER = {2: 8, 4: 4, 8: 0}
"""Registers more in a cluster, by bytes of an element. Gradients take them in 16 bits alone."""

REGISTERS_FOR_UNALIGNED = 8
"""Registers more where rows start anywhere within an access, of 16 bits or in a cluster."""

REGISTERS_FOR_HINTS = 8
"""Registers more of a thread if its kernel has cache hints and its rows start anywhere within an
access, because the compiler then loads them earlier: of rows of 32 bits, and of 16 in an online
pass."""

REGISTERS_OF_UNEVEN_BLOCKS = 2
"""Registers more then of softmax in an online pass of 32 bits, by blocks of a multiple of five or
seven warps. Where a thread keeps eight elements, it takes 34 or 35 registers by 320 and 640
threads, and 31 or 32 by 192, 256, 384 and 512: 40 and 32 are allotted."""

REGISTERS_FOR_A_SPAN = 12
"""Registers more where a span brings elements of 32 bits."""

REGISTERS_FOR_SIXTEEN_BLOCKS = 8
"""Registers more in a cluster of sixteen."""


def likely_registers(problem: Problem, config: Config) -> int:
    """Return the registers of a thread that loads its share of a row and keeps it, or else loops.

    What is kept packed is unpacked at once if min_blocks allows.
    """
    size = problem.dtype.itemsize
    kept = _kept_registers(problem, config)
    registers = kept + REGISTERS_BESIDE_NUMBERS[size]
    if problem.op is Op.LOG_SOFTMAX and size in SHARE_FOR_A_LOGARITHM:
        more = max(0, kept - KEPT_WITHOUT_MORE[size])
        registers += math.ceil(SHARE_FOR_A_LOGARITHM[size] * more)
    if config.staging == "span":
        return registers + (REGISTERS_FOR_A_SPAN if size == 4 else 0)
    return registers + _registers_for_loads(problem, config)


def _kept_registers(problem: Problem, config: Config) -> int:
    """Registers of a thread that hold its share of what is kept, unpacked."""
    if config.cache != "registers":
        return 0
    split = WorkSplit(problem, config)
    words = max(1, problem.dtype.arithmetic.itemsize // 4) * split.cached_matrices
    return split.slots * split.width * config.rows_per_thread * words


def _registers_for_loads(problem: Problem, config: Config) -> int:
    """Registers for where rows start, and for what the blocks of a cluster exchange."""
    size, split = problem.dtype.itemsize, WorkSplit(problem, config)
    if config.cluster == 1 and not split.across_rows:
        unaligned = REGISTERS_FOR_UNALIGNED if size == 2 else 0
        return 0 if split.aligned else unaligned + _registers_for_hints(problem, config)
    registers = 0 if split.aligned else REGISTERS_FOR_UNALIGNED
    if size == 2 or not problem.op.is_backward:
        registers += REGISTERS_FOR_A_CLUSTER[size]
    return registers + (REGISTERS_FOR_SIXTEEN_BLOCKS if config.cluster >= 16 else 0)


def _registers_for_hints(problem: Problem, config: Config) -> int:
    """Registers that hints take where rows start anywhere within an access."""
    size, online = problem.dtype.itemsize, config.algorithm == "online-block-max"
    if config.load_hint == "default" or (size == 2 and not online):
        return 0
    warps = config.threads // WARP
    of_softmax = problem.op is Op.SOFTMAX and online and size == 4
    uneven = of_softmax and (warps % 5 == 0 or warps % 7 == 0)
    return REGISTERS_FOR_HINTS + (REGISTERS_OF_UNEVEN_BLOCKS if uneven else 0)
