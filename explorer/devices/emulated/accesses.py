"""ld and st: values between registers and memory. PTX ISA, "Data Movement: ld, st"."""

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from explorer.devices.emulated.access import Access
from explorer.devices.emulated.addresses import HINTS, SCOPES, SPACES, bind_address, locate
from explorer.devices.emulated.binder import Binder
from explorer.devices.emulated.findings import Kind
from explorer.devices.emulated.flags import Flags
from explorer.devices.emulated.instruction_set import Modifiers, Step, binds
from explorer.devices.emulated.lanes import Lanes
from explorer.devices.emulated.place import Place
from explorer.devices.emulated.program import (
    Address,
    Instruction,
    Operand,
    Sink,
    Symbol,
    Vector,
)
from explorer.devices.emulated.ptx_types import DTYPES, Array

if TYPE_CHECKING:
    from explorer.devices.emulated.machine import Machine

Addresses = NDArray[np.int64]
ORDERS = ("weak", "relaxed", "acquire", "release", "acq_rel", "volatile", "mmio")
_CACHE = ("ca", "cg", "cs", "lu", "cv", "wb", "wt", "nc", "unified")


class _Form:
    """What an ld or st says beside its operands."""

    def __init__(self, mods: Modifiers) -> None:
        mods.drop_prefixed(*HINTS)
        self.space = mods.one_of(SPACES, "")
        self.ptx_type = mods.one_of(DTYPES)
        self.count = int(mods.one_of(("v2", "v4", "v8"), "v1")[1:])
        self.order = mods.one_of(ORDERS, "weak")
        mods.one_of(SCOPES, "")
        while mods.take(*_CACHE):
            pass
        mods.finish()
        self.size = DTYPES[self.ptx_type].itemsize * self.count

    def strong(self) -> bool:
        """Volatile shared accesses are weak here: they order nothing between lanes."""
        if self.order == "volatile":
            return not self.space.startswith("shared")
        return self.order not in ("weak", "volatile")


@binds("ld", "ldu")
def bind_ld(binder: Binder, instruction: Instruction) -> Step:
    """ld from any space, of one value or a vector."""
    form = _Form(binder.modifiers(instruction))
    to, of = instruction.operands[:2]
    items = to.items if isinstance(to, Vector) else (to,)
    targets = [None if isinstance(o, Sink) else binder.target(o, form.ptx_type) for o in items]
    if form.space == "param":
        return _bind_param(binder, of, form, targets)
    addresses = bind_address(binder, of)
    machine = binder.machine
    dtype = DTYPES[form.ptx_type]
    access = Access(instruction, form.size, "read", form.strong())
    flags = Flags(machine, form.order, access)

    def step(lanes: Lanes) -> None:
        where = addresses(lanes)
        now = machine.tick(instruction)
        for place in locate(machine, form.space, where, lanes, access):
            if place.shadow is not None:
                place.shadow.load(place.index, place.lanes, access, now)
            values = place.read(form.size, dtype)
            if access.strong:
                flags.loaded(place)
            for number, target in enumerate(targets):
                if target is not None:
                    target.put(place.lanes, values[:, number])

    return step


def _bind_param(binder: Binder, of: Operand, form: _Form, targets: list[Any]) -> Step:
    assert isinstance(of, Address) and isinstance(of.base, Symbol)
    start = of.offset + of.base.offset
    data = binder.machine.launch.params[of.base.name][start : start + form.size]
    values = np.frombuffer(data, DTYPES[form.ptx_type])

    def step(lanes: Lanes) -> None:
        for number, target in enumerate(targets):
            if target is not None:
                target.put(lanes, values[number])

    return step


@binds("st")
def bind_st(binder: Binder, instruction: Instruction) -> Step:
    """st to any space, of one value or a vector, and st.async."""
    if "async" in instruction.modifiers:
        return binder.bind_as("st.async", instruction)
    form = _Form(binder.modifiers(instruction))
    to, of = instruction.operands[:2]
    items = of.items if isinstance(of, Vector) else (of,)
    sources = [binder.source(o, form.ptx_type) for o in items]
    addresses = bind_address(binder, to)
    machine = binder.machine
    dtype = DTYPES[form.ptx_type]
    access = Access(instruction, form.size, "write", form.strong())
    flags = Flags(machine, form.order, access)

    def step(lanes: Lanes) -> None:
        where = addresses(lanes)
        now = machine.tick(instruction)
        machine.progress = True
        values = np.empty((lanes.count, len(sources)), dtype)
        for number, source in enumerate(sources):
            values[:, number] = source.each(lanes)
        for place in locate(machine, form.space, where, lanes, access):
            own = values if place.chosen is None else values[place.chosen]
            store(machine, place, own, access, now)
            if access.strong:
                flags.stored(place, now)

    return step


def store(machine: "Machine", place: Place, values: Array, access: Access, now: int) -> None:
    """Write values of shape (lanes, components), with the shadow's checks."""
    if place.shadow is None:
        place.write(access.size, values)
        return
    if access.strong:
        place.shadow.atomic(place.index, place.lanes, access, now, reads=False)
        place.write(access.size, values)
        return
    lost = place.shadow.store(place.index, place.lanes, access, now)
    place.write(access.size, values)
    if lost is not None:
        _check_lost(machine, place, values, access, lost)


def _check_lost(
    machine: "Machine", place: Place, values: Array, access: Access, lost: NDArray[np.bool_]
) -> None:
    """Lanes of one warp may store the same value to one place; all else is a race."""
    kept = place.read(access.size, values.dtype)
    different = (kept.view(np.uint8) != values.view(np.uint8)).any(axis=1)
    assert place.shadow is not None
    rows, width = place.shadow.words(place.index, access.size)
    winners = np.take(place.shadow.write.reshape(-1, width), rows, axis=0)[:, 0] & 0xFFFFFFFF
    other_warp = (winners - 1 - machine.first_lane) >> 5 != place.lanes.flat >> 5
    bad = lost & (different | other_warp)
    if bad.any():
        first = int(np.argmax(bad))
        kind = Kind.SHARED_RACE if place.data is machine.shared_space.data else Kind.GLOBAL_RACE
        other = machine.describe_lane(int(winners[first]) - 1 - machine.first_lane)
        machine.report(
            kind,
            f"write of {access.size} bytes races with the same write by {other}",
            access.instruction,
            int(place.lanes.flat[first]),
            count=int(np.count_nonzero(bad)),
            key="same",
        )
