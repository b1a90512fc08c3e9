"""Patterns in the last rows of a problem's own arrays; the driver copies within this process."""

import ctypes
from types import SimpleNamespace

import numpy as np
import pytest

from explorer.devices.cuda import verification
from explorer.devices.cuda.tools import DeviceCheck
from explorer.devices.cuda.verification import LAST_ELEMENTS, LastRows, last_part
from explorer.model.element import DType
from explorer.model.problem import Mask, Problem, inputs, results
from explorer.ops import Op
from explorer.reference.layout import in_memory


class Driver:
    """Memory of this process in place of a GPU's."""

    def __init__(self):
        self.held = {}

    def cuMemAlloc(self, size):  # noqa: N802
        room = ctypes.create_string_buffer(size)
        self.held[ctypes.addressof(room)] = room
        return (0, ctypes.addressof(room))

    def cuMemcpyHtoD(self, to, data, size):  # noqa: N802
        ctypes.memmove(to, data, size)
        return (0,)

    def cuMemcpyDtoDAsync(self, to, source, size, stream):  # noqa: N802
        ctypes.memmove(to, source, size)
        return (0,)

    def cuMemFree(self, address):  # noqa: N802
        del self.held[address]
        return (0,)


class Sets:
    """One set of a problem's arrays, of bytes that are all different from their neighbours."""

    def __init__(self, problem):
        arrays = (*inputs(problem), *results(problem))
        self.memory = {
            one.name: np.arange(one.bytes, dtype=np.uint64).astype(np.uint8) for one in arrays
        }
        self.prepared = 0

    def checked_at(self, index):
        return {name: array.ctypes.data for name, array in self.memory.items()}

    def prepare(self, index, stream):
        self.prepared += 1


class Tools:
    """Tells what it is asked to check, and finds nothing wrong."""

    accuracy = "default"

    def check_rows(self, problem, at):
        self.problem, self.at = problem, dict(at)
        nothing = DeviceCheck(0, 0, 0, 0.0, 0, 0.0, 0.0, 1)
        return tuple(nothing for _ in results(problem))


def drawn(problem):
    """Arrays of a part: numbers of its types."""
    rng = np.random.default_rng(0)
    return {
        one.name: rng.integers(1, 9, ((one.count - one.cols) // one.stride + 1, one.cols)).astype(
            one.dtype.numpy
        )
        for one in inputs(problem)
    }


ATTENTION = {"head_dim": 64, "group": 2, "key_heads": 3}

PROBLEMS = [
    Problem(3000, 1000),
    Problem(3000, 1000, DType.BF16, input_stride=1008, output_stride=1016),
    Problem(3000, 1000, op=Op.LOG_PROB, ids_per_row=3, ids_stride=5, also="lse"),
    Problem(3000, 1000, op=Op.SOFTMAX_BACKWARD, inner=4),
    Problem(3000, 1000, mask=Mask.CAUSAL),
    *(
        Problem(600, 700, DType.BF16, Op.DECODE_ATTENTION, layout=layout, mask=mask, **ATTENTION)
        for layout, mask in (("HND", Mask.NONE), ("NHD", Mask.LENGTHS))
    ),
]


@pytest.mark.parametrize("problem", PROBLEMS, ids=str)
def test_patterns_take_the_place_of_the_last_rows_for_one_launch(monkeypatch, problem):
    driver, sets, tools = Driver(), Sets(problem), Tools()
    monkeypatch.setattr(verification, "driver", driver)
    part = last_part(problem)
    assert part.rows < problem.rows and part.rows % problem.inner == 0
    before = {name: array.copy() for name, array in sets.memory.items()}
    last = LastRows(
        problem, SimpleNamespace(problem=part, arrays=lambda _: drawn(part)), sets, 0, None
    )
    last.put()
    assert sets.prepared == 1
    for operand in inputs(part):
        given = in_memory(part, operand, drawn(part)[operand.name], 0)
        given = given.reshape(-1)[: operand.count].view(np.uint8)
        memory, whole = sets.memory[operand.name], before[operand.name]
        assert (memory[: -len(given)] == whole[: -len(given)]).all()
        if operand.stride == operand.cols:
            assert (memory[-len(given) :] == given).all()
        assert (memory != whole).any()
    last.check(tools)
    if problem.mask is Mask.CAUSAL:
        assert tools.problem == problem and tools.at == sets.checked_at(0)
    else:
        assert tools.problem == part
        for one in (*inputs(part), *results(part)):
            memory = sets.memory[one.name]
            assert tools.at[one.name] == memory.ctypes.data + len(memory) - one.bytes
    last.restore()
    for name, array in sets.memory.items():
        assert (array == before[name]).all()
    last.free()
    assert not driver.held


def test_sequences_of_many_keys_hold_no_patterns():
    one = LAST_ELEMENTS // 64 // 3
    problem = Problem(600, one, DType.BF16, Op.DECODE_ATTENTION, **ATTENTION)
    assert last_part(problem).rows == problem.heads
    assert last_part(problem.resized(cols=one + 1)) is None
    assert last_part(Problem(600, 2 * LAST_ELEMENTS)).rows == 1
