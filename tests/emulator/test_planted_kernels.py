"""Each kernel that is made wrong in one place is rejected; what it was made of is verified."""

from collections import Counter
from dataclasses import replace
from functools import cache

import planted_seams
import pytest
from planted_attention import PLANTS as OF_ATTENTION
from planted_caps import PLANTS as OF_CAPS
from planted_kernels import HELD, ONE_THREAD, P1000, P4096, RUN_TIME
from planted_kernels import PLANTS as OF_THE_CODE
from planted_machine import PLANTS as OF_THE_MACHINE
from virtual_arch import ARCH

from explorer.devices.emulated.emulator import Emulator
from explorer.devices.program_under_test import ProgramUnderTest
from explorer.devices.verdict import Status
from explorer.model.problem import Problem

PLANTS = [*OF_THE_CODE, *OF_THE_MACHINE, *OF_ATTENTION, *OF_CAPS]

EMULATOR = Emulator(ARCH)
"""Needs no assembler: what is wrong is in the PTX, which is the same for sm_90."""


def each_plant():
    """All of them as parameters; quick is the first of each kind."""
    met = set()
    for plant in PLANTS:
        marks = [pytest.mark.exhaustive] if plant.kind in met else []
        met.add(plant.kind)
        yield pytest.param(plant, id=str(plant), marks=marks)


def each_base():
    """Every second one that they are made of, as parameters; quick is the first.

    That right kernels are verified is shown by hundreds of others, too.
    """
    bases = [*dict.fromkeys((plant.problem, plant.config) for plant in PLANTS)]
    for number, base in enumerate(bases[::2]):
        marks = [pytest.mark.exhaustive] if number else []
        yield pytest.param(*base, id=f"{base[0]} {base[1].to_json(brief=True)}", marks=marks)


@cache
def honest(problem, config):
    return ProgramUnderTest.of_config(problem, config)


@pytest.mark.parametrize("plant", [*each_plant()])
def test_it_is_wrong(plant):
    program = honest(plant.problem, plant.config)
    verdict = EMULATOR.verify(replace(program, source=plant.planted(program.source)))
    assert verdict.status is Status.WRONG, verdict.sentence


@pytest.mark.parametrize(("problem", "config"), [*each_base()])
def test_what_it_was_made_of_is_verified(problem, config):
    verdict = EMULATOR.verify(honest(problem, config))
    assert verdict.status is Status.VERIFIED, verdict.sentence


def test_names_are_unique():
    assert Counter(map(str, (*PLANTS, *planted_seams.PLANTS))).most_common(1)[0][1] == 1


@pytest.mark.sampled(26)
@pytest.mark.parametrize("plant", planted_seams.PLANTS, ids=str)
def test_an_edited_text_is_wrong_at_what_only_few_values_sizes_and_addresses_show(plant):
    program = honest(plant.problem, plant.config)
    edited = replace(program, source=plant.planted(program.source), is_edited=True)
    verdict = EMULATOR.verify(edited)
    assert verdict.status is Status.WRONG, verdict.sentence


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    ("problem", "config"),
    [*dict.fromkeys((plant.problem, plant.config) for plant in planted_seams.PLANTS)][::4],
    ids=str,
)
def test_what_they_were_made_of_is_verified_thoroughly(problem, config):
    program = replace(honest(problem, config), thorough=True, seed=20261130)
    verdict = EMULATOR.verify(program)
    assert verdict.status is Status.VERIFIED, verdict.sentence


@pytest.mark.exhaustive
def test_a_text_that_was_edited_is_tried_in_every_vector():
    """One vector of 1024 is left out of the maximum: rows for a few of them show it by chance."""
    program = honest(P4096, HELD)
    right = "maximum = fmaxf(maximum, x[i]);"
    wrong = f"if (!(thread_in_row == 31 && i / kWidth == 2)) {right}"
    assert program.source.count(right) == 1
    edited = replace(program, source=program.source.replace(right, wrong), is_edited=True)
    assert EMULATOR.verify(edited).status is Status.WRONG


@pytest.mark.exhaustive
def test_a_text_that_was_edited_is_tried_in_every_element_of_rows_that_are_not_wide():
    """Of one element in each vector of a row, as of texts that are ours, one row in four tells."""
    program = honest(Problem(8192, 2000), HELD)
    right = "maximum = fmaxf(maximum, x[i]);"
    for lane in range(4):
        wrong = f"if (!(thread_in_row == 77 && i == {4 + lane})) {right}"
        edited = replace(program, source=program.source.replace(right, wrong), is_edited=True)
        assert EMULATOR.verify(edited).status is Status.WRONG


@pytest.mark.exhaustive
def test_a_text_that_was_edited_is_tried_beyond_sixteen_bits_of_columns_in_a_thread():
    """A block of 64 such threads is otherwise tried at 16131 columns: there are as many rows."""
    program = honest(Problem(8192, 64), replace(ONE_THREAD, static_cols=False))
    right = "for (int i = 0; i < cols; ++i) sum"
    assert program.source.count(right) > 0
    wrong = "for (int i = 0; i < min(cols, 65535); ++i) sum"
    edited = replace(program, source=program.source.replace(right, wrong, 1), is_edited=True)
    assert EMULATOR.verify(edited).status is Status.WRONG


@pytest.mark.exhaustive
def test_a_text_that_was_edited_is_tried_beyond_twenty_bits_of_columns():
    program = honest(P1000, replace(RUN_TIME, threads_per_row=256))
    right = "first < vectors;"
    assert right in program.source
    wrong = "first < min(vectors, (1 << 20) / kWidth);"
    for is_edited, status in ((True, Status.WRONG), (False, Status.VERIFIED)):
        edited = replace(program, source=program.source.replace(right, wrong), is_edited=is_edited)
        assert EMULATOR.verify(edited).status is status
