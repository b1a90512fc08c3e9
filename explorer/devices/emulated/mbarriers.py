"""mbarrier objects: phases of arrivals and of bytes that asynchronous copies bring.

PTX ISA, "mbarrier". A phase completes when the arrivals and the bytes that it expects have come;
the copies that it tracks land then, and are known to the threads that see it complete.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from explorer.devices.emulated.findings import Kind
from explorer.devices.emulated.ordering import LaneIds, Row
from explorer.devices.emulated.program import Instruction

if TYPE_CHECKING:
    from explorer.devices.emulated.machine import Machine


@dataclass(slots=True)
class Mbarrier:
    """One object in shared memory."""

    count: int
    pending: int
    row: Row
    """What the arrivals made known."""
    opener: int
    """The lane that initialised it."""
    opened: int
    """When it did."""
    known: NDArray[np.bool_]
    """For each lane: whether it is known to know that."""
    phase: int = 0
    bytes_due: int = 0
    landings: list[Callable[[int], None]] = field(default_factory=list)
    """Copies to carry out when the phase completes, given the time."""


class Mbarriers:
    """The mbarrier objects of a batch, by their place in its shared memory."""

    def __init__(self, machine: "Machine") -> None:
        self._machine = machine
        self._objects: dict[int, Mbarrier] = {}
        self.fenced = np.zeros(machine.ordering.lanes, np.int64)
        """For each lane, the time of its last fence.mbarrier_init."""

    def init(self, place: int, count: int, lane: int, now: int) -> None:
        """A new object that expects `count` arrivals a phase."""
        lanes = self._machine.ordering.lanes
        known = np.zeros(lanes, np.bool_)
        known[lane] = True
        row = np.zeros(lanes + 1, np.int64)
        self._objects[place] = Mbarrier(count, count, row, lane, now, known)

    def tell(self, lanes: LaneIds, fenced: NDArray[np.int64]) -> None:
        """These lanes learn of what lane i initialised before fenced[i]."""
        for barrier in self._objects.values():
            if barrier.opened < fenced[barrier.opener]:
                barrier.known[lanes] = True

    def remove(self, place: int) -> None:
        """The object is no more."""
        self._objects.pop(place, None)

    def get(self, place: int, instruction: Instruction, lanes: LaneIds) -> Mbarrier | None:
        """The object at a place for these lanes; what is not initialised is reported."""
        found = self._objects.get(place)
        if found is None:
            message = "operation on an mbarrier that is not initialised"
            self._machine.report(
                Kind.MBARRIER, message, instruction, int(lanes[0]), count=len(lanes)
            )
        elif not found.known[lanes].all():
            self._check_known(found, instruction, lanes)
        return found

    def _check_known(self, barrier: Mbarrier, instruction: Instruction, lanes: LaneIds) -> None:
        opener = np.full(len(lanes), barrier.opener)
        opened = np.full(len(lanes), barrier.opened, np.int64)
        known = barrier.known[lanes] | self._machine.ordering.ordered(opener, opened, lanes)
        if not known.all():
            message = "operation on an mbarrier whose initialisation may not be known to the thread"
            lane = int(lanes[int(np.argmin(known))])
            self._machine.report(Kind.MBARRIER, message, instruction, lane)
        barrier.known[lanes] = True

    def check_engine(self, barrier: Mbarrier, at: Instruction, lane: int) -> None:
        """The copy engine knows of an object once the lane that made it has passed a fence."""
        fences = (self.fenced, self._machine.proxy_fences)
        if all(fenced[barrier.opener] <= barrier.opened for fenced in fences):
            message = (
                "a bulk copy is counted by an mbarrier that was initialised without "
                "fence.mbarrier_init or fence.proxy.async"
            )
            self._machine.report(Kind.ASYNC_PROXY, message, at, lane)

    def arrive(self, barrier: Mbarrier, count: int, row: Row, at: Instruction, lane: int) -> None:
        """`count` arrivals that make `row` known."""
        if count > barrier.pending:
            message = "more arrivals at an mbarrier than its phase expects"
            self._machine.report(Kind.MBARRIER, message, at, lane)
            return
        np.maximum(barrier.row, row, out=barrier.row)
        barrier.pending -= count
        self.settle(barrier, at)

    def settle(self, barrier: Mbarrier, at: Instruction) -> None:
        """Complete the phase if nothing is due any more."""
        if barrier.pending or barrier.bytes_due:
            return
        now = self._machine.tick(at)
        for land in barrier.landings:
            land(now)
        if barrier.landings:
            barrier.row[self._machine.ordering.async_lane] = now
        barrier.landings.clear()
        barrier.phase += 1
        barrier.pending = barrier.count
        self._machine.progress = True
