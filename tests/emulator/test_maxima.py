"""Launches in which floats are sets show what a row's maximum may omit: what is planted alone."""

from dataclasses import replace
from functools import partial

import numpy as np
import pytest
from planted import planted
from planted_kernels import HELD, KEPT, LOOPED, MAXIMUM, ONLINE, WIDE
from virtual_arch import ARCH

from explorer.compile.compiler import Compiler
from explorer.devices.emulated.device import STEP_LIMIT, EmulatedKernel
from explorer.devices.emulated.emulator import _launched_for
from explorer.devices.emulated.maxima import _tested, suspected
from explorer.devices.program_under_test import ProgramUnderTest
from explorer.model.config import Config
from explorer.model.element import DType
from explorer.model.problem import Mask, Problem
from explorer.ops import Op
from explorer.ptx_emulator import MaximaSeen

CLUSTER = Config(threads=64, threads_per_row=64, cluster=2, exchange="mbarrier")
LOSS = Problem(64, 1000, DType.BF16, Op.CROSS_ENTROPY, ignore_index=-100)

KERNELS = {
    "held in registers": (Problem(64, 1000), HELD),
    "in a loop, of f64": (Problem(64, 1000, DType.F64), replace(LOOPED, exp="expf")),
    "of f16, in vectors": (Problem(64, 1000, DType.F16), KEPT),
    "online": (Problem(64, 1000), ONLINE),
    "by integers": (Problem(64, 1000), replace(KEPT, reduction="shuffle-redux")),
    "of a cluster": (Problem(64, 1000, DType.BF16), CLUSTER),
    "of two launches": (
        Problem(8, 4096),
        replace(WIDE, algorithm="online-block-max", launches="two", unroll=1),
    ),
    "over a middle axis": (Problem(48, 300, inner=24), KEPT),
    "negative scale": (Problem(64, 1000, scale=-2.0), KEPT),
    "under an added mask": (Problem(64, 1000, mask=Mask.ADDITIVE, mask_rows=64), KEPT),
    "under lengths": (Problem(64, 1000, mask=Mask.LENGTHS), KEPT),
    "of a loss": (LOSS, Config(algorithm="online-block-max", cache="none", cache_holds="input")),
}


def suspects(program):
    text = Compiler(ARCH).compile(program.source).ptx
    kernel = replace(EmulatedKernel.of(text, ()), promise=program.promise)
    return suspected(program, partial(_launched_for, program, kernel), STEP_LIMIT)


@pytest.mark.parametrize(("problem", "config"), KERNELS.values(), ids=KERNELS)
def test_nothing_is_suspected_of_a_kernel_that_is_right(problem, config):
    assert suspects(ProgramUnderTest.of_config(problem, config)) == []


@pytest.mark.parametrize("dtype", [DType.F32, DType.F16])
def test_an_element_that_is_left_out_is_among_the_suspects(dtype):
    """They are those of its row of sets."""
    program = ProgramUnderTest.of_config(Problem(64, 1000, dtype), HELD)
    wrong = f"if (thread_in_row != 7 || i != 1) {MAXIMUM}"
    found = suspects(planted(program, [(MAXIMUM, wrong)]))
    width = program.split.row_width
    assert 7 * width + 1 in found
    assert len(found) <= 8 * dtype.itemsize


def test_a_maximum_that_is_chosen_by_comparisons_leaves_all_suspected():
    branchy = Config(algorithm="online-branchy", cache="none", cache_holds="input")
    assert sorted(suspects(ProgramUnderTest.of_config(Problem(64, 200), branchy))) == [*range(200)]


def test_so_does_a_causal_mask():
    program = ProgramUnderTest.of_config(Problem(64, 64, mask=Mask.CAUSAL, mask_rows=64), KEPT)
    assert len(suspects(program)) == 64


def test_a_gradient_has_no_maximum():
    program = ProgramUnderTest.of_config(Problem(64, 64, op=Op.SOFTMAX_BACKWARD), KEPT)
    assert suspects(program) == []


@pytest.mark.parametrize(
    ("cols", "thorough", "each"), [(1000, True, 1), (16384, True, 8), (1000, False, 1)]
)
def test_every_element_or_vector_is_tested_where_there_is_time(cols, thorough, each):
    program = ProgramUnderTest.of_config(Problem(64, cols, DType.BF16), HELD)
    places = _tested(replace(program, thorough=thorough), 8)
    assert sorted(places // each) == [*range(cols // each)]
    assert len(set(places % 8)) == 8


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_a_row_is_seen_when_a_maximum_has_all_of_its_elements(dtype):
    seen = MaximaSeen(elements=8, numbered=3)
    codes = seen.codes(5, np.dtype(dtype))
    assert len(codes) == 8 and not np.signbit(codes).any()
    bits = codes.view(f"u{codes.itemsize}")
    for left in range(8):
        seen.note(np.bitwise_or.reduce(np.delete(bits, left), keepdims=True))
        assert not seen.rows[5]
    seen.note(np.bitwise_or.reduce(bits, keepdims=True))
    assert np.flatnonzero(seen.rows).tolist() == [5]
