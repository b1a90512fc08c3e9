"""ld, st, fences: values between registers and memory, and synchronisation through memory.

PTX ISA, "Data Movement: ld, st", "membar, fence", chapter "Memory Consistency Model".
"""

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from explorer.ptx_emulator.binding import Binder, Current, Modifiers, Step, binds
from explorer.ptx_emulator.counters import Traffic
from explorer.ptx_emulator.findings import Kind, UnsupportedPtx
from explorer.ptx_emulator.happens_before import LaneIds, Row
from explorer.ptx_emulator.lanes import Lanes, any_of
from explorer.ptx_emulator.machine import Machine
from explorer.ptx_emulator.program import (
    DTYPES,
    Address,
    Array,
    Immediate,
    Instruction,
    Operand,
    Register,
    Sink,
    Symbol,
    Vector,
)
from explorer.ptx_emulator.registers import Target
from explorer.ptx_emulator.shadow import THREAD, Access
from explorer.ptx_emulator.spaces import LOCAL_WINDOW, SHARED_WINDOW, Addresses, Place, Space

SPACES = ("global", "shared", "shared::cta", "shared::cluster", "local", "const", "param")
SCOPES = ("cta", "cluster", "gpu", "sys")
ORDERS = ("weak", "relaxed", "acquire", "release", "acq_rel", "volatile", "mmio")
HINTS = ("L1::", "L2::")
_CACHE = ("ca", "cg", "cs", "lu", "cv", "wb", "wt", "unified")

# Addresses.


def bind_address(binder: Binder, operand: Operand) -> Callable[[Lanes], Addresses]:
    """Return a function that gives the addresses of lanes, in the order of `lanes.flat`.

    Raises UnsupportedPtx.
    """
    if not isinstance(operand, Address):
        raise UnsupportedPtx((f"address {operand}",))
    if isinstance(operand.base, Register):
        source = binder.source(operand.base, binder.width_of(operand.base))
        offset = np.int64(operand.offset)

        def addresses(lanes: Lanes) -> Addresses:
            values = source.each(lanes)
            if values.dtype == np.uint64:
                # A view may be of the register itself, which this or a later instruction changes.
                seen = values.view(np.int64)
                return seen + offset if offset else seen.copy()
            wide: Addresses = values.astype(np.int64)
            wide += offset
            return wide

        return addresses
    if isinstance(operand.base, Symbol):
        return _address_of_symbol(binder.current, operand.base, operand.offset)
    assert isinstance(operand.base, Immediate)
    constant = int(operand.base.value) + operand.offset
    return lambda lanes: np.full(lanes.count, constant, np.int64)


def _address_of_symbol(
    current: Current, symbol: Symbol, offset: int
) -> Callable[[Lanes], Addresses]:
    """Return what gives the address of a variable, which lies elsewhere in another launch."""
    name, offset = symbol.name, symbol.offset + offset
    current.machine.symbol_address(name)  # One that is not known is so for all launches.
    return lambda lanes: np.full(
        lanes.count, current.machine.symbol_address(name) + offset, np.int64
    )


def split_generic(
    machine: Machine, addresses: Addresses
) -> list[tuple[Space, int, NDArray[np.bool_] | None]]:
    """Return the spaces of generic addresses, each with its window and the lanes concerned."""
    low, high = int(addresses.min()), int(addresses.max())
    if high < SHARED_WINDOW:
        return [(machine.global_space, 0, None)]
    if low >= LOCAL_WINDOW:
        return [(machine.local_space, LOCAL_WINDOW, None)]
    if low >= SHARED_WINDOW and high < LOCAL_WINDOW:
        return [(machine.shared_space, SHARED_WINDOW, None)]
    parts: list[tuple[Space, int, NDArray[np.bool_] | None]] = []
    in_local = addresses >= LOCAL_WINDOW
    in_shared = (addresses >= SHARED_WINDOW) & ~in_local
    for space, window, chosen in (
        (machine.global_space, 0, ~in_local & ~in_shared),
        (machine.shared_space, SHARED_WINDOW, in_shared),
        (machine.local_space, LOCAL_WINDOW, in_local),
    ):
        if any_of(chosen):
            parts.append((space, window, chosen))
    return parts


def locate(
    machine: Machine, space: str, addresses: Addresses, lanes: Lanes, access: Access
) -> list[Place]:
    """Return where the accesses of an instruction go, checked and counted.

    The space '' is generic.
    """
    if space:
        target = machine.space(space)
        _count(machine, target, addresses, lanes, access)
        return target.locate(addresses, lanes, access)
    places = []
    for target, window, chosen in split_generic(machine, addresses):
        part = addresses - window if chosen is None else addresses[chosen] - window
        members = lanes if chosen is None else lanes.where(chosen)
        _count(machine, target, part, members, access)
        located = target.locate(part, members, access)
        places += located if chosen is None else [place.within(chosen) for place in located]
    return places


ACCESS_WORK = 10
"""The work of one lane's access to memory, which is checked, against that of arithmetic."""

TURN_WORK = 2000
"""The work of what one lane does alone, after or before all others."""


def _count(
    machine: Machine, space: Space, addresses: Addresses, lanes: Lanes, access: Access
) -> None:
    machine.work += ACCESS_WORK * lanes.count
    counter = machine.log.traffic
    if counter is None:
        return
    direction = "loads" if access.action == "read" else "stores"
    traffic: Traffic = getattr(machine.counters, f"{space.name}_{direction}")
    if space.name == "shared":
        counter.count_wavefronts(traffic, addresses, access.size, lanes)
    else:
        counter.count_sectors(traffic, addresses, access.size, lanes)


# Synchronisation through memory.


class _Published:
    """What strong writes to places in memory let their readers know."""

    def __init__(self, machine: Machine) -> None:
        self._most_kept = machine.ordering.most_kept
        self._rows: dict[int, Row] = {}
        self._told: dict[int, dict[int, Row]] = {}
        """For each place what each lane has added to what its readers learn."""

    def __bool__(self) -> bool:
        return bool(self._rows)

    def get(self, place: int) -> Row | None:
        """Return what readers of a place learn."""
        return self._rows.get(place)

    def publish(self, place: int, row: Row, lane: int, *, keep: bool) -> None:
        """Let readers of `place` know a lane's `row`; with `keep`, beside what they knew before."""
        earlier = self._rows.get(place)
        if not keep or earlier is None:
            self._rows[place], self._told[place] = row, {}
        elif self._told[place].get(lane) is not row:  # Who spins says the same again and again.
            self._rows[place] = np.maximum(earlier, row)
        told = self._told[place]
        if len(told) >= self._most_kept:
            told.clear()
        told[lane] = row


class Flags:
    """A strong instruction as one end of a synchronisation.

    A releasing write publishes what its thread knows; a relaxed one, what it knew at its last
    fence. An acquiring read learns it at once; a relaxed one, at the next fence of the thread.
    """

    def __init__(self, machine: Machine, order: str, access: Access) -> None:
        """`order` is the instruction's .sem qualifier, or '' for none."""
        self._machine = machine
        self._published = machine.part(_Published)
        self._acquires = order in ("acquire", "acq_rel")
        self._releases = order in ("release", "acq_rel")
        self._access = access

    def loaded(self, place: Place) -> None:
        """Note that lanes have read their locations."""
        if not self._published:
            return
        keys = self._keys(place)
        for key in np.unique(keys):
            self._learn(int(key), place.lanes.flat[keys == key])

    def stored(self, place: Place, now: int) -> None:
        """Note that lanes have written their locations."""
        if self._publishes():
            lanes = place.lanes.flat.tolist()
            self._spend_on_publishing(lanes)
            for key, lane in zip(self._keys(place).tolist(), lanes, strict=True):
                self._publish(key, lane, now)

    def exchanged(self, place: Place, now: int, in_turn: NDArray[np.int64] | None = None) -> None:
        """Note that lanes have read and written their locations, one after another."""
        if not self._publishes():
            self.loaded(place)
            return
        order = slice(None) if in_turn is None else in_turn
        keys, lanes = self._keys(place)[order].tolist(), place.lanes.flat[order].tolist()
        self._spend_on_publishing(lanes)
        for key, lane in zip(keys, lanes, strict=True):
            self._learn(key, np.array([lane]))
            self._publish(key, lane, now)

    def _spend_on_publishing(self, lanes: list[int]) -> None:
        """Count the work of publishing what each of some lanes knows, of all others too."""
        each = TURN_WORK + self._machine.ordering.lanes // 8
        self._machine.spend(each * len(lanes), self._access.instruction, lanes[0])

    def _publishes(self) -> bool:
        return self._releases or self._machine.ordering.fenced

    def _learn(self, key: int, lanes: LaneIds) -> None:
        row = self._published.get(key)
        if row is None:
            return
        if self._acquires:
            self._machine.ordering.acquire(lanes, row)
        else:
            self._machine.ordering.see(lanes.tolist(), row)

    def _publish(self, key: int, lane: int, now: int) -> None:
        ordering = self._machine.ordering
        releases = self._releases
        row = ordering.knowledge(lane, now) if releases else ordering.fenced_knowledge(lane)
        if row is not None:
            keep = self._access.action == "atomic"
            self._published.publish(key, row, lane, keep=keep)

    @staticmethod
    def _keys(place: Place) -> LaneIds:
        """Return the locations, distinct from equal indices of other memories."""
        start: int = place.data.__array_interface__["data"][0]
        return place.index + start


# ld and st.


class _Form:
    """What an ld or st says beside its operands."""

    def __init__(self, mods: Modifiers) -> None:
        mods.drop_prefixed(*HINTS)
        self.space = mods.one_of(SPACES, "")
        self.ptx_type = mods.one_of(DTYPES)
        self.count = int(mods.one_of(("v2", "v4", "v8"), "v1")[1:])
        self.order = mods.one_of(ORDERS, "weak")
        mods.one_of(SCOPES, "")
        self.non_coherent = mods.take("nc")
        while mods.take(*_CACHE):
            pass
        mods.finish()
        self.size = DTYPES[self.ptx_type].itemsize * self.count

    def strong(self) -> bool:
        """Return whether it is strong. Volatile shared accesses order no lanes here."""
        if self.order == "volatile":
            return not self.space.startswith("shared")
        return self.order not in ("weak", "volatile")


@binds("ld", "ldu")
def bind_ld(binder: Binder, instruction: Instruction) -> Step:
    """Bind ld from any space, of one value or a vector."""
    form = _Form(Modifiers(instruction))
    to, of = instruction.operands[:2]
    items = to.items if isinstance(to, Vector) else (to,)
    targets = [None if isinstance(o, Sink) else binder.target(o, form.ptx_type) for o in items]
    if form.space == "param":
        return _bind_param(binder, of, form, targets)
    addresses, current = bind_address(binder, of), binder.current
    dtype = DTYPES[form.ptx_type]
    access = Access(instruction, form.size, "read", form.strong(), form.non_coherent)
    flags = Flags(binder.machine, form.order, access) if access.strong else None

    def step(lanes: Lanes) -> None:
        where, machine = addresses(lanes), current.machine
        now = machine.tick(instruction)
        for place in locate(machine, form.space, where, lanes, access):
            if place.shadow is not None:
                place.shadow.load(place.index, place.lanes, access, now)
            values = place.read(form.size, dtype)
            if flags is not None:
                flags.loaded(place)
            for number, target in enumerate(targets):
                if target is not None:
                    target.put(place.lanes, values[:, number])

    return step


def _bind_param(binder: Binder, of: Operand, form: _Form, targets: list[Target | None]) -> Step:
    assert isinstance(of, Address) and isinstance(of.base, Symbol)
    name, start, current = of.base.name, of.offset + of.base.offset, binder.current
    current.machine.params[name]  # One that is not declared is not known.

    def step(lanes: Lanes) -> None:
        data = current.machine.params[name][start : start + form.size]
        values = np.frombuffer(data, DTYPES[form.ptx_type])
        for number, target in enumerate(targets):
            if target is not None:
                target.put(lanes, values[number])

    return step


@binds("st")
def bind_st(binder: Binder, instruction: Instruction) -> Step:
    """Bind st to any space, of one value or a vector."""
    form = _Form(Modifiers(instruction))
    to, of = instruction.operands[:2]
    items = of.items if isinstance(of, Vector) else (of,)
    sources = [binder.source(o, form.ptx_type) for o in items]
    addresses, current = bind_address(binder, to), binder.current
    dtype = DTYPES[form.ptx_type]
    access = Access(instruction, form.size, "write", form.strong())
    flags = Flags(binder.machine, form.order, access) if access.strong else None

    def step(lanes: Lanes) -> None:
        where, machine = addresses(lanes), current.machine
        now = machine.tick(instruction)
        machine.progress = True
        values = np.empty((lanes.count, len(sources)), dtype)
        for number, source in enumerate(sources):
            values[:, number] = source.each(lanes)
        for place in locate(machine, form.space, where, lanes, access):
            own = values if place.chosen is None else values[place.chosen]
            _store(machine, place, own, access, now)
            if flags is not None:
                flags.stored(place, now)

    return step


def _store(machine: Machine, place: Place, values: Array, access: Access, now: int) -> None:
    """Write values of shape (lanes, components), with the checks of the shadow."""
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
    machine: Machine, place: Place, values: Array, access: Access, lost: NDArray[np.bool_]
) -> None:
    """Report stores of several lanes to one place.

    Lanes of one warp may store the same value there. All else is a race.
    """
    kept = place.read(access.size, values.dtype)
    different = (kept.view(np.uint8) != values.view(np.uint8)).any(axis=1)
    assert place.shadow is not None
    rows, width = place.shadow.words(place.index, access.size)
    winners = np.take(place.shadow.write.reshape(-1, width), rows, axis=0)[:, 0] & THREAD
    other_warp = (winners - 1 - machine.first_lane) >> 5 != place.lanes.flat >> 5
    bad = lost & (different | other_warp)
    if any_of(bad):
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


# Fences, and instructions that change no result.


class Fences:
    """When each thread last executed a fence of the asynchronous proxy or of an mbarrier."""

    def __init__(self, machine: Machine) -> None:
        self.proxy = np.zeros(machine.ordering.lanes, np.int64)
        """fence.proxy.async"""
        self.mbarrier_init = np.zeros(machine.ordering.lanes, np.int64)
        """fence.mbarrier_init"""
        self.block = np.zeros(machine.ordering.lanes, np.int64)
        """fence and membar, of block scope or wider."""


@binds("membar", "fence")
def bind_fence(binder: Binder, instruction: Instruction) -> Step:
    """Bind membar and fence. A fence of block scope publishes nothing to other blocks."""
    mods = Modifiers(instruction)
    machine = binder.machine
    mods.one_of(("sc", "acq_rel", "acquire", "release"), "sc")
    scope = mods.one_of((*SCOPES, "gl"))
    mods.finish()
    ordering, fences = machine.ordering, machine.part(Fences)

    def step(lanes: Lanes) -> None:
        now = machine.tick(instruction)
        fences.block[lanes.flat] = now
        if scope == "cta":
            ordering.fence_block(lanes.flat)
        else:
            ordering.fence(lanes.flat, now)

    return step


@binds("fence.proxy")
def bind_fence_proxy(binder: Binder, instruction: Instruction) -> Step:
    """Bind fence.proxy.async."""
    mods = Modifiers(instruction)
    mods.take("proxy")
    mods.one_of(("async",))
    mods.one_of(("global", "shared::cta", "shared::cluster"), "")
    mods.finish()
    machine, fences = binder.machine, binder.machine.part(Fences)

    def step(lanes: Lanes) -> None:
        fences.proxy[lanes.flat] = machine.tick(instruction)

    return step


@binds("fence.mbarrier_init")
def bind_fence_mbarrier_init(binder: Binder, instruction: Instruction) -> Step:
    """Bind fence.mbarrier_init.release.cluster."""
    mods = Modifiers(instruction)
    mods.take("mbarrier_init")
    mods.take("release")
    mods.take("cluster")
    mods.finish()
    machine, fences = binder.machine, binder.machine.part(Fences)

    def step(lanes: Lanes) -> None:
        fences.mbarrier_init[lanes.flat] = machine.tick(instruction)

    return step


@binds("griddepcontrol")
def bind_griddepcontrol(binder: Binder, instruction: Instruction) -> Step:
    """Bind a wait for the launch before this one. That the next one may begin changes nothing."""
    mods = Modifiers(instruction)
    space = binder.machine.global_space
    waits = mods.one_of(("wait", "launch_dependents")) == "wait"
    mods.finish()
    return lambda lanes: space.wait_for_launch_before(lanes) if waits else None


@binds("nanosleep", "prefetch", "prefetchu", "setmaxnreg", "pmevent", "cp.async.bulk.prefetch")
def bind_nothing(binder: Binder, instruction: Instruction) -> Step:
    """Bind hints on timing and caching, which change no result."""
    return lambda lanes: None


@binds("createpolicy")
def bind_createpolicy(binder: Binder, instruction: Instruction) -> Step:
    """Bind createpolicy. A cache policy is opaque, and only hints use it."""
    target: Any = binder.target(instruction.operands[0], "b64")
    return lambda lanes: target.put(lanes, DTYPES["b64"].type(0))
