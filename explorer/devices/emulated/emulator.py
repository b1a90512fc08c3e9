"""The device `emulated`: it compiles a program with line info, and runs it on the emulator."""

import re
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial

from explorer.compile.compiler import SOURCE_NAME, CompileFailure, Compiler, Kernel, compile_in_time
from explorer.devices.device import Device, Facts, Setting
from explorer.devices.emulated.device import (
    STEP_LIMIT,
    EmulatedKernel,
    LaunchRefused,
    NotEmulated,
    Variables,
    emulate,
    emulated_grid,
)
from explorer.devices.emulated.far import (
    FAR_ELEMENTS,
    FarTiles,
    Order,
    emulate_far,
    far_problems,
    is_addressable,
    order_of,
)
from explorer.devices.emulated.maxima import suspected
from explorer.devices.program_under_test import ProgramUnderTest
from explorer.devices.runs import (
    MOST_ELEMENTS,
    Run,
    emulated_runs,
    few_blocks,
    odd_runs,
    run_beyond_short,
    striding_run,
    too_large,
)
from explorer.devices.verdict import Emulation, Status, Verdict
from explorer.model.accuracy import Accuracy
from explorer.model.errors import InvalidInput
from explorer.model.gpu_spec import known_gpu_for
from explorer.model.outcome import Resources
from explorer.model.problem import Problem
from explorer.ptx_emulator import (
    ABSENT_LANE,
    Finding,
    Kind,
    LaunchLimits,
    Schedule,
    decided_by_arrival,
    spins,
)
from explorer.reference.inputs import Case, normal_inputs
from explorer.reference.layout import Array

# ------------------------------------------------------------------ limits of a launch


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


# ------------------------------------------------------------------ emulator


ORDINARY = (Schedule.LOCKSTEP,)

EVERY_ORDER = (Schedule.LOCKSTEP, Schedule.PERMUTED, Schedule.RANDOM)
"""Orders of execution that must give an output of the same bits."""

STRIDE_STEPS = 64_000
"""Most steps of a run with many rounds of persistent blocks: some four seconds on one core."""

SHORT_STEPS, STEPS_AN_ELEMENT = 500_000, 200
"""Most instructions of the first run, of a few blocks: one thread that works on all elements in
three passes takes about 40 an element."""

LONG_STEPS = 4_000_000
"""Most steps of a run with rows of more than 2^16 columns: some 20 seconds on one core."""

MORE_LAUNCHES = 6
"""Launches of a program whose variables last, after a small one and a larger one."""

MOST_WORK_OF_SPINNING = 2_000_000_000
"""Most work of all runs of a kernel whose threads spin: some 20 seconds on one core."""

ODD_ORDER = (
    "it deals out its rows to blocks in an order of its own, in which blocks far from block 0 "
    "cannot be emulated: verify it on a GPU"
)

_ENDS = (Status.WRONG, Status.UNVERIFIED)


class Emulator(Device):
    """Checks programs compiled for one architecture, such as sm_90, and times none."""

    can_time = False

    def __init__(self, arch: str, *, step_limit: int = STEP_LIMIT) -> None:
        self.arch = arch
        self._accuracy = Accuracy.DEFAULT
        self._compiler = Compiler(arch, line_info=True)
        self._step_limit = step_limit

    def open(self, setting: Setting) -> Facts:
        """Check by the accuracy from now on; a program brings its own problem and seed."""
        self._accuracy = setting.accuracy
        return Facts()

    def verify(
        self,
        program: ProgramUnderTest,
        rows: int | None = None,
        then: Sequence[ProgramUnderTest] = (),
        told: Callable[[int, int], None] | None = None,
    ) -> Verdict:
        """Compile and check a program, and meanwhile compile what is checked next.

        What of that has not begun at the end is left; its own check tells why it fails. Raises
        InvalidInput for cols that do not suit the kernel.
        """
        ahead = ThreadPoolExecutor(1)
        try:
            for following in then:
                ahead.submit(self._compiled, following)
            return self._verified(program, rows, told or _silent)
        finally:
            ahead.shutdown(wait=False, cancel_futures=True)

    def _verified(
        self, program: ProgramUnderTest, rows: int | None, told: Callable[[int, int], None]
    ) -> Verdict:
        """Run a program on its small problems, until one is wrong or unverified.

        Its first problem has `rows`, unless these are too many to be emulated: then it has as many
        as reveal a wrong kernel, and blocks of the program's own rows are run as well. A program
        that does not compile, or that the emulator does not know, is unverified.
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
                _named(compiled.ptx, program.file), (), rewrites=program.rewrites
            )
            limits = launch_limits(compiled.resources, self.arch)
            kernel = replace(kernel, limits=limits, promise=program.promise)
            ordered = self._run_in_every_order(program, kernel, wanted[0])
            if rows is None and not ordered.findings:
                wanted = self._with_suspects(program, kernel, wanted)
            self._run_each(program, kernel, ordered, wanted, done, told)
        except CompileFailure as failure:
            error = _compiler_error(failure, program)
            done.append(Emulation(first, reason=f"it does not compile for {self.arch}: {error}"))
        except NotEmulated as refusal:
            done.append(Emulation(first, unsupported=refusal.opcodes))
        except LaunchRefused as refusal:
            done.append(Emulation(first, reason=f"it cannot be launched: {refusal}"))
        return self._verdict(program, done)

    def _run_each(
        self,
        program: ProgramUnderTest,
        kernel: EmulatedKernel,
        ordered: Emulation,
        wanted: Sequence[Run],
        done: list[Emulation],
        told: Callable[[int, int], None],
    ) -> None:
        """Append the runs that are wanted, and others if they are right, up to the first defect."""
        variables = Variables()
        for run in () if ordered.findings else wanted:
            told(len(done), len(wanted))
            kernel = self._with_what_is_left(program, kernel, [ordered, *done])
            made = self._run(program, kernel, run, variables=variables)
            if _is_too_wide(made, program):
                continue
            done.append(made)
            if made.status in _ENDS:
                return
        if variables.are_used:
            self._run_after_others(program, kernel, wanted, done)
        self._run_the_rest(program, kernel, ordered, done)

    def _with_suspects(
        self, program: ProgramUnderTest, kernel: EmulatedKernel, wanted: tuple[Run, ...]
    ) -> tuple[Run, ...]:
        """Return the runs of a program, with peaks at what its maxima may omit."""
        launches = partial(_launched_for, program, kernel)
        suspects = suspected(program, launches, self._step_limit)
        return emulated_runs(program, suspects=suspects) if suspects else wanted

    def _with_what_is_left(
        self, program: ProgramUnderTest, kernel: EmulatedKernel, done: Sequence[Emulation]
    ) -> EmulatedKernel:
        """Return the kernel with the work that it may take after some runs, if its threads spin."""
        entries = [kernel.module.entries[step.entry] for step in program.launches(program.problem)]
        if not any(map(spins, entries)):
            return kernel
        left = MOST_WORK_OF_SPINNING - sum(run.work for run in done)
        return replace(kernel, most_work=left)

    def _compiled(self, program: ProgramUnderTest) -> Kernel:
        if program.is_edited or program.has_own_text:
            return compile_in_time(self._compiler, program.emulated_source)
        return self._compiler.compile(program.emulated_source)

    def _verdict(self, program: ProgramUnderTest, runs: list[Emulation]) -> Verdict:
        return Verdict.of_runs(program, tuple(runs), f"emulation for {self.arch}")

    def _run_after_others(
        self,
        program: ProgramUnderTest,
        kernel: EmulatedKernel,
        wanted: Sequence[Run],
        done: list[Emulation],
    ) -> None:
        """Run the smallest problem and the first one in turn, then others, and append them.

        What the first launch of a program keeps for good shows if a later one is larger, and what
        a later launch finds shows after some of them. Each has inputs of its own.
        """
        variables = Variables()
        smallest = min(wanted, key=lambda run: run.problem.rows * run.problem.cols)
        for number, run in enumerate((smallest, wanted[0], *[smallest] * MORE_LAUNCHES)):
            if done[-1].status not in _ENDS:
                other = replace(program, seed=program.seed + number)
                done.append(self._run(other, kernel, run, variables=variables))

    def _run_in_every_order(
        self, program: ProgramUnderTest, kernel: EmulatedKernel, run: Run
    ) -> Emulation:
        """Return a run of a few blocks of the first run on noise, in each order of threads.

        In rows of most patterns, sums are the same in any order. It is the first of all, since it
        is short and finds the defects after which the others take long.
        """
        few = few_blocks(program, run)
        kernel = self._with_what_is_left(program, kernel, ())
        noise = normal_inputs(few.problem, program.seed)
        # A loop without an end is given up here after seconds, where other runs would take minutes.
        most = SHORT_STEPS + STEPS_AN_ELEMENT * few.problem.rows * few.problem.cols
        limit = min(self._step_limit, most)
        return self._run(program, kernel, few, EVERY_ORDER, limit, arrays=noise)

    def _run_the_rest(
        self,
        program: ProgramUnderTest,
        kernel: EmulatedKernel,
        ordered: Emulation,
        done: list[Emulation],
    ) -> None:
        """Append runs for which others must be right: those of a defect, or of one order, end."""
        if ordered.findings:
            done.append(ordered)
            return
        orders = {n: getattr(ordered, n) for n in ("schedules", "left_out", "deals_by_order")}
        done[0] = replace(done[0], **orders)
        kernel = self._with_what_is_left(program, kernel, [ordered, *done])
        self._say_what_arrival_decides(program, kernel, done)
        self._run_well_aligned(program, kernel, done)
        self._run_far_blocks(program, kernel, done)
        self._run_many_strides(program, kernel, done)
        self._run_beyond_short(program, kernel, done)
        if done[-1].status not in _ENDS:
            remarks = [remark for run in (ordered, *done) for remark in run.remarks]
            wrong = self._wrong_on(program, kernel)
            done[0] = replace(done[0], remarks=tuple(dict.fromkeys([*remarks, *wrong])))

    def _wrong_on(self, program: ProgramUnderTest, kernel: EmulatedKernel) -> Iterator[str]:
        """Yield on which rows that it is not judged on a program is wrong, in sentences."""
        for kind, run in odd_runs(program):
            if self._run(program, kernel, run).status is Status.WRONG:
                yield f"on rows that hold {kind.value}, it gives other results than PyTorch does"

    def _say_what_arrival_decides(
        self, program: ProgramUnderTest, kernel: EmulatedKernel, done: list[Emulation]
    ) -> None:
        """Append a run without a verdict if threads go on as they come, and no defect is known.

        Some orders that agree, in a few rows, do not show that all of them do. Nor is it known
        which rows blocks far from block 0 work on.
        """
        entries = [kernel.module.entries[step.entry] for step in program.launches(done[0].problem)]
        at = next(filter(None, map(decided_by_arrival, entries)), None)
        why = ""
        if done[0].deals_by_order:
            why = "another order of threads gives its rows to other blocks"
        elif at is not None:
            why = f"what an atomic returns decides the address, or a term of a sum, at {at.where}"
        if why and done[-1].status not in _ENDS:
            cause = f"{why}, and not every order in which threads may come can be emulated"
            done.append(Emulation(done[0].problem, reason=cause))

    def _run_well_aligned(
        self, program: ProgramUnderTest, kernel: EmulatedKernel, done: list[Emulation]
    ) -> None:
        """Run a few blocks on matrices that are aligned as cudaMalloc aligns them.

        In other runs they are aligned as promised, and no better. Nothing is run if a defect is
        known already, or nothing is promised.
        """
        if program.promise is not None and done[-1].status not in _ENDS:
            few = few_blocks(program, Run(Case(done[0].problem)))
            done.append(self._run(program, replace(kernel, promise=None), few))

    def _run_far_blocks(
        self, program: ProgramUnderTest, kernel: EmulatedKernel, done: list[Emulation]
    ) -> None:
        """Run some blocks of the file's own problem, and some whose elements lie beyond 2^32.

        Nothing is run if a defect is known already. A run of several blocks shows which blocks work
        on which rows. A kernel is unverified if `emulate_far` does not know its order of rows, or
        if no far row has an address.
        """
        near = self._run_of_several_blocks(program, kernel, done)
        if done[-1].status in _ENDS:
            return
        block_rows = program.block_rows
        problem = program.problem.resized(cols=program.cols)
        launched = _launched_for(program, kernel, near.problem)
        order = order_of(near, launched, block_rows)
        if order is Order.OTHER or program.has_bounded_grid:
            done.append(self._run_past_the_grid(program, kernel))
            return
        strides = any(step.grid_on(1) < step.grid for step in launched.launches)
        rounds = 2 if strides and problem.inner == 1 else 1
        together, blocks = program.split.rows_together, program.blocks_together
        own = [problem] if is_addressable(problem) and not problem.attends else []
        beyond: tuple[Problem, ...] = ()
        if not program.is_own:  # indices of 32 bits suffice for the problem of a person's kernel
            beyond = far_problems(
                problem,
                block_rows,
                together,
                rounds=rounds,
                blocks=blocks,
                keeps_scores=program.config.launches == "three",
            )
        for far in (*own, *beyond):
            done.append(self._run_far(program, kernel, far, order, rounds))
        reaches = program.is_own or any(far.input_elements > FAR_ELEMENTS for far in own)
        if not beyond and not reaches:
            why = (
                f"the emulator has no addresses for rows beyond {FAR_ELEMENTS} elements of this "
                "width: verify it on a GPU"
            )
            done.append(Emulation(problem, reason=why))

    def _run_past_the_grid(self, program: ProgramUnderTest, kernel: EmulatedKernel) -> Emulation:
        """Return a run of a person's kernel whose blocks may stride over the rows, else no verdict.

        It has a row more than there are threads, or as many as can be emulated, so that a grid
        shows that does not grow with the rows, in blocks that do not stride.
        """
        problem = program.problem.resized(cols=program.cols)
        step = _launched_for(program, kernel, problem).launches[0]
        most = min(problem.rows, max(1, MOST_ELEMENTS // problem.cols))
        rows = min(step.grid * step.block + 1, most)
        if not program.is_own or min(step.grid + 1, problem.rows) > rows:
            return Emulation(problem, reason=ODD_ORDER)
        case = Case(problem.resized(rows), only=program.judged_on)
        return self._run(program, kernel, Run(case))

    def _run_far(
        self,
        program: ProgramUnderTest,
        kernel: EmulatedKernel,
        far: Problem,
        order: Order,
        rounds: int,
    ) -> Emulation:
        """Return the run of a few far blocks of a problem."""
        program.check_emulated(far, whole=False)
        made = emulate_far(
            _launched_for(program, kernel, far),
            far,
            program.block_rows,
            order=order,
            rounds=rounds,
            drawn=FarTiles.of(program.seed, thorough=program.is_thorough),
            rounding=program.rounding(far),
            step_limit=self._step_limit,
            accuracy=self._accuracy,
            only=program.judged_on,
        )
        return _judged_on_numbers(made) if program.is_own else made

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
        block_rows = program.block_rows
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
        arrays: dict[str, Array] | None = None,
        variables: Variables | None = None,
    ) -> Emulation:
        program.check_emulated(run.problem, whole=True)
        made = emulate(
            _launched_for(program, kernel, run.problem),
            run.problem,
            arrays or run.case.arrays(program.seed),
            misaligned_by=run.misaligned_by,
            rounding=program.rounding(run.problem),
            step_limit=step_limit or self._step_limit,
            accuracy=run.accuracy or self._accuracy,
            schedules=schedules,
            seed=program.seed,
            counting=False,
            variables=variables,
        )
        return _judged_on_numbers(made) if program.is_own else made


def _is_too_wide(run: Emulation, program: ProgramUnderTest) -> bool:
    """Return whether a run of more columns than the kernel is for takes too long to emulate.

    The verdict says above how many columns none was tried. In a text that a person may have changed
    it may be a loop without an end, and counts.
    """
    given_up = {finding.kind for finding in run.findings} == {Kind.LIMIT}
    return given_up and run.problem.cols > program.cols and not program.has_own_text


def _judged_on_numbers(run: Emulation) -> Emulation:
    """Return a run without what is found in right kernels that persons write, which is remarked.

    With `atomicAdd` of floating-point numbers, the last bits are others in another order of
    threads. A shuffle that reads a lane beside its mask gets what no code expects here, so that
    numbers are wrong if any result depends on it.
    """
    remarks = dict.fromkeys(filter(None, map(_remark_of, run.findings)))
    if not remarks:
        return run
    others = tuple(one for one in run.findings if _remark_of(one) is None)
    return replace(run, findings=others, remarks=tuple(remarks), left_out="")


def _remark_of(finding: Finding) -> str | None:
    """Return what is said of a finding that a right kernel may have; None for a defect."""
    place = finding.source
    at = f" at {place.file}:{place.line}" if place else ""
    if finding.kind is Kind.SCHEDULE:
        return (
            "the last bits of its results depend on the order in which threads run, as of sums by "
            f"atomicAdd{at}"
        )
    if finding.message == ABSENT_LANE:
        return f"a shuffle{at} reads lanes beside its mask, and no result depends on what it gets"
    return None


def _silent(*_: int) -> None:
    """Tell nobody how far a check is."""


def _launched_for(
    program: ProgramUnderTest, kernel: EmulatedKernel, problem: Problem
) -> EmulatedKernel:
    """Return the kernel with its header's launches and scratch memory for a problem."""
    return replace(
        kernel,
        launches=program.launches(problem),
        scratch_bytes=program.scratch_bytes(problem),
    )


def _compiler_error(failure: CompileFailure, program: ProgramUnderTest) -> str:
    """Return the compiler's first error, with the file, and with the line if its log has one.

    The log has no line if the source exhausts the compiler. Behind the file's last line stands the
    call of a kernel that is one's own.
    """
    file = program.file
    lines = program.source.count("\n") + 1

    def in_file(place: re.Match[str]) -> str:
        return f"{file}({place[1]})" if int(place[1]) <= lines else f"the call of {file}'s kernel"

    error = re.sub(rf"{re.escape(SOURCE_NAME)}\((\d+)\)", in_file, str(failure))
    if file in error:
        return error
    place = re.search(rf"{re.escape(SOURCE_NAME)}(\(\d+\))", failure.log)
    return f"{file}{place[1] if place else ''}: {error}"


def _named(ptx: str, file: str) -> str:
    """Return PTX with the name `file` for its source, instead of a path made up by NVRTC."""
    return re.sub(rf'"[^"\n]*\b{re.escape(SOURCE_NAME)}"', lambda _: f'"{file}"', ptx)
