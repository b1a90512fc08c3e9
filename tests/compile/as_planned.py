"""Sources that compile only as Python plans them, and host parts that compile at all."""

import re
import shutil
import subprocess

import pytest

from explorer.codegen import emit
from explorer.codegen.units import words
from explorer.model.work_split import WorkSplit


def asserted(problem, config, vectors=None):
    """The source, with static asserts that compare its constants with WorkSplit.

    `vectors` names the constant that says how many vectors of a row a block has, if one does.
    """
    split, variant = WorkSplit(problem, config), emit(problem, config)
    facts = [f"kWidth == {split.width}", f"kRowsPerBlock == {split.block_rows}"]
    if vectors is not None and config.static_cols:
        facts.append(f"{vectors} == {split.row_vectors}")
    if config.cache == "registers":
        facts.append(f"kSlots == {split.slots}")
    lines = [f'static_assert({fact}, "as in WorkSplit");' for fact in facts]
    named = words(variant.source)  # a kernel of one element at a time has no width, say
    lines = [line for line, fact in zip(lines, facts, strict=True) if fact.split()[0] in named]
    return variant.source + in_namespace(variant.source, lines)


def in_namespace(source, lines):
    """Return lines that stand in the namespace of an emitted source, behind it."""
    opening = re.search(r"^namespace \w+ \{$", source, re.MULTILINE)[0]
    return "\n".join([opening, *lines, "}", ""])


def compile_host(source, folder):
    """Compile a whole source with nvcc, without a warning; skips where there is no nvcc."""
    nvcc = shutil.which("nvcc")
    if nvcc is None:
        pytest.skip("nvcc is not installed")
    path = folder / "softmax.cu"
    path.write_text(source)
    command = [nvcc, "-std=c++17", "-arch=sm_90", "-Werror=all-warnings", "-c", str(path)]
    ran = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
