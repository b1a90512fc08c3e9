"""Where a kernel's variables lie in shared, local and global memory."""

from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np

from explorer.devices.emulated.memory import GlobalMemory
from explorer.devices.emulated.program import Entry, Instruction, Module, Variable
from explorer.devices.emulated.ptx_types import DTYPES

Ranges = list[tuple[int, int, str]]

_GAP = 256
"""Bytes between shared variables, so that running over one's end is seen.

A multiple of 128 keeps every variable on the banks where it would lie without the gap.
"""
_SHARED_BASE = 1024


@dataclass(slots=True)
class Layout:
    """Addresses of variables, their ranges, and the words in which shadows are kept."""

    addresses: dict[str, int] = field(default_factory=dict)
    shared_ranges: Ranges = field(default_factory=list)
    local_ranges: Ranges = field(default_factory=list)
    shared_granule: int = 4
    global_granule: int = 4
    static_shared_bytes: int = 0


def lay_out(module: Module, entry: Entry, memory: GlobalMemory, dynamic_bytes: int) -> Layout:
    """Give every variable of a kernel its address."""
    layout = Layout()
    layout.shared_granule = _granule(entry.instructions, ("shared", "generic"))
    layout.global_granule = _granule(entry.instructions, ("global", "generic"))
    variables = [*module.variables.values(), *entry.variables.values()]
    used = _used_names(entry)
    shared = [v for v in variables if v.space == "shared" and v.name in used]
    _lay_out_shared(layout, shared, dynamic_bytes)
    position = 0
    for variable in variables:
        if variable.space == "local":
            position = -(-position // variable.align) * variable.align
            layout.addresses[variable.name] = position
            layout.local_ranges.append((position, position + variable.size, variable.name))
            position += variable.size
        elif variable.space in ("global", "const") and variable.name in used:
            layout.addresses[variable.name] = _module_variable(memory, variable)
    return layout


def _used_names(entry: Entry) -> set[str]:
    words: set[str] = set()
    for instruction in entry.instructions:
        words.update(
            instruction.text.replace("[", " ")
            .replace("+", " ")
            .replace("]", " ")
            .replace(",", " ")
            .replace("{", " ")
            .replace("}", " ")
            .split()
        )
    return words


def _lay_out_shared(layout: Layout, shared: Iterable[Variable], dynamic_bytes: int) -> None:
    natural, count = 0, 0
    dynamic_align = 16
    dynamic = []
    for variable in shared:
        if variable.dynamic:
            dynamic.append(variable.name)
            dynamic_align = max(dynamic_align, variable.align)
            continue
        natural = -(-natural // variable.align) * variable.align
        start = _SHARED_BASE + natural + count * _GAP
        layout.addresses[variable.name] = start
        layout.shared_ranges.append((start, start + variable.size, variable.name))
        natural += variable.size
        count += 1
    layout.static_shared_bytes = natural
    natural = -(-natural // dynamic_align) * dynamic_align
    start = _SHARED_BASE + natural + count * _GAP
    start = -(-start // dynamic_align) * dynamic_align
    for name in dynamic:
        layout.addresses[name] = start
    if dynamic or dynamic_bytes:
        name = dynamic[0] if dynamic else "dynamic shared memory"
        layout.shared_ranges.append((start, start + dynamic_bytes, name))


def _module_variable(memory: GlobalMemory, variable: Variable) -> int:
    """Module variables keep their contents from one launch to the next."""
    for allocation in memory.allocations:
        if allocation.name == variable.name and allocation.size == variable.size:
            return allocation.address
    data = np.zeros(variable.size, np.uint8)
    data[: len(variable.initial)] = np.frombuffer(variable.initial, np.uint8)
    writable = variable.space == "global"
    return memory.allocate(data, name=variable.name, writable=writable).address


def access_bytes(instruction: Instruction) -> int:
    """Bytes that a memory instruction accesses a thread, 4 where its name does not tell."""
    modifiers = instruction.modifiers
    sizes = [DTYPES[m].itemsize for m in modifiers if m in DTYPES]
    count = next((int(m[1]) for m in modifiers if m in ("v2", "v4", "v8")), 1)
    return sizes[-1] * count if sizes else 4


def _granule(instructions: Iterable[Instruction], spaces: tuple[str, ...]) -> int:
    """The narrowest access to a space, 4 bytes at most: the word of its shadow."""
    narrowest = 4
    for instruction in instructions:
        if instruction.root not in ("ld", "st", "atom", "red", "ldu"):
            continue
        named = [m.split("::")[0] for m in instruction.modifiers]
        space = next((m for m in named if m in ("shared", "global", "local", "param", "const")), "")
        if (space or "generic") in spaces:
            narrowest = min(narrowest, access_bytes(instruction))
    return narrowest
