"""Whether a compiled kernel can be launched: known before a GPU sees it."""

from collections.abc import Sequence

from explorer.codegen import Launch
from explorer.gpu_spec import GpuSpec
from explorer.outcome import Resources


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
