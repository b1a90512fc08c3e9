"""The heuristic's kernels are as exact as is asked of them, of every number of blocks a row."""

import pytest
from virtual_arch import ARCH

from explorer.choose import config_for
from explorer.devices.device import Setting
from explorer.devices.emulated.emulator import Emulator
from explorer.devices.program_under_test import ProgramUnderTest
from explorer.devices.verdict import Status
from explorer.model.accuracy import Accuracy
from explorer.model.gpu_spec import known_gpu
from explorer.model.problem import Problem

H200 = known_gpu("NVIDIA H200")


def verdict(problem, accuracy):
    config = config_for(problem, H200, accuracy=accuracy)
    emulator = Emulator(ARCH)
    emulator.open(Setting(problem, accuracy=accuracy))
    return emulator.verify(ProgramUnderTest.of_config(problem, config))


@pytest.mark.sampled(6)
@pytest.mark.parametrize("cols", [5, 33, 2048, 4097, 5000, 8192, 1000, 32768, 50257, 131072])
def test_strict(cols):
    found = verdict(Problem(8192, cols), Accuracy.STRICT)
    assert found.status is Status.VERIFIED, found.sentence


@pytest.mark.exhaustive
@pytest.mark.parametrize(("cols", "inner"), [(1024, 48), (4096, 5), (70000, 2)])
def test_rows_over_a_middle_axis(cols, inner):
    found = verdict(Problem(4 * inner, cols, inner=inner), Accuracy.DEFAULT)
    assert found.status is Status.VERIFIED, found.sentence
