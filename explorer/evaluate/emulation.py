"""Check a program without a GPU: compile it with line info, run it on the emulator."""

import re
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace

from explorer.codegen import Launch
from explorer.compile import SOURCE_NAME, CompileFailure, Compiler, Kernel, compile_in_time
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
from explorer.reference import Case, Check

# ------------------------------------------------------------------ limits of a launch


def exceeded_resource(resources: Resources, launches: Sequence[Launch], gpu: GpuSpec) -> str | None:
    """A sentence on the first limit that a kernel exceeds, or None."""
    if resources.shared_bytes > gpu.shared_per_block_bytes:
        return (
            f"a block needs {resources.shared_bytes} bytes of shared memory; {gpu.name} has "
            f"{gpu.shared_per_block_bytes}"
        )
    block = max(launch.block for launch in launches)
    # Registers are allotted to warps in units of 256.
    allotted = -(-resources.registers * 32 // 256) * 256 * (block // 32)
    if allotted > gpu.registers_per_sm:
        return f"a block needs {allotted} registers; an SM has {gpu.registers_per_sm}"
    return None


def launch_limits(resources: Resources, arch: str) -> LaunchLimits | None:
    """Return what bounds the launches of a kernel compiled for `arch`, such as sm_90.

    A kernel of a virtual architecture, such as compute_90, has no registers yet. None for an
    architecture that is not known.
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


# ------------------------------------------------------- what a check came to, wherever it was made


@dataclass(frozen=True, slots=True)
class Verdict:
    """One program: verified or not, by what, and all there is to say about it."""

    program: ProgramUnderTest
    status: Status
    sentence: str
    by: str
    """`emulation for sm_90`, or the name of a GPU."""
    runs: tuple[Emulation, ...] = ()
    """The emulated runs; none where a GPU judged."""

    def __repr__(self) -> str:
        """Return a line for a notebook, without the source and the runs."""
        return f"Verdict({self.program.problem}: {self.status} by {self.by})"

    @classmethod
    def of_runs(cls, program: ProgramUnderTest, runs: tuple[Emulation, ...], by: str) -> "Verdict":
        """As good as the worst of the runs; unverified where there is none."""
        found = {run.status for run in runs} or {Status.UNVERIFIED}
        status = next(status for status in WORST_FIRST if status in found)
        return cls(program, status, _sentence(runs, status), by, runs)

    @property
    def told(self) -> Emulation | None:
        """The run to tell of: the first of those that decided."""
        return next((run for run in self.runs if run.status is self.status), None)

    @property
    def findings(self) -> tuple[Finding, ...]:
        """The defects that the run to tell of has met, each with its line of the source."""
        return self.told.findings if self.told is not None else ()


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
    """The largest errors of all verified runs; apart from them, those of runs held to less."""
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


# ------------------------------------------------------------------ the check on the emulator


ORDINARY = (Schedule.LOCKSTEP,)

EVERY_ORDER = (Schedule.LOCKSTEP, Schedule.PERMUTED)
"""Orders of execution between which the bits of the output must not differ."""

STRIDE_STEPS = 64_000
"""Steps that a run of many strides may take: some four seconds on one core."""

LONG_STEPS = 4_000_000
"""Steps that a run of rows which 16 bits do not count may take: some 20 seconds on one core."""

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
        """Run a program on its small problems; ends with the first that is wrong or unknown.

        `rows` are those of its first problem, unless they are more than are emulated: then it has
        as many as tell a wrong kernel, and blocks of the program's own rows are run as well.
        Raises InvalidInput for cols that do not suit the kernel. What cannot be compiled is
        wrong, and what the emulator does not know unverified: both are results.
        """
        widest = program.problem.resized(cols=program.cols)
        if program.cols > MOST_ELEMENTS:  # to say which rows would be tried takes minutes
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
            told = _said_by_compiler(failure, program.file)
            done.append(Emulation(first, reason=f"it does not compile for {self.arch}: {told}"))
        except NotEmulated as error:
            done.append(Emulation(first, unsupported=error.opcodes))
        except LaunchRefused as error:
            done.append(Emulation(first, reason=f"it cannot be launched: {error}"))
        return self._verdict(program, done)

    @contextmanager
    def compiling_ahead(self, programs: Sequence[ProgramUnderTest]) -> Iterator[None]:
        """Compile programs in another thread, in order, which saves `verify` the time.

        What has not begun at the end of the block is dropped; what fails is said by `verify`.
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
        """Run a few blocks of the first run again, in each order; what is found is a run more."""
        again = self._run(program, kernel, few_blocks(program, run), EVERY_ORDER)
        done[0] = replace(done[0], schedules=again.schedules, left_out=again.left_out)
        if again.status in _ENDS:
            done.append(again)

    def _run_far_blocks(
        self, program: ProgramUnderTest, kernel: EmulatedKernel, done: list[Emulation]
    ) -> None:
        """Run some blocks of the file's own problem, and some whose elements lie beyond 2^32.

        Nothing is run where a defect is known already. Which blocks work on which rows is what a
        run of several blocks shows. A kernel that deals out its rows in an order that `emulate_far`
        does not know is unverified.
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
        """Run blocks that stride over the rows for as many strides as show what begins late.

        As far as that is a matter of seconds. Nothing is run where a defect is known already.
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
        """Run rows that 16 bits do not count, if that is a matter of seconds where a thread has a
        row to itself. Nothing is run where a defect is known already.
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
        """The run with the most rows, or one more where none has more rows than a block.

        From a single block it cannot be told in which order blocks are dealt the rows.
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
    """The kernel with the launches and the scratch memory that its header has for a problem."""
    return replace(
        kernel,
        launches=program.launches(problem),
        scratch_bytes=program.scratch_bytes(problem),
    )


def _said_by_compiler(failure: CompileFailure, file: str) -> str:
    """The compiler's first error, with the file, and with the line that its log has.

    Of a text that exhausts it, the compiler says no place.
    """
    told = str(failure).replace(SOURCE_NAME, file)
    if file in told:
        return told
    place = re.search(rf"{re.escape(SOURCE_NAME)}(\(\d+\))", failure.log)
    return f"{file}{place[1] if place else ''}: {told}"


def _named(ptx: str, file: str) -> str:
    """PTX that calls its source `file`, not by a path that NVRTC makes up."""
    return re.sub(rf'"[^"\n]*\b{re.escape(SOURCE_NAME)}"', lambda _: f'"{file}"', ptx)
