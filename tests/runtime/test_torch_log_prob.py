"""Log-probabilities of given columns, of PyTorch's tensors: kernels are run by the emulator."""

import itertools
import math

import numpy as np
import pytest
from torch_cases import serve_cpu, torch

import explorer
from explorer.model.errors import InvalidInput
from explorer.ops import OPERATORS, Op
from explorer.runtime import layout, shapes, torch_calls

F16, BF16, F32, F64 = torch.float16, torch.bfloat16, torch.float32, torch.float64
I32, I64 = torch.int32, torch.int64
ALL = {"lse": True, "entropy": True, "rank": True, "argmax": True}
NUMBERS = {"lse": True, "entropy": True}


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


def exact(x, ids, scale=1.0):
    """The truth of each result by its name, for ids of shape (rows, K)."""
    wide = x.detach().to(F64 if x.dtype is F64 else F32).numpy()
    with np.errstate(all="ignore"):
        scaled = np.where(wide == -np.inf, wide, wide * wide.dtype.type(scale))
        kind = np.longdouble if x.dtype is F64 else np.float64
        arrays = {"input": scaled.astype(kind), "ids": ids.numpy()}
        results = OPERATORS[Op.LOG_PROB].results
        return {r.name: np.asarray(r.truth(arrays, scale, 0.0).values, float) for r in results}


def close(got, truth, dtype):
    """All that was returned is the truth, and of the right types."""
    relative = 1e-12 if dtype is F64 else 4e-6
    for name, values in zip(("output", *ALL), got, strict=True):
        if values is not None:
            wanted = truth[name].reshape(values.shape)
            np.testing.assert_allclose(
                values.double().numpy(), wanted, rtol=relative, atol=relative, err_msg=name
            )


# ------------------------------------------------------------------ results


@pytest.mark.parametrize("dtype, ids_dtype", [(F32, I64), (F64, I32), (F16, I64), (BF16, I32)])
@pytest.mark.parametrize("scale", [1, 0.3, -2, 0])
def test_every_type_and_scale_and_what_is_no_number(problems, dtype, ids_dtype, scale):
    x = (3 * torch.randn(9, 33)).to(dtype)
    x[1], x[2, 3], x[3, 4], x[4, :7] = -math.inf, math.inf, math.nan, -math.inf
    x[5], x[6], x[6, 3] = math.nan, math.nan, -math.inf
    ids = torch.randint(-2, 35, (9, 3), dtype=ids_dtype)
    ids[2, 0], ids[3, 0] = 3, 4
    got = explorer.log_prob(x, ids, scale=scale, **ALL)
    close(got, exact(x, ids, scale), dtype)
    wide = F64 if dtype is F64 else F32
    assert {got.log_prob.dtype, got.lse.dtype, got.entropy.dtype} == {wide}
    assert got.rank.dtype is got.argmax.dtype is ids_dtype
    if problems is not None:
        assert len(problems) == 1 and problems[0].also == ",".join(ALL)
        assert (problems[0].scale is None) == (scale == 1)


@pytest.mark.parametrize("shape", [(7,), (1, 1), (5, 7), (2, 3, 7), (2, 1, 3, 7)], ids=str)
def test_the_shapes_are_those_of_index_and_of_the_rows(problems, shape):
    x = torch.randn(shape)
    for count in (None, 1, 4):
        index = torch.randint(0, shape[-1], shape[:-1] if count is None else (*shape[:-1], count))
        got = explorer.log_prob(x, index, **ALL)
        assert got.log_prob.shape == index.shape
        assert {value.shape for value in got[1:]} == {shape[:-1]}
        rows = x.reshape(-1, shape[-1])
        close(got, exact(rows, index.reshape(rows.shape[0], -1)), F32)


def test_what_is_not_asked_for_is_not_computed(ours):
    x, index = torch.randn(4, 9), torch.arange(4)
    names = tuple(ALL)
    for count in range(len(names) + 1):
        for asked in itertools.combinations(names, count):
            got = explorer.log_prob(x, index, **dict.fromkeys(asked, True))
            given = {name for name, value in got._asdict().items() if value is not None}
            assert given == {"log_prob", *asked} and ours[-1].also == ",".join(asked)
            close(got, exact(x, index[:, None]), F32)
    assert isinstance(got, explorer.LogProbs)


@pytest.mark.parametrize("shape", [(0, 5), (3, 0, 5)], ids=str)
def test_no_rows_have_no_results(ours, shape):
    got = explorer.log_prob(torch.empty(shape), torch.empty(shape[:-1], dtype=I64), **ALL)
    assert {value.shape for value in got} == {shape[:-1]} and not ours


def test_ids_with_gaps_are_read_where_they_lie(ours):
    x, wide = torch.randn(4, 9), torch.randint(0, 9, (4, 6))
    for ids in (wide[:, 1:4], wide[:, 2], wide.t().contiguous().t()[:, :2], wide[:, ::2]):
        close(explorer.log_prob(x, ids), exact(x, ids.reshape(4, -1)), F32)
    assert [problem.ids_stride for problem in ours] == [6, 6, 2, 3]


# ------------------------------------------------------------------ slices


SLICES = {
    "without the last": (lambda x: x[:, :-1], lambda i: i[:, 1:], 14),
    "without the first": (lambda x: x[:, 1:], lambda i: i[:, :-1], 14),
    "a part of the columns": (lambda x: x[:, :-1, :12], lambda i: i[:, 1:], 14),
    "other ids": (lambda x: x[:, :-1], lambda i: i[:, 1:].contiguous(), 14),
    "ids in 32 bits": (lambda x: x[:, :-1], lambda i: i[:, 1:].int(), 14),
    "every second": (lambda x: x[:, 1:5:2], lambda i: i[:, 1:5:2], 13),
    "time first": (lambda x: x.transpose(0, 1), lambda i: i.t(), 15),
    "time first, without the last": (lambda x: x[:-1].transpose(0, 1), lambda i: i[1:].t(), 10),
    "the last": (lambda x: x[:, -1:], lambda i: i[:, -1:], 3),
    "one of them": (lambda x: x[:, 2], lambda i: i[:, 2], 3),
}


@pytest.mark.parametrize("of_x, of_ids, rows", SLICES.values(), ids=SLICES)
@pytest.mark.parametrize("is_in_turn", [False, True])
def test_slices_of_logits_are_not_copied(ours, monkeypatch, of_x, of_ids, rows, is_in_turn):
    logits, index = torch.randn(3, 5, 16), torch.randint(0, 12, (3, 5))
    x, ids = of_x(logits), of_ids(index)
    monkeypatch.setattr(torch.Tensor, "contiguous", contiguous(x.numel()))
    if is_in_turn:
        monkeypatch.setattr(layout, "BYTES_PER_LAUNCH", 0)
    for _ in range(2):  # looked at, and found again
        got = explorer.log_prob(x, ids, **ALL)
        flat = x.reshape(-1, x.shape[-1])
        close(got, exact(flat, ids.reshape(-1, 1)), F32)
        close((None, explorer.logsumexp(x), None, None, None), exact(flat, ids.reshape(-1, 1)), F32)
    if not is_in_turn:
        assert [problem.rows for problem in ours] == [rows] * 4


def contiguous(elements):
    """`Tensor.contiguous`, which refuses tensors of so many elements."""
    own = torch.Tensor.contiguous

    def run(tensor, **told):
        assert tensor.numel() < elements or tensor.is_contiguous()
        return own(tensor, **told)

    return run


def test_few_long_parts_of_a_batch_are_launches_of_their_own(ours, monkeypatch):
    monkeypatch.setattr(layout, "BYTES_PER_LAUNCH", 16 * 4 * 2)  # two rows
    logits, index = torch.randn(3, 9, 16), torch.randint(0, 16, (3, 9))
    for begin, count in ((1, 1), (7, 3)):
        ours.clear()
        x, ids = logits[:, begin:], index[:, begin:]
        got = explorer.log_prob(x, ids, entropy=True)
        close(got, exact(x.reshape(-1, 16), ids.reshape(-1, 1)), F32)
        assert len(ours) == count
    out = torch.empty(3, 2)
    assert explorer.logsumexp(logits[:, 7:], out=out) is out
    torch.testing.assert_close(out, torch.logsumexp(logits[:, 7:], -1))


# ------------------------------------------------------------------ gradients


def own(x, ids, scale=1.0):
    """The three numbers by PyTorch's functions, for ids of shape (..., K)."""
    logs = torch.log_softmax(x * scale, -1)
    entropy = -(logs.exp() * logs).sum(-1)
    return logs.gather(-1, ids.long()), torch.logsumexp(x * scale, -1), entropy


def numbers(x, ids, scale=1):
    return explorer.log_prob(x, ids, scale=scale, **NUMBERS)[:3]


@pytest.mark.parametrize("scale", [1, 0.7, -1.5])
def test_gradients_of_any_order(problems, scale):
    x = torch.randn(2, 2, 7, dtype=F64, requires_grad=True)
    ids = torch.tensor([[[1, 2], [0, 0]], [[4, 3], [6, 5]]])
    assert torch.autograd.gradcheck(lambda x: numbers(x, ids, scale), x)
    assert torch.autograd.gradgradcheck(lambda x: numbers(x, ids, scale), x)


@pytest.mark.parametrize("dtype", [F32, F16, BF16], ids=str)
@pytest.mark.parametrize("level", [0, 60])
def test_gradients_are_those_of_float64(problems, dtype, level):
    x = (level + 2 * torch.randn(4, 200)).to(dtype).requires_grad_()
    ids, wide = torch.randint(0, 200, (4, 2)), x.detach().double().requires_grad_()
    for number, (mine, theirs) in enumerate(zip(numbers(x, ids), own(wide, ids), strict=True)):
        grad = torch.randn(mine.shape)
        (got,) = torch.autograd.grad(mine, x, grad, retain_graph=True)
        (expected,) = torch.autograd.grad(theirs, wide, grad.double(), retain_graph=True)
        rounding = {F32: 0.0, F16: 2**-10, BF16: 2**-8}[dtype]
        least = 6e-8 if dtype is F16 else 1e-7 if number == 2 else 1e-9
        torch.testing.assert_close(got.double(), expected, rtol=rounding + 2e-6, atol=least)
        assert got.dtype is dtype
    if problems is not None:
        assert {problem.also for problem in problems} == {"lse,entropy,maximum,log_sum"}


def test_one_backward_has_all_gradients_and_the_numbers_of_columns_have_none(problems):
    x, ids = torch.randn(3, 9, requires_grad=True), torch.randint(0, 9, (3,))
    got = explorer.log_prob(x, ids, scale=0.5, **ALL)
    assert got.log_prob.requires_grad and got.lse.requires_grad and got.entropy.requires_grad
    assert not got.rank.requires_grad and not got.argmax.requires_grad
    loss = (2 * got.log_prob + got.lse.square() - 3 * got.entropy).sum()
    output, lse, entropy = own(x, ids[:, None], 0.5)
    expected = (2 * output[:, 0] + lse.square() - 3 * entropy).sum()
    (mine,), (theirs,) = (torch.autograd.grad(y, x) for y in (loss, expected))
    torch.testing.assert_close(mine, theirs)


def test_ids_that_are_no_columns_add_nothing_to_gradients(problems):
    x = torch.randn(3, 9, requires_grad=True)
    ids = torch.tensor([[1, 9], [-1, -100], [2**31, 4]])
    got = explorer.log_prob(x, ids).log_prob
    inside = (ids >= 0) & (ids < 9)
    assert torch.equal(got.isnan(), ~inside)
    (mine,) = torch.autograd.grad(got.sum(), x)
    expected = own(x, ids * inside)[0][inside].sum()
    (theirs,) = torch.autograd.grad(expected, x)
    torch.testing.assert_close(mine, theirs)
    assert not mine[1].any()
    got = explorer.log_prob(x, ids).log_prob
    (mine,) = torch.autograd.grad(got.mean().square(), x)
    assert mine[0].isnan().all() and mine[2].isnan().all() and not mine[1].any()


def test_ids_that_are_no_columns_add_nothing_to_gradients_of_any_order(problems):
    x = torch.randn(3, 9, dtype=F64, requires_grad=True)
    ids = torch.tensor([[1, 9], [-1, -100], [2**31, 4]])
    weights = torch.tensor([[2.0, 5.0], [-3.0, 7.0], [11.0, 0.5]], dtype=F64)
    inside = (ids >= 0) & (ids < 9)

    def mine(x):
        return (explorer.log_prob(x, ids).log_prob * weights)[inside].square().sum()

    def theirs(x):
        return (own(x, ids * inside)[0] * weights)[inside].square().sum()

    def bad(x):  # the cotangent of each bad id is not 0
        return (explorer.log_prob(x, ids).log_prob * weights)[~inside].sum()

    (expected,) = torch.autograd.grad(theirs(x), x)
    for create_graph in (False, True):
        (got,) = torch.autograd.grad(mine(x), x, create_graph=create_graph)
        torch.testing.assert_close(got, expected)
        (got,) = torch.autograd.grad(bad(x), x, create_graph=create_graph)
        assert not got.any()
    plain = x.detach()
    torch.testing.assert_close(torch.func.grad(mine)(plain), expected)
    torch.testing.assert_close(torch.func.hessian(mine)(plain), torch.func.hessian(theirs)(plain))
    assert not torch.func.grad(bad)(plain).any()
    assert not torch.func.hessian(bad)(plain).any()


def test_masked_elements_have_no_gradient(problems):
    x = torch.randn(3, 9)
    x[:, 5:] = -math.inf
    x.requires_grad_()
    for scale in (0.5, -1):
        got = sum(value.sum() for value in numbers(x, torch.ones(3, 1, dtype=I64), scale))
        (mine,) = torch.autograd.grad(got, x)
        (short,) = (x.detach()[:, :5].requires_grad_(),)
        expected = sum(value.sum() for value in own(short, torch.ones(3, 1, dtype=I64), scale))
        (theirs,) = torch.autograd.grad(expected, short)
        torch.testing.assert_close(mine[:, :5], theirs)
        assert not mine[:, 5:].any()


def test_a_slice_has_its_gradient(ours):
    logits, index = torch.randn(2, 5, 16, requires_grad=True), torch.randint(0, 16, (2, 5))
    loss = explorer.log_prob(logits[:, :-1], index[:, 1:]).log_prob.sum()
    expected = own(logits[:, :-1], index[:, 1:, None])[0].sum()
    (mine,), (theirs,) = (torch.autograd.grad(y, logits) for y in (loss, expected))
    torch.testing.assert_close(mine, theirs)
    assert [problem.rows for problem in ours] == [9]


def test_a_gradient_that_nobody_asks_for_is_not_kept(ours):
    x, ids = torch.randn(3, 5, requires_grad=True), torch.zeros(3, dtype=I64)
    with torch.no_grad():
        assert explorer.log_prob(x, ids).log_prob.grad_fn is None
    assert explorer.log_prob(x, ids).log_prob.grad_fn is not None
    assert [problem.also for problem in ours] == ["", "maximum,log_sum"]


# ------------------------------------------------------------------ transforms, compilation


def test_the_operator_keeps_pytorchs_rules(ours):
    ids = torch.randint(0, 5, (3, 2))
    for x in (torch.randn(3, 5), torch.randn(3, 5, requires_grad=True)):
        for also in ("", "lse,entropy,rank,argmax"):
            told = (x, 1, 0.5, ids, also)
            torch.library.opcheck(torch.ops.explorer.log_prob.default, told)


def loss_of(logits, index, scale):
    got = explorer.log_prob(logits[:, :-1], index[:, 1:], scale=scale, **ALL)
    return got.log_prob - got.entropy * 0.1 + got.lse.square() * 1e-3, got.rank, got.argmax


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
@pytest.mark.parametrize("dynamic", [False, True])
def test_a_compiled_call_is_one_operator(ours, backend, dynamic):
    torch._dynamo.reset()
    compiled = torch.compile(loss_of, fullgraph=True, backend=backend, dynamic=dynamic)
    for count, scale in ((2, 0.5), (3, 0.5), (2, 0.25)):
        logits = torch.randn(count, 4, 16, requires_grad=True)
        index = torch.randint(0, 16, (count, 4))
        ours.clear()
        got = compiled(logits, index, scale)
        assert [problem.rows for problem in ours] == [4 * count - 1]
        expected = loss_of(logits, index, scale)
        for mine, theirs in zip(got, expected, strict=True):
            torch.testing.assert_close(mine, theirs)
        (mine,), (theirs,) = (torch.autograd.grad(y[0].sum(), logits) for y in (got, expected))
        torch.testing.assert_close(mine, theirs)


def test_an_exported_program_has_the_operator(ours):
    class Module(torch.nn.Module):
        def forward(self, x, index):
            return explorer.log_prob(x, index, rank=True)[:4:3]

    x, index = torch.randn(3, 5), torch.tensor([1, 0, 4])
    program = torch.export.export(Module(), (x, index))
    assert "explorer.log_prob" in program.graph_module.code
    log_prob, rank = program.module()(x, index)
    close((log_prob, None, None, rank, None), exact(x, index[:, None]), F32)


def test_vmap_launches_one_kernel(ours):
    x, ids = torch.randn(3, 4, 9), torch.randint(0, 9, (3, 4))
    got = torch.func.vmap(lambda x, i: explorer.log_prob(x, i, lse=True)[:2])(x, ids)
    assert len(ours) == 1
    for mine, theirs in zip(got, explorer.log_prob(x, ids, lse=True), strict=False):
        torch.testing.assert_close(mine, theirs)
    one = torch.func.vmap(lambda x: explorer.log_prob(x, ids[0]).log_prob)(x)
    torch.testing.assert_close(one, explorer.log_prob(x, ids[:1].expand(3, 4)).log_prob)


def test_transforms_have_pytorchs_derivatives(ours):
    x, ids = torch.randn(3, 5), torch.tensor([[1], [0], [4]])

    def mine(x):
        return sum((value**2).sum() for value in numbers(x, ids, 0.7))

    def theirs(x):
        return sum((value**2).sum() for value in own(x, ids, 0.7))

    for transform in (torch.func.grad, torch.func.hessian):
        torch.testing.assert_close(transform(mine)(x), transform(theirs)(x), rtol=1e-4, atol=1e-5)
    tangent = torch.func.jvp(mine, (x,), (x + 1,))[1]
    torch.testing.assert_close(tangent, torch.func.jvp(theirs, (x,), (x + 1,))[1])


def test_autocast_changes_nothing(ours):
    x, ids = torch.randn(3, 16).to(BF16), torch.tensor([1, 0, 4])
    for given in (x, x.float()):
        with torch.autocast("cpu", dtype=BF16):
            got = explorer.log_prob(given, ids, **NUMBERS)
        close(got, exact(given, ids[:, None]), F32)
        assert got.log_prob.dtype is F32
    assert [str(problem.dtype) for problem in ours] == ["bf16", "f32"]


def test_recipes_are_found_again(ours, monkeypatch):
    x, ids = torch.randn(3, 5), torch.tensor([1, 0, 4])
    explorer.log_prob(x, ids, lse=True)
    monkeypatch.setattr(torch_calls, "make_recipe", None)
    close(explorer.log_prob(x, ids, lse=True), exact(x, ids[:, None]), F32)
    assert len(ours) == 2


def test_calls_are_counted_where_shapes_are_logged(ours, tmp_path):
    path = tmp_path / "met.csv"
    with explorer.log_shapes(path):
        for _ in range(2):
            explorer.log_prob(torch.randn(3, 5), torch.zeros(3, 2, dtype=I32), rank=True, lse=True)
    assert path.read_text().splitlines()[1].endswith(",2")
    assert shapes.read_shapes(path) == list(dict.fromkeys(ours))


# ------------------------------------------------------------------ bad input


X, IDS = torch.randn(2, 3, 5), torch.zeros(2, 3, dtype=I64)
BAD_SHAPE = r"index is of shape .*; for x of shape \(2, 3, 5\) it must be of shape \(2, 3\), or of "


@pytest.mark.parametrize(
    "x, index, told, error, sentence",
    [
        (X, IDS.float(), {}, InvalidInput, "index is of float32; it must be of int32 or int64"),
        (X, IDS.to(torch.int16), {}, InvalidInput, "index is of int16; it must be of int32 or"),
        (X, IDS > 0, {}, InvalidInput, "index is of bool; it must be of int32 or int64"),
        (X, IDS[0], {}, InvalidInput, BAD_SHAPE + r"\(2, 3, K\) for K ids a row"),
        (X, IDS[..., None, None], {}, InvalidInput, BAD_SHAPE),
        (X, IDS[:, :2, None], {}, InvalidInput, BAD_SHAPE),
        (X, torch.tensor(1), {}, InvalidInput, BAD_SHAPE),
        (X, IDS[..., None][..., :0], {}, InvalidInput, "a row must have an id at least"),
        (X, IDS.to("meta"), {}, InvalidInput, "index is on meta; it must be on x's device, cpu"),
        (X, [[0] * 3] * 2, {}, TypeError, "index is a list; it must be a tensor"),
        (X, 1, {}, TypeError, "index is an int; it must be a tensor"),
        (X, IDS.to_sparse(), {}, InvalidInput, "index is of layout torch.sparse_coo"),
        (X.to_sparse(), IDS, {}, InvalidInput, "x is of layout torch.sparse_coo; it must be dense"),
        (X.long(), IDS, {}, InvalidInput, "x is of torch.int64; it must be of floating-point"),
        (X.to(torch.complex64), IDS, {}, InvalidInput, "x is of torch.complex64; it must be of re"),
        (X[..., :0], IDS, {}, InvalidInput, "its last axis must have an element at least"),
        (X[0, 0], IDS, {}, InvalidInput, r"\(5,\) it must be of shape \(\), or of \(K,\) for"),
        (X[0, 0, 0], IDS[0, 0], {}, InvalidInput, "x has no axis; log-probabilities are of rows"),
        (X, IDS.numpy(), {}, TypeError, "index is a numpy.ndarray; it must be a tensor"),
        (X, IDS, {"scale": "2"}, TypeError, "scale is '2'; it must be a number, such as 0.5"),
        (X, IDS, {"scale": None}, TypeError, "scale is None; it must be a number, such as 0.5"),
        (X, IDS, {"lse": "no"}, TypeError, "lse is 'no'; it must be True or False"),
        (X, IDS, {"check": 1}, TypeError, "check is 1; it must be True or False"),
        (X, IDS - 1, {"check": True}, InvalidInput, r"index is -1 at \(0, 0\); .* from 0 to 4"),
        (X, IDS[..., None] + 7, {"check": True}, InvalidInput, r"index is 7 at \(0, 0, 0\); it"),
    ],
)
def test_what_cannot_be_is_told(problems, x, index, told, error, sentence):
    for _ in range(2):
        with pytest.raises(error, match=sentence) as told_error:
            explorer.log_prob(x, index, **told)
        assert "\n" not in str(told_error.value)
    assert not problems


def test_check_needs_values_which_vmap_has_not(problems):
    def run(x, index):
        return explorer.log_prob(x, index, check=True).log_prob

    for transform in (torch.func.vmap(run), torch.func.vmap(torch.func.vmap(run))):
        with pytest.raises(InvalidInput, match=r"check is True under torch\.func\.vmap; it needs"):
            transform(X, IDS)
    each = torch.func.vmap(run, in_dims=(1, None))(X, IDS[:, 0])  # whose ids are known
    assert each.shape == (3, 2)
    assert torch.func.grad(lambda x: run(x, IDS).sum())(X).shape == X.shape


def test_the_first_bad_id_is_named(problems):
    index = torch.tensor([[0, 1, 2], [3, 5, -1]])
    with pytest.raises(InvalidInput, match=r"index is 5 at \(1, 1\); it must be from 0 to 4"):
        explorer.log_prob(X, index, check=True)
    assert explorer.log_prob(X, index.clamp(0, 4), check=True).log_prob.shape == (2, 3)


def test_a_nested_tensor_is_refused(ours):
    nested = torch.nested.nested_tensor([torch.randn(2, 5), torch.randn(3, 5)])
    with pytest.raises(InvalidInput, match="x is a nested tensor; it must be dense"):
        explorer.log_prob(nested, IDS)
