"""Rows brought by bulk copies, one or several of a block at once; what breaks them is found out."""

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

BULK = {"cache": "shared", "cache_holds": "input", "staging": "bulk"}
RING = Config(
    algorithm="online-block-max", threads=64, threads_per_row=64, persistent=1, stages=2, **BULK
)


@pytest.mark.exhaustive
@pytest.mark.parametrize(("rows", "cols", "dtype"), [(19, 256, DType.BF16), (40, 250, DType.F64)])
def test_every_choice(emulator, rows, cols, dtype):
    problem = Problem(rows, cols, dtype)
    sizes = {"threads": (32, 64), "threads_per_row": threads_a_row(cols)}
    configs = covering(Space(problem, H200, {"staging": ("bulk",), **sizes}))
    assert {config.stages for config in configs} == {1, 2, 3, 4}
    for config in some(configs, dtype):
        verify(emulator, problem, config)


@pytest.mark.sampled(5)
@pytest.mark.parametrize(
    "changes",
    [
        {"op": Op.LOG_SOFTMAX, "dtype": DType.F16, "scale": -0.5},
        {"dtype": DType.BF16, "out_dtype": DType.F32, "input_stride": 1016},
        {"in_place": True},
    ],
)
@pytest.mark.parametrize("algorithm", ["three-pass", "online-block-max"])
def test_rows_of_every_kind(emulator, changes, algorithm):
    config = Config(algorithm=algorithm, threads=64, threads_per_row=64, unroll=2, **BULK)
    verify(emulator, Problem(5, 1000, **changes), config)


def test_what_excludes_them():
    def broken(problem, changes=None, arch="sm_90"):
        config = replace(Config(**BULK), **changes or {})
        rule = Space(problem, known_gpu_for(arch)).broken_rule(config)
        return rule.name if rule else None

    assert broken(Problem(8, 4096)) is None
    assert broken(Problem(8, 4096), {"persistent": 2, "stages": 4}) is None
    assert broken(Problem(8, 4096), arch="sm_80") == "asynchronous-since"
    assert broken(Problem(8, 4096, mask=Mask.CAUSAL)) == "asynchronous-rows"
    assert broken(Problem(8, 4096), {"cache_holds": "exp"}) == "asynchronous-to-shared"
    assert broken(Problem(8, 4096), {"vector_bytes": 8}) == "bulk-of-whole-rows"
    assert broken(Problem(8, 4096), {"threads_per_row": 128}) == "bulk-of-whole-rows"
    assert broken(Problem(8, 4097)) == "bulk-of-whole-rows"
    assert broken(Problem(8, 4096), {"stages": 2}) == "stages-of-a-ring"
    assert broken(Problem(8, 16384), {"persistent": 1, "stages": 4}) == "shared-fits"


SOME_ROWS = 40
"""Rows enough for several rounds of a block's ring of stages."""

DEFECTS = {
    "rows are not waited for": [("    wait_for_row(&arrived[stage], parity);\n", "")],
    "the parity stays": [("parity ^= 1", "parity ^= 0")],
    "a row lands where one is worked on": [
        ("(stage + kStages - 1) % kStages);", "stage);"),
        (
            "ahead = first_row + static_cast<long long>(kStages - 1)",
            "ahead = first_row + (kStages - 1)",
        ),
    ],
    "the next row comes before all have read this one": [
        ("    __syncthreads();  // the row and what", "    // the row and what")
    ],
    "the last bytes are not counted": [
        (
            '"r"(counter), "r"(bytes)\n               :',
            '"r"(counter), "r"(bytes - 16)\n               :',
        )
    ],
    "the last vector is not copied": [
        ("bytes = vectors * sizeof", "bytes = (vectors - 1) * sizeof")
    ],
    "every thread copies": [("if (threadIdx.x == 0 && ahead", "if (ahead")],
    "the mbarriers are made without a fence": [
        ('  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");\n', "")
    ],
    "the mbarriers may not be there yet": [("  __syncthreads();\n  int stage", "  int stage")],
}


@pytest.mark.sampled(5)
@pytest.mark.parametrize("defect", DEFECTS)
def test_defects_are_found_out(emulator, defect):
    find_out(emulator, Problem(40, 1000), RING, DEFECTS[defect], SOME_ROWS)
