"""Profiles: counts that can be worked out by hand."""

import pytest

from explorer.choose import config_for
from explorer.codegen.units import emit
from explorer.devices.program_under_test import ProgramUnderTest
from explorer.evaluate.profile import counted_problem, profile
from explorer.model.config import Config
from explorer.model.element import DType
from explorer.model.errors import InvalidInput
from explorer.model.gpu_spec import known_gpu
from explorer.model.problem import Mask, Problem
from explorer.ops import Op

H200 = known_gpu("NVIDIA H200")


def test_a_kernel_that_keeps_its_row_moves_each_byte_once():
    problem = Problem(8192, 4096)
    made = profile(ProgramUnderTest.of(emit(problem, Config())), H200)
    elements = made.emulated.rows * 4096
    for traffic in (made.counters.global_loads, made.counters.global_stores):
        assert traffic.bytes == traffic.sectors * 32 == 4 * elements
        assert traffic.widths == {16: elements // 128}  # 32 lanes of 4 elements a request
    assert made.counters.barriers == 2 * made.emulated.rows  # one a reduction, a row a block
    assert made.scale == 8192 / made.emulated.rows
    assert made.occupancy.blocks_per_sm > 0 and made.resources.registers > 0


def test_a_kernel_that_keeps_nothing_reads_three_times():
    config = Config(cache="none", cache_holds="input")
    made = profile(ProgramUnderTest.of(emit(Problem(8192, 4096), config)), H200)
    assert made.counters.global_loads.sectors == 3 * made.counters.global_stores.sectors


def test_few_rows_are_counted_whole():
    variant = emit(Problem(5, 100), Config(threads_per_row=32))
    assert counted_problem(variant) == variant.problem
    assert profile(ProgramUnderTest.of(variant), H200).scale == 1


def test_rows_begin_at_every_place_of_a_sector():
    variant = emit(Problem(8192, 4097, DType.BF16), Config(threads_per_row=128))
    assert counted_problem(variant).rows == 16  # 2 rows a block; 8194 bytes a row, 32 a sector


def test_rows_too_wide_are_refused():
    config = Config(cache="none", cache_holds="input", static_cols=False)
    with pytest.raises(InvalidInput, match="on a GPU"):
        profile(ProgramUnderTest.of(emit(Problem(1, 2**24), config)), H200)


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    "problem",
    [
        Problem(4096, 4096, mask=Mask.CAUSAL),
        Problem(8192, 4096, mask=Mask.CAUSAL, mask_rows=1024),
        Problem(8192, 4096, op=Op.SOFTMAX_BACKWARD),
        Problem(8192, 4096, DType.BF16, out_dtype=DType.F32),
        Problem(8192, 1024, inner=8192),
        Problem(8200, 128, inner=5),
    ],
    ids=str,
)
def test_few_rows_stand_for_all(problem):
    made = profile(ProgramUnderTest.of(emit(problem, config_for(problem, H200))), H200)
    loads, stores = made.counters.global_loads.bytes, made.counters.global_stores.bytes
    assert loads * made.scale == pytest.approx(problem.read_bytes, rel=0.01)
    assert stores * made.scale == problem.written_bytes
