"""Kernels on disk: what `make` leaves there `find` returns, and nothing else."""

import hashlib
import json
import os
import shutil
import subprocess
import sys
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from explorer.choose import config_for
from explorer.evaluate.without_search import without_search
from explorer.model.accuracy import Accuracy
from explorer.model.element import DType
from explorer.model.gpu_spec import known_gpu
from explorer.model.problem import Mask, Problem, inputs, output, scalars
from explorer.model.tuned_table import TunedTable, read_table, write_table
from explorer.ops import Op
from explorer.runtime import kernels
from explorer.runtime.kernels import find, make, variant_on

H200 = known_gpu("NVIDIA H200")
PROBLEM = Problem(64, 96, DType.F16)
OTHER = Problem(64, 100, DType.F16, Op.LOG_SOFTMAX)


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    """A folder of kernels that is this test's own."""
    monkeypatch.setenv("EXPLORER_CACHE_DIR", str(tmp_path))
    return tmp_path


@pytest.fixture(scope="module")
def kept(tmp_path_factory):
    """A folder of compiled kernels that has the problem's."""
    whole = tmp_path_factory.mktemp("kept")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("EXPLORER_CACHE_DIR", str(whole))
        make(PROBLEM, H200)
    return whole / "kernels"


@pytest.fixture
def made(kept, folder):
    """What `make` returns of the problem, where the compiler was asked before."""
    shutil.copytree(kept, folder / "kernels")
    return make(PROBLEM, H200)


@pytest.fixture
def no_compiler(monkeypatch):
    def fail(*_):
        raise AssertionError("something was compiled")

    return lambda: monkeypatch.setattr("explorer.compile.compiler.compile_source", fail)


def said(folder):
    """The one file of a problem."""
    (path,) = (folder / "problems").rglob("*.json")
    return path


def archive(folder):
    """The one compiled kernel."""
    (path,) = (folder / "kernels").rglob("*.zip")
    return path


def rewrite(path, change):
    """Change what a file says, and let it say that it is whole."""
    kept = json.loads(path.read_text().split("\n")[1])
    change(kept)
    text = json.dumps(kept)
    path.write_text(f"{kernels._digest(path, text)}\n{text}")


# ------------------------------------------------------------------ found again


def test_nothing_is_found_before_it_is_made():
    assert find(PROBLEM, H200) is None


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    "problem",
    [
        PROBLEM,
        Problem(64, 4096),
        Problem(12, 7, DType.F64, scale=1.0, inner=4),
        Problem(64, 64, DType.BF16, mask=Mask.CAUSAL, mask_rows=32, out_dtype=DType.F32),
        Problem(2, 200_000),
        Problem(64, 96, op=Op.SOFTMAX_BACKWARD),
    ],
    ids=str,
)
def test_what_is_made_is_found(problem, no_compiler):
    made = make(problem, H200)
    no_compiler()
    assert find(problem, H200) == made
    assert make(problem, H200) == made  # and the compiler is not asked again
    variant = variant_on(H200, problem, config_for(problem, H200))
    assert (made.launches, made.scratch_bytes) == (variant.launches, variant.scratch_bytes)
    assert made.alignment in (1, 2, 4, 8, 16, 32)


@pytest.mark.parametrize("problem", [PROBLEM, Problem(1, 200_000), Problem(9, 7, inner=3)], ids=str)
def test_a_launch_names_nothing_that_a_plan_has_not(problem):
    named = {name for launch in make(problem, H200).launches for name in launch.arguments}
    arrays = {operand.name for operand in (*inputs(problem), output(problem))}
    assert named <= {*arrays, "scratch", *scalars(problem)}
    assert ("scratch" in named) == bool(make(problem, H200).scratch_bytes)


def test_the_value_of_a_scale_does_not_matter(no_compiler):
    made = make(replace(PROBLEM, scale=1.0), H200)
    no_compiler()
    assert find(replace(PROBLEM, scale=0.125), H200) == made
    assert find(PROBLEM, H200) is None  # a kernel without a scale is another


def test_a_problem_of_another_kind_is_not_found():
    make(PROBLEM, H200)
    for other in (
        replace(PROBLEM, rows=65),
        replace(PROBLEM, op=Op.LOG_SOFTMAX),
        replace(PROBLEM, out_dtype=DType.F32),
        replace(PROBLEM, mask=Mask.LENGTHS),
        replace(PROBLEM, input_stride=128),
        replace(PROBLEM, in_place=True),
    ):
        assert find(other, H200) is None


def test_another_gpu_has_another_file(folder):
    make(PROBLEM, H200)
    smaller = replace(H200, sm_count=66)
    assert find(PROBLEM, smaller) is None
    assert find(PROBLEM, known_gpu("NVIDIA A100-SXM4-80GB")) is None
    make(PROBLEM, smaller)
    assert len(list((folder / "problems").rglob("*.json"))) == 2


def test_a_kernel_of_batch_invariance_has_another_file():
    make(PROBLEM, H200)
    assert find(PROBLEM, H200, batch_invariant=True) is None
    assert make(PROBLEM, H200, batch_invariant=True)
    assert find(PROBLEM, H200, batch_invariant=True)


def test_a_changed_package_finds_nothing_of_the_old_one(monkeypatch):
    made = make(PROBLEM, H200)
    monkeypatch.setattr(kernels, "_installed", lambda: "another")
    assert find(PROBLEM, H200) is None
    assert make(PROBLEM, H200) == made


def test_a_cache_that_cannot_be_written_is_no_error(folder, monkeypatch):
    blocked = folder / "file"
    blocked.write_text("in the way")
    monkeypatch.setenv("EXPLORER_CACHE_DIR", str(blocked))
    assert make(PROBLEM, H200).cubin
    assert find(PROBLEM, H200) is None


# ------------------------------------------------------------------ damage


def swap_cubin(folder):
    """Another kernel's machine code, whole, under this kernel's key."""
    from explorer.compile.compiler import KernelCache, _digest

    cache, path = KernelCache(), archive(folder)
    kept = cache.load(path.stem)
    foreign = bytearray(kept.cubin)
    foreign[-1] ^= 1
    cache.store(path.stem, replace(kept, cubin=bytes(foreign)))
    assert cache.load(path.stem) is not None and _digest(path.stem, kept.cubin)


DAMAGE = {
    "no file of the problem": lambda folder: said(folder).unlink(),
    "an empty file": lambda folder: said(folder).write_text(""),
    "half of it": lambda folder: said(folder).write_text(said(folder).read_text()[:150]),
    "binary": lambda folder: said(folder).write_bytes(b"\xff\xfe\0" * 99),
    "a list": lambda folder: said(folder).write_text("[]"),
    "too long": lambda folder: said(folder).write_text(said(folder).read_text() + " " * 2**16),
    "another number": lambda folder: said(folder).write_text(
        said(folder).read_text().replace('"block": ', '"block": 1')
    ),
    "no compiled kernel": lambda folder: archive(folder).unlink(),
    "half a compiled kernel": lambda folder: archive(folder).write_bytes(
        archive(folder).read_bytes()[:500]
    ),
    "a bit of the machine code": lambda folder: flip(archive(folder), 1700),
    "a foreign cubin": swap_cubin,
}


def flip(path, place):
    """Flip a bit of compressed machine code.

    Its first bytes will not do: they are zeros that repeat earlier ones, from wherever a bit says.
    """
    content = bytearray(path.read_bytes())
    content[place] ^= 1
    path.write_bytes(content)


@pytest.mark.sampled(4)
@pytest.mark.parametrize("damage", DAMAGE.values(), ids=DAMAGE)
def test_a_damaged_kernel_is_not_found_and_made_anew(damage, folder, made):
    damage(folder)
    assert find(PROBLEM, H200) is None
    assert make(PROBLEM, H200).launches == made.launches
    assert find(PROBLEM, H200) is not None


def test_the_file_of_another_problem_is_not_taken_for_this_ones(folder):
    make(PROBLEM, H200)
    path = said(folder)
    foreign = make(OTHER, H200)
    (other,) = set((folder / "problems").rglob("*.json")) - {path}
    path.write_bytes(other.read_bytes())
    assert find(OTHER, H200) == foreign
    assert find(PROBLEM, H200) is None
    assert make(PROBLEM, H200).cubin != foreign.cubin
    assert find(PROBLEM, H200) is not None


@pytest.mark.parametrize(
    "change",
    [
        lambda kept: kept["launches"][0].update(grid="64"),
        lambda kept: kept["launches"][0].update(block=1.5),
        lambda kept: kept["launches"][0].update(arguments="input"),
        lambda kept: kept["launches"][0].update(arguments=[1, 2]),
        lambda kept: kept["launches"][0].update(overlaps="yes"),
        lambda kept: kept["launches"][0].update(more=1),
        lambda kept: kept["launches"][0].pop("entry"),
        lambda kept: kept.update(launches={}),
        lambda kept: kept.update(scratch_bytes=None),
        lambda kept: kept.update(scratch_bytes=-1),
        lambda kept: kept.update(alignment="16"),
        lambda kept: kept.update(kernel=7),
        lambda kept: kept.update(kernel="../../etc/passwd"),
        lambda kept: kept.update(cubin=None),
        lambda kept: kept.clear(),
    ],
)
def test_fields_of_wrong_types_are_not_found(change, folder, made):
    rewrite(said(folder), lambda kept: None)
    assert find(PROBLEM, H200) == made
    rewrite(said(folder), change)
    assert find(PROBLEM, H200) is None
    make(PROBLEM, H200)
    assert find(PROBLEM, H200) == made


def test_a_pipe_in_a_files_place_does_not_stop_the_program(folder):
    make(PROBLEM, H200)
    path = said(folder)
    path.unlink()
    os.mkfifo(path)
    assert find(PROBLEM, H200) is None
    make(PROBLEM, H200)
    assert find(PROBLEM, H200) is not None


# ------------------------------------------------------------------ a new process

FINDER = """
import sys
from explorer.model.element import DType
from explorer.model.gpu_spec import GpuSpec
from explorer.model.problem import Problem
from explorer.runtime.kernels import find
import hashlib, json
gpu = GpuSpec.from_dict(json.loads(sys.argv[1]))
ready = find(Problem(64, 96, DType.F16), gpu)
heavy = {"jinja2", "cuda.bindings.nvrtc", "optuna", "typer", "explorer.codegen.units",
         "explorer.space", "explorer.ptx_emulator"}
print(hashlib.sha256(ready.cubin).hexdigest(), sorted(heavy & set(sys.modules)),
      "nvrtc" in open("/proc/self/maps").read())
"""


def test_a_process_that_finds_a_kernel_needs_neither_templates_nor_compiler():
    made = make(PROBLEM, H200)
    ran = subprocess.run(
        [sys.executable, "-c", FINDER, json.dumps(asdict(H200))],
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.split() == [hashlib.sha256(made.cubin).hexdigest(), "[]", "False"]


# ------------------------------------------------------------------ tuned tables

TABLE = Path(kernels.__file__).parents[2] / "studies" / "tuned" / "nvidia-h200.json"


def worth_tuning():
    """The problem of the committed table whose best config gains most over the heuristic's."""
    return max(read_table(TABLE).problems, key=lambda one: one.gain or 0)


def test_a_tuned_problem_has_its_tables_kernel(folder):
    one = worth_tuning()
    taken = without_search(replace(one.problem, scale=2.0), H200, tables=[TABLE])
    assert taken.config == one.best.config != config_for(one.problem, H200)
    assert taken.origin == "the best config of the tuned table nvidia-h200"
    assert without_search(one.problem, H200) == replace(taken, table=TABLE)  # the GPU's own
    tuned = make(one.problem, H200, tables=[TABLE])
    plain = make(one.problem, H200, tables=[])
    assert tuned.cubin != plain.cubin
    assert find(one.problem, H200, tables=[TABLE]) == tuned == make(one.problem, H200)
    assert find(one.problem, H200, tables=[]) == plain


def test_a_table_answers_neither_for_other_problems_nor_for_other_requirements():
    one = worth_tuning()
    other = replace(one.problem, rows=one.problem.rows + 1)
    h100 = known_gpu("NVIDIA H100 80GB HBM3")
    for taken in (
        without_search(other, H200, tables=[TABLE]),
        without_search(one.problem, h100, tables=[TABLE]),
        without_search(one.problem, H200, tables=[]),
        without_search(one.problem, H200, tables=[TABLE], batch_invariant=True),
        without_search(one.problem, H200, tables=[TABLE], accuracy=Accuracy.STRICT),
    ):
        assert taken.table is None and taken.origin == "the heuristic's config"


def test_a_table_of_another_version_does_not_answer(tmp_path):
    one = worth_tuning()
    older = replace(one, environment=replace(one.environment, template_digest="0123456789ab"))
    path = tmp_path / "mine.json"
    for entry, answers in ((one, True), (older, False)):
        write_table(TunedTable(H200, (entry,)), path)
        os.utime(path, ns=(0, int(answers)))  # two tables of one size, written at once
        assert (without_search(one.problem, H200, tables=[path]).table == path) is answers


def test_a_config_that_the_gpu_cannot_launch_is_left_to_the_heuristic():
    one = worth_tuning()
    small = replace(H200, threads_per_sm=32, shared_per_block_bytes=16)
    assert without_search(one.problem, small, tables=[TABLE]).table is None
