"""The programs that `emit --for` writes, run as they stand on a GPU."""

import importlib.util
import os
import shutil
import subprocess
import sys
from dataclasses import replace

import pytest
from wrapper_cases import CASES, GATHERING, MULTIPLY_ADDS, SIMPLE, TENSOR_CORES

from explorer.codegen.units import emit
from explorer.devices.cuda.program import device_spec
from explorer.devices.names import device_index
from explorer.export.programs import FRAMEWORKS, program_for
from explorer.model.element import DType
from explorer.model.errors import InvalidInput
from explorer.model.problem import Problem
from explorer.ops import Op
from explorer.space import Space


def of_sample(framework, number):
    """Each case is of the sample with one framework, and exhaustive with the others."""
    is_sampled = number % len(FRAMEWORKS) == FRAMEWORKS.index(framework)
    return pytest.param(framework, number, marks=() if is_sampled else pytest.mark.exhaustive)


PROGRAMS = [of_sample(name, number) for name in FRAMEWORKS for number in range(len(CASES))]


def run_in(folder, *command):
    """Run a program; JAX is to leave memory to other tests."""
    environment = {**os.environ, "XLA_PYTHON_CLIENT_PREALLOCATE": "false"}
    return subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, check=False
    )


@pytest.mark.parametrize("framework, number", PROGRAMS)
def test_a_program_runs_as_it_stands(framework, number, tmp_path):
    problem, config = CASES[number]
    if framework != "cpp" and importlib.util.find_spec(framework) is None:
        pytest.skip(f"{framework} is not installed")
    if framework != "cupy" and shutil.which("nvcc") is None:
        pytest.skip("nvcc is not installed")
    if not Space(problem, device_spec(device_index("cuda:0"))).is_legal(config):
        pytest.skip("the GPU lacks what this kernel needs")
    variant = emit(problem, config)
    try:
        program = program_for(framework, variant, tmp_path / "k.cu")
    except InvalidInput as refused:
        pytest.skip(str(refused))
    (tmp_path / "k.cu").write_text(variant.source)
    program.path.write_text(program.text)
    command = [sys.executable, str(program.path)]
    if framework == "cpp":
        built = run_in(
            tmp_path, "nvcc", "-std=c++17", "-arch=native", "-o", "main", program.path.name
        )
        assert built.returncode == 0, built.stderr
        command = [str(tmp_path / "main")]
    ran = run_in(tmp_path, *command)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert "largest relative error" in ran.stdout


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_a_program_finds_a_wrong_kernel(framework, tmp_path):
    if framework != "cpp" and importlib.util.find_spec(framework) is None:
        pytest.skip(f"{framework} is not installed")
    if framework != "cupy" and shutil.which("nvcc") is None:
        pytest.skip("nvcc is not installed")
    source = emit(*CASES[0]).source
    assert source.count("1.0f / ") == 1
    (tmp_path / "k.cu").write_text(source.replace("1.0f / ", "1.01f / "))
    program = program_for(framework, emit(*CASES[0]), tmp_path / "k.cu")
    program.path.write_text(program.text)
    command = [sys.executable, str(program.path)]
    if framework == "cpp":
        words = ("nvcc", "-std=c++17", "-arch=native", "-o", "main", program.path.name)
        assert run_in(tmp_path, *words).returncode == 0
        command = [str(tmp_path / "main")]
    ran = run_in(tmp_path, *command)
    assert ran.returncode == 1 and "1.0e-02" in ran.stdout, ran.stdout + ran.stderr


JITTED = """
import jax, jax.numpy as jnp, k_jax
x = jax.random.normal(jax.random.key(0), (k_jax.ROWS, k_jax.COLS))
jitted = jax.jit(lambda x: 2 * k_jax.softmax(x + 1))
assert jnp.allclose(jitted(x), 2 * jax.nn.softmax(x, 1), rtol=1e-5)
"""


def test_jax_calls_the_kernel_inside_of_jit(tmp_path):
    pytest.importorskip("jax")
    if shutil.which("nvcc") is None:
        pytest.skip("nvcc is not installed")
    variant = emit(*CASES[0])
    (tmp_path / "k.cu").write_text(variant.source)
    program = program_for("jax", variant, tmp_path / "k.cu")
    program.path.write_text(program.text)
    ran = run_in(tmp_path, sys.executable, "-c", JITTED)
    assert ran.returncode == 0, ran.stderr[-2000:]


DIFFERENTIATED = """
import sys, torch, k_torch
op, name, device = sys.argv[1:]
dtype, function = getattr(torch, name), getattr(k_torch, op)
torch.set_default_device(device)
torch.manual_seed(0)
x = torch.randn(k_torch.SHAPE, dtype=dtype, requires_grad=True)
ids = torch.randint(0, k_torch.COLS, (k_torch.ROWS,))
factor = torch.rand(k_torch.ROWS)
arrays = {"log_prob": [x, ids], "cross_entropy": [x, ids], "multiply_rows": [x, factor]}
arrays = arrays.get(op, [x])
wide = x.detach().double().requires_grad_()
logs = wide.log_softmax(1)
taken = logs.gather(1, ids[:, None])[:, 0]
expected = {"softmax": logs.exp(), "log_softmax": logs, "logsumexp": wide.logsumexp(1)}
expected["multiply_rows"] = wide * factor.double()[:, None]
expected = expected.get(op, taken if op == "log_prob" else -taken)
grad = torch.randn_like(expected).to(torch.float32 if expected.ndim == 1 else dtype)
(expected,) = torch.autograd.grad(expected, wide, grad.double())

def gradient(function):
    result = function(*arrays)
    return torch.autograd.grad(result[0] if isinstance(result, tuple) else result, x, grad)[0]

def check(found):
    torch.cuda.synchronize(device)
    assert found.dtype is dtype and found.device == x.device
    error = (found - expected).abs().max() / expected.abs().max()
    assert error < 4 * torch.finfo(dtype).eps, error

stream = torch.cuda.Stream(device)
stream.wait_stream(torch.cuda.current_stream(device))
check(gradient(function))
check(gradient(torch.compile(function, fullgraph=True)))
with torch.cuda.stream(stream):
    found = gradient(function)
check(found)
with torch.cuda.device(device):
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        found = gradient(function)
    found.zero_()
    graph.replay()
check(found)
for mode in (torch.no_grad(), torch.inference_mode()):
    with mode:
        result = function(*arrays)
        assert not (result[0] if isinstance(result, tuple) else result).requires_grad
"""

ATTENDED = """
import sys, torch, k_torch
device = sys.argv[1]
torch.set_default_device(device)
torch.manual_seed(0)
query = 3 * torch.randn(3, 8, 128, dtype=torch.bfloat16)
room = torch.randn(2, 3, 512, 2, 128, dtype=torch.bfloat16)

def check(found, keys, lengths):
    wide = room[:, :, :keys].double().transpose(2, 3).repeat_interleave(4, 2)
    scores = (wide[0] @ query.double()[..., None])[..., 0] / 128**0.5
    hidden = torch.arange(keys) >= lengths[:, None, None]
    shares = scores.masked_fill(hidden, float("-inf")).softmax(2).masked_fill(hidden, 0)
    expected = (shares[:, :, None] @ wide[1])[:, :, 0]
    torch.cuda.synchronize(device)
    assert found.device == query.device and (found - expected).abs().max() < 0.03

compiled = torch.compile(k_torch.decode_attention, fullgraph=True, dynamic=True)
for keys in (1, 77, 512):
    key, value = room[:, :, :keys]
    lengths = torch.tensor([0, keys, (keys + 1) // 2])
    for function in (k_torch.decode_attention, compiled):
        check(function(query, key, value, lengths), keys, lengths)
lengths = torch.tensor([0, 9, 511], dtype=torch.int32)
with torch.cuda.device(device):
    k_torch.decode_attention(query, *room, lengths)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        found = k_torch.decode_attention(query, *room, lengths)
        lengths += 1
    for _ in range(2):
        before = lengths.clone()
        graph.replay()
        check(found, 512, before)
"""


@pytest.mark.parametrize("config", [MULTIPLY_ADDS, TENSOR_CORES], ids=["fma", "mma"])
def test_pytorchs_attention_serves_a_cache_that_grows(config, tmp_path):
    """Of any number of keys, compiled, and in a CUDA graph, on the last of all GPUs."""
    torch = pytest.importorskip("torch")
    if shutil.which("nvcc") is None:
        pytest.skip("nvcc is not installed")
    sizes = {"group": 4, "key_heads": 2, "layout": "NHD", "mask": "lengths"}
    variant = emit(Problem(64, 1000, DType.BF16, Op.DECODE_ATTENTION, **sizes), config)
    (tmp_path / "k.cu").write_text(variant.source)
    program = program_for("torch", variant, tmp_path / "k.cu")
    program.path.write_text(program.text)
    device = f"cuda:{torch.cuda.device_count() - 1}"
    ran = run_in(tmp_path, sys.executable, "-c", ATTENDED, device)
    assert ran.returncode == 0, ran.stderr[-2000:]


SUMMED = {"also": "lse,maximum,log_sum"}
"""Results of a loss besides, which here no gradient comes from."""


@pytest.mark.parametrize("dtype", [DType.F32, DType.BF16, DType.F16], ids=str)
@pytest.mark.parametrize(
    "op, told",
    [
        (Op.SOFTMAX, {}),
        (Op.LOG_SOFTMAX, {}),
        (Op.LOGSUMEXP, {}),
        (Op.LOG_PROB, {}),
        (Op.CROSS_ENTROPY, {}),
        (Op.CROSS_ENTROPY, SUMMED),
        (Op.MULTIPLY_ROWS, {}),
    ],
)
def test_pytorch_differentiates_the_operator(op, told, dtype, tmp_path):
    """Eagerly, compiled, on another stream, in a CUDA graph, and on the last of all GPUs."""
    torch = pytest.importorskip("torch")
    if shutil.which("nvcc") is None:
        pytest.skip("nvcc is not installed")
    problem = Problem(64, 1000, dtype, op, **told)
    simple = replace(SIMPLE, exp="expf") if problem.is_product else SIMPLE
    variant = emit(problem, GATHERING if problem.ids_dtype else simple)
    (tmp_path / "k.cu").write_text(variant.source)
    program = program_for("torch", variant, tmp_path / "k.cu")
    program.path.write_text(program.text)
    device = f"cuda:{torch.cuda.device_count() - 1}"
    told = (str(op), dtype.array_name, device)
    ran = run_in(tmp_path, sys.executable, "-c", DIFFERENTIATED, *told)
    assert ran.returncode == 0, ran.stderr[-2000:]
