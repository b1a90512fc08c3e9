"""The sample of the space is verified: the quick twin of every covering array that is emulated."""

import numpy as np
import pytest
from space_sample import space_sample
from test_batch_invariance import FEW, first_rows
from verified import FAULTLESS

from explorer.devices.program_under_test import ProgramUnderTest
from explorer.ops import Op
from explorer.reference.inputs import verification_inputs


@pytest.mark.sampled(48)
@pytest.mark.parametrize("kernel", space_sample(), ids=lambda kernel: kernel.kind)
def test_it_is_verified(emulator, kernel):
    verdict = emulator.verify(ProgramUnderTest.of_config(kernel.problem, kernel.config))
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
