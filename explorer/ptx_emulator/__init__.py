"""Executes PTX with NumPy, one array lane for each CUDA thread, and checks what it does.

    module = parse(ptx)
    memory = GlobalMemory()
    x = memory.allocate(array, name="input", writable=False)
    y = memory.allocate(poisoned(shape, dtype), name="output", initialised=False, written_once=True)
    shape = {"grid": (64, 1, 1), "block": (256, 1, 1)}
    result = launch(module, "kernel", **shape, args=[x, y], memory=memory)
    findings = (*result.findings, *check_output(memory, y))
    output = memory.read(y)

The emulator finds races, reads of what nothing wrote, accesses out of bounds, wrong masks, barriers
that not all threads reach, missing waits and deadlocks. It counts instructions, traffic and bank
conflicts. It never times anything. PTX that it does not know raises UnsupportedPtx: the kernel is
then unverified.

What it does not see: a defect that shows in no order of execution that was run; the ulps in which
the GPU's approximate functions other than ex2 and tanh differ from correctly rounded ones, and its
tensor cores' sums from exact ones; a missing fence.proxy.async before a bulk load. Tensor copies,
matrix instructions other than mma of 16-bit floats that sums in f32, clocks, and calls of functions
that were not inlined are not known.

The package imports nothing of the rest of the explorer.
"""

from explorer.ptx_emulator.arrival import decided_by_arrival
from explorer.ptx_emulator.counters import SECTOR_BYTES, Counters, Traffic
from explorer.ptx_emulator.element_sets import MaximaSeen
from explorer.ptx_emulator.findings import (
    ABSENT_LANE,
    EmulatorError,
    Finding,
    Kind,
    LaunchError,
    UnsupportedPtx,
)
from explorer.ptx_emulator.geometry import MAX_BLOCK, MAX_GRID, LaunchLimits
from explorer.ptx_emulator.launches import Argument, LaunchResult, Writers, launch
from explorer.ptx_emulator.machine import Schedule, permuted_turns, spins
from explorer.ptx_emulator.memory import (
    MOST_BYTES,
    Allocation,
    GlobalMemory,
    check_output,
    poisoned,
)
from explorer.ptx_emulator.parser import parse
from explorer.ptx_emulator.program import FLOATS, PACKED, Extents, Instruction, Module, SourceLine

__all__ = [
    "ABSENT_LANE",
    "FLOATS",
    "MAX_BLOCK",
    "MAX_GRID",
    "MOST_BYTES",
    "PACKED",
    "SECTOR_BYTES",
    "Allocation",
    "Argument",
    "Counters",
    "EmulatorError",
    "Extents",
    "Finding",
    "GlobalMemory",
    "Instruction",
    "Kind",
    "LaunchError",
    "LaunchLimits",
    "LaunchResult",
    "MaximaSeen",
    "Module",
    "Schedule",
    "SourceLine",
    "Traffic",
    "UnsupportedPtx",
    "Writers",
    "check_output",
    "decided_by_arrival",
    "launch",
    "parse",
    "permuted_turns",
    "poisoned",
    "spins",
]
