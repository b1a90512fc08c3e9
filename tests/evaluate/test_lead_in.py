"""What comes before a timed replay, with graphs and a flush that only note what happens."""

import pytest

from explorer.devices.cuda.bench import Bench


class Graph:
    """Notes replays and laps in a list that the flush shares."""

    def __init__(self, name, events):
        self.name = name
        self.events = events

    def replay(self):
        self.events.append(f"{self.name} untimed")

    def lap(self):
        self.events.append(f"{self.name} timed")
        return self

    def sample_us(self):
        return 1.0


class Clocks:
    @staticmethod
    def read():
        return None

    @staticmethod
    def lowest(seen):
        return seen


@pytest.fixture
def events(monkeypatch):
    monkeypatch.setattr("explorer.devices.cuda.bench.Clocks", Clocks)
    return []


def bench(events, *, warm=False, rotates=True):
    """A bench without a GPU: what it puts before a lap is all that it does."""
    one = object.__new__(Bench)
    one._flush = None if warm else lambda: events.append("flush")
    one._rotates = rotates
    return one


def test_every_contender_is_timed_from_the_same_cache(events):
    graphs = [Graph(name, events) for name in ("a", "b")]
    samples, _ = bench(events).interleaved_us(graphs, 5, 0, Clocks())
    assert [len(row) for row in samples] == [5, 5]
    assert len(events) == 2 * 5 * 3
    for start in range(0, len(events), 3):
        flush, untimed, timed = events[start : start + 3]
        assert (flush, untimed) == ("flush", timed.replace("timed", "untimed"))


def test_a_kernel_alone_is_timed_as_among_others(events):
    bench(events).laps_us(Graph("a", events), 3)
    assert events == ["flush", "a untimed", "a timed"] * 3


def test_launches_with_buffers_of_their_own_are_the_first_to_touch_them(events):
    bench(events, rotates=False).laps_us(Graph("a", events), 2)
    assert events == ["flush", "a timed"] * 2


def test_a_warm_cache_is_left_as_it_is(events):
    bench(events, warm=True).laps_us(Graph("a", events), 2)
    assert events == ["a untimed", "a timed"] * 2
