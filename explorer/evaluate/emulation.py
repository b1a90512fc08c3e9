"""Check a program without a GPU: compile it with line info, run it on the emulator."""

import re
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace

from explorer.codegen.variant import Launch
from explorer.compile.compiler import SOURCE_NAME, CompileFailure, Compiler, Kernel, compile_in_time
from explorer.devices.emulated.device import STEP_LIMIT, EmulatedKernel, emulate, emulated_grid
from explorer.devices.emulated.far import (
    Order,
    emulate_far,
    far_problems,
    is_addressable,
    order_of,
)
from explorer.devices.emulated.result import (
    WORST_FIRST,
    Emulation,
    LaunchRefused,
    NotEmulated,
    Status,
)
from explorer.evaluate.program_under_test import ProgramUnderTest
from explorer.evaluate.runs import (
    MOST_ELEMENTS,
    Run,
    emulated_runs,
    few_blocks,
    run_beyond_short,
    striding_run,
    too_large,
)
from explorer.model.accuracy import Accuracy
from explorer.model.errors import InvalidInput
from explorer.model.gpu_spec import GpuSpec, known_gpu_for
from explorer.model.outcome import Resources
from explorer.model.problem import Problem
from explorer.ptx_emulator import Finding, LaunchLimits, Schedule
from explorer.reference.check import Check
from explorer.reference.inputs import Case

# ------------------------------------------------------------------ limits of a launch


def exceeded_resource(resources: Resources, launches: Sequence[Launch], gpu: GpuSpec) -> str | None:
    """Return a sentence on the first limit that a kernel exceeds, or None."""
    if resources.shared_bytes > gpu.shared_per_block_bytes:
        return (
            f"a block needs {resources.shared_bytes} bytes of shared memory; {gpu.name} has "
            f"{gpu.shared_per_block_bytes}"
        )
    block = max(launch.block for launch in launches)
    # Registers are allocated to warps in units of 256.
    allocated = -(-resources.registers * 32 // 256) * 256 * (block // 32)
    if allocated > gpu.registers_per_sm:
        return f"a block needs {allocated} registers; an SM has {gpu.registers_per_sm}"
    return None


def launch_limits(resources: Resources, arch: str) -> LaunchLimits | None:
    """Return the limits on launches of a kernel compiled for `arch`, such as sm_90.

    A kernel of a virtual architecture, such as compute_90, has no registers yet. None for an
    unknown architecture.
    """
    number = re.search(r"\d+", arch)
    try:
        gpu = known_gpu_for(f"sm_{number.group()}" if number else arch)
    except InvalidInput:
        return None
    return LaunchLimits(
        registers_per_block=gpu.registers_per_sm,
        registers_per_thread=resources.registers,
        shared_bytes_per_block=gpu.shared_per_block_bytes,
        blocks_per_cluster=gpu.cluster_blocks,
    )


# ------------------------------------------------------------------ verdict


@dataclass(frozen=True, slots=True)
class Verdict:
    """The result of checking one program on the emulator or a GPU."""

    program: ProgramUnderTest
    status: Status
    sentence: str
    by: str
    """`emulation for sm_90`, or the name of a GPU."""
    runs: tuple[Emulation, ...] = ()
    """The emulated runs; empty if a GPU checked the program."""

    def __repr__(self) -> str:
        """Return a line for a notebook, without the source and the runs."""
        return f"Verdict({self.program.problem}: {self.status} by {self.by})"

    @classmethod
    def of_runs(cls, program: ProgramUnderTest, runs: tuple[Emulation, ...], by: str) -> "Verdict":
        """Return the verdict of the worst of the runs, or unverified if there is none."""
        statuses = {run.status for run in runs} or {Status.UNVERIFIED}
        status = next(status for status in WORST_FIRST if status in statuses)
        return cls(program, status, _sentence(runs, status), by, runs)

    @property
    def deciding_run(self) -> Emulation | None:
        """The first run with the verdict's status."""
        return next((run for run in self.runs if run.status is self.status), None)

    @property
    def findings(self) -> tuple[Finding, ...]:
        """The defects found by the deciding run, each with its source line."""
        return self.deciding_run.findings if self.deciding_run is not None else ()


def _sentence(runs: tuple[Emulation, ...], status: Status) -> str:
    deciding = [run for run in runs if run.status is status]
    if not deciding:
        return "nothing was run"
    if status in (Status.WRONG, Status.UNVERIFIED):
        findings = deciding[0].findings
        return f"{findings[0].kind}: {findings[0].message}" if findings else deciding[0].sentence
    if status is Status.VERIFIED:
        return _largest_errors(runs)
    least_exact = max(deciding, key=lambda run: run.check.max_ulp if run.check else 0.0)
    return least_exact.sentence


def _largest_errors(runs: tuple[Emulation, ...]) -> str:
    """Return the largest errors of all verified runs, separately for runs of a looser accuracy."""
    own = [run.check for run in runs if run.check and run.accuracy is runs[0].accuracy]
    other = [run.check for run in runs if run.check and run.accuracy is not runs[0].accuracy]
    largest = Check.largest(own)
    sentence = replace(runs[0], check=largest).sentence
    if not other:
        return sentence
    beyond = Check.largest(other)
    if beyond.error <= largest.error and beyond.max_ulp <= largest.max_ulp:
        return sentence
    held_to = next(run.accuracy for run in runs if run.accuracy is not runs[0].accuracy)
    return f"{sentence}; {beyond.error:.1e}, {beyond.max_ulp:.3g} ulp in runs held to {held_to}"


# ------------------------------------------------------------------ emulator


ORDINARY = (Schedule.LOCKSTEP,)

EVERY_ORDER = (Schedule.LOCKSTEP, Schedule.PERMUTED)
"""Orders of execution that must give an output of the same bits."""

STRIDE_STEPS = 64_000
"""Most steps of a run with many rounds of persistent blocks: some four seconds on one core."""

LONG_STEPS = 4_000_000
"""Most steps of a run with rows of more than 2^16 columns: some 20 seconds on one core."""

_ENDS = (Status.WRONG, Status.UNVERIFIED)


class Emulator:
    """Checks programs compiled for one architecture, such as sm_90."""

    def __init__(
        self,
        arch: str,
        *,
        step_limit: int = STEP_LIMIT,
        accuracy: Accuracy = Accuracy.DEFAULT,
    ) -> None:
        self.arch = arch
        self._accuracy = accuracy
        self._compiler = Compiler(arch, line_info=True)
        self._step_limit = step_limit

    def verify(self, program: ProgramUnderTest, rows: int | None = None) -> Verdict:
        """Run a program on its small problems, until one is wrong or unverified.

        Its first problem has `rows`, unless these are too many to be emulated: then it has as many
        as reveal a wrong kernel, and blocks of the program's own rows are run as well. Raises
        InvalidInput for cols that do not suit the kernel. A program that does not compile, or that
        the emulator does not know, is unverified.
        """
        widest = program.problem.resized(cols=program.cols)
        if program.cols > MOST_ELEMENTS:  # choosing the rows to try would take minutes
            return self._verdict(program, [Emulation(widest, reason=too_large(widest))])
        wanted = emulated_runs(program, rows)
        if rows is not None and too_large(wanted[0].problem):
            wanted = emulated_runs(program, None)
        first = wanted[0].problem
        large = too_large(first)
        if large:
            return self._verdict(program, [Emulation(first, reason=large)])
        done: list[Emulation] = []
        try:
            compiled = self._compiled(program)
            kernel = EmulatedKernel.of(
                _named(compiled.ptx, program.file), (), rewrites=program.config.rewrites
            )
            kernel = replace(kernel, limits=launch_limits(compiled.resources, self.arch))
            for run in wanted:
                done.append(self._run(program, kernel, run))
                if done[-1].status in _ENDS:
                    break
            else:
                self._run_in_every_order(program, kernel, wanted[0], done)
                self._run_far_blocks(program, kernel, done)
                self._run_many_strides(program, kernel, done)
                self._run_beyond_short(program, kernel, done)
        except CompileFailure as failure:
            error = _compiler_error(failure, program.file)
            done.append(Emulation(first, reason=f"it does not compile for {self.arch}: {error}"))
        except NotEmulated as refusal:
            done.append(Emulation(first, unsupported=refusal.opcodes))
        except LaunchRefused as refusal:
            done.append(Emulation(first, reason=f"it cannot be launched: {refusal}"))
        return self._verdict(program, done)

    @contextmanager
    def compiling_ahead(self, programs: Sequence[ProgramUnderTest]) -> Iterator[None]:
        """Compile programs in another thread, in order, so that `verify` finds them in the cache.

        Programs that have not begun at the end of the block are dropped; `verify` reports failures.
        """
        compiling = ThreadPoolExecutor(1)
        try:
            for program in programs:
                compiling.submit(self._compiled, program)
            yield
        finally:
            compiling.shutdown(wait=False, cancel_futures=True)

    def _compiled(self, program: ProgramUnderTest) -> Kernel:
        if program.is_edited:
            return compile_in_time(self._compiler, program.source)
        return self._compiler.compile(program.source)

    def _verdict(self, program: ProgramUnderTest, runs: list[Emulation]) -> Verdict:
        return Verdict.of_runs(program, tuple(runs), f"emulation for {self.arch}")

    def _run_in_every_order(
        self,
        program: ProgramUnderTest,
        kernel: EmulatedKernel,
        run: Run,
        done: list[Emulation],
    ) -> None:
        """Run a few blocks of the first run again in each order; append a run with defects."""
        again = self._run(program, kernel, few_blocks(program, run), EVERY_ORDER)
        done[0] = replace(done[0], schedules=again.schedules, left_out=again.left_out)
        if again.status in _ENDS:
            done.append(again)

    def _run_far_blocks(
        self, program: ProgramUnderTest, kernel: EmulatedKernel, done: list[Emulation]
    ) -> None:
        """Run some blocks of the file's own problem, and some whose elements lie beyond 2^32.

        Nothing is run if a defect is known already. A run of several blocks shows which blocks work
        on which rows. A kernel is unverified if `emulate_far` does not know its order of rows.
        """
        near = self._run_of_several_blocks(program, kernel, done)
        if done[-1].status in _ENDS:
            return
        block_rows = program.split.block_rows
        problem = program.problem.resized(cols=program.cols)
        launched = _launched_for(program, kernel, near.problem)
        order = order_of(near, launched, block_rows)
        if order is Order.OTHER:
            why = (
                "it deals out its rows to blocks in an order of its own, in which blocks far from "
                "block 0 cannot be emulated: verify it on a GPU"
            )
            done.append(Emulation(near.problem, reason=why))
            return
        strides = any(step.grid_on(1) < step.grid for step in launched.launches)
        rounds = 2 if strides and problem.inner == 1 else 1
        together, blocks = program.split.rows_together, program.config.cluster * program.split.parts
        beyond = far_problems(problem, block_rows, together, rounds=rounds, blocks=blocks)
        own = [problem] if is_addressable(problem) else []
        for far in (*own, *beyond):
            program.check_emulated(far, whole=False)
            done.append(
                emulate_far(
                    _launched_for(program, kernel, far),
                    far,
                    block_rows,
                    order=order,
                    rounds=rounds,
                    rounding=program.rounding(far),
                    step_limit=self._step_limit,
                    accuracy=self._accuracy,
                )
            )

    def _run_many_strides(
        self, program: ProgramUnderTest, kernel: EmulatedKernel, done: list[Emulation]
    ) -> None:
        """Run persistent blocks for many rounds over the rows, to find late defects.

        The rounds are as many as take some seconds. Nothing is run if a defect is known already.
        """
        if done[-1].status in _ENDS:
            return
        first = _launched_for(program, kernel, done[0].problem).launches
        strides = max(-(-step.grid // emulated_grid(step)) for step in first)
        run = striding_run(program, STRIDE_STEPS * strides // max(1, done[0].steps))
        if run is not None:
            done.append(self._run(program, replace(kernel, sms=1), run))

    def _run_beyond_short(
        self, program: ProgramUnderTest, kernel: EmulatedKernel, done: list[Emulation]
    ) -> None:
        """Run rows of more than 2^16 columns, if that takes no more than some seconds.

        Nothing is run if a defect is known already.
        """
        run = run_beyond_short(program)
        if done[-1].status in _ENDS or run is None:
            return
        widest = max(done, key=lambda each: each.problem.cols)
        if widest.steps / widest.problem.cols * run.problem.cols <= LONG_STEPS:
            done.append(self._run(program, kernel, run, step_limit=2 * LONG_STEPS))

    def _run_of_several_blocks(
        self, program: ProgramUnderTest, kernel: EmulatedKernel, done: list[Emulation]
    ) -> Emulation:
        """Return the run with the most rows, or a new one if none has more rows than a block.

        A single block does not show in which order blocks work on the rows.
        """
        most = max(done, key=lambda run: run.problem.rows)
        block_rows = program.split.block_rows
        if program.split.across_rows or most.problem.rows > block_rows or most.status in _ENDS:
            return most
        problem = done[0].problem.resized(2 * block_rows + 1)
        done.append(self._run(program, kernel, Run(Case(problem))))
        return done[-1]

    def _run(
        self,
        program: ProgramUnderTest,
        kernel: EmulatedKernel,
        run: Run,
        schedules: Sequence[Schedule] = ORDINARY,
        step_limit: int | None = None,
    ) -> Emulation:
        program.check_emulated(run.problem, whole=True)
        return emulate(
            _launched_for(program, kernel, run.problem),
            run.problem,
            run.case.arrays(),
            misaligned_by=run.misaligned_by,
            rounding=program.rounding(run.problem),
            step_limit=step_limit or self._step_limit,
            accuracy=run.accuracy or self._accuracy,
            schedules=schedules,
            counting=False,
        )


def _launched_for(
    program: ProgramUnderTest, kernel: EmulatedKernel, problem: Problem
) -> EmulatedKernel:
    """Return the kernel with its header's launches and scratch memory for a problem."""
    return replace(
        kernel,
        launches=program.launches(problem),
        scratch_bytes=program.scratch_bytes(problem),
    )


def _compiler_error(failure: CompileFailure, file: str) -> str:
    """Return the compiler's first error, with the file, and with the line if its log has one.

    The log has no line if the source exhausts the compiler.
    """
    error = str(failure).replace(SOURCE_NAME, file)
    if file in error:
        return error
    place = re.search(rf"{re.escape(SOURCE_NAME)}(\(\d+\))", failure.log)
    return f"{file}{place[1] if place else ''}: {error}"


def _named(ptx: str, file: str) -> str:
    """Return PTX with the name `file` for its source, instead of a path made up by NVRTC."""
    return re.sub(rf'"[^"\n]*\b{re.escape(SOURCE_NAME)}"', lambda _: f'"{file}"', ptx)
