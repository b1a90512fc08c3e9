"""What a kernel does and takes, without a GPU: exact counts, resources, occupancy."""

from dataclasses import dataclass, replace
from math import gcd, lcm

from explorer.codegen import Variant, scratch_bytes
from explorer.compile import CompileFailure, Compiler, Kernel, nvrtc_version
from explorer.devices.emulated.device import EmulatedKernel, emulate
from explorer.devices.emulated.result import NotEmulated
from explorer.errors import InvalidInput
from explorer.evaluate.program_under_test import ProgramUnderTest
from explorer.evaluate.runs import FEW_ELEMENTS, MOST_ELEMENTS
from explorer.gpu_spec import GpuSpec, Occupancy, occupancy
from explorer.outcome import Resources
from explorer.problem import Mask, Problem
from explorer.ptx_emulator import SECTOR_BYTES, Counters
from explorer.reference import normal_inputs
from explorer.work_split import WorkSplit

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
