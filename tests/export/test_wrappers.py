"""Programs that run an emitted kernel from a framework, as far as that goes without a GPU."""

import ast
import re
import shutil
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest
from wrapper_cases import CASES

from explorer.codegen.units import emit
from explorer.export.emission import default_path, write_beside
from explorer.export.programs import FRAMEWORKS, program_for
from explorer.model.element import DType
from explorer.model.errors import InvalidInput
from explorer.model.gpu_spec import known_gpu
from explorer.model.problem import Mask
from explorer.ops import OPERATORS, Op
from explorer.space import Space

H200 = known_gpu("NVIDIA H200")
PYTHON = [framework for framework in FRAMEWORKS if framework != "cpp"]
NVCC = shutil.which("nvcc")
needs_nvcc = pytest.mark.skipif(NVCC is None, reason="nvcc is not installed")


@cache
def emitted(number):
    problem, config = CASES[number]
    assert Space(problem, H200).broken_rule(config) is None
    return emit(problem, config)


def program(framework, number, folder=Path()):
    """The program of a case, written with the kernel into a folder; skips one that is refused."""
    variant, source = emitted(number), folder / "k.cu"
    try:
        made = program_for(framework, variant, source)
    except InvalidInput as refused:
        pytest.skip(str(refused))
    if folder != Path():
        source.write_text(variant.source)
        made.path.write_text(made.text)
    return made


def test_the_cases_are_of_every_kind():
    problems = [problem for problem, _ in CASES]
    assert {p.op for p in problems} == set(Op)
    results = {result.name for p in problems for result in p.results}
    assert results == {result.name for op in Op for result in OPERATORS[op].results}
    assert {p.mask for p in problems} == set(Mask)
    assert {p.dtype for p in problems} == set(DType)
    configs = [config for _, config in CASES]
    assert {c.launches for c in configs} == {"one", "two", "two-overlapped", "three"}
    assert {"scale", "inner", "in_place", "ids_per_row", "ids_dtype", "ids_stride"} <= {
        name for p in problems for name in p.as_dict()
    }


@pytest.mark.parametrize("framework", PYTHON)
def test_python_is_python_and_formatted(framework, tmp_path):
    """At ruff's own width of lines, and at this project's."""
    written = 0
    for number in range(len(CASES)):
        try:
            made = program_for(framework, emitted(number), default_path(emitted(number)))
        except InvalidInput:
            continue
        ast.parse(made.text, feature_version=(3, 11))
        (tmp_path / f"{number}{made.path.name}").write_text(made.text)
        written += 1
    assert written >= len(CASES) - 7
    for width in ("88", "100"):
        command = [sys.executable, "-m", "ruff", "format", "--isolated", "--check"]
        command += ["--line-length", width, "--diff", str(tmp_path)]
        ran = subprocess.run(command, capture_output=True, text=True, check=False)
        assert ran.returncode == 0, ran.stdout + ran.stderr


@pytest.mark.parametrize("framework", PYTHON)
def test_python_uses_the_names_that_it_defines(framework, tmp_path):
    for number in range(len(CASES)):
        try:
            made = program_for(framework, emitted(number), Path("softmax.cu"))
        except InvalidInput:
            continue
        (tmp_path / f"{number}{made.path.name}").write_text(made.text)
    command = [sys.executable, "-m", "ruff", "check", "--isolated", "--select", "F", str(tmp_path)]
    ran = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stdout


@pytest.mark.parametrize(
    ("what", "says"),
    [
        (lambda p, c: c.launches == "two-overlapped", "cannot launch a kernel that overlaps"),
        (lambda p, c: c.cluster == 16, "cannot launch clusters of 16 blocks"),
        (lambda p, c: p.dtype is DType.BF16, "functions know no bf16"),
    ],
)
def test_what_cupy_cannot_do_is_said_in_a_sentence(what, says):
    for number in (n for n, case in enumerate(CASES) if what(*case)):
        with pytest.raises(InvalidInput, match=says):
            program_for("cupy", emitted(number), Path("k.cu"))


@pytest.mark.parametrize("name", ["k", "k.cpp", 'a".cu', "a\\.cu", "a\n.cu", "\udcff.cu"])
@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_names_that_no_program_can_build_are_refused(framework, name):
    with pytest.raises(InvalidInput, match="name an --output"):
        program_for(framework, emitted(0), Path(name))


def test_another_text_is_not_replaced_unless_forced(tmp_path):
    path = tmp_path / "k_torch.py"
    assert write_beside(path, "x = 1\n") == "written"
    assert write_beside(path, "x = 1\n") == "already there, unchanged"
    with pytest.raises(InvalidInput, match="force=True"):
        write_beside(path, "x = 2\n")
    assert path.read_text() == "x = 1\n"
    assert write_beside(path, "x = 2\n", force=True) == "written over"


# ------------------------------------------------------------------ what nvcc makes of them


def without_warnings(source, folder):
    """Build `main` in a folder as the comment of a program says, and stop at any warning."""
    command = [NVCC, "-std=c++17", "-arch=sm_90", "-Werror=all-warnings", "-Xcompiler", "-Wall"]
    command += ["-o", "main", source]
    built = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    assert built.returncode == 0, built.stderr


def wants_a_gpu(folder, *told):
    """Run `main` in a folder, which gets as far as a program can without a GPU."""
    environment = {"CUDA_VISIBLE_DEVICES": ""}
    command = ["./main", *told]
    ran = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)
    assert ran.returncode == 2 and "bytes on a GPU: " in ran.stderr


@cache
def included(number):
    """The lines of a kernel's file, and of its program, that include others."""
    texts = emitted(number).source, program("cpp", number).text
    kernel, around = (re.findall(r"^ *#include.*", text, re.MULTILINE) for text in texts)
    assert texts[1].count("#define SOFTMAX_NO_MAIN\n" + around[0]) == 1
    return (*kernel, *around)


def unit_of(numbers):
    """One unit of several programs, of which `main` runs the one that it is told the number of.

    Each program stands in a namespace. So does each kernel already, but several kernels share the
    shorter name of it, which is made their own.
    """
    includes = [line for line in included(numbers[0]) if "<" in line]
    kernels, programs, cases = [], [], []
    for number in numbers:
        (name,) = set(re.findall(r"using namespace (\w+);", program("cpp", number).text))
        own = f"#define {name} case_{number}", f"#undef {name}"
        kernels += [own[0], f'#include "{number}/k.cu"', own[1]]
        opened, around = f"namespace program_{number} {{", f'#include "{number}/k_main.cu"'
        programs += [own[0], opened, around, "}", own[1]]
        cases += [f"case {number}: return program_{number}::main(0, nullptr);"]
    chosen = ["int main(int, char** told) {", "switch (std::atoi(told[1])) {", *cases, "}"]
    lines = ["#define SOFTMAX_NO_MAIN", *kernels, *includes, *programs, *chosen, "return 1;", "}"]
    return "\n".join([*lines, ""])


@pytest.fixture
def together(once):
    """A function: the folder where all programs that include what this one does were built once."""

    def folder_of(number):
        like = [n for n in range(len(CASES)) if included(n) == included(number)]

        def fill(folder):
            for other in like:
                (folder / str(other)).mkdir()
                program("cpp", other, folder / str(other))
            (folder / "all.cu").write_text(unit_of(like))
            without_warnings("all.cu", folder)

        return once(f"programs-like-{like[0]}", fill)

    return folder_of


@needs_nvcc
@pytest.mark.exhaustive
@pytest.mark.parametrize("number", range(len(CASES)))
def test_cpp_compiles_without_warnings(number, together):
    """Together with others, which include the same files: nothing is there for it by chance."""
    wants_a_gpu(together(number), str(number))


@needs_nvcc
@pytest.mark.exhaustive
@pytest.mark.parametrize("dtype", [DType.F32, DType.F16, DType.BF16], ids=str)
def test_cpp_compiles_alone(dtype, tmp_path):
    """One of the programs that include the same files, for each choice of these."""
    first = {included(number): number for number in reversed(range(len(CASES)))}.values()
    assert len(first) == 3
    (number,) = (n for n in first if CASES[n][0].dtype is dtype)
    without_warnings(program("cpp", number, tmp_path).path.name, tmp_path)
    wants_a_gpu(tmp_path)


@needs_nvcc
@pytest.mark.exhaustive
@pytest.mark.parametrize("number", range(len(CASES)))
def test_the_handler_of_jax_compiles(number, tmp_path):
    jax = pytest.importorskip("jax", reason="the headers of XLA come with JAX")
    made = program("jax", number, tmp_path)
    text = made.text.split('HANDLER = r"""\n')[1].split('"""')[0]
    (tmp_path / "handler.cu").write_text(text)
    command = [NVCC, "-std=c++17", "-arch=sm_90", "-w", "-shared", "-Xcompiler", "-fPIC"]
    command += [f"-I{jax.ffi.include_dir()}", "-o", "handler.so", "handler.cu"]
    built = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert built.returncode == 0, built.stderr
