"""What peers make of an operator of one result a row, as far as that goes without a GPU."""

import math
import os
import subprocess
import sys
from importlib.util import find_spec

import pytest

from explorer.model.element import DType
from explorer.model.peer import PeerRefuses
from explorer.model.problem import Problem
from explorer.ops import Op
from explorer.peers.registry import EVERY, FOUR, check_scope

SUMS = Problem(8, 1000, DType.BF16, Op.LOGSUMEXP)


@pytest.mark.parametrize(
    ("peer", "options", "adapted"),
    [
        ("cudnn", {"dtypes": FOUR}, "softmax and log_softmax"),
        ("cupy", {}, "softmax and log_softmax"),
        ("quack", {"ops": ("softmax", "softmax_backward")}, "softmax and softmax_backward"),
        ("liger", {"ops": ("softmax",)}, "softmax"),
    ],
)
def test_a_peer_without_it_refuses_in_a_sentence(peer, options, adapted):
    with pytest.raises(PeerRefuses, match=f"^{peer} is adapted for {adapted}, not for logsumexp$"):
        check_scope(peer, SUMS, **options)


def test_only_the_usual_type_of_the_result_is_compared():
    check_scope("torch", SUMS, ops=EVERY, dtypes=FOUR)
    narrow = Problem(8, 1000, DType.BF16, Op.LOGSUMEXP, DType.BF16)
    with pytest.raises(PeerRefuses, match="usual types"):
        check_scope("torch", narrow, ops=EVERY, dtypes=FOUR)


@pytest.mark.parametrize("dtype", FOUR)
def test_pytorch_writes_the_results_given_to_it(dtype):
    torch = pytest.importorskip("torch", reason="needs PyTorch")
    from explorer.peers.torch_softmax import TORCH_TYPES, forward_of, result_shape

    problem = Problem(8, 1000, dtype, Op.LOGSUMEXP)
    x = torch.randn(problem.rows, problem.cols).to(TORCH_TYPES[dtype])
    out = torch.empty(result_shape(problem), dtype=TORCH_TYPES[problem.output_dtype])
    assert forward_of(problem)(x, -1, out=out) is out
    assert torch.allclose(out.double(), torch.logsumexp(x.double(), -1), rtol=1e-6)


INTERPRETED = """
import torch
from explorer.model.element import DType
from explorer.model.problem import Problem
from explorer.ops import Op
from explorer.peers import triton_softmax as peers

lost = float("inf")
for cols, dtype in ((3, DType.F32), (1000, DType.BF16), (4097, DType.F32)):
    problem = Problem(8, cols, dtype, Op.LOGSUMEXP)
    x = torch.randn(8, cols)
    x[1], x[2, 0], x[3, 1], x[4, : cols - 1], x[5] = -lost, lost, float("nan"), -lost, -3e38
    x[6, 0] = 3e38
    x = x.to(peers.TORCH_TYPES[dtype])
    expected = torch.logsumexp(x.double(), -1)
    for form in peers.forms(problem):
        for kernel in (peers._of_known_length(problem), peers._of_any_length(problem)):
            out = peers._launch(kernel, problem, form, x, torch.empty(8))
            near = torch.allclose(out.double(), expected, rtol=2e-6, atol=2e-6, equal_nan=True)
            assert near, (problem, form, out, expected)
"""


@pytest.mark.skipif(not find_spec("torch") or not find_spec("triton"), reason="needs Triton")
def test_tritons_kernels_are_right_in_its_interpreter():
    environment = {**os.environ, "TRITON_INTERPRET": "1"}
    subprocess.run([sys.executable, "-c", INTERPRETED], env=environment, check=True, timeout=300)


@pytest.mark.parametrize("cols", [1, 33, 1000, 4096, 151936, 2**24])
def test_forms_cover_a_row(cols):
    pytest.importorskip("triton", reason="needs Triton")
    pytest.importorskip("torch", reason="needs PyTorch")
    from explorer.peers.triton_softmax import MOST_BLOCKS, forms

    found = forms(Problem(8, cols, op=Op.LOGSUMEXP))
    assert 0 < len(found) < 12 and len(set(found)) == len(found)
    for warps, block in found:
        assert math.log2(block).is_integer() and block < 2 * max(cols, 1)
        assert warps == 32 or MOST_BLOCKS * block >= cols
    whole = forms(Problem(8, 4096))
    assert [tuple(form) for form in whole] == [(warps, 4096) for warps in (2, 4, 8, 16, 32)]
