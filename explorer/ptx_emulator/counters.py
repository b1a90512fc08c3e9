"""Counts of what a launch did: instructions, memory traffic, bank conflicts, barriers."""

from collections import Counter
from dataclasses import dataclass, field, fields

import numpy as np
from numpy.typing import NDArray

from explorer.ptx_emulator.lanes import WARP, Lanes

SECTOR_BYTES = 32
BANKS = 32


@dataclass(slots=True)
class Traffic:
    """The accesses to one state space in one direction."""

    requests: int = 0
    """Instructions, each once for every warp that executes it."""
    bytes: int = 0
    """Bytes that the threads requested."""
    sectors: int = 0
    """Distinct 32-byte sectors of each request, summed; global and local memory only."""
    wavefronts: int = 0
    """Passes that the 32 banks need, summed; shared memory only."""
    ideal_wavefronts: int = 0
    """Passes that the same requests would need without bank conflicts."""
    widths: Counter[int] = field(default_factory=Counter)
    """Requests by the bytes that one thread accesses."""

    @property
    def sector_bytes(self) -> int:
        """Bytes of the sectors, which are what is moved."""
        return self.sectors * SECTOR_BYTES

    @property
    def bank_conflicts(self) -> int:
        """Wavefronts beyond those without conflicts."""
        return self.wavefronts - self.ideal_wavefronts

    def __add__(self, other: "Traffic") -> "Traffic":
        names = [f.name for f in fields(self)]
        return Traffic(**{name: getattr(self, name) + getattr(other, name) for name in names})


@dataclass(slots=True)
class Counters:
    """Totals of a launch. Instructions count once for each warp, as in a profiler."""

    instructions: Counter[str] = field(default_factory=Counter)
    """Warp-instructions by opcode without modifiers; ld, st, atom and red with their space."""
    thread_instructions: int = 0
    global_loads: Traffic = field(default_factory=Traffic)
    global_stores: Traffic = field(default_factory=Traffic)
    shared_loads: Traffic = field(default_factory=Traffic)
    shared_stores: Traffic = field(default_factory=Traffic)
    local_loads: Traffic = field(default_factory=Traffic)
    local_stores: Traffic = field(default_factory=Traffic)
    atomics: int = 0
    """Atomic operations of threads."""
    barriers: int = 0
    """Block barriers completed, summed over blocks."""
    cluster_barriers: int = 0
    warp_barriers: int = 0
    async_copy_bytes: int = 0

    @property
    def warp_instructions(self) -> int:
        """All instructions, each once for every warp that executes it."""
        return sum(self.instructions.values())

    def plus(self, other: "Counters") -> "Counters":
        """Return the totals of two launches."""
        pairs = {f.name: (getattr(self, f.name), getattr(other, f.name)) for f in fields(self)}
        return Counters(**{name: mine + theirs for name, (mine, theirs) in pairs.items()})


class TrafficCounter:
    """Counts the sectors and wavefronts of accesses. A pattern that repeats is worked out once."""

    def __init__(self) -> None:
        self._known_sectors: dict[bytes, int] = {}
        self._known_wavefronts: dict[tuple[int, bytes], tuple[int, int]] = {}

    def count_sectors(
        self, traffic: Traffic, addresses: NDArray[np.int64], size: int, lanes: Lanes
    ) -> None:
        """Add one global or local access of `size` bytes a lane."""
        self._count_request(traffic, size, lanes)
        whole = _by_warp(addresses, lanes)
        if whole is None:
            keys = (lanes.flat >> 5).astype(np.int64) << 48 | addresses >> 5
            traffic.sectors += len(np.unique(keys))
            return
        relative = whole - (whole[:, :1] & ~np.int64(SECTOR_BYTES - 1))
        if (relative == relative[0]).all():
            key = relative[0].tobytes()
            if key not in self._known_sectors:
                self._known_sectors[key] = len(np.unique(relative[0] >> 5))
            traffic.sectors += self._known_sectors[key] * len(whole)
            return
        ordered = np.sort(whole >> 5, axis=1)
        traffic.sectors += len(whole) + int(np.count_nonzero(np.diff(ordered, axis=1)))

    def count_wavefronts(
        self, traffic: Traffic, addresses: NDArray[np.int64], size: int, lanes: Lanes
    ) -> None:
        """Add one shared access of `size` bytes a lane."""
        self._count_request(traffic, size, lanes)
        whole = _by_warp(addresses, lanes)
        if whole is None:
            for members in np.split(addresses, np.flatnonzero(np.diff(lanes.flat >> 5)) + 1):
                self._add(traffic, members - (members[0] & ~3), size, 1)
            return
        relative = whole - (whole[:, :1] & ~np.int64(3))
        if (relative == relative[0]).all():
            self._add(traffic, relative[0], size, len(whole))
            return
        for row in relative:
            self._add(traffic, row, size, 1)

    def _count_request(self, traffic: Traffic, size: int, lanes: Lanes) -> None:
        traffic.requests += lanes.warps
        traffic.bytes += lanes.count * size
        traffic.widths[size] += lanes.warps

    def _add(self, traffic: Traffic, relative: NDArray[np.int64], size: int, times: int) -> None:
        # Adding a multiple of 4 bytes to all addresses only renames the banks.
        key = (size, relative.tobytes())
        if key not in self._known_wavefronts:
            self._known_wavefronts[key] = wavefronts(relative, size)
        needed, ideal = self._known_wavefronts[key]
        traffic.wavefronts += needed * times
        traffic.ideal_wavefronts += ideal * times


def _by_warp(addresses: NDArray[np.int64], lanes: Lanes) -> NDArray[np.int64] | None:
    """Return the addresses as (warps, lanes of each) if all warps here have equally many."""
    if lanes.full:
        return addresses.reshape(-1, WARP)
    if isinstance(lanes.box, tuple):
        width = len(range(*lanes.box[2].indices(WARP)))
        return addresses.reshape(-1, width)
    return None


def wavefronts(addresses: NDArray[np.int64], size: int) -> tuple[int, int]:
    """Return the passes needed, and those without conflicts, for accesses of `size` bytes a lane.

    `addresses` are those of one warp. Accesses of 8 bytes go in halves of a warp, of 16 bytes in
    quarters. Lanes that access the same 4-byte word share a pass.
    """
    words_each = max(1, size // 4)
    group = WARP // words_each
    needed = ideal = 0
    for start in range(0, len(addresses), group):
        first = addresses[start : start + group] >> 2
        words = np.unique((first[:, None] + np.arange(words_each)).reshape(-1))
        needed += int(np.bincount(words % BANKS, minlength=BANKS).max())
        ideal += -(-len(words) // BANKS)
    return needed, ideal
