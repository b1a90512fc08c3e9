"""Operands in emulated memory: gaps between rows, places past an aligned address, in place."""

from dataclasses import replace

import numpy as np
import pytest
from virtual_arch import ARCH

from explorer.devices.emulated.emulator import Emulator
from explorer.devices.emulated.placement import Placement
from explorer.devices.program_under_test import ProgramUnderTest
from explorer.devices.verdict import Status
from explorer.model.config import Config
from explorer.model.problem import Mask, Problem
from explorer.ops import Op
from explorer.ptx_emulator.findings import Kind
from explorer.reference.inputs import verification_inputs

PROBLEMS = [
    Problem(6, 5),
    Problem(6, 5, input_stride=8, output_stride=7),
    Problem(6, 5, inner=3),
    Problem(6, 5, in_place=True),
    Problem(6, 5, op=Op.SOFTMAX_BACKWARD),
    Problem(6, 5, mask=Mask.ADDITIVE, mask_rows=3),
    Problem(6, 5, mask=Mask.LENGTHS, scale=0.5),
]


def store(placed, matrix, stray=0):
    """What a kernel that writes `matrix` leaves in memory."""
    target, stride = placed.targets[0], placed.problem.output_stride
    size = placed.problem.output_dtype.itemsize
    whole = placed.memory.read(target).reshape(-1)
    flags = target.written.reshape(-1, size)
    lead = target.lead // size
    problem = placed.problem
    for row in range(problem.rows):
        for col in range(problem.cols):
            outer, at = divmod(row, problem.inner)
            if problem.inner > 1:
                place = (outer * problem.cols + col) * problem.inner + at
            else:
                place = row * stride + col
            whole[lead + place] = matrix[row, col]
            flags[lead + place] = True
    if stray:
        flags[lead + problem.cols : lead + problem.cols + stray] = True
    placed.memory.write(target, whole)


@pytest.mark.parametrize("odd", [False, True])
@pytest.mark.parametrize("problem", PROBLEMS, ids=str)
def test_what_is_written_in_its_place_is_read_back(problem, odd):
    placed = Placement.of(problem, verification_inputs(problem), misaligned_by=odd)
    dtype = problem.output_dtype.numpy
    matrix = np.arange(30).reshape(6, 5).astype(dtype)
    store(placed, matrix)
    assert placed.findings() == []
    assert (placed.results()[0] == matrix).all()


def test_an_output_that_nobody_wrote_is_found():
    placed = Placement.of(Problem(6, 5, output_stride=7), verification_inputs(Problem(6, 5)))
    assert [f.kind for f in placed.findings()] == [Kind.NEVER_WRITTEN]


def test_a_write_between_rows_is_found():
    problem = Problem(6, 5, output_stride=7)
    placed = Placement.of(problem, verification_inputs(problem))
    store(placed, np.zeros((6, 5), np.float32), stray=2)
    assert [f.kind for f in placed.findings()] == [Kind.OUT_OF_BOUNDS]


@pytest.mark.parametrize("matrix", ["input", "grad"])
def test_a_read_between_rows_is_found_though_nothing_comes_of_it(matrix):
    problem = Problem(6, 64, op=Op.SOFTMAX_BACKWARD, input_stride=68)
    program = ProgramUnderTest.of_config(
        problem, Config(threads=32, threads_per_row=16, cache_holds="input")
    )
    assert Emulator(ARCH).verify(program).status is Status.VERIFIED
    start = "  // Sum of products.\n"
    assert start in program.source
    stray = f"  if (index < 3) *static_cast<const volatile float*>(row.{matrix} + kCols);\n"
    program = replace(program, source=program.source.replace(start, stray + start))
    verdict = Emulator(ARCH).verify(program)
    assert verdict.status is Status.WRONG
    assert "between rows" in verdict.sentence


def test_every_argument_of_a_launch_has_a_value():
    problem = Problem(6, 5, op=Op.SOFTMAX_BACKWARD, scale=2.0)
    values = Placement.of(problem, verification_inputs(problem), scratch_bytes=64).values
    assert values["scale"] == np.float32(2.0)
    assert values["rows"].dtype == np.int64
    assert {"input", "grad", "output", "scratch"} <= values.keys()


def test_ids_and_results_on_request_begin_at_whole_elements():
    problem = Problem(6, 5, op=Op.LOG_PROB, also="lse,rank", ids_stride=3, ids_per_row=2)
    arrays = verification_inputs(problem)
    placed = Placement.of(problem, arrays, misaligned_by=2)
    assert [target.name for target in placed.targets] == ["output", "lse", "rank"]
    leads = {name: placed.values[name].lead for name in ("ids", "lse", "rank")}
    assert leads == {"ids": 8, "lse": 4, "rank": 8}
    found = [finding.message for finding in placed.findings()]
    assert [message.partition("[")[0] for message in found] == ["output", "lse", "rank"]
    ids = placed.memory.read(placed.values["ids"])[1:]
    assert (np.append(ids, 0).reshape(6, 3)[:, :2] == arrays["ids"]).all()
    assert (placed.results()[2] < -1).all()  # what no kernel writes
