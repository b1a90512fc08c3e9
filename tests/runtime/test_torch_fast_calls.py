"""Compiled calls on PyTorch's tensors: they come to Python's bits, and leave the rest to Python."""

import ctypes
import gc
import itertools
import logging
import os
import subprocess
import sys
import threading
import warnings
from pathlib import Path

import numpy as np
import pytest
from compiled_cases import CONTEXT, Driver, serve_compiled
from hypothesis import given, settings
from hypothesis import strategies as st
from test_torch_calls import (
    BF16,
    BOTH,
    DTYPES,
    F16,
    F32,
    F64,
    FUNCTIONS,
    SHARED,
    VIEWS,
    calls,
    close,
    coarse,
    exact,
)
from torch_cases import torch

import explorer
from explorer.model.errors import InvalidInput
from explorer.ops import Op
from explorer.runtime import fast_call, functions, launcher, service, torch_calls, torch_fast_calls
from explorer.runtime.layout import Call
from explorer.runtime.torch_calls import TENSORS

try:
    fast_call.load()
except fast_call.Unavailable as error:
    pytest.skip(f"compiled calls: {error}", allow_module_level=True)


@pytest.fixture
def driver(monkeypatch):
    """Compiled calls serve tensors on the CPU; the driver that gets their launches."""
    made = serve_compiled(monkeypatch)
    yield made
    made.library.forget()
    assert not made.failures


def same(got, expected):
    """Assert that two results are one: bits, strides, type."""
    assert torch.equal(got, expected) and got.dtype is expected.dtype
    assert got.stride() == expected.stride() and type(got) is type(expected)


def in_python(function, *told, **named):
    """What Python makes of a call."""
    kept, functions.compiled = functions.compiled, None
    try:
        return function(*told, **named)
    finally:
        functions.compiled = kept


# ------------------------------------------------------------------ what it serves


@BOTH
@pytest.mark.parametrize("view", VIEWS.values(), ids=VIEWS)
def test_every_axis_of_every_view_has_pythons_bits_and_strides(driver, name, view):
    x = view()
    for dim in range(-max(1, x.dim()), max(1, x.dim())):
        for scale in (None, 0.3):
            expected = in_python(FUNCTIONS[name], x, dim, scale=scale)
            for _ in range(2):
                same(FUNCTIONS[name](x, dim, scale=scale), expected)
    dense = x.is_contiguous() and not x.is_neg()
    if dense:
        assert driver.paths == ["learn"] * (4 * max(1, x.dim()))


@BOTH
@pytest.mark.parametrize("dtype, target", list(itertools.product(DTYPES, [None, *DTYPES])))
def test_every_type_has_pythons_bits(driver, name, dtype, target):
    x = torch.randn(4, 33).to(dtype)
    out = torch.empty(4, 33, dtype=target or dtype)
    for told in ({}, {"scale": 0.125}, {"out": out}, {"out": out, "scale": 3}):
        expected = in_python(FUNCTIONS[name], x, dtype=target, **told).clone()
        driver.paths.clear()
        for _ in range(3):
            out.fill_(7)
            got = FUNCTIONS[name](x, dtype=target, **told)
            same(got, expected)
            assert (got is out) == ("out" in told)
        served = target in (None, dtype, F32) and not (target is F32 and dtype is F64)
        assert driver.paths == (["learn"] if served else ["learn"] * 3)


@BOTH
def test_outputs_lie_where_they_are_told(driver, name):
    x = torch.randn(4, 5)
    wide = torch.full((4, 9), 7.0)
    for out in (torch.empty(4, 5), wide[:, 1:6], torch.empty(8, 5)[::2]):
        for _ in range(2):
            assert FUNCTIONS[name](x, out=out) is out
            close(out, exact(name, x))
    assert (wide[:, 6:] == 7).all() and (wide[:, 0] == 7).all()
    assert driver.paths == ["learn"] * 3 and driver.library.size() == 3


def test_in_place_is_a_kind_of_its_own(driver):
    for _ in range(3):
        x = torch.randn(4, 5)
        expected = exact("softmax", x)
        assert explorer.softmax(x, out=x) is x
        close(x, expected)
    assert driver.paths == ["learn"] and [p.in_place for p in driver.launched] == [True] * 3
    explorer.softmax(x, out=torch.empty(4, 5))
    assert driver.paths == ["learn"] * 2


def test_calls_that_differ_in_one_thing_have_launches_of_their_own(driver):
    square, wide, out = torch.randn(4, 4), torch.randn(4, 9), torch.empty(4, 4)
    kinds = [
        ("softmax", square, {}),
        ("log_softmax", square, {}),
        ("softmax", square, {"dim": 0}),
        ("softmax", square, {"scale": 0.5}),
        ("softmax", square, {"out": out}),
        ("softmax", square, {"dtype": F32}),  # another argument with the same meaning
        ("softmax", wide[:, :4], {}),
        ("softmax", wide[:, 1:5], {"out": out}),
        ("softmax", square.double(), {}),
        ("softmax", square.to(F16), {}),
        ("softmax", square.to(BF16), {}),
        ("softmax", square.to(BF16), {"dtype": F32}),
        ("softmax", square[:2], {}),
        ("softmax", square[None], {}),
        ("softmax", square.view(-1), {}),
    ]
    for _ in range(3):
        for name, x, told in kinds:
            known = {key: value for key, value in told.items() if key != "out"}
            close(FUNCTIONS[name](x, **told), exact(name, x, **known))
    assert driver.paths == ["learn"] * len(kinds) and driver.library.size() == len(kinds)


def test_each_call_gives_its_own_scale(driver):
    x = torch.randn(3, 33)
    for scale in (0.125, 3, 1.0, -0.7, 0.0, 2**70, -5):
        close(explorer.softmax(x, scale=scale), exact("softmax", x, scale=scale))
    assert driver.paths == ["learn"] and driver.library.size() == 1


def test_parameters_and_inference_tensors_are_served(driver):
    x = torch.nn.Parameter(torch.randn(3, 5))
    with torch.no_grad():
        for _ in range(2):
            close(explorer.softmax(x), exact("softmax", x))
    with torch.inference_mode():
        x, out = torch.randn(3, 5), torch.empty(3, 5)
        for _ in range(2):
            assert explorer.softmax(x).is_inference()
            close(explorer.softmax(x, out=out), exact("softmax", x))
    assert driver.paths == ["learn"] * 2


def test_a_written_output_has_a_new_version(driver):
    x, out = torch.randn(3, 5), torch.empty(3, 5)
    explorer.softmax(x, out=out)
    for version in (2, 3):
        explorer.softmax(x, out=out)
        assert out._version == version
    w = torch.randn(3, 5, requires_grad=True)
    kept = w.sigmoid()
    with torch.no_grad():
        explorer.softmax(kept.detach(), out=kept)
    assert driver.paths == ["learn"] * 2
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        kept.sum().backward()


def test_a_shape_that_changes_with_each_call(driver, monkeypatch):
    torch_calls_most = 8
    monkeypatch.setattr(torch_fast_calls, "MOST_RECIPES", torch_calls_most)
    torch_fast_calls.configure(driver.library, *driver.addresses())
    for rows in range(1, 30):
        x = torch.randn(rows, 4)
        for _ in range(2):
            close(explorer.softmax(x), exact("softmax", x))
        assert 1 <= driver.library.size() <= torch_calls_most
    assert driver.paths == ["learn"] * 29


@given(st.lists(calls(), min_size=2, max_size=4))
@settings(max_examples=25, deadline=None, suppress_health_check=SHARED)
def test_calls_after_each_other_each_have_their_own_result(monkeypatch, listed):
    with monkeypatch.context() as patch:
        driver = serve_compiled(patch)
        for name, x, dim, told, expected in listed:
            out, before = told.get("out"), x.clone()
            written = None if out is None else out.clone()
            for _ in range(2):
                got = FUNCTIONS[name](x, dim, **told)
                close(got, expected, loose=4, absolute=4 * coarse(got))
                if out is not None:  # the next call must find its input as it was
                    out.copy_(written)
                    x.copy_(before)
        driver.library.forget()
        assert not driver.failures


# ------------------------------------------------------------------ what it leaves to Python


class Subclass(torch.Tensor):
    pass


def forward_mode(x):
    from torch.autograd import forward_ad

    with forward_ad.dual_level():
        return explorer.softmax(x)


def dispatch_mode(x):
    from torch.utils._python_dispatch import TorchDispatchMode

    class Nothing(TorchDispatchMode):
        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            return function(*args, **(kwargs or {}))

    with Nothing():
        return explorer.softmax(x)


def function_mode(x):
    with torch.device("cpu"):
        return explorer.softmax(x)


def traced(x):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return torch.jit.trace(lambda x: explorer.softmax(x) + 0, x)(x)


def masked(x):
    return explorer.softmax(x, mask=torch.zeros(5))


def one_at_a_time(x):
    return torch.vmap(lambda row: explorer.softmax(row, 0))(x)


def of_a_constant(x):
    return torch.vmap(lambda row: explorer.softmax(x, -1), out_dims=None)(x)


def gradient(x):
    y = x.clone().requires_grad_()
    return explorer.softmax(y).detach()


def output_of_a_gradient(x):
    out = torch.empty(3, 5, requires_grad=True)
    with pytest.raises(InvalidInput, match="out wants a gradient"):
        explorer.softmax(x, out=out)
    return torch.softmax(x, -1)


def over_a_part(x):
    memory = torch.cat([x.flatten(), torch.zeros(5)])
    return explorer.softmax(memory[:15].view(3, 5), out=memory[5:].view(3, 5)).clone()


def negated(x):
    z = torch.complex(torch.zeros(3, 5), -x)
    return explorer.softmax(z.conj().imag)


OTHERS = {
    "a subclass": lambda x: explorer.softmax(x.as_subclass(Subclass)).as_subclass(torch.Tensor),
    "a gradient": gradient,
    "an output of a gradient": output_of_a_gradient,
    "forward gradients": forward_mode,
    "a dispatch mode": dispatch_mode,
    "a function mode": function_mode,
    "a trace": traced,
    "vmap": one_at_a_time,
    "a constant under vmap": of_a_constant,
    "a mask": masked,
    "a causal mask": lambda x: explorer.softmax(x[None, :1], mask="causal")[0].expand(0, 5),
    "lengths": lambda x: explorer.softmax(x, lengths=torch.tensor(5)),
    "a negated tensor": negated,
    "over a part of the input": over_a_part,
    "an output of another shape": lambda x: refused(x, torch.empty(5, 3)),
    "an axis of NumPy's": lambda x: explorer.softmax(x, np.int64(1)),
    "a scale of NumPy's": lambda x: explorer.softmax(x, scale=np.float32(1)),
    "a truth that is a scale": lambda x: explorer.softmax(x, scale=True),
    "nine axes": lambda x: explorer.softmax(x[(None,) * 7])[(0,) * 7],
}


def refused(x, out):
    with pytest.raises(InvalidInput, match="out is"):
        explorer.softmax(x, out=out)
    return torch.softmax(x, -1)


@pytest.mark.parametrize("call", OTHERS.values(), ids=OTHERS)
def test_python_serves_all_other_calls(driver, call):
    x = torch.randn(3, 5)
    for _ in range(3):  # what it may serve is in the table
        explorer.softmax(x), explorer.softmax(x, out=torch.empty(3, 5))
        explorer.softmax(x, 1), explorer.softmax(x, scale=2.0), explorer.softmax(x[0], 0)
    in_table, before = driver.library.size(), x.clone()
    driver.paths.clear()
    got = call(x)
    assert driver.paths and set(driver.paths) == {"otherwise"}
    assert driver.library.size() == in_table and torch.equal(x, before)
    if got.numel():
        close(got, torch.softmax(x, -1), loose=2)


def test_other_kinds_of_tensors_are_pytorchs(driver):
    explorer.softmax(torch.randn(2, 2))
    driver.paths.clear()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        nested = torch.nested.nested_tensor([torch.randn(2, 3), torch.randn(1, 3)])
    for ours, own in zip(explorer.softmax(nested), torch.softmax(nested, -1), strict=True):
        assert torch.equal(ours, own)
    meta = explorer.softmax(torch.empty(2, 2, device="meta"))
    assert meta.shape == (2, 2) and meta.is_meta
    with pytest.raises(InvalidInput, match=r"x is of layout torch\.sparse_coo; it must be dense"):
        explorer.softmax(torch.randn(2, 2).to_sparse())
    with pytest.raises(InvalidInput, match="complex64, which PyTorch does not compute on cpu"):
        explorer.softmax(torch.randn(2, 2, dtype=torch.complex64))
    with pytest.raises(TypeError, match="it must be a tensor"):
        explorer.softmax([1.0])
    assert explorer.softmax(torch.empty(0, 3)).shape == (0, 3)
    assert driver.library.size() == 1 and len(driver.paths) == 6


def test_memory_that_is_not_there_yet_is_made_before_it_is_written(driver):
    x, out = torch.randn(3, 5), torch.empty(3, 5)
    explorer.softmax(x, out=out)
    before, lazy = x.clone(), torch._lazy_clone(x)
    assert torch._C._is_cow_tensor(lazy)
    explorer.softmax(x, out=lazy)
    assert driver.paths == ["learn"] and torch.equal(x, before)
    close(lazy, exact("softmax", x))


def test_tensors_without_memory_are_pythons(driver):
    explorer.softmax(torch.randn(3, 5))
    driver.paths.clear()
    functional = torch._to_functional_tensor(torch.zeros(3, 5))
    for x in (torch._efficientzerotensor((3, 5)), functional):
        with pytest.raises(RuntimeError):
            served_by(driver, x)
    assert driver.paths == ["otherwise"] * 2


def served_by(driver, x):
    """Call, and raise where it is Python's turn, whatever that makes of such a tensor."""
    with pytest.MonkeyPatch.context() as patch:

        def stop(*_):
            raise RuntimeError("Python's turn")

        patch.setattr(torch_calls.Tensors, "recipe", stop)
        return explorer.softmax(x)


def test_an_error_after_the_launch_is_raised_and_nothing_is_launched_again(driver, monkeypatch):
    def fails(tensors):
        raise ValueError("no version")

    monkeypatch.setattr(torch_fast_calls, "_version_counter", lambda: fails)
    torch_fast_calls.configure(driver.library, *driver.addresses())
    x = torch.randn(3, 5)
    expected = exact("softmax", x)
    explorer.softmax(x.clone(), out=(y := x.clone()))
    explorer.softmax(y.copy_(x), out=y)
    launches = len(driver.launched)
    with pytest.raises(ValueError, match="no version"):
        explorer.softmax(y.copy_(x), out=y)
    assert len(driver.launched) == launches + 1
    close(y, expected)


def test_each_call_tells_of_its_own_output_and_keeps_none(driver, monkeypatch):
    """Also of calls within a call, as of another thread, and of tuples that somebody keeps."""
    x, outs, told = torch.randn(3, 5), [torch.empty(3, 5) for _ in range(4)], []

    def tell(tensors):
        told.append(tensors)
        if len(told) == 2:
            explorer.softmax(x, out=outs[2])

    monkeypatch.setattr(torch_fast_calls, "_version_counter", lambda: tell)
    torch_fast_calls.configure(driver.library, *driver.addresses())
    explorer.softmax(x, out=torch.empty(3, 5))
    for out in (outs[0], outs[1], outs[3]):
        explorer.softmax(x, out=out)
    assert [one for (one,) in told] == [outs[0], outs[1], outs[2], outs[3]]
    kept = [sys.getrefcount(out) for out in outs]
    told.clear()
    assert [sys.getrefcount(out) for out in outs] == [count - 1 for count in kept]


def test_autocast_is_asked_of_halves_on_cuda_alone(driver):
    x = torch.randn(3, 5, dtype=F16)
    before = torch.is_autocast_enabled("cuda")
    torch.set_autocast_enabled("cuda", True)
    try:
        for _ in range(3):
            assert explorer.softmax(x).dtype is F16
    finally:
        torch.set_autocast_enabled("cuda", before)
    assert driver.paths == ["learn"]


ERRORS = [
    ({"dim": 2}, IndexError, "dim is 2; an array of 2 axes has -2 to 1"),
    ({"dim": 2**80}, IndexError, "dim is 1208925819614629174706176"),
    ({"out": torch.empty(3, 5, dtype=F16)}, InvalidInput, "it must be torch.float32"),
    ({"scale": torch.tensor(2.0)}, TypeError, "scale is a tensor"),
    ({"scale": 10**400}, InvalidInput, "scale is a number of 1329 bits; it must be a number of at"),
    ({"scale": "2"}, TypeError, "scale is '2'; it must be a number"),
    ({"scale": float("nan")}, InvalidInput, "scale is nan; it must be a finite number"),
    ({"scale": float("inf")}, InvalidInput, "scale is inf; it must be a finite number"),
    ({"dim": True}, TypeError, "dim is True; it must be a whole number"),
    ({"dtype": "float16"}, TypeError, r"dtype is 'float16'; it must be a torch\.dtype"),
    ({"dtype": torch.int32}, InvalidInput, r"dtype is torch\.int32; it must be a type of floating"),
    ({"out": 5}, TypeError, "out is an int; it must be a tensor"),
    ({"lengths": [1]}, TypeError, "lengths is a list"),
    ({"mask": "casual"}, InvalidInput, "mask is 'casual'"),
]


@pytest.mark.parametrize("told, error, sentence", ERRORS)
def test_errors_are_pythons(driver, told, error, sentence):
    x = torch.randn(3, 5)
    for _ in range(2):
        explorer.softmax(x), explorer.softmax(x, scale=1.0)
        with pytest.raises(error, match=sentence):
            explorer.softmax(x, **told)


def test_another_context_or_a_refused_launch_is_pythons(driver):
    x, out = torch.randn(3, 5), torch.empty(3, 5)
    explorer.softmax(x, out=out)
    for context in (0, CONTEXT + 1):  # none, as in a new thread, and another GPU's
        driver.context = context
        close(explorer.softmax(x, out=out), exact("softmax", x))
    driver.context = CONTEXT
    driver.refuses = 719
    with pytest.raises(RuntimeError, match="refused a launch with error 719"):
        explorer.softmax(x, out=out)
    driver.refuses = 0
    close(explorer.softmax(x, out=out), exact("softmax", x))
    assert driver.paths == ["learn", *["otherwise"] * 3]


def test_a_misaligned_tensor_is_pythons(driver):
    memory = torch.randn(64 * 4 + 4)
    aligned, other = memory[:256].view(4, 64), memory[1:257].view(4, 64)
    explorer.softmax(aligned)
    for _ in range(2):
        close(explorer.softmax(other), exact("softmax", other))
        close(explorer.softmax(aligned), exact("softmax", aligned))
        close(
            explorer.softmax(aligned, out=torch.empty(257)[1:].view(4, 64)),
            exact("softmax", aligned),
        )
    mask = TENSORS.recipe(Call(Op.SOFTMAX, -1), aligned).plan.mask
    assert other.data_ptr() & mask and not aligned.data_ptr() & mask
    assert "otherwise" in driver.paths and driver.library.size() == 1


def test_an_open_log_of_shapes_counts_every_call(driver, tmp_path):
    x = torch.randn(3, 5)
    explorer.softmax(x)
    with explorer.log_shapes(tmp_path / "met.csv"):
        for _ in range(5):
            explorer.softmax(x)
    explorer.softmax(x)
    assert (tmp_path / "met.csv").read_text().splitlines()[1].endswith(",5")
    assert driver.paths == ["learn", *["otherwise"] * 5]


def test_what_is_forgotten_is_learnt_again(driver):
    x = torch.randn(3, 5)
    for _ in range(2):
        explorer.softmax(x), explorer.softmax(x)
        driver.library.forget()
        assert driver.library.size() == 0
    assert driver.paths == ["learn"] * 2


def test_a_kernel_of_several_launches_is_pythons(driver, monkeypatch):
    monkeypatch.setattr(launcher.Plan, "only_launch", lambda self: None)
    x = torch.randn(3, 5)
    for _ in range(2):
        close(explorer.softmax(x), exact("softmax", x))
    assert driver.paths == ["learn"] * 2 and driver.library.size() == 0


def test_a_compiled_function_is_compiled_once(driver):
    torch._dynamo.reset()
    compiled = torch.compile(lambda x: explorer.softmax(x), fullgraph=True, backend="eager")
    x = torch.randn(3, 5)
    functions.compiled = None
    close(compiled(x), exact("softmax", x))
    functions.compiled = driver.library.call
    with torch._dynamo.config.patch(error_on_recompile=True):
        close(compiled(x), exact("softmax", x))
    exported = torch.export.export(Module(), (x,), strict=False)
    assert "explorer.softmax" in str(exported.graph)
    close(exported.module()(x), exact("softmax", x))


class Module(torch.nn.Module):
    def forward(self, x):
        return explorer.softmax(x)


# ------------------------------------------------------------------ threads and memory


def copying(problem, source, target):
    """A kernel that takes no time and shows what it was told: it copies its input."""
    ctypes.memmove(target, source, problem.rows * problem.cols * problem.dtype.itemsize)
    return 0


CALLS, THREADS = 100_000, 8


def test_threads_share_the_table_and_have_their_own_results(driver):
    driver.kernel = copying
    wrong, shared = [], torch.arange(40.0).view(8, 5)

    def work(number):
        own = torch.full((number % 3 + 1, 5), float(number))
        out = torch.empty_like(own)
        for count in range(CALLS // THREADS):
            if count % 1000 == 999:
                driver.library.forget()
            row = shared[number : number + 1]
            if explorer.softmax(own, out=out) is not out or out[0, 0] != number:
                wrong.append(number)
            if count % 8 == 0 and explorer.softmax(row)[0, 4] != 5 * number + 4:
                wrong.append(number)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
    assert driver.paths.count("learn") < CALLS / 100 and "otherwise" not in driver.paths


def resident_mb():
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20


def test_calls_keep_no_reference_and_no_memory(driver):
    driver.kernel = copying
    x, out, scale, bad = torch.randn(3, 5), torch.empty(3, 5), 0.7123, torch.randn(3, 5).to(F64)

    def many(number):
        for _ in range(number):
            explorer.softmax(x), explorer.softmax(x, out=out), explorer.softmax(x, scale=scale)
            explorer.log_softmax(x, out=out, dtype=F32), explorer.softmax(x, 1, out=x)
            driver.context = 0
            in_table = explorer.softmax(x)  # which Python serves
            driver.context = CONTEXT
            assert in_table is not x
            with pytest.raises(InvalidInput):
                explorer.softmax(x, out=bad)

    many(50)
    gc.collect()
    held = (x, out, scale, F32, F64, torch.Tensor, driver.library, None, 1)
    counts, resident = [sys.getrefcount(one) for one in held[:-2]], resident_mb()
    many(5_000)
    driver.library.forget()
    explorer.softmax(x)
    gc.collect()
    assert all(
        abs(sys.getrefcount(one) - count) < 20 for one, count in zip(held, counts, strict=False)
    )
    assert resident_mb() - resident < 20


def test_an_entry_lives_no_longer_than_the_table(driver):
    import weakref

    x = torch.randn(3, 5)
    explorer.softmax(x)
    gone = weakref.ref(TENSORS.recipe(Call(Op.SOFTMAX, -1), x).plan)
    torch_calls._threads.recipes.clear()
    gc.collect()
    assert gone() is not None
    driver.library.forget()
    gc.collect()
    assert gone() is None


def test_a_table_that_is_emptied_during_a_launch(driver):
    x, out = torch.randn(3, 5), torch.empty(3, 5)
    explorer.softmax(x, out=out)

    def meanwhile():
        torch_calls._threads.recipes.clear()
        driver.library.forget()
        gc.collect()
        spoilt.extend(b"\xdd" * size for size in range(400, 900) for _ in range(4))

    spoilt, driver.meanwhile = [], meanwhile  # memory that is freed too early gets other bytes
    expected = exact("softmax", x)
    close(explorer.softmax(x, out=out), expected)
    assert driver.paths == ["learn"] and spoilt and driver.library.size() == 0


# ------------------------------------------------------------------ setting up


def test_pytorch_is_asked_what_it_answers_when_nothing_looks_on(driver, monkeypatch):
    told = []
    fake = type("Library", (), {"configure": lambda *given: told.extend(given), "call": None})
    torch_fast_calls.configure(fake, 1, 2)
    *_, answers, values, _, _, _ = told[0]
    assert [function() for function, _ in answers] == [answer for _, answer in answers]
    assert [space[name] for space, name, _ in values] == [value for _, _, value in values]


@pytest.fixture
def new(monkeypatch):
    """The module as it is before the first call, and the option as it was after the test."""
    monkeypatch.setattr(torch_fast_calls, "_library", None)
    monkeypatch.setattr(torch_fast_calls, "_reason", "")
    monkeypatch.setattr(torch_fast_calls, "_may_serve", lambda x: True)
    monkeypatch.setattr(functions, "compiled", None)
    yield torch_fast_calls
    explorer.set_options(compiled_calls=True, wait=False)


def test_the_option_builds_it_in_the_background(new, monkeypatch):
    driver, built = Driver(), threading.Event()
    monkeypatch.setattr(launcher, "driver_functions", driver.addresses)
    explorer.set_options(compiled_calls=True)
    assert functions.compiled is new._first_call
    x, whole = torch.randn(3, 5), fast_call.load

    def slow():
        assert threading.current_thread().name == "explorer" and built.wait(60)
        return whole()

    monkeypatch.setattr(fast_call, "load", slow)
    for _ in range(3):
        assert torch.equal(explorer.softmax(x), torch.softmax(x, -1))
        assert functions.compiled is None
    built.set()
    for _ in range(600):
        if functions.compiled is not None:
            break
        threading.Event().wait(0.02)
    assert functions.compiled is new._library.call
    assert torch.equal(explorer.softmax(x), torch.softmax(x, -1))
    explorer.set_options(compiled_calls=False)
    assert functions.compiled is None
    explorer.set_options(compiled_calls=True)
    assert functions.compiled is new._library.call
    service.service.forget()
    assert new._library.size() == 0


def test_where_calls_wait_it_is_built_at_once(new, monkeypatch):
    monkeypatch.setattr(launcher, "driver_functions", Driver().addresses)
    explorer.set_options(compiled_calls=True, wait=True)
    assert functions.compiled is new._library.call


def test_where_calls_wait_it_is_built_also_in_inference_mode(new, monkeypatch):
    monkeypatch.setattr(launcher, "driver_functions", Driver().addresses)
    with torch.inference_mode():
        explorer.set_options(compiled_calls=True, wait=True)
    assert functions.compiled is new._library.call


def test_what_it_is_told_wrongly_changes_nothing(driver):
    x = torch.randn(3, 5)
    explorer.softmax(x)
    exchange = torch.Tensor.__dlpack_c_exchange_api__
    for objects, most in ((tuple(object() for _ in range(15)), 8), ((), 8), ((), 0), ((), 2**20)):
        with pytest.raises((TypeError, ValueError)):
            driver.library.configure(objects, exchange, 1, 2, most)
    gc.collect()
    close(explorer.softmax(x), exact("softmax", x))
    assert driver.paths == ["learn"] and driver.library.size() == 1


NO_API = "type object 'Tensor' has no attribute '__dlpack_c_exchange_api__'"


@pytest.mark.parametrize(
    "why, reason",
    [("driver", "libcuda.so.1"), ("compiler", "no C compiler is found"), ("api", NO_API)],
)
def test_why_there_is_none_is_said_once(new, monkeypatch, caplog, tmp_path, why, reason):
    if why != "driver":
        monkeypatch.setattr(launcher, "driver_functions", Driver().addresses)
    elif Path("/proc/driver/nvidia").exists():
        pytest.skip("this machine has a driver")
    if why == "compiler":
        monkeypatch.setenv("CC", "no-such-compiler")
    if why == "api":
        monkeypatch.delattr(torch.Tensor, "__dlpack_c_exchange_api__")
    x = torch.randn(3, 5)
    with caplog.at_level(logging.DEBUG, "explorer"):
        for _ in range(3):
            explorer.set_options(compiled_calls=True, wait=True)
            assert torch.equal(explorer.softmax(x), torch.softmax(x, -1))
    assert functions.compiled is None and reason in caplog.text
    assert caplog.text.count("calls are served by Python") == 1


ENVIRONMENT = """
import os, sys, threading
if sys.argv[1] == "torch first": import torch
import explorer
from explorer.runtime import functions
import torch
x = torch.ones(2, 4)
before = functions.compiled
explorer.softmax(x)
from explorer.runtime import torch_fast_calls
child = os.fork()
if not child:
    os._exit(functions.compiled not in (None, torch_fast_calls._first_call))
assert os.waitpid(child, 0)[1] == 0
print(before is not None, explorer.softmax(x)[0, 0].item(), threading.active_count() <= 3)
"""


@pytest.mark.parametrize("order", ["torch first", "torch later"])
def test_it_is_on_by_default_and_forks_and_exits_are_safe(order):
    ran = subprocess.run(
        [sys.executable, "-c", ENVIRONMENT, order],
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.split() == [str(order == "torch first"), "0.25", "True"]


OPTION = """
import sys, threading, torch
from explorer.runtime import fast_call, functions, service
fast_call.load = lambda: sys.exit("something was built")
import explorer
explorer.softmax(torch.ones(2, 4))
print(service.options.compiled_calls, functions.compiled is not None, threading.active_count())
"""


@pytest.mark.parametrize("said, is_on", [("", True), ("1", True), ("0", False), ("off", False)])
def test_the_environment_turns_it_off(said, is_on):
    """An import and calls without a GPU start no thread and build nothing, even with `wait`."""
    env = {**os.environ, "EXPLORER_COMPILED_CALLS": said, "EXPLORER_WAIT": "1"}
    ran = subprocess.run(
        [sys.executable, "-c", OPTION], env=env, capture_output=True, text=True, check=False
    )
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.split() == [str(is_on), str(is_on), "1"]
