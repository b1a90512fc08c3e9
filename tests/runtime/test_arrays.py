"""Calls on arrays of libraries such as CuPy and JAX, for which NumPy's stand here.

Our kernels are run by the emulator, on the memory of the arrays.
"""

from types import SimpleNamespace

import ml_dtypes
import numpy as np
import pytest
from emulated_plans import EmulatedPlan

import explorer
from explorer.model.errors import InvalidInput
from explorer.model.problem import Mask
from explorer.ops import FORWARD, OPERATORS, Op
from explorer.runtime import layout, recipes
from explorer.runtime.arrays import Arrays
from explorer.runtime.layout import Call

BF16 = np.dtype(ml_dtypes.bfloat16)
DTYPES = [np.dtype(name) for name in ("float32", "float64", "float16")] + [BF16]
OPS = pytest.mark.parametrize("op", [Op.SOFTMAX, Op.LOG_SOFTMAX])


class NumpyArrays(Arrays):
    """Arrays in host memory, as if they were on GPU `device`."""

    numpy = np

    def __init__(self, device=0, has_strides=True):
        self.number = device
        self.has_strides = has_strides
        self.frameworks = 0
        self.capturing = False
        self.functions = {Op.SOFTMAX: softmax, Op.LOG_SOFTMAX: log_softmax}

    def device(self, x):
        return self.number if x.ctypes else None

    def address(self, x):
        return x.ctypes.data

    def strides(self, x):
        return tuple(stride // x.itemsize for stride in x.strides) if self.has_strides else None

    def name_of(self, dtype):
        return str(np.dtype(dtype))

    def converted(self, x, dtype, like):
        return np.ascontiguousarray(x, dtype=np.dtype(dtype)).reshape(x.shape)

    def broadcast(self, x, shape):
        return np.ascontiguousarray(np.broadcast_to(x, shape)).reshape(shape)

    def empty(self, shape, dtype, like):
        return np.full(shape, 77, dtype=np.dtype(dtype))

    def launch(self, plan, device, source, output, others):
        plan.launch(0, source, output, **others)

    def is_capturing(self, device):
        return self.capturing

    def framework(self, call, x):
        self.frameworks += 1
        return super().framework(call, x)

    def copied(self, result, out):
        out[...] = result
        return out


def log_softmax(x, dim):
    with np.errstate(all="ignore"):
        x = x - x.max(dim, keepdims=True)
        return x - np.log(np.exp(x).sum(dim, keepdims=True))


def softmax(x, dim):
    with np.errstate(all="ignore"):
        x = x - x.max(dim, keepdims=True)
        return np.exp(x) / np.exp(x).sum(dim, keepdims=True)


@pytest.fixture
def ours(monkeypatch):
    """Our kernels serve NumPy's arrays; the list of the problems of all launches."""
    launched, loaded = [], {}

    def get(problem, device, asked, *, may_load=True):
        return loaded.setdefault(problem, SimpleNamespace(problem=problem).problem)

    plans = SimpleNamespace(plan_of=lambda problem: EmulatedPlan(problem, launched))
    monkeypatch.setattr(recipes, "service", SimpleNamespace(get=get))
    monkeypatch.setattr(recipes, "launcher", plans)
    return launched


def call(x, dim=-1, *, op=Op.SOFTMAX, by=None, **told):
    names = ("scale", "mask", "lengths", "dtype", "out")
    log = FORWARD.index(op)
    return (by or NumpyArrays()).softmax_of(log, x, dim, *(told.get(name) for name in names))


def expected(x, dim=-1, **told):
    """What the library's own function comes to, on a copy."""
    told = {name: np.array(v) if isinstance(v, np.ndarray) else v for name, v in told.items()}
    return call(np.array(x), dim, by=NumpyArrays(device=-1), **told)


def close(got, wanted):
    assert got.dtype == wanted.dtype and got.shape == wanted.shape
    relative = {2: 2e-2 if got.dtype == BF16 else 2e-3, 4: 3e-6, 8: 1e-12}[got.dtype.itemsize]
    got, wanted = got.astype(np.float64), wanted.astype(np.float64)
    np.testing.assert_allclose(got, wanted, rtol=relative, atol=relative)


def randn(*shape, dtype=np.float32):
    return np.random.default_rng(1).standard_normal(shape).astype(dtype)


VIEWS = {
    "dense": lambda: randn(2, 3, 4),
    "no axis": lambda: randn(),
    "one axis": lambda: randn(7),
    "columns sliced off": lambda: randn(2, 3, 9)[..., 2:7],
    "every second row": lambda: randn(6, 5)[::2],
    "every second column": lambda: randn(3, 10)[:, ::2],
    "rows backwards": lambda: randn(6, 5)[::-1],
    "columns backwards": lambda: randn(6, 5)[:, ::-1],
    "transposed": lambda: randn(3, 5).T,
    "one row repeated": lambda: np.broadcast_to(randn(1, 5), (3, 5)),
    "one column": lambda: randn(4, 3)[:, :1],
}


@pytest.mark.sampled(4)
@OPS
@pytest.mark.parametrize("view", VIEWS.values(), ids=VIEWS)
def test_every_axis_of_every_view(ours, op, view):
    x = np.asarray(view())
    for dim in range(-max(1, x.ndim), max(1, x.ndim)):
        close(call(x, dim, op=op), expected(x, dim, op=op))
    assert len(ours) == 2 * max(1, x.ndim)


def test_arrays_without_strides_are_dense(ours):
    """As those of JAX are."""
    x = randn(2, 3, 4)
    for dim in range(3):
        close(call(x, dim, by=NumpyArrays(has_strides=False)), expected(x, dim))
    assert len(ours) == 3


@pytest.mark.parametrize("shape", [(0,), (3, 0), (0, 3), (2, 0, 4)], ids=str)
def test_an_empty_array_gives_an_empty_one(ours, shape):
    x = np.empty(shape, np.float16)
    for dim in range(len(shape)):
        got = call(x, dim, dtype="float32")
        assert got.shape == shape and got.dtype == np.float32
        out = np.empty(shape, np.float16)
        assert call(x, dim, out=out) is out
    assert not ours


@pytest.mark.sampled(4)
@OPS
@pytest.mark.parametrize("target", DTYPES, ids=str)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_a_type_that_is_asked_for_is_that_of_the_arithmetic(ours, op, dtype, target):
    x = 5 * randn(3, 9, dtype=np.float64)
    x[1, 3], x[2, 5] = 7e4, 3.3e38
    with np.errstate(over="ignore", invalid="ignore"):
        x = x.astype(dtype)
        close(call(x, op=op, dtype=target), expected(x, op=op, dtype=target))
    assert len(ours) == 1


@OPS
def test_scale_and_masks(ours, op):
    x = randn(2, 3, 5)
    told = [
        {"scale": 0.3},
        {"mask": "causal"},
        {"mask": "causal", "scale": 2},
        {"mask": randn(5)},
        {"mask": randn(1, 5), "scale": 0.3},
        {"mask": randn(3, 5).astype(np.float64)},
        {"mask": randn(2, 3, 5)},
        {"lengths": np.array([1, 5, 2])},
        {"lengths": np.array([[1], [4]], np.int32)},
        {"lengths": np.array(3)},
        {"lengths": np.array([2**32 + 1, 2**62, 4])},
    ]
    for kind in told:
        close(call(x, op=op, **kind), expected(x, op=op, **kind))
    assert len(ours) == len(told)
    assert {problem.mask for problem in ours} == set(Mask)
    assert {problem.scale for problem in ours} == {None, 1.0}  # every scale has the same problem


def test_a_mask_that_repeats_within_the_array_is_the_librarys(ours):
    x, by = randn(2, 3, 5), NumpyArrays()
    for shape in ((2, 1, 5), (3, 1), (1,)):
        close(call(x, by=by, mask=randn(*shape)), expected(x, mask=randn(*shape)))
    assert by.frameworks == 3 and not ours


class OnHost:
    """An array that is not on x's GPU, as NumPy's are for CuPy."""

    def __init__(self, values):
        self.values, self.shape, self.dtype = values, values.shape, values.dtype

    def clip(self, *ends):
        return self.values.clip(*ends)

    def __array__(self, dtype=None, copy=None):
        return np.asarray(self.values, dtype)


def test_masks_and_lengths_of_another_library_are_copied(ours):
    x = randn(2, 5)
    for told in ({"mask": randn(5)}, {"lengths": np.array([1, 4])}):
        ((name, values),) = told.items()
        close(call(x, **{name: OnHost(values)}), expected(x, **told))
        by = NumpyArrays(device=-1)
        close(call(x, by=by, **{name: OnHost(values)}), expected(x, **told))
    assert len(ours) == 2


def test_a_mask_keeps_its_digits_where_the_result_is_wider(ours):
    x = np.zeros((2, 4), np.float16)
    mask = np.array([0, 10.003, np.finfo(np.float32).min, -np.inf], np.float32)
    got = call(x, mask=mask, dtype="float32", op=Op.LOG_SOFTMAX)
    close(got, expected(x.astype(np.float32), mask=mask, op=Op.LOG_SOFTMAX))
    lowest = np.full(4, np.finfo(np.float32).min)
    close(call(x, mask=lowest, dtype="float32"), np.full((2, 4), 0.25, np.float32))


def test_the_output_is_written_where_it_is_told(ours):
    x = randn(4, 5)
    wide = np.zeros((4, 8), np.float32)
    for out in (np.empty_like(x), wide[:, 1:6]):
        assert call(x, out=out) is out
        close(out, expected(x))
    assert not wide[:, 0].any() and not wide[:, 6:].any()
    assert len(ours) == 2
    turned, by = np.empty((5, 4), np.float32).T, NumpyArrays()
    assert call(x, by=by, out=turned) is turned
    close(turned, expected(x))
    assert by.frameworks == 1


def test_all_that_a_call_says_is_in_the_problem(ours):
    x, out = randn(6, 9).astype(np.float16)[:, :5], np.empty((6, 7), np.float32)[:, :5]
    call(x, op=Op.LOG_SOFTMAX, mask=randn(3, 5).astype(np.float16)[:1], dtype="float32", out=out)
    assert ours[0].as_dict() == {
        "rows": 6,
        "cols": 5,
        "dtype": "f16",
        "op": "log_softmax",
        "out_dtype": "f32",
        "mask": "additive",
        "mask_rows": 1,
        "input_stride": 9,
        "output_stride": 7,
    }


def test_in_place(ours):
    for view in (randn(4, 5), randn(4, 8)[:, :5], randn(2, 5, 3)):
        for dim in range(view.ndim):
            x = np.array(view) if view.flags.c_contiguous else view
            wanted = expected(x, dim)
            assert call(x, dim, out=x) is x
            close(x, wanted)
    assert ours and all(problem.in_place for problem in ours)


def test_over_a_part_of_the_input_or_mask_the_output_is_right_all_the_same(ours):
    memory = randn(100)
    for start, rows in ((5, 4), (3, 4), (10, 3), (0, 4), (20, 4)):
        x, out = memory[:20].reshape(4, 5)[:rows], memory[start : start + 5 * rows].reshape(rows, 5)
        wanted = expected(x)
        call(x, out=out)
        close(out, wanted)
    x, out = randn(2, 4, 5), 2 * randn(2, 4, 5)
    wanted = expected(x, mask=out[0])
    call(x, mask=out[0], out=out)
    close(out, wanted)


def test_while_a_graph_is_captured_nothing_is_loaded(ours, monkeypatch):
    asked = []

    def get(problem, device, usual, *, may_load=True):
        asked.append(may_load)

    monkeypatch.setattr(recipes.service, "get", get)
    by, x = NumpyArrays(), randn(3, 5)
    close(call(x, by=by), expected(x))
    by.capturing = True
    close(call(x, by=by), expected(x))
    assert asked == [True, False] and by.frameworks == 2 and not ours


def test_what_is_not_ours_is_the_librarys(ours):
    x = randn(3, 5)
    for by, given in ((NumpyArrays(device=-1), x), (NumpyArrays(), x.astype(np.longdouble))):
        assert np.array_equal(call(given, by=by), by.framework(PLAIN, given)[0])
        assert by.frameworks == 2
    assert not ours


PLAIN = Call(Op.SOFTMAX, -1)


def test_an_array_at_an_odd_address_is_the_librarys(ours):
    memory = np.zeros(4 * 64 + 16, np.float32)
    first = -memory.ctypes.data // 4 % 16
    x, by = memory[first + 1 : first + 1 + 4 * 64].reshape(4, 64), NumpyArrays()
    x[...] = randn(4, 64)
    close(call(x, by=by), expected(x))
    assert by.frameworks == 1 and not ours
    x = memory[first : first + 4 * 64].reshape(4, 64)
    close(call(x, by=by), expected(x))
    assert by.frameworks == 1 and len(ours) == 1


def test_calls_are_counted(ours, tmp_path):
    path = tmp_path / "met.csv"
    with explorer.log_shapes(path):
        for _ in range(2):
            call(randn(3, 5), scale=0.5)
    assert path.read_text().splitlines()[1].endswith(",2")


X = randn(2, 3, 5)


@pytest.mark.parametrize(
    "x, told, error, sentence",
    [
        (X, {"dim": 3}, IndexError, "dim is 3; an array of 3 axes has -3 to 2"),
        (X, {"mask": "casual"}, InvalidInput, "mask is 'casual'; it must be 'causal' or an array"),
        (X, {"mask": "causal", "dim": 1}, InvalidInput, "dim is 1; a mask is for rows along"),
        (X[0, 0], {"mask": "causal"}, InvalidInput, "x must have rows and columns"),
        (X[0, 0, 0], {"lengths": np.array(1)}, InvalidInput, "x has no axis; a mask"),
        (X, {"mask": "causal", "lengths": np.array(1)}, InvalidInput, "exclude each other"),
        (X, {"mask": np.ones(5, int)}, InvalidInput, "mask is of int64; a mask is added"),
        (X, {"mask": np.ones(4)}, InvalidInput, r"mask is of shape \(4,\); it must broadcast"),
        (X, {"lengths": np.ones(3)}, InvalidInput, "lengths is of float64"),
        (X, {"lengths": np.ones(2, int)}, InvalidInput, r"lengths is of shape \(2,\)"),
        (X, {"lengths": [1, 2, 3]}, TypeError, "lengths is a list; it must be an array"),
        (np.arange(4), {}, InvalidInput, "x is of int64; give dtype='float32', say"),
        (X, {"out": np.empty((2, 3), np.float32)}, InvalidInput, "out is float32 of shape"),
        (X, {"out": np.empty((2, 3, 5))}, InvalidInput, "out is float64 .*; it must be float32"),
        (X, {"out": 5}, TypeError, "out is an int; it must be an array of x's library"),
        (X, {"dtype": "int32"}, InvalidInput, "dtype is int32; it must be a type of floating-poi"),
        (X, {"dtype": 5}, TypeError, "dtype is 5; it must be a type of NumPy, such as 'float32'"),
        (X, {"dtype": "half a byte"}, TypeError, "dtype is 'half a byte'; it must be a type of"),
        (X, {"dim": None}, TypeError, "dim is None; it must be a whole number, such as -1"),
        (X, {"dim": "1"}, TypeError, "dim is '1'; it must be a whole number"),
        (X, {"dim": True}, TypeError, "dim is True; it must be a whole number"),
        (X, {"dim": 1.0}, TypeError, "dim is 1.0; it must be a whole number"),
        (X, {"scale": "2"}, TypeError, "scale is '2'; it must be a number, such as 0.5"),
        (X, {"scale": np.ones(2)}, TypeError, r"scale is array\(\[1., 1.\]\); it must be a number"),
        (X, {"scale": 10**400}, InvalidInput, "scale is a number of 1329 bits; it must be"),
        (X, {"scale": float("nan")}, InvalidInput, "scale is nan; it must be a finite number"),
    ],
)
@OPS
def test_what_contradicts_itself_is_told(ours, op, x, told, error, sentence):
    for _ in range(2):
        with pytest.raises(error, match=sentence):
            call(np.asarray(x), op=op, **told)


def test_numbers_of_other_libraries_are_taken(ours):
    close(call(X, np.int64(1)), expected(X, 1))
    for scale in (2, np.float32(2), np.array(2.0)):
        close(call(X, scale=scale), expected(X, scale=2.0))


# ------------------------------------------------------------------ log-sum-exp


def logsumexp(x, dim=-1, *, by=None, keepdim=False, scale=1, out=None):
    return (by or NumpyArrays()).logsumexp_of(x, dim, keepdim, scale, out)


def log_sums(x, dim=-1, *, keepdim=False, scale=1, dtype=None):
    """The log-sum-exp in double precision."""
    with np.errstate(divide="ignore"):
        total = np.exp(np.array(x, np.float64) * scale).sum(dim, keepdims=keepdim)
        wide = x.dtype if x.dtype.itemsize > 2 else np.float32
        return np.asarray(np.log(total), dtype or wide)


@pytest.mark.parametrize("view", VIEWS.values(), ids=VIEWS)
@pytest.mark.parametrize("keepdim", [False, True])
def test_log_sums_of_every_axis_of_every_view(ours, view, keepdim):
    x = np.asarray(view())
    for dim in range(-max(1, x.ndim), max(1, x.ndim)):
        kept = keepdim and x.ndim > 0
        wanted = log_sums(x if x.ndim else x.reshape(1), dim, keepdim=kept)
        for by in (NumpyArrays(), NumpyArrays(device=-1)):
            close(logsumexp(x, dim, keepdim=keepdim, by=by), wanted)
    assert len(ours) == 2 * max(1, x.ndim) and {problem.op for problem in ours} == {Op.LOGSUMEXP}


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_log_sums_of_every_type(ours, dtype):
    x = (5 * randn(4, 33)).astype(dtype)
    for scale in (1, 0.5):
        wanted = log_sums(x, scale=scale)
        close(logsumexp(x, scale=scale), wanted)
        close(logsumexp(x, scale=scale, by=NumpyArrays(device=-1)), wanted)
        for target in {dtype, wanted.dtype}:
            wide = np.zeros((4, 3), target)
            out = wide[:, 1]
            assert logsumexp(x, scale=scale, out=out) is out
            close(out, wanted.astype(target))
            assert not wide[:, ::2].any()
    assert len(ours) == 2 + 2 * len({dtype, wanted.dtype})


def test_log_sums_without_strides_are_dense(ours):
    x = randn(2, 3, 4)
    for dim in range(3):
        close(logsumexp(x, dim, by=NumpyArrays(has_strides=False)), log_sums(x, dim))
    assert len(ours) == 3


@pytest.mark.parametrize("shape", [(0,), (3, 0), (0, 3), (2, 0, 4), (0, 0)], ids=str)
def test_log_sums_of_an_empty_array(ours, shape):
    x = np.empty(shape, np.float16)
    for dim in range(len(shape)):
        wanted = log_sums(x, dim)
        got = logsumexp(x, dim)
        assert np.array_equal(got, wanted) and got.dtype == np.float32
        out = np.empty_like(wanted)
        assert logsumexp(x, dim, out=out) is out and np.array_equal(out, wanted)
    assert not ours


def test_log_sums_of_infinities(ours):
    x = np.zeros((4, 3), np.float32)
    x[0], x[1, 1], x[2, 2], x[3, 0] = -np.inf, np.inf, np.nan, -np.inf
    for by in (NumpyArrays(), NumpyArrays(device=-1)):
        with np.errstate(divide="ignore"):
            got = logsumexp(x, by=by)
        np.testing.assert_allclose(got, [-np.inf, np.inf, np.nan, np.log(2)], rtol=1e-6)


def test_log_sums_over_the_input_are_right_all_the_same(ours):
    for start in (0, 3):
        memory = randn(20)
        x, out = memory.reshape(4, 5), memory[start : start + 4]
        wanted = log_sums(x)
        logsumexp(x, out=out)
        close(out, wanted)


@pytest.mark.parametrize(
    "x, told, error, sentence",
    [
        (np.arange(4), {}, InvalidInput, r"x is of int64; .*: give x.astype\('float32'\)"),
        (X.astype(complex), {}, InvalidInput, "x is of complex128; it must be of floating-point"),
        (X, {"dim": 3}, IndexError, "dim is 3; an array of 3 axes has -3 to 2"),
        (X, {"dim": (0, 1)}, TypeError, r"dim is \(0, 1\); it must be a whole number, such as -1"),
        (X, {"scale": "2"}, TypeError, "scale is '2'; it must be a number, such as 0.5"),
        (X, {"out": np.empty((2, 4), np.float32)}, InvalidInput, r"out is .* of shape \(2, 3\)"),
        (X, {"out": np.empty((2, 3, 1), np.float32)}, InvalidInput, r"must be .* shape \(2, 3\)"),
        (X, {"out": np.empty((2, 3))}, InvalidInput, "out is float64 .*; it must be float32"),
        (X, {"out": 5}, TypeError, "out is an int; it must be an array of x's library"),
    ],
)
def test_what_a_log_sum_cannot_be_of_is_told(ours, x, told, error, sentence):
    with pytest.raises(error, match=sentence):
        logsumexp(np.asarray(x), **told)
    assert not ours


# ------------------------------------------------------------------ log-probabilities


NAMES = ("lse", "entropy", "rank", "argmax")
BOTH = pytest.mark.parametrize("device", [0, -1], ids=["kernels", "library"])


def log_prob(x, index, *, device=0, scale=1, also=NAMES, check=False):
    return NumpyArrays(device).log_prob_of(x, index, scale, also, check)


def are_true(got, x, ids, scale=1.0):
    """All results are the truth, for ids of shape (rows, K)."""
    wide = x.astype(x.dtype if x.dtype.itemsize > 2 else np.float32)
    with np.errstate(all="ignore"):
        scaled = np.where(wide == -np.inf, wide, wide * wide.dtype.type(scale))
        arrays = {"input": scaled.astype(np.longdouble if x.dtype.itemsize == 8 else np.float64)}
        for result, values in zip(OPERATORS[Op.LOG_PROB].results, got, strict=False):
            truth = result.truth({**arrays, "ids": ids}, scale, 0.0).values
            kind = ids.dtype if result.are_columns else wide.dtype
            close(values.reshape(truth.shape), np.asarray(truth, kind))


@BOTH
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("scale", [1, 0.5, -1])
def test_log_probs_of_every_type(ours, device, dtype, scale):
    x = (3 * randn(6, 33)).astype(dtype)
    x[1, :7], x[2, 3], x[3, 4], x[4] = -np.inf, np.inf, np.nan, -np.inf
    ids = np.random.default_rng(2).integers(-2, 35, (6, 3), np.int32)
    ids[2, 0], ids[3, 0] = 3, 4
    with np.errstate(all="ignore"):
        got = log_prob(x, ids, device=device, scale=scale)
    are_true(got, x, ids, scale)
    assert len(ours) == (device == 0)


@BOTH
@pytest.mark.parametrize("shape", [(7,), (1, 1), (5, 7), (2, 3, 7)], ids=str)
def test_log_probs_have_the_shape_of_index(ours, device, shape):
    x = randn(*shape)
    for end in ((), (1,), (4,)):
        index = np.full((*shape[:-1], *end), shape[-1] - 1)
        got = log_prob(x, index, device=device)
        assert got[0].shape == index.shape and {one.shape for one in got[1:]} == {shape[:-1]}
        rows = x.reshape(-1, shape[-1])
        are_true(got, rows, index.reshape(rows.shape[0], -1))


@pytest.mark.parametrize("is_in_turn", [False, True])
def test_log_probs_of_slices_are_read_where_they_lie(ours, monkeypatch, is_in_turn):
    logits, index = randn(3, 5, 16), np.random.default_rng(2).integers(0, 16, (3, 5))
    if is_in_turn:
        monkeypatch.setattr(layout, "BYTES_PER_LAUNCH", 0)
    for x, ids, rows in (
        (logits[:, :-1], index[:, 1:], 14),
        (logits[:, 1:5:2], index[:, 1:5:2], 13),
        (logits.transpose(1, 0, 2), index.T, 15),
        (logits[:, 2], index[:, 2], 3),
    ):
        ours.clear()
        are_true(log_prob(x, ids), x.reshape(-1, 16), ids.reshape(-1, 1))
        out = np.empty(x.shape[:-1], np.float32)
        assert logsumexp(x, out=out) is out
        close(out, log_sums(x))
        if not is_in_turn:
            assert [problem.rows for problem in ours] == [rows, rows]


@pytest.mark.parametrize("shape", [(0, 5), (3, 0, 5)], ids=str)
def test_log_probs_of_no_rows(ours, shape):
    got = log_prob(np.empty(shape, np.float32), np.empty(shape[:-1], np.int64))
    assert {one.shape for one in got} == {shape[:-1]} and not ours


IDS = np.zeros((2, 3), np.int64)


class Foreign:
    """An array of another library, which has no address by the name that x's library gives it."""

    shape, dtype, strides, itemsize = IDS.shape, IDS.dtype, IDS.strides, IDS.itemsize


FOREIGN = Foreign()


@pytest.mark.parametrize(
    "x, index, told, error, sentence",
    [
        (X, IDS.astype(float), {}, InvalidInput, "index is of float64; it must be of int32 or int"),
        (X, IDS[0], {}, InvalidInput, r"index is of shape \(3,\); for x of shape \(2, 3, 5\) it"),
        (X, IDS[..., None][..., :0], {}, InvalidInput, "a row must have an id at least"),
        (X, 1, {}, TypeError, "index is an int; it must be an array of x's library"),
        (X, None, {}, TypeError, "index is a NoneType; it must be an array of x's library"),
        (X, FOREIGN, {}, TypeError, "index is a test_arrays.Foreign; it must be an array of x"),
        (X[0, 0], IDS, {}, InvalidInput, r"\(5,\) it must be of shape \(\), or of \(K,\) for"),
        (X[0, 0, :1].reshape(()), IDS, {}, InvalidInput, "x has no axis; log-probabilities are of"),
        (X.astype(int), IDS, {}, InvalidInput, "x is of int64; it must be of floating-point"),
        (X[..., :0], IDS, {}, InvalidInput, "its last axis must have an element at least"),
        (X, IDS, {"scale": "2"}, TypeError, "scale is '2'; it must be a number, such as 0.5"),
        (X, IDS, {"scale": None}, TypeError, "scale is None; it must be a number, such as 0.5"),
        (X, IDS + 5, {"check": True}, InvalidInput, r"index is 5 at \(0, 0\); .* from 0 to 4"),
    ],
)
def test_what_a_log_prob_cannot_be_of_is_told(ours, x, index, told, error, sentence):
    with pytest.raises(error, match=sentence):
        log_prob(x, index, **told)
    assert not ours


@pytest.mark.parametrize("scale", [-1, 0])
def test_what_is_masked_stays_masked_whatever_the_scale(ours, scale):
    x = randn(3, 5)
    x[0, :2] = -np.inf
    for op in (Op.SOFTMAX, Op.LOG_SOFTMAX):
        with np.errstate(invalid="ignore"):
            wanted = expected(x, op=op, scale=scale)
        close(call(x, op=op, scale=scale), wanted)
        assert not np.isnan(wanted).any()


# ------------------------------------------------------------------ losses


def test_a_bad_target_raises_on_request_unless_a_graph_is_captured(ours):
    x, target = randn(2, 5), np.array([4, 5])
    told, by = layout.LossKeywords(bad_target="raise"), NumpyArrays()
    with pytest.raises(InvalidInput, match=r"target is 5 at \(1,\); it must be from 0 to 4, or -1"):
        by.cross_entropy_of(x, target, None, told)
    by.capturing = True
    with pytest.raises(InvalidInput, match="while a graph is captured, which cannot wait"):
        by.cross_entropy_of(x, target, None, told)
    assert not ours


@pytest.mark.parametrize("target", [20.0, 24.0, 40.0])
def test_a_loss_near_0_keeps_its_digits_without_a_kernel(target):
    x, told = np.zeros((1, 1000), np.float32), layout.LossKeywords()
    x[0, 7] = target
    loss = NumpyArrays(device=-1).cross_entropy_of(x, np.array([7]), None, told)
    assert loss == pytest.approx(np.log1p(999 * np.exp(-target)), rel=4e-6)


def test_a_loss_may_be_written_to_an_output(ours):
    x, target, told = randn(3, 5), np.array([4, 0, 2]), layout.LossKeywords(reduction="none")
    wanted, out = NumpyArrays().cross_entropy_of(x, target, None, told), np.empty(3, np.float32)
    assert NumpyArrays().cross_entropy_of(x, target, None, told, out) is out
    assert np.array_equal(out, wanted)
    with pytest.raises(
        InvalidInput, match=r"out is float32 of shape \(3,\); it must be float32 of"
    ):
        NumpyArrays().cross_entropy_of(x, target, None, told._replace(reduction="mean"), out)


@pytest.mark.parametrize("has_strides", [True, False], ids=["cupy", "jax"])
@pytest.mark.parametrize("shape", [(2, 9, 4, 3), (3, 7, 5)], ids=str)
def test_losses_over_a_middle_axis_read_arrays_where_they_lie(ours, has_strides, shape):
    x, rows = randn(*shape), (shape[0], *shape[2:])
    target = np.random.default_rng(2).integers(0, shape[1], rows)
    target[0, 1] = -100
    told, results = layout.LossKeywords(label_smoothing=0.1), []
    for by in (NumpyArrays(has_strides=has_strides), NumpyArrays(device=-1)):
        made = by.cross_entropy_forward_of(x, target, told)
        assert all(one.shape == rows for one in made)
        kept = {"maximum": made[1], "log_sum": made[2]}
        grad = np.full(rows, 0.5, np.float32)
        gradient = by.cross_entropy_backward_of(x, target, kept, grad, told, None)
        loss = by.cross_entropy_of(x, target, None, told._replace(reduction="none"))
        results.append((*made, gradient, loss))
    for got, wanted in zip(*results, strict=True):
        np.testing.assert_allclose(got, wanted, rtol=1e-5, atol=1e-6)
    assert [problem.inner for problem in ours] == 3 * [int(np.prod(shape[2:]))]
