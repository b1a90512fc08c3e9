"""A kernel in Triton with one program a row, whose number of warps is chosen by timing."""

from functools import partial

import triton
from torch import Tensor
from triton.testing import do_bench

from explorer.op import Op
from explorer.peer import Contender, PeerBuffers
from explorer.peers.on_torch import TorchContender
from explorer.peers.registry import check_scope
from explorer.peers.triton_kernels import one_row
from explorer.problem import Problem

MOST_ELEMENTS = 64
"""Of a row a thread: more leave the registers, and take minutes to compile."""


def prepare(problem: Problem, buffers: PeerBuffers, stream: int) -> Contender:
    """Every sensible number of warps, timed; the fastest is kept."""
    check_scope("triton-tuned", problem)
    log, block = problem.op is Op.LOG_SOFTMAX, triton.next_power_of_2(problem.cols)

    def run(warps: int, x: Tensor, out: Tensor) -> Tensor:
        one_row[(problem.rows,)](out, x, problem.cols, log, block, num_warps=warps)
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
