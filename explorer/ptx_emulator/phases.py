"""Which phases of mbarriers a thread knows to be over, when it sends bytes that one counts.

Stores of two senders are not ordered. Bytes of a sender that cannot know that the phase before is
over may be counted in that phase, whatever the order in which they came here. It knows so if it has
waited for that phase, if who has waited for it happens before, or if that was told by what it has
waited for: whoever arrives, or sends, tells what it knows. PTX ISA, "mbarrier", "st.async".
"""

from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from explorer.ptx_emulator.batch import Batch
from explorer.ptx_emulator.happens_before import LaneIds
from explorer.ptx_emulator.lanes import all_of, distinct

MOST_WAITS = 64
"""Waits of a block that are remembered: those of many phases."""

Facts = Mapping[int, int]
"""How many phases are over, by the place of the mbarrier."""


@dataclass(frozen=True, slots=True)
class _Wait:
    """Some lanes that have seen a phase complete, and what they know by that."""

    lanes: LaneIds
    """In ascending order."""
    when: int
    facts: Facts


class Phases:
    """What the threads of a batch know of phases."""

    def __init__(self, batch: Batch) -> None:
        self._ordering = batch.ordering
        self._waits: dict[int, deque[_Wait]] = {}
        """By block, the latest last."""

    def waited(self, lanes: LaneIds, when: int, place: int, phases: int, told: Facts) -> None:
        """Note that lanes of a block saw that an mbarrier has completed so many phases.

        `told` is what that tells besides.
        """
        waits = self._waits.setdefault(int(self._ordering.block_of[lanes[0]]), _none())
        waits.append(_Wait(np.sort(lanes), when, merged(told, {place: phases})))

    def known(self, lanes: LaneIds, other: int | None = None) -> Iterator[tuple[LaneIds, Facts]]:
        """Yield what lanes know by waits of their own blocks, and of block `other`."""
        if not self._waits:
            yield lanes, {}
            return
        blocks = self._ordering.block_of[lanes]
        for block in distinct(blocks).tolist():
            some = lanes[blocks == block]
            near = {block} if other is None else {block, other}
            waits = [wait for b in near for wait in self._waits.get(b, ())]
            knows = np.array([self._knows(some, wait) for wait in waits]).reshape(-1, len(some))
            each = [some] if all_of(knows) else np.split(some, len(some))
            for place, alike in enumerate(each):
                facts: Facts = {}
                for wait, who in zip(waits, knows, strict=True):
                    facts = merged(facts, wait.facts) if who[place] else facts
                yield alike, facts

    def _knows(self, lanes: LaneIds, wait: _Wait) -> NDArray[np.bool_]:
        """Return which lanes have waited themselves, or come after a lane that has."""
        places = np.minimum(wait.lanes.searchsorted(lanes), len(wait.lanes) - 1)
        known = wait.lanes[places] == lanes  # isin() takes ten times as long for so few
        for place in np.flatnonzero(~known).tolist():
            now = np.full(len(wait.lanes), lanes[place])
            when = np.full(len(wait.lanes), wait.when)
            known[place] = self._ordering.ordered(wait.lanes, when, now).any()
        return np.asarray(known)


def _none() -> deque[_Wait]:
    return deque(maxlen=MOST_WAITS)


def merged(first: Facts, second: Facts) -> Facts:
    """Return what either says."""
    return {place: max(first.get(place, 0), second.get(place, 0)) for place in {*first, *second}}
