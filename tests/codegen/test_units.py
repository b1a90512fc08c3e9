"""Units: the one that provides a name is taken, and what nobody calls is left out."""

import re
import shlex
import shutil
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
from space_sample import space_sample

from explorer.codegen.units import assembled, constants, emit, library, words
from explorer.model.config import Config
from explorer.model.errors import ExplorerError
from explorer.model.problem import Problem

REPOSITORY = Path(__file__).parents[2]
PROBLEM = Problem(64, 1024)


@pytest.fixture
def units():
    """The library, whose providers are as before after a test."""
    read = library()
    before = {name: list(found) for name, found in read.providers.items()}
    yield read
    read.providers.clear()
    read.providers.update(before)


def test_a_name_that_two_units_provide_is_an_error(units):
    units.providers["load_vector"] *= 2
    with pytest.raises(ExplorerError, match="2 units provide load_vector for softmax f32 64x1024"):
        assembled(PROBLEM, Config())


def test_a_name_that_no_unit_provides_is_an_error(units):
    units.providers["reduce_row"] = []
    with pytest.raises(ExplorerError, match="0 units provide reduce_row"):
        assembled(PROBLEM, Config())


@pytest.mark.sampled(12)
@pytest.mark.parametrize("kernel", space_sample(), ids=lambda kernel: kernel.kind)
def test_every_function_that_is_emitted_is_called(kernel):
    """Kernels are called by the host; every other function by one of them."""
    program = assembled(kernel.problem, kernel.config)
    for unit, text in program.device.texts.items():
        others = [t for u, t in program.device.texts.items() if u is not unit]
        called = words("\n".join([*others, *program.host.values()]))
        assert "__global__" in text or called & set(unit.names), f"nothing calls {unit}"


KERNEL = re.compile(r"__global__ void[^;{]*?\w+_kernel\(([^{]*)\) \{(.*?)\n\}\n", re.S)
"""The parameters and the body of each kernel."""


@pytest.mark.sampled(4)
@pytest.mark.parametrize("kernel", space_sample(), ids=lambda kernel: kernel.kind)
def test_every_parameter_of_a_kernel_is_read(kernel):
    """Launches that follow one another have the same parameters: one of them reads each."""
    found = KERNEL.findall(emit(kernel.problem, kernel.config).code)
    assert found
    read = set(re.findall(r"\w+", "\n".join(body for _, body in found)))
    for parameters, _ in found:
        names = {parameter.split()[-1].lstrip("*&") for parameter in parameters.split(",")}
        assert names <= read, names


@pytest.mark.sampled(4)
@pytest.mark.parametrize("kernel", space_sample(), ids=lambda kernel: kernel.kind)
def test_every_constant_is_used_by_code(kernel):
    """The header's comment may name a constant; that alone would be a warning of the compiler."""
    source = emit(kernel.problem, kernel.config).source
    used = Counter(re.findall(r"\bk[A-Z]\w*", re.sub("//.*", "", source)))
    assert [name for name, times in used.items() if times == 1] == []


def test_names_in_comments_and_of_members_are_not_calls():
    assert words("a(b.c, d->e);  // f(g)") == {"a", "b", "d"}


def test_constants_that_nothing_names_are_left_out():
    block = (
        "constexpr int kA = 1;\n// of b\nconstexpr int kB = 2 * kA;\nconstexpr int kC = 3;\n"
        '\nstatic_assert(kA < kB, "");\nstatic_assert(kC < kA, "");\n'
    )
    kept = constants(block, {"kB"})
    assert kept.splitlines() == [
        "constexpr int kA = 1;",
        "// of b",
        "constexpr int kB = 2 * kA;",
        "",
        'static_assert(kA < kB, "");',
    ]


@pytest.mark.exhaustive
def test_the_worked_example_of_a_new_reduction(tmp_path):
    """CONTRIBUTING's own unit, value and rule make a kernel that is verified."""
    text = (REPOSITORY / "CONTRIBUTING.md").read_text()
    unit, rule = (
        re.sub("^   ", "", re.search(rf"   ```{kind}\n(.*?)   ```", text, re.S)[1], flags=re.M)
        for kind in ("jinja", "python")
    )
    for folder in ("explorer", "templates"):
        shutil.copytree(REPOSITORY / folder, tmp_path / folder)
    (tmp_path / "templates/reduce/butterfly.cu.j2").write_text(unit)
    rules = tmp_path / "explorer/space/rules.py"
    rules.write_text(f"{rules.read_text()}\n\n{rule}")
    config = tmp_path / "explorer/model/config.py"
    value = '    "reduction": (\n'
    assert value in config.read_text()
    config.write_text(config.read_text().replace(value, f'{value}        "butterfly",\n'))
    command = re.search(r"`explorer (emit '[^`]*butterfly[^`]*)`", text)[1]

    def explorer(*words):
        whole = [sys.executable, "-m", "explorer", *words]
        return subprocess.run(whole, cwd=tmp_path, capture_output=True, text=True)

    ran = explorer(*shlex.split(command))
    assert ran.returncode == 0, ran.stderr
    assert "of neighbours first" in ran.stdout
    assert "verified by emulation" in ran.stderr
    refused = explorer(
        "verify", '{"reduction":"butterfly","threads_per_row":32}', "--axis=1", "--shape=4,32,64"
    )
    assert refused.returncode == 2 and "a butterfly is of the lanes of a warp" in refused.stderr
