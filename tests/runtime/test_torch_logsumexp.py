"""Log-sum-exp of PyTorch's tensors: our kernels, run by the emulator, come to what PyTorch does."""

import math
from collections import Counter

import pytest
from torch_cases import serve_cpu, torch

import explorer
from explorer.model.errors import InvalidInput
from explorer.ops import Op
from explorer.runtime import recipes, shapes, torch_calls, torch_override

F16, BF16, F32, F64 = torch.float16, torch.bfloat16, torch.float32, torch.float64
DTYPES = [F32, F64, F16, BF16]


@pytest.fixture
def ours(monkeypatch):
    """Our kernels serve tensors on the CPU; the list of the problems of all launches."""
    torch.manual_seed(0)
    return serve_cpu(monkeypatch)


def exact(x, dim=-1, *, scale=1.0, keepdim=False, dtype=None):
    """The result for a tensor, computed in double precision."""
    wide = torch.logsumexp(x.detach().double() * scale, dim, keepdim=keepdim)
    return wide.to(dtype or (F64 if x.dtype is F64 else F32))


def close(got, expected):
    assert got.dtype is expected.dtype and got.shape == expected.shape
    relative = {F64: 1e-13, F32: 1e-6, F16: 1e-3, BF16: 8e-3}[got.dtype]
    torch.testing.assert_close(got, expected, rtol=relative, atol=relative, equal_nan=True)


# ------------------------------------------------------------------ results


VIEWS = {
    "dense": lambda: torch.randn(2, 3, 4),
    "no axis": lambda: torch.randn(()),
    "one axis": lambda: torch.randn(7),
    "one element": lambda: torch.randn(1, 1),
    "columns sliced off": lambda: torch.randn(2, 3, 9)[..., 2:7],
    "rows sliced off": lambda: torch.randn(2, 4, 5)[:, :-1],
    "transposed": lambda: torch.randn(3, 5).t(),
    "expanded columns": lambda: torch.randn(3, 1).expand(3, 5),
    "an imaginary part": lambda: torch.randn(3, 5, dtype=torch.complex64).conj().imag,
}


@pytest.mark.parametrize("view", VIEWS.values(), ids=VIEWS)
@pytest.mark.parametrize("keepdim", [False, True])
def test_every_axis_of_every_view(ours, view, keepdim):
    x = view()
    for dim in range(-max(1, x.dim()), max(1, x.dim())):
        for _ in range(2):  # looked at, and found again
            got = explorer.logsumexp(x, dim, keepdim=keepdim)
            close(got, exact(x, dim, keepdim=keepdim))
    assert len(ours) == 4 * max(1, x.dim()) and {problem.op for problem in ours} == {Op.LOGSUMEXP}


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("scale", [1, 0.3, -2, 0])
def test_every_type_and_scale(ours, dtype, scale):
    x = (5 * torch.randn(4, 33)).to(dtype)
    factor = scale if dtype is F64 else torch.tensor(scale, dtype=F32).item()
    close(explorer.logsumexp(x, scale=scale), exact(x, scale=factor))
    assert len(ours) == 1 and (ours[0].scale is None) == (scale == 1)


def test_a_batch_of_logits_without_the_last_is_read_where_it_lies(ours):
    logits = torch.randn(3, 9, 16)
    for x in (logits[:, :-1], logits[0, :, :12], logits[:, 4], logits.transpose(0, 1)):
        for out in (None, torch.empty(x.shape[:-1])):
            close(explorer.logsumexp(x, out=out), exact(x))
    assert [problem.rows for problem in ours] == [26, 26, 9, 9, 3, 3, 27, 27]


def test_infinities_and_nan(ours):
    x = torch.zeros(5, 4)
    x[0], x[1, 2], x[2, 1], x[3, 0] = -math.inf, math.inf, math.nan, -math.inf
    for _ in range(2):
        torch.testing.assert_close(
            explorer.logsumexp(x), torch.logsumexp(x, -1), equal_nan=True, rtol=1e-6, atol=0
        )
    assert len(ours) == 2


@pytest.mark.parametrize("scale", [-1, 0])
def test_what_is_masked_stays_masked_whatever_the_scale(ours, monkeypatch, scale):
    x = torch.randn(3, 6)
    x[0, :3], x[1] = -math.inf, -math.inf
    for function, own in (
        (explorer.logsumexp, torch.logsumexp),
        (explorer.softmax, torch.softmax),
        (explorer.log_softmax, torch.log_softmax),
    ):
        expected = own((x * scale).masked_fill(x == -math.inf, -math.inf), -1)
        by_kernel = function(x, scale=scale)
        with monkeypatch.context() as context:
            context.setattr(recipes, "plan_of", lambda *_: None)
            torch_calls._threads.recipes.clear()
            by_torch = function(x, scale=scale)
        for got in (by_kernel, by_torch):
            torch.testing.assert_close(got, expected, equal_nan=True)
    assert len(ours) == 3


@pytest.mark.parametrize("shape", [(0,), (3, 0), (0, 3), (2, 0, 4)], ids=str)
def test_an_empty_tensor(ours, shape):
    x = torch.empty(shape, dtype=F16)
    for dim in range(len(shape)):
        got, expected = explorer.logsumexp(x, dim), torch.logsumexp(x.float(), dim)
        assert got.dtype is F32 and torch.equal(got, expected)
        out = torch.empty_like(expected)
        assert explorer.logsumexp(x, dim, out=out) is out and torch.equal(out, expected)
    assert not ours


def test_what_no_kernel_does_is_pytorchs(ours, monkeypatch):
    complex_numbers = torch.randn(3, 5, dtype=torch.complex64)
    expected = torch.logsumexp(complex_numbers, -1)
    torch.testing.assert_close(explorer.logsumexp(complex_numbers), expected)
    assert torch.autograd.gradcheck(
        lambda x: explorer.logsumexp(x, scale=0.5), complex_numbers.cdouble().requires_grad_()
    )
    monkeypatch.setattr(recipes, "plan_of", lambda *_: None)
    x = torch.randn(2, 3, 4).to(BF16).transpose(0, 2)
    close(explorer.logsumexp(x, 1, scale=0.5), exact(x, 1, scale=0.5))
    assert torch.ops.explorer.logsumexp(x, 1, None)[0].is_contiguous()
    assert not ours


# ------------------------------------------------------------------ output


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_an_output_may_have_the_type_of_x(ours, dtype):
    x = torch.randn(4, 3, 5).to(dtype)
    for target in {dtype, torch.promote_types(dtype, F32)}:
        for dim, keepdim in ((-1, False), (0, True), (1, False)):
            expected = exact(x, dim, keepdim=keepdim, dtype=target)
            out = torch.empty(expected.shape, dtype=target)
            version = out._version
            assert explorer.logsumexp(x, dim, keepdim=keepdim, out=out) is out
            assert out._version > version
            close(out, expected)
    assert {problem.output_dtype.array_name for problem in ours} <= {str(dtype)[6:], "float32"}


def test_an_output_with_gaps_is_written_where_it_lies(ours):
    x, wide = torch.randn(4, 5), torch.zeros(4, 3)
    explorer.logsumexp(x, out=wide[:, 1])
    close(wide[:, 1], exact(x))
    assert not wide[:, ::2].any() and len(ours) == 1 and ours[0].output_stride == 3


def test_an_output_over_the_input_is_right_all_the_same(ours):
    for start in (0, 3):
        memory = torch.randn(20)
        x, out = memory.view(4, 5), memory[start : start + 4]
        expected = exact(x)
        explorer.logsumexp(x, out=out)
        close(out, expected)


def test_a_negated_output_is_written_by_pytorch(ours):
    x, out = torch.randn(3, 5), torch._neg_view(torch.empty(3))
    explorer.logsumexp(x, out=out)
    close(out.resolve_neg(), exact(x))


# ------------------------------------------------------------------ gradients


@pytest.mark.parametrize("shape, dim", [((3, 5), -1), ((2, 3, 4), 1), ((), 0)], ids=str)
@pytest.mark.parametrize("scale", [1, 0.7])
def test_gradients_of_any_order(ours, shape, dim, scale):
    x = torch.randn(shape, dtype=F64, requires_grad=True)

    def function(x):
        return explorer.logsumexp(x, dim, scale=scale)

    assert torch.autograd.gradcheck(function, x) and torch.autograd.gradgradcheck(function, x)
    assert ours


@pytest.mark.parametrize("dtype", [F32, F16, BF16], ids=str)
@pytest.mark.parametrize("level", [0, 60, 5000])
def test_the_gradient_is_as_exact_as_the_docstring_says(ours, dtype, level):
    x = (level + torch.randn(3, 200)).to(dtype).requires_grad_()
    (got,) = torch.autograd.grad(explorer.logsumexp(x), x, torch.ones(3))
    expected = torch.softmax(x.detach().double(), -1)
    rounding = {F32: 0.0, F16: 2**-10, BF16: 2**-8}[dtype]
    least = 3e-8 if dtype is F16 else 1e-9
    torch.testing.assert_close(got.double(), expected, rtol=1e-6 + rounding, atol=least)
    assert got.dtype is dtype and [problem.also for problem in ours] == ["maximum,log_sum"]


def test_infinite_rows_have_the_gradient_of_pytorch(ours):
    x = torch.randn(3, 4)
    x[0], x[1, 1], x[2, 2] = -math.inf, math.inf, -math.inf
    x.requires_grad_()
    (got,) = torch.autograd.grad(explorer.logsumexp(x).sum(), x)
    (expected,) = torch.autograd.grad(torch.logsumexp(x, -1).sum(), x)
    torch.testing.assert_close(got, expected, equal_nan=True)


def test_a_gradient_that_nobody_asks_for_is_not_kept(ours):
    x = torch.randn(3, 5, requires_grad=True)
    with torch.no_grad():
        assert explorer.logsumexp(x).grad_fn is None
    assert explorer.logsumexp(x).grad_fn is not None


# ------------------------------------------------------------------ transforms, compilation


def test_the_operator_keeps_pytorchs_rules(ours):
    for x in (torch.randn(3, 5), torch.randn(3, 5, requires_grad=True)):
        for told in ((1, None), (0, 0.5)):
            torch.library.opcheck(torch.ops.explorer.logsumexp.default, (x, *told))


def test_vmap_launches_one_kernel(ours):
    x = torch.randn(6, 4, 5)
    for axis in range(3):
        rest = x.movedim(axis, 0)
        for dim in (0, -1):
            ours.clear()
            got = torch.func.vmap(lambda r, dim=dim: explorer.logsumexp(r, dim), in_dims=axis)(x)
            close(got, torch.stack([exact(row, dim) for row in rest]))
            assert len(ours) == 1
    twice = torch.func.vmap(torch.func.vmap(lambda r: explorer.logsumexp(r, scale=2)))(x)
    close(twice, exact(x, scale=2))
    scalars = torch.func.vmap(explorer.logsumexp)(torch.arange(3.0))
    close(scalars, torch.arange(3.0))


def function(x):
    return explorer.logsumexp(x, scale=0.7)


def own(x):
    return torch.logsumexp(0.7 * x, -1)


TRANSFORMS = {
    "grad": lambda f: torch.func.grad(lambda x: f(x).sum()),
    "vmap of grad": lambda f: torch.func.vmap(torch.func.grad(f)),
    "grad of vmap": lambda f: torch.func.grad(lambda x: torch.func.vmap(f)(x).sum()),
    "jvp": lambda f: lambda x: torch.func.jvp(f, (x,), (x + 1,))[1],
    "hessian": lambda f: lambda x: torch.func.hessian(f)(x[0]),
}


@pytest.mark.parametrize("transform", TRANSFORMS.values(), ids=TRANSFORMS)
def test_transforms_have_pytorchs_derivatives(ours, transform):
    x = torch.randn(3, 5)
    expected = transform(own)(x)
    torch.testing.assert_close(transform(function)(x), expected, rtol=1e-5, atol=1e-6)
    if transform is not TRANSFORMS["hessian"]:
        compiled = torch.compile(transform(function), backend="eager")
        torch.testing.assert_close(compiled(x), expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_a_compiled_call_is_one_operator(ours, backend):
    torch._dynamo.reset()
    compiled = torch.compile(
        lambda x, s: explorer.logsumexp(x + 1, 1, scale=s, keepdim=True) - 1,
        fullgraph=True,
        backend=backend,
    )
    x = torch.randn(3, 5, requires_grad=True)
    for scale in (1, 0.5, 0.25):
        expected = torch.logsumexp((x + 1) * scale, 1, keepdim=True) - 1
        got = compiled(x, scale)
        close(got, expected)
        (mine,), (theirs,) = (torch.autograd.grad(y.sum(), x) for y in (got, expected))
        torch.testing.assert_close(mine, theirs)
    assert len(ours) == 3


def test_a_compiled_call_writes_and_checks_its_output(ours):
    torch._dynamo.reset()
    compiled = torch.compile(lambda x, out: explorer.logsumexp(x, out=out), backend="eager")
    x, out = torch.randn(2, 4), torch.empty(2)
    close(compiled(x, out), exact(x))
    close(out, exact(x))
    with pytest.raises(InvalidInput, match="out is"):
        compiled(x, torch.empty(3))


def test_an_exported_program_has_the_operator(ours):
    class Module(torch.nn.Module):
        def forward(self, x):
            return explorer.logsumexp(x, scale=0.5)

    x = torch.randn(3, 5)
    program = torch.export.export(Module(), (x,))
    assert "explorer.logsumexp" in program.graph_module.code
    close(program.module()(x), exact(x, scale=0.5))


# ------------------------------------------------------------------ bad input


X = torch.randn(2, 3)


@pytest.mark.parametrize(
    "x, told, error, sentence",
    [
        (torch.arange(4), {}, InvalidInput, r"x is of torch.int64; it must be of .*: give x.float"),
        (X > 0, {}, InvalidInput, r"x is of torch.bool; it must be of floating-point numbers"),
        (X.to_sparse(), {}, InvalidInput, r"x is of layout torch.sparse_coo; it must be dense"),
        (X, {"dim": 2}, IndexError, "dim is 2; an array of 2 axes has -2 to 1"),
        (X, {"dim": (0, 1)}, TypeError, r"dim is \(0, 1\); it must be a whole number, such as -1"),
        (X, {"dim": 1.0}, TypeError, "dim is 1.0; it must be a whole number"),
        (X, {"dim": True}, TypeError, "dim is True; it must be a whole number"),
        (X, {"dim": None}, TypeError, "dim is None; it must be a whole number"),
        (X, {"scale": "2"}, TypeError, "scale is '2'; it must be a number, such as 0.5"),
        (X, {"scale": None}, TypeError, "scale is None; it must be a number, such as 0.5"),
        (X, {"scale": X}, TypeError, "scale is a tensor; it must be a number"),
        (X, {"keepdim": "no"}, TypeError, "keepdim is 'no'; it must be True or False"),
        (X, {"out": torch.empty(2, device="meta")}, InvalidInput, "on meta; it must .* on cpu"),
        (X, {"scale": 10**400}, InvalidInput, "scale is a number of 1329 bits; it must be"),
        (X, {"out": torch.empty(3)}, InvalidInput, r"out is .* \(3,\) .*must be .* shape \(2,\)"),
        (X, {"out": torch.empty(2, 1)}, InvalidInput, r"out is .*; it must be .* of shape \(2,\)"),
        (X, {"out": torch.empty(2), "keepdim": True}, InvalidInput, r"it must .* shape \(2, 1\)"),
        (X, {"out": torch.empty(2).half()}, InvalidInput, "out is torch.float16 .*must be .*32"),
        (X.half(), {"out": torch.empty(2).double()}, InvalidInput, "out is torch.float64 .*t32"),
        (X, {"out": 5}, TypeError, "out is an int; it must be a tensor"),
        (X, {"out": torch.empty(2).to_sparse()}, InvalidInput, "out is of layout"),
        (X, {"out": torch.empty(2, requires_grad=True)}, InvalidInput, "out wants a gradient"),
        (X.clone().requires_grad_(), {"out": torch.empty(2)}, InvalidInput, "out is given, and a"),
    ],
)
def test_what_cannot_be_is_told(ours, x, told, error, sentence):
    for _ in range(2):
        with pytest.raises(error, match=sentence) as told_error:
            explorer.logsumexp(x, **told)
        assert "\n" not in str(told_error.value)
    assert not ours


def test_an_output_on_another_device_is_told(ours, monkeypatch):
    monkeypatch.setattr(torch.Tensor, "get_device", lambda x: id(x))
    with pytest.raises(InvalidInput, match=r"out is .* of shape \(2,\) on cpu; it must be"):
        explorer.logsumexp(X, out=torch.empty(2))


# ------------------------------------------------------------------ behind PyTorch's own


class Own:
    """PyTorch's kernel of the operator, which counts its calls."""

    def __init__(self):
        self.calls = 0

    def call_boxed(self, keys, *arguments):
        self.calls += 1
        return torch.logsumexp(*arguments)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("keepdim", [False, True])
def test_pytorchs_own_function_has_its_type(ours, dtype, keepdim):
    counted = Own()
    run = torch_override._logsumexp(counted, served := Counter())
    x = torch.randn(3, 4, 5).to(dtype)
    for dim in range(-3, 3):
        close(run(None, x, [dim], keepdim), exact(x, dim, keepdim=keepdim, dtype=dtype))
    assert len(ours) == served["logsumexp"] == 6 and not counted.calls


def test_what_is_not_ours_falls_through(ours):
    counted = Own()
    run = torch_override._logsumexp(counted, served := Counter())
    others = [(torch.randn(2, 3), [0, 1]), (torch.tensor(2.0), [0]), (torch.empty(0, 3), [1])]
    others += [(torch.arange(6).view(2, 3), [1]), (torch.randn(2, 3, dtype=torch.complex64), [0])]
    for x, dims in others:
        torch.testing.assert_close(run(None, x, dims), torch.logsumexp(x, dims))
    assert counted.calls == len(others) and not ours and not served
    with pytest.raises(IndexError, match="dim is 2"):
        run(None, torch.randn(2, 3), [2])


def test_every_call_is_counted_where_shapes_are_logged(ours, tmp_path):
    path = tmp_path / "met.csv"
    with explorer.log_shapes(path):
        for _ in range(3):
            explorer.logsumexp(torch.randn(3, 5).to(BF16))
    (line,) = path.read_text().splitlines()[1:]
    assert "logsumexp" in line and line.endswith(",3")
    assert shapes.read_shapes(path) == list(dict.fromkeys(ours))


def test_recipes_are_found_again(ours, monkeypatch):
    x = torch.randn(3, 5)
    explorer.logsumexp(x)
    monkeypatch.setattr(torch_calls, "make_recipe", None)
    close(explorer.logsumexp(x), exact(x))
