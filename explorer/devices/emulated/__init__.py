"""Executes the compiler's PTX with NumPy, one array lane a CUDA thread, and checks what it does.

    module = parse(ptx)
    memory = GlobalMemory()
    x = memory.allocate(array, name="input", writable=False)
    y = memory.allocate(poisoned(shape, dtype), name="output", initialised=False, written_once=True)
    shape = {"grid": (64, 1, 1), "block": (256, 1, 1)}
    result = launch(module, "kernel", **shape, args=[x, y], memory=memory)
    findings = (*result.findings, *check_output(memory, y))
    output = memory.read(y)

It finds races, uninitialised reads, accesses out of bounds, wrong masks, barriers that not all
reach, missing waits and deadlocks; it counts instructions, traffic and bank conflicts. It never
times anything. PTX that it does not know raises UnsupportedPtx: the kernel is then unverified.

What it does not see: what only another order of execution would bring about, since one order is
executed (`staggered` is another); the ulps in which the GPU's approximate functions differ from
correctly rounded ones; a missing fence.proxy.async before a bulk load. Tensor copies, matrix
instructions, calls of functions that were not inlined and clocks are not known.
"""

from explorer.devices.emulated.counters import Counters, Traffic
from explorer.devices.emulated.findings import Finding, Kind, LaunchError, UnsupportedPtx
from explorer.devices.emulated.launch import LaunchResult, launch
from explorer.devices.emulated.memory import Allocation, GlobalMemory, check_output, poisoned
from explorer.devices.emulated.parse import parse
from explorer.devices.emulated.program import Module, SourceLine

__all__ = [
    "Allocation",
    "Counters",
    "Finding",
    "GlobalMemory",
    "Kind",
    "LaunchError",
    "LaunchResult",
    "Module",
    "SourceLine",
    "Traffic",
    "UnsupportedPtx",
    "check_output",
    "launch",
    "parse",
    "poisoned",
]
