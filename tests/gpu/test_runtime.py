"""explorer.softmax on a GPU: beside PyTorch, CuPy and JAX, in graphs, threads and big tensors."""

import ctypes
import os
import shutil
import subprocess
import sys
import threading

import pytest

import explorer
from explorer.codegen.units import emit
from explorer.compile.compiler import Compiler
from explorer.devices.cuda.program import Program, bound
from explorer.model.config import Config
from explorer.model.problem import Problem
from explorer.ops import FORWARD, Op

torch = pytest.importorskip("torch", reason="needs PyTorch: pip install 'softmax-explorer[torch]'")

from explorer.runtime import (  # noqa: E402
    functions,
    service,
    torch_calls,
    torch_fast_calls,
    torch_operators,
    torch_override,
)
from explorer.runtime.layout import Call  # noqa: E402
from explorer.runtime.torch_calls import TENSORS  # noqa: E402

CLOSE = {torch.float32: 4e-6, torch.float64: 1e-13, torch.float16: 4e-3, torch.bfloat16: 1.6e-2}
ARCH = "sm_{}{}".format(*torch.cuda.get_device_capability()) if torch.cuda.is_available() else ""
FUNCTIONS = [explorer.softmax, explorer.log_softmax]


@pytest.fixture(autouse=True)
def waiting():
    """Python serves calls, which wait for their kernel; what tests before loaded is forgotten."""
    explorer.set_options(wait=True, compiled_calls=False)
    service.service.forget()
    torch_calls._threads = torch_calls._Threads()
    yield
    explorer.set_options(wait=False, compiled_calls=True)


def theirs(function):
    return torch.softmax if function is explorer.softmax else torch.log_softmax


def agree(result, x, function, dim=-1):
    """The result is that of float64, to the roundings of its type; and our kernel's."""
    truth = theirs(function)(x.double(), dim)
    floor = torch.finfo(result.dtype).smallest_normal
    off = (result.double() - truth).abs() / truth.abs().clamp_min(max(floor, 1e-4))
    assert off.max().item() <= CLOSE[result.dtype] * (4 if function is explorer.log_softmax else 1)
    assert service.service._loaded and not service.service._refused


SHAPES = [((64, 4096), -1), ((3, 5, 7), 1), ((8,), 0), ((33, 50257), -1), ((2, 2**20), 1)]
SHAPES += [((16, 12, 33), 0), ((1000, 17), 1), ((4, 3, 128), -1), ((4, 8193), -1)]


@pytest.mark.parametrize("function", FUNCTIONS)
@pytest.mark.parametrize("dtype", list(CLOSE), ids=str)
@pytest.mark.parametrize(("shape", "dim"), SHAPES, ids=str)
def test_results_are_those_of_float64(shape, dim, dtype, function):
    x = torch.randn(shape, device="cuda", dtype=torch.float64).to(dtype)
    agree(function(x, dim), x, function, dim)


@pytest.mark.parametrize("function", FUNCTIONS)
@pytest.mark.parametrize("shape", [(64, 1000), (5, 77, 4), (16, 50257)], ids=str)
def test_gradients_are_pytorchs(shape, function):
    x = torch.randn(shape, device="cuda", requires_grad=True)
    grad = torch.randn_like(x)
    (ours,) = torch.autograd.grad(function(x, 1), x, grad)
    (own,) = torch.autograd.grad(theirs(function)(x.double(), 1), x, grad.double())
    assert torch.allclose(ours, own.float(), rtol=1e-5, atol=1e-6)
    kinds = {problem.op for problem, *_ in service.service._loaded}
    assert kinds == {Op(function.__name__), Op(f"{function.__name__}_backward")}


def test_strides_offsets_and_outputs():
    base = torch.randn(40, 1100, device="cuda")
    for x in (base[:, :1000], base[::3, 4:1004], base.t(), base[:, 1:], base.expand(2, 40, 1100)):
        agree(explorer.softmax(x), x, explorer.softmax)
    x, truth = base.clone(), torch.softmax(base, -1)
    assert explorer.softmax(x, out=x) is x and torch.allclose(x, truth, rtol=1e-5, atol=0)
    wide = torch.full((40, 1200), 7.0, device="cuda")
    explorer.softmax(base, out=wide[:, :1100])
    assert torch.allclose(wide[:, :1100], truth, rtol=1e-5, atol=0) and (wide[:, 1100:] == 7).all()
    line = torch.randn(45_000, device="cuda")
    x, over = line[:44_000].view(40, 1100), line[500:44_500].view(40, 1100)
    expected = torch.softmax(x, -1)
    assert torch.allclose(explorer.softmax(x, out=over), expected, rtol=1e-5, atol=0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("function", FUNCTIONS)
def test_masks_lengths_and_scales(function, dtype):
    x = torch.randn(2, 3, 64, 96, device="cuda").to(dtype)
    hidden = ~torch.ones(64, 96, dtype=torch.bool, device="cuda").tril(32)
    lengths = torch.randint(1, 97, (2, 3, 64), device="cuda")
    late = torch.arange(96, device="cuda") >= lengths.unsqueeze(-1)
    added = torch.randn(64, 96, device="cuda").to(dtype)
    lowest = float("-inf")
    for asked, counted in (
        ({"mask": "causal", "scale": 0.25}, (x.double() * 0.25).masked_fill(hidden, lowest)),
        ({"lengths": lengths}, x.double().masked_fill(late, lowest)),
        ({"mask": added}, x.double() + added.double()),
        ({"scale": -3.0}, x.double() * -3.0),
    ):
        result, truth = function(x, **asked), theirs(function)(counted, -1)
        assert torch.allclose(result.double(), truth, rtol=2 * CLOSE[dtype], atol=1e-4)
    assert len(service.service._loaded) == 4


def test_a_graph_loads_nothing_and_repeats_its_bits():
    x = torch.randn(256, 1000, device="cuda")
    with torch.cuda.graph(torch.cuda.CUDAGraph()):
        explorer.softmax(x)
    assert not service.service._loaded and not service.service._pending
    expected, graph = explorer.softmax(x), torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = explorer.softmax(x)
    for _ in range(1000):
        graph.replay()
    assert torch.equal(captured, expected)


def shapes_that_differ(tensors, truths, calls):
    """The shapes whose result is not the truth in one of so many calls, each in its own thread."""
    wrong = []

    def work(x, truth):
        with torch.cuda.stream(torch.cuda.Stream()):
            if not all(torch.equal(explorer.softmax(x), truth) for _ in range(calls)):
                wrong.append(x.shape)

    threads = [
        threading.Thread(target=work, args=pair) for pair in zip(tensors, truths, strict=True)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return wrong


def test_threads_and_streams_have_the_same_bits():
    tensors = [torch.randn(200 + n, 1000, device="cuda") for n in range(8)]
    truths = [explorer.softmax(x) for x in tensors]
    torch.cuda.synchronize()
    assert not shapes_that_differ(tensors, truths, 300)


@pytest.mark.alone
def test_more_elements_than_32_bits_count():
    x = torch.empty(2**31 // 4096 + 9, 4096, device="cuda", dtype=torch.float16)
    x.uniform_(-4, 4)
    y = explorer.softmax(x)
    last = torch.softmax(x[-5:].double(), -1)
    assert torch.allclose(y[-5:].double(), last, rtol=4e-3, atol=1e-7)
    assert service.service._loaded


def test_a_kernel_is_made_meanwhile_and_then_serves():
    explorer.set_options(wait=False)
    x = torch.randn(37, 1234, device="cuda")
    for _ in range(600):
        result = explorer.softmax(x)
        if service.service._loaded:
            break
        assert torch.equal(result, torch.softmax(x, -1))
        threading.Event().wait(0.05)
    agree(explorer.softmax(x), x, explorer.softmax)


def test_compiled_and_autocast_calls():
    x = torch.randn(64, 1000, device="cuda")
    compiled = torch.compile(lambda x: explorer.softmax(x + 1), fullgraph=True, backend="aot_eager")
    assert torch.equal(compiled(x), explorer.softmax(x + 1))
    with torch.autocast("cuda"):
        result = explorer.softmax(x.half())
    assert result.dtype is torch.float32
    agree(result, x.half(), explorer.softmax)


# ------------------------------------------------------------------ compiled calls


@pytest.fixture
def in_python(monkeypatch):
    """Compiled calls are on; the list has a word for each call that Python serves all the same."""
    explorer.set_options(wait=True, compiled_calls=True)
    if functions.compiled is None:
        pytest.skip(f"compiled calls: {torch_fast_calls._reason}")
    served, compute = [], torch_calls.compute

    def counted(*told):
        served.append(told[0])
        return compute(*told)

    monkeypatch.setattr(torch_calls, "compute", counted)  # what the function is served by at first
    monkeypatch.setattr(torch_operators, "compute", counted)
    yield served
    explorer.set_options(compiled_calls=False)


def by_python(function, *told, **named):
    """What Python makes of a call."""
    explorer.set_options(compiled_calls=False)
    try:
        return function(*told, **named).clone()
    finally:
        explorer.set_options(compiled_calls=True)


@pytest.mark.parametrize("function", FUNCTIONS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize(("shape", "dim"), SHAPES[::3], ids=str)
def test_compiled_calls_have_pythons_bits(in_python, shape, dim, dtype, function):
    x = torch.randn(shape, device="cuda", dtype=torch.float64).to(dtype)
    out, log = torch.empty_like(x), function is explorer.log_softmax
    for told in ({}, {"out": out}, {"scale": 0.3}, {"scale": -2, "out": out}):
        expected = by_python(function, x, dim, **told)
        recipe = TENSORS.recipe(Call(FORWARD[log], dim, told.get("scale")), x, told.get("out"))
        function(x, dim, **told)
        in_python.clear()
        for _ in range(3):
            out.fill_(7)
            got = function(x, dim, **told)
            assert torch.equal(got, expected) and got.stride() == expected.stride()
        is_one_launch = recipe.is_plain and recipe.plan.only_launch() is not None
        assert len(in_python) == (0 if is_one_launch else 3)


def test_compiled_calls_in_place(in_python):
    x = torch.randn(64, 1000, device="cuda")
    y = x.clone()
    expected = by_python(explorer.softmax, y, out=y)
    for _ in range(3):
        in_python.clear()
        y.copy_(x)
        assert explorer.softmax(y, out=y) is y and torch.equal(y, expected)
    assert not in_python


def test_a_graph_captures_compiled_calls(in_python):
    x = torch.randn(256, 1000, device="cuda")
    out, expected, graph = torch.empty_like(x), explorer.softmax(x), torch.cuda.CUDAGraph()
    explorer.softmax(x, out=out)
    out.zero_(), in_python.clear()
    with torch.cuda.graph(graph):
        captured = explorer.softmax(x)
        explorer.softmax(x, out=out)
    assert not in_python
    x.copy_(torch.randn_like(x))
    for _ in range(100):
        graph.replay()
    assert torch.equal(captured, explorer.softmax(x)) and torch.equal(out, captured)
    assert not torch.equal(captured, expected)


def test_compiled_calls_are_on_the_current_stream(in_python):
    x, new = (torch.randn(256, 1000, device="cuda") for _ in range(2))
    explorer.softmax(x), explorer.softmax(new, out=torch.empty_like(new))
    expected = by_python(explorer.softmax, new)
    in_python.clear()
    with torch.cuda.stream(torch.cuda.Stream()):
        torch.cuda.current_stream().wait_stream(torch.cuda.default_stream())
        torch.cuda._sleep(50_000_000)  # some 30 ms: on another stream the launch would be early
        x.copy_(new)
        y, out = explorer.softmax(x), torch.empty_like(x)
        explorer.softmax(x, out=out)
        torch.cuda.current_stream().synchronize()
    assert not in_python and torch.equal(y, expected) and torch.equal(out, expected)


LATE = r"""
extern "C" __global__ void late(float* x, int count, float value) {
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
  const long long begin = clock64();
  while (clock64() - begin < 300000) {
  }
  for (int i = blockIdx.x * 256 + threadIdx.x; i < count; i += gridDim.x * 256) {
    x[i] = value * (i % 7);
  }
}
"""
"""It lets the next launch begin at once, and writes some 150 us later."""


def write_late(program, x, value):
    told = (x.data_ptr(), x.numel(), value), (ctypes.c_void_p, ctypes.c_int, ctypes.c_float)
    stream = torch.cuda.current_stream().cuda_stream
    program.launch_raw("late", 16, 256, 0, *told, stream)


@pytest.mark.parametrize("compiled", [False, True], ids=["python", "compiled"])
def test_a_launch_waits_for_what_the_one_before_writes(compiled):
    if torch.cuda.get_device_capability() < (9, 0):
        pytest.skip("launches overlap from sm_90 on")
    explorer.set_options(compiled_calls=compiled)
    x = torch.zeros(64, 1024, device="cuda")
    y = torch.empty_like(x)
    for _ in range(3):
        explorer.softmax(x, out=y)
    (loaded,) = service.service._loaded.values()
    assert [launch.overlaps for launch in loaded.kernel.launches] == [True]
    program = Program(Compiler(ARCH).compile(LATE).cubin)
    pattern = (torch.arange(x.numel(), device="cuda") % 7).view_as(x)
    for value in range(1, 21):
        write_late(program, x, value / 4)
        explorer.softmax(x, out=y)
        assert torch.allclose(y, torch.softmax(pattern * (value / 4), -1), rtol=1e-5)


def test_a_kernel_that_does_not_wait_reads_what_was_there_before():
    """So that the test above can fail: launches do overlap."""
    if torch.cuda.get_device_capability() < (9, 0):
        pytest.skip("launches overlap from sm_90 on")
    problem, config = Problem(64, 1024), Config(threads=256, threads_per_row=256)
    variant = emit(problem, config, overlapped=True)
    hasty = variant.source.replace("  wait_for_launch_before();\n", "")
    programs = [Program(Compiler(ARCH).compile(text).cubin) for text in (LATE, hasty)]
    x, y = (torch.zeros(64, 1024, device="cuda") for _ in range(2))
    values = bound(problem, {"input": x.data_ptr(), "output": y.data_ptr()})
    for _ in range(2):  # a module's first launch loads it, which waits for all launches
        write_late(programs[0], x, 0.0)
        programs[1].launch(variant.launches[0], values, torch.cuda.current_stream().cuda_stream)
    torch.cuda.synchronize()
    write_late(programs[0], x, 1.0)
    programs[1].launch(variant.launches[0], values, torch.cuda.current_stream().cuda_stream)
    assert torch.equal(y, torch.full_like(y, 1 / 1024))


def test_threads_share_compiled_calls(in_python):
    tensors = [torch.randn(200 + n, 1000, device="cuda") for n in range(8)]
    truths = [explorer.softmax(x) for x in tensors]
    torch.cuda.synchronize()
    in_python.clear()
    assert not shapes_that_differ(tensors, truths, 3000)
    assert len(in_python) <= 2 * len(tensors)  # of a new thread, the call that gives it a context


def test_compiled_calls_allocate_and_free_as_pytorch_does(in_python):
    x = torch.randn(4096, 4096, device="cuda")
    for _ in range(2):
        explorer.softmax(x)
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    for _ in range(200):
        y = explorer.softmax(x)
    assert torch.cuda.memory_allocated() == before + y.nbytes
    del y
    assert torch.cuda.memory_allocated() == before


@pytest.mark.parametrize("mode", ["default", "reduce-overhead"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_torch_compile_calls_the_compiled_function(in_python, mode, dtype):
    from torch._inductor.utils import run_and_get_code

    x = torch.randn(256, 1000, device="cuda").to(dtype)
    expected = by_python(explorer.softmax, x, scale=0.5)
    torch._dynamo.reset()
    compiled = torch.compile(lambda x: explorer.softmax(x, scale=0.5), fullgraph=True, mode=mode)
    generated_anew = torch._inductor.config.patch(force_disable_caches=True)
    with generated_anew, torch.no_grad():
        _, (code,) = run_and_get_code(compiled, x)
        for _ in range(3):  # of which CUDA graphs capture one
            compiled(x)
        in_python.clear()
        for _ in range(5):
            assert torch.equal(compiled(x), expected)
        assert "explorer_calls.softmax(" in code and not in_python
        if mode == "default":
            assert torch.equal(by_python(compiled, x), expected)


def test_a_compiled_training_step_has_the_gradient(in_python):
    x = torch.randn(256, 1000, device="cuda", requires_grad=True)
    twin = x.detach().clone().requires_grad_()
    torch._dynamo.reset()
    compiled = torch.compile(lambda x: explorer.log_softmax(x + 1), fullgraph=True, dynamic=True)
    for rows in (256, 100, 7):
        x.grad = twin.grad = None
        compiled(x[:rows]).square().sum().backward()
        torch.log_softmax(twin[:rows] + 1, -1).square().sum().backward()
        torch.testing.assert_close(x.grad, twin.grad, rtol=1e-4, atol=1e-4)


def test_under_autocast_python_serves_halves(in_python):
    x = torch.randn(64, 1000, device="cuda").half()
    assert explorer.softmax(x).dtype is explorer.softmax(x).dtype is torch.float16
    with torch.autocast("cuda"):
        assert explorer.softmax(x).dtype is torch.float32
    in_python.clear()
    assert explorer.softmax(x).dtype is torch.float16 and not in_python


def test_a_tensor_of_another_gpu_than_the_current_one(in_python):
    if torch.cuda.device_count() < 2:
        pytest.skip("needs two GPUs")
    for current, other in ((0, 1), (1, 0)):
        with torch.cuda.device(current):
            x = torch.randn(64, 1000, device=f"cuda:{other}")
            expected = torch.softmax(x, -1)
            for _ in range(3):
                for y in (explorer.softmax(x), explorer.softmax(x, out=torch.empty_like(x))):
                    assert y.device == x.device
                    assert torch.allclose(y, expected, rtol=1e-5, atol=0)
            own = x.to(current)
            explorer.softmax(own)
            in_python.clear()
            assert explorer.softmax(own).get_device() == current and not in_python


# ------------------------------------------------------------------ behind PyTorch's own functions


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_pytorchs_own_functions_are_served_by_compiled_calls(in_python, monkeypatch, dtype):
    x = torch.randn(1024, 1000, device="cuda", dtype=dtype)
    expected = by_python(explorer.softmax, x), by_python(explorer.log_softmax, x)
    recipe, asked = TENSORS.recipe, []

    def counted(call, *told):
        asked.append(call.op)
        return recipe(call, *told)

    monkeypatch.setattr(TENSORS, "recipe", counted)
    with explorer.register_torch():
        for _ in range(3):
            assert torch.equal(torch.softmax(x, -1), expected[0])
            assert torch.equal(torch.log_softmax(x, -1), expected[1])
        assert asked == [*FORWARD]
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            captured = torch.softmax(x, -1)
        graph.replay()
        assert torch.equal(captured, expected[0])
        wanting = x.clone().requires_grad_()
        torch.softmax(wanting, -1)[:, 0].sum().backward()
        assert asked == [*FORWARD, Op.SOFTMAX_BACKWARD]
    theirs = x.clone().requires_grad_()
    torch.softmax(theirs, -1)[:, 0].sum().backward()
    tolerance = 1e-5 if dtype is torch.float32 else 2e-2
    assert torch.allclose(wanting.grad, theirs.grad, rtol=tolerance, atol=1e-6)


def test_pytorchs_own_samples_through_its_own_functions():
    pytest.importorskip("expecttest", reason="PyTorch's samples need it: pip install expecttest")
    from torch.testing._internal.common_methods_invocations import op_db

    torch_override.LEAST_BYTES, least = 0, torch_override.LEAST_BYTES
    checked = 0
    try:
        with explorer.register_torch():
            for op in op_db:
                if op.name in ("softmax", "log_softmax", "masked.softmax", "masked.log_softmax"):
                    for dtype in (torch.float32, torch.float64):
                        checked += sum(
                            matches_the_cpu(op, sample)
                            for sample in op.sample_inputs("cuda", dtype, requires_grad=True)
                        )
    finally:
        torch_override.LEAST_BYTES = least
    assert checked > 50 and service.service._loaded and torch_override._registration is None


def matches_the_cpu(op, sample):
    """Values and gradients of a sample are those that PyTorch computes on the CPU."""
    on_cpu = sample.transform(
        lambda x: x.detach().cpu().requires_grad_(x.requires_grad) if torch.is_tensor(x) else x
    )
    ours, own = (op(s.input, *s.args, **s.kwargs) for s in (sample, on_cpu))
    assert torch.allclose(ours.cpu(), own, rtol=1e-5, atol=1e-6, equal_nan=True), sample
    grad = torch.randn_like(own)
    (of_ours,) = torch.autograd.grad(ours, sample.input, grad.to(ours.device))
    (of_own,) = torch.autograd.grad(own, on_cpu.input, grad)
    assert torch.allclose(of_ours.cpu(), of_own, rtol=1e-4, atol=1e-5, equal_nan=True), sample
    return True


@pytest.mark.parametrize("name", ["gpt2", "llama", "mixtral"])
def test_a_language_model_has_pytorchs_loss_and_gradients(name):
    pytest.importorskip("transformers", reason="needs transformers: pip install it")
    from language_models import assert_same, loss_and_gradients, model_of

    model, tokens = model_of(name, "cuda"), torch.randint(0, 1000, (4, 512), device="cuda")
    theirs = loss_and_gradients(model, tokens)
    assert not service.service._loaded
    with explorer.register_torch():
        ours = loss_and_gradients(model, tokens)
    assert_same(ours, theirs, 1e-4)
    losses = {Op.CROSS_ENTROPY, Op.CROSS_ENTROPY_BACKWARD}
    assert {problem.op for problem, *_ in service.service._loaded} == {
        Op.SOFTMAX,
        Op.SOFTMAX_BACKWARD,
        *losses,
    }


def test_what_is_removed_is_pytorchs_again():
    x = torch.randn(4096, 1000, device="cuda")
    own = torch.softmax(x, -1)
    handle = explorer.register_torch()
    assert explorer.register_torch() is handle
    ours = torch.nn.functional.softmax(x, -1)
    assert service.service._loaded and torch.equal(ours, explorer.softmax(x))
    handle.remove()
    service.service.forget()
    assert torch.equal(torch.softmax(x, -1), own) and not service.service._loaded


# ------------------------------------------------------------------ log-sum-exp


def kernels_of(dtype):
    """The problems of one type that have a kernel; the check's truth is one of float64."""
    name = str(dtype).removeprefix("torch.")
    return [one for one, *_ in service.service._loaded if one.dtype.array_name == name]


def check_sums(result, x, dim=-1, *, relative=4e-6):
    """The result is that of float64, and our kernel's."""
    truth = torch.logsumexp(x.double(), dim)
    assert ((result.double() - truth).abs() <= relative * truth.abs().clamp_min(1)).all()
    assert service.service._loaded and not service.service._refused


@pytest.mark.parametrize("dtype", list(CLOSE), ids=str)
@pytest.mark.parametrize(("shape", "dim"), SHAPES, ids=str)
def test_log_sums_are_those_of_float64(shape, dim, dtype):
    x = torch.randn(shape, device="cuda", dtype=torch.float64).to(dtype)
    result = explorer.logsumexp(x, dim)
    assert result.dtype is (torch.float64 if dtype is torch.float64 else torch.float32)
    check_sums(result, x, dim, relative=1e-13 if dtype is torch.float64 else 4e-6)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_log_sums_of_slices_into_outputs(dtype):
    logits = torch.randn(4, 33, 1000, device="cuda").to(dtype)
    for x in (logits[:, :-1], logits[0, :, 8:], logits[..., ::2], logits.transpose(1, 2)):
        check_sums(explorer.logsumexp(x), x)
        kept = explorer.logsumexp(x, 0, keepdim=True)
        check_sums(kept.squeeze(0), x, 0)
    wide, narrow = torch.full((4, 33, 2), 7.0, device="cuda"), logits.new_empty(4, 33)
    for out, relative in ((wide[..., 1], 4e-6), (narrow, CLOSE[dtype])):
        assert explorer.logsumexp(logits, out=out) is out
        check_sums(out, logits, relative=relative)
    assert (wide[..., 0] == 7).all()


def test_log_sums_of_infinities():
    x = torch.randn(5, 3000, device="cuda")
    x[0], x[1, 7], x[2, 2999], x[3, ::2] = -torch.inf, torch.inf, torch.nan, -torch.inf
    result = explorer.logsumexp(x)
    assert torch.allclose(result, torch.logsumexp(x, -1), equal_nan=True)
    assert service.service._loaded


def test_a_graph_repeats_the_bits_of_log_sums():
    x = torch.randn(256, 1000, device="cuda")
    expected, graph = explorer.logsumexp(x, scale=0.5), torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = explorer.logsumexp(x, scale=0.5)
    captured.zero_()
    for _ in range(100):
        graph.replay()
    assert torch.equal(captured, expected) and len(service.service._loaded) == 1


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("is_compiled", [False, True])
def test_gradients_of_log_sums_are_those_of_float64(dtype, is_compiled):
    torch._dynamo.reset()
    x = (3 * torch.randn(64, 5000, device="cuda")).to(dtype).requires_grad_()
    function = torch.compile(explorer.logsumexp, fullgraph=True) if is_compiled else None
    result = (function or explorer.logsumexp)(x, scale=0.5)
    grad = torch.randn_like(result)
    (ours,) = torch.autograd.grad(result, x, grad)
    wide = x.detach().double()
    truth = torch.softmax(0.5 * wide, -1) * 0.5 * grad.double().unsqueeze(-1)
    assert ours.dtype is dtype
    assert torch.allclose(ours.double(), truth, rtol=CLOSE[dtype] + 4e-6, atol=1e-9)
    assert {problem.op for problem, *_ in service.service._loaded} == {Op.LOGSUMEXP}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_pytorchs_own_log_sums_are_served(dtype):
    x = torch.randn(64, 5, 1000, device="cuda").to(dtype)
    pair, weights = torch.logsumexp(x, (0, 1)), torch.softmax(x, -1)
    with explorer.register_torch():
        for dim in (-1, 1, 0):
            result = torch.logsumexp(x, dim)
            assert result.dtype is dtype
            check_sums(result, x, dim, relative=max(4e-6, CLOSE[dtype]))
        assert len(kernels_of(dtype)) == 3
        assert torch.equal(torch.logsumexp(x, (0, 1)), pair)
        assert torch.logsumexp(torch.arange(6, device="cuda"), 0).dtype is torch.float32
        leaf, close = x.clone().requires_grad_(), 1e-5 if dtype is torch.float32 else 6e-2
        torch.logsumexp(leaf, -1, keepdim=True).sum().backward()
        assert torch.allclose(leaf.grad, weights, rtol=close, atol=1e-6)
    assert len(kernels_of(dtype)) == 3


# ------------------------------------------------------------------ log-probabilities


NUMBERS = {"lse": True, "entropy": True}
ALL = {**NUMBERS, "rank": True, "argmax": True}


def own_numbers(x, ids, scale=1.0):
    """Log-probabilities of ids (..., K), log-sum-exp and entropy by PyTorch's functions."""
    logs = torch.log_softmax(x * scale, -1)
    entropy = torch.special.entr(logs.exp()).sum(-1)
    return logs.gather(-1, ids.long()), torch.logsumexp(x * scale, -1), entropy


def check_numbers(got, x, ids, scale=1.0, *, relative=4e-6):
    """All results are those of float64, and our kernel's."""
    truth = own_numbers(x.double(), ids, scale)
    for mine, theirs in zip(got, truth, strict=False):
        off = (mine.double() - theirs.view(mine.shape)).abs()
        assert (off <= relative * theirs.view(mine.shape).abs().clamp_min(1)).all()
    if got.rank is not None:
        first = x.gather(-1, ids[..., :1].long())
        assert torch.equal(got.rank, (x > first).sum(-1).to(ids.dtype))
        assert torch.equal(x.gather(-1, got.argmax.long().unsqueeze(-1)).squeeze(-1), x.amax(-1))
    assert service.service._loaded and not service.service._refused


@pytest.mark.parametrize("dtype", list(CLOSE), ids=str)
@pytest.mark.parametrize("ids_dtype", [torch.int32, torch.int64], ids=str)
@pytest.mark.parametrize("shape", [(64, 1000), (3, 5, 7), (9,), (33, 50257), (2, 8, 151936)])
def test_log_probs_are_those_of_float64(shape, ids_dtype, dtype):
    x = torch.randn(shape, device="cuda", dtype=torch.float64).to(dtype)
    relative = 1e-12 if dtype is torch.float64 else 4e-6
    for count in (1, 3):
        ids = torch.randint(shape[-1], (*shape[:-1], count), device="cuda", dtype=ids_dtype)
        for scale in (1, 0.5):
            check_numbers(
                explorer.log_prob(x, ids, scale=scale, **ALL), x, ids, scale, relative=relative
            )
    one = explorer.log_prob(x, ids[..., 0]).log_prob
    assert one.shape == shape[:-1] and one.dtype is explorer.logsumexp(x).dtype


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_log_probs_of_slices_without_copies(dtype):
    logits = torch.randn(4, 33, 32000, device="cuda").to(dtype)
    ids = torch.randint(32000, (4, 33), device="cuda")
    for x, index in (
        (logits[:, :-1], ids[:, 1:]),
        (logits[:, 9:, 8:31008], ids[:, 9:] % 31000),
        (logits[:, ::3], ids[:, ::3].clone()),
        (logits.transpose(0, 1), ids.t()),
    ):
        explorer.log_prob(x, index, **ALL)
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        got, sums = explorer.log_prob(x, index, **ALL), explorer.logsumexp(x)
        assert torch.cuda.max_memory_allocated() - before < 2**18
        check_numbers(got, x, index.unsqueeze(-1))
        check_sums(sums, x)


def test_ids_that_are_no_columns_are_not_read():
    x = torch.randn(64, 1000, device="cuda", requires_grad=True)
    ids = torch.randint(1000, (64, 2), device="cuda")
    ids[:, 1] = torch.tensor([-1, 1000, 2**40, -(2**62)], device="cuda").repeat(16)
    got = explorer.log_prob(x, ids, **ALL).log_prob
    assert got[:, 1].isnan().all() and not got[:, 0].isnan().any()
    (mine,) = torch.autograd.grad(got.sum(), x)
    (theirs,) = torch.autograd.grad(own_numbers(x, ids[:, :1])[0].sum(), x)
    assert torch.allclose(mine, theirs, rtol=1e-5, atol=1e-7)
    assert (explorer.log_prob(x, ids[:, 1], rank=True).rank == -1).all()
    with pytest.raises(explorer.InvalidInput, match=r"index is -1 at \(0, 1\); .* from 0 to 999"):
        explorer.log_prob(x, ids, check=True)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("is_compiled", [False, True])
def test_gradients_of_log_probs_are_those_of_float64(dtype, is_compiled):
    torch._dynamo.reset()
    x = (60 + 3 * torch.randn(4, 9, 5000, device="cuda")).to(dtype).requires_grad_()
    ids = torch.randint(5000, (4, 9), device="cuda")
    wide = x.detach().double().requires_grad_()

    def loss(log_prob, lse, entropy):
        return (2 * log_prob - 0.1 * entropy + lse.square() * 1e-3).sum()

    def ours(x, ids):
        return loss(*explorer.log_prob(x[:, :-1], ids[:, 1:], scale=0.5, **NUMBERS)[:3])

    if is_compiled:
        ours = torch.compile(ours, fullgraph=True)
    with torch.autocast("cuda", dtype=torch.bfloat16):
        result = ours(x, ids)
    (mine,) = torch.autograd.grad(result, x)
    output, lse, entropy = own_numbers(wide[:, :-1], ids[:, 1:, None], 0.5)
    (truth,) = torch.autograd.grad(loss(output.squeeze(-1), lse, entropy), wide)
    close = 5e-6 if dtype is torch.float32 else 2**-8
    assert mine.dtype is dtype and torch.allclose(mine.double(), truth, rtol=close, atol=1e-7)
    assert {problem.op for problem, *_ in service.service._loaded} == {Op.LOG_PROB}


def test_a_graph_repeats_the_bits_of_log_probs_and_their_gradient():
    x = torch.randn(8, 33, 1000, device="cuda", requires_grad=True)
    ids = torch.randint(1000, (8, 33), device="cuda")

    def step():
        got = explorer.log_prob(x[:, :-1], ids[:, 1:], scale=0.5, **ALL)
        (grad,) = torch.autograd.grad((got.log_prob + got.entropy).sum(), x)
        return got.log_prob.detach(), got.rank, grad

    beside = torch.cuda.Stream()
    beside.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(beside):
        expected = step()
    torch.cuda.current_stream().wait_stream(beside)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = step()
    for _ in range(20):
        graph.replay()
    for mine, theirs in zip(captured, expected, strict=True):
        assert torch.equal(mine, theirs)
    assert len(service.service._loaded) == 1


# ------------------------------------------------------------------ other libraries


def test_arrays_of_cupy():
    cupy = pytest.importorskip("cupy")
    import cupyx.scipy.special

    for dtype, close in (("float32", 1e-5), ("float16", 1e-2), ("float64", 1e-12)):
        x = cupy.random.randn(3, 50, 200).astype(dtype)
        for axis in (-1, 1, 0):
            own = cupyx.scipy.special.softmax(x, axis)
            assert cupy.allclose(explorer.softmax(x, axis), own, rtol=close, atol=1e-6)
    for axis in (-1, 1, 0):
        own = cupy.log(cupy.exp(x).sum(axis))
        assert cupy.allclose(explorer.logsumexp(x, axis), own)
    got = explorer.log_prob(x[:, :-1], x.argmax(-1)[:, :-1], rank=True, argmax=True)
    assert cupy.allclose(got.log_prob, x.max(-1)[:, :-1] - explorer.logsumexp(x)[:, :-1])
    assert not got.rank.any() and (got.argmax == x.argmax(-1)[:, :-1]).all()
    x = cupy.random.randn(40, 300)[:, ::2]
    out = cupy.empty_like(x)
    assert explorer.log_softmax(x, out=out, scale=2.0) is out
    assert cupy.allclose(out, cupyx.scipy.special.log_softmax(2.0 * x, 1))
    assert service.service._loaded


JAX = """
import jax, jax.numpy as jnp, numpy, explorer
from explorer.runtime.service import service
explorer.set_options(wait=True)
for dtype in (jnp.float32, jnp.bfloat16):
    x = jax.random.normal(jax.random.key(0), (3, 50, 200)).astype(dtype)
    for axis in (-1, 1, 0):
        ours, own = explorer.softmax(x, axis), jax.nn.softmax(x.astype(jnp.float32), axis)
        assert isinstance(ours, jax.Array) and ours.dtype == dtype
        close = 1e-5 if dtype == jnp.float32 else 1.6e-2
        assert numpy.allclose(ours.astype(jnp.float32), own, rtol=close)
    ours = explorer.logsumexp(x)
    own = jax.nn.logsumexp(x.astype(jnp.float32), -1)
    assert ours.dtype == jnp.float32 and numpy.allclose(ours, own, rtol=1e-5)
    got = explorer.log_prob(x, x.argmax(-1), lse=True, rank=True, argmax=True)
    assert numpy.allclose(got.lse, own, rtol=1e-5) and (got.argmax == x.argmax(-1)).all()
    assert numpy.allclose(got.log_prob, x.max(-1) - own, rtol=1e-5) and not got.rank.any()
masked = explorer.softmax(x, mask="causal")
assert float(jnp.abs(jnp.triu(masked[0], 151)).max()) == 0
for function in (explorer.softmax, explorer.logsumexp, explorer.log_prob):
    told = (x, x.argmax(-1)) if function is explorer.log_prob else (x,)
    try:
        jax.jit(function)(*told)
    except TypeError as error:
        assert "jax.jit" in str(error) and function.__name__ in str(error)
    else:
        raise SystemExit("it was traced")
print(len(service._loaded), "loaded")
"""


def test_arrays_of_jax():
    pytest.importorskip("jax")
    env = {**os.environ, "XLA_PYTHON_CLIENT_PREALLOCATE": "false"}
    ran = subprocess.run(
        [sys.executable, "-c", JAX], env=env, capture_output=True, text=True, check=False
    )
    assert ran.returncode == 0, ran.stderr[-2000:]
    assert ran.stdout.split()[-2:] == ["11", "loaded"]


def test_an_emitted_library_is_called_with_pytorchs_memory(tmp_path):
    nvcc = shutil.which("nvcc") or pytest.skip("nvcc is not installed")
    (tmp_path / "softmax.cu").write_text(emit(Problem(64, 1000), Config()).source)
    command = [nvcc, "-std=c++17", "-arch=native", "-shared", "-Xcompiler", "-fPIC"]
    command += ["-DSOFTMAX_LIBRARY", "-o", "softmax.so", "softmax.cu"]
    subprocess.run(command, cwd=tmp_path, check=True)
    launch = ctypes.CDLL(str(tmp_path / "softmax.so")).softmax_f32_1000_launch
    x = torch.randn(64, 1000, device="cuda")
    y = torch.empty_like(x)
    addresses = (ctypes.c_void_p(t.data_ptr()) for t in (x, y))
    stream = ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)
    assert launch(*addresses, ctypes.c_longlong(64), stream) == 0
    assert torch.allclose(y, torch.softmax(x, -1), rtol=1e-5, atol=0)
