"""How many samples a kernel is timed by: few where it is slower than the best by a given factor."""

from contextlib import contextmanager
from types import SimpleNamespace

import pytest

from explorer.devices.cuda.session import FEW_SAMPLES, SAMPLES, Session
from explorer.devices.device import Job
from explorer.evaluate.device_evaluator import START_OF_A_GRAPH_US
from explorer.model.config import Config
from explorer.model.outcome import Resources

SETS = 4
START_US = 2.0
"""What the start of a graph adds to its launches."""


class FakeBench:
    """Times of one kernel, a little longer in each sample; a graph takes a while to start."""

    def __init__(self, time_us, launches, late_us=0.0):
        self.time_us, self.launches, self.late_us = time_us, launches, late_us
        self.sets = SimpleNamespace(count=SETS)
        self.laps = 0

    @contextmanager
    def graph(self, enqueue, launches=None):
        yield launches or self.launches

    def laps_us(self, graph, count):
        start = self.laps
        self.laps += count
        each = self.time_us + START_US / graph
        return [each + (self.late_us if start + lap == 2 else 0) for lap in range(count)]


def samples(time_us, launches=100 * SETS, late_us=0.0, sets=SETS, **job):
    session = object.__new__(Session)
    session._bench = FakeBench(time_us, launches, late_us)
    session._bench.sets.count = sets
    told = Job(Config(), "", b"", "", Resources(registers=32), (), (), **job)
    return session._samples(None, told)


@pytest.mark.parametrize("launches", [SETS, 100 * SETS])
@pytest.mark.parametrize(
    ("time_us", "best_us", "slower", "expected"),
    [
        (10.0, 0.0, 1.05, SAMPLES),
        (10.0, 10.0, 1.05, SAMPLES),
        (10.4, 10.0, 1.05, SAMPLES),
        (11.3, 10.0, 1.05, FEW_SAMPLES),
        (11.3, 10.0, 2.0, SAMPLES),
        (24.0, 10.0, 2.0, FEW_SAMPLES),
        (8.0, 10.0, 1.05, SAMPLES),
    ],
)
def test_a_kernel_that_is_slower_has_few(launches, time_us, best_us, slower, expected):
    best_us += START_US / launches if best_us else 0
    assert len(samples(time_us, launches, best_us=best_us, slower=slower)) == expected


def test_short_graphs_decide_nothing_but_of_what_is_far_slower():
    """On one launch a set, the start of a graph alone would make this kernel 10 % slower."""
    taken = samples(5.0, best_us=5.0 + START_US / (100 * SETS), slower=1.05)
    assert len(taken) == SAMPLES
    assert max(taken) == pytest.approx(5.0, rel=0.01)


@pytest.mark.parametrize(("time_us", "expected"), [(1.5, 9), (1.6, 9), (4.0, 9), (18_800.0, 3)])
def test_warm_only_what_is_far_slower_is_judged_by_a_graph_of_one_launch(time_us, expected):
    best_us = 1.6 + START_OF_A_GRAPH_US
    taken = samples(time_us, launches=246, sets=1, best_us=best_us, slower=1.05)
    assert len(taken) == expected
    assert max(taken) == pytest.approx(time_us, rel=0.01)


def test_one_late_sample_makes_no_kernel_slower():
    assert len(samples(10.0, late_us=5.0, best_us=10.0, slower=1.05)) == SAMPLES


def test_of_so_slow_a_kernel_that_not_all_sets_are_launched_on_few_are_taken():
    assert len(samples(60_000.0)) == FEW_SAMPLES
