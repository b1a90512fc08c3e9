"""What a GPU is to run of a variant is worked out from its config, and is what its header says."""

import pytest

from explorer.codegen import emit
from explorer.dtype import DType
from explorer.evaluate.live import _Launches
from explorer.evaluate.program_under_test import ProgramUnderTest
from explorer.evaluate.runs import gpu_runs
from explorer.gpu_spec import known_gpu_for
from explorer.problem import Mask, Op, Problem
from explorer.space import Space
from explorer.space.space import sampled

PROBLEMS = [
    Problem(8192, 4096),
    Problem(1000, 1001, DType.BF16),
    Problem(3, 1048576),
    Problem(64, 151936, DType.F16),
    Problem(8192, 4096, inner=8192),
    Problem(8192, 1000, op=Op.SOFTMAX_BACKWARD),
    Problem(4096, 4096, mask=Mask.CAUSAL, mask_rows=512),
    Problem(500, 33, in_place=True),
]


@pytest.mark.parametrize("problem", PROBLEMS, ids=str)
def test_a_config_gives_the_launches_of_the_header(problem):
    for config in sampled(Space(problem, known_gpu_for("sm_90")), 12, seed=5):
        program = ProgramUnderTest.of(emit(problem, config))
        by_config = _Launches(program, is_variant=True)
        by_header = _Launches(program, is_variant=False)
        for each in [problem, *(run.problem for run in gpu_runs(program))]:
            assert by_config.launches(each) == by_header.launches(each), (config, each)
            assert by_config.scratch_bytes(each) == by_header.scratch_bytes(each), (config, each)
