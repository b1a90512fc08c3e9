"""Limits on the launches that a file's header may name: CUDA's, and the emulator's."""

from collections.abc import Sequence

from explorer.codegen import Launch, LaunchPlan
from explorer.model.errors import InvalidInput
from explorer.model.problem import Problem
from explorer.ptx_emulator import MAX_BLOCK, MAX_GRID, MOST_BYTES

MOST_CLUSTER_BLOCKS = 16
"""Most blocks of a cluster, if the host opts in; 8 otherwise."""

MOST_SHARED_BYTES = 227 * 1024
"""Most shared memory of a block on any GPU.

Both limits are from the CUDA C++ Programming Guide, "Technical Specifications per Compute
Capability".
"""

EMULATED_BLOCKS = 2**22
"""Most blocks that are emulated: one for each element of the largest problem."""

EMULATED_SCRATCH_BYTES = 2**30
"""Most scratch memory that is allocated; kernels of 2^22 elements take a twentieth of it."""

EMULATED_SCRATCH_BYTES_A_ROW = 2**26
"""Most scratch memory that is allocated for each of the far rows."""


def check_launches(plan: LaunchPlan, launched: Sequence[Launch], problem: Problem) -> None:
    """Raise InvalidInput for launches of a problem that are impossible on every GPU.

    The grid of persistent blocks has no limit, because it is cut to the GPU's size.
    """
    sizes = {"rows": problem.rows, "cols": problem.cols}
    cluster = plan.value(plan.numbers["cluster"], sizes) if "cluster" in plan.numbers else 1
    _check("cluster", cluster, (1, MOST_CLUSTER_BLOCKS), "blocks of a cluster", problem)
    for step in launched:
        _check("blocks_per_sm", step.blocks_per_sm, (0, None), "blocks on an SM", problem)
        most = None if step.blocks_per_sm else MAX_GRID[0]
        _check("blocks", step.grid, (1, most), "blocks of a grid", problem)
        _check("the block", step.block, (1, MAX_BLOCK[0]), "threads of a block", problem)
        shared = (0, MOST_SHARED_BYTES)
        _check("shared", step.shared_bytes, shared, "bytes of shared memory a block", problem)


def check_scratch(scratch_bytes: int, problem: Problem) -> None:
    """Raise InvalidInput for scratch memory that is larger than any GPU's memory."""
    _check("scratch", scratch_bytes, (0, MOST_BYTES), "bytes", problem, emulated=True)


def check_emulated(launched: Sequence[Launch], scratch_bytes: int, problem: Problem) -> None:
    """Raise InvalidInput if emulating all blocks would take too much time or memory."""
    most = max(step.grid for step in launched)
    _check("blocks", most, (1, EMULATED_BLOCKS), "blocks", problem, emulated=True)
    scratch = (0, EMULATED_SCRATCH_BYTES)
    _check("scratch", scratch_bytes, scratch, "bytes", problem, emulated=True)


def check_far(scratch_bytes: int, problem: Problem) -> None:
    """Raise InvalidInput if emulating a few far rows would take too much memory."""
    most = EMULATED_SCRATCH_BYTES_A_ROW * problem.rows
    _check("scratch", scratch_bytes, (0, most), "bytes", problem, emulated=True)


def _check(
    name: str,
    value: int,
    bounds: tuple[int, int | None],
    what: str,
    problem: Problem,
    *,
    emulated: bool = False,
) -> None:
    least, most = bounds
    if least <= value and (most is None or value <= most):
        return
    extent = f"{least} to {most}" if most is not None else f"{least} or more"
    limit = f"the emulator takes {extent} {what}" if emulated else f"CUDA allows {extent} {what}"
    instead = ""
    if emulated:
        instead = ", ask for fewer --rows, or verify it on a GPU"
    elif name == "shared" and value > 0:
        instead = ", or ask for fewer --cols"
    raise InvalidInput(
        f"{name} is {value} at rows = {problem.rows}, cols = {problem.cols}; {limit}: mend that "
        f"line{instead}"
    )
