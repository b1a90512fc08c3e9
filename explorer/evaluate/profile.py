"""What is known of a kernel without timing it: exact counts, resources, occupancy, machine code.

NVIDIA's `nvdisasm` reads the machine code (SASS). It comes with the CUDA toolkit, with Triton, and
with the extra `softmax-explorer[sass]`.
"""

import importlib.util
import os
import re
import shutil
import subprocess
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from math import gcd, lcm
from pathlib import Path
from tempfile import NamedTemporaryFile

from explorer.codegen import Variant, scratch_bytes
from explorer.compile import CompileFailure, Compiler, Kernel, nvrtc_version
from explorer.devices.emulated.device import EmulatedKernel, emulate
from explorer.devices.emulated.result import NotEmulated
from explorer.evaluate.program_under_test import ProgramUnderTest
from explorer.evaluate.runs import FEW_ELEMENTS, MOST_ELEMENTS
from explorer.model.errors import InvalidInput
from explorer.model.gpu_spec import GpuSpec, Occupancy, occupancy
from explorer.model.outcome import Resources
from explorer.model.problem import Mask, Problem
from explorer.model.work_split import WorkSplit
from explorer.ptx_emulator import SECTOR_BYTES, Counters
from explorer.reference import normal_inputs

# ------------------------------------------------------------------ counts


LEAST_ROWS = 4


@dataclass(frozen=True, slots=True)
class Profile:
    """One variant on one GPU's architecture; counts are of `emulated`, fewer rows."""

    variant: Variant
    gpu: GpuSpec
    nvrtc: str
    emulated: Problem
    """The problem that was counted: whole blocks of the variant's problem."""
    counters: Counters
    resources: Resources
    occupancy: Occupancy

    @property
    def scale(self) -> float:
        """Blocks of the whole problem over blocks counted."""
        whole, part = self.variant.problem.rows, self.emulated.rows
        each = self.variant.config.rows_per_block
        return -(-whole // each) / -(-part // each)

    @property
    def elements(self) -> int:
        """Elements of the problem that was counted."""
        return self.emulated.rows * self.emulated.cols


def profile(variant: Variant, gpu: GpuSpec) -> Profile:
    """Compile for a GPU, and count on the emulator what some whole blocks do.

    Raises InvalidInput for source that does not compile, rows too wide to emulate, and PTX that
    the emulator does not know.
    """
    program = ProgramUnderTest.of(variant)
    emulated = counted_problem(variant)
    kernel = compiled_for(gpu, variant)
    try:
        launches = program.launches(emulated)
        arrays = normal_inputs(emulated)
        scratch = scratch_bytes(emulated, variant.config)
        twice = variant.config.rewrites
        steps = EmulatedKernel.of(kernel.ptx, launches, scratch, rewrites=twice)
        ran = emulate(steps, emulated, arrays)
    except NotEmulated as error:
        raise InvalidInput(f"nothing is counted: {error}") from None
    if ran.unsupported or ran.check is None:
        raise InvalidInput(f"nothing is counted: {ran.sentence}")
    resources, held = held_by(gpu, variant, kernel)
    return Profile(variant, gpu, nvrtc_version(), emulated, ran.counters, resources, held)


def compiled_for(gpu: GpuSpec, variant: Variant) -> Kernel:
    """The variant's kernel for a GPU's architecture; raises InvalidInput if it does not compile."""
    try:
        return Compiler(gpu.arch).compile(variant.source)
    except CompileFailure as failure:
        raise InvalidInput(f"the kernel does not compile for {gpu.arch}: {failure}") from None


def held_by(gpu: GpuSpec, variant: Variant, kernel: Kernel) -> tuple[Resources, Occupancy]:
    """What the variant's first launch takes of an SM, and how much of it an SM holds at once."""
    launch = variant.launches[0]
    resources = replace(kernel.resources, dynamic_shared_bytes=launch.shared_bytes)
    grid = launch.grid_on(gpu.sm_count)
    return resources, occupancy(resources, launch.block, grid, gpu, launch.cluster)


def counted_problem(variant: Variant) -> Problem:
    """The variant's problem, or as many whole blocks of it as stand for all.

    Rows begin at different places of a sector; enough are taken for each place to come up.
    """
    problem, each = variant.problem, variant.config.rows_per_block
    if problem.rows * problem.cols <= FEW_ELEMENTS:
        return problem
    if problem.inner > 1:
        return _counted_across(problem, WorkSplit(problem, variant.config).block_rows)
    places = SECTOR_BYTES // gcd(problem.row_bytes, SECTOR_BYTES)
    unit = lcm(each, places)
    if unit * problem.cols > MOST_ELEMENTS:
        unit = each
    rows = min(problem.rows, -(-LEAST_ROWS // unit) * unit)
    if rows * problem.cols > MOST_ELEMENTS:
        rows = min(rows, each)
    _check_emulated(rows, problem.cols, "take fewer --cols, or profile it on a GPU")
    return _of_mean_length(problem.resized(rows), problem)


def _of_mean_length(few: Problem, problem: Problem) -> Problem:
    """Under a causal mask: rows that see as much as all of the problem's do on average."""
    if problem.mask is not Mask.CAUSAL:
        return few
    seen = problem.visible // problem.rows
    mask_rows = few.cols + few.rows // 2 - seen
    return replace(few, mask_rows=mask_rows) if mask_rows > few.rows else few


def _counted_across(problem: Problem, block_rows: int) -> Problem:
    """Rows over a middle axis, of whole blocks: of one, or of some where inner is narrower."""
    inner = min(problem.inner, block_rows)
    rows = min(problem.rows, lcm(inner, block_rows))
    _check_emulated(rows, problem.cols, "profile it on a GPU")
    return replace(problem, rows=rows, inner=inner)


def _check_emulated(rows: int, cols: int, advice: str) -> None:
    """Raises InvalidInput for what a block works on where that is too much."""
    if rows * cols > MOST_ELEMENTS:
        raise InvalidInput(
            f"a block of the kernel works on {rows}x{cols} elements, more than the "
            f"{MOST_ELEMENTS} that are emulated: {advice}"
        )


# ------------------------------------------------------------------ all of it, of one variant


@dataclass(frozen=True, slots=True)
class Inspection:
    """One variant, compiled for one GPU's architecture."""

    variant: Variant
    gpu: GpuSpec
    resources: Resources
    occupancy: Occupancy
    profile: Profile | None
    """What the emulator counted; None where it cannot execute the kernel."""
    not_counted: str
    """Why there is no profile; empty where there is one."""
    ptx: tuple[str, ...]
    """Lines that the compiler wrote."""
    sass: tuple[str, ...] | None
    """Lines that the disassembler wrote, without offsets; None where there is no disassembler."""
    no_sass: str
    """Why there is no SASS; empty where there is."""


def inspect(variant: Variant, gpu: GpuSpec) -> Inspection:
    """Compile a variant for a GPU, count what some of its blocks do, and disassemble it.

    Raises InvalidInput for source that does not compile.
    """
    kernel = compiled_for(gpu, variant)
    resources, held = held_by(gpu, variant, kernel)
    counted, not_counted = None, ""
    try:
        counted = profile(variant, gpu)
    except InvalidInput as error:
        not_counted = str(error)
    found = sass_of(kernel.cubin)
    sass, no_sass = (None, found) if isinstance(found, str) else (found, "")
    ptx = tuple(kernel.ptx.splitlines())
    return Inspection(variant, gpu, resources, held, counted, not_counted, ptx, sass, no_sass)


# ------------------------------------------------------------------ machine code


DISASSEMBLER = "nvdisasm"

MISSING = "nvdisasm is not found: install softmax-explorer[sass], or put the CUDA toolkit's on PATH"

LIMIT_S = 60.0
"""The longest kernel of the space takes half a second."""


def disassembler() -> str | None:
    """The path of nvdisasm, or None.

    It is looked for where the extra installs it, on PATH, in the CUDA toolkit, and in Triton.
    """
    return next((str(path) for path in _places() if os.access(path, os.X_OK)), None)


def _places() -> Iterator[Path]:
    """Where nvdisasm may be, the best place first."""
    for root in _package_folders("nvidia"):
        yield from sorted(root.glob(f"cu1[3-9]/bin/{DISASSEMBLER}"), reverse=True)
    on_path = shutil.which(DISASSEMBLER)
    if on_path:
        yield Path(on_path)
    toolkit = os.environ.get("CUDA_HOME") or "/usr/local/cuda"
    yield Path(toolkit, "bin", DISASSEMBLER)
    for root in _package_folders("triton"):
        yield root / "backends" / "nvidia" / "bin" / DISASSEMBLER


def _package_folders(name: str) -> list[Path]:
    """The folders of an installed package, which is not imported."""
    spec = importlib.util.find_spec(name)
    return [Path(place) for place in (spec.submodule_search_locations or [])] if spec else []


def sass_of(cubin: bytes) -> tuple[str, ...] | str:
    """The instructions and labels of a cubin, without offsets; a sentence where there are none."""
    program = disassembler()
    if program is None:
        return MISSING
    with NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        try:
            ran = subprocess.run(
                [program, "--print-code", file.name],
                capture_output=True,
                text=True,
                errors="replace",
                timeout=LIMIT_S,
                check=False,
            )
        except subprocess.TimeoutExpired:
            return f"nvdisasm did not end within {LIMIT_S:.0f} s"
        except OSError as error:
            return f"{program} cannot be run: {error.strerror}"
    lines = tuple(_code_lines(ran.stdout))
    if ran.returncode or not lines:
        told = (ran.stderr or ran.stdout).strip().splitlines()
        return f"nvdisasm failed: {told[0] if told else f'exit code {ran.returncode}'}"
    return lines


_OFFSET = re.compile(r"^\s*/\*[0-9a-f]{4,}\*/\s*")
_LABEL = re.compile(r"^\.?[A-Za-z_$][\w.$]*:$")
_INSTRUCTION = re.compile(r"^(?:@!?U?P[0-9T]+ )?([A-Z][A-Z0-9_]*)((?:\.[A-Z0-9_]+)*)")


def _code_lines(text: str) -> Iterator[str]:
    """The lines of nvdisasm's output that are instructions or labels."""
    for line in text.splitlines():
        if _OFFSET.match(line):
            yield "    " + " ".join(_OFFSET.sub("", line).split())
        elif _LABEL.match(line):
            yield line


_MEMORY = ("LDG", "STG", "LDS", "STS", "LDL", "STL")
"""Instructions of which the width is told as well."""

_WIDTHS = ("8", "16", "64", "128")
"""Bits of an access that its modifiers name, with or without a letter before; else it has 32."""


def instruction_counts(sass: tuple[str, ...]) -> Counter[str]:
    """How often each instruction stands in the code, whether or not it is executed.

    Accesses to memory are told apart by their bits, as LDG.128. What only fills the last cache
    line of the code is left out.
    """
    found: Counter[str] = Counter()
    for line in sass:
        instruction = _INSTRUCTION.match(line.strip())
        if instruction is None or instruction[1] == "NOP" or line.endswith(":"):
            continue
        name = instruction[1]
        if name in _MEMORY:
            modifiers = [part.lstrip("SU") for part in instruction[2].split(".")]
            name += f".{next((part for part in modifiers if part in _WIDTHS), '32')}"
        found[name] += 1
    return found
