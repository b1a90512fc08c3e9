"""Fences, and instructions that change no result."""

from explorer.devices.emulated.binder import Binder
from explorer.devices.emulated.instruction_set import Step, binds
from explorer.devices.emulated.lanes import Lanes
from explorer.devices.emulated.program import Instruction
from explorer.devices.emulated.ptx_types import DTYPES


@binds("membar", "fence")
def bind_fence(binder: Binder, instruction: Instruction) -> Step:
    """membar and fence. One of block scope publishes nothing to other blocks."""
    mods = binder.modifiers(instruction)
    machine = binder.machine
    if mods.take("proxy"):
        if not mods.take("async"):
            raise mods.unsupported()
        mods.one_of(("global", "shared::cta", "shared::cluster"), "")
        mods.finish()
        return lambda lanes: _fence_proxy(binder, instruction, lanes)
    if mods.take("mbarrier_init"):
        mods.take("release")
        mods.take("cluster")
        mods.finish()
        return lambda lanes: _fence_mbarrier_init(binder, instruction, lanes)
    mods.one_of(("sc", "acq_rel", "acquire", "release"), "sc")
    scope = mods.one_of(("cta", "cluster", "gpu", "sys", "gl"))
    mods.finish()
    if scope == "cta":
        return lambda lanes: None
    return lambda lanes: machine.ordering.fence(lanes.flat, machine.tick(instruction))


def _fence_proxy(binder: Binder, instruction: Instruction, lanes: Lanes) -> None:
    binder.machine.proxy_fences[lanes.flat] = binder.machine.tick(instruction)


def _fence_mbarrier_init(binder: Binder, instruction: Instruction, lanes: Lanes) -> None:
    binder.machine.mbarriers.fenced[lanes.flat] = binder.machine.tick(instruction)


@binds("griddepcontrol")
def bind_griddepcontrol(binder: Binder, instruction: Instruction) -> Step:
    """A wait for the launch before this one. That the next one may begin changes nothing here."""
    mods = binder.modifiers(instruction)
    machine = binder.machine
    waits = mods.one_of(("wait", "launch_dependents")) == "wait"
    mods.finish()
    return lambda lanes: machine.wait_for_launch_before(lanes) if waits else None


@binds("nanosleep", "prefetch", "prefetchu", "setmaxnreg", "pmevent")
def bind_nothing(binder: Binder, instruction: Instruction) -> Step:
    """Hints on timing and caching."""
    return lambda lanes: None


@binds("createpolicy")
def bind_createpolicy(binder: Binder, instruction: Instruction) -> Step:
    """A cache policy is opaque, and only hints use it."""
    target = binder.target(instruction.operands[0], "b64")
    return lambda lanes: target.put(lanes, DTYPES["b64"].type(0))
