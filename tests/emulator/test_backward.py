"""Gradients of rows, on the emulator: every way to reduce, to keep and to reach both matrices."""

import pytest
from verified import find_out, verify

from explorer.model.config import Config
from explorer.model.element import DType
from explorer.model.gpu_spec import known_gpu
from explorer.model.problem import Problem
from explorer.ops import Op
from explorer.space import Space
from explorer.space.covering import covering_array

H200 = known_gpu("NVIDIA H200")

SPLITS = {"threads": (32, 96, 128), "threads_per_row": (1, 8, 32, 96), "min_blocks": (1, 2)}
"""Of how a row is divided, one of each kind; of all other parameters every choice is tried."""

KINDS = {
    "whole vectors": {"cols": 96},
    "rows that start anywhere": {"cols": 97},
    "bf16, scaled": {"cols": 97, "dtype": DType.BF16, "scale": 0.5},
    "f16 to f32": {"cols": 96, "dtype": DType.F16, "out_dtype": DType.F32},
    "f64": {"cols": 65, "dtype": DType.F64},
    "gaps between rows": {"cols": 64, "input_stride": 72, "output_stride": 66},
}


def covering(problem):
    """Configs in which every legal choice occurs."""
    space = Space(problem, H200)
    return covering_array(Space(problem, H200, {**space.parameters, **SPLITS}))


@pytest.mark.exhaustive
@pytest.mark.parametrize("kind", KINDS)
def test_gradients_are_right(emulator, kind):
    """Of both gradients by turns, whole and ragged rows of either."""
    op = (Op.SOFTMAX_BACKWARD, Op.LOG_SOFTMAX_BACKWARD)[list(KINDS).index(kind) // 2 % 2]
    problem = Problem(rows=20, op=op, **KINDS[kind])
    configs = covering(problem)
    assert {config.cache for config in configs} == {"registers", "shared", "none"}
    for config in configs[len(kind) % 2 :: 2]:
        verify(emulator, problem, config)


@pytest.mark.parametrize("cache", ["registers", "none"])
@pytest.mark.parametrize(
    ("op", "right", "wrong"),
    [
        (Op.SOFTMAX_BACKWARD, "return y * (dy - sum);", "return y * dy;"),
        (Op.SOFTMAX_BACKWARD, "+= y[i] * dy[i];", "+= dy[i];"),
        (Op.LOG_SOFTMAX_BACKWARD, "sum = reduce_row(sum);", ""),
    ],
)
def test_a_gradient_of_another_sum_is_wrong(emulator, op, right, wrong, cache):
    config = Config(threads=64, threads_per_row=16, cache=cache, cache_holds="input")
    find_out(emulator, Problem(20, 96, op=op), config, [(right, wrong)])
