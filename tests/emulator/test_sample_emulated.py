"""The sample of the space is verified: the quick twin of every covering array that is emulated."""

from dataclasses import replace
from functools import cache

import numpy as np
import pytest
from space_sample import cost, space_sample, templates_of
from test_batch_invariance import FEW, first_rows
from verified import FAULTLESS

from explorer.devices.program_under_test import ProgramUnderTest
from explorer.ops import Op
from explorer.reference.inputs import verification_inputs

PARTS = 8
"""Tests among which the thorough checks are divided."""


@cache
def one_of_each_unit():
    """Kernels of the sample in which each unit of the templates occurs, few and cheap ones."""
    made, chosen = {kernel: templates_of(kernel) for kernel in space_sample()}, []
    left = set().union(*made.values())
    while left:
        kernel = max(made, key=lambda one: len(made[one] & left) / cost(one))
        left -= made[kernel]
        chosen.append(kernel)
    return chosen


@pytest.mark.sampled(24)
@pytest.mark.parametrize("kernel", space_sample()[::2], ids=lambda kernel: kernel.kind)
def test_it_is_verified(emulator, kernel):
    """Every second one: each unit is verified thoroughly, and all of them are compiled."""
    if kernel in one_of_each_unit():
        pytest.skip("it is verified thoroughly, with the other units of the templates")
    verdict = emulator.verify(ProgramUnderTest.of_config(kernel.problem, kernel.config))
    assert verdict.status in FAULTLESS, f"{kernel}: {verdict.sentence}"


@pytest.mark.exhaustive
@pytest.mark.parametrize("part", range(PARTS))
def test_each_unit_is_verified_thoroughly(emulator, part):
    for kernel in one_of_each_unit()[part::PARTS]:
        program = ProgramUnderTest.of_config(kernel.problem, kernel.config)
        verdict = emulator.verify(replace(program, thorough=True, seed=part))
        assert verdict.status in FAULTLESS, f"{kernel}: {verdict.sentence}"


PLAIN = [k for k in space_sample() if k.kind in ("plain", "plain, ragged", "f16", "wide, ragged")]


@pytest.mark.exhaustive
@pytest.mark.parametrize("kernel", PLAIN, ids=lambda kernel: kernel.kind)
def test_a_row_does_not_depend_on_the_others(kernel):
    problem = kernel.problem.resized(rows=2 * FEW)
    assert problem.op is Op.SOFTMAX
    arrays = verification_inputs(problem)
    few = {name: array[:FEW] for name, array in arrays.items()}
    expected = first_rows(problem, kernel.config, arrays)
    got = first_rows(problem.resized(rows=FEW), kernel.config, few)
    assert np.array_equal(got, expected), str(kernel)
