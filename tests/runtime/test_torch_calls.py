"""Calls on PyTorch's tensors: our kernels, run by the emulator, come to what PyTorch does."""

import copy
import itertools
import math
import subprocess
import sys
import warnings

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch_cases import serve_cpu, torch

import explorer
from explorer.model.errors import InvalidInput
from explorer.model.problem import Mask
from explorer.model.query import query_from_keywords
from explorer.ops import Op
from explorer.runtime import recipes, torch_calls, torch_operators
from explorer.runtime.layout import Call, mask_rows_of
from explorer.runtime.torch_calls import TENSORS

F16, BF16, F32, F64 = torch.float16, torch.bfloat16, torch.float32, torch.float64
DTYPES = [F32, F64, F16, BF16]
FUNCTIONS = {"softmax": explorer.softmax, "log_softmax": explorer.log_softmax}
OWN = {"softmax": torch.softmax, "log_softmax": torch.log_softmax}
BOTH = pytest.mark.parametrize("name", FUNCTIONS)


@pytest.fixture
def ours(monkeypatch):
    """Our kernels serve tensors on the CPU; the list of the problems of all launches."""
    return serve_cpu(monkeypatch)


@pytest.fixture(autouse=True)
def same_numbers():
    torch.manual_seed(0)


def close(got, expected, loose=1, absolute=0.0):
    """Assert that results agree within a few roundings of their type."""
    assert got.dtype is expected.dtype and got.shape == expected.shape
    bounds = {F32: (1.3e-6, 1e-6), F64: (1e-12, 1e-13), F16: (2e-3, 2e-6), BF16: (1.6e-2, 1e-5)}
    relative, least = bounds[got.dtype]
    torch.testing.assert_close(
        got, expected, rtol=relative * loose, atol=max(absolute, least * loose), equal_nan=True
    )


def exact(name, x, dim=-1, *, scale=None, hidden=None, added=None, dtype=None):
    """What a call comes to, computed in double precision of the input as it is converted."""
    target = dtype or x.dtype
    x = x.detach().to(target).double()
    if scale is not None:
        x = x * (scale if target is F64 else torch.tensor(scale, dtype=F32).double())
    if added is not None:
        x = x + added.to(target).double()
    if hidden is not None:
        x = x.masked_fill(hidden, -math.inf)
    return OWN[name](x, dim).to(target)


def coarse(result):
    """By how much PyTorch's own logarithms may be wrong, which it takes in half precision."""
    return torch.finfo(result.dtype).eps if result.dtype in (F16, BF16) else 0.0


# ------------------------------------------------------------------ PyTorch's own samples


def samples():
    pytest.importorskip("expecttest", reason="PyTorch's operator samples need it")
    from torch.testing._internal.common_methods_invocations import op_db

    wanted = ("softmax", "log_softmax", "masked.softmax", "masked.log_softmax")
    return [op for op in op_db if op.name in wanted]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_pytorchs_own_samples(ours, dtype):
    for op in samples():
        for sample in op.sample_inputs("cpu", dtype):
            options = dict(sample.kwargs)
            (dim,), x = sample.args, sample.input
            mask = options.pop("mask", None)
            expected = op(x, *sample.args, **sample.kwargs)
            if mask is not None:
                if x.dim() == 0 or dim % x.dim() != x.dim() - 1:
                    continue  # our masks are for rows along the last axis
                added = torch.zeros(mask.shape, dtype=x.dtype)
                options["mask"] = added.masked_fill(~mask, -math.inf)
            function = FUNCTIONS[op.name.rpartition(".")[2]]
            ours.clear()
            got = function(x, dim, **options)
            close(got, expected, loose=2, absolute=coarse(got))
            repeats = mask is None or mask_rows_of(x.shape, mask.shape)
            assert bool(ours) == bool(x.numel() and repeats)


@pytest.mark.parametrize("dtype", [F64, F32], ids=str)
def test_gradients_of_pytorchs_own_samples(ours, dtype):
    for op in samples():
        for sample in op.sample_inputs("cpu", dtype, requires_grad=True):
            if "mask" in sample.kwargs or not sample.input.numel():
                continue
            x = sample.input
            expected = op(x, *sample.args, **sample.kwargs)
            got = FUNCTIONS[op.name](x, *sample.args, **sample.kwargs)
            grad = torch.randn_like(expected)
            (theirs,) = torch.autograd.grad(expected, x, grad)
            ours.clear()
            (mine,) = torch.autograd.grad(got, x, grad)
            close(mine, theirs, loose=4)
            assert [problem.operator.is_gradient for problem in ours] in ([True], [])
            assert ours or dtype is not sample.kwargs.get("dtype", dtype)


# ------------------------------------------------------------------ shapes, strides, axes


VIEWS = {
    "dense": lambda: torch.randn(2, 3, 4),
    "no axis": lambda: torch.randn(()),
    "one axis": lambda: torch.randn(7),
    "one element": lambda: torch.randn(1, 1),
    "columns sliced off": lambda: torch.randn(2, 3, 9)[..., 2:7],
    "every second row": lambda: torch.randn(6, 5)[::2],
    "rows from the second": lambda: torch.randn(6, 5)[1:],
    "every second column": lambda: torch.randn(3, 10)[:, ::2],
    "transposed": lambda: torch.randn(3, 5).t(),
    "permuted": lambda: torch.randn(2, 3, 4).permute(2, 0, 1),
    "expanded": lambda: torch.randn(1, 5).expand(3, 5),
    "expanded columns": lambda: torch.randn(3, 1).expand(3, 5),
    "windows": lambda: torch.randn(9).unfold(0, 4, 1),
    "odd strides of axes of one element": lambda: torch.randn(40).as_strided((2, 1, 5), (8, 33, 1)),
    "one column": lambda: torch.randn(4, 3)[:, :1],
    "channels last": lambda: torch.randn(2, 3, 2, 2).to(memory_format=torch.channels_last),
    "five axes": lambda: torch.randn(2, 1, 3, 2, 2),
    "an imaginary part": lambda: torch.randn(3, 5, dtype=torch.complex64).conj().imag,
}


@BOTH
@pytest.mark.parametrize("view", VIEWS.values(), ids=VIEWS)
def test_every_axis_of_every_view(ours, name, view):
    x = view()
    before = x.clone()
    for dim in range(-max(1, x.dim()), max(1, x.dim())):
        for _ in range(2):  # looked at, and found again
            close(FUNCTIONS[name](x, dim), exact(name, x, dim))
    assert len(ours) == 4 * max(1, x.dim())
    assert torch.equal(x, before)


@pytest.mark.parametrize("shape", [(0,), (3, 0), (0, 3), (2, 0, 4)], ids=str)
@pytest.mark.parametrize("dtype", [F32, F16], ids=str)
def test_an_empty_tensor_gives_an_empty_one(ours, shape, dtype):
    x = torch.empty(shape, dtype=dtype)
    for dim in range(len(shape)):
        got = explorer.softmax(x, dim, scale=0.5, dtype=F32)
        assert got.shape == shape and got.dtype is F32
    assert explorer.softmax(x, lengths=torch.ones((), dtype=torch.int64)).shape == shape
    assert not ours


def test_results_are_dense_and_of_the_same_device(ours):
    for view in VIEWS.values():
        got = explorer.softmax(view())
        assert got.is_contiguous() and got.device.type == "cpu" and not got.requires_grad


# ------------------------------------------------------------------ types


@BOTH
@pytest.mark.parametrize(
    "dtype, target", list(itertools.product(DTYPES, DTYPES)), ids=lambda t: str(t)[6:]
)
def test_a_type_that_is_asked_for_is_that_of_the_arithmetic(ours, name, dtype, target):
    """PyTorch converts first: also where that loses digits, or makes infinities."""
    x = 5 * torch.randn(4, 33, dtype=F64)
    x[1, 3], x[2, 5] = 7e4, 3.3e38  # infinite in half precision, nearly so in single
    x = x.to(dtype)
    got = FUNCTIONS[name](x, dtype=target)
    close(got, exact(name, x, dtype=target))
    close(got, OWN[name](x, -1, dtype=target), loose=2, absolute=coarse(got))
    assert len(ours) == 1


def test_what_kernels_do_not_compute_is_pytorchs(ours):
    assert torch.equal(explorer.softmax(torch.arange(6), dtype=F32)[:0], torch.empty(0))
    assert not ours


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.complex64])
@pytest.mark.parametrize("wants_gradient", [False, True])
def test_what_neither_kernels_nor_pytorch_compute_is_told(ours, dtype, wants_gradient):
    x = torch.randn(2, 6).to(dtype).requires_grad_(wants_gradient)
    why = rf"x is of {dtype}, which PyTorch does not compute on cpu; give x\.float\(\), say"
    for name in FUNCTIONS:
        with pytest.raises(InvalidInput, match=why):
            FUNCTIONS[name](x)
    with pytest.raises(InvalidInput, match=f"dtype is {dtype}, which PyTorch does not compute"):
        explorer.softmax(X, dtype=dtype)
    assert not ours


def test_an_output_whose_elements_share_memory_is_told():
    with pytest.raises(InvalidInput, match="out is expanded, so that some of its elements share"):
        explorer.softmax(X, out=torch.empty(X.shape[-1]).expand(X.shape))


# ------------------------------------------------------------------ scale and masks


@BOTH
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_a_scale_is_that_of_each_call(ours, name, dtype):
    x = torch.randn(3, 33, dtype=dtype)
    for scale in (0.125, 3, 1.0, -0.7, 0.0):
        close(FUNCTIONS[name](x, scale=scale), exact(name, x, scale=scale))
    close(FUNCTIONS[name](x), exact(name, x))
    assert len({problem.scale for problem in ours}) == 2


@BOTH
@pytest.mark.parametrize("shape", [(5, 5), (2, 3, 7), (2, 7, 3), (2, 2, 4, 4), (1, 5), (5, 1)])
def test_a_causal_mask_is_of_the_last_two_axes(ours, name, shape):
    x = torch.randn(shape)
    rows, cols = shape[-2:]
    hidden = torch.tensor([[c > r + cols - rows for c in range(cols)] for r in range(rows)])
    for scale in (None, 0.5):
        got = FUNCTIONS[name](x, mask="causal", scale=scale)
        close(got, exact(name, x, hidden=hidden, scale=scale))
    assert all(p.mask is Mask.CAUSAL and p.mask_rows == rows for p in ours) and len(ours) == 2


@BOTH
@pytest.mark.parametrize("shape", [(5,), (1, 5), (4, 5), (1, 4, 5), (3, 4, 5), (2, 1, 1, 5), (1,)])
def test_a_mask_that_is_added_is_broadcast(ours, name, shape):
    x = torch.randn(2, 3, 4, 5)
    mask = torch.randn(shape)
    mask[..., 0] = -math.inf if shape[-1] > 1 else 0
    for added in (
        mask,
        mask.double(),
        mask.half(),
        mask.mT.contiguous().mT if mask.dim() > 1 else mask,
    ):
        got = FUNCTIONS[name](x, mask=added, scale=0.5)
        close(got, exact(name, x, added=added, scale=0.5))
    repeats = mask_rows_of(x.shape, mask.shape) is not None
    assert len(ours) == 4 * repeats


def test_a_mask_keeps_its_digits_where_the_result_is_wider(ours):
    """As under autocast: a half tensor, a single mask, a single result."""
    x = torch.zeros(2, 4, dtype=F16)
    mask = torch.tensor([0.0, 10.003, torch.finfo(F32).min, -math.inf])
    for _ in range(2):
        for added in (mask.half(), mask):
            got = explorer.log_softmax(x, mask=added, dtype=F32)
            close(got, torch.log_softmax(x.float() + added.float(), -1))
    lowest = torch.full((4,), torch.finfo(F32).min)
    close(explorer.softmax(x, mask=lowest, dtype=F32), torch.full((2, 4), 0.25))


LENGTHS = {
    "each row": lambda: torch.tensor([[0, 1, 2], [3, 4, 5]]),
    "each last row": lambda: torch.tensor([1, 5, 3]),
    "each first axis": lambda: torch.tensor([[2], [4]]),
    "all rows": lambda: torch.tensor(3),
    "small": lambda: torch.tensor([1, 5, 3], dtype=torch.uint8),
    "beyond": lambda: torch.tensor([-(2**40), 2**32 + 1, torch.iinfo(torch.int64).max]),
    "int32": lambda: torch.tensor([-1, 7, 2], dtype=torch.int32),
}


@BOTH
@pytest.mark.parametrize("lengths", LENGTHS.values(), ids=LENGTHS)
def test_lengths_say_how_many_elements_count(ours, name, lengths):
    x, lengths = torch.randn(2, 3, 5), lengths()
    limits = lengths.long().expand(2, 3)
    hidden = torch.arange(5) >= limits.unsqueeze(-1)
    for _ in range(2):
        close(FUNCTIONS[name](x, lengths=lengths), exact(name, x, hidden=hidden))
    call = Call(Op(name), -1, arrays={"lengths": lengths})
    close(TENSORS.framework(call, x)[0], exact(name, x, hidden=hidden))
    assert len(ours) == 2


# ------------------------------------------------------------------ out


@BOTH
def test_the_output_is_written_where_it_is_told(ours, name):
    x = torch.randn(4, 5)
    for out in (torch.empty(4, 5), torch.empty(4, 8)[:, 1:6], torch.empty(8, 5)[::2]):
        assert FUNCTIONS[name](x, out=out) is out
        close(out, exact(name, x))
    assert len(ours) == 3
    turned = torch.empty(5, 4).t()
    assert FUNCTIONS[name](x, out=turned) is turned
    close(turned, exact(name, x))
    assert len(ours) == 3  # its rows are not contiguous: PyTorch's, and a copy


@BOTH
@pytest.mark.parametrize("view", VIEWS.values(), ids=VIEWS)
def test_in_place(ours, name, view):
    x = view()
    if x.is_neg() or 0 in x.stride() or x.shape == (6, 4):
        return
    expected = exact(name, x)
    assert FUNCTIONS[name](x, out=x) is x
    close(x, expected)


def test_in_place_is_a_problem_of_its_own(ours):
    x = torch.randn(4, 8)[:, :5]
    expected, other = exact("softmax", x), torch.empty(4, 8)[:, :5]
    explorer.softmax(x, out=other)
    explorer.softmax(x, out=x)
    assert [problem.in_place for problem in ours] == [False, True]
    close(x, expected)
    close(other, expected)


def test_over_a_part_of_the_input_the_output_is_right_all_the_same(ours):
    memory = torch.randn(100)
    for start, rows in ((5, 4), (3, 4), (10, 3), (0, 4), (20, 4)):
        x, out = memory[:20].view(4, 5)[:rows], memory[start : start + 5 * rows].view(rows, 5)
        expected = exact("softmax", x)
        explorer.softmax(x, out=out)
        close(out, expected)
    narrow = torch.randn(4, 6)
    expected = exact("softmax", narrow, dtype=F16)
    out = narrow.view(F16)[:, :6]
    explorer.softmax(narrow, dtype=F16, out=out)
    close(out, expected)


def test_over_the_mask_the_output_is_right_all_the_same(ours):
    for shape in ((4, 5), (2, 4, 5)):
        x, mask = torch.randn(shape), torch.randn(4, 5)
        out = mask.expand(shape) if len(shape) == 2 else torch.cat([mask[None], mask[None]])
        added = out if len(shape) == 2 else out[0]
        expected = exact("softmax", x, added=added)
        explorer.softmax(x, mask=added, out=out)
        close(out, expected)
    memory = torch.full((4, 5), 3, dtype=torch.int32)
    x, lengths = torch.randn(4, 5), memory.view(-1)[:4]
    expected = exact("softmax", x, hidden=torch.arange(5) >= 3)
    explorer.softmax(x, lengths=lengths, out=memory.view(F32))
    close(memory.view(F32), expected)


def test_what_was_kept_for_a_gradient_is_known_to_be_overwritten(ours):
    w = torch.randn(3, 5, requires_grad=True)
    kept = w.sigmoid()
    with torch.no_grad():
        explorer.softmax(kept.detach(), out=kept)
    assert ours
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        kept.sum().backward()


def test_in_inference_mode(ours):
    with torch.inference_mode():
        x = torch.randn(3, 5)
        close(explorer.softmax(x, out=torch.empty(3, 5)), exact("softmax", x))
        assert explorer.softmax(x).is_inference()
    assert len(ours) == 2


# ------------------------------------------------------------------ gradients


KINDS = {
    "plain": {},
    "scaled": {"scale": 0.3},
    "causal": {"mask": "causal"},
    "lengths": {"lengths": torch.tensor([2, 4, 1])},
    "causal and scaled": {"mask": "causal", "scale": 2.0},
}


@pytest.mark.sampled(2)
@BOTH
@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
def test_gradients_and_their_gradients_are_those_of_differences(ours, name, kind):
    x = torch.randn(1, 3, 4, dtype=F64, requires_grad=True)
    if "causal" in kind.values():
        x = torch.randn(1, 3, 3, dtype=F64, requires_grad=True)

    def function(x):
        result = FUNCTIONS[name](x, **kind)
        return result.masked_fill(result == -math.inf, 0.0)  # the same, however x changes

    assert torch.autograd.gradcheck(function, x)
    assert torch.autograd.gradgradcheck(function, x)
    assert {problem.operator.is_gradient for problem in ours} == {False, True}


@pytest.mark.sampled(2)
@BOTH
@pytest.mark.parametrize("dim", [0, 1, -1])
def test_gradients_over_every_axis(ours, name, dim):
    x = torch.randn(2, 3, 4, dtype=F64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda x: FUNCTIONS[name](x, dim, scale=0.7), x)
    assert torch.autograd.gradgradcheck(lambda x: FUNCTIONS[name](x, dim, scale=0.7), x)


def test_gradients_of_no_axis(ours):
    x = torch.randn((), dtype=F64, requires_grad=True)
    for function in FUNCTIONS.values():
        assert torch.autograd.gradcheck(function, x)
        assert torch.autograd.gradgradcheck(function, x)


@pytest.mark.sampled(4)
@BOTH
@pytest.mark.parametrize("shape", [(4,), (3, 4), (1, 4), (2, 3, 4), (2, 1, 4)], ids=str)
def test_gradients_of_an_added_mask(ours, name, shape):
    x = torch.randn(2, 3, 4, dtype=F64, requires_grad=True)
    mask = torch.randn(shape, dtype=F64, requires_grad=True)

    def function(x, mask):
        return FUNCTIONS[name](x, mask=mask, scale=0.3)

    assert torch.autograd.gradcheck(function, (x, mask))
    assert torch.autograd.gradgradcheck(function, (x, mask))
    still = x.detach()
    assert torch.autograd.gradcheck(lambda mask: function(still, mask), mask)


@BOTH
@pytest.mark.parametrize("target", [None, F32, F64], ids=str)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_gradients_are_pytorchs_in_every_type(ours, name, dtype, target):
    x = torch.randn(3, 33, dtype=dtype, requires_grad=True)
    again = x.detach().clone().requires_grad_()
    mine, theirs = FUNCTIONS[name](x, dtype=target), OWN[name](again, -1, dtype=target)
    grad = torch.randn_like(theirs)
    mine.backward(grad)
    theirs.backward(grad)
    assert x.grad.dtype is dtype
    coarsest = max(torch.finfo(one).eps for one in (dtype, target or dtype))
    bound = coarsest * (8 if dtype in (F16, BF16) else 20)
    mine, theirs = x.grad.double(), again.grad.double()
    torch.testing.assert_close(mine, theirs, rtol=bound, atol=bound)


@BOTH
@pytest.mark.parametrize("view", VIEWS.values(), ids=VIEWS)
def test_gradients_through_views(ours, name, view):
    base = view().detach()
    for mine, theirs in ((FUNCTIONS[name], OWN[name]),):
        x, y = base.clone().requires_grad_(), base.clone().requires_grad_()
        grad = torch.randn(1).expand(base.shape) if base.dim() else torch.randn(())
        weight = torch.randn(base.shape)
        mine(x, -1).backward(grad * weight)
        theirs(y, -1).backward(grad * weight)
        close(x.grad, y.grad, loose=20)


def test_a_gradient_that_is_one_number_repeated(ours):
    x = torch.randn(3, 5, requires_grad=True)
    explorer.log_softmax(x).sum().backward()
    y = x.detach().clone().requires_grad_()
    torch.log_softmax(y, -1).sum().backward()
    close(x.grad, y.grad, loose=10)


def test_gradients_that_go_forward(ours):
    from torch.autograd import forward_ad

    x, tangent = torch.randn(3, 5), torch.randn(3, 5)
    with forward_ad.dual_level():
        dual = forward_ad.make_dual(x, tangent)
        mine = forward_ad.unpack_dual(explorer.softmax(dual, scale=0.5)).tangent
        theirs = forward_ad.unpack_dual(torch.softmax(dual * 0.5, -1)).tangent
    assert torch.equal(mine, theirs)


def test_without_gradients_none_are_kept(ours):
    x = torch.randn(3, 5, requires_grad=True)
    with torch.no_grad():
        assert explorer.softmax(x).grad_fn is None
    assert explorer.softmax(x).grad_fn is not None
    assert explorer.softmax(torch.nn.Parameter(x.detach())).requires_grad


# ------------------------------------------------------------------ the rest of PyTorch


OPERATOR_CALLS = {
    "plain": (torch.randn(3, 5), -1, None, None, False, None, None),
    "an axis": (torch.randn(3, 5, 2), 1, 0.5, None, False, None, None),
    "causal": (torch.randn(2, 3, 3), -1, None, None, True, None, None),
    "a mask": (torch.randn(2, 3, 5), -1, 2.0, torch.randn(3, 5), False, None, None),
    "lengths": (torch.randn(3, 5), 1, None, None, False, torch.tensor([1, 2, 5]), None),
    "a type": (torch.randn(3, 5, dtype=F16), -1, None, None, False, None, F32),
    "strides": (torch.randn(5, 3).t(), -1, None, None, False, None, None),
    "no axis": (torch.randn(()), 0, None, None, False, None, None),
}


@pytest.mark.parametrize("log", [False, True])
@pytest.mark.parametrize("told", OPERATOR_CALLS.values(), ids=OPERATOR_CALLS)
@pytest.mark.parametrize("served", [True, False])
def test_pytorchs_checks_of_an_operator(monkeypatch, told, log, served):
    launched = serve_cpu(monkeypatch) if served else []
    x, *rest = told
    torch.library.opcheck(torch.ops.explorer.softmax.default, (x.clone(), *rest, log))
    if x.is_floating_point():
        wanting = x.clone().requires_grad_()
        torch.library.opcheck(torch.ops.explorer.softmax.default, (wanting, *rest, log))
    output = torch.ops.explorer.softmax(x, *rest, log)
    torch.library.opcheck(
        torch.ops.explorer.softmax_backward.default,
        (torch.randn_like(output), output, told[1], told[2], x.dtype, log),
    )
    assert bool(launched) == served


def model(x, mask):
    y = explorer.softmax(x, scale=0.5, mask="causal")
    z = explorer.log_softmax(y * 2, dim=0)
    return explorer.softmax(z + 1, mask=mask) + x


@pytest.mark.parametrize("dynamic", [False, True])
def test_a_compiled_function_is_one_graph_with_its_gradients(ours, dynamic):
    torch._dynamo.reset()
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager", dynamic=dynamic)
    for rows in (4, 6):
        x = torch.randn(2, rows, rows, requires_grad=True)
        mask = torch.randn(rows, requires_grad=True)
        y, other = x.detach().clone().requires_grad_(), mask.detach().clone().requires_grad_()
        ours.clear()
        got, expected = compiled(x, mask), model(y, other)
        close(got, expected)
        assert len(ours) == 6
        got.square().sum().backward()
        expected.square().sum().backward()
        close(x.grad, y.grad, loose=50)
        close(mask.grad, other.grad, loose=50)


def test_a_compiled_function_of_every_argument(ours):
    torch._dynamo.reset()

    def function(x, lengths, out):
        y = explorer.softmax(x, lengths=lengths, dtype=torch.float32)
        return explorer.softmax(y, out=out)

    compiled = torch.compile(function, fullgraph=True, backend="aot_eager")
    x, lengths = torch.randn(3, 5, dtype=F16), torch.tensor([1, 3, 5])
    out, other = torch.empty(3, 5), torch.empty(3, 5)
    close(compiled(x, lengths, out), function(x, lengths, other))
    close(out, other)


def test_an_exported_program(ours):
    class Module(torch.nn.Module):
        def forward(self, x):
            return explorer.softmax(x, dim=1, scale=0.5, mask=None)

    rows = torch.export.Dim("rows", min=2, max=64)
    for strict in (True, False):
        program = torch.export.export(
            Module(), (torch.randn(4, 5),), dynamic_shapes={"x": {0: rows}}, strict=strict
        )
        targets = [str(node.target) for node in program.graph.nodes if node.op == "call_function"]
        assert "explorer.softmax.default" in targets
        x = torch.randn(7, 5)
        close(program.module()(x), exact("softmax", x, scale=0.5))


def test_an_exported_program_is_loaded_by_a_new_process(tmp_path):
    class Module(torch.nn.Module):
        def forward(self, x):
            return explorer.softmax(x, dim=1)

    x = torch.randn(4, 5)
    torch.export.save(torch.export.export(Module(), (x,)), tmp_path / "program.pt2")
    torch.save(x, tmp_path / "x.pt")
    script = (
        "import sys, torch\n"
        "from explorer import softmax\n"
        "program = torch.export.load(sys.argv[1] + '/program.pt2').module()\n"
        "x = torch.load(sys.argv[1] + '/x.pt')\n"
        "assert torch.allclose(program(x), torch.softmax(x, 1))\n"
    )
    told = [sys.executable, "-c", script, str(tmp_path)]
    ran = subprocess.run(told, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr


def test_a_traced_function_computes_anew_what_it_is_given(ours):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        traced = torch.jit.trace(lambda x: explorer.softmax(x) + 1, torch.randn(3, 5))
    x = torch.randn(3, 5)
    close(traced(x), exact("softmax", x) + 1)


def test_a_graph_of_operators_has_ours(ours):
    from torch.fx.experimental.proxy_tensor import make_fx

    graph = make_fx(lambda x: explorer.softmax(x))(torch.randn(3, 5))
    assert "explorer.softmax" in graph.code
    x = torch.randn(3, 5)
    close(graph(x), exact("softmax", x))


def test_fake_tensors_have_the_shape_and_type(ours):
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode():
        got = explorer.softmax(torch.randn(5, 3).t(), dtype=F16)
    assert got.shape == (3, 5) and got.dtype is F16 and got.is_contiguous()
    assert not ours


def test_under_autocast_half_tensors_come_to_single_precision():
    """On fake CUDA tensors: no GPU is needed for types."""
    from torch._subclasses.fake_tensor import FakeTensorMode

    if torch.cuda.is_available():
        pytest.skip("on a GPU the GPU tests show it")
    before = torch.is_autocast_enabled("cuda")
    torch.set_autocast_enabled("cuda", True)
    try:
        with FakeTensorMode():
            half, single = (torch.empty(3, 5, dtype=t, device="cuda") for t in (F16, F32))
            double = torch.empty(3, 5, dtype=F64, device="cuda")
            for function in FUNCTIONS.values():
                assert function(half).dtype is F32
                assert function(half, dtype=F16).dtype is F16
                assert function(single).dtype is F32
                assert function(double).dtype is F64
                assert function(half.cpu()).dtype is F16
    finally:
        torch.set_autocast_enabled("cuda", before)


def test_vmap_grad_and_jvp(ours):
    x = torch.randn(3, 4, 5)
    close(
        torch.vmap(lambda one: explorer.softmax(one, 0, scale=0.5))(x),
        exact("softmax", x, 1, scale=0.5),
    )
    close(
        torch.vmap(lambda one: explorer.softmax(one, mask="causal"))(x),
        explorer.softmax(x, mask="causal"),
    )
    mine = torch.func.grad(lambda one: explorer.log_softmax(one, 0)[0])(x[0, 0])
    close(mine, torch.func.grad(lambda one: torch.log_softmax(one, 0)[0])(x[0, 0]), loose=4)
    mine = torch.func.jvp(explorer.softmax, (x,), (x,))[1]
    close(mine, torch.func.jvp(lambda one: torch.softmax(one, -1), (x,), (x,))[1], loose=4)
    close(
        torch.func.vmap(torch.func.grad(lambda one: explorer.softmax(one)[0]))(x[0]),
        torch.func.vmap(torch.func.grad(lambda one: torch.softmax(one, -1)[0]))(x[0]),
        loose=4,
    )


def test_a_jagged_tensor_is_pytorchs(ours):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        rows = [torch.randn(2, 5), torch.randn(3, 5)]
        jagged = torch.nested.nested_tensor(rows, layout=torch.jagged)
        got = explorer.softmax(jagged, -1)
    close(got.values(), exact("softmax", torch.cat(rows)))


def test_a_subclass_that_says_nothing_of_operators_stays_one(ours):
    class Named(torch.Tensor):
        pass

    x = torch.randn(3, 5)
    got = explorer.softmax(x.as_subclass(Named))
    assert type(got) is Named and len(ours) == 1
    close(got.as_subclass(torch.Tensor), exact("softmax", x))


def test_a_copy_of_a_model_and_state_are_its_own(ours):
    linear = torch.nn.Linear(5, 5)
    close(explorer.softmax(copy.deepcopy(linear).weight).detach(), exact("softmax", linear.weight))


# ------------------------------------------------------------------ errors


X = torch.randn(2, 3, 5)


@pytest.mark.parametrize(
    "x, told, error, sentence",
    [
        (X, {"dim": 3}, IndexError, "dim is 3; an array of 3 axes has -3 to 2"),
        (torch.tensor(1.0), {"dim": 1}, IndexError, "dim is 1; an array of 0 axes has -1 to 0"),
        (X, {"mask": "casual"}, InvalidInput, "mask is 'casual'; it must be 'causal' or an array"),
        (X, {"mask": "causal", "dim": 1}, InvalidInput, "dim is 1; a mask is for rows along"),
        (X[0, 0], {"mask": "causal"}, InvalidInput, "x must have rows and columns, and has one"),
        (
            X,
            {"mask": "causal", "lengths": torch.tensor(1)},
            InvalidInput,
            "mask and lengths exclude each other",
        ),
        (X, {"mask": torch.ones(5, dtype=torch.int32)}, InvalidInput, r"mask is of int32"),
        (X, {"mask": torch.ones(4)}, InvalidInput, r"mask is of shape \(4,\); it must broadcast"),
        (X, {"mask": torch.ones(1, 2, 3, 5)}, InvalidInput, r"mask is of shape \(1, 2, 3, 5\)"),
        (torch.tensor(1.0), {"mask": torch.tensor(0.0)}, InvalidInput, "x has no axis; a mask"),
        (X, {"lengths": torch.ones(3)}, InvalidInput, r"lengths is of float32"),
        (X, {"lengths": torch.ones(2, dtype=int)}, InvalidInput, r"lengths is of shape \(2,\)"),
        (X, {"lengths": torch.ones(2, 3, 5, dtype=int)}, InvalidInput, "lengths is of shape"),
        (X, {"out": torch.empty(2, 3)}, InvalidInput, r"out is torch\.float32 of shape \(2, 3\)"),
        (X, {"out": torch.empty(2, 3, 5, dtype=F16)}, InvalidInput, r"it must be torch\.float32"),
        (X, {"out": torch.empty(2, 3, 5, requires_grad=True)}, InvalidInput, "wants a gradient"),
        (X, {"scale": torch.tensor(2.0)}, TypeError, "scale is a tensor; it must be a number"),
        (X, {"lengths": [1, 2, 3]}, TypeError, "lengths is a list; it must be a tensor"),
    ],
)
@pytest.mark.parametrize("after", [False, True], ids=["first", "after a call that was served"])
def test_what_contradicts_itself_is_told(monkeypatch, x, told, error, sentence, after):
    if after:
        serve_cpu(monkeypatch)
        for mask in (torch.ones(5), torch.ones(4, 5), None):
            explorer.softmax(torch.randn(2, 4, 5), mask=mask)
            explorer.softmax(X, mask=None if mask is None else torch.ones(5))
        explorer.softmax(X, lengths=torch.ones(3, dtype=int))
        explorer.softmax(X, out=torch.empty(2, 3, 5))
    for one in (x, x.clone().requires_grad_()):
        for _ in range(2):
            with pytest.raises(error, match=sentence):
                explorer.softmax(one, **told)


def test_a_problem_takes_the_types_of_pytorch():
    for name in ("float32", "float16", "bfloat16", "float64", "half", "double"):
        said, plain = getattr(torch, name), explorer.Problem(4, 5, name)
        assert explorer.Problem(4, 5, said) == explorer.Problem(4, 5, said, out_dtype=said) == plain
        assert query_from_keywords({"cols": 5, "dtype": said}) == query_from_keywords(
            {"cols": 5, "dtype": name}
        )


TYPE = r"it must be a torch\.dtype, such as torch\.float16"
WHOLE = "it must be a whole number, such as -1"
NUMBER = "it must be a number, such as 0.5"
OF_NO_KIND = [
    ({"dtype": "float16"}, TypeError, f"dtype is 'float16'; {TYPE}"),
    ({"dtype": 0}, TypeError, f"dtype is 0; {TYPE}"),
    ({"dtype": ["f16"]}, TypeError, rf"dtype is \['f16'\]; {TYPE}"),
    ({"dtype": np.float32}, TypeError, f"dtype is <class 'numpy.float32'>; {TYPE}"),
    ({"dtype": torch.int32}, InvalidInput, r"dtype is torch\.int32; it must be a type of floating"),
    (
        {"dtype": torch.int32, "out": torch.empty(2, 3, 5)},
        InvalidInput,
        r"dtype is torch\.int32; it must be a type of floating",
    ),
    ({"dim": None}, TypeError, f"dim is None; {WHOLE}"),
    ({"dim": "1"}, TypeError, f"dim is '1'; {WHOLE}"),
    ({"dim": True}, TypeError, f"dim is True; {WHOLE}"),
    ({"dim": np.True_}, TypeError, f"dim is np.True_; {WHOLE}"),
    ({"dim": 1.0}, TypeError, f"dim is 1.0; {WHOLE}"),
    ({"dim": [1]}, TypeError, rf"dim is \[1\]; {WHOLE}"),
    ({"scale": "2"}, TypeError, f"scale is '2'; {NUMBER}"),
    ({"scale": [2]}, TypeError, rf"scale is \[2\]; {NUMBER}"),
    ({"scale": 10**400}, InvalidInput, "scale is a number of 1329 bits; it must be a number of at"),
    ({"scale": math.nan}, InvalidInput, "scale is nan; it must be a finite number, such as 0.5"),
    ({"scale": -math.inf}, InvalidInput, "scale is -inf; it must be a finite number"),
    ({"out": 5}, TypeError, "out is an int; it must be a tensor"),
    ({"out": np.empty((2, 3, 5), "f4")}, TypeError, "out is a numpy.ndarray; it must be a tensor"),
]


@BOTH
@pytest.mark.parametrize(("told", "error", "sentence"), OF_NO_KIND)
@pytest.mark.parametrize("after", [False, True], ids=["first", "after a call that was served"])
def test_an_argument_of_another_kind_is_told(monkeypatch, name, told, error, sentence, after):
    if after:  # such a call is found by what equals: 1 and True, say
        serve_cpu(monkeypatch)
        for dim in (0, 1):
            FUNCTIONS[name](X, dim)
        FUNCTIONS[name](X, scale=0.5)
        FUNCTIONS[name](X, out=torch.empty(2, 3, 5))
    for x in (X, X.clone().requires_grad_()):
        with pytest.raises(error, match=sentence) as found:
            FUNCTIONS[name](x, **told)
        assert "\n" not in str(found.value)


def test_numbers_of_other_libraries_are_taken(ours):
    for dim in (np.int64(1), torch.tensor(1)):
        close(explorer.softmax(X, dim), torch.softmax(X, 1))
    for scale in (2, np.float32(2), np.float64(2), np.int64(2)):
        close(explorer.softmax(X, scale=scale), torch.softmax(2 * X, -1))
    close(explorer.softmax(X, dtype=float), torch.softmax(X.double(), -1))
    assert len(ours) == 7


@BOTH
@pytest.mark.parametrize("layout", ["coo", "csr", "csc"])
@pytest.mark.parametrize("after", [False, True], ids=["first", "after a call that was served"])
@pytest.mark.filterwarnings("ignore:Sparse")
def test_a_sparse_tensor_is_told(monkeypatch, name, layout, after):
    dense = torch.randn(3, 5)
    if after:
        serve_cpu(monkeypatch)
        FUNCTIONS[name](dense)
    layout = getattr(torch, f"sparse_{layout}")
    for x in (dense, dense.clone().requires_grad_()):
        with pytest.raises(InvalidInput, match=rf"x is of layout {layout}; it must be dense: give"):
            FUNCTIONS[name](x.to_sparse(layout=layout))


@pytest.mark.filterwarnings("ignore:Sparse")
def test_a_sparse_output_is_told():
    x = torch.randn(3, 5)
    with pytest.raises(InvalidInput, match=r"out is of layout torch\.sparse_csr; it must be dense"):
        explorer.softmax(x, out=x.to_sparse_csr())


def test_whole_numbers_are_told_before_an_output_of_another_type():
    with pytest.raises(InvalidInput, match=r"x is of torch\.int32; give dtype=torch\.float32, say"):
        explorer.softmax(X.int(), out=torch.empty(2, 3, 5))


def test_a_gradient_and_an_output_exclude_each_other(ours):
    x = torch.randn(3, 5, requires_grad=True)
    with pytest.raises(InvalidInput, match="out is given, and a gradient is asked for"):
        explorer.softmax(x, out=torch.empty(3, 5))
    with torch.no_grad():
        close(explorer.softmax(x, out=torch.empty(3, 5)), exact("softmax", x))


# ------------------------------------------------------------------ one call after another


@st.composite
def calls(draw):
    """A call, and what it comes to."""
    shape = draw(st.sampled_from([(3, 5), (5, 3), (15,), (2, 3, 5), (3, 4, 4), (1, 5)]))
    dtype = draw(st.sampled_from([F32, F16, F64]))
    memory = torch.randn(400, generator=torch.Generator().manual_seed(1)).to(dtype)
    offset = draw(st.sampled_from([0, 1, 8]))
    gap = draw(st.sampled_from([0, 3]))
    x = memory[offset : offset + math.prod((*shape[:-1], shape[-1] + gap))]
    x = x.view(*shape[:-1], shape[-1] + gap)[..., : shape[-1]]
    if draw(st.integers(0, 3)) == 0 and len(shape) > 1:
        x = x.transpose(-1, -2)
    told = {"scale": draw(st.sampled_from([None, 0.5, 2.0]))}
    told["dtype"] = draw(st.sampled_from([None, F32, F16]))
    known = dict(told)
    kind = draw(st.sampled_from(["none", "none", "causal", "mask", "lengths"]))
    dim = -1 if kind != "none" else draw(st.integers(-x.dim(), x.dim() - 1))
    rows, cols = (x.shape[-2] if x.dim() > 1 else 1), x.shape[-1]
    if kind == "causal" and x.dim() > 1:
        told["mask"] = "causal"
        known["hidden"] = torch.ones(rows, cols, dtype=torch.bool).triu(1 + cols - rows)
    elif kind == "mask":
        like = draw(st.sampled_from([(cols,), (1, cols), (rows, cols)][: 1 + 2 * (x.dim() > 1)]))
        kind = draw(st.sampled_from([F32, F16]))
        told["mask"] = known["added"] = torch.linspace(-3, 3, math.prod(like)).view(like).to(kind)
    elif kind == "lengths":
        like = draw(st.sampled_from([(), x.shape[:-1]]))
        count = draw(st.integers(1, cols))
        told["lengths"] = torch.full(like, count, dtype=draw(st.sampled_from([torch.int32, int])))
        known["hidden"] = torch.arange(cols) >= count
    name = draw(st.sampled_from(list(FUNCTIONS)))
    place = draw(st.sampled_from(["new", "new", "out", "in place", "gaps", "shifted"]))
    target = told["dtype"] or dtype
    if place == "in place" and target is dtype:
        told["out"] = x
    elif place == "shifted" and target is dtype:
        told["out"] = memory[offset + 1 :].as_strided(x.shape, x.stride())
    elif place == "out":
        told["out"] = torch.empty(x.shape, dtype=target)
    elif place == "gaps":
        told["out"] = torch.empty(*x.shape[:-1], cols + 2, dtype=target)[..., 1:-1]
    return name, x, dim, told, exact(name, x, dim, **known)


def each_has_its_own_result(monkeypatch, listed):
    with monkeypatch.context() as patch:
        serve_cpu(patch)
        for name, x, dim, told, expected in listed:
            got = FUNCTIONS[name](x, dim, **told)
            close(got, expected, loose=4, absolute=4 * coarse(got))


SHARED = [HealthCheck.function_scoped_fixture, HealthCheck.too_slow, HealthCheck.data_too_large]


@given(st.lists(calls(), min_size=2, max_size=4))
@settings(max_examples=30, deadline=None, suppress_health_check=SHARED)
def test_calls_after_each_other_each_have_their_own_result(monkeypatch, listed):
    each_has_its_own_result(monkeypatch, listed)


@pytest.mark.exhaustive
@given(st.lists(calls(), min_size=2, max_size=6))
@settings(max_examples=120, deadline=None, suppress_health_check=SHARED)
def test_many_calls_after_each_other_each_have_their_own_result(monkeypatch, listed):
    each_has_its_own_result(monkeypatch, listed)


# ------------------------------------------------------------------ without a kernel


@BOTH
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_a_tensor_on_the_cpu_has_pytorchs_bits(name, dtype):
    for view in VIEWS.values():
        x = view().to(dtype)
        for dim in range(-max(1, x.dim()), max(1, x.dim())):
            assert torch.equal(FUNCTIONS[name](x, dim), OWN[name](x, dim))
        assert torch.equal(FUNCTIONS[name](x, dtype=F64), OWN[name](x, -1, dtype=F64))
        out = torch.empty(x.shape, dtype=dtype)
        assert FUNCTIONS[name](x, out=out) is out
        assert torch.equal(out, OWN[name](x, -1))


@BOTH
def test_gradients_on_the_cpu_have_pytorchs_bits(name):
    x, y = (torch.randn(3, 5, generator=torch.Generator().manual_seed(1)) for _ in range(2))
    x.requires_grad_(), y.requires_grad_()
    weight = torch.randn(3, 5)
    (FUNCTIONS[name](x) * weight).sum().backward()
    (OWN[name](y, -1) * weight).sum().backward()
    assert torch.equal(x.grad, y.grad)


def test_a_kernel_that_is_not_there_yet_leaves_a_call_to_pytorch(monkeypatch):
    launched = serve_cpu(monkeypatch)
    served = recipes.plan_of
    x = torch.randn(3, 5)
    with monkeypatch.context() as patch:
        patch.setattr(recipes, "plan_of", lambda *_: None)
        for function, own in zip(FUNCTIONS.values(), OWN.values(), strict=True):
            assert torch.equal(function(x), own(x, -1))
        assert not launched and not torch_calls._threads.recipes
    assert recipes.plan_of is served
    close(explorer.softmax(x), exact("softmax", x))
    assert len(launched) == 1


def test_every_call_is_counted_where_shapes_are_logged(ours, tmp_path):
    path = tmp_path / "met.csv"
    x = torch.randn(3, 5, requires_grad=True)
    with explorer.log_shapes(path):
        for _ in range(3):
            explorer.softmax(x.detach())
        explorer.log_softmax(x).sum().backward()
    counts = {line.split(",")[3]: line.rpartition(",")[2] for line in path.read_text().splitlines()}
    assert (
        counts.items()
        >= {
            "softmax": "3",
            "log_softmax": "1",
            "log_softmax_backward": "1",
        }.items()
    )


def test_the_operators_are_registered_once():
    assert torch_operators._library.ns == "explorer"


def test_a_tensor_that_is_negated_when_it_is_read_is_read_so(ours):
    x = torch.conj(torch.randn(3, 40, dtype=torch.complex64)).imag
    assert x.is_neg()
    close(explorer.softmax(x), torch.softmax(x, -1))
    mask = torch.conj(torch.randn(3, 40, dtype=torch.complex64)).imag
    x = torch.randn(3, 40)
    close(explorer.softmax(x, mask=mask), torch.softmax(x + mask, -1))


def test_recipes_of_many_shapes_are_not_kept_for_ever(ours, monkeypatch):
    monkeypatch.setattr(torch_calls, "MOST_RECIPES", 8)
    for rows in range(1, 30):
        x = torch.randn(rows, 4)
        close(explorer.softmax(x), torch.softmax(x, -1))
        assert len(torch_calls._threads.recipes) <= 8


@pytest.mark.parametrize("name", ["softmax", "log_softmax"])
def test_a_row_of_which_nothing_counts_has_no_gradient(ours, name):
    """Its output is NaN: a padded sequence must not make a model's weights NaN."""
    x = torch.randn(3, 5, requires_grad=True)
    for asked in ({"lengths": torch.tensor([0, 5, 2])}, {"mask": "causal"}):
        x = torch.randn(7 if "mask" in asked else 3, 5, requires_grad=True)
        y = FUNCTIONS[name](x, **asked)
        seen = ~TENSORS.hidden(x, "mask" in asked, asked.get("lengths"))
        (got,) = torch.autograd.grad(y, x, torch.randn_like(y).masked_fill(~seen, 0.0))
        assert got.isfinite().all() and (got[~seen] == 0).all() and (got[-1] != 0).any()


def test_the_gradient_of_a_mask_is_summed_before_it_is_rounded(ours):
    """Of 16 bits, each of these terms alone is rounded to 0."""
    x = torch.zeros(2048, 4, dtype=F16, requires_grad=True)
    mask = torch.zeros(4, requires_grad=True)
    y = explorer.softmax(x, mask=mask, dtype=F32)
    grad = torch.tensor([1e-8, 0.0, 0.0, 0.0]).expand(2048, 4)
    of_x, of_mask = torch.autograd.grad(y, (x, mask), grad)
    assert of_x.dtype is F16 and of_mask.dtype is F32
    close(of_mask, 2048 * 1e-8 * torch.tensor([3.0, -1.0, -1.0, -1.0]) / 16, absolute=1e-9)


@pytest.mark.parametrize("dtype", [torch.uint64, torch.bool, torch.float32], ids=str)
def test_lengths_are_whole_numbers_with_a_sign(dtype):
    with pytest.raises(InvalidInput, match="whole numbers with a sign"):
        explorer.softmax(torch.randn(3, 5), lengths=torch.ones(3, dtype=dtype))


def test_what_pytorch_computes_meanwhile_is_rounded_as_often():
    x = (50 * torch.randn(4, 64)).to(BF16)
    exact_result = torch.softmax(0.3 * x.double(), -1)
    close(explorer.softmax(x, scale=0.3).double(), exact_result, loose=1, absolute=4e-3)
    assert torch.equal(explorer.softmax(x, scale=0.3), exact_result.float().to(BF16))


# ------------------------------------------------------------------ what is more than memory


def test_whole_numbers_need_a_type_to_be_converted_to(ours):
    x = torch.arange(6).reshape(2, 3)
    assert torch.equal(explorer.softmax(x, dtype=F32), torch.softmax(x, -1, dtype=F32))
    with pytest.raises(InvalidInput, match=r"x is of torch\.int64; give dtype=torch\.float32, say"):
        explorer.softmax(x)
    with pytest.raises(InvalidInput, match=r"x is of torch\.bool; give dtype"):
        explorer.softmax(x > 0, scale=0.5)


def test_a_negated_output_is_written_by_pytorch(ours):
    """Its memory holds other numbers than it has."""
    x, out = torch.randn(3, 5), torch._neg_view(torch.empty(3, 5))
    explorer.softmax(x, out=out)
    close(out.resolve_neg(), torch.softmax(x, -1))


def test_a_nested_tensor_is_pytorchs():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        x = torch.nested.nested_tensor([torch.randn(2, 3), torch.randn(1, 3)])
    for ours, own in zip(explorer.softmax(x), torch.softmax(x, -1), strict=True):
        assert torch.equal(ours, own)
    with pytest.raises(InvalidInput, match="x is a nested tensor: give neither"):
        explorer.softmax(x, scale=2.0)
    with pytest.raises(InvalidInput, match=r"dtype is torch\.int32; it must be a type of floating"):
        explorer.softmax(x, dtype=torch.int32)


class Watched(torch.Tensor):
    """A subclass, whose memory may be anything."""


def test_companions_of_a_kind_of_their_own_are_not_read_by_address(ours):
    x, lengths = torch.randn(3, 5), torch.tensor([1, 2, 3])
    got = explorer.softmax(x, lengths=lengths.as_subclass(Watched))
    assert torch.equal(got, explorer.softmax(x, lengths=lengths))
    assert isinstance(got, Watched)  # it went through PyTorch's dispatcher


@pytest.mark.parametrize("function", [explorer.softmax, explorer.log_softmax])
def test_compiled_transforms_have_pytorchs_derivatives(ours, function):
    own = OWN[function.__name__]
    x, tangent = torch.randn(3, 5), torch.randn(3, 5)

    def of_jvp(f):
        return lambda x, t: torch.func.jvp(f, (x,), (t,))[1]

    def of_grad(f):
        return lambda x, t: torch.func.grad(lambda y: (f(y) * t).sum())(x)

    for transform in (of_jvp, of_grad):
        compiled = torch.compile(transform(function), backend="eager")
        expected = transform(lambda x: own(x, -1))(x, tangent)
        close(compiled(x, tangent), expected, loose=4, absolute=1e-6)


def test_a_compiled_call_checks_its_output(ours):
    compiled = torch.compile(lambda x, out: explorer.softmax(x, out=out), backend="eager")
    x = torch.randn(2, 4)
    close(compiled(x, torch.empty(2, 4)), torch.softmax(x, -1))
    for out in (torch.empty(3, 2, 4), torch.empty(2, 4, dtype=F16)):
        with pytest.raises(InvalidInput, match="out is"):
            compiled(x, out)
    with pytest.raises(InvalidInput, match="a gradient is asked for"):
        compiled(x.clone().requires_grad_(), torch.empty(2, 4))


def test_a_function_is_compiled_once(tmp_path):
    code = """
import torch, explorer
torch._dynamo.config.error_on_recompile = True
compiled = torch.compile(lambda x: explorer.softmax(x), fullgraph=True, backend="eager")
for _ in range(2):
    compiled(torch.ones(2, 4))
"""
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr


@pytest.mark.parametrize("log", [False, True])
def test_a_mask_of_bool_says_which_elements_are_included(log):
    x = torch.randn(4, 6, requires_grad=True)
    mask = torch.rand(4, 6) > 0.4
    mask[:, 0] = True
    added = torch.zeros(4, 6).masked_fill(~mask, -math.inf)
    function, reference = (
        (explorer.log_softmax, torch.log_softmax) if log else (explorer.softmax, torch.softmax)
    )
    ours, theirs = function(x, mask=mask), reference(x + added, -1)
    assert torch.equal(ours, function(x, mask=added))
    torch.testing.assert_close(ours, theirs)
    (gradient,) = torch.autograd.grad(ours[mask].square().sum(), x)
    (expected,) = torch.autograd.grad(theirs[mask].square().sum(), x)
    torch.testing.assert_close(gradient, expected)
    assert torch.equal(function(x, mask=mask[0]), function(x, mask=added[0]))
