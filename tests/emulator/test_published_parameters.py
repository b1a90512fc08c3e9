"""What published kernels are made of, each choice verified by emulation."""

from dataclasses import replace

import pytest

from explorer.devices.emulated.result import Status
from explorer.evaluate.emulation import Emulator
from explorer.evaluate.program_under_test import ProgramUnderTest
from explorer.model.config import Config
from explorer.model.dtype import DType
from explorer.model.gpu_spec import known_gpu
from explorer.model.problem import Problem
from explorer.space import Space

H200 = known_gpu("NVIDIA H200")


@pytest.fixture(scope="module")
def emulator():
    return Emulator("sm_90")


def verify(emulator, problem, **choices):
    config = Config(**choices)
    space = Space(problem, H200)
    assert space.foreign_value(config) is None, space.foreign_value(config)
    broken = space.broken_rule(config)
    assert broken is None, broken.reason(config)
    verdict = emulator.verify(ProgramUnderTest.of_config(problem, config))
    assert verdict.status is Status.VERIFIED, verdict.sentence


@pytest.mark.sampled(36)
@pytest.mark.parametrize(
    ("dtype", "choices"),
    [
        (DType.F32, {}),
        (
            DType.BF16,
            {"algorithm": "online", "cache": "none", "cache_holds": "input", "vector_bytes": 4},
        ),
        (DType.F16, {"threads": 192, "threads_per_row": 96, "exp": "exp2f"}),
        (DType.F32, {"algorithm": "online-block-max", "threads": 512}),
    ],
)
def test_first_warp_folds_what_the_warps_found(emulator, dtype, choices):
    verify(emulator, Problem(64, 1003, dtype), reduction="shuffle-first-warp", **choices)


@pytest.mark.sampled(18)
@pytest.mark.parametrize(
    ("cols", "dtype", "choices"),
    [
        (64, DType.F32, {"threads": 64, "threads_per_row": 8, "rows_per_thread": 4}),
        (33, DType.BF16, {"threads": 96, "threads_per_row": 4, "rows_per_thread": 2}),
        (37, DType.F32, {"threads": 32, "threads_per_row": 1, "rows_per_thread": 2}),
        (40, DType.F16, {"threads": 32, "threads_per_row": 1, "cache_holds": "input"}),
        (501, DType.F32, {"threads": 128, "threads_per_row": 64, "rows_per_thread": 8}),
        (520, DType.BF16, {"threads_per_row": 64, "cache_holds": "input", "load_hint": "nc"}),
    ],
)
@pytest.mark.parametrize("algorithm", ["three-pass", "online-block-max", "online-branchy"])
def test_threads_work_on_several_rows_at_once(emulator, cols, dtype, choices, algorithm):
    wanted = {"rows_per_thread": 2, "algorithm": algorithm, **choices}
    if algorithm == "online-branchy":
        wanted["cache_holds"] = "input"
    verify(emulator, Problem(64, cols, dtype), **wanted)


@pytest.mark.sampled(6)
@pytest.mark.parametrize(
    ("cols", "dtype", "choices"),
    [
        (1024, DType.F32, {"threads": 64, "threads_per_row": 64, "unroll": 2}),
        (1001, DType.F32, {"threads": 128, "threads_per_row": 32, "static_cols": False}),
        (503, DType.F32, {"threads": 96, "threads_per_row": 96, "reduction": "shared-tree"}),
        (130, DType.F64, {"threads": 64, "threads_per_row": 1, "exp": "exp2f"}),
    ],
)
def test_exponentials_wait_in_the_output(emulator, cols, dtype, choices):
    verify(emulator, Problem(64, cols, dtype), cache="output", **choices)


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    ("cols", "dtype", "choices"),
    [
        (96, DType.F16, {"threads": 32, "threads_per_row": 1, "vector_bytes": 2}),
        (1000, DType.F16, {"threads": 128, "threads_per_row": 128, "vector_bytes": 8}),
        (1001, DType.F32, {"threads": 128, "threads_per_row": 32, "static_cols": False}),
        (503, DType.BF16, {"threads": 96, "threads_per_row": 96, "reduction": "shared-serial"}),
        (130, DType.F64, {"threads": 64, "threads_per_row": 1, "exp": "exp2f"}),
    ],
)
def test_three_launches_share_scratch(emulator, cols, dtype, choices):
    usual = {"cache": "none", "cache_holds": "input", "vector_bytes": 8}
    verify(emulator, Problem(64, cols, dtype), launches="three", **{**usual, **choices})


@pytest.mark.sampled(12)
@pytest.mark.parametrize(
    ("cols", "dtype", "choices"),
    [
        (512, DType.F32, {"threads": 64, "threads_per_row": 64}),
        (501, DType.F16, {"threads": 64, "threads_per_row": 32, "cache": "shared"}),
        (1001, DType.BF16, {"threads": 96, "threads_per_row": 96, "static_cols": False}),
        (300, DType.F32, {"threads": 64, "threads_per_row": 16, "reduction": "shared-tree"}),
        (64, DType.F32, {"threads": 32, "threads_per_row": 4, "rows_per_thread": 2}),
        (520, DType.F32, {"threads": 128, "threads_per_row": 64, "rows_per_thread": 2}),
        (260, DType.F32, {"threads": 64, "threads_per_row": 64, "reduction": "shuffle-first-warp"}),
        (77, DType.F32, {"threads": 1, "threads_per_row": 1, "cache": "none"}),
    ],
)
@pytest.mark.parametrize("algorithm", ["three-pass", "online-block-max"])
def test_blocks_stride_over_the_rows(emulator, cols, dtype, choices, algorithm):
    """On two emulated SMs: 19 rows and more are several rounds of every block."""
    choices = {"persistent": 1, "algorithm": algorithm, "cache_holds": "input", **choices}
    if not choices.get("static_cols", True):
        choices["cache"] = "none"
    verify(emulator, Problem(64, cols, dtype), **choices)


def test_a_missing_barrier_between_rows_is_found(emulator):
    """Without it the next rows' reduction overwrites what threads still read."""
    config = Config(threads=128, threads_per_row=128, algorithm="online-block-max", persistent=1)
    program = ProgramUnderTest.of_config(Problem(64, 512), config)
    barrier = "    __syncthreads();  // the next rows"
    assert program.source.count(barrier) == 1
    broken = replace(program, source=program.source.replace(barrier, "    // the next rows"))
    assert emulator.verify(broken).status is Status.WRONG


BY_64 = {"threads": 64, "threads_per_row": 64}
BY_96 = {"threads": 96, "threads_per_row": 96}


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    ("algorithm", "cols", "dtype", "choices"),
    [
        ("three-pass", 2048, DType.F32, {"threads": 32, "threads_per_row": 1, "vector_bytes": 4}),
        ("online", 1001, DType.F32, {**BY_96, "reduction": "shared-serial"}),
        ("online-branchy", 1001, DType.F32, {**BY_64, "reduction": "shared-tree"}),
        ("online-block-max", 512, DType.BF16, {**BY_64, "cache": "shared"}),
        ("online", 2048, DType.F32, {"threads": 32, "threads_per_row": 1, "vector_bytes": 4}),
        ("three-pass", 700, DType.F32, {**BY_64, "reduction": "shuffle-first-warp"}),
        ("online-block-max", 1001, DType.F32, {**BY_96, "reduction": "shared-serial"}),
    ],
)
def test_a_compensated_sum(emulator, algorithm, cols, dtype, choices):
    usual = {"cache": "none", "cache_holds": "input", "sum": "compensated", "algorithm": algorithm}
    verify(emulator, Problem(64, cols, dtype), **{**usual, **choices})
