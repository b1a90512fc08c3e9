"""The device `emulated`: runs a kernel's launches in guarded, poisoned memory and checks them."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from math import inf

import numpy as np
from numpy.typing import NDArray

from explorer.codegen.variant import Launch
from explorer.devices.emulated.placement import Placement
from explorer.devices.verdict import Emulation
from explorer.model.accuracy import Accuracy
from explorer.model.errors import ExplorerError
from explorer.model.problem import Mask, Problem, results
from explorer.ops.truth import Truth
from explorer.ptx_emulator import (
    ABSENT_LANE,
    FLOATS,
    PACKED,
    Argument,
    Counters,
    EmulatorError,
    Finding,
    GlobalMemory,
    Instruction,
    Kind,
    LaunchLimits,
    LaunchResult,
    MaximaSeen,
    Module,
    Schedule,
    UnsupportedPtx,
    launch,
    parse,
    permuted_turns,
)
from explorer.reference.check import Check, check
from explorer.reference.layout import Array, Promise, called
from explorer.reference.mistakes import likely_mistake
from explorer.reference.truth import truths_of

STEP_LIMIT = 3_000_000
"""Most instructions of a batch of blocks, each counted once for a group of lanes: half a minute."""

SCHEDULE_STEPS = 16_000
"""Most steps of a schedule after the first: a quarter of a second on one core."""

CHECKED_ELEMENTS = 2**22
"""Elements that are compared with the truth together. All 9e7 of a long middle axis together take
twice the time and 9 GB of memory."""

FEWEST_SMS = 2
"""Fewest SMs of the emulated device."""

STRIDES = 20
"""Fewest rounds of a persistent block over the rows, if there are enough rows: its loop and its
ring of stages then go round several times."""


# ------------------------------------------------------------------ what is not emulated


class NotEmulated(ExplorerError):
    """PTX that the emulator does not know: the kernel stays unverified. `opcodes` names them."""

    def __init__(self, opcodes: tuple[str, ...], sentence: str) -> None:
        self.opcodes = opcodes
        super().__init__(sentence)


class LaunchRefused(ExplorerError):
    """A launch that the emulator cannot make: wrong arguments, block or cluster."""


@contextmanager
def refusals() -> Iterator[None]:
    """Raise the emulator's errors as NotEmulated or LaunchRefused."""
    try:
        yield
    except UnsupportedPtx as error:
        raise NotEmulated(error.opcodes, str(error)) from None
    except EmulatorError as error:
        raise LaunchRefused(str(error)) from None


# ------------------------------------------------------------------ kernels


@dataclass(frozen=True, slots=True)
class EmulatedKernel:
    """A parsed PTX module with the launches of a kernel; one `module` serves many runs."""

    module: Module
    launches: tuple[Launch, ...]
    scratch_bytes: int = 0
    """Global memory that the launches share, for the problem of the launches."""
    rewrites: bool = False
    """Whether it stores exponentials in the output, and normalises them there: otherwise it writes
    each element once."""
    limits: LaunchLimits | None = None
    """The limits of its GPU, and its registers; None if they are not known."""
    most_work: float = inf
    """Work after which a launch of it is given up, in arithmetic instructions of one lane."""
    promise: Promise | None = None
    """What its matrices' addresses are multiples of; None for more than any kernel needs."""
    sms: int = 0
    """SMs for which persistent blocks are launched; 0 for few (`emulated_grid`)."""

    @classmethod
    def of(
        cls, ptx: str, launches: Sequence[Launch], scratch_bytes: int = 0, *, rewrites: bool = False
    ) -> "EmulatedKernel":
        """Parse a kernel's PTX. Raises NotEmulated for a construct that is not known."""
        with refusals():
            return cls(parse(ptx), tuple(launches), scratch_bytes, rewrites)


def emulate(
    kernel: EmulatedKernel,
    problem: Problem,
    arrays: dict[str, Array],
    *,
    misaligned_by: int = 0,
    rounding: float = 0.0,
    step_limit: int = STEP_LIMIT,
    most_work: float = inf,
    accuracy: Accuracy = Accuracy.DEFAULT,
    schedules: Sequence[Schedule] = (Schedule.LOCKSTEP,),
    seed: int = 0,
    counting: bool = True,
    variables: "Variables | None" = None,
) -> Emulation:
    """Run a kernel on a problem's inputs, matrices as (rows, cols), and check all it does.

    Matrices are misaligned by `first_elements(misaligned_by)`. Relative errors up to `rounding` are
    inaccurate, not wrong. The kernel is run in every one of `schedules`, random ones by `seed`; a
    result whose bits differ between them is a finding. Counters are those of the first schedule,
    and zeros without `counting`, which saves time. Module `variables` hold what the launches before
    have left, and keep what these leave.

    A schedule that would take more than SCHEDULE_STEPS is left out, and so are all later ones once
    a defect is found; the result says why. Raises LaunchRefused for impossible launches. Opcodes
    that are not known are in the result.
    """
    compares = len(schedules) > 1
    run = partial(
        _run, kernel, problem, arrays, misaligned_by, step_limit, variables, seed, compares
    )
    left_out, dealt, work = "", set[tuple[int, ...]](), 0
    try:
        first = run(schedules[0], counting)
        findings = first.findings
        for schedule in schedules[1:]:
            left_out = left_out or _left_out(kernel, first, findings, schedule)
            if not left_out:
                other = run(schedule, False)
                work += other.work
                findings = [*other.findings, *_differences(kernel, problem, first, other)]
                dealt.add(other.row_blocks)
    except NotEmulated as error:
        return Emulation(problem, misaligned_by, unsupported=error.opcodes)
    result = Emulation(
        problem,
        misaligned_by,
        tuple(findings),
        counters=first.counters,
        rounding=rounding,
        accuracy=accuracy,
        schedules=tuple(schedules[:1] if left_out else schedules),
        steps=first.steps,
        work=first.work + work,
        left_out=left_out,
        row_blocks=first.row_blocks,
        deals_by_order=bool(dealt - {first.row_blocks, ()}),
    )
    judged_run = _judged(result, first.results, _truths_of_rows(problem, arrays))
    return _explained(judged_run, kernel, arrays, first.results)


def _explained(
    run: Emulation, kernel: EmulatedKernel, arrays: dict[str, Array], made: Sequence[Array]
) -> Emulation:
    """Return a run with the mistake that its wrong numbers look like, if they look like one."""
    problem = run.problem
    is_small = problem.rows * problem.cols <= CHECKED_ELEMENTS
    if run.check is None or not run.check.wrong or not is_small or "input" not in arrays:
        return run
    due = truths_of(problem, arrays)["output"].values
    threads = kernel.launches[0].block
    store = _last_store(kernel)
    return replace(
        run,
        mistake=likely_mistake(problem, arrays["input"], made[0], due, threads),
        stored_at=None if store is None else store.source,
    )


def _left_out(
    kernel: EmulatedKernel, first: "_Run", findings: Sequence[Finding], schedule: Schedule
) -> str:
    """Return why a kernel is not run in another schedule, or an empty string if it is."""
    turns = 1
    if schedule in (Schedule.PERMUTED, Schedule.RANDOM):
        turns = max(
            permuted_turns(
                kernel.module.entries[step.entry],
                emulated_grid(step, kernel.sms),
                step.block,
                step.cluster,
            )
            for step in kernel.launches
        )
    steps = first.steps * turns
    if any(one.message != ABSENT_LANE for one in findings) or not first.results:
        return f"the {schedule} schedule, since a defect is known already"
    if steps > SCHEDULE_STEPS:
        return (
            f"the {schedule} schedule, which shows results that depend on the order of threads: it "
            f"takes some {steps} steps, more than {SCHEDULE_STEPS}"
        )
    return ""


def emulated_grid(step: Launch, sms: int = 0) -> int:
    """Return the blocks of a launch on the emulated device, or on one with `sms` SMs.

    Persistent blocks are so few that each makes about STRIDES rounds over the rows, but not fewer:
    blocks are emulated side by side, and their rounds one after the other.
    """
    if sms:
        return step.grid_on(sms)
    sms = step.grid // (STRIDES * max(1, step.blocks_per_sm))
    return step.grid_on(max(FEWEST_SMS, sms))


Truths = Mapping[str, Truth]
"""The truth of each result by its name."""


def judged(run: Emulation, made: Sequence[Array], truths: Truths) -> Emulation:
    """Return a run with the check of each of its results, as rows, against the truth."""
    return _judged(run, made, partial(_of_rows, truths))


def _judged(run: Emulation, made: Sequence[Array], truths: Callable[[slice], Truths]) -> Emulation:
    """Return a run with the check of each of its results; `truths` gives those of some rows."""
    if not made:
        return run
    each = max(1, CHECKED_ELEMENTS // run.problem.cols)
    parts = [slice(first, first + each) for first in range(0, len(made[0]), each)]
    checks: list[list[Check]] = [[] for _ in made]
    finite: list[list[int]] = [[] for _ in made]
    for part in parts:
        true_of = truths(part)
        for number, (result, array) in enumerate(zip(results(run.problem), made, strict=True)):
            got, true = array[part], true_of[result.name]
            checks[number].append(check(got, true, result.dtype, run.accuracy))
            are_finite = np.isfinite(true.values) & np.isfinite(got)
            finite[number].append(int(np.count_nonzero(are_finite)))
    joined = (_joined(*of_one, each) for of_one in zip(checks, finite, strict=True))
    return replace(run, checks=tuple(joined))


def _truths_of_rows(problem: Problem, arrays: dict[str, Array]) -> Callable[[slice], Truths]:
    """Return a function that gives the truths of a slice of rows.

    They are computed for these rows alone if the problem is large, and rows share no mask and no
    keys.
    """
    share = problem.mask is not Mask.NONE or problem.attends
    if share or problem.rows * problem.cols <= CHECKED_ELEMENTS:
        return partial(_of_rows, truths_of(problem, arrays))
    return lambda rows: truths_of(problem, {name: array[rows] for name, array in arrays.items()})


def _of_rows(truths: Truths, rows: slice) -> Truths:
    return {name: truth.of_rows(rows) for name, truth in truths.items()}


def _joined(checks: Sequence[Check], finite: Sequence[int], rows: int) -> Check:
    """Return the check of all rows from checks of `rows` rows with `finite` finite elements."""
    if len(checks) == 1:
        return checks[0]
    wrong = [
        replace(one, first=(number * rows + one.first[0], one.first[1]))
        for number, one in enumerate(checks)
        if one.first is not None
    ]
    first = wrong[0] if wrong else checks[0]
    ulps = sum(one.mean_ulp * count for one, count in zip(checks, finite, strict=True))
    return Check(
        wrong=sum(one.wrong for one in checks),
        error=max(one.error for one in checks),
        first=first.first,
        max_ulp=max(one.max_ulp for one in checks),
        mean_ulp=ulps / max(1, sum(finite)),
        deviation=max(one.deviation for one in checks),
        got=first.got,
        due=first.due,
    )


class Variables:
    """The module variables of a program that is launched several times, with what they hold.

    A program that a first launch changes for good is right in fresh memory alone.
    """

    def __init__(self) -> None:
        self._held: dict[str, tuple[Array, bool]] = {}

    @property
    def are_used(self) -> bool:
        """Whether a launch has used any that it may write."""
        return any(writable for _, writable in self._held.values())

    def put(self, memory: GlobalMemory) -> None:
        """Place the variables in the memory of the next launches."""
        for name, (data, writable) in self._held.items():
            memory.allocate(data, name=name, writable=writable)

    def keep(self, memory: GlobalMemory, operands: int) -> None:
        """Keep the contents of all that is in memory after so many operands."""
        for variable in memory.allocations[operands:]:
            self._held[variable.name] = memory.read(variable), variable.writable


@dataclass(frozen=True, slots=True)
class _Run:
    """One run of a kernel in one schedule."""

    schedule: Schedule
    findings: list[Finding]
    counters: Counters
    steps: int
    results: tuple[Array, ...]
    """Each as rows; none if it did not run to its end."""
    row_blocks: tuple[int, ...]
    """The block that wrote the output's first element of each row."""
    rounded: int = 0
    """A digest of the numbers that were rounded to 16 bits."""
    work: int = 0
    """What it cost, in arithmetic instructions of one lane."""


def _run(
    kernel: EmulatedKernel,
    problem: Problem,
    arrays: dict[str, Array],
    misaligned_by: int,
    step_limit: int,
    variables: Variables | None,
    seed: int,
    compares_orders: bool,
    schedule: Schedule,
    counting: bool,
) -> _Run:
    placed = Placement.of(
        problem,
        arrays,
        kernel.scratch_bytes,
        misaligned_by=misaligned_by,
        promise=kernel.promise,
    )
    placed.targets[0].written_once = not kernel.rewrites
    operands = len(placed.memory.allocations)
    if variables is not None:
        variables.put(placed.memory)
    result = launched(
        kernel,
        placed.values,
        placed.memory,
        step_limit=step_limit,
        schedule=schedule,
        seed=seed,
        compares_orders=compares_orders,
        counting=counting,
    )
    if variables is not None:
        variables.keep(placed.memory, operands)
    findings, made, blocks = list(result.findings), tuple[Array, ...](), ()
    if result.complete and result.writers is not None:
        findings += with_store(placed.findings(), kernel)
        made = placed.results()
        blocks = tuple(result.writers.blocks(placed.targets[0], placed.first_elements).tolist())
    ran, cost = (result.counters, result.steps), result.work
    return _Run(schedule, findings, *ran, made, blocks, result.rounded, cost)


def launched(
    kernel: EmulatedKernel,
    values: dict[str, Argument],
    memory: GlobalMemory,
    *,
    step_limit: int = STEP_LIMIT,
    schedule: Schedule = Schedule.LOCKSTEP,
    seed: int = 0,
    compares_orders: bool = False,
    counting: bool = True,
    grid: int | None = None,
    blocks: Sequence[int] | NDArray[np.int64] | None = None,
    maxima: MaximaSeen | None = None,
) -> LaunchResult:
    """Make all launches of a kernel in order, until one does not run to its end.

    `values` has a value for each name of an argument. `grid` replaces the number of blocks of each
    launch, of which only `blocks` are executed. With `maxima`, floats are sets of elements. Raises
    NotEmulated and LaunchRefused.
    """
    findings: list[Finding] = []
    counters, steps, work, rounded = Counters(), 0, 0, 0
    for number, step in enumerate(kernel.launches):
        with refusals():
            result = launch(
                kernel.module,
                step.entry,
                grid=(grid or emulated_grid(step, kernel.sms), 1, 1),
                block=(step.block, 1, 1),
                args=_arguments(step, values),
                memory=memory,
                shared_bytes=step.shared_bytes,
                step_limit=step_limit,
                most_work=kernel.most_work - work,
                schedule=schedule,
                seed=seed + number,
                compares_orders=compares_orders,
                late_copies=not counting,
                overlaps=step.overlaps,
                others_write=number == 0,
                counting=counting,
                blocks=blocks,
                limits=kernel.limits,
                reproducible=True,
                maxima=maxima,
            )
        findings += result.findings
        counters = counters.plus(result.counters)
        steps += result.steps
        work += result.work
        rounded += result.rounded
        if not result.complete:
            break
    found, complete = tuple(findings), result.complete
    return LaunchResult(found, counters, complete, steps, work, rounded, result.writers)


def _differences(
    kernel: EmulatedKernel, problem: Problem, first: _Run, other: _Run
) -> Iterator[Finding]:
    """Yield a finding for each result of which schedules differ in any bit but a NaN's payload."""
    if not first.results or not other.results:
        return
    if first.rounded != other.rounded and first.row_blocks == other.row_blocks:
        message = (
            f"a number that is rounded to 16 bits is another in {first.schedule} order than in "
            f"{other.schedule} order, so that results depend on the order in which threads run"
        )
        yield Finding(Kind.SCHEDULE, message)
    for result, one, two in zip(results(problem), first.results, other.results, strict=True):
        bits = f"u{one.dtype.itemsize}"
        differ = one.view(bits) != two.view(bits)
        differ &= ~(np.isnan(one) & np.isnan(two))
        if not differ.any():
            continue
        row, col = (int(n) for n in np.argwhere(differ)[0])
        finding = Finding(
            Kind.SCHEDULE,
            f"{called(result.name)} depends on the order in which threads run: "
            f"row {row}, column {col} is {one[row, col]} in {first.schedule} order and "
            f"{two[row, col]} in {other.schedule} order; {np.count_nonzero(differ)} of "
            f"{differ.size} elements differ",
            count=int(np.count_nonzero(differ)),
        )
        for instruction in _instructions(kernel):
            modifiers = set(instruction.modifiers)
            if instruction.root in ("atom", "red") and "add" in modifiers and modifiers & _FLOATS:
                finding.ptx_line, finding.source = instruction.ptx_line, instruction.source
        yield finding


_FLOATS = FLOATS | PACKED.keys()


def _instructions(kernel: EmulatedKernel) -> Iterator[Instruction]:
    for step in kernel.launches:
        yield from kernel.module.entries[step.entry].instructions


def _last_store(kernel: EmulatedKernel) -> Instruction | None:
    """Return the last instruction that writes to global memory, which should write the output."""
    writing = ("st.global", "st.async", "red.global", "atom.global")
    stores = [one for one in _instructions(kernel) if one.opcode.startswith(writing)]
    return stores[-1] if stores else None


def _arguments(step: Launch, values: dict[str, Argument]) -> list[Argument]:
    unknown = [name for name in step.arguments if name not in values]
    if unknown:
        raise LaunchRefused(
            f"{step.entry} takes {unknown[0]}, which the emulator has no value for; it has "
            f"{', '.join(values)}"
        )
    return [values[name] for name in step.arguments]


def with_store(findings: Sequence[Finding], kernel: EmulatedKernel) -> list[Finding]:
    """Add the kernel's last global store to findings on the output."""
    store = _last_store(kernel)
    for finding in findings:
        if store is not None and finding.source is None:
            finding.ptx_line, finding.source = store.ptx_line, store.source
        elif store is None:
            finding.message += "; the kernel has no store to global memory"
    return list(findings)
