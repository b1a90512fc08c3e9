"""The readers of each word of memory, for writes that come too soon after.

Two are kept, of different warps where there are such: a writer races with some reader exactly if it
races with one of them, unless partial warp barriers order only the kept ones.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from explorer.devices.emulated.machine import Machine

Stamps = NDArray[np.int64]
Indices = NDArray[np.int64]

THREAD = np.int64(0xFFFFFFFF)
"""The part of a stamp that tells the thread."""


class Readers:
    """The last reader of each word, and another one."""

    def __init__(self, words: int, machine: "Machine") -> None:
        self._machine = machine
        self._words = words
        self._last: Stamps | None = None
        self._other: Stamps | None = None

    def of(self, rows: Indices, width: int) -> Iterator[Stamps]:
        """Stamps of the kept readers of rows of `width` words."""
        for stamps in (self._last, self._other):
            if stamps is not None:
                yield np.take(stamps.reshape(-1, width), rows, axis=0)

    def note(self, rows: Indices, width: int, codes: Stamps, now: int, threshold: int) -> None:
        """Threads read rows of words; readers with stamps below `threshold` are of no use."""
        if self._last is None or self._other is None:
            self._last = np.zeros(self._words, np.int64)
            self._other = np.zeros(self._words, np.int64)
        view, others = self._last.reshape(-1, width), self._other.reshape(-1, width)
        earlier = np.take(view, rows, axis=0)
        foreign = (earlier >= threshold) & ((earlier & THREAD) != codes)
        if foreign.any():
            self._keep_other(others, rows, earlier, foreign, codes, threshold)
        stamps = now << 32 | codes
        view[rows] = stamps
        latest = np.take(view, rows, axis=0)
        lost = latest != stamps
        if lost.any():
            self._keep_other(
                others, rows, np.broadcast_to(stamps, lost.shape), lost, latest & THREAD, threshold
            )

    def _keep_other(
        self,
        others: Stamps,
        rows: Indices,
        stamps: Stamps,
        chosen: NDArray[np.bool_],
        latest: Stamps,
        threshold: int,
    ) -> None:
        """Keep `stamps` as second readers, those of another warp than `latest` by preference."""
        first = self._machine.first_lane + 1
        warp = ((latest & THREAD) - first) >> 5
        same_warp = ((stamps & THREAD) - first) >> 5 == warp
        kept = np.take(others, rows, axis=0)
        kept_useful = (kept >= threshold) & (((kept & THREAD) - first) >> 5 != warp)
        for group in (chosen & same_warp & ~kept_useful, chosen & ~same_warp):
            places, columns = np.nonzero(group)
            if len(places):
                others[rows[places], columns] = stamps[places, columns]
