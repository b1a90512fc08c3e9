"""Launching a kernel on the emulator."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf
from typing import Any

import numpy as np

from explorer.ptx_emulator import (  # noqa: F401 - importing them registers every opcode
    async_copies,
    atomics,
    barriers,
    bulk_copies,
    clusters,
    conversions,
    float_instructions,
    int_instructions,
    matrix_instructions,
    mbarriers,
    memory_instructions,
    warp_instructions,
)
from explorer.ptx_emulator.batch import LaunchLog
from explorer.ptx_emulator.binding import (
    Binder,
    BoundSteps,
    Control,
    Step,
    bind_control,
    bind_step,
)
from explorer.ptx_emulator.counters import Counters
from explorer.ptx_emulator.element_sets import MaximaSeen
from explorer.ptx_emulator.findings import Aborted, Finding, Kind, LaunchError, UnsupportedPtx
from explorer.ptx_emulator.geometry import (
    Geometry,
    LaunchLimits,
    Numbers,
    launch_faults,
    lay_out,
)
from explorer.ptx_emulator.lanes import Lanes
from explorer.ptx_emulator.machine import (
    LaunchState,
    Machine,
    Schedule,
    waits_for_other_blocks,
)
from explorer.ptx_emulator.memory import Allocation, GlobalMemory
from explorer.ptx_emulator.program import Entry, Extents, Instruction, Module
from explorer.ptx_emulator.registers import RegisterFile, constant_registers, register_slots
from explorer.ptx_emulator.scheduler import Scheduler

BATCH_LANES = 16384
"""Threads executed at a time: many, to spread the cost of each NumPy call, but few for caches."""

BATCH_SHARED_BYTES = 1 << 25
"""Shared memory of the blocks executed at a time. Its shadow takes some six times as much."""

MAX_RESIDENT_LANES = 1 << 20
"""Threads executed at a time of kernels whose blocks wait for one another."""

STEP_LIMIT = 20_000_000

Argument = Allocation | np.generic | int | float | bytes


class Writers:
    """Which block last wrote each place of global memory in one launch."""

    def __init__(self, state: LaunchState) -> None:
        self._shadows = state.shadows
        self._numbers = state.numbers
        self._per_block = state.geometry.warps * 32

    def blocks(self, allocation: Allocation, elements: Numbers) -> Numbers:
        """Return the numbers of the blocks that wrote elements of an allocation; -1 for none."""
        shadow = self._shadows.get(allocation.address)
        if shadow is None:
            return np.full(np.shape(elements), -1, np.int64)
        places = GlobalMemory.places(allocation, elements)
        lanes = shadow.writers(places * allocation.dtype.itemsize)
        return np.where(lanes < 0, -1, self._numbers[lanes // self._per_block])


@dataclass(frozen=True, slots=True)
class LaunchResult:
    """What a launch did. Its outputs are in the GlobalMemory that it was given."""

    findings: tuple[Finding, ...]
    counters: Counters
    """Zeros if nothing was counted."""
    complete: bool
    """False if not all was executed: a refused launch, a deadlock, or the step limit."""
    steps: int = 0
    """Instructions executed, each once for a group of lanes: what the emulation cost."""
    work: int = 0
    """The same in arithmetic instructions of one lane, of some 10 ns each."""
    rounded: int = 0
    """A digest of the numbers that were rounded to 16 bits, if orders are compared."""
    writers: Writers | None = None
    """Who wrote what; None if nothing was executed."""

    @property
    def clean(self) -> bool:
        """Whether there is no defect."""
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
    most_work: float = inf,
    schedule: Schedule | str = Schedule.LOCKSTEP,
    seed: int = 0,
    compares_orders: bool = False,
    late_copies: bool = False,
    overlaps: bool = False,
    others_write: bool = False,
    counting: bool = True,
    blocks: Sequence[int] | Numbers | None = None,
    limits: LaunchLimits | None = None,
    reproducible: bool = False,
    maxima: MaximaSeen | None = None,
) -> LaunchResult:
    """Execute the kernel `entry` for every thread of the grid, and check what it does.

    `args` are in the kernel's order. An Allocation is passed as its address, a number is converted
    to the size of its parameter. `shared_bytes` is the dynamic shared memory of a block. Blocks of
    a kernel that waits for other blocks all run together, but no more than `resident_blocks`, if
    given. A random `schedule` is drawn by `seed`. With `compares_orders` the result has a digest of
    what is rounded, which another order of the same launch must have too. With `late_copies`, each
    first wait for copies that an mbarrier counts fails, as it may on a GPU. A launch that
    `overlaps` may begin before the launch before it has ended: its threads wait for that by
    griddepcontrol.wait. If `others_write`, that launch is of another program, and may write all
    memory. Without `counting`, no traffic or instructions are counted, which saves time.
    `step_limit` bounds the instructions of one batch of blocks, each counted once for a group of
    lanes, and `most_work` the work of all batches, in arithmetic instructions of one lane, of some
    10 ns each. `blocks` are the numbers of the only blocks to execute: of whole clusters,
    ascending, in launch order (of a grid along x, %ctaid.x). The grid may then have 2^31 - 1
    blocks.

    If the result is to be `reproducible`, additions of floats by several threads to one address are
    findings unless synchronisation fixes their order: the bits of such a sum depend on it.

    With `maxima`, floats are sets of elements (`element_sets`), and it notes what maxima are of.

    A launch beyond the kernel's own bounds (.maxntid, .reqntid), or beyond `limits`, is not
    executed: that is a finding, as a GPU would refuse it.

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
    numbers = _numbers(geometry, blocks)
    log = LaunchLog(kernel, counting=counting)
    log.most_work = most_work
    params = _pack(kernel, args)
    for fault in launch_faults(geometry, kernel, limits, layout.static_shared_bytes):
        log.findings.add(Kind.LAUNCH, fault, key=fault)
    if len(log.findings):
        return LaunchResult(tuple(log.findings), Counters(), complete=False)
    state = LaunchState(kernel, geometry, numbers, memory, layout, params, log, overlaps)
    state.others_write = others_write
    state.schedule, state.seed, state.reproducible = Schedule(schedule), seed, reproducible
    state.compares_orders, state.late_copies = compares_orders, late_copies
    state.maxima = maxima
    complete = _run_batches(state, resident_blocks, batch_lanes, step_limit)
    _note_written(state)
    counters = log.counters if counting else Counters()
    writers, found = Writers(state), tuple(log.findings)
    cost = log.steps, log.work
    return LaunchResult(found, counters, complete, *cost, log.rounded, writers)


# Arguments.


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


def _numbers(geometry: Geometry, blocks: Sequence[int] | Numbers | None) -> Numbers:
    """Return the numbers of the blocks to execute. Raises LaunchError for what is no cluster."""
    if blocks is None:
        return np.arange(geometry.blocks, dtype=np.int64)
    numbers, size = np.asarray(blocks, np.int64), geometry.cluster_size
    if not len(numbers) or numbers[0] < 0 or numbers[-1] >= geometry.blocks:
        raise LaunchError(f"blocks must be numbers from 0 to {geometry.blocks - 1}, one at least")
    if (np.diff(numbers) <= 0).any():
        raise LaunchError("blocks must be ascending numbers")
    whole = len(numbers) % size == 0
    if whole:
        grouped = numbers.reshape(-1, size)
        first = grouped[:, :1] // size * size
        whole = bool((grouped == first + np.arange(size)).all())
    if not whole:
        raise LaunchError(f"blocks must be of whole clusters, which have {size} blocks")
    return numbers


def _pack(entry: Entry, args: Sequence[Argument]) -> dict[str, bytes]:
    """Return the bytes of each parameter. Raises LaunchError if an argument does not fit."""
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


# Batches.


def _run_batches(
    state: LaunchState, resident_blocks: int | None, batch_lanes: int, step_limit: int
) -> bool:
    """Run all blocks. Return False if execution had to be given up."""
    blocks = len(state.numbers)
    size = _batch_blocks(state, resident_blocks, batch_lanes)
    constants = constant_registers(
        state.entry, state.geometry, state.layout.addresses, state.params
    )
    with np.errstate(all="ignore"):
        for first in range(0, blocks, size):
            machine = Machine(state, slice(first, min(first + size, blocks)))
            if not _run(machine, constants, step_limit):
                return False
    return True


def _batch_blocks(state: LaunchState, resident_blocks: int | None, batch_lanes: int) -> int:
    """Return how many blocks run together: whole clusters."""
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
    return min(blocks, len(state.numbers))


def _run(machine: Machine, constants: dict[str, int], step_limit: int) -> bool:
    """Bind the kernel to a batch and execute it. Return False if that had to be given up."""
    entry, scheduler = machine.entry, machine.part(Scheduler)
    remote = machine.shared_space.remote
    scheduler.on_exit.append(lambda lanes: remote.exited(lanes, scheduler.exited))
    of_sets = machine.of_sets
    key = frozenset(constants), of_sets
    # Taken out while it is in use: its registers hold this batch's values.
    bound = entry.bound.pop(key, None) or BoundSteps(
        RegisterFile(entry.registers, register_slots(entry)),
        len(entry.instructions),
        of_sets=of_sets,
    )
    bound.registers.allot(machine.shape, constants)
    bound.current.machine = machine
    scheduler.load(*_bind(bound, entry), bound.registers)
    complete = True
    try:
        scheduler.run(step_limit)
    except Aborted:
        complete = False
    del bound.current.machine  # A batch is large, and what is bound lives as long as the kernel.
    entry.bound[key] = bound
    if machine.log.traffic is not None:
        _count_instructions(machine, scheduler)
    scheduler.release()
    machine.release()
    return complete


def _bind(bound: BoundSteps, entry: Entry) -> tuple[list[Step], dict[int, Control]]:
    """Bind each instruction. Raises UnsupportedPtx that names all which are not known."""
    steps, controls = bound.steps.copy(), bound.controls.copy()
    unknown: list[str] = []
    for pc in [pc for pc, step in enumerate(steps) if step is None]:
        instruction, binder = entry.instructions[pc], Binder(bound)
        try:
            step = bind_step(binder, instruction)
            if step is None:
                controls[pc], step = bind_control(binder, instruction), _nothing
            steps[pc] = step
            if not binder.machine_asked:
                bound.steps[pc] = step
                if pc in controls:
                    bound.controls[pc] = controls[pc]
        except UnsupportedPtx as error:
            unknown += error.opcodes
        except (KeyError, ValueError, IndexError, AssertionError):
            unknown.append(instruction.opcode)
    if unknown:
        raise UnsupportedPtx(tuple(dict.fromkeys(unknown)))
    return [step or _nothing for step in steps], controls


def _nothing(lanes: Lanes) -> None:
    """Raise: it stands in place of a control, and is never called."""


def _count_instructions(machine: Machine, scheduler: Scheduler) -> None:
    """Add the instruction counts of a batch to those of the launch."""
    for instruction in machine.entry.instructions:
        count = int(scheduler.warp_counts[instruction.pc])
        if count:
            machine.counters.instructions[_counted_name(instruction)] += count
    machine.counters.thread_instructions += int(scheduler.lane_counts.sum())


def _counted_name(instruction: Instruction) -> str:
    if instruction.root in ("ld", "st", "atom", "red"):
        spaces = ("global", "shared", "local", "param", "const")
        for modifier in instruction.modifiers:
            space = modifier.split("::")[0]
            if space in spaces:
                return f"{instruction.root}.{space}"
    if instruction.root in ("bar", "barrier"):
        return ".".join((instruction.root, *instruction.modifiers[:1]))
    return instruction.root


def _note_written(state: LaunchState) -> None:
    """Keep for later launches which bytes this one has written."""
    for allocation in state.memory.allocations:
        shadow = state.shadows.get(allocation.address)
        if shadow is not None:
            shadow.add_written(allocation.written)
