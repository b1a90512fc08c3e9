"""What threads know of one another stays known when rows that nobody has are forgotten."""

import numpy as np

from explorer.ptx_emulator import happens_before
from explorer.ptx_emulator.happens_before import HappensBefore

BLOCKS, WARPS, THREADS = 2, 2, 64
LANES = BLOCKS * THREADS


def known_after(events, least_rows, monkeypatch):
    """What each lane knows of each other at the end, and the most rows that were kept."""
    monkeypatch.setattr(happens_before, "LEAST_ROWS", least_rows)
    order = HappensBefore(BLOCKS, WARPS, THREADS, cluster_size=1)
    most = 0
    for now, (kind, lanes, lane) in enumerate(events, start=1):
        if kind == "meet":
            order.sync_some(lanes, now)
        elif kind == "acquire":
            order.acquire(lanes, order.knowledge(lane, now))
        elif kind == "fence":
            order.fence(lanes, now)
        elif (row := order.fenced_knowledge(lane)) is not None:
            order.acquire(lanes, row)
        most = max(most, len(order._rows))
    before, after = np.divmod(np.arange(LANES * LANES), LANES)
    times = [
        order.ordered(before, np.full(LANES * LANES, when), after)
        for when in range(0, len(events), 7)
    ]
    return np.stack(times), most


def test_rows_are_forgotten_and_nothing_that_they_say(monkeypatch):
    rng = np.random.default_rng(5)
    kinds = ("meet", "acquire", "fence", "publish")
    events = [
        (kinds[rng.integers(4)], np.sort(rng.choice(LANES, 5, replace=False)), rng.integers(LANES))
        for _ in range(500)
    ]
    every, all_rows = known_after(events, 10**6, monkeypatch)
    few, most = known_after(events, 2, monkeypatch)
    assert np.array_equal(few, every) and every.any() and not every.all()
    assert all_rows > 500 and most < all_rows
