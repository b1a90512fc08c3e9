"""What peers make of losses and of a few results a row, as far as that goes without a GPU."""

import math
import os
import subprocess
import sys
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest

from explorer.model.element import DType
from explorer.model.peer import PeerRefuses
from explorer.model.problem import Problem
from explorer.ops import Extent, Op
from explorer.peers.registry import EVERY, FOUR, check_scope
from explorer.reference.truth import truths_of

SUMS = Problem(8, 1000, DType.BF16, Op.LOGSUMEXP)
CHOSEN = Problem(
    8,
    1000,
    DType.BF16,
    Op.LOG_PROB,
    ids_per_row=3,
    ids_dtype="int32",
    also="lse,entropy,rank,argmax",
)


@pytest.mark.parametrize(
    ("peer", "options", "adapted"),
    [
        ("cudnn", {"dtypes": FOUR}, "softmax and log_softmax"),
        ("cupy", {}, "softmax and log_softmax"),
        (
            "quack",
            {"ops": ("softmax", "softmax_backward", "log_prob")},
            "softmax, softmax_backward and log_prob",
        ),
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


def test_only_results_that_a_peer_is_adapted_for_are_compared():
    check_scope("torch", CHOSEN, ops=EVERY, also=("lse", "entropy", "rank", "argmax"))
    with pytest.raises(PeerRefuses, match="quack is adapted for no rank and no argmax beside"):
        check_scope("quack", CHOSEN, ops=EVERY, also=("lse", "entropy"))


@pytest.mark.parametrize("dtype", FOUR)
def test_pytorch_writes_the_output_given_to_it(dtype):
    torch = pytest.importorskip("torch", reason="needs PyTorch")
    from explorer.peers.torch_softmax import TORCH_TYPES, forward_of, written_by

    problem = Problem(8, 1000, dtype, Op.LOGSUMEXP)
    x = torch.randn(problem.rows, problem.cols).to(TORCH_TYPES[dtype])
    (out,) = (array.empty() for array in written_by(problem))
    assert forward_of(problem)(x, out=out) is out
    assert torch.allclose(out.double(), torch.logsumexp(x.double(), -1), rtol=1e-6)


@pytest.mark.parametrize("also", ["", "lse,entropy,rank,argmax"])
@pytest.mark.parametrize("dtype", FOUR)
def test_pytorch_computes_every_result_of_chosen_columns(dtype, also):
    torch = pytest.importorskip("torch", reason="needs PyTorch")
    from explorer.peers.torch_softmax import TORCH_TYPES, forward_of, read_by, written_by

    problem = replace(CHOSEN, dtype=dtype, out_dtype=None, also=also)
    arrays = arrays_for(problem)
    assert [array.name for array in read_by(problem)] == ["input", "ids"]
    x = torch.from_numpy(arrays["input"].astype(float)).to(TORCH_TYPES[dtype])
    made = forward_of(problem)(x, torch.from_numpy(arrays["ids"]))
    made = made if also else (made,)
    for array, tensor in zip(written_by(problem), made, strict=True):
        assert tuple(tensor.shape) == array.shape and tensor.dtype == TORCH_TYPES[array.dtype]
        check(problem, arrays, array.name, tensor.numpy())


LOSSES = [
    Problem(8, 1000, op=Op.CROSS_ENTROPY, also="lse", ids_dtype="int32"),
    Problem(8, 1000, op=Op.CROSS_ENTROPY_BACKWARD),
    Problem(8, 1000, op=Op.CROSS_ENTROPY_WITH_GRADIENT),
    Problem(8, 1000, op=Op.CROSS_ENTROPY_WITH_GRADIENT, also="loss,lse"),
]


@pytest.mark.parametrize("problem", LOSSES, ids=str)
@pytest.mark.parametrize("is_compiled", [False, True])
def test_pytorch_computes_losses_and_their_gradient(problem, is_compiled):
    torch = pytest.importorskip("torch", reason="needs PyTorch")
    from explorer.peers.torch_softmax import forward_of, read_by, written_by

    arrays, function = arrays_for(problem), forward_of(problem)
    if is_compiled:
        function = torch.compile(function, backend="aot_eager", fullgraph=True)
    made = function(*(torch.from_numpy(arrays[array.name]) for array in read_by(problem)))
    made = made if problem.also else (made,)
    for array, tensor in zip(written_by(problem), made, strict=True):
        assert tuple(tensor.shape) == array.shape
        check(problem, arrays, array.name, tensor.numpy())


def arrays_for(problem):
    """Noise, and columns of it, the last ones of each row among them."""
    random = np.random.default_rng(0)
    matrix = random.standard_normal((problem.rows, problem.cols)).astype(problem.dtype.numpy)
    ids = random.integers(0, problem.cols, (problem.rows, problem.ids_per_row))
    ids[:: problem.rows if problem.ids_per_row == 1 else 1, -1] = problem.cols - 1
    numbers = [name for name, extent in problem.operator.operands.items() if extent is Extent.ROW]
    return {
        "input": matrix,
        "ids": ids.astype(problem.ids_dtype.numpy),
        **{name: random.random((problem.rows, 1), np.float32) for name in numbers},
    }


def check(problem, arrays, name, found):
    """Compare a result with its truth."""
    truth = truths_of(problem, arrays)[name]
    expected = truth.values.reshape(found.shape).astype(float)
    size = np.maximum(truth.magnitude.reshape(found.shape).astype(float), 1e-300)
    assert (np.abs(found - expected) <= 4e-6 * size).all(), name


INTERPRETED = """
import torch
from dataclasses import replace
from tests.peers.test_peers_of_few_results import CHOSEN, arrays_for, check
from explorer.model.element import DType
from explorer.model.problem import Problem
from explorer.ops import BACKWARD, FORWARD, OPERATORS, Op
from explorer.peers import triton_softmax as peers
from explorer.peers.torch_softmax import TORCH_TYPES

lost = float("inf")
for cols, dtype in ((3, DType.F32), (1000, DType.BF16), (4097, DType.F32)):
    problem = Problem(8, cols, dtype, Op.LOGSUMEXP)
    x = torch.randn(8, cols)
    x[1], x[2, 0], x[3, 1], x[4, : cols - 1], x[5] = -lost, lost, float("nan"), -lost, -3e38
    x[6, 0] = 3e38
    x = x.to(TORCH_TYPES[dtype])
    expected = torch.logsumexp(x.double(), -1)
    for form in peers.forms(problem):
        for kernels in (peers.OF_KNOWN_LENGTH, peers.OF_ANY_LENGTH):
            (out,) = peers.launch_once(kernels, problem, form, x, torch.empty(8))
            near = torch.allclose(out.double(), expected, rtol=2e-6, atol=2e-6, equal_nan=True)
            assert near, (problem, form, out, expected)

ONE = Problem(8, 4097, DType.BF16, Op.LOG_PROB, also="rank")
for problem in (CHOSEN, ONE, replace(CHOSEN, also="")):
    arrays = arrays_for(problem)
    ids = torch.from_numpy(arrays["ids"])
    x = torch.from_numpy(arrays["input"].astype(float)).to(torch.bfloat16)
    for form in peers.forms(problem):
        for kernels in (peers.OF_KNOWN_LENGTH, peers.OF_ANY_LENGTH):
            written = [array.empty() for array in peers.written_by(problem)]
            made = peers.launch_once(kernels, problem, form, x, ids, *written)
            for one, tensor in zip(problem.results, made, strict=True):
                check(problem, arrays, one.name, tensor.numpy())

x, grad = torch.randn(4, 100), torch.randn(4, 100)
for op, backward in zip(FORWARD, BACKWARD, strict=True):
    y = (torch.log_softmax if OPERATORS[op].is_log else torch.softmax)(x, -1)
    own = (torch._log_softmax_backward_data if OPERATORS[op].is_log else
           torch._softmax_backward_data)(grad, y, -1, torch.float32)
    for name, read, expected in ((op, (x,), y), (backward, (y, grad), own)):
        for kernels in (peers.OF_KNOWN_LENGTH, peers.OF_ANY_LENGTH):
            problem = Problem(4, 100, op=name)
            form = peers.forms(problem)[0]
            (out,) = peers.launch_once(kernels, problem, form, *read, torch.empty(4, 100))
            torch.testing.assert_close(out, expected)
"""


LIGER = """
import torch
from dataclasses import replace
from explorer.model.gpu_spec import known_gpu
from explorer.peers.liger import launch_losses
from explorer.peers.torch_softmax import written_by
from explorer.peers.triton_softmax import stand_in
from tests.peers.test_peers_of_few_results import LOSSES, arrays_for, check

stand_in(known_gpu("NVIDIA H200"))
for problem in (replace(LOSSES[0], also=""), LOSSES[2], replace(LOSSES[2], also="loss")):
    arrays = arrays_for(problem)
    arrays |= {"loss_grad": arrays["loss_grad"] * 0 + 1} if "loss_grad" in arrays else {}
    made = launch_losses(problem, *(torch.from_numpy(arrays[n]).clone() for n in ("input", "ids")))
    for array, tensor in zip(written_by(problem), made if problem.also else (made,), strict=True):
        check(problem, arrays, array.name, tensor.numpy())
"""


@pytest.mark.parametrize(("program", "package"), [(INTERPRETED, "triton"), (LIGER, "liger_kernel")])
def test_tritons_kernels_are_right_in_its_interpreter(program, package):
    if not all(map(find_spec, ("torch", "triton", package))):
        pytest.skip(f"needs {package}")
    environment = {**os.environ, "TRITON_INTERPRET": "1"}
    command, root = [sys.executable, "-c", program], Path(__file__).parents[2]
    subprocess.run(command, cwd=root, env=environment, check=True, timeout=300)


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
