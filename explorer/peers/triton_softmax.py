"""Triton's softmax: a kernel of one program a row, tuned, and the fused one of its tutorial."""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial, partialmethod
from typing import Any, NamedTuple

import triton
from torch import Tensor
from triton.backends.compiler import GPUTarget
from triton.testing import do_bench

from explorer.model.gpu_spec import WARP, GpuSpec
from explorer.model.peer import PeerBuffers, ReadyPeer
from explorer.model.problem import Problem
from explorer.ops import Op
from explorer.peers.registry import check_scope
from explorer.peers.torch_softmax import ALSO, Results, TorchContender, read_by, written_by
from explorer.peers.triton_kernels import (
    of_any_length,
    one_gradient,
    one_log_prob,
    one_log_sum,
    one_row,
    persistent,
)

# ------------------------------------------------------------------ a program a row


MOST_ELEMENTS = 64
"""Most elements of a row per thread: more spill registers, and take minutes to compile."""


def prepare_constexpr(problem: Problem, buffers: PeerBuffers, stream: int) -> ReadyPeer:
    """Prepare the kernel compiled for the length of a row, with the best number of warps."""
    return _tuned(problem, buffers, stream, OF_KNOWN_LENGTH)


def prepare_runtime(problem: Problem, buffers: PeerBuffers, stream: int) -> ReadyPeer:
    """Prepare the kernel that takes the length of a row at run time, with the best number of warps.

    Neither form is faster everywhere: `explorer compare` verifies and times both, and reports the
    faster one of each problem as triton-tuned.
    """
    return _tuned(problem, buffers, stream, OF_ANY_LENGTH)


def ahead_constexpr(problem: Problem, gpu: GpuSpec) -> None:
    """Compile what `prepare_constexpr` will time."""
    _tuned_ahead(problem, gpu, OF_KNOWN_LENGTH)


def ahead_runtime(problem: Problem, gpu: GpuSpec) -> None:
    """Compile what `prepare_runtime` will time."""
    _tuned_ahead(problem, gpu, OF_ANY_LENGTH)


OF_KNOWN_LENGTH: dict[Op, Any] = {
    Op.SOFTMAX: one_row,
    Op.LOG_SOFTMAX: one_row,
    Op.SOFTMAX_BACKWARD: one_gradient,
    Op.LOG_SOFTMAX_BACKWARD: one_gradient,
    Op.LOGSUMEXP: one_log_sum,
    Op.LOG_PROB: one_log_prob,
}
"""The kernel of each op that is compiled for the length of a row."""

OF_ANY_LENGTH: dict[Op, Any] = {op: of_any_length(kernel) for op, kernel in OF_KNOWN_LENGTH.items()}
"""The kernel of each op that takes the length at run time."""


def _tuned_ahead(problem: Problem, gpu: GpuSpec, kernels: dict[Op, Any]) -> None:
    check_scope("triton-tuned", problem, ops=tuple(kernels), also=ALSO)
    with compiling_alone(gpu, problem) as arrays:
        for form in forms(problem):
            launch_once(kernels, problem, form, *arrays)


def launch_once(kernels: dict[Op, Any], problem: Problem, form: "Form", *arrays: Tensor) -> Results:
    """Launch a kernel of one program a row on what it reads and writes; return the latter."""
    count = len(read_by(problem))
    read, (out, *others) = arrays[:count], arrays[count:]
    more: dict[str, Any] = dict(zip(problem.also.split(","), others, strict=False))
    if problem.ids_per_row:
        more["ids_per_row"] = problem.ids_per_row
        more["ids_block"] = triton.next_power_of_2(problem.ids_per_row)
    if problem.fills_rows:  # by a kernel that computes softmax or its logarithm
        more["log"] = problem.operator.is_log
    warps, block = form
    kernels[problem.op][(problem.rows,)](
        out, *read, problem.cols, block=block, num_warps=warps, **more
    )
    return (out, *others)


def _tuned(
    problem: Problem, buffers: PeerBuffers, stream: int, kernels: dict[Op, Any]
) -> ReadyPeer:
    """Return a contender of the fastest form, by timing each sensible one."""
    check_scope("triton-tuned", problem, ops=tuple(kernels), also=ALSO)
    run = partial(launch_once, kernels, problem)

    def call(*arrays: Tensor) -> Results:
        return run(best, *arrays)

    contender = TorchContender(problem, buffers, stream, call)
    arrays = contender.arrays[0]
    times = {
        form: do_bench(partial(run, form, *arrays), warmup=5, rep=20, return_mode="median")
        for form in forms(problem)
    }
    best = min(times, key=lambda form: times[form])
    contender.version = f"triton {triton.__version__}"
    contender.note = f"num_warps {best.warps}"
    contender.note += "" if problem.fills_rows else f", block {best.block}"
    return contender


class Form(NamedTuple):
    """The warps of a program, and the elements of a row that it works on at a time."""

    warps: int
    block: int


WARPS_OF_A_PROGRAM = (1, 2, 4, 8, 16, 32)
MOST_BLOCKS = 8
"""Most blocks of a row one after another, but for the widest programs."""


def forms(problem: Problem) -> list[Form]:
    """Return sensible forms: of whole rows, or of blocks where the results leave out elements."""
    row = triton.next_power_of_2(problem.cols)
    if problem.fills_rows:
        return [Form(warps, row) for warps in _warps(row)]
    found = []
    for warps in WARPS_OF_A_PROGRAM:
        blocks = (min(row, WARP * warps * each) for each in (8, 32))
        if warps == 1 or WARP * warps < row:
            found += [Form(warps, b) for b in blocks if warps == 32 or row <= MOST_BLOCKS * b]
    return list(dict.fromkeys(found))


def _warps(block: int) -> list[int]:
    """Return numbers of warps for one vector to MOST_ELEMENTS a thread; 32 for wider rows."""
    powers = WARPS_OF_A_PROGRAM
    sensible = [w for w in powers if block <= 32 * w * MOST_ELEMENTS and (w == 1 or 32 * w < block)]
    return sensible or [32]


# ------------------------------------------------------------------ Triton's tutorial


WARPS = 8
LARGE_SHARED_BYTES = 200_000
"""Shared memory of an SM from which the tutorial takes four stages instead of two."""


def prepare_tutorial(problem: Problem, buffers: PeerBuffers, stream: int) -> ReadyPeer:
    """Prepare the tutorial's kernel, with as many programs as fit the GPU at a time."""
    check_scope("triton-tutorial", problem)
    utils = triton.runtime.driver.active.utils
    limits = utils.get_device_properties(triton.runtime.driver.active.get_current_device())
    constants, options = _tutorial(problem, limits["max_shared_mem"])

    def call(x: Tensor, out: Tensor) -> Tensor:
        persistent[(programs,)](out, x, *constants, **options)
        return out

    contender = TorchContender(problem, buffers, stream, call)
    x, out = contender.arrays[0]
    kernel = persistent.warmup(out, x, *constants, **options, grid=(1,))
    kernel._init_handles()
    fitting = limits["max_num_regs"] // (kernel.n_regs * limits["warpSize"] * WARPS)
    if kernel.metadata.shared:
        fitting = min(fitting, limits["max_shared_mem"] // kernel.metadata.shared)
    programs = min(problem.rows, limits["multiprocessor_count"] * max(1, fitting))
    contender.version = f"triton {triton.__version__}"
    contender.note = f"{programs} programs, {options['stages']} stages"
    return contender


def ahead_tutorial(problem: Problem, gpu: GpuSpec) -> None:
    """Compile what `prepare_tutorial` will launch."""
    check_scope("triton-tutorial", problem)
    constants, options = _tutorial(problem, gpu.shared_per_block_bytes)
    with compiling_alone(gpu, problem) as (x, out):
        persistent[(1,)](out, x, *constants, **options)


def _tutorial(problem: Problem, shared_bytes: int) -> tuple[tuple[int, int, bool], dict[str, int]]:
    """Return the kernel's arguments beside its matrices, and its options."""
    stages = 4 if shared_bytes > LARGE_SHARED_BYTES else 2
    options = {
        "block": triton.next_power_of_2(problem.cols),
        "stages": stages,
        "num_warps": WARPS,
    }
    return (problem.rows, problem.cols, problem.operator.is_log), options


# ------------------------------------------------------------------ without a GPU


class _StandIn:
    """Replaces Triton's driver for its compiler, for a GPU that this process cannot see."""

    def __init__(self, gpu: GpuSpec) -> None:
        capability = int(gpu.arch.removeprefix("sm_").rstrip("af"))
        self._target = GPUTarget("cuda", capability, WARP)

    def get_current_target(self) -> GPUTarget:
        return self._target

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, _: int) -> int:
        return 0


def stand_in(gpu: GpuSpec) -> None:
    """Make Triton compile for a GPU that this process cannot see."""
    triton.runtime.driver.set_active(_StandIn(gpu))


@contextmanager
def compiling_alone(gpu: GpuSpec, problem: Problem) -> Iterator[list[Tensor]]:
    """Make launches of Triton's kernels compile them, and do nothing else.

    It gives the op's operands and results, with a few rows in the host's memory, as arguments of
    the launches: the compiled kernel depends on the alignment and the type of an array, not on its
    rows.
    """
    stand_in(gpu)
    launch = triton.JITFunction.run
    triton.JITFunction.run = partialmethod(_compiled, launch)
    try:
        few = problem.resized(rows=2)
        yield [array.empty() for array in (*read_by(few), *written_by(few))]
    finally:
        triton.JITFunction.run = launch


def _compiled(kernel: Any, launch: Any, *arguments: Any, **options: Any) -> Any:
    return launch(kernel, *arguments, **{**options, "warmup": True})
