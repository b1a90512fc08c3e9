"""A kernel's resources: from its cubin, and of spills what ptxas's log says."""

import re

from explorer.compile.cubin import read_cubin
from explorer.outcome import Resources

_STACK = re.compile(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads")


def kernel_resources(log: str, cubin: bytes) -> Resources:
    """Resources of the one kernel in `cubin`; raises ValueError if it is no cubin.

    Of none they are 0: kernels of a virtual architecture, such as compute_90, are PTX alone.

    NVRTC 13.0 can lose the log when several threads compile, so the log is not relied on: where
    it is silent, or speaks of another kernel, the whole stack frame counts as spilled. Our
    kernels have no other use for one.
    """
    if not cubin:
        return Resources(registers=0)
    facts = read_cubin(cubin)
    stores = loads = facts.stack_bytes
    frames = {int(m[1]): (int(m[2]), int(m[3])) for m in _STACK.finditer(log)}
    if facts.stack_bytes in frames:
        stores, loads = frames[facts.stack_bytes]
    return Resources(
        registers=facts.registers,
        static_shared_bytes=facts.shared_bytes,
        spill_store_bytes=stores,
        spill_load_bytes=loads,
        stack_bytes=facts.stack_bytes,
        code_bytes=facts.code_bytes,
    )
