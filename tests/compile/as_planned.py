"""Sources that compile only as Python plans them, and host parts that compile at all."""

import re
import shutil
import subprocess

import pytest

from explorer.codegen.units import emit, words
from explorer.compile.compiler import CompilePool, Compiler
from explorer.model.element import DType
from explorer.model.key_split import KeySplit
from explorer.model.work_split import WorkSplit


def compile_as_planned(arch, kernels, cache=None):
    """Compile (problem, config) pairs: constants, shared memory are a WorkSplit's or KeySplit's."""
    with CompilePool(Compiler(arch, cache)) as pool:
        futures = [pool.submit(asserted(problem, config)) for problem, config in kernels]
        for (problem, config), future in zip(kernels, futures, strict=True):
            kernel, split = future.result(), WorkSplit(problem, config)
            assert kernel.cubin and kernel.ptx
            declared = kernel.resources.static_shared_bytes
            if problem.attends:
                assert 0 <= declared - KeySplit(problem, config).shared_bytes < 16, config.to_json()
            elif config.cluster > 1 or problem.inner > 1:
                assert 0 <= split.scratch_bytes - declared <= 32, config.to_json()
            else:  # the cache behind is aligned
                assert 0 <= declared - split.static_bytes < 16, config.to_json()


def asserted(problem, config):
    """Return the source, with static asserts that compare its constants with WorkSplit."""
    split, source = WorkSplit(problem, config), emit(problem, config).source
    facts = [f"kWidth == {split.width}", f"kRowsPerBlock == {split.block_rows}"]
    if problem.attends:
        keys = KeySplit(problem, config)
        facts = [f"kHeadWords == {keys.head_words}", f"kHeadParts == {keys.head_parts}"]
        facts += [f"kBlockKeys == {keys.block_keys}", f"kSplits == {keys.parts}"]
        if config.staging != "direct":
            facts.append(f"kWarps * kStages * sizeof(Stage) == {keys.staged_bytes}")
    elif config.static_cols and problem.inner == 1:
        vectors = "kBlockVectors" if config.cluster > 1 else "kRowVectors"
        facts.append(f"{vectors} == {split.row_vectors}")
        if config.cache == "shared" and config.cluster == 1 and not problem.operator.is_gradient:
            real = "DoubleVector" if problem.dtype is DType.F64 else "FloatVector"
            kept = real if split.keeps_numbers else "Vector"
            rows = config.stages if config.stages > 1 else split.block_rows
            facts.append(f"kRowVectors * {rows} * sizeof({kept}) == {split.cache_bytes}")
    if config.cache == "registers" and not problem.attends:
        facts.append(f"kSlots == {split.slots}")
    if problem.output_dtype is not problem.dtype and problem.inner == 1:
        facts.append(f"kOutputWords * {split.output_word_bytes} == sizeof(OutputVector)")
    named = words(source)  # a kernel of one element at a time has no width, say
    lines = [f'static_assert({f}, "as in WorkSplit");' for f in facts if f.split()[0] in named]
    opening = re.search(r"^namespace \w+ \{$", source, re.MULTILINE)[0]
    return "\n".join([source, opening, *lines, "}", ""])


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
