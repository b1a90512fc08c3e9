"""shfl: values read from other lanes of a warp. PTX ISA, "shfl.sync"."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from explorer.devices.emulated.binder import Binder
from explorer.devices.emulated.findings import Kind
from explorer.devices.emulated.instruction_set import Step, binds
from explorer.devices.emulated.lanes import WARP, Lanes
from explorer.devices.emulated.program import Instruction
from explorer.devices.emulated.registers import Source

Lane32 = NDArray[np.int64]


def source_lanes(mode: str, lane: Lane32, b: Any, c: Any) -> tuple[Lane32, NDArray[np.bool_]]:
    """For each lane of a warp, the lane that it reads and whether that is in range."""
    b = np.asarray(b).astype(np.int64) & 31
    c = np.asarray(c).astype(np.int64)
    segment, clamp = c >> 8 & 31, c & 31
    most = (lane & segment) | (clamp & ~segment)
    least = lane & segment
    if mode == "up":
        picked = lane - b
        inside = picked >= most
    elif mode == "down":
        picked = lane + b
        inside = picked <= most
    elif mode == "bfly":
        picked = lane ^ b
        inside = picked <= most
    else:
        picked = least | (b & ~segment)
        inside = picked <= most
    return np.where(inside, picked, lane), inside


@binds("shfl")
def bind_shfl(binder: Binder, instruction: Instruction) -> Step:
    """shfl.sync d|p, a, b, c, mask."""
    mods = binder.modifiers(instruction)
    mods.one_of(("sync",))
    mode = mods.one_of(("up", "down", "bfly", "idx"))
    mods.one_of(("b32",))
    mods.finish()
    target, valid = binder.targets(instruction.operands[0], "b32")
    a, b, c, mask = (binder.source(o, "b32") for o in instruction.operands[1:])
    machine = binder.machine
    values = a.value if isinstance(a.value, np.ndarray) and a.value.ndim == 3 else None
    fixed = None
    if b.scalar is not None and c.scalar is not None and values is not None:
        fixed = source_lanes(mode, np.arange(WARP), b.scalar, c.scalar)

    def step(lanes: Lanes) -> None:
        if fixed is not None and lanes.full and values is not None:
            target.put(lanes, np.take(values, fixed[0], axis=2))
            if valid is not None:
                valid.put(lanes, np.broadcast_to(fixed[1], machine.shape))
            return
        own = (lanes.flat & 31).astype(np.int64)
        picked, inside = source_lanes(mode, own, b.each(lanes), c.each(lanes))
        check_sources(binder, instruction, lanes, picked, mask)
        origin = (lanes.flat & ~31) + picked
        everyone = a.each(Lanes.every(machine.shape)) if values is None else values.reshape(-1)
        target.put(lanes, everyone[origin])
        if valid is not None:
            valid.put(lanes, inside)

    return step


def check_sources(
    binder: Binder, instruction: Instruction, lanes: Lanes, picked: Lane32, mask: Source
) -> None:
    """Reading a lane that does not take part is undefined."""
    bit = np.uint32(1) << picked.astype(np.uint32)
    present = lanes.warp_bits()[lanes.flat >> 5] & mask.each(lanes).astype(np.uint32)
    bad = (present & bit == 0) & (picked != (lanes.flat & 31))
    if bad.any():
        binder.machine.report(
            Kind.WARP_MASK,
            "the value is read from a lane that does not take part",
            instruction,
            int(lanes.flat[int(np.argmax(bad))]),
            count=int(np.count_nonzero(bad)),
            key="source",
        )
