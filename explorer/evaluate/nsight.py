"""Nsight Compute's metrics of one launch, made by a small program under `ncu`.

`python -m explorer.evaluate.nsight CONFIG PROBLEM INDEX` is that program.
"""

import csv
import json
import math
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass

from explorer.model.config import Config
from explorer.model.gpu_spec import GpuSpec
from explorer.model.problem import Problem

LIMIT_S = 120.0

METRICS = {
    "duration_ns": "gpu__time_duration.sum",
    "dram_read_bytes": "dram__bytes_read.sum",
    "dram_write_bytes": "dram__bytes_write.sum",
    "load_sectors": "l1tex__t_sectors_pipe_lsu_mem_global_op_ld.sum",
    "store_sectors": "l1tex__t_sectors_pipe_lsu_mem_global_op_st.sum",
    "warp_instructions": "smsp__inst_executed.sum",
    "occupancy_percent": "sm__warps_active.avg.pct_of_peak_sustained_active",
}
"""Our names of the measured metrics, and Nsight Compute's."""

CHILD = "explorer.evaluate.nsight"


@dataclass(frozen=True, slots=True)
class NsightFigures:
    """Nsight Compute's measurements, in base units; NaN for a metric that the GPU lacks."""

    duration_ns: float
    dram_read_bytes: float
    dram_write_bytes: float
    load_sectors: float
    """32-byte sectors that global loads request from the L1, hits included."""
    store_sectors: float
    warp_instructions: float
    occupancy_percent: float


def ncu_program() -> str | None:
    """Return the path of Nsight Compute's command line, or None."""
    return shutil.which("ncu")


def nsight_figures(problem: Problem, config: Config, index: int = 0) -> NsightFigures | str:
    """Return the metrics of one launch on GPU `index` with cold caches, or why there are none."""
    program = ncu_program()
    if program is None:
        return "ncu (Nsight Compute) is not on PATH: its figures are left out"
    try:
        ran = subprocess.run(
            ncu_command(program, problem, config, index),
            capture_output=True,
            text=True,
            errors="replace",
            timeout=LIMIT_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return f"ncu did not end within {LIMIT_S:.0f} s: its figures are left out"
    except OSError as error:
        return f"{program} cannot be run ({error.strerror}): its figures are left out"
    figures = parse_figures(ran.stdout)
    if figures is None:
        lines = [line.strip() for line in (ran.stdout + ran.stderr).splitlines() if line.strip()]
        errors = [line for line in lines if "ERR" in line or "rror" in line] or lines[-1:]
        return f"ncu gave no figures: {errors[0] if errors else f'exit code {ran.returncode}'}"
    return figures


def ncu_command(program: str, problem: Problem, config: Config, index: int) -> Sequence[str]:
    """Return the command of the profiler, which runs the program that launches the kernel."""
    return [
        *(program, "--clock-control", "none", "--csv", "--print-units", "base"),
        *("--metrics", ",".join(METRICS.values())),
        *("--kernel-name", f"regex:^{problem.op}_", "--launch-count", "1"),
        *(sys.executable, "-m", CHILD, json.dumps(config.as_dict())),
        *(json.dumps(problem.as_dict()), str(index)),
    ]


def parse_figures(text: str) -> NsightFigures | None:
    """Return the metrics in the output of `ncu --csv`, or None if it has none."""
    lines = text.splitlines()
    start = next((i for i, line in enumerate(lines) if line.startswith('"ID"')), None)
    if start is None:
        return None
    values: dict[str, float] = {}
    try:
        for row in csv.DictReader(lines[start:]):
            name, value = row.get("Metric Name"), row.get("Metric Value")
            if name and value and name not in values:
                values[name] = _number(value)
    except csv.Error:
        return None
    if not values.keys() & set(METRICS.values()):
        return None
    return NsightFigures(**{ours: values.get(name, math.nan) for ours, name in METRICS.items()})


def _number(text: str) -> float:
    """Return a number with or without commas between thousands; NaN for `n/a` or a negative one."""
    try:
        value = float(text.replace(",", ""))
    except ValueError:
        return math.nan
    return value if 0 <= value < math.inf else math.nan


# ------------------------------------------------------------------ the process under ncu


def launch_one(problem: Problem, config: Config, gpu: GpuSpec, index: int) -> None:
    """Compile the timed kernel, and launch it once on the input of the emulator's counts."""
    # Imported here, because the parent process does not need CUDA's modules.
    from explorer.codegen.units import emit
    from explorer.compile.compiler import Compiler
    from explorer.devices.cuda.run_once import run_once
    from explorer.reference.inputs import normal_inputs

    variant = emit(problem, config)
    kernel = Compiler(gpu.arch).compile(variant.source)
    arrays = normal_inputs(problem)
    run_once(kernel.cubin, variant.launches, problem, arrays, index, variant.scratch_bytes)


def main(words: list[str]) -> None:
    """Launch the kernel that the command line names."""
    from explorer.devices.cuda.program import device_spec

    config, problem_json, index = words
    problem = Problem.from_dict(json.loads(problem_json))
    launch_one(problem, Config.from_json(config), device_spec(int(index)), int(index))


if __name__ == "__main__":
    main(sys.argv[1:])
