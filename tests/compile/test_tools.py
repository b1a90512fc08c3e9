"""The explorer's own GPU code compiles for every kind of problem; no GPU is needed."""

import pytest

from explorer.compile import Compiler
from explorer.devices.cuda.tools import LIMIT_HINTS, LIMIT_SHAPES, is_plain_copy, tools_source
from explorer.dtype import DType
from explorer.problem import Mask, Op, Problem

KINDS = [
    *(Problem(64, 64, dtype) for dtype in DType),
    Problem(64, 64, DType.BF16, out_dtype=DType.F32),
    Problem(64, 64, DType.F32, out_dtype=DType.F16),
    Problem(64, 64, DType.F16, Op.SOFTMAX_BACKWARD),
    Problem(64, 64, mask=Mask.CAUSAL),
    Problem(64, 64, mask=Mask.ADDITIVE),
]

FILLS = {"fill_noise", "fill_softmax", "fill_log_softmax", "fill_lengths"}


@pytest.mark.sampled(16)
@pytest.mark.parametrize("problem", KINDS, ids=str)
def test_they_compile(problem):
    cubin = Compiler("sm_90").compile(tools_source(problem)).cubin
    kind = "copy" if is_plain_copy(problem) else "stream"
    names = {shape.entry(kind) for shape in LIMIT_SHAPES} | {"check_rows", "write_truths"}
    assert all(name.encode() in cubin for name in names | FILLS)
    assert len(LIMIT_HINTS) == 9


def test_a_plain_copy_is_the_limit_where_one_matrix_is_read_and_as_much_written():
    assert is_plain_copy(Problem(64, 64, scale=2.0))
    assert is_plain_copy(Problem(64, 64, DType.BF16, out_dtype=DType.F16))
    assert not is_plain_copy(Problem(64, 64, DType.BF16, out_dtype=DType.F32))
    assert not is_plain_copy(Problem(64, 64, op=Op.LOG_SOFTMAX_BACKWARD))
    assert not is_plain_copy(Problem(64, 64, mask=Mask.CAUSAL))
