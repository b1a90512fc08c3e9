"""The limits of a GPU, and its occupancy: how many blocks of a kernel are resident on an SM."""

import math
import re
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any

from explorer.model.errors import InvalidInput
from explorer.model.outcome import Resources
from explorer.system.plain_data import read_fields, shown

# ------------------------------------------------------------------ limits


@dataclass(frozen=True, slots=True)
class GpuSpec:
    """Limits of one GPU. Bytes are bytes; `arch` is the compiler's name, such as sm_90."""

    name: str
    arch: str
    sm_count: int
    memory_bytes: int
    l2_bytes: int
    shared_per_block_bytes: int
    """The most dynamic shared memory a block can opt in to."""
    shared_per_sm_bytes: int
    threads_per_sm: int
    blocks_per_sm: int
    registers_per_sm: int = 65536
    peak_gbps: float = 0.0
    """Datasheet memory bandwidth, 1e9 bytes a second; 0 where unknown."""

    @classmethod
    def from_dict(cls, values: Any) -> "GpuSpec":
        """Read the limits of a GPU from a recording. Raises InvalidInput."""
        read = read_fields(cls, values, "gpu")
        if not _ARCH.fullmatch(read.arch):
            raise InvalidInput(f"arch is {shown(read.arch)}; it must be such as sm_90")
        empty = next((name for name in _LIMITS if getattr(read, name) < 1), None)
        if empty is not None:
            raise InvalidInput(f"{empty} is 0; a GPU has at least 1")
        return read

    @property
    def _major(self) -> int:
        return int(self.arch.removeprefix("sm_").rstrip("af")) // 10

    @property
    def cluster_blocks(self) -> int:
        """Blocks of the largest cluster; 1 for a GPU without clusters."""
        if self._major < 9:
            return 1
        return 16 if self._major in (9, 10) else 8

    @property
    def reduces_warps(self) -> bool:
        """Whether redux.sync combines integers of a warp in one instruction."""
        return self._major >= 8

    @property
    def multiplies_tiles(self) -> bool:
        """Whether tensor cores multiply 16 x 16 by 16 x 8 elements of 16 bits."""
        return self._major >= 8

    @property
    def copies_asynchronously(self) -> bool:
        """Whether threads can copy to shared memory without a register in between (cp.async)."""
        return self._major >= 8

    @property
    def copies_in_bulk(self) -> bool:
        """Whether one thread can copy a row to shared memory (cp.async.bulk with an mbarrier)."""
        return self._major >= 9

    @property
    def overlaps_launches(self) -> bool:
        """Whether a launch can begin before the one before it has ended (programmatic launch)."""
        return self._major >= 9

    @property
    def shared_unit_bytes(self) -> int:
        """Granularity of the shared memory that is allocated to a block."""
        return 128 if self._major >= 8 else 256

    @property
    def shared_reserved_bytes(self) -> int:
        """Shared memory of each block that the system reserves."""
        return 1024 if self._major >= 8 else 0


_ARCH = re.compile("sm_[0-9]{2,3}[af]?")
_LIMITS = tuple(name for name, kind in GpuSpec.__annotations__.items() if kind is int)

_KIB = 1024
_MIB = 1024 * _KIB
_GIB = 1024 * _MIB

_ARCH_LIMITS: dict[str, tuple[int, int, int, int]] = {
    # arch: shared bytes a block, shared bytes an SM, threads an SM, blocks an SM.
    # CUDA C++ Programming Guide, table "Technical Specifications per Compute Capability".
    "sm_75": (64 * _KIB, 64 * _KIB, 1024, 16),
    "sm_80": (163 * _KIB, 164 * _KIB, 2048, 32),
    "sm_86": (99 * _KIB, 100 * _KIB, 1536, 16),
    "sm_89": (99 * _KIB, 100 * _KIB, 1536, 24),
    "sm_90": (227 * _KIB, 228 * _KIB, 2048, 32),
    "sm_100": (227 * _KIB, 228 * _KIB, 2048, 32),
    "sm_103": (227 * _KIB, 228 * _KIB, 2048, 32),
    "sm_120": (99 * _KIB, 100 * _KIB, 1536, 24),
}

_GPUS: dict[str, tuple[str, int, int, int, float]] = {
    # name: arch, SMs, memory, L2, datasheet GB/s. NVIDIA's datasheets and architecture papers.
    "Tesla T4": ("sm_75", 40, 16 * _GIB, 4 * _MIB, 320.0),
    "NVIDIA A100-SXM4-80GB": ("sm_80", 108, 80 * _GIB, 40 * _MIB, 2039.0),
    "NVIDIA L4": ("sm_89", 58, 24 * _GIB, 48 * _MIB, 300.0),
    "NVIDIA H100 80GB HBM3": ("sm_90", 132, 80 * _GIB, 50 * _MIB, 3350.0),
    "NVIDIA H200": ("sm_90", 132, 141 * 10**9, 60 * _MIB, 4800.0),
    "NVIDIA B200": ("sm_100", 148, 180 * 10**9, 126 * _MIB, 8000.0),
    "NVIDIA GeForce RTX 5090": ("sm_120", 170, 32 * _GIB, 96 * _MIB, 1792.0),
}

DEFAULT_GPU = "NVIDIA H200"
"""The GPU whose limits are assumed if none is present and none is named."""


def known_gpu(name: str) -> GpuSpec:
    """Return the limits of a GPU that need not be present; raises InvalidInput.

    `name` is the driver's name, a part of it that only one GPU has, or an architecture.
    """
    if name.startswith("sm_"):
        return known_gpu_for(name)
    if name not in _GPUS:
        name = _full_name(name)
    arch, sm_count, memory_bytes, l2_bytes, peak_gbps = _GPUS[name]
    shared_block, shared_sm, threads, blocks = _ARCH_LIMITS[arch]
    return GpuSpec(
        name=name,
        arch=arch,
        sm_count=sm_count,
        memory_bytes=memory_bytes,
        l2_bytes=l2_bytes,
        shared_per_block_bytes=shared_block,
        shared_per_sm_bytes=shared_sm,
        threads_per_sm=threads,
        blocks_per_sm=blocks,
        peak_gbps=peak_gbps,
    )


def _full_name(part: str) -> str:
    """Return the driver's name of the one GPU whose name contains `part`, whatever its case."""
    names = [name for name in _GPUS if part and part.lower() in name.lower()]
    if len(names) == 1:
        return names[0]
    if names:
        raise InvalidInput(f"GPU '{part}' is one of several: {', '.join(names)}; name one of them")
    raise InvalidInput(
        f"GPU '{part}' is not known; there are {', '.join(_GPUS)}; of another GPU, name the "
        "architecture, such as sm_89"
    )


def is_known_gpu(name: str) -> bool:
    """Return whether the limits of the GPU with the driver's name `name` are known."""
    return name in _GPUS


def known_gpu_for(arch: str) -> GpuSpec:
    """Return a GPU of an architecture such as sm_90; raises InvalidInput, which lists them all."""
    for name, (gpu_arch, *_) in _GPUS.items():
        if gpu_arch == arch:
            return known_gpu(name)
    archs = ", ".join(dict.fromkeys(gpu[0] for gpu in _GPUS.values()))
    raise InvalidInput(f"architecture '{arch}' is not known; there are {archs}")


def peak_gbps(name: str) -> float:
    """Return the datasheet's bandwidth of the GPU with the driver's name `name`; 0 if unknown."""
    return _GPUS[name][4] if name in _GPUS else 0.0


# ------------------------------------------------------------------ occupancy


WARP = 32
"""Threads of a warp, on every architecture so far."""

REGISTER_UNIT = 256
"""Granularity of the registers that are allocated to a warp."""

REGISTER_STEP = REGISTER_UNIT // WARP
"""The same of a thread: eight registers more or fewer are the least that can count."""

LEAST_REGISTERS = 16
"""Of a thread: no compiler is expected to do with fewer."""

MAX_REGISTERS = 255
"""Most registers of a thread, on every architecture since sm_35."""

SUB_PARTITIONS = 4
"""Sub-partitions of an SM; each has a quarter of the registers, and a warp stays in one."""


@dataclass(frozen=True, slots=True)
class Occupancy:
    """Blocks and warps that are resident on an SM, and how often the grid fills the GPU."""

    blocks_per_sm: int
    """0 if not even one block fits."""
    warps_per_sm: int
    max_warps_per_sm: int
    limited_by: tuple[str, ...]
    """The limits that allow no further block: of `warps`, `blocks`, `registers`, `shared
    memory`."""
    waves: float
    """Blocks of the grid divided by the GPU's resident blocks; infinite if none is resident."""

    @property
    def share(self) -> float:
        """Resident warps divided by the most that an SM can hold, 0 to 1."""
        return self.warps_per_sm / self.max_warps_per_sm


def occupancy(
    resources: Resources, block: int, grid: int, gpu: GpuSpec, cluster: int = 1
) -> Occupancy:
    """Return the occupancy of a kernel of `grid` blocks of `block` threads, in clusters if > 1.

    Clusters are resident as a whole, so the last SMs may hold fewer blocks. Fewer clusters fit if
    the SMs of a GPU processing cluster are not a multiple of the cluster, which `GpuSpec` does not
    know.
    """
    warps = -(-block // WARP)
    limits = {
        "warps": gpu.threads_per_sm // WARP // warps,
        "blocks": gpu.blocks_per_sm,
        "registers": _by_registers(resources.registers, warps, gpu),
        "shared memory": _by_shared(resources.shared_bytes, gpu),
    }
    blocks = min(limits.values())
    held = blocks * gpu.sm_count // cluster * cluster
    return Occupancy(
        blocks_per_sm=blocks,
        warps_per_sm=blocks * warps,
        max_warps_per_sm=gpu.threads_per_sm // WARP,
        limited_by=tuple(name for name, limit in limits.items() if limit == blocks),
        waves=grid / held if held else float("inf"),
    )


def with_residency(resources: Resources, block: int, grid: int, gpu: GpuSpec) -> Resources:
    """Return the resources of a kernel of `grid` blocks of `block` threads, with its residency."""
    now = occupancy(resources, block, grid, gpu).blocks_per_sm
    most = math.ceil(grid / gpu.sm_count)  # of an SM: more cannot be resident
    near = [b for step in (-1, 1) if (b := _blocks_with(resources, step, block, gpu))]
    rests = any(min(blocks, most) != min(now, most) for blocks in near)
    return replace(resources, resident_blocks=now, rests_on_registers=rests)


def other_residencies(resources: Resources, block: int, gpu: GpuSpec) -> list[int]:
    """Return the next fewer and the next more blocks an SM that other registers would give.

    Either is left out where no number of registers gives it.
    """
    now = occupancy(resources, block, 1, gpu).blocks_per_sm
    steps = range(1, MAX_REGISTERS // REGISTER_STEP)
    fewer = (_blocks_with(resources, step, block, gpu) for step in steps)
    more = (_blocks_with(resources, -step, block, gpu) for step in steps)
    return [
        *islice((blocks for blocks in fewer if 0 < blocks < now), 1),
        *islice((blocks for blocks in more if blocks > now), 1),
    ]


def _blocks_with(resources: Resources, steps: int, block: int, gpu: GpuSpec) -> int:
    """Return the resident blocks with so many steps of registers more; 0 where that cannot be."""
    registers = _rounded_up(resources.registers, REGISTER_STEP) + steps * REGISTER_STEP
    if not LEAST_REGISTERS <= registers <= MAX_REGISTERS + 1:
        return 0
    return occupancy(replace(resources, registers=registers), block, 1, gpu).blocks_per_sm


def registers_left(threads: int, blocks: int, gpu: GpuSpec) -> int:
    """Return the most registers a thread with which so many blocks are resident on an SM."""
    left = gpu.registers_per_sm // (threads * blocks)
    return min(MAX_REGISTERS, left // REGISTER_STEP * REGISTER_STEP)


def _by_registers(registers: int, warps: int, gpu: GpuSpec) -> int:
    """Return the blocks of `warps` warps whose registers fit an SM."""
    if not registers:
        return gpu.blocks_per_sm
    per_warp = _rounded_up(registers * WARP, REGISTER_UNIT)
    held = gpu.registers_per_sm // SUB_PARTITIONS // per_warp * SUB_PARTITIONS
    return held // warps


def _by_shared(shared_bytes: int, gpu: GpuSpec) -> int:
    """Return the blocks whose shared memory, with what the system reserves, fits an SM."""
    if shared_bytes > gpu.shared_per_block_bytes:
        return 0
    needed = _rounded_up(shared_bytes + gpu.shared_reserved_bytes, gpu.shared_unit_bytes)
    return gpu.shared_per_sm_bytes // needed if needed else gpu.blocks_per_sm


def _rounded_up(value: int, unit: int) -> int:
    return -(-value // unit) * unit
