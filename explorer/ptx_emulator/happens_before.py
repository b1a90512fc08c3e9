"""Which accesses happen before which: what each thread knows of the past of the others.

Every access has a time, which is its number in the order of execution. Full barriers of a warp, a
block or a cluster are kept as one time each. Finer synchronisation (partial warp barriers, named
barriers, mbarriers, flags in memory) gives a thread a row: for every lane of the batch the time up
to which the accesses of that lane are known to it. A row is a vector clock, stored only where it is
needed. PTX ISA, chapter "Memory Consistency Model".
"""

from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from explorer.ptx_emulator.lanes import WARP, all_of

Row = NDArray[np.int64]
LaneIds = NDArray[np.intp]

KEPT_BYTES = 2**26
"""Bytes of rows that are kept only because the threads which spin would need them again."""

LEAST_ROWS = 128
"""Rows of a batch up to which none is forgotten: of 16384 lanes they take 16 MB."""


class HappensBefore:
    """The happens-before relation within one batch of blocks."""

    def __init__(
        self,
        blocks: int,
        warps: int,
        threads: int,
        cluster_size: int,
        *,
        earlier_known: bool = False,
    ) -> None:
        """Start a batch of `blocks` blocks of `threads` threads in `warps` warps.

        With `earlier_known`, what the blocks of earlier batches did is taken to be known.
        """
        self._earlier_known = earlier_known
        self.lanes = blocks * warps * WARP
        self.async_lane = self.lanes
        """The pseudo-lane that stands for the asynchronous copy engine."""
        self.per_block = warps * WARP
        self._threads = threads
        self.cluster_size = cluster_size
        self.block_of: LaneIds = np.repeat(np.arange(blocks), self.per_block)
        """For each lane: its block. A division of many lanes takes ten times as long."""
        self.block_sync = np.zeros(blocks, np.int64)
        self.warp_sync = np.zeros(blocks * warps, np.int64)
        self.cluster_sync = np.zeros(self.lanes, np.int64)
        """For each lane: what its cluster did before this time is known to it."""
        self.cluster_met = np.zeros(self.lanes, np.int64)
        """For each lane: when its cluster last met, whether or not that ordered memory."""
        self.engine_used = False
        """Whether the kernel has copies by an engine, which no barrier of threads orders."""
        self._settled_blocks = 0
        self._settled_clusters = 0
        self._rows: list[Row] = [np.zeros(self.lanes + 1, np.int64)]
        self._most_rows = LEAST_ROWS
        """Rows beyond which those that no lane has are forgotten."""
        self._row_of = np.zeros(self.lanes, np.int32)
        self.fenced = False
        """Whether any thread has executed a fence."""
        self.fence_time = np.zeros(self.lanes, np.int64)
        self._fence_row = np.zeros(self.lanes, np.int32)
        self._fence_barriers = np.zeros((self.lanes, 3), np.int64)
        self.most_kept = max(1, KEPT_BYTES // (8 * (self.lanes + 1)))
        """How many rows these are."""
        self._fenced_of: dict[int, tuple[int, Row | None]] = {}
        """For each lane the last result of `fenced_knowledge`, and the state it is of."""
        self._fences = np.zeros(blocks, np.int64)
        """For each block how often its threads have passed fences or its barrier."""
        self._seen: dict[int, Row] = {}
        self._seen_by_block: dict[int, Row] = {}
        self._seen_near: dict[int, Row] = {}
        """What a relaxed wait of each lane saw within its block, until a fence of any scope."""

    @property
    def settled(self) -> int:
        """The time up to which every thread knows what the threads of its cluster did."""
        return self._settled_clusters if self.cluster_size > 1 else self._settled_blocks

    @property
    def _rows_used(self) -> bool:
        return len(self._rows) > 1

    def ordered(self, before: LaneIds, when: Row, now: LaneIds) -> NDArray[np.bool_]:
        """Return whether lane before[i]'s access at when[i] happens before lane now[i]'s next."""
        block = self.block_of[now]
        known = _within(before, block * self.per_block, self.per_block)
        known &= when <= self.block_sync[block]
        known |= before == now
        if not all_of(known):
            left = np.flatnonzero(~known)
            known[left] = self._ordered_otherwise(before[left], when[left], now[left])
        return np.asarray(known)

    def _ordered_otherwise(self, before: LaneIds, when: Row, now: LaneIds) -> NDArray[np.bool_]:
        """Return the same for accesses that no full barrier of the block orders."""
        warp = now >> 5
        known = (before >> 5 == warp) & (when <= self.warp_sync[warp])
        if self.cluster_size > 1:
            cluster = self.per_block * self.cluster_size
            first = self.block_of[now] // self.cluster_size * cluster
            known |= _within(before, first, cluster) & (when <= self.cluster_sync[now])
        if self._earlier_known:
            known |= before < 0
        if self._rows_used and not all_of(known):
            left = np.flatnonzero(~known & (before >= 0) & (before <= self.lanes))
            row_of = self._row_of[now[left]]
            order = np.argsort(row_of, kind="stable")
            left, row_of = left[order], row_of[order]
            starts = np.flatnonzero(np.diff(row_of, prepend=-1))
            for chosen, row in zip(np.split(left, starts[1:]), row_of[starts], strict=True):
                known[chosen] = self._rows[row][before[chosen]] >= when[chosen]
        return np.asarray(known)

    # Full barriers.

    def sync_blocks(self, blocks: LaneIds, now: int) -> None:
        """Note that all threads of these blocks have met."""
        self.block_sync[blocks] = now
        self._fences[blocks] += 1
        self._settled_blocks = int(self.block_sync.min())
        if self.cluster_size > 1:
            each = self.cluster_sync.reshape(-1, self.per_block)
            each[blocks] = each[blocks].max(axis=1, keepdims=True)
        for lane, row in self._seen.items():
            block = lane // self.per_block
            if block in blocks:
                earlier = self._seen_by_block.get(block)
                self._seen_by_block[block] = row if earlier is None else np.maximum(earlier, row)
        if self._rows_used:
            for block in blocks:
                first = int(block) * self.per_block
                self._share(np.arange(first, first + self.per_block))

    def sync_warps(self, warps: LaneIds, now: int) -> None:
        """Note that all 32 lanes of these warps have met."""
        self.warp_sync[warps] = now
        if self.cluster_size > 1:
            each = self.cluster_sync.reshape(-1, WARP)
            each[warps] = each[warps].max(axis=1, keepdims=True)
        if self._rows_used:
            for warp in warps:
                self._share(np.arange(int(warp) * WARP, (int(warp) + 1) * WARP))

    def sync_clusters(self, lanes: LaneIds, met: int, *, relaxed: bool) -> None:
        """Note that the clusters of these lanes met at time `met`; relaxed, it orders no memory."""
        self.cluster_met[lanes] = met
        if relaxed:
            return
        self.cluster_sync[lanes] = np.maximum(self.cluster_sync[lanes], met)
        threads = self.cluster_sync.reshape(-1, self.per_block)[:, : self._threads]
        self._settled_clusters = int(threads.min())

    def _share(self, lanes: LaneIds) -> None:
        """Give these lanes what any of them knows; a full barrier covers their own past."""
        ids = np.unique(self._row_of[lanes])
        if len(ids) > 1:
            joined = np.maximum.reduce([self._rows[i] for i in ids])
            self._row_of[lanes] = self._keep(joined)

    def _keep(self, row: Row) -> int:
        self._rows.append(row)
        if len(self._rows) > self._most_rows:
            self._collect()
        return len(self._rows) - 1

    def _collect(self) -> None:
        """Forget rows that no lane has any more, except the first (zeros) and the last (new).

        Row numbers change.
        """
        last = self._rows.pop()
        used, row_of = np.unique(
            np.concatenate([self._row_of, self._fence_row, [0]]), return_inverse=True
        )
        self._rows = [self._rows[i] for i in used]
        self._row_of = row_of[: self.lanes].astype(np.int32)
        self._fence_row = row_of[self.lanes : -1].astype(np.int32)
        self._rows.append(last)
        self._most_rows = LEAST_ROWS + 2 * len(self._rows)

    # Synchronisation of some lanes.

    def knowledge(self, lane: int, now: int) -> Row:
        """Return a new row: all that `lane` knows at time `now`, its own past included."""
        return self._known(lane, now, self._row_of[lane], self._barriers(np.array([lane]))[0])

    def _barriers(self, lanes: LaneIds) -> NDArray[np.int64]:
        """For each lane the times of its last warp, block and cluster barrier."""
        times = self.warp_sync[lanes >> 5], self.block_sync[self.block_of[lanes]]
        return np.stack([*times, self.cluster_sync[lanes]], axis=1)

    def _known(self, lane: int, now: int, row_id: int, barriers: NDArray[np.int64]) -> Row:
        row = self._rows[row_id].copy()
        cluster = self.per_block * self.cluster_size
        for size, when in zip((WARP, self.per_block, cluster), barriers, strict=True):
            part = row[lane // size * size : min((lane // size + 1) * size, self.lanes)]
            np.maximum(part, when, out=part)
        row[lane] = now
        return row

    def sync_some(self, lanes: LaneIds, now: int) -> None:
        """Note that exactly these lanes have met."""
        joined = np.maximum.reduce([self._rows[i] for i in np.unique(self._row_of[lanes])])
        # Lanes of one warp share its times, so one lane of each warp stands for them.
        for lane in {int(lane) >> 5: int(lane) for lane in lanes}.values():
            np.maximum(joined, self.knowledge(lane, now), out=joined)
        joined[lanes] = now
        self.cluster_sync[lanes] = self.cluster_sync[lanes].max()
        self._row_of[lanes] = self._keep(joined)

    def acquire(self, lanes: LaneIds, row: Row) -> None:
        """Let these lanes know what `row` says."""
        row_of = self._row_of[lanes]
        # Taken before a new row is kept, which may change the numbers of the others.
        earlier = [(row_id, self._rows[row_id]) for row_id in np.unique(row_of).tolist()]
        for row_id, known in earlier:
            if not all_of(known >= row):
                self._row_of[lanes[row_of == row_id]] = self._keep(np.maximum(known, row))

    # Fences give strength to the relaxed accesses around them.

    def fence(self, lanes: LaneIds, now: int) -> None:
        """Note a fence of gpu or system scope: what relaxed reads saw is known from here on."""
        self.fence_block(lanes)
        self._know(self._seen, lanes)
        for block, row in self._seen_by_block.items():
            # One thread saw the flag, a block barrier followed, and now the others fence.
            members = lanes[self.block_of[lanes] == block]
            if len(members):
                self.acquire(members, row)
        self.fenced = True
        self._fences[np.unique(self.block_of[lanes])] += 1
        self.fence_time[lanes] = now
        self._fence_row[lanes] = self._row_of[lanes]
        self._fence_barriers[lanes] = self._barriers(lanes)

    def fence_block(self, lanes: LaneIds) -> None:
        """Note a fence of block scope: what relaxed waits saw of their own block is known."""
        self._know(self._seen_near, lanes)

    def _know(self, seen: dict[int, Row], lanes: LaneIds) -> None:
        """Let these lanes know what they have seen, which is noted no longer."""
        for lane in seen.keys() & set(lanes.tolist()) if seen else ():
            self.acquire(np.array([lane]), seen.pop(lane))

    def fenced_knowledge(self, lane: int) -> Row | None:
        """Return what a relaxed write of `lane` publishes: what it knew at its last fence.

        Threads of its block that fenced before a block barrier are covered up to their fence. It
        is the same object, not to be changed, as long as nothing of it changes: threads that spin
        ask for it again and again.
        """
        state = int(self._fences[self.block_of[lane]])
        known = self._fenced_of.get(lane)
        if known is None or known[0] != state:
            if len(self._fenced_of) >= self.most_kept:
                self._fenced_of.clear()
            known = self._fenced_of[lane] = state, self._fenced_knowledge(lane)
        return known[1]

    def _fenced_knowledge(self, lane: int) -> Row | None:
        when = int(self.fence_time[lane])
        block = lane // self.per_block
        threads = slice(block * self.per_block, (block + 1) * self.per_block)
        past = np.minimum(self.fence_time[threads], self.block_sync[block])
        if when == 0 and not past.any():
            return None
        row = self._rows[0].copy()
        if when:
            row = self._known(lane, when, self._fence_row[lane], self._fence_barriers[lane])
        np.maximum(row[threads], past, out=row[threads])
        return row

    def see(self, lanes: Iterable[int], row: Row) -> None:
        """Note that a relaxed read saw what was published; a later fence makes it known."""
        _note(self._seen, lanes, row)

    def see_near(self, lanes: Iterable[int], row: Row) -> None:
        """Note the same within the block, where a fence of block scope makes it known as well."""
        _note(self._seen_near, lanes, row)


def _note(seen: dict[int, Row], lanes: Iterable[int], row: Row) -> None:
    """Add `row` to what each of these lanes has seen."""
    for lane in lanes:
        before = seen.get(lane)
        if before is not None and before is not row:
            # Kept as the same object where it says all, so that who spins adds nothing again.
            joined = np.maximum(before, row)
            seen[lane] = row if all_of(joined == row) else joined
        elif before is None:
            seen[lane] = row


def _within(lanes: LaneIds, first: LaneIds, size: int) -> NDArray[np.bool_]:
    """Return which lanes are of the `size` that begin with first[i]; a lane may be negative."""
    return np.asarray((lanes - first).view(np.uint64) < size)
