"""How many blocks of a kernel an SM holds, by the rules of NVIDIA's cuda_occupancy.h."""

from dataclasses import dataclass

from explorer.gpu_spec import GpuSpec
from explorer.outcome import Resources

WARP = 32
REGISTER_UNIT = 256
"""Registers are allotted to a warp in multiples of this."""

MAX_REGISTERS = 255
"""Registers a thread can have, every architecture since sm_35."""

SUB_PARTITIONS = 4
"""Quarters of an SM; each has a quarter of the registers, and a warp lives in one."""


@dataclass(frozen=True, slots=True)
class Occupancy:
    """Blocks and warps that an SM holds at once, and how often the grid fills the GPU."""

    blocks_per_sm: int
    """0 where not even one block fits."""
    warps_per_sm: int
    max_warps_per_sm: int
    limited_by: tuple[str, ...]
    """What allows no further block: some of `warps`, `blocks`, `registers`, `shared memory`."""
    waves: float
    """Blocks of the grid over blocks that the GPU holds at once; infinite if it holds none."""

    @property
    def share(self) -> float:
        """Warps held over warps that an SM can hold, 0 to 1."""
        return self.warps_per_sm / self.max_warps_per_sm


def occupancy(
    resources: Resources, block: int, grid: int, gpu: GpuSpec, cluster: int = 1
) -> Occupancy:
    """Occupancy of a kernel launched as `grid` blocks of `block` threads, `cluster` a cluster.

    The GPU holds whole clusters: as many as its SMs have room for, fewer where the SMs of one of
    its processing clusters are not a multiple of that, which its limits do not tell.
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


def registers_left(threads: int, blocks: int, gpu: GpuSpec) -> int:
    """Registers that a thread may have where an SM is to hold so many blocks of so many threads."""
    unit = REGISTER_UNIT // WARP
    return min(MAX_REGISTERS, gpu.registers_per_sm // (threads * blocks) // unit * unit)


def _by_registers(registers: int, warps: int, gpu: GpuSpec) -> int:
    """Blocks of `warps` warps whose registers an SM has."""
    if not registers:
        return gpu.blocks_per_sm
    per_warp = _rounded_up(registers * WARP, REGISTER_UNIT)
    held = gpu.registers_per_sm // SUB_PARTITIONS // per_warp * SUB_PARTITIONS
    return held // warps


def _by_shared(shared_bytes: int, gpu: GpuSpec) -> int:
    """Blocks whose shared memory, with what the system takes, an SM has."""
    if shared_bytes > gpu.shared_per_block_bytes:
        return 0
    needed = _rounded_up(shared_bytes + gpu.shared_reserved_bytes, gpu.shared_unit_bytes)
    return gpu.shared_per_sm_bytes // needed if needed else gpu.blocks_per_sm


def _rounded_up(value: int, unit: int) -> int:
    return -(-value // unit) * unit
