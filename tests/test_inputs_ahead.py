"""Inputs of verifications that another process makes are those that this one would make."""

import os
import time
from dataclasses import replace
from multiprocessing import Pipe
from multiprocessing.connection import Connection

import numpy as np
import pytest

from explorer.devices import inputs_ahead
from explorer.devices.inputs_ahead import (
    MOST_UNUSED,
    CheckedTruth,
    InputsAhead,
    MadeInputs,
    SharedMemory,
    Source,
    Work,
)
from explorer.model.dtype import DType
from explorer.model.problem import Mask, Op, Problem
from explorer.reference import Case, truth_of, verification_inputs

CASES = [
    Case(Problem(40, 129)),
    Case(Problem(33, 257, DType.BF16), first=7),
    Case(Problem(20, 100, DType.F16, Op.SOFTMAX_BACKWARD)),
    Case(Problem(20, 64, mask=Mask.LENGTHS)),
    Case(Problem(20, 64, mask=Mask.ADDITIVE, mask_rows=5)),
    CheckedTruth(Problem(20, 64, DType.F64, Op.LOG_SOFTMAX)),
]
MANY = [Case(Problem(20, cols)) for cols in range(8, 8 + MOST_UNUSED)]


class Pair:
    """What makes arrays and what uses them, in this process, a step at a time."""

    def __init__(self, size: int = 2**20) -> None:
        self.memory = SharedMemory(size)
        ours, theirs = Pipe()
        self.user = MadeInputs([(ours, self.memory)])
        self.work = Work(theirs, self.memory)
        self._theirs = theirs

    def ask(self, *wanted: Case) -> None:
        for one in wanted:
            self.work.add(one, 0)

    def make(self) -> None:
        """All that there is room for."""
        while self._theirs.poll(0):
            self.work.free(self._theirs.recv())
        while self.work.can_go_on:
            self.work.make_next()


def same_bits(one: np.ndarray, other: np.ndarray) -> bool:
    if one.dtype == np.longdouble:  # some of whose bytes are of no number
        return np.array_equal(one, other, equal_nan=True)
    return one.tobytes() == other.tobytes()


def alike(got: dict, wanted: dict) -> bool:
    return list(got) == list(wanted) and all(
        got[name].dtype == array.dtype and same_bits(got[name], array)
        for name, array in wanted.items()
    )


def is_shared(array: np.ndarray) -> bool:
    """Whether it lies in memory of several processes."""
    owner = array
    while isinstance(owner, np.ndarray):
        owner = owner.base
    return owner is not None


def is_made(pair: Pair, case: Case) -> bool:
    """Whether the arrays come from the memory; they are right in any case."""
    with pair.user.arrays(case, 0) as arrays:
        assert alike(arrays, case.arrays(0))
        return all(is_shared(array) for array in arrays.values())


def duplicated(ahead: InputsAhead) -> list[Source]:
    """The sources as another process would receive them."""
    return [
        (
            Connection(os.dup(connection.fileno())),
            SharedMemory(len(memory.bytes), os.dup(memory._handle)),
        )
        for connection, memory in ahead.sources
    ]


@pytest.fixture(params=[1, 3])
def started(request, monkeypatch):
    """Processes that make arrays, and what uses them."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: range(4 * request.param))
    ahead = InputsAhead()
    sources = duplicated(ahead)
    assert len(sources) == request.param
    ahead.start()
    yield ahead, MadeInputs(sources)
    ahead.close()


def test_a_process_makes_what_this_one_would(started):
    ahead, user = started
    ahead.ask(CASES, 3)
    for case in reversed(CASES):
        with user.arrays(case, 3, wait_s=30) as arrays:
            assert alike(arrays, case.arrays(3))
            assert all(is_shared(array) for array in arrays.values())


def test_what_was_not_asked_for_or_is_not_made_yet_is_made_here(started):
    ahead, user = started
    for case in CASES:
        ahead.ask([case], 0)
        with user.arrays(case, 1) as arrays:  # another seed
            assert alike(arrays, case.arrays(1))


def test_a_process_that_is_killed_costs_nothing_but_time(started):
    ahead, user = started
    ahead.ask(CASES[:1], 0)
    with user.arrays(CASES[0], 0, wait_s=30):
        pass
    for maker in ahead._makers:
        maker._process.kill()
        maker._process.join()
    for case in CASES:
        ahead.ask([case], 0)
        with user.arrays(case, 0, wait_s=30) as arrays:
            assert alike(arrays, case.arrays(0))


def test_it_ends_with_either_process_that_it_serves():
    for ended in ("asks", "uses"):
        ahead = InputsAhead()
        sources = duplicated(ahead)
        ahead.start()
        for maker, (connection, _) in zip(ahead._makers, sources, strict=True):
            (maker._connection if ended == "asks" else connection).close()
            maker._process.join(30)
            assert maker._process.exitcode == 0, ended
        ahead.ask(CASES, 0)  # into the void
        ahead.close()


def test_neither_waits_for_the_other_to_read():
    """However much is asked for while nobody uses it; what is used makes room for more."""
    pair = Pair(2**26)
    pair.ask(*MANY, *CASES)
    before = time.monotonic()
    pair.make()
    assert time.monotonic() - before < 30
    assert not pair.work.can_go_on
    for case in MANY:
        assert is_made(pair, case)
    pair.make()
    for case in CASES:
        assert is_made(pair, case)


def test_no_arrays_lie_over_those_that_are_in_use():
    pair = Pair(2**14)
    small = [Case(Problem(20, cols)) for cols in (16, 24, 32, 40, 48, 56)]
    pair.ask(*small)
    pair.make()
    for case in small:
        with pair.user.arrays(case, 0) as arrays:
            kept = {name: array.copy() for name, array in arrays.items()}
            pair.make()
            assert alike(arrays, kept) and alike(kept, case.arrays(0))
        pair.make()


def test_what_is_never_used_is_given_up_where_there_is_no_room():
    pair = Pair(2**26)
    pair.ask(*MANY, *CASES)
    pair.make()
    last = CASES[0]
    assert not is_made(pair, last)  # and half of the others are given up
    pair.make()
    assert not is_made(pair, MANY[0])
    assert is_made(pair, MANY[-1])
    assert is_made(pair, CASES[1])


def test_what_was_made_too_late_makes_room():
    pair = Pair(2**26)
    pair.ask(CASES[0])
    assert not is_made(pair, CASES[0])
    pair.make()
    assert not is_made(pair, CASES[1])
    pair.make()
    assert not pair.work._taken


def test_arrays_that_are_too_large_are_left_to_who_needs_them(monkeypatch):
    monkeypatch.setattr(inputs_ahead, "MOST_BYTES", 2**12)
    pair = Pair()
    pair.ask(Case(Problem(40, 129)), Case(Problem(20, 8)))
    pair.make()
    assert not is_made(pair, Case(Problem(40, 129)))
    assert is_made(pair, Case(Problem(20, 8)))


def test_without_another_process_all_is_made_here():
    with MadeInputs().arrays(CASES[0], 5, wait_s=60) as arrays:
        assert alike(arrays, CASES[0].arrays(5))


def test_the_truth_goes_with_its_inputs():
    problem = Problem(20, 64)
    arrays = CheckedTruth(problem).arrays(0)
    inputs = verification_inputs(problem, 0)
    truth = truth_of(problem, inputs)
    assert alike(arrays, {**inputs, "values": truth.values, "magnitude": truth.magnitude})
    assert CheckedTruth(problem) == CheckedTruth(replace(problem))
