"""Launching a kernel on the emulator."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from explorer.devices.emulated import opcodes  # noqa: F401 - registers every opcode
from explorer.devices.emulated.communication import waits_for_other_blocks
from explorer.devices.emulated.constants import constant_registers
from explorer.devices.emulated.counters import Counters
from explorer.devices.emulated.findings import Finding, LaunchError
from explorer.devices.emulated.geometry import Extents, Geometry
from explorer.devices.emulated.layout import lay_out
from explorer.devices.emulated.machine import LaunchState, Machine
from explorer.devices.emulated.memory import Allocation, GlobalMemory
from explorer.devices.emulated.program import Entry, Module
from explorer.devices.emulated.run import run_batch, tally

BATCH_LANES = 16384
"""Threads executed at a time: many, to spread the cost of each NumPy call, but few for caches."""

BATCH_SHARED_BYTES = 1 << 25
"""Shared memory of the blocks executed at a time; shadows take some six times as much."""

MAX_RESIDENT_LANES = 1 << 20
STEP_LIMIT = 20_000_000

Argument = Allocation | np.generic | int | float | bytes


@dataclass(frozen=True, slots=True)
class LaunchResult:
    """What a launch did. Its outputs are in the GlobalMemory that it was given."""

    findings: tuple[Finding, ...]
    counters: Counters
    complete: bool
    """False where execution had to be given up: deadlock, or the step limit."""

    @property
    def clean(self) -> bool:
        """No defect was found."""
        return not self.findings


def launch(
    module: Module,
    entry: str,
    *,
    grid: Extents,
    block: Extents,
    args: Sequence[Argument],
    memory: GlobalMemory,
    shared_bytes: int = 0,
    cluster: Extents | None = None,
    resident_blocks: int | None = None,
    batch_lanes: int = BATCH_LANES,
    step_limit: int = STEP_LIMIT,
    staggered: bool = False,
    overlaps: bool = False,
) -> LaunchResult:
    """Execute kernel `entry` for every thread of the grid, checked.

    `args` are in the kernel's order: an Allocation is passed as its address, a number is converted
    to the parameter's size. `shared_bytes` is dynamic shared memory a block. Blocks of a kernel
    that waits for other blocks all run together, but no more than `resident_blocks`, if given.
    Blocks advance in step; `staggered` starts each one only when those before it can go no further,
    which is slower and shows a flag that is waited for too briefly. One that `overlaps` may begin
    before the launch before it has ended: threads wait for that by griddepcontrol.wait.

    Raises UnsupportedPtx for opcodes that are not known (the kernel is then unverified),
    LaunchError for an entry, arguments or extents that do not fit.
    """
    kernel = _entry(module, entry)
    extents = cluster or kernel.cluster or (1, 1, 1)
    _check_extents(grid, block, extents)
    layout = lay_out(module, kernel, memory, shared_bytes)
    total = layout.static_shared_bytes + shared_bytes
    explicit = cluster is not None or kernel.cluster is not None
    geometry = Geometry(grid, block, extents, explicit, shared_bytes, total)
    params = _pack(kernel, args)
    state = LaunchState(kernel, geometry, memory, layout, params, overlaps=overlaps)
    complete = _run_batches(state, resident_blocks, batch_lanes, step_limit, staggered=staggered)
    _note_written(state)
    return LaunchResult(tuple(state.findings), state.counters, complete)


def _run_batches(
    state: LaunchState,
    resident_blocks: int | None,
    batch_lanes: int,
    step_limit: int,
    *,
    staggered: bool,
) -> bool:
    geometry = state.geometry
    size = _batch_blocks(state, resident_blocks, batch_lanes)
    constants = constant_registers(state)
    program = None
    with np.errstate(all="ignore"):
        for first in range(0, geometry.blocks, size):
            machine = Machine(state, first, min(size, geometry.blocks - first))
            program = run_batch(machine, constants, step_limit, staggered=staggered)
            tally(state, program)
            if program.aborted:
                return False
    return True


def _batch_blocks(state: LaunchState, resident_blocks: int | None, batch_lanes: int) -> int:
    geometry = state.geometry
    lanes_each = geometry.warps * 32
    together = batch_lanes
    if waits_for_other_blocks(state.entry):
        together = MAX_RESIDENT_LANES
    blocks = max(1, together // lanes_each)
    shared = max((end for _, end, _ in state.layout.shared_ranges), default=0)
    if together == batch_lanes and shared:
        blocks = max(1, min(blocks, BATCH_SHARED_BYTES // shared))
    if resident_blocks is not None:
        blocks = min(blocks, resident_blocks)
    blocks = max(geometry.cluster_size, blocks // geometry.cluster_size * geometry.cluster_size)
    return min(blocks, geometry.blocks)


def _entry(module: Module, name: str) -> Entry:
    if name not in module.entries:
        raise LaunchError(
            f"entry '{name}' is not in the PTX; there are {', '.join(module.entries)}"
        )
    return module.entries[name]


def _check_extents(grid: Extents, block: Extents, cluster: Extents) -> None:
    if min(*grid, *block, *cluster) < 1:
        raise LaunchError(f"grid {grid}, block {block}, cluster {cluster}: extents start at 1")
    if block[0] * block[1] * block[2] > 1024:
        raise LaunchError(f"block {block} has more than 1024 threads")
    if any(g % c for g, c in zip(grid, cluster, strict=True)):
        raise LaunchError(f"grid {grid} is not a multiple of cluster {cluster}")


def _pack(entry: Entry, args: Sequence[Argument]) -> dict[str, bytes]:
    """Each parameter's bytes; raises LaunchError where they do not fit."""
    if len(args) != len(entry.params):
        raise LaunchError(
            f"{entry.name} takes {len(entry.params)} arguments, {len(args)} were given"
        )
    packed = {}
    for param, arg in zip(entry.params, args, strict=True):
        data = _bytes(arg, param.size)
        if len(data) != param.size:
            raise LaunchError(
                f"parameter {param.name} has {param.size} bytes, its argument {len(data)}"
            )
        packed[param.name] = data
    return packed


def _bytes(arg: Argument, size: int) -> bytes:
    if isinstance(arg, Allocation):
        return arg.start.to_bytes(8, "little")
    if isinstance(arg, bytes):
        return arg
    if isinstance(arg, np.generic):
        return bytes(arg.tobytes())
    if isinstance(arg, float):
        return bytes(np.dtype(f"f{size}").type(arg).tobytes())
    value: Any = arg
    return int(value & ((1 << 8 * size) - 1)).to_bytes(size, "little")


def _note_written(state: LaunchState) -> None:
    for allocation in state.memory.allocations:
        shadow = state.shadows.get(allocation.address)
        if shadow is not None:
            allocation.written |= shadow.written_bytes()[: allocation.size]
