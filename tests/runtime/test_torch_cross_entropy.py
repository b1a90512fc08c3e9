"""Cross-entropy of PyTorch's tensors: kernels are run by the emulator."""

import itertools
import math

import pytest
from torch_cases import serve_cpu, torch

import explorer
from explorer.model.errors import InvalidInput
from explorer.ops import Op
from explorer.runtime import torch_calls
from explorer.runtime.torch_operators import TensorFunctions

F16, BF16, F32, F64 = torch.float16, torch.bfloat16, torch.float32, torch.float64
I32, I64 = torch.int32, torch.int64
LOSSES = [Op.CROSS_ENTROPY, Op.CROSS_ENTROPY_BACKWARD]
own = torch.nn.functional.cross_entropy


@pytest.fixture(params=["kernels", "framework"])
def problems(request, monkeypatch):
    """The problems of all launches; None where PyTorch's own functions serve the calls."""
    torch.manual_seed(0)
    return serve_cpu(monkeypatch) if request.param == "kernels" else None


@pytest.fixture
def ours(monkeypatch):
    """Our kernels serve tensors on the CPU; the list of the problems of all launches."""
    torch.manual_seed(0)
    return serve_cpu(monkeypatch)


def logits(*shape, dtype=F32):
    return (3 * torch.randn(shape)).to(dtype).requires_grad_()


# ------------------------------------------------------------------ losses and gradients


@pytest.mark.parametrize("dtype, ids_dtype", [(F32, I64), (F64, I32), (F16, I32), (BF16, I64)])
@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("scale", [1, 0.5])
def test_loss_and_gradient_are_those_of_pytorch(problems, dtype, ids_dtype, reduction, scale):
    x, target = logits(9, 33, dtype=dtype), torch.randint(0, 33, (9,), dtype=ids_dtype)
    target[2] = -100
    wide = x.detach().to(F64).requires_grad_()
    wanted = own(wide * scale, target.long(), reduction=reduction)
    got = explorer.cross_entropy(x, target, reduction=reduction, scale=scale)
    assert got.dtype is (F64 if dtype is F64 else F32)
    torch.testing.assert_close(got.double(), wanted, rtol=4e-6, atol=0)
    weights = torch.randn(wanted.shape, dtype=F64)
    (wanted * weights).sum().backward()
    (got * weights.to(got.dtype)).sum().backward()
    step = {F32: 4e-6, F64: 1e-12, F16: 2**-10, BF16: 2**-7}[dtype]
    assert x.grad.dtype is dtype
    torch.testing.assert_close(x.grad.double(), wide.grad, rtol=step, atol=1e-7)
    assert (x.grad[2] == 0).all()
    if problems is not None:
        assert [problem.op for problem in problems] == LOSSES


def test_a_loss_near_0_and_its_gradient_keep_their_digits(problems):
    x = torch.zeros(3, 64)
    x[:, 5] = torch.tensor([10.0, 18.0, 40.0])
    x.requires_grad_()
    loss = explorer.cross_entropy(x, torch.full((3,), 5), reduction="none")
    loss.sum().backward()
    rest = 63 * torch.exp(-x.detach().double()[:, 5])
    torch.testing.assert_close(loss.double(), torch.log1p(rest), rtol=4e-6, atol=0)
    torch.testing.assert_close(x.grad.double()[:, 5], -rest / (1 + rest), rtol=4e-6, atol=0)
    assert problems is None or len(problems) == 2


@pytest.mark.parametrize(
    "more",
    [
        {},
        {"scale": 1.5},
        {"scale": -1.0},
        {"softcap": 60.0},
        {"z_loss": 1e-9},
        {"label_smoothing": 1e-7},
        {"weight": torch.linspace(0.5, 1.5, 999)},
        {"dim": 1},
    ],
    ids=lambda more: "-".join(more) or "plain",
)
def test_losses_and_their_gradients_near_0_are_those_of_more_bits(problems, more):
    """So are second gradients of rows whose target is the greatest. One row is ignored."""
    x = torch.randn(5, 999)
    x[:, 7] = torch.tensor([12.0, 20.0, 24.0, 30.0, 24.0]) * (1 if more.get("scale", 1) > 0 else -1)
    target = torch.tensor([7, 7, 7, -100, 8])
    if "dim" in more:
        x, target = x[..., None].expand(5, 999, 2).contiguous(), target[:, None].expand(5, 2)
    x, wide = x.requires_grad_(), x.detach().double().requires_grad_()

    def loss(x, more=more):
        return explorer.cross_entropy(x, target, reduction="none", **more)

    wanted = loss(wide, more | ({"weight": more["weight"].double()} if "weight" in more else {}))
    (of_wide,) = torch.autograd.grad(wanted.sum(), wide, create_graph=True)
    (second,) = torch.autograd.grad(of_wide.square().sum(), wide)
    near = {"rtol": 2e-5, "atol": 1e-15 if "label_smoothing" in more else 0}
    torch.testing.assert_close(loss(x).double(), wanted, **near)
    (gradient,) = torch.autograd.grad(loss(x).sum(), x)
    (again,) = torch.autograd.grad(loss(x).sum(), x, create_graph=True)
    transformed = torch.func.grad(lambda x: loss(x).sum())(x.detach())
    for one in (gradient, again, transformed):
        torch.testing.assert_close(one.double(), of_wide, **near)
    (of_again,) = torch.autograd.grad(again.square().sum(), x)
    torch.testing.assert_close(of_again[:4].double(), second[:4], rtol=1e-4, atol=0)


def test_the_two_passes_near_0_keep_their_digits(problems):
    x, target = torch.zeros(1, 999), torch.tensor([7])
    x[0, 7] = 24.0
    made = explorer.cross_entropy_forward(x, target)
    kept = made.maximum, made.log_sum, torch.ones(1)
    gradient = explorer.cross_entropy_backward(x, target, *kept)
    rest = 998 * math.exp(-24)
    assert made.loss.item() == pytest.approx(rest, rel=4e-6)
    assert gradient[0, 7].item() == pytest.approx(-rest, rel=4e-6)


@pytest.mark.parametrize("kind", ["second", "grad", "jvp", "vmap"])
def test_derivatives_near_the_cap_keep_their_digits(kind):
    """Those of PyTorch's own functions, too."""
    x, target = 100 * torch.randn(3, 9), torch.tensor([1, 7, 3])
    x[0, 1], x[1, 1], x[1, 2], x[2, 2] = math.inf, 250.0, 0.0, -400.0

    def loss(x):
        return explorer.cross_entropy(x, target, softcap=30.0, reduction="sum")

    wide = x.double().requires_grad_()
    (wanted,) = torch.autograd.grad(loss(wide), wide)
    if kind == "second":
        x.requires_grad_()
        (got,) = torch.autograd.grad(loss(x), x, create_graph=True)
    elif kind == "grad":
        got = torch.func.grad(loss)(x)
    elif kind == "vmap":
        got = torch.func.grad(lambda x: torch.func.vmap(loss)(x).sum())(x[None])[0]
    else:
        along = torch.eye(27).view(27, 3, 9)
        parts = [torch.func.jvp(loss, (x,), (one,))[1] for one in along]
        got = torch.stack(parts).view(3, 9)
    torch.testing.assert_close(got.double(), wanted, rtol=2e-5, atol=0)


def test_rows_that_are_ignored_are_0_whatever_they_hold(problems):
    x = logits(5, 17)
    with torch.no_grad():
        x[1], x[3, 2] = math.nan, math.inf
    target = torch.tensor([3, 7, 0, 7, 16])
    loss = explorer.cross_entropy(x, target, ignore_index=7, reduction="none")
    loss.sum().backward()
    assert loss[1] == loss[3] == 0 and (x.grad[[1, 3]] == 0).all()
    assert torch.isfinite(loss).all() and (x.grad[[0, 2, 4]] != 0).all()
    mean = explorer.cross_entropy(x.detach(), target, ignore_index=7)
    torch.testing.assert_close(mean, loss.detach().sum() / 3)
    assert explorer.cross_entropy(x.detach(), torch.full((5,), 7), ignore_index=7).isnan()


def test_a_target_that_is_no_class_has_the_loss_nan_and_no_gradient(problems):
    x, target = logits(4, 9), torch.tensor([0, 9, -1, 8])
    loss = explorer.cross_entropy(x, target, reduction="none")
    loss.nansum().backward()
    assert loss.isnan().tolist() == [False, True, True, False]
    assert (x.grad[[1, 2]] == 0).all()


@pytest.mark.parametrize(
    "shape, dim", [((7,), None), ((2, 5, 3), 1), ((2, 3, 5), -1), ((2, 5), 1)], ids=str
)
def test_classes_lie_along_any_axis(problems, shape, dim):
    x, axis = logits(*shape), (0 if len(shape) == 1 else 1) if dim is None else dim % len(shape)
    rest = [n for place, n in enumerate(shape) if place != axis]
    target = torch.randint(0, shape[axis], rest)
    got = explorer.cross_entropy(x, target, dim=dim)
    got.backward()
    other = x.detach().clone().requires_grad_()
    wanted = own(other if len(shape) == 1 else other.movedim(axis, 1), target)
    wanted.backward()
    torch.testing.assert_close(got, wanted)
    torch.testing.assert_close(x.grad, other.grad)


def test_targets_may_have_strides_and_gradients_may_be_expanded(ours):
    x, target = logits(6, 20), torch.randint(0, 20, (6, 3))[:, 1]
    explorer.cross_entropy(x, target, reduction="sum").backward()
    other = x.detach().clone().requires_grad_()
    own(other, target, reduction="sum").backward()
    torch.testing.assert_close(x.grad, other.grad)
    assert ours[0].ids_stride == 3


def test_a_second_backward_and_a_second_gradient_are_right(ours):
    x, target = logits(4, 12), torch.randint(0, 12, (4,))
    loss = explorer.cross_entropy(x, target)
    (first,) = torch.autograd.grad(loss, x, retain_graph=True)
    (again,) = torch.autograd.grad(loss, x, retain_graph=True)
    assert first.equal(again)
    (whole,) = torch.autograd.grad(loss, x, create_graph=True)
    (second,) = torch.autograd.grad(whole.square().sum(), x)
    other = x.detach().clone().requires_grad_()
    (told,) = torch.autograd.grad(own(other, target), other, create_graph=True)
    (wanted,) = torch.autograd.grad(told.square().sum(), other)
    torch.testing.assert_close(second, wanted)


def test_it_is_traced_by_torch_compile(ours):
    x, target = logits(4, 12), torch.randint(0, 12, (4,))

    def step(x, target):
        return explorer.cross_entropy(2 * x, target)

    compiled = torch.compile(step, fullgraph=True, backend="aot_eager")
    loss = compiled(x, target)
    loss.backward()
    other = x.detach().clone().requires_grad_()
    wanted = own(2 * other, target)
    wanted.backward()
    torch.testing.assert_close(loss, wanted)
    torch.testing.assert_close(x.grad, other.grad)


def test_transforms_have_the_gradient_too(ours):
    x, target = logits(4, 12).detach(), torch.randint(0, 12, (4,))
    got = torch.func.grad(lambda x: explorer.cross_entropy(x, target))(x)
    torch.testing.assert_close(got, torch.func.grad(lambda x: own(x, target))(x))


# ------------------------------------------------------------------ classes along a middle axis

IMAGES = [(2, 9, 4, 6), (3, 5, 7), (1, 19, 3, 3), (2, 4, 1, 5, 2)]
"""Logits of segmentations: samples, classes, and what there is of each sample."""


def images(shape, dtype=F32):
    """Logits, and targets of which some are ignored."""
    x, target = logits(*shape, dtype=dtype), torch.randint(0, shape[1], (shape[0], *shape[2:]))
    flat = target.view(-1)
    flat[1], flat[-2] = -100, -100
    return x, target


@pytest.mark.parametrize("shape", IMAGES, ids=str)
@pytest.mark.parametrize("dtype", [F32, BF16, F64], ids=str)
@pytest.mark.parametrize("gradient", ["later", "in_place"])
def test_classes_along_a_middle_axis_are_read_where_they_lie(ours, shape, dtype, gradient):
    leaf, target = images(shape, dtype)
    wide = leaf.detach().to(F64).requires_grad_()
    wanted = own(2 * wide, target)
    wanted.backward()
    got = explorer.cross_entropy(2 * leaf, target, gradient=gradient)
    got.backward()
    torch.testing.assert_close(got.double(), wanted, rtol=4e-6, atol=0)
    step = {F32: 4e-6, F64: 1e-12, BF16: 2**-7}[dtype]
    torch.testing.assert_close(leaf.grad.double(), wide.grad, rtol=step, atol=1e-7)
    inner = math.prod(shape[2:])
    assert [(one.op, one.cols, one.inner) for one in ours] == [
        (op, shape[1], inner) for op in LOSSES
    ]
    assert ours[1].in_place == (gradient == "in_place")


@pytest.mark.parametrize(
    "more",
    [
        {"label_smoothing": 0.1},
        {"weight": torch.arange(1.0, 10.0)},
        {"weight": torch.arange(1.0, 10.0), "label_smoothing": 0.1},
        {"reduction": "none"},
    ],
)
def test_what_changes_a_loss_does_so_along_a_middle_axis(problems, more):
    x, target = images(IMAGES[0])
    wide = x.detach().to(F64).requires_grad_()
    told = {"weight": more["weight"].double()} if "weight" in more else {}
    wanted = own(wide, target, **{**more, **told})
    weights = torch.rand(wanted.shape, dtype=F64)
    (wanted * weights).sum().backward()
    got = explorer.cross_entropy(x, target, **more)
    (got * weights.float()).sum().backward()
    torch.testing.assert_close(got.double(), wanted, rtol=1e-5, atol=1e-7)
    torch.testing.assert_close(x.grad.double(), wide.grad, rtol=1e-5, atol=1e-7)


def test_squared_lse_and_all_parts_of_a_loss_along_a_middle_axis(problems):
    x, target = images(IMAGES[0])
    told = {"z_loss": 0.01, "reduction": "none", "return_lse": True, "return_z_loss": True}
    loss, lse, part = explorer.cross_entropy(x, target, **told)
    loss.sum().backward()
    wide = x.detach().to(F64).requires_grad_()
    every = wide.logsumexp(1)
    wanted = own(wide, target, reduction="none") + 0.01 * every.square() * (target != -100)
    wanted.sum().backward()
    torch.testing.assert_close(loss.double(), wanted, rtol=1e-5, atol=1e-7)
    torch.testing.assert_close(lse.double(), every, rtol=1e-5, atol=1e-7)
    torch.testing.assert_close(part.double(), (wanted - own(wide, target, reduction="none")))
    torch.testing.assert_close(x.grad.double(), wide.grad, rtol=1e-5, atol=1e-6)


def test_axes_in_another_order_and_gaps_have_the_same_loss(ours):
    x, target = images(IMAGES[0])
    wanted = own(x, target)
    last = x.detach().to(memory_format=torch.channels_last).requires_grad_()
    apart = torch.stack([x.detach(), x.detach()], -1)[..., 0].requires_grad_()
    for one in (last, apart):
        explorer.cross_entropy(one, target).backward()
        (grad,) = torch.autograd.grad(own(one, target), one)
        torch.testing.assert_close(one.grad, grad)
        torch.testing.assert_close(explorer.cross_entropy(one, target), wanted)
    assert {problem.inner for problem in ours} == {1}


def test_losses_near_0_along_a_middle_axis_keep_their_digits(problems):
    x = torch.zeros(2, 64, 3)
    x[:, 5] = torch.tensor([10.0, 18.0, 40.0])
    x.requires_grad_()
    loss = explorer.cross_entropy(x, torch.full((2, 3), 5), reduction="none")
    loss.sum().backward()
    rest = 63 * torch.exp(-x.detach().double()[:, 5])
    torch.testing.assert_close(loss.double(), torch.log1p(rest), rtol=4e-6, atol=0)
    torch.testing.assert_close(x.grad.double()[:, 5], -rest / (1 + rest), rtol=4e-6, atol=0)


def test_a_bad_target_along_a_middle_axis_has_the_loss_nan_and_no_gradient(problems):
    x, target = logits(2, 5, 4), torch.randint(0, 5, (2, 4), dtype=I32)
    target[0, 1], target[1, 2], target[1, 3] = 5, -1, -100
    with torch.no_grad():
        x[1, :, 3] = math.nan
    loss = explorer.cross_entropy(x, target, reduction="none")
    loss.sum().backward()
    assert loss.isnan().nonzero().tolist() == [[0, 1], [1, 2]] and loss[1, 3] == 0
    grad = x.grad.movedim(1, -1)
    assert (grad[0, 1] == 0).all() and (grad[1, 2:] == 0).all() and (grad[0, 0] != 0).all()


@pytest.mark.parametrize("in_place", [False, True])
def test_the_two_passes_along_a_middle_axis(problems, in_place):
    x, target = logits(2, 9, 5).detach(), torch.randint(0, 9, (2, 5))
    other = x.double().requires_grad_()
    own(other, target).backward()
    made = explorer.cross_entropy_forward(x, target)
    assert {one.shape for one in made} == {target.shape}
    grad = torch.full((2, 5), 1 / 10)
    got = explorer.cross_entropy_backward(x, target, *made[1:], grad, out=x if in_place else None)
    assert (got is x) == in_place
    torch.testing.assert_close(got.double(), other.grad, rtol=1e-5, atol=1e-7)


def test_a_middle_axis_is_traced_by_torch_compile(ours):
    x, target = images(IMAGES[1])
    compiled = torch.compile(
        lambda x: explorer.cross_entropy(2 * x, target), fullgraph=True, backend="aot_eager"
    )
    compiled(x).backward()
    other = x.detach().clone().requires_grad_()
    own(2 * other, target).backward()
    torch.testing.assert_close(x.grad, other.grad)
    assert {problem.inner for problem in ours} == {7}


# ------------------------------------------------------------------ without kernels


@pytest.mark.parametrize("dtype", [F32, BF16], ids=str)
@pytest.mark.parametrize("shape", [(7, 33), (2, 9, 5), (1, 9, 4, 3), (9,), (1, 9)], ids=str)
@pytest.mark.parametrize("more", [{}, {"label_smoothing": 0.1, "z_loss": 0.01, "scale": 0.5}])
@pytest.mark.parametrize("is_last", [False, True])
def test_rows_in_parts_have_the_losses_and_gradients_of_all(
    monkeypatch, dtype, shape, more, is_last
):
    torch.manual_seed(0)
    x, dim = logits(*shape, dtype=dtype), min(1, len(shape) - 1)
    target = torch.randint(shape[dim], (*shape[:dim], *shape[dim + 1 :]))
    if target.numel() > 3:
        target.view(-1)[:2] = torch.tensor([-100, shape[dim]])
        with torch.no_grad():
            x.movedim(dim, -1)[(*[0] * (len(shape) - 1), 3)] = math.nan
    if is_last:
        x, dim = x.detach().movedim(dim, -1).requires_grad_(), -1
    made = []
    for least in (2**20, 8):
        monkeypatch.setattr(torch_calls, "LEAST_PART", least)
        loss = explorer.cross_entropy(x, target, reduction="none", dim=dim, **more)
        (gradient,) = torch.autograd.grad(loss, x, torch.linspace(1, 2, loss.numel()).view_as(loss))
        made.append((loss, gradient))
    for whole, parts in zip(*made, strict=True):
        torch.testing.assert_close(parts, whole, rtol=1e-6, atol=1e-7, equal_nan=True)


def test_parts_of_rows_are_none_of_columns(monkeypatch):
    monkeypatch.setattr(torch_calls, "LEAST_PART", 8)
    x, target = torch.randn(3, 40), torch.randint(40, (3, 1))
    (loss,) = torch.ops.explorer.cross_entropy(x, -1, None, target, -100)
    torch.testing.assert_close(loss[:, 0], own(x, target[:, 0], reduction="none"))


def peak_bytes(function):
    """The most memory of tensors on the CPU that a function holds at a time."""
    cpu = [torch.profiler.ProfilerActivity.CPU]
    with torch.profiler.profile(activities=cpu, profile_memory=True) as profile:
        function()
    events = profile.profiler.kineto_results.events()
    told = sorted((e.start_ns(), e.nbytes()) for e in events if e.name() == "[memory]")
    return max(itertools.accumulate(size for _, size in told))


@pytest.mark.parametrize("dtype, most", [(F32, 5.0), (BF16, 3.0)], ids=str)
@pytest.mark.parametrize("more", [{}, {"label_smoothing": 0.1}, {"reduction": "none"}], ids=str)
def test_without_kernels_a_loss_takes_little_memory_beside_its_gradient(
    monkeypatch, dtype, most, more
):
    """PyTorch's own function takes 12 bytes for each logit of f32."""
    monkeypatch.setattr(torch_calls, "LEAST_PART", 2**14)
    x, target = logits(256, 4096, dtype=dtype), torch.randint(4096, (256,))
    assert peak_bytes(lambda: own(x.float(), target).backward()) >= 12 * x.numel()
    x.grad = None
    taken = peak_bytes(lambda: explorer.cross_entropy(x, target, **more).sum().backward())
    assert x.grad.nbytes < taken < most * x.numel()


# ------------------------------------------------------------------ language models


@pytest.mark.parametrize(
    "labels, vocab_size, more, says",
    [
        ((2, 9), 32, {}, r"labels is of shape \(2, 9\); for logits of shape \(2, 10, 32\) it must"),
        ((20,), 32, {}, r"labels is of shape \(20,\); for logits .* it must be of \(2, 10\)"),
        ((2, 10), 31, {}, "vocab_size is 31, and logits has 32 columns; they must be equal"),
        ((2, 10), 32, {"shift_labels": torch.zeros(2, 9, dtype=I64)}, "shift_labels is of shape"),
    ],
    ids=str,
)
def test_labels_that_do_not_fit_are_one_sentence(labels, vocab_size, more, says):
    labels = torch.zeros(labels, dtype=I64)
    with pytest.raises(InvalidInput, match=says):
        explorer.causal_lm_loss(torch.randn(2, 10, 32), labels, vocab_size, **more)


def test_labels_of_any_length_are_checked_in_code_of_one_graph():
    def loss(logits, labels):
        return explorer.causal_lm_loss(logits, labels, 32)

    compiled = torch.compile(loss, fullgraph=True, backend="aot_eager", dynamic=True)
    for length in (10, 12):
        logits, labels = torch.randn(2, length, 32), torch.randint(0, 32, (2, length))
        torch.testing.assert_close(compiled(logits, labels), loss(logits, labels))


def test_logits_of_no_tokens_are_one_sentence():
    with pytest.raises(InvalidInput, match=r"it must be \(\.\.\., length, vocab_size\)"):
        explorer.causal_lm_loss(torch.randn(32), torch.tensor(3), 32)


# ------------------------------------------------------------------ one's own autograd


@pytest.mark.parametrize("in_place", [False, True])
def test_the_two_passes_are_functions_of_their_own(problems, in_place):
    x, target = logits(6, 33, dtype=BF16).detach(), torch.randint(0, 33, (6,))
    target[4] = -100
    other = x.float().requires_grad_()
    own(other, target).backward()
    made = explorer.cross_entropy_forward(x, target)
    out = x if in_place else None
    grad = torch.full((6,), 1 / 5)
    got = explorer.cross_entropy_backward(x, target, *made[1:], grad, out=out)
    assert (got is x) == in_place
    torch.testing.assert_close(got.float(), other.grad, rtol=2**-7, atol=1e-6)


@pytest.mark.parametrize("dtype", [F32, BF16], ids=str)
@pytest.mark.parametrize("shape", [(6, 33), (2, 9, 5)], ids=str)
@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_torch_compile_traces_the_two_passes_as_one_graph(problems, dtype, shape, backend):
    x = logits(*shape, dtype=dtype).detach()
    target = torch.randint(shape[1], (shape[0], *shape[2:]))
    target[0] = -100
    grad, more = torch.rand(target.shape), {"label_smoothing": 0.1, "z_loss": 0.01}

    def passes(x, target, grad, out):
        made = explorer.cross_entropy_forward(x, target)
        return made, explorer.cross_entropy_backward(x, target, *made[1:], grad, out=out, **more)

    wanted, gradient = passes(x, target, grad, None)
    for out in (None, x):
        torch._dynamo.reset()
        made, got = torch.compile(passes, fullgraph=True, backend=backend)(x, target, grad, out)
        assert got.equal(gradient) and (got is out or out is None)
        assert all(one.equal(other) for one, other in zip(made, wanted, strict=True))


def test_the_two_passes_are_operators_as_pytorch_wants_them():
    x, target = torch.randn(4, 9), torch.randint(9, (4, 1))
    operators = torch.ops.explorer
    told = (x, 1, 0.5, target, -100, 0.1, 0.01)
    torch.library.opcheck(operators.cross_entropy.default, (*told, "maximum,log_sum"))
    of_rows = [torch.rand(4, 1) for _ in range(3)]
    torch.library.opcheck(operators.cross_entropy_backward.default, (*told, *of_rows))


# ------------------------------------------------------------------ several gradients


def each(function, batch):
    return torch.stack([function(one) for one in batch])


@pytest.mark.parametrize("reduction", ["mean", "none"])
@pytest.mark.parametrize("more", [{}, {"label_smoothing": 0.1, "z_loss": 0.01}])
@pytest.mark.parametrize("shape", [(6, 33), (2, 9, 5)], ids=str)
def test_a_batch_of_gradients_is_each_of_them(problems, reduction, more, shape):
    x, target = logits(*shape), torch.randint(shape[1], (shape[0], *shape[2:]))
    loss = explorer.cross_entropy(x, target, reduction=reduction, **more)
    grads = torch.randn(3, *loss.shape)

    def gradient(grad, **batched):
        return torch.autograd.grad(loss, x, grad, retain_graph=True, **batched)[0]

    got = gradient(grads, is_grads_batched=True)
    torch.testing.assert_close(got, each(gradient, grads))


def test_a_vmap_of_the_two_passes_is_each_of_them(problems):
    x, target, grad = torch.randn(3, 6, 33), torch.randint(33, (3, 6)), torch.rand(3, 6)
    made = explorer.cross_entropy_forward(x[0], target[0])

    def of_grad(grad):
        return explorer.cross_entropy_backward(x[0], target[0], *made[1:], grad)

    torch.testing.assert_close(torch.func.vmap(of_grad)(grad), each(of_grad, grad))

    def both(x, target, grad):
        made = explorer.cross_entropy_forward(x, target)
        return *made, explorer.cross_entropy_backward(x, target, *made[1:], grad)

    got = torch.func.vmap(both)(x, target, grad)
    wanted = zip(*map(both, x, target, grad), strict=True)
    torch.testing.assert_close(got, tuple(map(torch.stack, wanted)))


def test_a_batch_of_gradients_in_an_autograd_of_ones_own(problems):
    class Own(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x, target):
            loss, *kept = explorer.cross_entropy_forward(x, target)
            ctx.save_for_backward(x, target, *kept)
            return loss

        @staticmethod
        def backward(ctx, grad):
            return explorer.cross_entropy_backward(*ctx.saved_tensors, grad), None

    x, target = logits(4, 9), torch.randint(9, (4,))
    rows = torch.autograd.grad(Own.apply(x, target), x, torch.eye(4), is_grads_batched=True)[0]
    wanted = each(
        lambda row: torch.autograd.grad(own(x, target, reduction="none"), x, row)[0], torch.eye(4)
    )
    torch.testing.assert_close(rows, wanted)


@pytest.mark.parametrize("name", ["logsumexp", "log_prob"])
def test_a_batch_of_gradients_of_other_numbers_of_rows(problems, name):
    x, target = logits(4, 9), torch.randint(9, (4,))
    result = explorer.logsumexp(x) if name == "logsumexp" else explorer.log_prob(x, target)[0]
    jacobian = torch.autograd.grad(
        result, x, torch.eye(4), is_grads_batched=True, retain_graph=True
    )[0]
    wanted = each(
        lambda row: torch.autograd.grad(result, x, row, retain_graph=True)[0], torch.eye(4)
    )
    torch.testing.assert_close(jacobian, wanted)


@pytest.mark.parametrize("gradient", ["in_place", "with_loss"])
def test_several_gradients_do_not_fit_into_one(ours, gradient):
    x, target = torch.randn(4, 9, requires_grad=True), torch.randint(9, (4,))
    given = 2 * x
    before = given.detach().clone()
    loss = explorer.cross_entropy(given, target, reduction="none", gradient=gradient)
    with pytest.raises(InvalidInput, match=f"gradient is '{gradient}', and is_grads_batched asks"):
        torch.autograd.grad(loss, x, torch.eye(4), is_grads_batched=True)
    assert given.equal(before)


# ------------------------------------------------------------------ bad input


@pytest.mark.parametrize(
    "target, says",
    [
        (torch.zeros(4), "target is of float32; it must be class indices"),
        (torch.zeros(4, dtype=torch.int16), "target is of int16; it must be of int32 or int64"),
        (torch.zeros(5, dtype=I64), r"target is of shape \(5,\); for x of shape \(4, 9\)"),
        (torch.zeros(4, 9), "target is of float32; it must be class indices"),
    ],
    ids=["float", "int16", "shape", "probabilities"],
)
def test_a_bad_target_is_one_sentence(target, says):
    with pytest.raises(InvalidInput, match=says):
        explorer.cross_entropy(torch.randn(4, 9), target)


def test_other_bad_arguments_are_one_sentence():
    x, target = torch.randn(4, 9), torch.zeros(4, dtype=I64)
    says = r"reduction is 'max'; it must be one of none, mean, sum"
    with pytest.raises(InvalidInput, match=says):
        explorer.cross_entropy(x, target, reduction="max")
    with pytest.raises(TypeError, match=r"ignore_index is 0.5; it must be a whole number"):
        explorer.cross_entropy(x, target, ignore_index=0.5)
    with pytest.raises(InvalidInput, match="a row must have a class"):
        explorer.cross_entropy(torch.randn(4, 0), target)
    with pytest.raises(InvalidInput, match=r"log_sum is of shape \(3,\)"):
        explorer.cross_entropy_backward(x, target, torch.zeros(4), torch.zeros(3), torch.ones(4))


# ------------------------------------------------------------------ output


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize(
    "more",
    [{}, {"label_smoothing": 0.1}, {"weight": torch.rand(33)}, {"softcap": 5.0}],
    ids=lambda more: next(iter(more), "plain"),
)
@pytest.mark.parametrize("shape", [(6, 33), (2, 33, 5)], ids=str)
def test_a_loss_may_be_written_to_an_output(problems, reduction, more, shape):
    x, target = logits(*shape, dtype=BF16).detach(), torch.randint(33, (shape[0], *shape[2:]))
    told = {"reduction": reduction, **more}
    wanted = explorer.cross_entropy(x, target, **told)
    for dtype in (None, BF16):
        out = torch.full(wanted.shape, math.nan, dtype=dtype or F32)
        version = out._version
        assert explorer.cross_entropy(x, target, loss_dtype=dtype, out=out, **told) is out
        assert out.equal(wanted.to(out.dtype)) and out._version > version


def test_an_output_may_have_gaps_and_lie_over_x_or_the_targets(problems):
    x, target = logits(4, 9).detach(), torch.randint(9, (4,), dtype=I32)
    wanted = explorer.cross_entropy(x, target, reduction="none")
    wide, ids, other = torch.zeros(4, 3), target.clone(), x.clone()
    calls = [(x, target, wide[:, 1]), (x, ids, ids.view(F32)), (other, target, other[:, 2])]
    for *call, out in calls:
        explorer.cross_entropy(*call, reduction="none", out=out)
        assert out.equal(wanted)
    assert not wide[:, ::2].any()


def test_an_output_goes_with_what_is_returned_besides_and_with_compiled_code(ours):
    x, target, out = torch.randn(4, 12), torch.randint(0, 12, (4,)), torch.empty(())
    loss, lse = explorer.cross_entropy(x, target, return_lse=True, out=out)
    assert loss is out and lse.shape == (4,)

    def into(x, out):
        return explorer.cross_entropy(x, target, out=out)

    other = torch.empty(())
    torch.compile(into, fullgraph=True, backend="aot_eager")(x, other)
    torch.testing.assert_close(other, out)


@pytest.mark.parametrize("reduction, shape", [("mean", ()), ("sum", ()), ("none", (4,))])
def test_a_bad_output_is_one_sentence(ours, reduction, shape):
    x, target = torch.randn(4, 9, dtype=BF16), torch.zeros(4, dtype=I64)

    def into(out, x=x, **more):
        explorer.cross_entropy(x, target, reduction=reduction, out=out, **more)

    says = "it must be torch.float32 of shape .* on cpu"
    for out in (torch.empty(3), torch.empty(shape, dtype=F64), torch.empty(shape, device="meta")):
        with pytest.raises(InvalidInput, match=says):
            into(out)
    with pytest.raises(InvalidInput, match=r"it must be torch\.bfloat16"):
        into(torch.empty(shape), loss_dtype=BF16)
    with pytest.raises(TypeError, match="out is an int; it must be a tensor"):
        into(1)
    with pytest.raises(InvalidInput, match="out wants a gradient; it must be a tensor that wants"):
        into(torch.empty(shape, requires_grad=True))
    says = "out is given, and a gradient is asked for: give one of them up"
    with pytest.raises(InvalidInput, match=says):
        into(torch.empty(shape), x.requires_grad_())
    with pytest.raises(InvalidInput, match=says):
        into(torch.empty(shape), x.detach(), weight=torch.ones(9, requires_grad=True))
    assert not ours
    with torch.no_grad():
        into(torch.empty(shape))


# ------------------------------------------------------------------ bad targets that raise

SAYS = r"target is 9 at \(1,\); it must be from 0 to 8, or -100, which is ignored"
BAD = torch.tensor([0, 9, -100, -1])
GOOD = torch.tensor([0, 8, -100, 3])


def raising(x, target):
    return explorer.cross_entropy(x, target, bad_target="raise")


def test_a_bad_target_raises_on_request(problems):
    x = logits(4, 9)
    with pytest.raises(InvalidInput, match=SAYS):
        raising(x, BAD)
    assert not problems
    torch.testing.assert_close(raising(x, GOOD), own(x, GOOD))
    one, places = torch.randn(2, 9, 3), torch.tensor([[0, 1, 2], [3, 11, -100]])
    with pytest.raises(InvalidInput, match=r"target is 11 at \(1, 1\)"):
        raising(one, places)
    with pytest.raises(InvalidInput, match="bad_target is 'zero'; it must be one of nan, raise"):
        explorer.cross_entropy(x, GOOD, bad_target="zero")


def test_compiled_code_asserts_and_transforms_check_what_they_can(ours):
    x = torch.randn(4, 9)
    compiled = torch.compile(raising, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(x, GOOD), own(x, GOOD))
    with pytest.raises(RuntimeError, match="a target is neither from 0 to 8 nor -100"):
        compiled(x, BAD)
    with pytest.raises(InvalidInput, match=SAYS):
        torch.func.grad(raising)(x, BAD)
    with pytest.raises(InvalidInput, match=r"bad_target is 'raise' under torch\.func\.vmap"):
        torch.func.vmap(raising)(torch.stack([x, x]), torch.stack([GOOD, GOOD]))


@pytest.mark.parametrize("is_capturing", [False, True])
def test_neither_other_calls_nor_captured_ones_look_at_targets(ours, monkeypatch, is_capturing):
    """That would wait for the GPU."""
    looked, own_place = [], TensorFunctions.first_place

    def first_place(self, elements):
        looked.append(elements)
        return own_place(self, elements)

    monkeypatch.setattr(TensorFunctions, "first_place", first_place)
    monkeypatch.setattr(TensorFunctions, "is_capturing", lambda self, device: is_capturing)
    x = logits(4, 9)
    explorer.cross_entropy(x, BAD).backward()
    assert not looked
    torch.testing.assert_close(raising(x, GOOD), own(x, GOOD))
    assert len(looked) == (not is_capturing)
    with pytest.raises(RuntimeError if is_capturing else InvalidInput, match="target"):
        raising(x, BAD)


# ------------------------------------------------------------------ what a loss has besides


@pytest.mark.parametrize("dtype", [F32, BF16, F64], ids=str)
@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize(
    "more", [{"label_smoothing": 0.1}, {"z_loss": 1e-2}, {"label_smoothing": 0.3, "z_loss": 1e-3}]
)
@pytest.mark.parametrize("scale", [1, 0.5])
def test_smoothing_and_squared_lse_are_as_defined(problems, dtype, reduction, more, scale):
    x, target = logits(9, 33, dtype=dtype), torch.randint(0, 33, (9,))
    target[2] = -100
    wide = x.detach().to(F64).requires_grad_()
    factor, smoothing = more.get("z_loss", 0.0), more.get("label_smoothing", 0.0)
    rows = own(wide * scale, target, reduction="none", label_smoothing=smoothing)
    squares = factor * torch.logsumexp(wide * scale, 1) ** 2 * (target != -100)
    rows = rows + squares
    wanted = {"none": rows, "sum": rows.sum(), "mean": rows.sum() / 8}[reduction]
    got = explorer.cross_entropy(x, target, reduction=reduction, scale=scale, **more)
    torch.testing.assert_close(got.double(), wanted, rtol=4e-6, atol=0)
    weights = torch.randn(wanted.shape, dtype=F64)
    (wanted * weights).sum().backward()
    (got * weights.to(got.dtype)).sum().backward()
    step = {F32: 4e-6, F64: 1e-12, BF16: 2**-7}[dtype]
    torch.testing.assert_close(x.grad.double(), wide.grad, rtol=step, atol=1e-7)
    assert (x.grad[2] == 0).all()
    if problems is not None:
        assert [problem.op for problem in problems] == LOSSES


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("smoothing", [0.0, 0.2])
def test_weights_are_those_of_pytorch(problems, reduction, smoothing):
    x, target = logits(9, 33), torch.randint(0, 33, (9,))
    target[2], weight = -100, torch.rand(33)
    told = {"reduction": reduction, "label_smoothing": smoothing}
    got = explorer.cross_entropy(x, target, weight, **told)
    other = x.detach().clone().requires_grad_()
    wanted = own(other, target, weight, **told)
    torch.testing.assert_close(got, wanted)
    got.sum().backward()
    wanted.sum().backward()
    torch.testing.assert_close(x.grad, other.grad)


def test_parts_of_the_loss_are_returned_on_request(problems):
    x, target = logits(5, 17), torch.tensor([3, -100, 0, 7, 16])
    loss, lse, part = explorer.cross_entropy(
        x, target, z_loss=0.01, return_lse=True, return_z_loss=True
    )
    torch.testing.assert_close(lse, torch.logsumexp(x.detach(), 1))
    torch.testing.assert_close(part, 0.01 * lse[[0, 2, 3, 4]].square().mean())
    plain = explorer.cross_entropy(x.detach(), target)
    torch.testing.assert_close(loss, plain + part)
    assert not lse.requires_grad and not part.requires_grad and loss.requires_grad


def test_a_loss_has_the_type_that_is_asked_for(problems):
    x, target = logits(5, 17, dtype=BF16), torch.randint(0, 17, (5,))
    loss = explorer.cross_entropy(x, target, loss_dtype=BF16)
    assert loss.dtype is BF16
    loss.backward()
    assert x.grad.dtype is BF16


def test_a_mean_over_no_row_may_be_0(problems):
    x, target = logits(5, 17), torch.full((5,), -100)
    assert explorer.cross_entropy(x, target).isnan()
    loss = explorer.cross_entropy(x, target, all_ignored="zero")
    loss.backward()
    assert loss == 0 and (x.grad == 0).all()


@pytest.mark.parametrize(
    "more, says",
    [
        ({"label_smoothing": 1.5}, "label_smoothing is 1.5; it must be from 0 to 1.0"),
        ({"z_loss": -1}, "z_loss is -1; it must be from 0 to 0.5"),
        ({"all_ignored": "one"}, "all_ignored is 'one'; it must be one of nan, zero"),
        ({"weight": torch.ones(4)}, r"weight is of shape \(4,\); it must have a number for each"),
        ({"weight": torch.ones(9), "z_loss": 0.1}, "weight and z_loss are given"),
        ({"ignore_index": 2**70}, "no target of int64 can be"),
        ({"loss_dtype": torch.int64}, "loss_dtype is torch.int64; it must be a type of floating"),
        ({"softcap": math.inf}, r"softcap is inf; it must be from 1e-06 to 1e\+06, or None for no"),
        ({"softcap": 0}, "softcap is 0; it must be from 1e-06 to"),
        ({"softcap": -2.0}, "softcap is -2.0; it must be from 1e-06 to"),
        ({"softcap": 1e-9}, "softcap is 1e-09; it must be from 1e-06 to"),
    ],
)
def test_bad_parts_of_a_loss_are_one_sentence(more, says):
    with pytest.raises(InvalidInput, match=says):
        explorer.cross_entropy(torch.randn(4, 9), torch.zeros(4, dtype=I64), **more)


@pytest.mark.parametrize("scale", [1, 0.5])
@pytest.mark.parametrize("dtype", [F32, BF16], ids=str)
@pytest.mark.parametrize("gradient", ["later", "with_loss"])
def test_logits_may_be_capped(problems, scale, dtype, gradient):
    x, target = (10 * torch.randn(5, 33)).to(dtype).requires_grad_(), torch.randint(0, 33, (5,))
    wide = x.detach().double().requires_grad_()
    wanted = own(4 * torch.tanh(wide * scale / 4), target)
    got = explorer.cross_entropy(x, target, softcap=4.0, scale=scale, gradient=gradient)
    torch.testing.assert_close(got.double(), wanted, rtol=4e-6, atol=0)
    wanted.backward()
    got.backward()
    step = 2**-7 if dtype is BF16 else 1e-5
    torch.testing.assert_close(x.grad.double(), wide.grad, rtol=step, atol=1e-7)
    if problems is not None:
        assert {problem.softcap for problem in problems if problem.has_target} == {4.0}


@pytest.mark.parametrize("more", [{}, {"label_smoothing": 0.1, "z_loss": 0.01}], ids=str)
@pytest.mark.parametrize("shape", [(6, 33), (2, 33, 5)], ids=str)
def test_capped_infinities_are_the_cap_and_have_no_gradient(problems, shape, more):
    x, target = 10 * torch.randn(shape), torch.randint(0, 33, (shape[0], *shape[2:]))
    x[0, 3], x[0, 7], x[1] = math.inf, -math.inf, -math.inf
    wide = (3.0 * torch.tanh(x.double() / 3)).requires_grad_()
    wanted = explorer.cross_entropy(wide, target, reduction="sum", **more)
    got = explorer.cross_entropy(x.requires_grad_(), target, reduction="sum", softcap=3.0, **more)
    torch.testing.assert_close(got.double(), wanted, rtol=4e-6, atol=0)
    wanted.backward()
    got.backward()
    slope = 1 / torch.cosh(x.detach().double() / 3) ** 2
    torch.testing.assert_close(x.grad.double(), wide.grad * slope, rtol=1e-5, atol=1e-7)
    assert (x.grad[x.isinf()] == 0).all()


@pytest.mark.parametrize("dtype", [F32, BF16], ids=str)
def test_the_two_passes_of_capped_logits(problems, dtype):
    x, target = (10 * torch.randn(5, 33)).to(dtype), torch.randint(0, 33, (5,))
    wide = x.double().requires_grad_()
    own(5 * torch.tanh(wide / 5), target).backward()
    made = explorer.cross_entropy_forward(x, target, softcap=5.0)
    kept = made.maximum, made.log_sum, torch.full((5,), 0.2)
    got = explorer.cross_entropy_backward(x, target, *kept, softcap=5.0)
    step = 2**-7 if dtype is BF16 else 1e-5
    torch.testing.assert_close(got.double(), wide.grad, rtol=step, atol=1e-7)


@pytest.mark.parametrize(
    "more", [{"softcap": 5.0}, {"weight": torch.ones(9), "label_smoothing": 0.1}]
)
def test_a_nan_in_a_row_that_is_ignored_has_no_gradient(problems, more):
    x = torch.randn(4, 9)
    x[1] = math.nan
    x.requires_grad_()
    explorer.cross_entropy(x, torch.tensor([0, -100, 8, 3]), **more).backward()
    assert (x.grad[1] == 0).all() and torch.isfinite(x.grad).all()


@pytest.mark.parametrize("gradient", ["later", "with_loss"])
def test_an_infinity_shows_in_the_gradient(ours, gradient):
    """Of its row: what scales losses finds it there."""
    x = torch.randn(3, 9)
    x[0, 0], x[1, 4] = math.inf, math.inf
    x.requires_grad_()
    target = torch.tensor([0, 2, 5])
    loss = explorer.cross_entropy(x, target, reduction="none", gradient=gradient)
    loss.sum().backward()
    assert loss[0].isnan() and not loss[1].isfinite() and loss[2].isfinite()
    assert x.grad[0].isnan().any() and x.grad[1].isnan().any() and torch.isfinite(x.grad[2]).all()


def test_label_smoothing_keeps_its_digits_far_from_0(ours):
    x = torch.randn(5, 1000) + 3000
    target = torch.randint(1000, (5,))
    got = explorer.cross_entropy(x, target, label_smoothing=0.1, reduction="none")
    wanted = own(x.double(), target, label_smoothing=0.1, reduction="none")
    torch.testing.assert_close(got.double(), wanted, rtol=4e-6, atol=0)


def test_what_is_returned_besides_has_no_gradient_under_transforms_either(ours):
    x, target = torch.randn(3, 4, 12), torch.randint(0, 12, (3, 4))

    def lse(x):
        return explorer.cross_entropy(x, target[0], return_lse=True)[1].sum()

    assert (torch.func.grad(lse)(x[0]) == 0).all()
    many = torch.func.vmap(explorer.cross_entropy)(x, target)
    torch.testing.assert_close(
        many, torch.stack([own(*one) for one in zip(x, target, strict=True)])
    )


# ------------------------------------------------------------------ a gradient with the loss

AT_ONCE = [Op.CROSS_ENTROPY_WITH_GRADIENT, Op.MULTIPLY_ROWS]


@pytest.mark.parametrize("dtype", [F32, BF16], ids=str)
@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize(
    "more", [{}, {"label_smoothing": 0.1, "z_loss": 1e-3}, {"weight": torch.rand(33)}]
)
@pytest.mark.parametrize("factor", [1.0, 0.25])
def test_a_gradient_may_be_formed_with_the_loss(problems, dtype, reduction, more, factor):
    x, target = logits(6, 33, dtype=dtype), torch.randint(0, 33, (6,))
    target[2] = -100
    told = {"reduction": reduction, "return_lse": True, **more}
    made = []
    for gradient in ("later", "with_loss"):
        loss, lse = explorer.cross_entropy(x, target, gradient=gradient, **told)
        weights = torch.arange(1.0, 1.0 + loss.numel()).reshape(loss.shape)
        made.append((loss, lse, *torch.autograd.grad((factor * weights * loss).sum(), x)))
    for one, other in zip(*made, strict=True):
        step = 2**-6 if one.dtype is BF16 else 4e-6
        torch.testing.assert_close(one, other, rtol=step, atol=1e-7)
    assert (made[1][2][2] == 0).all()
    if problems is not None:
        assert [problem.op for problem in problems] == [*LOSSES, *AT_ONCE]


@pytest.mark.parametrize("reduction", ["mean", "none"])
@pytest.mark.parametrize("factor", [1.0, 0.25])
def test_it_is_formed_over_a_middle_axis(problems, reduction, factor):
    x, target = logits(2, 17, 3, 5), torch.randint(0, 17, (2, 3, 5))
    wanted = factor * own(y := x.detach().clone().requires_grad_(), target, reduction=reduction)
    got = factor * explorer.cross_entropy(x, target, reduction=reduction, gradient="with_loss")
    torch.testing.assert_close(got, wanted)
    wanted.sum().backward()
    got.sum().backward()
    torch.testing.assert_close(x.grad, y.grad)
    if problems is not None:
        assert problems[0].op is Op.CROSS_ENTROPY_WITH_GRADIENT and problems[0].inner == 15


def test_it_is_formed_where_a_gradient_is_needed_and_used_up_once(ours):
    x, target = logits(4, 12), torch.randint(0, 12, (4,))
    explorer.cross_entropy(x.detach(), target, gradient="with_loss")
    with torch.no_grad():
        explorer.cross_entropy(x, target, gradient="with_loss")
    assert {problem.op for problem in ours} == {Op.CROSS_ENTROPY}
    loss = explorer.cross_entropy(x, target, gradient="with_loss")
    loss.backward(retain_graph=True)
    with pytest.raises(InvalidInput, match="used up: give gradient='later'"):
        loss.backward()
    loss = explorer.cross_entropy(x, target, gradient="with_loss")
    with pytest.raises(InvalidInput, match="no gradient of its own: give gradient='later'"):
        torch.autograd.grad(loss, x, create_graph=True)


def test_transforms_and_compiled_code_form_it_later(ours):
    x, target = torch.randn(4, 12), torch.randint(0, 12, (4,))

    def loss(x):
        return explorer.cross_entropy(x, target, gradient="with_loss")

    (wanted,) = torch.autograd.grad(own(y := x.clone().requires_grad_(), target), y)
    torch.testing.assert_close(torch.func.grad(loss)(x), wanted)
    compiled = torch.compile(loss, backend="aot_eager")(y := x.clone().requires_grad_())
    torch.testing.assert_close(torch.autograd.grad(compiled, y)[0], wanted)


# ------------------------------------------------------------------ a gradient in place of x


@pytest.mark.parametrize("dtype", [F32, BF16], ids=str)
@pytest.mark.parametrize(
    "more", [{}, {"label_smoothing": 0.1, "z_loss": 1e-3}, {"reduction": "sum"}]
)
def test_a_gradient_may_be_written_over_the_logits(problems, dtype, more):
    hidden, weight = torch.randn(6, 8), torch.randn(8, 33).to(dtype).requires_grad_()
    target = torch.randint(0, 33, (6,))
    gradients = []
    for gradient in ("later", "in_place"):
        x = hidden.to(dtype) @ weight
        address, version = x.data_ptr(), x._version
        seen = []
        x.register_hook(lambda grad, seen=seen: seen.append(grad.data_ptr()))
        loss = explorer.cross_entropy(x, target, gradient=gradient, **more)
        gradients.append(torch.autograd.grad(loss, weight, retain_graph=True)[0])
        assert (seen[0] == address) == (x._version > version) == (gradient == "in_place")
    assert gradients[0].equal(gradients[1])
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


def test_what_else_needs_the_logits_raises(ours):
    x = 2 * torch.randn(6, 33, requires_grad=True)
    both = explorer.cross_entropy(x, torch.randint(0, 33, (6,)), gradient="in_place")
    other = x.square().sum()
    both.backward(retain_graph=True)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        other.backward()


@pytest.mark.parametrize(
    "x, more, says",
    [
        (torch.randn(4, 9, requires_grad=True), {}, "x is a leaf, whose own numbers would be lost"),
        (2 * torch.randn(4, 9, requires_grad=True)[:, :5], {}, None),
        ((2 * torch.randn(4, 9, requires_grad=True)).view(2, 2, 9), {"dim": -1}, "x is a view"),
        (
            2 * torch.randn(2, 9, 2, 2, requires_grad=True).to(memory_format=torch.channels_last),
            {},
            "axes lie in another order",
        ),
        (
            2 * torch.randn(4, 9, requires_grad=True),
            {"label_smoothing": 0.1, "weight": torch.ones(9)},
            "label smoothing with weights",
        ),
    ],
    ids=["leaf", "computed of a view", "view", "axis", "weights"],
)
def test_no_gradient_is_written_where_it_would_harm(ours, x, more, says):
    before = x.detach().clone()
    shape = [extent for axis, extent in enumerate(x.shape) if axis != more.get("dim", 1) % x.dim()]
    call = [x, torch.zeros(shape, dtype=I64)]
    if says is None:
        explorer.cross_entropy(*call, gradient="in_place", **more).backward()
        return
    with pytest.raises(InvalidInput, match=says):
        explorer.cross_entropy(*call, gradient="in_place", **more)
    assert x.equal(before) and not ours
