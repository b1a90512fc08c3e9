"""Triton's softmax: a kernel of one program a row, tuned, and the fused one of its tutorial."""

from functools import partial
from typing import Any

import triton
from torch import Tensor
from triton.testing import do_bench

from explorer.peer import Contender, PeerBuffers
from explorer.peers.registry import check_scope
from explorer.peers.torch_softmax import TorchContender
from explorer.peers.triton_kernels import one_row, one_row_of_any_length, persistent
from explorer.problem import Op, Problem

# ------------------------------------------------------------------ a program a row


MOST_ELEMENTS = 64
"""Of a row a thread: more leave the registers, and take minutes to compile."""


def prepare_constexpr(problem: Problem, buffers: PeerBuffers, stream: int) -> Contender:
    """The kernel that is compiled for the length of a row, with the fastest number of warps."""
    return _tuned(problem, buffers, stream, one_row)


def prepare_runtime(problem: Problem, buffers: PeerBuffers, stream: int) -> Contender:
    """The kernel that is given the length of a row, with the fastest number of warps.

    No form is the faster one everywhere: `explorer compare` verifies and times both, and reports
    the faster one of each problem as triton-tuned.
    """
    return _tuned(problem, buffers, stream, one_row_of_any_length)


def _tuned(problem: Problem, buffers: PeerBuffers, stream: int, kernel: Any) -> Contender:
    """Every sensible number of warps, timed; the fastest is kept."""
    check_scope("triton-tuned", problem)
    log, block = problem.op is Op.LOG_SOFTMAX, triton.next_power_of_2(problem.cols)

    def run(warps: int, x: Tensor, out: Tensor) -> Tensor:
        kernel[(problem.rows,)](out, x, problem.cols, log, block, num_warps=warps)
        return out

    def call(x: Tensor, out: Tensor) -> Tensor:
        return run(best, x, out)

    contender = TorchContender(problem, buffers, stream, call)
    matrices = contender.inputs[0], contender.outputs[0]
    times = {
        warps: do_bench(partial(run, warps, *matrices), warmup=5, rep=20, return_mode="median")
        for warps in _warps(block)
    }
    best = min(times, key=lambda warps: times[warps])
    contender.version = f"triton {triton.__version__}"
    contender.note = f"num_warps {best}"
    return contender


def _warps(block: int) -> list[int]:
    """From about one vector a thread to MOST_ELEMENTS; for wider rows all 32 warps."""
    powers = [1, 2, 4, 8, 16, 32]
    sensible = [w for w in powers if block <= 32 * w * MOST_ELEMENTS and (w == 1 or 32 * w < block)]
    return sensible or [32]


# ------------------------------------------------------------------ Triton's tutorial


WARPS = 8
LARGE_SHARED_BYTES = 200_000
"""Shared memory of an SM from which the tutorial takes four stages instead of two."""


def prepare_tutorial(problem: Problem, buffers: PeerBuffers, stream: int) -> Contender:
    """Its launch: programs by registers and shared memory of the compiled kernel."""
    check_scope("triton-tutorial", problem)
    rows, cols, log = problem.rows, problem.cols, problem.op is Op.LOG_SOFTMAX
    utils = triton.runtime.driver.active.utils
    limits = utils.get_device_properties(triton.runtime.driver.active.get_current_device())
    stages = 4 if limits["max_shared_mem"] > LARGE_SHARED_BYTES else 2
    options = {"block": triton.next_power_of_2(cols), "stages": stages, "num_warps": WARPS}

    def call(x: Tensor, out: Tensor) -> Tensor:
        persistent[(programs,)](out, x, rows, cols, log, **options)
        return out

    contender = TorchContender(problem, buffers, stream, call)
    matrices = contender.outputs[0], contender.inputs[0]
    kernel = persistent.warmup(*matrices, rows, cols, log, **options, grid=(1,))
    kernel._init_handles()
    fitting = limits["max_num_regs"] // (kernel.n_regs * limits["warpSize"] * WARPS)
    if kernel.metadata.shared:
        fitting = min(fitting, limits["max_shared_mem"] // kernel.metadata.shared)
    programs = min(rows, limits["multiprocessor_count"] * max(1, fitting))
    contender.version = f"triton {triton.__version__}"
    contender.note = f"{programs} programs, {stages} stages"
    return contender
