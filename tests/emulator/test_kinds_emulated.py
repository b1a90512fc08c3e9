"""Kernels of every kind, made wrong on purpose: what a GPU is to reject, the emulator rejects."""

from dataclasses import replace

import pytest
from kinds import KINDS, SABOTAGE, held, problem_of, sabotaged
from virtual_arch import ARCH

from explorer.devices.emulated.emulator import Emulator
from explorer.devices.program_under_test import ProgramUnderTest
from explorer.devices.verdict import Status
from explorer.model.gpu_spec import known_gpu
from explorer.space import Space

ROWS, COLS = 500, 520
EMULATOR = Emulator(ARCH)


@pytest.mark.sampled(9)
@pytest.mark.parametrize("name", SABOTAGE)
def test_a_wrong_kernel_is_found_out(name):
    problem = problem_of(SABOTAGE[name][0], ROWS, COLS)
    honest = ProgramUnderTest.of_config(problem, held(problem))
    wrong = replace(honest, source=sabotaged(name, honest.source))
    verdict = EMULATOR.verify(wrong)
    assert verdict.status is Status.WRONG, verdict.sentence


@pytest.mark.sampled(6)
@pytest.mark.parametrize("kind", sorted({kind for kind, *_ in SABOTAGE.values()}))
def test_its_honest_twin_is_verified(kind):
    problem = problem_of(kind, ROWS, COLS)
    verdict = EMULATOR.verify(ProgramUnderTest.of_config(problem, held(problem)))
    assert verdict.status is Status.VERIFIED, verdict.sentence


@pytest.mark.parametrize("kind", KINDS)
def test_a_kind_has_kernels(kind):
    problem = problem_of(kind, ROWS, COLS)
    rule = Space(problem, known_gpu("NVIDIA H200")).broken_rule(held(problem))
    assert rule is None, rule.reason(held(problem))
