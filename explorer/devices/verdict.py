"""The result of a program's check: its status, and what each emulated run of it shows."""

import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from math import isinf, isnan

from explorer.devices.program_under_test import ProgramUnderTest
from explorer.model.accuracy import Accuracy
from explorer.model.gpu_spec import WARP
from explorer.model.outcome import Measured, Outcome, Stage
from explorer.model.problem import Operand, Problem, results
from explorer.ptx_emulator import Counters, Finding, Kind, Schedule, SourceLine
from explorer.reference.check import Check
from explorer.reference.layout import of_result
from explorer.reference.mistakes import Mistake

# ------------------------------------------------------------------ findings


def told_once(findings: Sequence[Finding]) -> list[Finding]:
    """Return findings of one kind at the same lines as one: of copies of a loop's body."""
    found: dict[tuple[object, ...], Finding] = {}
    for number, finding in enumerate(findings):
        place = (finding.kind, finding.source, finding.other) if finding.source else number
        first = found.setdefault((place,), finding)
        if first is not finding:
            found[(place,)] = replace(first, count=first.count + finding.count)
    return list(found.values())


# ------------------------------------------------------------------ emulation


class Status(StrEnum):
    """The result of a check. Only a kernel that was checked completely is ever `verified`."""

    VERIFIED = "verified"
    INACCURATE = "inaccurate"
    """No defect but rounding: fp32 arithmetic in this order misses the required accuracy."""
    UNVERIFIED = "unverified"
    WRONG = "wrong"


WORST_FIRST = (Status.WRONG, Status.UNVERIFIED, Status.INACCURATE, Status.VERIFIED)

INCONCLUSIVE = {Kind.LIMIT}
"""Findings that stem from a limit of the emulator, not from a defect."""


HINTS = {
    Kind.SHARED_RACE: "it looks like a missing __syncthreads(): one stands between what some "
    "threads write to shared memory and what others read, also from one round of a loop to the "
    "next, and before the memory is used again",
    Kind.GLOBAL_RACE: "it looks as if several threads, or blocks, worked on the same element: the "
    "grid, the rows of a block and the index of a thread have to agree",
    Kind.UNINITIALISED_SHARED: "it looks as if fewer threads wrote to shared memory than are read "
    "back, as where each warp writes one number and 32 are read: read as many as were written, "
    "and take the identity for the others",
    Kind.UNINITIALISED_GLOBAL: "it reads what the kernel itself is to write first",
    Kind.BARRIER: "it looks like a __syncthreads() that only some threads of a block reach: under "
    "a condition, in a loop with another number of rounds for each thread, or after a return",
    Kind.WARP_MASK: "it looks like a shuffle or a vote that lanes of its mask do not reach, as in "
    "a loop whose last round only some lanes make, or after a return",
    Kind.OUT_OF_BOUNDS: "it looks like a missing guard, such as if (row < rows) or if (col < cols)",
    Kind.READ_ONLY: "it writes to its input, which is only read unless --in-place is given",
    Kind.NEVER_WRITTEN: "it looks like a tail that is left out, or like rows without a thread: the "
    "grid and the loop over columns have to cover all",
    Kind.MISALIGNED: "it looks like vectors of a row that does not begin at a multiple of them, as "
    "float4 where cols is no multiple of 4: if the kernel is for such columns alone, say "
    "--cols-multiple 4",
    Kind.TRAP: "it stopped itself, as where an assert fails",
    Kind.SCHEDULE: "it looks like atomicAdd of floating-point numbers, whose order is another each "
    "time",
}
"""What each kind of finding looks like, in a sentence."""

ROUNDS = (
    "it looks like rounding alone: of a long sum that a thread adds up term by term, or of __expf "
    "and other fast functions; --accuracy fast allows 25 times the error"
)
"""The same of a person's own kernel that is inaccurate."""


@dataclass(frozen=True, slots=True)
class Emulation:
    """One run of a kernel: findings, the checks of its results, and counters."""

    problem: Problem
    misaligned_by: int = 0
    """Misalignment of the matrices (`first_elements`)."""
    findings: tuple[Finding, ...] = ()
    checks: tuple[Check, ...] = ()
    """Comparison of each result with float64; none if the kernel did not run to its end."""
    counters: Counters = field(default_factory=Counters)
    """Zeros if nothing was run."""
    unsupported: tuple[str, ...] = ()
    """Opcodes that the emulator does not know."""
    rounding: float = 0.0
    """Largest relative error of a number in fp32 that rounding alone could explain."""
    reason: str = ""
    """Why it is unverified, if no finding says so."""
    accuracy: Accuracy = Accuracy.DEFAULT
    """The accuracy that it must meet."""
    schedules: tuple[Schedule, ...] = ()
    """The orders of execution in which it was run."""
    steps: int = 0
    """Instructions executed in the first schedule, each once for a group of lanes."""
    work: int = 0
    """Instructions executed in all of them, each once for a lane, or more if it takes longer."""
    left_out: str = ""
    """A schedule that was not run, and why; empty if none was left out."""
    row_blocks: tuple[int, ...] = ()
    """The number of the block that wrote the output's first element of each row; -1 for none."""
    deals_by_order: bool = False
    """Whether another order of threads gave rows to other blocks."""
    mistake: Mistake | None = None
    """What wrong numbers look like; None if they look like no common mistake."""
    remarks: tuple[str, ...] = ()
    """Sentences on what does not decide whether a person's own kernel is right."""
    stored_at: SourceLine | None = None
    """Where wrong numbers were stored."""
    elements: int = 0
    """Elements of the output that were computed and checked; 0 for all of the problem's."""

    @property
    def status(self) -> Status:
        """`wrong` if there is any defect; `verified` only if everything was checked."""
        if self._far_off or any(f.kind not in INCONCLUSIVE for f in self.findings):
            return Status.WRONG
        if self.findings or self.unsupported or self.reason or not self.checks:
            return Status.UNVERIFIED
        return Status.INACCURATE if self._wrong or self.excess else Status.VERIFIED

    @property
    def check(self) -> Check | None:
        """The check of the first result that is wrong; if none is, the largest errors of all."""
        if not self.checks:
            return None
        wrong = self._far_off or self._wrong
        return wrong[0][1] if wrong else Check.largest(self.checks)

    @property
    def _by_result(self) -> tuple[tuple[Operand, Check], ...]:
        return tuple(zip(results(self.problem), self.checks, strict=bool(self.checks)))

    @property
    def _wrong(self) -> list[tuple[Operand, Check]]:
        """The results with wrong elements."""
        return [(result, check) for result, check in self._by_result if check.wrong]

    @property
    def _far_off(self) -> list[tuple[Operand, Check]]:
        """The results with errors that rounding does not explain."""
        return [
            (result, check)
            for result, check in self._by_result
            if check.deviation > (self.rounding if self._shows_rounding(result) else 0.0)
        ]

    def _shows_rounding(self, result: Operand) -> bool:
        """Return whether rounding explains errors of a result: of 16 bits only in attention."""
        return result.dtype.itemsize == 4 or self.problem.attends

    @property
    def excess(self) -> str:
        """The limit that the errors of all elements together exceed, or an empty string."""
        return next(filter(None, (_excess(self.accuracy, *one) for one in self._by_result)), "")

    @property
    def sentence(self) -> str:
        """A sentence on the results' errors, or on why there are none."""
        if self.unsupported:
            return f"the emulator does not know {', '.join(self.unsupported)}"
        if self.check is None:
            return self.reason or "it did not run to its end"
        wrong = self._far_off or self._wrong
        if not wrong:
            found = len(told_once(self.findings))
            findings = "1 finding" if found == 1 else f"{found} findings"
            prefix = f"{findings}, though its numbers are right: " if self.findings else ""
            return f"{prefix}{self.excess or _errors(self.check)}"
        result, check = wrong[0]
        row, col = check.first or (0, 0)
        rows = self.elements // self.problem.result_cols or self.problem.rows
        said, errors = "wrong", ""
        if self.status is Status.INACCURATE:
            limit = self.accuracy.tolerance(result.dtype).element_limit
            said, errors = f"inaccurate under {self.accuracy} ({limit})", f"; {_errors(check)}"
        # Wrong elements that are NaN, or should be 0, have no meaningful error.
        return (
            f"{check.wrong} of {rows * result.cols} elements{of_result(result.name)} are {said}, "
            f"the first, in row {row}, column {col}, {_first_wrong(check)}{errors}"
        )


def _excess(accuracy: Accuracy, result: Operand, check: Check) -> str:
    """Return the limit that the errors of a result's elements together exceed, or nothing."""
    excess = accuracy.excess(result.dtype, check.max_ulp, check.mean_ulp)
    return f"{excess}{of_result(result.name)}" if excess else ""


def _first_wrong(check: Check) -> str:
    """Return the value of the first wrong element, and the due one, in words."""
    if check.got is None or check.due is None:
        return "is not what it should be"
    is_exact = check.due == 0 and isinf(check.deviation)
    is_, should_be = _distinguished(check.got, check.due)
    return f"is {is_}, and should be {'exactly 0' if is_exact else should_be}"


def _errors(check: Check) -> str:
    return (
        f"largest relative error {check.error:.1e}, {check.max_ulp:.3g} ulp, "
        f"{check.mean_ulp:.2g} on average"
    )


def _distinguished(got: float, due: float) -> tuple[str, str]:
    """Return two numbers as text, with as many digits as distinguish them."""
    if isinstance(got, int) and isinstance(due, int):
        return str(got), str(due)
    for digits in (3, 6, 9, 17):
        first, second = ("NaN" if isnan(n) else f"{n:.{digits}g}" for n in (got, due))
        if first != second:
            break
    return first, second


WITHIN_A_WARP = (
    "it looks like a missing __syncwarp(): threads of one warp need not go on together, so that it "
    "stands between what one writes to shared memory and what another reads"
)
TOO_LITTLE_SHARED = (
    "it looks as if there were less shared memory than the threads use: an array of it is too "
    "short, or --shared says too few bytes"
)
OVERFLOWN = (
    "it looks as if an index overflowed {} bits: compute it in wider ones, such as "
    "(size_t)row * cols"
)


def _hint_of(finding: Finding) -> str:
    """Return what a finding looks like, by its kind and by its threads and addresses."""
    if finding.kind is Kind.SHARED_RACE:
        other = re.search(r"by thread \((\d+), 0, 0\) of block", finding.message)
        own = finding.thread[0] if finding.thread else -1
        if other and own // WARP == int(other[1]) // WARP:
            return WITHIN_A_WARP
    if finding.kind is Kind.OUT_OF_BOUNDS:
        if " shared address " in finding.message:
            return TOO_LITTLE_SHARED
        below = re.search(r"address \w+-(\d+) ", finding.message)
        if below and int(below[1]) >= 2**31:
            return OVERFLOWN.format(32)
        if below and int(below[1]) % 2**15 == 0:
            return OVERFLOWN.format(16)
    return HINTS.get(finding.kind, "")


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
    outcome: Outcome | None = None
    """Its times, or why it has none; None if it was emulated, which times nothing."""

    def __repr__(self) -> str:
        """Return a line for a notebook, without the source and the runs."""
        return f"Verdict({self.program.problem}: {self.status} by {self.by})"

    @classmethod
    def of_runs(cls, program: ProgramUnderTest, runs: tuple[Emulation, ...], by: str) -> "Verdict":
        """Return the verdict of the worst of the runs, or unverified if there is none."""
        statuses = {run.status for run in runs} or {Status.UNVERIFIED}
        status = next(status for status in WORST_FIRST if status in statuses)
        verdict = cls(program, status, _sentence(runs, status), by, runs)
        if status is not Status.VERIFIED or program.config.static_cols:
            return verdict
        limit = f"not tried above {verdict.most_cols} columns"
        return replace(verdict, sentence=f"{verdict.sentence}; {limit}")

    @classmethod
    def of_outcome(cls, program: ProgramUnderTest, outcome: Outcome, by: str) -> "Verdict":
        """Return the verdict of an outcome on a GPU: what cannot be launched is not wrong."""
        if isinstance(outcome, Measured):
            status = Status.VERIFIED
            sentence = f"largest relative error {outcome.error:.1e}, {outcome.max_ulp:.3g} ulp"
        elif outcome.stage is Stage.COMPILE:
            status, sentence = Status.UNVERIFIED, outcome.reason
        else:
            launchable = outcome.stage is not Stage.RESOURCES
            status = Status.WRONG if launchable else Status.UNVERIFIED
            sentence = f"{outcome.stage}: {outcome.reason}"
        return cls(program, status, sentence, by, outcome=outcome)

    def with_host_part(self) -> "Verdict":
        """Return the verdict of the whole file: of its kernels, and of what launches them."""
        host = self.program.host
        if host.fault and self.status is not Status.WRONG:
            sentence = f"the host part is wrong: {host.fault}"
            return replace(self, status=Status.WRONG, sentence=sentence)
        if host.unknown and self.status in (Status.VERIFIED, Status.INACCURATE):
            sentence = (
                f"the host part could not be checked: {host.unknown}; its kernels, launched as the "
                f"file's header says, are {self.status}"
            )
            return replace(self, status=Status.UNVERIFIED, sentence=sentence)
        return self

    @property
    def most_cols(self) -> int:
        """The most columns that were tried; 0 if nothing was emulated."""
        return max((run.problem.cols for run in self.runs), default=0)

    @property
    def deciding_run(self) -> Emulation | None:
        """The first run with the verdict's status."""
        return next((run for run in self.runs if run.status is self.status), None)

    @property
    def hint(self) -> str:
        """What it looks like: the mistake behind the first finding, or behind wrong numbers."""
        run = self.deciding_run
        if run is None or self.status in (Status.VERIFIED, Status.UNVERIFIED):
            return ""
        if self.status is Status.INACCURATE:
            return ROUNDS if self.program.is_own else ""
        if run.findings:
            return _hint_of(run.findings[0])
        return run.mistake.sentence if run.mistake else ""

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
    sentence = _errors(largest)
    if not other:
        return sentence
    beyond = Check.largest(other)
    if beyond.error <= largest.error and beyond.max_ulp <= largest.max_ulp:
        return sentence
    held_to = next(run.accuracy for run in runs if run.accuracy is not runs[0].accuracy)
    return f"{sentence}; {beyond.error:.1e}, {beyond.max_ulp:.3g} ulp in runs held to {held_to}"
