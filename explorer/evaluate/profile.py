"""Profile a kernel without timing it: exact counts, resources, occupancy and machine code.

NVIDIA's `nvdisasm` disassembles the machine code (SASS). It comes with the CUDA toolkit, with
Triton, and with the extra `softmax-explorer[sass]`.
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

from explorer.codegen.variant import Variant
from explorer.compile.compiler import (
    SOURCE_NAME,
    CompileFailure,
    Compiler,
    Kernel,
    compile_in_time,
    nvrtc_version,
)
from explorer.compile.resources import resources_on
from explorer.devices.emulated.device import EmulatedKernel, LaunchRefused, NotEmulated, emulate
from explorer.devices.program_under_test import ProgramUnderTest
from explorer.devices.runs import FEW_ELEMENTS, MOST_ELEMENTS
from explorer.model.errors import InvalidInput
from explorer.model.gpu_spec import GpuSpec, Occupancy, occupancy
from explorer.model.outcome import Resources
from explorer.model.problem import Mask, Problem
from explorer.model.work_split import WorkSplit
from explorer.ptx_emulator import SECTOR_BYTES, Counters
from explorer.reference.inputs import normal_inputs

# ------------------------------------------------------------------ counts


LEAST_ROWS = 4


@dataclass(frozen=True, slots=True)
class Profile:
    """Counts, resources and occupancy of a program; counts are of the fewer rows of `emulated`."""

    program: ProgramUnderTest
    gpu: GpuSpec
    nvrtc: str
    emulated: Problem
    """The problem that was counted: some whole blocks of the variant's problem."""
    counters: Counters
    resources: Resources
    occupancy: Occupancy
    defect: str = ""
    """What the run that was counted found, as of a wrong launch; empty if it found nothing."""

    @property
    def variant(self) -> Variant:
        """What is compiled, and its launches."""
        return self.program.variant

    @property
    def scale(self) -> float:
        """Blocks of the whole problem divided by the counted blocks."""
        whole, part = self.program.problem.rows, self.emulated.rows
        each = 1 if self.emulated.attends else self.program.config.rows_per_block
        return -(-whole // each) / -(-part // each)

    @property
    def elements(self) -> int:
        """Elements of the problem that was counted."""
        return self.emulated.rows * self.emulated.cols


def profile(program: ProgramUnderTest, gpu: GpuSpec) -> Profile:
    """Compile a program for a GPU, and count the work of some whole blocks on the emulator.

    Raises InvalidInput if the source does not compile, rows are too wide to emulate, or the
    emulator does not know the PTX.
    """
    variant = program.variant
    emulated = counted_problem(variant)
    kernel = compiled_for(gpu, program)
    try:
        launches = program.launches(emulated)
        arrays = normal_inputs(emulated)
        scratch = program.scratch_bytes(emulated)
        steps = EmulatedKernel.of(kernel.ptx, launches, scratch, rewrites=program.rewrites)
        ran = emulate(steps, emulated, arrays)
    except (NotEmulated, LaunchRefused) as error:
        raise InvalidInput(f"nothing is counted: {error}") from None
    if ran.unsupported or ran.check is None:
        raise InvalidInput(f"nothing is counted: {ran.sentence}")
    takes = occupied(gpu, variant, kernel)
    defect = f"{ran.findings[0].kind}: {ran.findings[0].message}" if ran.findings else ""
    return Profile(program, gpu, nvrtc_version(), emulated, ran.counters, *takes, defect)


def compiled_for(gpu: GpuSpec, program: ProgramUnderTest, *, line_info: bool = False) -> Kernel:
    """Return a program's kernel for a GPU; raises InvalidInput if it does not compile."""
    compiler = Compiler(gpu.arch, line_info=line_info)
    try:
        if program.has_own_text:
            return compile_in_time(compiler, program.emulated_source)
        return compiler.compile(program.emulated_source)
    except CompileFailure as failure:
        said = str(failure).replace(SOURCE_NAME, program.file)
        raise InvalidInput(f"the kernel does not compile for {gpu.arch}: {said}") from None


def occupied(gpu: GpuSpec, variant: Variant, kernel: Kernel) -> tuple[Resources, Occupancy]:
    """Return the resources and the occupancy of a variant's first launch."""
    launch = variant.launches[0]
    resources = resources_on(gpu, variant.launches, kernel.resources)
    grid = launch.grid_on(gpu.sm_count)
    return resources, occupancy(resources, launch.block, grid, gpu, launch.cluster)


def counted_problem(variant: Variant) -> Problem:
    """Return the variant's problem, or some whole blocks that represent it.

    Rows begin at different places of a sector, and the blocks have a row for each place.
    """
    problem, each = variant.problem, variant.config.rows_per_block
    if problem.rows * problem.cols <= FEW_ELEMENTS:
        return problem
    if problem.attends:
        _check_emulated(problem.heads, problem.cols, "take fewer cols")
        return problem.resized(problem.heads)
    if problem.inner > 1:
        return _counted_across(problem, WorkSplit(problem, variant.config).block_rows)
    places = SECTOR_BYTES // gcd(problem.row_bytes, SECTOR_BYTES)
    unit = lcm(each, places)
    if unit * problem.cols > MOST_ELEMENTS:
        unit = each
    rows = min(problem.rows, -(-LEAST_ROWS // unit) * unit)
    if rows * problem.cols > MOST_ELEMENTS:
        rows = min(rows, each)
    _check_emulated(rows, problem.cols, "take fewer cols, or profile it on a GPU")
    return _of_mean_length(problem.resized(rows), problem)


def _of_mean_length(few: Problem, problem: Problem) -> Problem:
    """Return rows that, under a causal mask, see as many columns as the problem's do on average."""
    if problem.mask is not Mask.CAUSAL:
        return few
    visible = problem.visible // problem.rows
    mask_rows = few.cols + few.rows // 2 - visible
    return replace(few, mask_rows=mask_rows) if mask_rows > few.rows else few


def _counted_across(problem: Problem, block_rows: int) -> Problem:
    """Return the rows of a whole block over a middle axis, or of some if the axis is narrower."""
    inner = min(problem.inner, block_rows)
    rows = min(problem.rows, lcm(inner, block_rows))
    _check_emulated(rows, problem.cols, "profile it on a GPU")
    return replace(problem, rows=rows, inner=inner)


def _check_emulated(rows: int, cols: int, advice: str) -> None:
    """Raise InvalidInput if a block's rows have too many elements to be emulated."""
    if rows * cols > MOST_ELEMENTS:
        raise InvalidInput(
            f"a block of the kernel works on {rows}x{cols} elements, more than the "
            f"{MOST_ELEMENTS} that are emulated: {advice}"
        )


# ------------------------------------------------------------------ inspection


@dataclass(frozen=True, slots=True)
class Inspection:
    """A program compiled for a GPU: its resources, profile and code."""

    program: ProgramUnderTest
    gpu: GpuSpec
    resources: Resources
    occupancy: Occupancy
    profile: Profile | None
    """The emulator's counts; None if it cannot execute the kernel."""
    not_counted: str
    """Why there is no profile; empty if there is one."""
    ptx: tuple[str, ...]
    """The compiler's lines of PTX."""
    sass: tuple[str, ...] | None
    """The disassembler's lines, without offsets; None without a disassembler."""
    no_sass: str
    """Why there is no SASS; empty if there is."""

    @property
    def variant(self) -> Variant:
        """What is compiled, and its launches."""
        return self.program.variant


def inspect(program: ProgramUnderTest, gpu: GpuSpec) -> Inspection:
    """Compile a program for a GPU, count the work of some of its blocks, and disassemble it.

    Raises InvalidInput for source that does not compile.
    """
    kernel = compiled_for(gpu, program)
    resources, resident = occupied(gpu, program.variant, kernel)
    counted, not_counted = None, ""
    try:
        counted = profile(program, gpu)
    except InvalidInput as error:
        not_counted = str(error)
    lines = sass_of(kernel.cubin)
    sass, no_sass = (None, lines) if isinstance(lines, str) else (lines, "")
    ptx = tuple(kernel.ptx.splitlines())
    return Inspection(program, gpu, resources, resident, counted, not_counted, ptx, sass, no_sass)


# ------------------------------------------------------------------ machine code


DISASSEMBLER = "nvdisasm"

MISSING = "nvdisasm is not found: install softmax-explorer[sass], or put the CUDA toolkit's on PATH"

LIMIT_S = 60.0
"""Longest time of the disassembler, which takes half a second for the longest kernel."""


def disassembler() -> str | None:
    """Return the path of nvdisasm, or None.

    It is searched in the extra's package, on PATH, in the CUDA toolkit, and in Triton.
    """
    return next((str(path) for path in _places() if os.access(path, os.X_OK)), None)


def _places() -> Iterator[Path]:
    """Yield the possible paths of nvdisasm, the best one first."""
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
    """Return the folders of an installed package, without importing it."""
    spec = importlib.util.find_spec(name)
    return [Path(place) for place in (spec.submodule_search_locations or [])] if spec else []


PTX, SASS = "ptx", "sass"

_SOURCE_LINE = re.compile(r"\.loc\s+\d+\s+(?P<ptx>\d+)|//## File \".*?\", line (?P<sass>\d+)")


def beside_source(program: ProgramUnderTest, gpu: GpuSpec, text: str) -> list[str]:
    """Return a program's PTX or SASS, each part below the line of the source that it is of.

    Raises InvalidInput where the source does not compile, or where nothing disassembles it.
    """
    kernel = compiled_for(gpu, program, line_info=True)
    code = kernel.ptx.splitlines() if text == PTX else sass_of(kernel.cubin, "--print-line-info")
    if isinstance(code, str):
        raise InvalidInput(f"{text} cannot be shown: {code}")
    source, shown, last = program.emulated_source.splitlines(), list[str](), ""
    for line in code:
        found = _SOURCE_LINE.search(line)
        if found is None:
            shown += [line] if line.strip() and not line.lstrip().startswith("//") else []
        elif (number := found[text]) != last and int(number) <= len(source):
            shown.append(f"{number:>5} | {source[int(number) - 1].strip()}")
            last = number
    return shown


def sass_of(cubin: bytes, *options: str) -> tuple[str, ...] | str:
    """Return a cubin's instructions and labels, without offsets, or why there are none."""
    program = disassembler()
    if program is None:
        return MISSING
    with NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        try:
            ran = subprocess.run(
                [program, "--print-code", *options, file.name],
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
        errors = (ran.stderr or ran.stdout).strip().splitlines()
        return f"nvdisasm failed: {errors[0] if errors else f'exit code {ran.returncode}'}"
    return lines


_OFFSET = re.compile(r"^\s*/\*[0-9a-f]{4,}\*/\s*")
_LABEL = re.compile(r"^\.?[A-Za-z_$][\w.$]*:$")
_INSTRUCTION = re.compile(r"^(?:@!?U?P[0-9T]+ )?([A-Z][A-Z0-9_]*)((?:\.[A-Z0-9_]+)*)")


def _code_lines(text: str) -> Iterator[str]:
    """Yield the lines of nvdisasm's output that are instructions or labels."""
    for line in text.splitlines():
        if _OFFSET.match(line):
            yield "    " + " ".join(_OFFSET.sub("", line).split())
        elif _LABEL.match(line) or _SOURCE_LINE.search(line):
            yield line


_MEMORY = ("LDG", "STG", "LDS", "STS", "LDL", "STL")
"""Instructions that are counted by their width."""

_WIDTHS = ("8", "16", "64", "128")
"""Bits of an access that its modifiers name, perhaps after a letter; without any it has 32."""


def instruction_counts(sass: tuple[str, ...]) -> Counter[str]:
    """Return how often each instruction occurs in the code, executed or not.

    Accesses to memory are counted by their bits, such as LDG.128. NOPs, which fill the last cache
    line of the code, are left out.
    """
    counts: Counter[str] = Counter()
    for line in sass:
        instruction = _INSTRUCTION.match(line.strip())
        if instruction is None or instruction[1] == "NOP" or line.endswith(":"):
            continue
        name = instruction[1]
        if name in _MEMORY:
            modifiers = [part.lstrip("SU") for part in instruction[2].split(".")]
            name += f".{next((part for part in modifiers if part in _WIDTHS), '32')}"
        counts[name] += 1
    return counts
