"""What strict, default and fast let pass: by what is measured, whatever the code."""

from dataclasses import replace

import pytest

from explorer.devices.device import Setting
from explorer.devices.emulated.emulator import Emulator
from explorer.devices.program_under_test import ProgramUnderTest
from explorer.devices.verdict import Status
from explorer.evaluate.verify import verify_many
from explorer.model.accuracy import Accuracy
from explorer.model.config import Config
from explorer.model.element import DType
from explorer.model.errors import InvalidInput
from explorer.model.problem import Problem

SHARE = "x[slot * kWidth + i] / total"
ACCURATE = Config(exp="expf", normalise="divide")
QUICK = Config(exp="__expf", normalise="divide")
SERIAL = Config(
    normalise="divide",
    algorithm="online",
    threads=32,
    threads_per_row=1,
    cache="none",
    cache_holds="input",
)
WAITING = Config(exp="expf", normalise="divide", cache="output")


def verdict(config, accuracy, dtype=DType.F32, cols=4096, rows=18, change=None):
    program = ProgramUnderTest.of_config(Problem(rows, cols, dtype), config)
    if change is not None:
        assert change[0] in program.source
        program = replace(program, source=program.source.replace(*change))
    emulator = Emulator("sm_90")
    emulator.open(Setting(program.problem, accuracy=accuracy))
    return emulator.verify(program, rows)


def test_expf_and_a_division_are_strict_and_its_errors_are_known():
    found = verdict(ACCURATE, Accuracy.STRICT)
    assert found.status is Status.VERIFIED
    check = found.runs[0].check
    assert 8 < check.max_ulp < 20 and 0.5 < check.mean_ulp < 3.5
    assert "ulp" in found.sentence


def test_an_argument_rounded_twice_is_not_strict_but_meets_the_default():
    strict = verdict(QUICK, Accuracy.STRICT)
    assert strict.status is Status.INACCURATE
    assert strict.sentence.startswith("too inexact: ")
    assert strict.sentence.endswith("ulp, the limit under strict is 20 ulp")
    assert verdict(QUICK, Accuracy.DEFAULT).status is Status.VERIFIED


@pytest.mark.exhaustive
@pytest.mark.parametrize("cols", [4096])
def test_a_serial_online_sum_is_fast_alone(cols):
    default = verdict(SERIAL, Accuracy.DEFAULT, cols=cols)
    assert default.status is Status.INACCURATE
    assert "inaccurate under default (4e-06 of the magnitude)" in default.sentence
    assert verdict(SERIAL, Accuracy.FAST, cols=cols).status is Status.VERIFIED


@pytest.mark.sampled(2)
@pytest.mark.parametrize("dtype", [DType.F16, DType.BF16])
def test_sixteen_bits_rounded_once_are_strict_and_rounded_twice_are_not(dtype):
    assert verdict(QUICK, Accuracy.STRICT, dtype).status is Status.VERIFIED
    assert verdict(WAITING, Accuracy.STRICT, dtype).status is Status.INACCURATE
    assert verdict(WAITING, Accuracy.DEFAULT, dtype).status is Status.VERIFIED


@pytest.mark.parametrize("accuracy", list(Accuracy))
@pytest.mark.parametrize(
    "change",
    [
        (SHARE, f"{SHARE} * 1.001f"),
        (SHARE, f"{SHARE} + 0.001f"),
        (SHARE, f"total > 0.0f ? {SHARE} : 0.0f"),
    ],
    ids=["0.1 % off", "shifted", "nan lost"],
)
def test_wrong_code_is_wrong_under_any(accuracy, change):
    found = verdict(ACCURATE, accuracy, cols=512, change=change)
    assert found.status is Status.WRONG


def test_many_are_judged_under_what_is_asked():
    problem = Problem(18, 4096)
    programs = [ProgramUnderTest.of_config(problem, config) for config in (ACCURATE, QUICK)]
    found = [v.status for v in verify_many(programs, "sm_90", 18, Accuracy.STRICT)]
    assert found == [Status.VERIFIED, Status.INACCURATE]


@pytest.mark.parametrize("dtype", list(DType))
def test_what_meets_a_level_meets_the_looser_ones(dtype):
    strict, default, fast = (a.tolerance(dtype) for a in Accuracy)
    assert strict.max_ulp < default.max_ulp == fast.max_ulp
    assert strict.relative <= default.relative < fast.relative
    assert strict.steps <= default.steps <= fast.steps
    assert Accuracy.STRICT.is_stricter_than(Accuracy.DEFAULT)
    assert not Accuracy.FAST.is_stricter_than(Accuracy.FAST)


def test_a_mean_beyond_the_limit_is_said():
    excess = Accuracy.STRICT.excess(DType.F32, 12.0, 3.94)
    assert excess == "too inexact: 3.94 ulp on average, the limit under strict is 3.5 ulp"
    assert Accuracy.DEFAULT.excess(DType.F32, 60.0, 9.0) == ""


def test_an_unknown_level_is_named_with_those_there_are():
    with pytest.raises(InvalidInput, match="'exact' is not known; choose one of strict, default"):
        Accuracy.parse("exact")
