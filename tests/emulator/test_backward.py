"""Gradients of rows, on the emulator: every way to reduce, to keep and to reach both matrices."""

import random

import pytest

from explorer.dtype import DType
from explorer.evaluate.emulation import Emulator
from explorer.evaluate.program_under_test import ProgramUnderTest
from explorer.gpu_spec import known_gpu
from explorer.op import Op
from explorer.problem import Problem
from explorer.space import Space

H200 = known_gpu("NVIDIA H200")
KERNELS = 5
"""Drawn for each kind."""

KINDS = {
    "whole vectors": {"cols": 96},
    "rows that start anywhere": {"cols": 97},
    "bf16, scaled": {"cols": 97, "dtype": DType.BF16, "scale": 0.5},
    "f16 to f32": {"cols": 96, "dtype": DType.F16, "out_dtype": DType.F32},
    "f64": {"cols": 65, "dtype": DType.F64},
    "gaps between rows": {"cols": 64, "input_stride": 72, "output_stride": 66},
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("op", [Op.SOFTMAX_BACKWARD, Op.LOG_SOFTMAX_BACKWARD])
def test_gradients_are_right(op, kind):
    problem = Problem(rows=20, op=op, **KINDS[kind])
    space, rng = Space(problem, H200), random.Random(kind)
    for _ in range(KERNELS):
        config = space.sample(rng)
        verdict = Emulator("sm_90").verify(ProgramUnderTest.of_config(problem, config))
        assert verdict.status == "verified", (config.to_json(brief=True), verdict.sentence)


def test_a_gradient_without_its_sum_is_wrong():
    problem = Problem(rows=20, cols=96, op=Op.SOFTMAX_BACKWARD)
    config = Space(problem, H200).sample(random.Random(1))
    program = ProgramUnderTest.of_config(problem, config)
    right = "return y * (dy - sum);"
    assert right in program.source
    wrong = ProgramUnderTest(program.source.replace(right, "return y * dy;"), problem, config)
    assert Emulator("sm_90").verify(wrong).status == "wrong"


@pytest.mark.parametrize("arch", ["sm_75", "sm_120"])
def test_gradients_compile_everywhere(arch):
    from explorer.compile import Compiler

    for op in (Op.SOFTMAX_BACKWARD, Op.LOG_SOFTMAX_BACKWARD):
        problem = Problem(rows=20, cols=1000, dtype=DType.BF16, op=op, scale=2.0)
        config = Space(problem, H200).sample(random.Random(arch))
        variant = ProgramUnderTest.of_config(problem, config)
        assert Compiler(arch).compile(variant.source).cubin
