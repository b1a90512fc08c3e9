"""Rows copied asynchronously into shared memory, by emulation; what breaks them is found out."""

from dataclasses import replace

import pytest
from covering import covering
from verified import find_out, some, threads_a_row, verify

from explorer.model.config import Config
from explorer.model.element import DType
from explorer.model.gpu_spec import known_gpu, known_gpu_for
from explorer.model.problem import Mask, Problem
from explorer.ops import Op
from explorer.space import Space

H200 = known_gpu("NVIDIA H200")

ASYNC = {"cache": "shared", "cache_holds": "input", "staging": "async"}


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    ("rows", "cols", "dtype"),
    [(9, 37, DType.F32), (9, 1003, DType.F16)],
)
def test_every_choice_at_ragged_and_whole_rows(emulator, rows, cols, dtype):
    problem = Problem(rows, cols, dtype)
    sizes = {"threads": (64, 256), "threads_per_row": threads_a_row(cols)}
    configs = covering(Space(problem, H200, {"staging": ("async",), **sizes}))
    assert len(configs) >= 5
    for config in some(configs, dtype):
        verify(emulator, problem, config)


@pytest.mark.sampled(5)
@pytest.mark.parametrize(
    "changes",
    [
        {"op": Op.LOG_SOFTMAX, "dtype": DType.F16, "scale": -0.5},
        {"dtype": DType.BF16, "out_dtype": DType.F32, "input_stride": 1007},
        {"dtype": DType.F32, "out_dtype": DType.F16, "output_stride": 1004},
        {"in_place": True},
    ],
)
@pytest.mark.parametrize("algorithm", ["three-pass", "online-block-max", "online-branchy"])
def test_rows_of_every_kind(emulator, changes, algorithm):
    config = Config(algorithm=algorithm, threads=64, threads_per_row=64, unroll=2, **ASYNC)
    verify(emulator, Problem(5, 1003, **changes), config)


def test_what_excludes_them():
    config = Config(**ASYNC)

    def broken(problem, changes=None, arch="sm_90"):
        rule = Space(problem, known_gpu_for(arch)).broken_rule(replace(config, **changes or {}))
        return rule.name if rule else None

    assert broken(Problem(8, 4096)) is None
    assert broken(Problem(8, 4096), arch="sm_80") is None
    assert broken(Problem(8, 4096), arch="sm_75") == "asynchronous-since"
    assert broken(Problem(8, 4096, mask=Mask.CAUSAL)) == "asynchronous-rows"
    assert broken(Problem(8, 4096, op=Op.SOFTMAX_BACKWARD)) == "asynchronous-rows"
    assert broken(Problem(8, 4096, inner=8)) == "asynchronous-rows"
    assert broken(Problem(8, 4096), {"cache_holds": "exp"}) == "asynchronous-to-shared"
    assert broken(Problem(8, 4096), {"load_hint": "nc"}) == "asynchronous-vectors"
    assert broken(Problem(8, 4096, DType.F16), {"vector_bytes": 2}) == "asynchronous-vectors"


WAIT = "  wait_for_copies();\n"

DEFECTS = {
    "copies are not waited for": [(WAIT, "")],
    "only a warp waits": [(WAIT, "  if (threadIdx.x < 32) wait_for_copies();\n")],
    "copies land one vector late": [
        ("copy_vector(row, k, cache[k])", "copy_vector(row, k, cache[k + 1])")
    ],
    "copies of the row's ends are of other bytes": [
        ("if (inside(row, k)) {\n    const unsigned", "if (k >= 0) {\n    const unsigned")
    ],
    "the last vector is not copied": [
        ("k < vectors; k += kThreadsPerRow) copy", "k < vectors - 1; k += kThreadsPerRow) copy")
    ],
}


@pytest.mark.sampled(5)
@pytest.mark.parametrize("defect", DEFECTS)
def test_defects_are_found_out(emulator, defect):
    config = Config(threads=64, threads_per_row=64, **ASYNC)
    find_out(emulator, Problem(5, 1003), config, DEFECTS[defect])
