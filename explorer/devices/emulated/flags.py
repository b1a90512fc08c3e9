"""Synchronisation through memory: strong loads, stores and atomics on flags.

A releasing write publishes what its thread knows; a relaxed one, what it knew at its last fence. An
acquiring read learns it at once; a relaxed one, at the thread's next fence.
"""

from typing import TYPE_CHECKING

import numpy as np

from explorer.devices.emulated.access import Access
from explorer.devices.emulated.ordering import LaneIds
from explorer.devices.emulated.place import Place

if TYPE_CHECKING:
    from explorer.devices.emulated.machine import Machine


class Flags:
    """One strong instruction as an end of synchronisation."""

    def __init__(self, machine: "Machine", order: str, access: Access) -> None:
        self._machine = machine
        self._acquires = order in ("acquire", "acq_rel")
        self._releases = order in ("release", "acq_rel")
        self._access = access

    def loaded(self, place: Place) -> None:
        """Lanes have read their locations."""
        if not self._machine.published:
            return
        keys = self._keys(place)
        for key in np.unique(keys):
            self._learn(int(key), place.lanes.flat[keys == key])

    def stored(self, place: Place, now: int) -> None:
        """Lanes have written their locations."""
        if self._publishes():
            lanes = place.lanes.flat.tolist()
            for key, lane in zip(self._keys(place).tolist(), lanes, strict=True):
                self._publish(key, lane, now)

    def exchanged(self, place: Place, now: int) -> None:
        """Lanes have read and written their locations, one after another."""
        if not self._publishes():
            self.loaded(place)
            return
        for key, lane in zip(self._keys(place).tolist(), place.lanes.flat.tolist(), strict=True):
            self._learn(key, np.array([lane]))
            self._publish(key, lane, now)

    def _publishes(self) -> bool:
        return self._releases or self._machine.ordering.fenced

    def _learn(self, key: int, lanes: LaneIds) -> None:
        row = self._machine.published.get(key)
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
            self._machine.publish(key, row, keep=self._access.action == "atomic")

    def _keys(self, place: Place) -> LaneIds:
        """The locations, told apart from equal indices of other memories."""
        start: int = place.data.__array_interface__["data"][0]
        return place.index + start
