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
    """No cache of generated code, so that each test generates its own."""
    torch._dynamo.reset()
    with torch._inductor.config.patch(force_disable_caches=True):
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
    assert lines(forward, "explorer_softmax(") and lines(backward, "explorer_softmax_backward(")


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
    assert lines(code, "explorer_softmax(")


def test_another_version_of_this_package_may_run_what_was_generated(monkeypatch):
    launched, x = serve_cpu(monkeypatch), torch.randn(3, 5)
    _, (code,) = run_and_get_code(torch.compile(lambda x: explorer.softmax(x), fullgraph=True), x)
    begin = code.index("try:\n    from explorer")
    imported = code[begin : code.index("\n", code.index("except ImportError:\n", begin) + 30)]
    space = {"torch": torch}
    exec(imported, space)
    assert space["explorer_softmax"] is torch_inductor.softmax
    monkeypatch.delattr(torch_inductor, "softmax")
    exec(imported, space)
    assert space["explorer_softmax"] is torch.ops.explorer.softmax.default
    launched.clear()
    close(space["explorer_softmax"](x, -1, *PLAIN), exact("softmax", x))
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
    library, expected = driver.library.call, {}
    compiled(torch.ones(2, 33))  # by Python, as PyTorch still looks on
    driver.paths.clear()
    with torch._dynamo.config.patch(error_on_recompile=True):
        for rows in (3, 5, 9):  # each has a plan of its own, which is found at run time
            x = torch.randn(rows, 33)
            for _ in range(3):
                close(compiled(x), exact("softmax", x))
            expected[rows] = x, compiled(x)
        assert driver.paths == ["learn"] * 3 and driver.library.size() == 3
        functions.compiled = None
        for x, bits in expected.values():
            assert torch.equal(compiled(x), bits)
        functions.compiled = library
        for x, bits in expected.values():
            assert torch.equal(compiled(x), bits)
    assert driver.paths == ["learn"] * 3


def test_a_training_step_is_served_by_the_compiled_function(driver):
    compiled = torch.compile(lambda x: explorer.softmax(x), fullgraph=True)
    x = torch.randn(3, 33, requires_grad=True)
    for _ in range(3):
        compiled(x).square().sum().backward()
    assert driver.paths == ["otherwise", "learn"]  # the first while PyTorch still looks on
    twin = x.detach().clone().requires_grad_()
    torch.softmax(twin, -1).square().sum().backward()
    close(x.grad, 3 * twin.grad)


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


@pytest.fixture
def untold():
    """Inductor as it is before it is told, during a test."""
    from torch._inductor.lowering import lowerings

    operators = torch.ops.explorer.softmax.default, torch.ops.explorer.softmax_backward.default
    kept = {operator: lowerings.pop(operator, None) for operator in operators}
    was_told, torch_inductor._is_told = torch_inductor._is_told, False
    yield
    for operator in operators:
        lowerings.pop(operator, None)
    lowerings.update({operator: kept[operator] for operator in operators if kept[operator]})
    torch_inductor._is_told = was_told


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
    assert any("import softmax as explorer_softmax" in code for code in generated)


@pytest.mark.exhaustive
def test_where_cpp_is_generated_the_operators_are_called(monkeypatch):
    x = torch.randn(3, 5)
    with torch._inductor.config.patch(cpp_wrapper=True), torch.no_grad():
        got, (code,) = run_and_get_code(torch.compile(lambda x: explorer.softmax(x)), x)
    close(got, exact("softmax", x))
    assert "explorer_softmax(" not in code
