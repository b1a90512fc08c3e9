"""What PyTorch computes and promises, on kernels run by the emulator, in PyTorch's own cases.

Cases after its test suite: test/test_nn.py (softmax results, large logits), the samples of
softmax in its operator tests (ranks 1 to 3, every axis), test/inductor/test_online_softmax.py
(NaN, infinities and masks at the start, middle and end of a row).
"""

import functools
import random

import numpy as np
import pytest
from emulated_output import output_of

from explorer.codegen.units import emit
from explorer.compile.compiler import Compiler
from explorer.devices.emulated.device import EmulatedKernel
from explorer.model.config import Config
from explorer.model.element import DType
from explorer.model.gpu_spec import known_gpu
from explorer.model.problem import Mask, Problem
from explorer.model.query import ProblemQuery
from explorer.ops import Op
from explorer.space import Space

torch = pytest.importorskip("torch", reason="needs PyTorch: pip install 'softmax-explorer[torch]'")

TORCH_DTYPES = {
    DType.F32: torch.float32,
    DType.F16: torch.float16,
    DType.BF16: torch.bfloat16,
    DType.F64: torch.float64,
}
CLOSE = {DType.F32: (1e-5, 1e-6), DType.F16: (2e-3, 1e-6), DType.BF16: (1.6e-2, 1e-6)}
CLOSE[DType.F64] = (1e-12, 1e-14)
"""Relative and absolute tolerance: PyTorch's own roundings count too."""

KERNELS = 2
"""Kernels drawn for each case."""


@functools.cache
def kernel(problem: Problem, config: Config) -> EmulatedKernel:
    variant = emit(problem, config)
    return EmulatedKernel.of(
        Compiler("compute_90").compile(variant.code).ptx, variant.launches, variant.scratch_bytes
    )


def configs(problem: Problem) -> list[Config]:
    rng = random.Random(str(problem))
    space = Space(problem, known_gpu("NVIDIA H200"))
    return [space.sample(rng) for _ in range(KERNELS)]


def to_numpy(tensor):
    import ml_dtypes

    if tensor.dtype is torch.bfloat16:
        return tensor.view(torch.int16).numpy().view(ml_dtypes.bfloat16)
    return tensor.numpy()


def rows_of(tensor, axis):
    """A tensor as the (rows, cols) array of a problem whose axis it is."""
    return to_numpy(tensor.movedim(axis, -1).reshape(-1, tensor.shape[axis]).contiguous())


def problem_of(tensor, axis, **kind):
    inner = int(np.prod(tensor.shape[axis % tensor.dim() + 1 :], dtype=int))
    dtype = next(ours for ours, theirs in TORCH_DTYPES.items() if theirs is tensor.dtype)
    cols = tensor.shape[axis]
    return ProblemQuery(cols, dtype, tensor.numel() // cols, inner=inner, **kind).problem()


def agree(problem, arrays, expected):
    """Every kernel drawn computes what PyTorch does, NaN for NaN."""
    relative, absolute = CLOSE[problem.output_dtype]
    for config in configs(problem):
        got = output_of(kernel(problem, config), problem, arrays).astype(np.float64)
        assert np.allclose(
            got, expected.astype(np.float64), rtol=relative, atol=absolute, equal_nan=True
        ), config.to_json(brief=True)


SHAPES = [((7,), 0), ((7, 7), 0), ((7, 7), 1), ((7, 7), -1), ((7, 5, 7), 2), ((3, 5, 4), 1)]


@pytest.mark.parametrize("dtype", list(DType))
@pytest.mark.parametrize(("shape", "axis"), SHAPES, ids=str)
@pytest.mark.parametrize("op", [Op.SOFTMAX, Op.LOG_SOFTMAX])
def test_every_rank_and_axis(op, shape, axis, dtype):
    torch.manual_seed(1)
    x = torch.randn(shape, dtype=torch.float64).to(TORCH_DTYPES[dtype])
    expected = getattr(torch, op)(x, axis)
    agree(problem_of(x, axis, op=op), {"input": rows_of(x, axis)}, rows_of(expected, axis))


@pytest.mark.parametrize("op", [Op.SOFTMAX, Op.LOG_SOFTMAX])
@pytest.mark.parametrize("dtype", [DType.F16, DType.F32])
@pytest.mark.parametrize("cols", [31, 32, 1000, 1025])
def test_softmax_results(op, dtype, cols):
    """Large random logits, as the suite compares fused softmax with."""
    torch.manual_seed(2)
    x = (10 * torch.randn(5, cols)).to(TORCH_DTYPES[dtype])
    expected = getattr(torch, op)(x.float(), 1).to(x.dtype)
    agree(problem_of(x, 1, op=op), {"input": to_numpy(x)}, to_numpy(expected))


@pytest.mark.parametrize("op", [Op.SOFTMAX, Op.LOG_SOFTMAX])
@pytest.mark.parametrize("axis", [0, 1])
def test_backward(op, axis):
    torch.manual_seed(3)
    x = torch.randn(12, 20, requires_grad=True)
    y = getattr(torch, op)(x, axis)
    grad = torch.randn(12, 20)
    y.backward(grad)
    problem = problem_of(x.detach(), axis, op=Op(f"{op}_backward"))
    arrays = {"input": rows_of(y.detach(), axis), "grad": rows_of(grad, axis)}
    agree(problem, arrays, rows_of(x.grad, axis))


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
@pytest.mark.parametrize("place", [0, 511, 1022])
@pytest.mark.parametrize("op", [Op.SOFTMAX, Op.LOG_SOFTMAX])
def test_a_value_that_is_no_number_stays_in_its_row(op, place, value):
    torch.manual_seed(4)
    x = torch.randn(3, 1023)
    x[1, place] = value
    agree(problem_of(x, 1, op=op), {"input": to_numpy(x)}, to_numpy(getattr(torch, op)(x, 1)))


def test_rows_and_parts_of_rows_that_are_masked():
    x = torch.randn(6, 1030)
    x[0] = float("-inf")
    x[1, :1029] = float("-inf")
    x[2, 1:] = float("-inf")
    x[3, 200:900] = float("-inf")
    x[4, ::2] = float("-inf")
    agree(problem_of(x, 1), {"input": to_numpy(x)}, to_numpy(torch.softmax(x, 1)))


def test_large_offsets_lose_nothing_in_log_softmax():
    x = torch.tensor([[1e8, 1.0], [-1e8, -1e8], [0.0, -1e4]])
    expected = torch.log_softmax(x.double(), 1).float()
    agree(problem_of(x, 1, op=Op.LOG_SOFTMAX), {"input": to_numpy(x)}, to_numpy(expected))


@pytest.mark.parametrize("dtype", [DType.F16, DType.BF16])
def test_an_output_of_fp32(dtype):
    """`softmax(x, dtype=torch.float32)` of 16-bit numbers."""
    x = torch.randn(5, 300).to(TORCH_DTYPES[dtype])
    expected = torch.softmax(x, 1, dtype=torch.float32)
    problem = problem_of(x, 1, out_dtype=DType.F32)
    agree(problem, {"input": to_numpy(x)}, to_numpy(expected))


def test_causal_attention_scores():
    """Square scores of several heads, masked above the diagonal."""
    x = torch.randn(2, 24, 24)
    hidden = torch.ones(24, 24, dtype=torch.bool).triu(1)
    expected = torch.softmax(x.masked_fill(hidden, float("-inf")), -1)
    problem = problem_of(x, -1, mask=Mask.CAUSAL, mask_rows=24)
    agree(problem, {"input": rows_of(x, -1)}, rows_of(expected, -1))


def test_scale_and_additive_mask():
    """As scaled dot product attention applies them to scores."""
    x, mask = torch.randn(4, 6, 40), torch.randn(6, 40)
    mask[:, 30:] = float("-inf")
    expected = torch.softmax(x * 0.125 + mask, -1)
    problem = problem_of(x, -1, scale=0.125, mask=Mask.ADDITIVE, mask_rows=6)
    arrays = {"input": rows_of(x, -1), "mask": to_numpy(mask)}
    agree(problem, arrays, rows_of(expected, -1))


def test_rows_of_a_wider_matrix():
    """A view of columns: rows keep the stride of the matrix that they are part of."""
    whole = torch.randn(5, 96)
    x = whole[:, :70]
    problem = problem_of(x, 1, input_stride=96)
    agree(problem, {"input": to_numpy(x.contiguous())}, to_numpy(torch.softmax(x, 1)))
