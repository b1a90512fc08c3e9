"""What `torch.compile` generates with Inductor calls our functions past PyTorch's dispatcher."""

import logging
import os
import subprocess
import sys

import pytest
from compiled_cases import serve_compiled
from test_torch_calls import F64, close, exact
from torch_cases import serve_cpu, torch

import explorer
from explorer.runtime import fast_call, functions, torch_inductor

inductor = pytest.importorskip("torch._inductor.utils", reason="this PyTorch has no Inductor")
run_and_get_code = inductor.run_and_get_code


PLAIN = (None, None, False, None, None, False)
"""Scale, mask, causal, lengths, type and log of the operator's plain call."""


@pytest.fixture(autouse=True)
def fresh():
    """No cache of generated code, so that each test generates its own.

    What g++ makes of it is compiled without vectors, which it would first be asked for, and without
    headers that it had compiled before.
    """
    torch._dynamo.reset()
    plain = {"cpp.vec_isa_ok": False, "cpp_cache_precompile_headers": False}
    with torch._inductor.config.patch(plain | {"force_disable_caches": True}):
        yield


def lines(code, word):
    """The lines of generated code that have a word and are calls whose result is kept."""
    return [line.strip() for line in code.splitlines() if word in line and " = " in line]


@pytest.mark.parametrize("dynamic", [False, True])
def test_forward_and_backward_are_direct_calls(monkeypatch, dynamic):
    launched = serve_cpu(monkeypatch)
    compiled = torch.compile(
        lambda x: explorer.softmax(x, scale=0.5), fullgraph=True, dynamic=dynamic
    )
    x = torch.randn(3, 33, requires_grad=True)
    twin = x.detach().clone().requires_grad_()

    def both():
        compiled(x).square().sum().backward()

    _, codes = run_and_get_code(both)
    explorer.softmax(twin, scale=0.5).square().sum().backward()
    close(x.grad, twin.grad)
    assert len(launched) == 4 and launched[:2] == launched[2:]
    forward, backward = codes
    assert not lines(forward + backward, ".default(")
    assert lines(forward, "explorer_calls.softmax(") and lines(
        backward, "explorer_calls.softmax_backward("
    )


KINDS = {
    "plain": {},
    "log": {"log": True},
    "another axis": {"dim": 0},
    "causal": {"mask": "causal"},
    "a mask": {"mask": torch.randn(6, 6)},
    "lengths": {"lengths": torch.tensor([1, 2, 6, 3, 5, 4])},
    "a scale": {"scale": 2},
    "a type": {"dtype": F64},
}


@pytest.mark.parametrize("told", KINDS.values(), ids=KINDS)
def test_every_argument_is_handed_on(monkeypatch, told):
    serve_cpu(monkeypatch)
    told = dict(told)
    function = explorer.log_softmax if told.pop("log", False) else explorer.softmax
    x = torch.randn(6, 6)
    got, (code,) = run_and_get_code(torch.compile(lambda x: function(x, **told), fullgraph=True), x)
    assert torch.equal(got, function(x, **told))
    assert lines(code, "explorer_calls.softmax(")


def test_another_version_of_this_package_may_run_what_was_generated(monkeypatch):
    launched, x = serve_cpu(monkeypatch), torch.randn(3, 5)
    _, (code,) = run_and_get_code(torch.compile(lambda x: explorer.softmax(x), fullgraph=True), x)
    begin = code.index("try:\n    from explorer")
    imported = code[begin : code.index("\n", code.index("except ImportError:\n", begin) + 30)]
    space = {"torch": torch}
    exec(imported, space)
    assert space["explorer_calls"] is torch_inductor
    monkeypatch.setitem(sys.modules, torch_inductor.__name__, None)
    monkeypatch.delattr(explorer.runtime, "torch_inductor")
    exec(imported, space)
    assert space["explorer_calls"] is torch.ops.explorer
    launched.clear()
    close(space["explorer_calls"].softmax(x, -1, *PLAIN), exact("softmax", x))
    assert len(launched) == 1


def test_a_result_is_dense_whatever_serves_it():
    x = torch.randn(4, 6).t()
    assert not x.is_contiguous()
    got = torch.compile(lambda x: explorer.softmax(x) + 1, fullgraph=True)(x)
    close(got, exact("softmax", x) + 1)
    assert torch_inductor.softmax(x, -1, *PLAIN).is_contiguous()


@pytest.fixture
def driver(monkeypatch):
    try:
        fast_call.load()
    except fast_call.Unavailable as error:
        pytest.skip(f"compiled calls: {error}")
    made = serve_compiled(monkeypatch)
    yield made
    made.library.forget()
    assert not made.failures


def test_the_compiled_function_serves_it_while_the_option_is_on(driver):
    compiled = torch.compile(lambda x: explorer.softmax(x), fullgraph=True, dynamic=True)
    library, expected = driver.library, {}
    compiled(torch.ones(2, 33))  # by Python, as PyTorch still looks on
    driver.paths.clear()
    with torch._dynamo.config.patch(error_on_recompile=True):
        for rows in (3, 5, 9):  # each has a plan of its own, which is found at run time
            x = torch.randn(rows, 33)
            for _ in range(3):
                close(compiled(x), exact("softmax", x))
            expected[rows] = x, compiled(x)
        assert driver.paths == ["operator", "learn"] * 3 and driver.library.size() == 3
        functions.compiled, torch_inductor.softmax = None, torch_inductor.softmax_in_python
        for x, bits in expected.values():
            assert torch.equal(compiled(x), bits)
        functions.compiled, torch_inductor.softmax = library.call, library.as_operator
        driver.paths.clear()
        for x, bits in expected.values():
            assert torch.equal(compiled(x), bits)
    assert driver.paths == []


def test_a_training_step_is_served_by_the_compiled_function(driver):
    compiled = torch.compile(lambda x: explorer.softmax(x), fullgraph=True)
    x = torch.randn(3, 33, requires_grad=True)
    for _ in range(3):
        compiled(x).square().sum().backward()
    # The first while PyTorch still looks on.
    assert driver.paths == ["operator", "otherwise", "operator", "learn"]
    twin = x.detach().clone().requires_grad_()
    torch.softmax(twin, -1).square().sum().backward()
    close(x.grad, 3 * twin.grad)


CALLS = {
    "plain": (torch.randn(3, 33), -1, *PLAIN),
    "log": (torch.randn(3, 33), -1, *PLAIN[:5], True),
    "a scale": (torch.randn(3, 33), 1, 0.5, *PLAIN[1:]),
    "another axis": (torch.randn(33, 3), 0, *PLAIN),
    "its own type": (torch.randn(3, 33), -1, *PLAIN[:4], torch.float32, False),
    "a parameter": (torch.nn.Parameter(torch.randn(3, 33)), -1, *PLAIN),
}


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_generated_code_is_served_without_python(driver, call):
    with torch.no_grad():
        expected = torch_inductor.softmax_in_python(*call)
        driver.paths.clear()
        for _ in range(3):
            got = driver.library.as_operator(*call)
            assert torch.equal(got, expected) and got.is_contiguous()
    assert driver.paths == [] and driver.library.size() == 1


def test_generated_code_is_served_where_a_gradient_is_wanted_outside(driver):
    """There gradients are of the code that was generated for them."""
    x = torch.randn(3, 33)
    driver.library.as_operator(x, -1, *PLAIN)
    driver.paths.clear()
    got = driver.library.as_operator(x.clone().requires_grad_(), -1, *PLAIN)
    assert driver.paths == [] and not got.requires_grad
    close(got, exact("softmax", x))


OTHERS = {
    "causal": (torch.randn(6, 6), -1, None, None, True, *PLAIN[3:]),
    "a mask": (torch.randn(6, 6), -1, None, torch.randn(6, 6), *PLAIN[2:]),
    "lengths": (torch.randn(2, 6), -1, None, None, False, torch.tensor([1, 2]), *PLAIN[4:]),
    "transposed": (torch.randn(6, 4).t(), -1, *PLAIN),
    "negated": (torch.randn(3, 5, dtype=torch.complex64).conj().imag, -1, *PLAIN),
    "empty": (torch.randn(3, 0), -1, *PLAIN),
    "a number": (torch.tensor(2.0), -1, *PLAIN),
}


@pytest.mark.parametrize("call", OTHERS.values(), ids=OTHERS)
def test_what_is_not_plain_in_generated_code_is_pythons(driver, call):
    for _ in range(2):
        got = driver.library.as_operator(*call)
        expected = torch.ops.explorer.softmax(*call)
        assert got.is_contiguous()
        close(got, expected)


def test_a_wrong_number_of_arguments_is_said(driver):
    with pytest.raises(TypeError, match="as_operator takes 8 arguments"):
        driver.library.as_operator(torch.randn(3, 5), -1)


@pytest.mark.parametrize("is_served", [False, True])
def test_a_mode_sees_our_operator(request, monkeypatch, is_served):
    from torch.utils._python_dispatch import TorchDispatchMode

    if is_served:
        request.getfixturevalue("driver")
    seen = []

    class Mode(TorchDispatchMode):
        def __torch_dispatch__(self, operator, types, arguments=(), named=None):
            seen.append(operator)
            return operator(*arguments, **(named or {}))

    x = torch.randn(3, 5)
    with Mode():
        got = torch_inductor.softmax(x, -1, *PLAIN)
    close(got, exact("softmax", x))
    assert torch.ops.explorer.softmax.default in seen


@pytest.mark.parametrize("wanted", [False, True])
def test_what_runs_below_a_function_that_is_not_compiled_is_not_compiled_either(wanted):
    """PyTorch compiles nothing under a transform, and from then on runs the function as it is."""
    from torch._dynamo.utils import counters

    compiled = torch.compile(lambda x: explorer.softmax(x))
    x = torch.randn(3, 5)
    compiled(x)
    for told in ({}, {"in_dims": 1, "out_dims": 1}):
        compared = torch.softmax(x, 0 if told else -1)
        close(torch.vmap(compiled, **told)(x), compared)
    before = counters["frames"]["ok"]
    assert before > 0
    for shape in ((5,), (2, 7), (2, 3, 4)):
        x = torch.randn(shape, requires_grad=wanted)
        got = compiled(x)
        close(got.detach(), exact("softmax", x.detach()))
        if wanted:
            got.square().sum().backward()
    assert counters["frames"]["ok"] == before


@pytest.fixture
def untold():
    """Inductor as it is before it is told, during a test."""
    from torch._inductor.lowering import lowerings

    operators = torch.ops.explorer.softmax.default, torch.ops.explorer.softmax_backward.default
    kept = {operator: lowerings.pop(operator, None) for operator in operators}
    was_registered, torch_inductor._is_registered = torch_inductor._is_registered, False
    yield
    for operator in operators:
        lowerings.pop(operator, None)
    lowerings.update({operator: kept[operator] for operator in operators if kept[operator]})
    torch_inductor._is_registered = was_registered


def test_another_inductor_calls_the_operators(untold, monkeypatch, caplog):
    def fails():
        raise AttributeError("no such interface")

    monkeypatch.setattr(torch_inductor, "_register", fails)
    x = torch.randn(3, 5)
    with caplog.at_level(logging.DEBUG, "explorer"):
        got, (code,) = run_and_get_code(torch.compile(lambda x: explorer.softmax(x)), x)
    close(got, exact("softmax", x))
    assert lines(code, "torch.ops.explorer.softmax.default(")
    assert caplog.text.count("no such interface") == 1


def test_what_is_plain_reads_few_names():
    """Each name that is read on the way to an operator costs every later call 15 ns."""
    from torch._C._dynamo.eval_frame import _debug_get_cache_entry_list

    def ours(x):
        return explorer.softmax(x)

    def alone(x):
        return torch.ops.aten.relu(x)

    counts = []
    for function in (ours, alone):
        torch.compile(function, backend="eager", fullgraph=True)(torch.randn(3, 5))
        (entry,) = _debug_get_cache_entry_list(function.__code__)
        counts.append(str(entry.guard_manager).count("+- "))
    assert 0 < counts[0] - counts[1] <= 36


CACHED = """
import torch, explorer
from torch._dynamo.utils import counters
with torch.no_grad():
    x = torch.randn(3, 5)
    compiled = torch.compile(lambda x: explorer.softmax(x), fullgraph=True)
    torch.testing.assert_close(compiled(x), torch.softmax(x, -1))
    print(counters["inductor"]["fxgraph_cache_hit"], counters["aot_autograd"]["autograd_cache_hit"])
"""


@pytest.mark.exhaustive
def test_another_process_finds_what_was_generated(tmp_path):
    env = {**os.environ, "TORCHINDUCTOR_CACHE_DIR": str(tmp_path)}
    said = []
    for _ in range(2):
        ran = subprocess.run(
            [sys.executable, "-c", CACHED], env=env, capture_output=True, text=True, check=False
        )
        assert ran.returncode == 0, ran.stderr
        said.append([int(word) for word in ran.stdout.split()])
    assert sum(said[0]) == 0 and sum(said[1]) > 0
    generated = [path.read_text() for path in tmp_path.rglob("*.py")]
    assert any("import torch_inductor as explorer_calls" in code for code in generated)


@pytest.mark.exhaustive
def test_where_cpp_is_generated_the_operators_are_called(monkeypatch):
    x = torch.randn(3, 5)
    with torch._inductor.config.patch(cpp_wrapper=True), torch.no_grad():
        got, (code,) = run_and_get_code(torch.compile(lambda x: explorer.softmax(x)), x)
    close(got, exact("softmax", x))
    assert "explorer_calls.softmax(" not in code
