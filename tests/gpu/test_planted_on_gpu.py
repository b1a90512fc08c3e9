"""Kernels made wrong in one place: a GPU rejects them as the emulator does."""

from dataclasses import replace

import pytest
from planted_kernels import PLANTS

from explorer.devices.program_under_test import ProgramUnderTest
from explorer.evaluate.device_evaluator import DeviceEvaluator
from explorer.model.outcome import Measured, Rejected, Stage

BY_NUMBERS = ("exponents", "start", "arguments", "sizes", "influence", "zeros")
"""Kinds that show in numbers. Of the others a GPU may run for years before one shows."""

OF_BLOCKS = ("the block's number in 5 bits", "the block's number in 8 bits")
"""Numbers too narrow for the blocks of the real problem; the others are for larger ones."""

OF_MANY_STRIDES = ("the fortieth stride", "the parity of a ring is wrong from stride")
"""Mistakes of a later stride than a GPU's blocks make: 31 of 8192 rows on 132 SMs."""

OF_A_THREAD = ("an element of a thread's own maximum",)
"""Mistakes that show in rows made for the shares of a kernel's threads. The emulator has them; on a
GPU all kernels of a search are tried on the same rows."""

SHOWN = [
    plant
    for plant in PLANTS
    if (plant.kind in BY_NUMBERS or plant.name.startswith(OF_BLOCKS))
    and not plant.name.startswith((*OF_MANY_STRIDES, *OF_A_THREAD))
]


@pytest.mark.parametrize("problem", list(dict.fromkeys(plant.problem for plant in SHOWN)), ids=str)
def test_wrong_kernels_are_rejected_and_honest_ones_measured(device, problem, record_property):
    """All that is planted in kernels of one problem, with one search opened for it."""
    planted = [plant for plant in SHOWN if plant.problem == problem]
    passed = []
    with DeviceEvaluator(problem, device, keep_device=True) as live:
        for config in dict.fromkeys(plant.config for plant in planted):
            program = ProgramUnderTest.of_config(problem, config)
            honest = live.device.verify(program).outcome
            assert isinstance(honest, Measured), (config, honest)
        for plant in planted:
            program = ProgramUnderTest.of_config(problem, plant.config)
            source = plant.planted(program.source)
            outcome = live.device.verify(replace(program, source=source)).outcome
            if not (isinstance(outcome, Rejected) and outcome.stage is Stage.VERIFY):
                passed.append((str(plant), outcome))
    record_property("figure.planted_rejected", len(planted) - len(passed))
    record_property("figure.planted_given", len(planted))
    assert not passed
