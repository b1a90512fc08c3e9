"""Our kernels behind PyTorch's own operators: put there once, and taken away again.

Operators for CUDA are called here on the CPU, as functions: no GPU is needed to see what they do.
"""

import subprocess
import sys

import pytest
from compiled_cases import serve_compiled
from torch_cases import serve_cpu, torch

import explorer
from explorer.model.errors import ExplorerError
from explorer.ops import BACKWARD, FORWARD, OPERATORS, Op
from explorer.runtime import (
    functions,
    recipes,
    torch_fast_calls,
    torch_operators,
    torch_override,
)
from explorer.runtime.service import Options

BACKWARD_OF = {op: OPERATORS[back].torch for op, back in zip(FORWARD, BACKWARD, strict=True)}

pytestmark = pytest.mark.skipif(
    not hasattr(torch.library, "get_kernel"), reason="register_torch needs PyTorch 2.9"
)


@pytest.fixture(autouse=True)
def nothing_stays():
    yield
    if torch_override._registration is not None:
        torch_override._registration.remove()


class Own:
    """PyTorch's kernel of an operator, which counts its calls."""

    def __init__(self, function):
        self.function = function
        self.calls = 0

    def call_boxed(self, keys, *arguments, **named):
        self.calls += 1
        return self.function(*arguments, **named)


@pytest.fixture
def has_cuda_operators():
    """PyTorch for the CPU alone has no operator to fall back to."""
    try:
        torch_override._own("_softmax")
    except RuntimeError:
        pytest.skip("this PyTorch has no operators for CUDA")


# ------------------------------------------------------------------ registration


@pytest.fixture
def own(monkeypatch):
    """Stand for PyTorch's operators for CUDA by those for the CPU."""
    made = {}

    def of(name):
        return made.setdefault(name, Own(getattr(torch.ops.aten, name)))

    monkeypatch.setattr(torch_override, "_own", of)
    return made


def cuda_lines():
    """What PyTorch says of the operators for CUDA that it has."""
    names = [OPERATORS[op].torch for op in OPERATORS if OPERATORS[op].torch]
    lines = (torch._C._dispatch_dump(f"aten::{name}").splitlines() for name in names)
    return [line for some in lines for line in some if line.startswith("CUDA")]


def test_registration_is_undone(own):
    before = cuda_lines()
    with explorer.register_torch() as registration:
        assert cuda_lines() != before
        assert torch_override._registration is registration
    assert cuda_lines() == before
    registration.remove()  # nothing is done
    assert cuda_lines() == before


def test_registration_is_made_once(own):
    first = explorer.register_torch()
    during = cuda_lines()
    assert explorer.register_torch() is first
    assert cuda_lines() == during
    first.remove()
    second = explorer.register_torch()
    assert second is not first
    first.remove()  # the handle of one that is no more undoes nothing
    assert torch_override._registration is second
    second.remove()


def test_tensors_on_the_cpu_are_not_touched(own, monkeypatch):
    launched = serve_cpu(monkeypatch)
    x = torch.randn(3, 5, requires_grad=True)
    expected = torch.softmax(x, -1), torch.log_softmax(x, 0)
    with explorer.register_torch():
        assert torch.equal(torch.softmax(x, -1), expected[0])
        assert torch.equal(torch.log_softmax(x, 0), expected[1])
        torch.nn.functional.softmax(x, -1).sum().backward()
    assert not launched and not any(one.calls for one in own.values())


def test_an_old_pytorch_is_refused(monkeypatch):
    monkeypatch.delattr(torch.library, "get_kernel")
    with pytest.raises(ExplorerError, match=r"register_torch needs PyTorch 2\.9 or later; this is"):
        explorer.register_torch()


def test_it_is_not_registered_by_halves(monkeypatch):
    """Where one of PyTorch's operators is not there, none of them is replaced."""
    before = cuda_lines()

    def of(name):
        if name == "_log_softmax_backward_data":
            raise RuntimeError("no such operator")
        return Own(getattr(torch, name))

    monkeypatch.setattr(torch_override, "_own", of)
    with pytest.raises(ExplorerError, match="no such operator"):
        explorer.register_torch()
    assert cuda_lines() == before
    assert torch_override._registration is None


def test_a_process_may_end_with_it(tmp_path):
    code = """
import torch, explorer
from explorer.runtime import torch_override
torch_override._own = lambda name: None
explorer.register_torch()
print(torch.softmax(torch.zeros(2), 0).tolist())
"""
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (ran.returncode, ran.stdout) == (0, "[0.5, 0.5]\n"), ran.stderr


# ------------------------------------------------------------------ the operators


@pytest.fixture
def ours(monkeypatch):
    monkeypatch.setattr(torch_override, "LEAST_BYTES", 0)
    return serve_cpu(monkeypatch)


@pytest.mark.parametrize("op", [Op.SOFTMAX, Op.LOG_SOFTMAX])
@pytest.mark.parametrize("shape", [(), (5,), (3, 5), (2, 3, 4)], ids=str)
def test_the_operators_come_to_what_pytorchs_do(ours, op, shape):
    forward = getattr(torch, OPERATORS[op].torch)
    gradient = getattr(torch, BACKWARD_OF[op])
    own = Own(forward), Own(gradient)
    x = torch.randn(shape)
    for dim in range(-max(1, len(shape)), max(1, len(shape))):
        got = torch_override._forward(op, own[0])(None, x, dim, False)
        torch.testing.assert_close(got, forward(x, dim, False))
        grad = torch.randn(shape)
        mine = torch_override._backward(op, own[1])(None, grad, got, dim, torch.float32)
        torch.testing.assert_close(mine, gradient(grad, got, dim, torch.float32))
    assert len(ours) == 4 * max(1, len(shape)) and not own[0].calls and not own[1].calls


def test_half_to_float(ours):
    """What PyTorch calls for `softmax(half, dtype=float32)` on CUDA."""
    x = torch.randn(3, 5).half()
    own = Own(None)
    for op in (Op.SOFTMAX, Op.LOG_SOFTMAX):
        got = torch_override._forward(op, own)(None, x, -1, True)
        expected = (torch.log_softmax if "log" in op else torch.softmax)(x.float(), -1)
        torch.testing.assert_close(got, expected)
        grad = torch.randn(3, 5)
        mine = torch_override._backward(op, own)(None, grad, got, 1, torch.float16)
        name = BACKWARD_OF[op]
        theirs = getattr(torch, name)(grad, got, 1, torch.float32).half()
        torch.testing.assert_close(mine, theirs)
    assert len(ours) == 4


@pytest.fixture
def compiled(monkeypatch):
    """The compiled function, which serves tensors on the CPU."""
    driver = serve_compiled(monkeypatch)
    monkeypatch.setattr(torch_fast_calls, "_library", driver.library)
    monkeypatch.setattr(torch_fast_calls, "if_known", driver.library.if_known)
    return driver


@pytest.mark.parametrize("op", [Op.SOFTMAX, Op.LOG_SOFTMAX])
@pytest.mark.parametrize("half_to_float", [False, True])
def test_the_compiled_function_serves_what_it_has_learnt(compiled, monkeypatch, op, half_to_float):
    own = Own(None)
    run = torch_override._forward(op, own)
    x = torch.randn(3, 33)
    x = x.half() if half_to_float else x
    first = run(None, x, -1, half_to_float)
    assert compiled.library.size() == 1
    monkeypatch.setattr(torch_override, "TENSORS", None)  # Python is not asked again
    again = run(None, x.clone(), -1, half_to_float)
    assert torch.equal(again, first) and again.dtype is torch.float32 and not own.calls
    exact = (torch.log_softmax if "log" in op else torch.softmax)(x.double(), -1)
    torch.testing.assert_close(again.double(), exact, rtol=1e-5, atol=1e-6)
    needs_a_gradient = x.float().clone().requires_grad_() if not half_to_float else x
    assert torch.equal(run(None, needs_a_gradient, -1, half_to_float), first)


@pytest.mark.parametrize("shape", [(0, 5), ()], ids=str)
def test_what_the_compiled_function_does_not_serve_is_left_to_python(compiled, shape):
    own = Own(torch._softmax)
    x = torch.randn(shape)
    for _ in range(2):
        torch.testing.assert_close(
            torch_override._forward(Op.SOFTMAX, own)(None, x, -1, False), torch.softmax(x, -1)
        )
    strided = torch.randn(6, 4).t()
    for _ in range(2):
        got = torch_override._forward(Op.SOFTMAX, own)(None, strided, -1, False)
        torch.testing.assert_close(got, torch.softmax(strided, -1))
    with pytest.raises(TypeError, match="if_known takes 8 arguments"):
        compiled.library.if_known(x)


def test_a_registered_call_has_the_compiled_function_built(monkeypatch):
    asked = []
    monkeypatch.setattr(torch_fast_calls.service, "do_later", asked.append)
    monkeypatch.setattr(torch_fast_calls, "_may_serve", lambda x: True)
    monkeypatch.setattr(functions, "compiled", functions.compiled)
    monkeypatch.setattr(torch_fast_calls, "if_known", torch_fast_calls._first_known)
    x = torch.randn(3, 5)
    for _ in range(2):
        assert torch_fast_calls.if_known(x, -1, None, None, False, None, None, False) is None
    assert asked == [torch_fast_calls.prepare]


def test_small_tensors_are_pytorchs(monkeypatch):
    launched = serve_cpu(monkeypatch)
    x = torch.randn(3, 5)
    own, back = Own(torch._softmax), Own(torch._softmax_backward_data)
    got = torch_override._forward(Op.SOFTMAX, own)(None, x, -1, False)
    assert torch.equal(got, torch.softmax(x, -1))
    torch_override._backward(Op.SOFTMAX, back)(None, x, got, -1, torch.float32)
    assert own.calls == back.calls == 1 and not launched
    assert torch_override.LEAST_BYTES == 2**20


def test_a_small_tensor_of_a_long_row_is_ours(monkeypatch):
    launched = serve_cpu(monkeypatch)
    x = torch.randn(1, torch_override.LONG_ROW)
    for row, times in ((x, 1), (x[:, 1:], 0)):
        launched.clear()
        own = Own(torch._softmax), Own(torch._softmax_backward_data)
        assert row.nbytes < torch_override.LEAST_BYTES
        got = torch_override._forward(Op.SOFTMAX, own[0])(None, row, -1, False)
        torch.testing.assert_close(got, torch.softmax(row, -1))
        torch_override._backward(Op.SOFTMAX, own[1])(None, row, got, -1, torch.float32)
        assert len(launched) == 2 * times and own[0].calls == own[1].calls == 1 - times


def test_small_tensors_are_ours_where_rows_must_not_depend_on_each_other(monkeypatch):
    launched = serve_cpu(monkeypatch)
    monkeypatch.setattr(torch_override, "options", Options(batch_invariant=True))
    x, own = torch.randn(3, 5), Own(torch._softmax)
    torch_override._forward(Op.SOFTMAX, own)(None, x, -1, False)
    assert not own.calls and len(launched) == 1


def test_what_no_kernel_does_is_pytorchs(ours, monkeypatch):
    monkeypatch.setattr("explorer.runtime.recipes.plan_of", lambda *_: None)
    x = torch.randn(3, 5)
    own = Own(torch._softmax)
    assert torch.equal(
        torch_override._forward(Op.SOFTMAX, own)(None, x, 0, False), torch.softmax(x, 0)
    )
    empty = torch.empty(0, 5)
    assert torch_override._forward(Op.SOFTMAX, own)(None, empty, 0, False).shape == (0, 5)
    assert own.calls == 2


def test_an_axis_that_is_not_there_is_told(ours):
    with pytest.raises(IndexError, match="dim is 2"):
        torch_override._forward(Op.SOFTMAX, Own(torch._softmax))(None, torch.randn(3, 5), 2, False)


def test_pytorchs_own_operators_are_asked_for(has_cuda_operators):
    with explorer.register_torch():
        assert torch.equal(torch.softmax(torch.zeros(2), 0), torch.tensor([0.5, 0.5]))


# ------------------------------------------------------------------ cross-entropy


@pytest.fixture
def losses(monkeypatch):
    """PyTorch's losses on the CPU are ours; how many calls were served, and launched."""
    launched = serve_cpu(monkeypatch)
    monkeypatch.setattr(torch_override, "DISPATCH_KEY", "CPU")
    with explorer.register_torch() as registration:
        yield registration.served, launched


KEYWORDS = [
    {},
    {"reduction": "sum"},
    {"reduction": "none"},
    {"ignore_index": 3},
    {"label_smoothing": 0.2},
    {"weight": torch.linspace(0.5, 1.5, 33)},
]


def loss_and_gradient(x, target, **more):
    x = x.detach().clone().requires_grad_()
    loss = torch.nn.functional.cross_entropy(x, target, **more)
    loss.sum().backward()
    return loss.detach(), x.grad


@pytest.mark.parametrize("more", KEYWORDS, ids=lambda more: ",".join(more) or "plain")
@pytest.mark.parametrize("shape", [(9, 33), (2, 33, 5), (33,)], ids=str)
def test_pytorchs_cross_entropy_is_ours(losses, more, shape):
    served, launched = losses
    x = torch.randn(shape)
    classes = 1 if len(shape) > 1 else 0
    target = torch.randint(0, 33, (*shape[:classes], *shape[classes + 1 :]))
    got = loss_and_gradient(x, target, **more)
    torch_override._registration.remove()
    wanted = loss_and_gradient(x, target, **more)
    for ours, theirs in zip(got, wanted, strict=True):
        torch.testing.assert_close(ours, theirs)
    assert served["cross_entropy_loss"] == 1 and len(launched) == 2


def test_a_module_and_types_of_16_bits_have_pytorchs_type(losses):
    x = torch.randn(6, 20, dtype=torch.bfloat16, requires_grad=True)
    loss = torch.nn.CrossEntropyLoss()(x, torch.randint(0, 20, (6,)))
    assert loss.dtype is torch.bfloat16 and losses[0]["cross_entropy_loss"] == 1


@pytest.mark.parametrize(
    "target, more",
    [
        (torch.full((6, 20), 0.05), {}),
        (torch.zeros(6, dtype=torch.uint8), {}),
        (torch.zeros(6, dtype=torch.int64), {"weight": torch.ones(20), "label_smoothing": 0.1}),
    ],
    ids=["probabilities", "uint8", "smoothed by weights"],
)
def test_other_losses_are_left_to_pytorch(losses, target, more):
    x = torch.randn(6, 20)
    got = torch.nn.functional.cross_entropy(x, target, **more)
    torch_override._registration.remove()
    assert torch.equal(got, torch.nn.functional.cross_entropy(x, target, **more))
    assert not losses[0] and not losses[1]


def test_pytorch_says_what_is_wrong_with_a_call(losses):
    with pytest.raises((RuntimeError, ValueError), match=r"batch_size|size"):
        torch.nn.functional.cross_entropy(torch.randn(6, 20), torch.zeros(5, dtype=torch.int64))


def test_neither_transforms_nor_modes_lose_a_gradient(losses):
    served, _ = losses
    x, target = torch.randn(6, 20), torch.randint(0, 20, (6,))
    function = torch.nn.functional.cross_entropy
    got = torch.func.grad(function)(x, target)
    assert not served
    with torch.inference_mode():
        loss = function(x, target)
    assert served["cross_entropy_loss"] == 1
    compiled = torch.compile(function, backend="aot_eager", fullgraph=True)
    leaf = x.clone().requires_grad_()
    compiled(leaf, target).backward()
    assert served["cross_entropy_loss"] > 1
    batch = torch.vmap(function, in_dims=(0, None))(torch.stack([x, x]), target)
    torch_override._registration.remove()
    wanted, gradient = loss_and_gradient(x, target)
    torch.testing.assert_close(got, gradient)
    torch.testing.assert_close(leaf.grad, gradient)
    torch.testing.assert_close(loss, wanted)
    torch.testing.assert_close(batch, torch.stack([wanted, wanted]))


def test_code_that_is_compiled_after_a_registration_has_its_gradient(
    has_cuda_operators, monkeypatch
):
    monkeypatch.setattr(torch_override, "DISPATCH_KEY", "CPU")
    serve_cpu(monkeypatch)
    target = torch.randint(20, (6,))

    def gradient():
        torch._dynamo.reset()
        x = torch.randn(6, 20, requires_grad=True)
        loss = torch.compile(torch.nn.functional.cross_entropy, backend="aot_eager")(x * 1, target)
        loss.backward()
        return x.grad

    assert gradient() is not None
    with explorer.register_torch() as registration:
        assert gradient() is not None and registration.served["cross_entropy_loss"]
    assert gradient() is not None


def test_a_loss_is_in_f32_under_autocast(losses, monkeypatch):
    """As on CUDA, where PyTorch's autocast looks at the parts of a loss alone."""
    monkeypatch.setattr(torch_override, "autocast_type", lambda: torch.float32)
    x, target = torch.randn(4, 9, dtype=torch.bfloat16), torch.zeros(4, dtype=torch.int64)
    assert torch.nn.functional.cross_entropy(x, target).dtype is torch.float32


@pytest.mark.parametrize(
    "more",
    [
        {"label_smoothing": 1.5},
        {"weight": torch.ones(9, dtype=torch.float64)},
        {"weight": torch.ones(9, requires_grad=True)},
        {"weight": torch.ones(9, dtype=torch.int64)},
    ],
    ids=lambda more: next(iter(more)),
)
def test_what_pytorch_refuses_is_not_served(losses, more):
    x, target = torch.randn(4, 9), torch.zeros(4, dtype=torch.int64)
    with pytest.raises((RuntimeError, ValueError)):
        torch.nn.functional.cross_entropy(x, target, **more)
    assert not losses[0] and not losses[1]


@pytest.mark.parametrize("lacks", ["forward", "backward", "alignment"])
def test_a_loss_that_no_kernel_would_serve_whole_is_not_counted(losses, monkeypatch, lacks):
    x, target = torch.randn(65), torch.zeros(8, dtype=torch.int64)
    x = (x[1:] if lacks == "alignment" else x[:64]).view(8, 8).requires_grad_()
    plan_of = recipes.plan_of

    def some(library, problem, device):
        is_backward = problem.op is Op.CROSS_ENTROPY_BACKWARD
        is_lacking = lacks != "alignment" and is_backward == (lacks == "backward")
        return None if is_lacking else plan_of(library, problem, device)

    monkeypatch.setattr(recipes, "plan_of", some)
    torch.nn.functional.cross_entropy(x, target).backward()
    assert not losses[0] and not losses[1]


def test_a_loss_is_checked_once_and_its_gradients_kernel_is_asked_for_once(losses, monkeypatch):
    asked = []
    for owner, name in (
        (torch_operators.TensorFunctions, "losses_call"),
        (torch_operators, "_gradient_call"),
    ):
        own = getattr(owner, name)
        monkeypatch.setattr(
            owner, name, lambda *told, own=own, name=name: asked.append(name) or own(*told)
        )
    x, target = torch.randn(6, 20, requires_grad=True), torch.randint(0, 20, (6,))
    for _ in range(3):
        torch.nn.functional.cross_entropy(x, target)
    assert asked == ["losses_call", "_gradient_call", "losses_call", "losses_call"]


def test_a_loss_whose_kernel_is_not_there_yet_is_pytorchs(losses, monkeypatch):
    monkeypatch.setattr("explorer.runtime.recipes.plan_of", lambda *told: None)
    x, target = torch.randn(6, 20), torch.randint(0, 20, (6,))
    got = torch.nn.functional.cross_entropy(x, target)
    torch_override._registration.remove()
    assert torch.equal(got, torch.nn.functional.cross_entropy(x, target)) and not losses[0]


@pytest.mark.exhaustive
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_pytorchs_own_samples_of_losses_come_to_the_same(losses, dtype):
    from torch_losses import assert_same, results

    ours = results("cpu", dtype)
    torch_override._registration.remove()
    indices = assert_same(ours, results("cpu", dtype), 1e-5, 1e-6)
    assert losses[0]["cross_entropy_loss"] == indices > 60
