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

from explorer.codegen import emit
from explorer.compile import Compiler
from explorer.config import Config
from explorer.devices.cuda.run_once import run_once
from explorer.devices.cuda.spec import device_spec
from explorer.devices.emulated.device import EmulatedKernel, output_of
from explorer.devices.emulated.emulation import Status
from explorer.dtype import DType
from explorer.evaluate.nsight import NsightFigures, ncu_program, nsight_figures
from explorer.evaluate.profile import profile
from explorer.evaluate.program_under_test import ProgramUnderTest
from explorer.evaluate.verify_on import verify_on
from explorer.problem import Problem
from explorer.ptx_emulator.counters import SECTOR_BYTES
from explorer.reference import verification_inputs
from explorer.space import Space
from explorer.space.covering import covering_array

MOST_ULPS = 2
SMALLEST_NORMAL = 2.0**-126
EXACT = {"exp": ("expf", "exp2f")}
"""Values of the parameters that leave the exponential to the compiler's own functions."""

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
    return device_spec(0)


def program_path(name: str) -> str | None:
    """On PATH, or where a toolkit puts it."""
    return shutil.which(name) or shutil.which(name, path="/usr/local/cuda/bin")


def ulps(a, b) -> int:
    """Most f32 numbers that lie between two outputs; a NaN in one alone is as bad as can be."""
    if (np.isnan(a) != np.isnan(b)).any():
        return 2**31
    known = ~np.isnan(a) & (np.maximum(a, b) >= SMALLEST_NORMAL)
    steps = a[known].view(np.int32).astype(np.int64) - b[known].view(np.int32).astype(np.int64)
    tiny = ~np.isnan(a) & ~known
    assert (np.abs(a[tiny] - b[tiny]) <= SMALLEST_NORMAL).all()
    return int(np.abs(steps).max(initial=0))


@pytest.mark.parametrize("cols", [4096, 4097, 1000, 37])
def test_outputs_are_those_of_the_gpu(cols, gpu):
    """Every algorithm, reduction, cache and width, on the same machine code's PTX and input."""
    problem = Problem(33, cols)
    matrix = verification_inputs(problem)["input"]
    configs = covering_array(Space(problem, gpu, EXACT))
    assert len(configs) >= 10
    compiler, worst = Compiler(gpu.arch), {}
    for config in configs:
        variant = emit(problem, config)
        kernel = compiler.compile(variant.source)
        emulated = output_of(
            EmulatedKernel.of(kernel.ptx, variant.launches), problem, {"input": matrix}
        )
        worst[config] = ulps(
            run_once(kernel.cubin, variant.launches, problem, {"input": matrix}), emulated
        )
    print(f"\n{gpu.name}, 33 x {cols} f32\nulps  config")
    for config, most in worst.items():
        print(f"{most:4d}  {config.to_json(brief=True)}")
    assert max(worst.values()) <= MOST_ULPS  # 0 on an H200, whose ex2 the emulator has


def test_bytes_moved_are_those_that_ncu_counts(gpu):
    if ncu_program() is None:
        pytest.skip("ncu is not on PATH")
    lines, off = [], {}
    for problem, config in PROFILED:
        space = Space(problem, gpu)
        assert space.is_legal(config), space.broken_rule(config)
        made = profile(emit(problem, config), gpu)
        assert made.emulated == problem
        measured = nsight_figures(problem, config)
        if isinstance(measured, str) and any(word in measured for word in NO_COUNTERS):
            pytest.skip(measured)
        assert isinstance(measured, NsightFigures), measured
        counters = made.counters
        ours = (counters.global_loads.sectors + counters.global_stores.sectors) * SECTOR_BYTES
        theirs = (measured.load_sectors + measured.store_sectors) * SECTOR_BYTES
        name = f"{problem} {config.to_json(brief=True)}"
        off[name] = ours / theirs - 1
        lines.append(f"{ours:12d} {theirs:12.0f} {100 * off[name]:+7.2f} %  {name}")
    print(f"\n{gpu.name}\n    emulator          ncu        off  variant")
    print("\n".join(lines))
    assert len(off) >= 8
    assert not {name: by for name, by in off.items() if not abs(by) <= MOVED_TOLERANCE}


def test_a_gpu_judges_programs_as_the_emulator_does(gpu):
    problem, config = Problem(1, 1000), Config(threads_per_row=64)
    honest = ProgramUnderTest.of_config(problem, config)
    wrong = honest.source.replace("return x * reciprocal;", "return x;")
    assert wrong != honest.source
    programs = [honest, replace(honest, source=wrong)]
    for device in ("cuda:0", "emulated"):
        found = [verdict.status for verdict in verify_on(device, programs, gpu.arch)]
        assert found == [Status.VERIFIED, Status.WRONG], device


def built(folder: Path, compiler: str, number: int, problem: Problem, config: Config) -> Path:
    source = folder / f"softmax{number}.cu"
    source.write_text(emit(problem, config).source)
    program = folder / f"softmax{number}"
    flags = ["-std=c++17", "-arch=native", "-lineinfo"]
    subprocess.run([compiler, *flags, "-o", program, source], check=True, capture_output=True)
    return program


def in_parallel(work: Callable[..., object], jobs: list[tuple]) -> list:
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        return list(pool.map(lambda job: work(*job), jobs))


@pytest.mark.parametrize("cols", [4097, 1000])
def test_compute_sanitizer_finds_the_variants_clean(cols, gpu, tmp_path):
    """The emulator finds them clean as well: tests/emulator has that."""
    compiler, sanitizer = program_path("nvcc"), program_path("compute-sanitizer")
    if compiler is None or sanitizer is None:
        pytest.skip(f"{'nvcc' if compiler is None else 'compute-sanitizer'} is not on PATH")
    problem = Problem(7, cols)
    configs = covering_array(Space(problem, gpu))
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
