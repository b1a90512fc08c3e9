"""What a header may say of a launch: what CUDA launches at all, and what is emulated of that."""

from collections.abc import Sequence

from explorer.codegen import Launch, LaunchPlan
from explorer.model.errors import InvalidInput
from explorer.model.problem import Problem
from explorer.ptx_emulator import MAX_BLOCK, MAX_GRID, MOST_BYTES

MOST_CLUSTER_BLOCKS = 16
"""Blocks of a cluster where the host opts in; 8 elsewhere."""

MOST_SHARED_BYTES = 227 * 1024
"""Shared memory that a block can have on the GPUs which have most of it.

CUDA C++ Programming Guide, "Technical Specifications per Compute Capability", for both.
"""

EMULATED_BLOCKS = 2**22
"""Blocks that are emulated one after the other: as many as there are elements at most."""

EMULATED_SCRATCH_BYTES = 2**30
"""Scratch memory that is allotted at once; kernels of 2^22 elements take a twentieth of it."""

EMULATED_SCRATCH_BYTES_A_ROW = 2**26
"""Scratch memory that is allotted for each of the far rows that are emulated."""


def check_launches(plan: LaunchPlan, launched: Sequence[Launch], problem: Problem) -> None:
    """Raise InvalidInput for launches of a problem that no GPU makes.

    Where blocks stride over the rows, the grid is no more than the number of tiles, and has no
    bound.
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
    """Raise InvalidInput for a size that no memory has."""
    _check("scratch", scratch_bytes, (0, MOST_BYTES), "bytes", problem, emulated=True)


def check_emulated(launched: Sequence[Launch], scratch_bytes: int, problem: Problem) -> None:
    """Raise InvalidInput where to execute all blocks takes more time or memory than there is."""
    most = max(step.grid for step in launched)
    _check("blocks", most, (1, EMULATED_BLOCKS), "blocks", problem, emulated=True)
    scratch = (0, EMULATED_SCRATCH_BYTES)
    _check("scratch", scratch_bytes, scratch, "bytes", problem, emulated=True)


def check_far(scratch_bytes: int, problem: Problem) -> None:
    """Raise InvalidInput where even a few rows take more memory than there is."""
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
