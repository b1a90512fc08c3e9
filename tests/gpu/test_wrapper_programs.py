"""The programs that `emit --for` writes, run as they stand on a GPU."""

import importlib.util
import os
import shutil
import subprocess
import sys

import pytest
from wrapper_cases import CASES

from explorer.codegen.units import emit
from explorer.devices.cuda.program import device_spec
from explorer.devices.names import device_index
from explorer.export.programs import FRAMEWORKS, program_for
from explorer.model.errors import InvalidInput
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
