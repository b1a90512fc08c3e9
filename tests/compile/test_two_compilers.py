"""The best kernels of tuned tables hold with other compilers: as many resident blocks, no spills.

Each of two NVRTC and nvcc is compared with the NVRTC that a kernel was measured with.
"""

import json
import random
import shutil
from collections import defaultdict
from dataclasses import asdict
from functools import cache
from itertools import chain, islice, zip_longest

import pytest

from explorer.codegen.units import emit
from explorer.codegen.variant import Launch
from explorer.compile.resources import resources_on
from explorer.model.element import DType
from explorer.model.gpu_spec import known_gpu
from explorer.model.outcome import Resources
from explorer.model.tuned_table import read_table
from tests.chooser_contest import OPS
from tests.compilers import PINNED, by_nvcc, by_nvrtc

TABLES = ("nvidia-h200", "held-out/nvidia-h200")
GPU = known_gpu("NVIDIA H200")
PROBLEMS, SEED = 48, 60
RELEASES = {f"NVRTC {release.rpartition('.')[0]}": release for release in PINNED}
"""Each release, by the name of its version."""

needs_nvcc = pytest.mark.skipif(shutil.which("nvcc") is None, reason="nvcc is not installed")


@cache
def sample():
    """Return tuned problems, in turn one of each operator and type until there are enough."""
    kinds = defaultdict(list)
    for one in chain.from_iterable(read_table(table).problems for table in TABLES):
        if one.problem.fills_rows:  # others are in the tables since the sample was measured
            kinds[one.problem.op, one.problem.dtype].append(one)
    drawn = random.Random(SEED)
    for ones in kinds.values():
        drawn.shuffle(ones)
    in_turn = chain.from_iterable(zip_longest(*kinds.values()))
    return list(islice((one for one in in_turn if one is not None), PROBLEMS))


@cache
def variants():
    return [emit(one.problem, one.best.config) for one in sample()]


def resources(compiler, once):
    """Return what a compiler gives the kernels of the sample, each with its residency."""

    def compile_all(folder):
        kernels = [(GPU.arch, variant.source) for variant in variants()]
        made = by_nvcc(kernels) if compiler == "nvcc" else by_nvrtc(RELEASES[compiler], kernels)
        (folder / "resources.json").write_text(json.dumps([asdict(one) for one in made]))

    text = (once(f"resources-{compiler}", compile_all) / "resources.json").read_text()
    made = [Resources(**values) for values in json.loads(text)]
    return [resources_on(GPU, v.launches, r) for v, r in zip(variants(), made, strict=True)]


def difference(then, now):
    """Say what a compiler changes of a kernel as it was measured; empty if nothing that counts."""
    if now.spilled_bytes > then.spilled_bytes:
        return f"{now.spilled_bytes} bytes spilled, not {then.spilled_bytes}"
    # Where eight registers decide neither, no block of the launch is missing or won by them.
    counts = then.rests_on_registers or now.rests_on_registers
    if counts and now.resident_blocks != then.resident_blocks:
        return f"{now.resident_blocks} blocks, not {then.resident_blocks}"
    return ""


@pytest.mark.exhaustive
@pytest.mark.parametrize("compiler", [*RELEASES, pytest.param("nvcc", marks=needs_nvcc)])
def test_tuned_kernels_keep_their_residency_with_another_compiler(compiler, once):
    made = resources(compiler, once)
    measured = {name: resources(name, once) for name in set(map(_measured_with, sample()))}
    told = []
    for place, (one, now) in enumerate(zip(sample(), made, strict=True)):
        then = measured[_measured_with(one)][place]
        if what := difference(then, now):
            config = one.best.config.to_json(brief=True)
            by = f"by {_measured_with(one)} {then}; by {compiler} {now}"
            told.append(f"{one.problem}, {config}: {what}: {by}")
    assert not told, f"{len(told)} of {len(made)} kernels:\n" + "\n".join(told)


def _measured_with(one):
    return f"NVRTC {one.environment.nvrtc}"


def test_the_sample_has_every_operator_with_every_type():
    assert len(sample()) == PROBLEMS
    kinds = {(one.problem.op, one.problem.dtype) for one in sample()}
    assert kinds == {(op, dtype) for op in OPS for dtype in (DType.F32, DType.F16, DType.BF16)}
    assert set(map(_measured_with, sample())) <= set(RELEASES)
    assert {read_table(table).gpu.name for table in TABLES} == {GPU.name}


@pytest.mark.parametrize(("rows", "told"), [(7000, "6 blocks, not 8"), (132, "")])
def test_a_block_that_registers_take_is_told(rows, told):
    """Unless the launch has none for it: each of an H200's 132 SMs gets one block here."""
    launch = Launch("kernel", rows, 256, 0, ())
    then, now = (resources_on(GPU, [launch], Resources(registers)) for registers in (32, 40))
    assert difference(then, then) == "" == difference(now, now)
    assert difference(then, now) == told


def test_registers_that_are_spilled_anew_are_told():
    then, now = (Resources(32, spill_load_bytes=count) for count in (4, 8))
    assert difference(then, now) == "8 bytes spilled, not 4"
    assert difference(now, then) == ""
