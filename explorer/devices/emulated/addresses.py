"""Memory operands: addresses of the lanes, and the spaces that they lie in."""

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from explorer.devices.emulated.access import Access
from explorer.devices.emulated.binder import Binder
from explorer.devices.emulated.counters import Traffic
from explorer.devices.emulated.findings import UnsupportedPtx
from explorer.devices.emulated.lanes import Lanes
from explorer.devices.emulated.place import Place
from explorer.devices.emulated.program import (
    Address,
    Immediate,
    Operand,
    Register,
    Symbol,
)
from explorer.devices.emulated.spaces import LOCAL_WINDOW, SHARED_WINDOW, Space

if TYPE_CHECKING:
    from explorer.devices.emulated.machine import Machine

Addresses = NDArray[np.int64]
SPACES = ("global", "shared", "shared::cta", "shared::cluster", "local", "const", "param")


SCOPES = ("cta", "cluster", "gpu", "sys")


HINTS = ("L1::", "L2::")


def bind_address(binder: Binder, operand: Operand) -> Callable[[Lanes], Addresses]:
    """Addresses of the lanes, in the order of `lanes.flat`."""
    if not isinstance(operand, Address):
        raise UnsupportedPtx((f"address {operand}",))
    if isinstance(operand.base, Register):
        source = binder.source(operand.base, binder.width_of(operand.base))
        offset = np.int64(operand.offset)

        def addresses(lanes: Lanes) -> Addresses:
            values = source.each(lanes).astype(np.int64)
            return values + offset if offset else values

        return addresses
    if isinstance(operand.base, Symbol):
        constant = binder.machine.symbol_address(operand.base.name) + operand.base.offset
    else:
        assert isinstance(operand.base, Immediate)
        constant = int(operand.base.value)
    constant += operand.offset
    return lambda lanes: np.full(lanes.count, constant, np.int64)


def split_generic(
    machine: "Machine", addresses: Addresses
) -> list[tuple[Space, int, NDArray[np.bool_] | None]]:
    """The spaces that generic addresses lie in, each with its window and the lanes concerned."""
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
        if chosen.any():
            parts.append((space, window, chosen))
    return parts


def locate(
    machine: "Machine", space: str, addresses: Addresses, lanes: Lanes, access: Access
) -> list[Place]:
    """Where an instruction's accesses go, counted and checked; `space` '' is generic."""
    if space:
        target = machine.space(space)
        _count(machine, target, addresses, lanes, access)
        return target.locate(addresses, lanes, access)
    places = []
    for target, window, chosen in split_generic(machine, addresses):
        part = addresses - window if chosen is None else addresses[chosen] - window
        members = lanes if chosen is None else lanes.where(chosen)
        _count(machine, target, part, members, access)
        for place in target.locate(part, members, access):
            if chosen is not None:
                inner, place.chosen = place.chosen, chosen.copy()
                if inner is not None:
                    place.chosen[chosen] = inner
            places.append(place)
    return places


def _count(
    machine: "Machine", space: Space, addresses: Addresses, lanes: Lanes, access: Access
) -> None:
    traffic = _traffic(machine, space.name, access.action)
    if space.name == "shared":
        machine.traffic.count_wavefronts(traffic, addresses, access.size, lanes)
    else:
        machine.traffic.count_sectors(traffic, addresses, access.size, lanes)


def _traffic(machine: "Machine", space: str, action: str) -> Traffic:
    direction = "loads" if action == "read" else "stores"
    traffic: Traffic = getattr(machine.counters, f"{space}_{direction}")
    return traffic
