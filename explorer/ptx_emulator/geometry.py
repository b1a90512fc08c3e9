"""How a launch is laid out: its extents, its bounds, special registers, addresses of variables."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from explorer.ptx_emulator.findings import UnsupportedPtx
from explorer.ptx_emulator.lanes import WARP
from explorer.ptx_emulator.memory import GlobalMemory
from explorer.ptx_emulator.program import (
    DTYPES,
    Address,
    Entry,
    Extents,
    Instruction,
    Module,
    Operand,
    Symbol,
    Values,
    Variable,
    Vector,
    once_an_entry,
)

Numbers = NDArray[np.int64]
"""Numbers of blocks in launch order: all of one cluster, then all of the next."""


@dataclass(frozen=True, slots=True)
class Geometry:
    """Extents of a launch along x, y and z."""

    grid: Extents
    block: Extents
    cluster: Extents = (1, 1, 1)
    explicit_cluster: bool = False
    dynamic_shared_bytes: int = 0
    total_shared_bytes: int = 0

    @property
    def threads(self) -> int:
        """Threads in a block."""
        return self.block[0] * self.block[1] * self.block[2]

    @property
    def warps(self) -> int:
        """Warps in a block; the last one may not be full."""
        return -(-self.threads // WARP)

    @property
    def blocks(self) -> int:
        """Blocks in the grid."""
        return self.grid[0] * self.grid[1] * self.grid[2]

    @property
    def cluster_size(self) -> int:
        """Blocks in a cluster."""
        return self.cluster[0] * self.cluster[1] * self.cluster[2]

    def block_places(self, numbers: Numbers) -> NDArray[np.int64]:
        """Return the ctaid of blocks by their numbers in launch order: shape (blocks, 3)."""
        cluster, rank = np.divmod(numbers, self.cluster_size)
        extents = tuple(g // c for g, c in zip(self.grid, self.cluster, strict=True))
        places = zip(_place(cluster, extents), _place(rank, self.cluster), strict=True)
        return np.stack([c * s + r for (c, r), s in zip(places, self.cluster, strict=True)], axis=1)

    def block_place(self, number: int) -> Extents:
        """Return the ctaid of one block."""
        x, y, z = self.block_places(np.array([number], np.int64))[0].tolist()
        return x, y, z

    def thread_place(self, number: int) -> Extents:
        """Return the tid of the thread with this number in its block."""
        x, y, z = _place(number, self.block)
        return x, y, z


def _place(number: Any, extents: tuple[int, ...]) -> tuple[Any, Any, Any]:
    x, y, _ = extents
    return number % x, number // x % y, number // (x * y)


# Bounds of a launch.

MAX_GRID: Extents = (2**31 - 1, 65535, 65535)
MAX_BLOCK: Extents = (1024, 1024, 64)
"""CUDA C++ Programming Guide, "Technical Specifications per Compute Capability"."""

MAX_STATIC_SHARED_BYTES = 48 * 1024
"""Shared memory that a kernel may declare with a size; only dynamic memory can be more."""

REGISTER_UNIT = 256
"""Registers are allotted to a warp in multiples of this."""


@dataclass(frozen=True, slots=True)
class LaunchLimits:
    """What a GPU offers a block, and what the compiler gave the kernel. 0 leaves out a check."""

    threads_per_block: int = 1024
    registers_per_block: int = 0
    """32-bit registers that the blocks of one SM share."""
    registers_per_thread: int = 0
    """Registers that the compiler gave each thread of the kernel."""
    shared_bytes_per_block: int = 0
    """Static and dynamic shared memory that a block can have if the host opts in."""
    blocks_per_cluster: int = 0


def launch_faults(
    geometry: Geometry, entry: Entry, limits: LaunchLimits | None, static_shared_bytes: int
) -> Iterator[str]:
    """Yield a sentence for each bound of the kernel or the GPU that a launch exceeds.

    PTX ISA, ".maxntid" (the product of its extents bounds the threads of a block), ".reqntid" (the
    extents must be equal) and ".maxclusterrank".
    """
    directives, block = entry.directives, geometry.block
    launched = f"the block of {_by(block)} = {geometry.threads} threads"
    if directives.maxntid is not None:
        x, y, z = directives.maxntid
        if geometry.threads > x * y * z:
            bound = f"{_by(directives.maxntid)} = {x * y * z}"
            yield f"{launched} exceeds the kernel's .maxntid {bound}"
    if directives.reqntid is not None and block != directives.reqntid:
        yield f"{launched} is not the kernel's .reqntid {_by(directives.reqntid)}"
    for name, extents, most in (("grid", geometry.grid, MAX_GRID), ("block", block, MAX_BLOCK)):
        if any(extent > bound for extent, bound in zip(extents, most, strict=True)):
            yield f"the {name} {_by(extents)} exceeds the {_by(most)} of any GPU"
    yield from _cluster_faults(geometry, entry, limits)
    if static_shared_bytes > MAX_STATIC_SHARED_BYTES:
        yield (
            f"the kernel declares {static_shared_bytes} bytes of static shared memory, more than "
            f"{MAX_STATIC_SHARED_BYTES}"
        )
    if limits is not None:
        yield from _resource_faults(geometry, limits, static_shared_bytes)


def _by(extents: Extents) -> str:
    return " x ".join(str(extent) for extent in extents)


def _cluster_faults(geometry: Geometry, entry: Entry, limits: LaunchLimits | None) -> Iterator[str]:
    launched = f"the cluster of {_by(geometry.cluster)} = {geometry.cluster_size} blocks"
    if entry.cluster is not None and geometry.cluster != entry.cluster:
        yield f"{launched} is not the kernel's .reqnctapercluster {_by(entry.cluster)}"
    most = entry.directives.maxclusterrank
    if most and geometry.cluster_size > most:
        yield f"{launched} exceeds the kernel's .maxclusterrank {most}"
    if limits and limits.blocks_per_cluster and geometry.cluster_size > limits.blocks_per_cluster:
        yield f"{launched} exceeds the {limits.blocks_per_cluster} blocks that the GPU allows"


def _resource_faults(
    geometry: Geometry, limits: LaunchLimits, static_shared_bytes: int
) -> Iterator[str]:
    if limits.threads_per_block and geometry.threads > limits.threads_per_block:
        yield f"the block of {geometry.threads} threads exceeds the {limits.threads_per_block}"
    per_warp = -(-limits.registers_per_thread * WARP // REGISTER_UNIT) * REGISTER_UNIT
    registers = per_warp * geometry.warps
    if limits.registers_per_block and registers > limits.registers_per_block:
        yield (
            f"the block of {geometry.threads} threads with {limits.registers_per_thread} registers "
            f"each takes {registers} registers, more than the {limits.registers_per_block} of an SM"
        )
    shared = static_shared_bytes + geometry.dynamic_shared_bytes
    if limits.shared_bytes_per_block and shared > limits.shared_bytes_per_block:
        yield (
            f"the block takes {static_shared_bytes} bytes of static and "
            f"{geometry.dynamic_shared_bytes} of dynamic shared memory, more than the "
            f"{limits.shared_bytes_per_block} that a block can have"
        )


# Special registers.


class SpecialRegisters:
    """Values of %tid, %ctaid and the like for some blocks of a grid.

    PTX ISA, chapter "Special Registers".
    """

    def __init__(self, geometry: Geometry, numbers: Numbers) -> None:
        """`numbers` are those of the blocks, in launch order."""
        self._geometry = geometry
        self._shape = (len(numbers), geometry.warps, WARP)
        self._thread = np.arange(geometry.warps * WARP)
        self._places = geometry.block_places(numbers)
        self._rank = numbers % geometry.cluster_size

    def value(self, name: str, ptx_type: str) -> Values:
        """Return a register as a scalar or an array of shape (blocks, warps, 32).

        Raises UnsupportedPtx for a register that is not known.
        """
        root, number = _split(name)
        constant = constant_special(self._geometry, name)
        dtype = DTYPES[ptx_type]
        if constant is not None:
            scalar: Values = dtype.type(constant)
            return scalar
        if root in _BY_THREAD:
            values = _BY_THREAD[root](self._geometry, self._thread, number)
            return self._spread(values.reshape(1, -1, WARP), dtype)
        if root in _BY_BLOCK:
            values = _BY_BLOCK[root](self._geometry, self._places, self._rank, number)
            return self._spread(values.reshape(-1, 1, 1), dtype)
        raise UnsupportedPtx((name,))

    def _spread(self, values: NDArray[np.int64], dtype: Any) -> NDArray[Any]:
        return np.ascontiguousarray(np.broadcast_to(values, self._shape).astype(dtype))


def constant_special(geometry: Geometry, name: str) -> int | None:
    """Return the value of a special register that all threads share, else None."""
    root, axis = _split(name)
    constants = {
        "ntid": geometry.block[axis],
        "nctaid": geometry.grid[axis],
        "nwarpid": geometry.warps,
        "nsmid": 1,
        "smid": 0,
        "gridid": 0,
        "cluster_nctaid": geometry.cluster[axis],
        "cluster_nctarank": geometry.cluster_size,
        "nclusterid": geometry.grid[axis] // geometry.cluster[axis],
        "is_explicit_cluster": int(geometry.explicit_cluster),
        "dynamic_smem_size": geometry.dynamic_shared_bytes,
        "total_smem_size": geometry.total_shared_bytes,
    }
    return constants.get(root)


def _split(name: str) -> tuple[str, int]:
    root, _, axis = name.removeprefix("%").partition(".")
    return root, "xyz".find(axis) if axis else 0


def _tid(geometry: Geometry, thread: NDArray[np.int64], axis: int) -> NDArray[np.int64]:
    return np.asarray(_place(thread, geometry.block)[axis])


_BY_THREAD: dict[str, Callable[[Geometry, NDArray[np.int64], int], NDArray[np.int64]]] = {
    "tid": _tid,
    "laneid": lambda g, t, _: t % WARP,
    "warpid": lambda g, t, _: t // WARP,
    "lanemask_eq": lambda g, t, _: 1 << t % WARP,
    "lanemask_lt": lambda g, t, _: (1 << t % WARP) - 1,
    "lanemask_le": lambda g, t, _: (2 << t % WARP) - 1,
    "lanemask_gt": lambda g, t, _: 2**32 - (2 << t % WARP),
    "lanemask_ge": lambda g, t, _: 2**32 - (1 << t % WARP),
}

_BY_BLOCK: dict[str, Callable[..., NDArray[np.int64]]] = {
    "ctaid": lambda g, places, rank, axis: places[:, axis],
    "cluster_ctaid": lambda g, places, rank, axis: places[:, axis] % g.cluster[axis],
    "clusterid": lambda g, places, rank, axis: places[:, axis] // g.cluster[axis],
    "cluster_ctarank": lambda g, places, rank, axis: rank,
}

# Addresses of variables.

Ranges = list[tuple[int, int, str]]
"""First address, address past the end, and name of each variable of a space."""

_GAP = 256
"""Bytes between shared variables, so that an access past the end of one is seen.

A multiple of 128 keeps every variable on the banks where it would lie without the gap.
"""
_SHARED_BASE = 1024


@dataclass(slots=True)
class Layout:
    """Addresses of variables, their ranges, and the bytes of a word of each shadow."""

    addresses: dict[str, int] = field(default_factory=dict)
    shared_ranges: Ranges = field(default_factory=list)
    local_ranges: Ranges = field(default_factory=list)
    shared_granule: int = 4
    global_granule: int = 4
    static_shared_bytes: int = 0


def lay_out(module: Module, entry: Entry, memory: GlobalMemory, dynamic_bytes: int) -> Layout:
    """Give every variable of a kernel its address. Module variables go into `memory`."""
    layout = Layout()
    layout.shared_granule, layout.global_granule = _granules(entry)
    variables = [*module.variables.values(), *entry.variables.values()]
    used = _used(entry)
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


@once_an_entry
def _used(entry: Entry) -> set[str]:
    """Return the names of variables and labels that instructions mention."""
    return {name for i in entry.instructions for o in i.operands for name in _symbols(o)}


def _symbols(operand: Operand) -> Iterator[str]:
    """Yield names of the variables and labels that an operand mentions."""
    if isinstance(operand, Symbol):
        yield operand.name
    elif isinstance(operand, Address) and isinstance(operand.base, Symbol):
        yield operand.base.name
    elif isinstance(operand, Vector):
        for item in operand.items:
            yield from _symbols(item)


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
    """Return the address of a variable that keeps its contents from one launch to the next."""
    for allocation in memory.allocations:
        if allocation.name == variable.name and allocation.size == variable.size:
            return allocation.address
    data = np.zeros(variable.size, np.uint8)
    data[: len(variable.initial)] = np.frombuffer(variable.initial, np.uint8)
    writable = variable.space == "global"
    return memory.allocate(data, name=variable.name, writable=writable).address


@once_an_entry
def _granules(entry: Entry) -> tuple[int, int]:
    """Return the bytes of a word of the shadows of shared and of global memory."""
    shared = _granule(entry.instructions, ("shared", "generic"))
    return shared, _granule(entry.instructions, ("global", "generic"))


def _granule(instructions: Iterable[Instruction], spaces: tuple[str, ...]) -> int:
    """Return the bytes of the narrowest access to a space, at most 4: the word of its shadow."""
    narrowest = 4
    for instruction in instructions:
        if instruction.root not in ("ld", "st", "atom", "red", "ldu"):
            continue
        named = [m.split("::")[0] for m in instruction.modifiers]
        space = next((m for m in named if m in ("shared", "global", "local", "param", "const")), "")
        if (space or "generic") in spaces:
            narrowest = min(narrowest, instruction.access_bytes())
    return narrowest
