"""Rows over blocks of two launches, verified by emulation; what breaks them is found out."""

import pytest
from covering import covering
from planted import planted
from verified import find_out, verify

from explorer.devices.program_under_test import ProgramUnderTest
from explorer.devices.verdict import Status
from explorer.model.config import Config
from explorer.model.element import DType
from explorer.model.gpu_spec import known_gpu
from explorer.model.problem import Problem
from explorer.ops import Op
from explorer.space import Space

H200 = known_gpu("NVIDIA H200")

TWO = {"launches": ("two", "two-overlapped"), "threads": (128, 512)}

SPLIT = {
    "algorithm": "online-block-max",
    "threads": 128,
    "threads_per_row": 128,
    "cache": "none",
    "cache_holds": "input",
    "unroll": 2,
}


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    "problem",
    [
        Problem(3, 8193),
        Problem(3, 8200, DType.BF16),
        Problem(3, 8193, op=Op.LOG_SOFTMAX, scale=-0.5, input_stride=8195, output_stride=8196),
        Problem(3, 8200, DType.BF16, scale=0.3, input_stride=8208),
    ],
    ids=str,
)
def test_every_choice_at_ragged_and_whole_rows(emulator, problem):
    configs = covering(Space(problem, H200, TWO))
    assert {config.launches for config in configs} == set(TWO["launches"])
    for config in configs:
        verify(emulator, problem, config)


WAIT = "  wait_for_launch_before();\n"

DEFECTS = {
    "the launch before is not waited for": [(WAIT, "")],
    "some threads do not wait": [(WAIT, "  if (thread_in_row < 64) wait_for_launch_before();\n")],
    "the wait comes after the read": [
        (WAIT, ""),
        (
            "  const float inverse_sum = 1.0f / state.sum;\n",
            f"  const float inverse_sum = 1.0f / state.sum;\n{WAIT}",
        ),
    ],
    "the last part is left out": [("k < kParts ?", "k < kParts - 1 ?")],
    "parts of the row before": [("scratch + index * kParts", "scratch + index * (kParts - 1)")],
    "every part takes the first one's place": [("scratch[blockIdx.x] =", "scratch[index] =")],
    "a part of one warp alone": [("  state = reduce_row(state);\n", "")],
    "parts overlap": [("% kParts * kBlockVectors", "% kParts * (kBlockVectors - 1)")],
    "a warp's lanes keep their own pairs": [
        ("return reduce_lanes<32>(state);", "return reduce_lanes<16>(state);")
    ],
}


@pytest.mark.sampled(10)
@pytest.mark.parametrize("defect", DEFECTS)
def test_defects_are_found_out(emulator, defect):
    config = Config(**SPLIT, launches="two-overlapped")
    find_out(emulator, Problem(3, 8193), config, DEFECTS[defect])


MANY_PARTS = Problem(1, 37501)  # of 128 elements: nine or ten for a lane, eight at a time
ROWS_OF_MANY = 40  # each one tells of all parts: all of some hundred patterns take a minute
DEFECTS_OF_MANY = {
    "pairs are not rescaled": (
        "batch[i].sum * exponential(batch[i].maximum, reference)",
        "batch[i].sum",
    ),
    "earlier pairs are not rescaled": (
        "state = {reference, state.sum * exponential(state.maximum, reference)};",
        "state.maximum = reference;",
    ),
    "parts after the first eight are left out": ("first += 32 * kBatch", "first += 64 * kBatch"),
}


SMALL = {"threads": 32, "threads_per_row": 32, "unroll": 1}
OF_MANY_PARTS = Config(**{**SPLIT, **SMALL}, launches="two-overlapped")
"""The smallest kernel with so many parts.

The emulator takes 45 s for one of 128 threads, which are the fewest that a search proposes.
"""


@pytest.mark.exhaustive
def test_a_lane_combines_many_parts(emulator):
    program = ProgramUnderTest.of_config(MANY_PARTS, OF_MANY_PARTS)
    assert emulator.verify(program, rows=ROWS_OF_MANY).status is Status.VERIFIED


@pytest.mark.exhaustive
@pytest.mark.parametrize("defect", DEFECTS_OF_MANY)
def test_defects_of_many_parts_are_found_out(emulator, defect):
    find_out(emulator, MANY_PARTS, OF_MANY_PARTS, [DEFECTS_OF_MANY[defect]], ROWS_OF_MANY)


@pytest.mark.exhaustive
def test_a_launch_that_follows_another_need_not_wait_for_it(emulator):
    program = ProgramUnderTest.of_config(Problem(3, 8193), Config(**SPLIT, launches="two"))
    assert "griddepcontrol" not in program.source
    assert emulator.verify(program).status is Status.VERIFIED


@pytest.mark.exhaustive
def test_what_an_overlapped_launch_wrote_is_not_for_the_non_coherent_cache(emulator):
    """Also behind the wait: that cache is for what is only read as long as a kernel runs."""
    right = "batch[i] = k < kParts ? parts[k]"
    wrong = "batch[i] = k < kParts ? State{__ldg(&parts[k].maximum), __ldg(&parts[k].sum)}"
    for launches, status in (("two-overlapped", Status.WRONG), ("two", Status.VERIFIED)):
        program = ProgramUnderTest.of_config(Problem(3, 8193), Config(**SPLIT, launches=launches))
        verdict = emulator.verify(planted(program, [(right, wrong)]))
        assert verdict.status is status, verdict.sentence
        assert ("non-coherent" in verdict.sentence) == (status is Status.WRONG)
