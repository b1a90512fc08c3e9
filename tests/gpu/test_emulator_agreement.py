"""The emulator against the GPU: outputs, bytes moved, and what compute-sanitizer says."""

import os
import re
import shutil
import subprocess
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from cuda.bindings import driver
from emulated_output import results_of
from kinds import KINDS, problem_of
from test_far_rows import CONFIGS

from explorer.codegen.units import emit
from explorer.compile.compiler import Compiler
from explorer.devices.cuda.program import checked, device_spec
from explorer.devices.cuda.run_once import run_once
from explorer.devices.emulated.device import EmulatedKernel
from explorer.devices.program_under_test import ProgramUnderTest
from explorer.devices.verdict import Status
from explorer.evaluate.nsight import NsightFigures, ncu_program, nsight_figures
from explorer.evaluate.profile import profile
from explorer.evaluate.verify import verify_on
from explorer.model.config import Config
from explorer.model.element import DType
from explorer.model.problem import Problem, results
from explorer.ptx_emulator.counters import SECTOR_BYTES
from explorer.reference.inputs import verification_inputs
from explorer.reference.truth import truths_of
from explorer.space import Space
from explorer.space.covering import covering_array

MOST_ULPS = 2
MOST_ULPS_OF_CAPPED = 16
"""Where logits are capped: what two roundings of tanh differ by, times the cap, is the difference
of two exponents."""
EXACT = {"exp": ("expf", "exp2f")}
"""Values of the parameters that leave the exponential to the compiler's own functions."""


def is_emulated(config: Config) -> bool:
    """Return whether a kernel ends within the steps that the emulator executes.

    Where each thread reduces the whole row, hundreds of threads a row execute too many.
    """
    return config.arrangement != "replicated" or config.threads_per_row <= 64


MOVED_TOLERANCE = 0.02
PROFILED = [
    # rows x cols of at most 2^17 elements, which are counted whole.
    (Problem(32, 4096), Config()),
    (Problem(32, 4096), Config(threads=512, threads_per_row=512, vector_bytes=4)),
    (Problem(32, 4096), Config(cache="none", cache_holds="input", unroll=4)),
    (Problem(32, 4096), Config(cache="shared", cache_holds="input", load_hint="nc")),
    (Problem(31, 4097), Config()),
    (Problem(31, 4097), Config(cache="none", cache_holds="input", static_cols=False)),
    (Problem(31, 4097), Config(cache="shared", vector_bytes=8, store_hint="cs")),
    (Problem(100, 1000), Config(threads_per_row=32, reduction="shared-tree")),
    (Problem(100, 1000), Config(threads=128, threads_per_row=8, vector_bytes=4)),
    (Problem(120, 1000, DType.F16), Config(threads_per_row=64, load_hint="cs")),
    (Problem(60, 2001, DType.BF16), Config(threads_per_row=128, vector_bytes=8)),
    (Problem(32, 4096), Config(algorithm="online", cache="none", cache_holds="input")),
]
NO_COUNTERS = ("PERM", "initialize the profiler", "not supported")
"""What ncu says where the machine does not let it read the GPU's counters."""

TOOLS = ("memcheck", "racecheck", "synccheck", "initcheck")
CLEAN = re.compile(r"ERROR SUMMARY: 0 errors|RACECHECK SUMMARY: 0 hazards")
FOUND = 9
"""The exit code asked of compute-sanitizer for a defect; the program's own are 0 to 2."""


@pytest.fixture(scope="module")
def gpu():
    """The GPU's limits; its context is kept, since many processes that create one wait in line."""
    checked(driver.cuInit(0))
    device = checked(driver.cuDeviceGet(0))
    checked(driver.cuDevicePrimaryCtxRetain(device))
    yield device_spec(0)
    driver.cuDevicePrimaryCtxRelease(device)


def program_path(name: str) -> str | None:
    """On PATH, or where a toolkit puts it."""
    return shutil.which(name) or shutil.which(name, path="/usr/local/cuda/bin")


def ulps(ours, theirs, truth, dtype) -> float:
    """The largest distance of two outputs, in spacings of their type at the truth's magnitude.

    A NaN or an infinity in one alone is as bad as can be. What is not a normal number may be
    flushed, of which this tells nothing. So is a whole number that differs.
    """
    if not isinstance(dtype, DType):
        return 0.0 if (ours == theirs).all() else np.inf
    ours, theirs = (matrix.astype(np.float64) for matrix in (ours, theirs))
    known = np.isfinite(ours) & np.isfinite(theirs)
    same = (ours == theirs) | (np.isnan(ours) & np.isnan(theirs))
    if not (known | same).all():
        return np.inf
    magnitude = np.maximum(truth.magnitude, dtype.smallest_normal)[known & ~same]
    _, exponent = np.frexp(magnitude)
    spacing = np.ldexp(1.0, exponent - 1 - dtype.mantissa_bits)
    off = np.abs(ours[known & ~same] - theirs[known & ~same])
    off[off <= dtype.smallest_normal] = 0.0
    return float((off / spacing).max(initial=0.0))


SAME_BITS = [Problem(33, cols) for cols in (4096, 4097, 1000, 37)]
"""f32 softmax, whose every choice is compared."""

PARTS = 4
"""Tests among which the kernels of one problem are dealt, so that many workers share them."""

OF_EACH_KIND = [problem_of(kind, 100, 130) for kind in KINDS]

WAYS = [(problem, Config(**choices)) for problem, choices in CONFIGS.values()]
"""Clusters, scratch, two and three launches, staging, persistent blocks."""


def compared(gpu, problem, configs) -> dict[Config, float]:
    """How far the emulator's outputs are from the GPU's, in ulps."""
    arrays = verification_inputs(problem)
    truths, compiler, found = truths_of(problem, arrays), Compiler(gpu.arch), {}
    for config in configs:
        variant = emit(problem, config)
        kernel = compiler.compile(variant.source)
        scratch = variant.scratch_bytes
        ours = results_of(EmulatedKernel.of(kernel.ptx, variant.launches, scratch), problem, arrays)
        theirs = run_once(kernel.cubin, variant.launches, problem, arrays, scratch_bytes=scratch)
        found[config] = max(
            ulps(*both, truths[result.name], result.dtype)
            for result, *both in zip(results(problem), ours, theirs, strict=True)
        )
    return found


def told(gpu, problem, found, record_property, figure):
    """Print how far each was off, and count those that were and were not."""
    print(f"\n{gpu.name}, {problem}\nulps  config")
    for config, most in found.items():
        print(f"{most:4g}  {config.to_json(brief=True)}")
    record_property(f"figure.{figure}_compared", len(found))
    record_property(f"figure.{figure}_same_bits", sum(most == 0 for most in found.values()))
    assert max(found.values()) <= (MOST_ULPS_OF_CAPPED if problem.softcap else MOST_ULPS), found


@pytest.mark.parametrize("part", range(PARTS))
@pytest.mark.parametrize("problem", SAME_BITS, ids=str)
def test_outputs_are_those_of_the_gpu(problem, part, gpu, record_property):
    """Every algorithm, reduction, cache and width, on the same machine code's PTX and input."""
    configs = [one for one in covering_array(Space(problem, gpu, EXACT)) if is_emulated(one)]
    configs = configs[part::PARTS]
    assert len(configs) >= 3
    told(gpu, problem, compared(gpu, problem, configs), record_property, "f32_softmax")


@pytest.mark.parametrize("problem", OF_EACH_KIND, ids=str)
def test_outputs_of_every_kind_are_those_of_the_gpu(problem, gpu, record_property):
    """Gradients, logarithms, masks, scales, gaps, types, axis 0, in place."""
    configs = covering_array(Space(problem, gpu, EXACT))[::3]
    assert len(configs) >= 3
    told(gpu, problem, compared(gpu, problem, configs), record_property, "kinds")


@pytest.mark.parametrize("number", range(len(WAYS)), ids=list(CONFIGS))
def test_outputs_of_every_way_of_working_are_those_of_the_gpu(number, gpu, record_property):
    problem, config = WAYS[number]
    told(gpu, problem, compared(gpu, problem, [config]), record_property, "ways")


@pytest.mark.sampled(2)
@pytest.mark.parametrize(("problem", "config"), PROFILED, ids=str)
def test_bytes_moved_are_those_that_ncu_counts(problem, config, gpu):
    if ncu_program() is None:
        pytest.skip("ncu is not on PATH")
    space = Space(problem, gpu)
    assert space.is_legal(config), space.broken_rule(config)
    made = profile(ProgramUnderTest.of_config(problem, config), gpu)
    assert made.emulated == problem
    measured = nsight_figures(problem, config)
    if isinstance(measured, str) and any(word in measured for word in NO_COUNTERS):
        pytest.skip(measured)
    assert isinstance(measured, NsightFigures), measured
    counters = made.counters
    ours = (counters.global_loads.sectors + counters.global_stores.sectors) * SECTOR_BYTES
    theirs = (measured.load_sectors + measured.store_sectors) * SECTOR_BYTES
    print(
        f"\n{gpu.name}: emulator {ours} bytes, ncu {theirs:.0f}: {100 * (ours / theirs - 1):+.2f} %"
    )
    assert abs(ours / theirs - 1) <= MOVED_TOLERANCE


def test_a_gpu_judges_programs_as_the_emulator_does(gpu):
    problem, config = Problem(1, 1000), Config(threads_per_row=64)
    honest = ProgramUnderTest.of_config(problem, config)
    wrong = honest.source.replace("+ i] * inverse_sum;", "+ i];")
    assert wrong != honest.source
    programs = [honest, replace(honest, source=wrong)]
    for device in ("cuda:0", "emulated"):
        found = [verdict.status for verdict in verify_on(device, programs, gpu.arch)]
        assert found == [Status.VERIFIED, Status.WRONG], device


def built(folder: Path, compiler: str, number: int, problem: Problem, config: Config) -> Path:
    source = folder / f"softmax{number}.cu"
    source.write_text(emit(problem, config, main=True).source)
    program = folder / f"softmax{number}"
    flags = ["-std=c++17", "-arch=native", "-lineinfo"]
    subprocess.run([compiler, *flags, "-o", program, source], check=True, capture_output=True)
    return program


def in_parallel(work: Callable[..., object], jobs: list[tuple]) -> list:
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        return list(pool.map(lambda job: work(*job), jobs))


@pytest.mark.sampled(PARTS)
@pytest.mark.parametrize("part", range(PARTS))
@pytest.mark.parametrize("cols", [4097, 1000])
def test_compute_sanitizer_finds_the_variants_clean(cols, part, gpu, tmp_path):
    """The emulator finds them clean as well: tests/emulator has that."""
    compiler, sanitizer = program_path("nvcc"), program_path("compute-sanitizer")
    if compiler is None or sanitizer is None:
        pytest.skip(f"{'nvcc' if compiler is None else 'compute-sanitizer'} is not on PATH")
    problem = Problem(7, cols)
    configs = covering_array(Space(problem, gpu))[part::PARTS]
    jobs = [(tmp_path, compiler, n, problem, config) for n, config in enumerate(configs)]
    programs = dict(zip(configs, in_parallel(built, jobs), strict=True))

    def examined(tool: str, config: Config) -> subprocess.CompletedProcess[str]:
        options = ["--tool", tool, "--error-exitcode", str(FOUND), "--check-exit-code", "no"]
        command = [sanitizer, *options, programs[config], "7"]
        return subprocess.run(command, capture_output=True, text=True, timeout=170)

    probe = examined(TOOLS[0], configs[0])
    if "not supported" in probe.stdout + probe.stderr:
        pytest.skip(f"compute-sanitizer cannot be used here: {probe.stdout.strip()}")
    runs = [(tool, config) for config in configs for tool in TOOLS]
    for (tool, config), ran in zip(runs, in_parallel(examined, runs), strict=True):
        told = f"{tool} {config.to_json(brief=True)}\n{ran.stdout}{ran.stderr}"
        # 1 is the program's own: sums of many terms in f32 may miss its tolerance.
        assert ran.returncode in (0, 1), told
        assert CLEAN.search(ran.stdout + ran.stderr), told
