"""Cross-entropy of PyTorch's tensors: kernels are run by the emulator."""

import math

import pytest
from torch_cases import serve_cpu, torch

import explorer
from explorer.model.errors import InvalidInput
from explorer.ops import Op

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


def test_a_loss_near_0_and_its_gradient_keep_their_digits(ours):
    x = torch.zeros(3, 64)
    x[:, 5] = torch.tensor([10.0, 18.0, 40.0])
    x.requires_grad_()
    loss = explorer.cross_entropy(x, torch.full((3,), 5), reduction="none")
    loss.sum().backward()
    rest = 63 * torch.exp(-x.detach().double()[:, 5])
    torch.testing.assert_close(loss.double(), torch.log1p(rest), rtol=4e-6, atol=0)
    torch.testing.assert_close(x.grad.double()[:, 5], -rest / (1 + rest), rtol=4e-6, atol=0)
    assert len(ours) == 2


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
    says = r"reduction is 'max'; it must be one of mean, sum, none"
    with pytest.raises(InvalidInput, match=says):
        explorer.cross_entropy(x, target, reduction="max")
    with pytest.raises(TypeError, match=r"ignore_index is 0.5; it must be a whole number"):
        explorer.cross_entropy(x, target, ignore_index=0.5)
    with pytest.raises(InvalidInput, match="a row must have a class"):
        explorer.cross_entropy(torch.randn(4, 0), target)
    with pytest.raises(InvalidInput, match=r"log_sum is of shape \(3,\)"):
        explorer.cross_entropy_backward(x, target, torch.zeros(4), torch.zeros(3), torch.ones(4))
