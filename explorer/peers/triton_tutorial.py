"""The fused softmax of Triton's tutorial: as many persistent programs as fit the GPU at once."""

import triton
from torch import Tensor

from explorer.op import Op
from explorer.peer import Contender, PeerBuffers
from explorer.peers.on_torch import TorchContender
from explorer.peers.registry import check_scope
from explorer.peers.triton_kernels import persistent
from explorer.problem import Problem

WARPS = 8
LARGE_SHARED_BYTES = 200_000
"""Shared memory of an SM from which the tutorial takes four stages instead of two."""


def prepare(problem: Problem, buffers: PeerBuffers, stream: int) -> Contender:
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
