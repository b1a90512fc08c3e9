"""Shadow memory: who last wrote and read each word, to find races and reads of nothing.

A stamp is an access's time in the upper 32 bits and its thread's number plus one in the lower.
"""

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from explorer.devices.emulated.access import Access
from explorer.devices.emulated.findings import Kind
from explorer.devices.emulated.lanes import Lanes
from explorer.devices.emulated.readers import THREAD, Indices, Readers, Stamps

if TYPE_CHECKING:
    from explorer.devices.emulated.machine import Machine


PENDING_TIME = np.int64(0x7FFFFFFF)
"""The time of words that an asynchronous copy will write: later than all barriers."""


class Shadow:
    """The shadow of one space or allocation of `size` bytes, in words of `granule` bytes."""

    def __init__(
        self, machine: "Machine", size: int, granule: int, *, race: Kind, empty: Kind | None
    ) -> None:
        self._machine = machine
        self._granule = granule
        self._race = race
        self._empty = empty
        """The kind of a read of a word that nothing wrote; None where all are initialised."""
        self._words = -(-size // 32) * 32 // granule
        self.write: Stamps = np.zeros(self._words, np.int64)
        self.readers = Readers(self._words, machine)
        self._atomic: Stamps | None = None
        self.initialised: NDArray[np.bool_] | None = None
        self.once = ""
        """The name of an output whose words may be stored once only."""

    def words(self, index: Indices, size: int) -> tuple[Indices, int]:
        """Rows of the shadow, and words a row, for accesses of `size` bytes at byte `index`."""
        width = max(1, size // self._granule)
        return index // (width * self._granule), width

    def _rows(self, stamps: Stamps, rows: Indices, width: int) -> Stamps:
        return np.take(stamps.reshape(-1, width), rows, axis=0)

    def _threshold(self) -> int:
        """Stamps below it are ordered by a block barrier for whoever can see this memory."""
        machine = self._machine
        if self._race is Kind.GLOBAL_RACE or machine.cluster_size > 1 or machine.asynchronous.used:
            return 1
        return (machine.ordering.oldest_block_sync + 1) << 32

    def _codes(self, lanes: Lanes) -> Stamps:
        return (lanes.flat + (1 + self._machine.first_lane))[:, None]

    def load(self, index: Indices, lanes: Lanes, access: Access, now: int) -> None:
        """Note and check a read."""
        rows, width = self.words(index, access.size)
        codes = self._codes(lanes)
        written = self._rows(self.write, rows, width)
        self._check(written, codes, lanes, access, "read", "write")
        atomic = None
        if self._atomic is not None:
            atomic = self._rows(self._atomic, rows, width)
            if not access.strong:
                self._check(atomic, codes, lanes, access, "read", "atomic")
        if self._empty is not None:
            self._check_initialised(written, atomic, rows, width, lanes, access)
        if not access.strong:
            self.readers.note(rows, width, codes, now, self._threshold())

    def store(
        self, index: Indices, lanes: Lanes, access: Access, now: int
    ) -> NDArray[np.bool_] | None:
        """Note and check a write; returns the lanes overwritten by another of this instruction."""
        rows, width = self.words(index, access.size)
        codes = self._codes(lanes)
        written = self._rows(self.write, rows, width)
        self._check(written, codes, lanes, access, "write", "write")
        self._check_readers(rows, width, codes, lanes, access)
        if self._atomic is not None and not access.strong:
            self._check(
                self._rows(self._atomic, rows, width), codes, lanes, access, "write", "atomic"
            )
        if self.once and written.any():
            self._report_rewritten(written, lanes, access)
        lost = self._note_write(rows, width, codes, now)
        if self.once and lost is not None:
            self._report_rewritten(now << 32 | lost[:, None], lanes, access)
        return lost

    def atomic(
        self, index: Indices, lanes: Lanes, access: Access, now: int, *, reads: bool
    ) -> None:
        """Note and check an atomic or strong write; atomics do not race with one another."""
        rows, width = self.words(index, access.size)
        codes = self._codes(lanes)
        written = self._rows(self.write, rows, width)
        self._check(written, codes, lanes, access, "atomic", "write")
        self._check_readers(rows, width, codes, lanes, access)
        if self._atomic is None:
            self._atomic = np.zeros(self._words, np.int64)
        if reads and self._empty is not None:
            earlier = self._rows(self._atomic, rows, width)
            self._check_initialised(written, earlier, rows, width, lanes, access)
        self._atomic.reshape(-1, width)[rows] = now << 32 | codes

    def mark(self, index: Indices, size: int, stamps: Any) -> None:
        """Set the last writer of whole ranges without a check."""
        rows, width = self.words(index, size)
        self.write.reshape(-1, width)[rows] = np.asarray(stamps)[..., None]

    def written_bytes(self) -> NDArray[np.bool_]:
        """One flag a byte: written in this launch."""
        touched = self.write != 0
        if self._atomic is not None:
            touched |= self._atomic != 0
        return np.repeat(touched, self._granule)

    # Checks.

    def _check(
        self, prior: Stamps, codes: Stamps, lanes: Lanes, access: Access, verb: str, earlier: str
    ) -> None:
        suspicious = prior >= self._threshold()
        if not suspicious.any():
            return
        suspicious &= (prior & THREAD) != codes
        if suspicious.any():
            self._examine(prior, suspicious, lanes, access, verb, earlier)

    def _examine(
        self,
        prior: Stamps,
        suspicious: NDArray[np.bool_],
        lanes: Lanes,
        access: Access,
        verb: str,
        earlier: str,
    ) -> None:
        machine = self._machine
        places, _ = np.nonzero(suspicious)
        stamps = prior[suspicious]
        when = stamps >> 32
        who = (stamps & THREAD) - 1 - machine.first_lane
        now = lanes.flat[places]
        # What the copy engine writes is pending until it lands, and unknown until waited for.
        pending = when == PENDING_TIME
        if earlier == "write":
            landed = who == machine.ordering.async_lane
            pending |= landed & ~machine.ordering.ordered(who, when, now)
        if pending.any():
            machine.asynchronous.report_pending(access, verb, now[pending], stamps[pending])
        bad = ~pending & ~machine.ordering.ordered(who, when, now)
        if bad.any():
            first = int(np.argmax(bad))
            self._report_race(
                access,
                verb,
                earlier,
                int(now[first]),
                int(who[first]),
                int(when[first]),
                int(np.count_nonzero(bad)),
            )

    def _report_race(
        self, access: Access, verb: str, earlier: str, lane: int, who: int, when: int, count: int
    ) -> None:
        machine = self._machine
        other = machine.instruction_at(when)
        where = f" at {other.source or f'PTX line {other.ptx_line}'}"
        message = (
            f"{verb} of {access.size} bytes races with the {earlier} by "
            f"{machine.describe_lane(who)}{where}"
        )
        machine.report(
            self._race,
            message,
            access.instruction,
            lane,
            other=other,
            count=count,
            key=(verb, earlier),
        )

    def _check_readers(
        self, rows: Indices, width: int, codes: Stamps, lanes: Lanes, access: Access
    ) -> None:
        for prior in self.readers.of(rows, width):
            self._check(prior, codes, lanes, access, access.action, "read")

    def _check_initialised(
        self,
        written: Stamps,
        atomic: Stamps | None,
        rows: Indices,
        width: int,
        lanes: Lanes,
        access: Access,
    ) -> None:
        empty = written == 0
        if not empty.any():
            return
        if atomic is not None:
            empty &= atomic == 0
        if self.initialised is not None:
            empty &= ~np.take(self.initialised.reshape(-1, width), rows, axis=0)
        bad = empty.any(axis=1)
        if bad.any() and self._empty is not None:
            self._machine.report(
                self._empty,
                "read of memory that nothing wrote",
                access.instruction,
                int(lanes.flat[int(np.argmax(bad))]),
                count=int(np.count_nonzero(bad)),
            )

    def _report_rewritten(self, written: Stamps, lanes: Lanes, access: Access) -> None:
        again = (written & THREAD != 0).any(axis=1)
        first = int(np.argmax(again))
        self._machine.report(
            Kind.WRITTEN_TWICE,
            f"{self.once} is written a second time",
            access.instruction,
            int(lanes.flat[first]),
            other=self._machine.instruction_at(int(written[first].max() >> 32)),
            count=int(np.count_nonzero(again)),
        )

    # Notes.

    def _note_write(
        self, rows: Indices, width: int, codes: Stamps, now: int
    ) -> NDArray[np.bool_] | None:
        stamps = now << 32 | codes
        view = self.write.reshape(-1, width)
        view[rows] = stamps
        lost = (np.take(view, rows, axis=0) != stamps).any(axis=1)
        return lost if lost.any() else None
