"""Whether a compiled kernel can be launched: known before a GPU sees it."""

import re
from collections.abc import Sequence

from explorer.codegen import Launch
from explorer.errors import InvalidInput
from explorer.gpu_spec import GpuSpec, known_gpu_for
from explorer.outcome import Resources
from explorer.ptx_emulator import LaunchLimits


def exceeded_resource(resources: Resources, launches: Sequence[Launch], gpu: GpuSpec) -> str | None:
    """A sentence on the first limit that a kernel exceeds, or None."""
    if resources.shared_bytes > gpu.shared_per_block_bytes:
        return (
            f"a block needs {resources.shared_bytes} bytes of shared memory; {gpu.name} has "
            f"{gpu.shared_per_block_bytes}"
        )
    block = max(launch.block for launch in launches)
    # Registers are allotted to warps in units of 256.
    allotted = -(-resources.registers * 32 // 256) * 256 * (block // 32)
    if allotted > gpu.registers_per_sm:
        return f"a block needs {allotted} registers; an SM has {gpu.registers_per_sm}"
    return None


def launch_limits(resources: Resources, arch: str) -> LaunchLimits | None:
    """Return what bounds the launches of a kernel compiled for `arch`, such as sm_90.

    A kernel of a virtual architecture, such as compute_90, has no registers yet. None for an
    architecture that is not known.
    """
    number = re.search(r"\d+", arch)
    try:
        gpu = known_gpu_for(f"sm_{number.group()}" if number else arch)
    except InvalidInput:
        return None
    return LaunchLimits(
        registers_per_block=gpu.registers_per_sm,
        registers_per_thread=resources.registers,
        shared_bytes_per_block=gpu.shared_per_block_bytes,
        blocks_per_cluster=gpu.cluster_blocks,
    )
