"""What an emulated check of one kernel on one problem found."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import StrEnum
from math import isinf, isnan

from explorer.model.accuracy import Accuracy
from explorer.model.errors import ExplorerError
from explorer.model.problem import Problem
from explorer.ptx_emulator import Counters, EmulatorError, Finding, Kind, Schedule, UnsupportedPtx
from explorer.reference import Check

# ------------------------------------------------------------------ errors


class NotEmulated(ExplorerError):
    """PTX that the emulator does not know: the kernel stays unverified. `opcodes` names them."""

    def __init__(self, opcodes: tuple[str, ...], sentence: str) -> None:
        self.opcodes = opcodes
        super().__init__(sentence)


class LaunchRefused(ExplorerError):
    """A launch that the emulator cannot make: wrong arguments, block or cluster."""


@contextmanager
def refusals() -> Iterator[None]:
    """Raise what the emulator refuses as NotEmulated or LaunchRefused."""
    try:
        yield
    except UnsupportedPtx as error:
        raise NotEmulated(error.opcodes, str(error)) from None
    except EmulatorError as error:
        raise LaunchRefused(str(error)) from None


# ------------------------------------------------------------------ emulation


class Status(StrEnum):
    """How a check ended. Nothing unknown is ever `verified`."""

    VERIFIED = "verified"
    INACCURATE = "inaccurate"
    """No defect but rounding: its fp32 arithmetic, in its order, misses the accuracy asked for."""
    UNVERIFIED = "unverified"
    WRONG = "wrong"


WORST_FIRST = (Status.WRONG, Status.UNVERIFIED, Status.INACCURATE, Status.VERIFIED)

INCONCLUSIVE = {Kind.LIMIT}
"""Findings that tell of the emulator's patience, not of a defect."""


@dataclass(frozen=True, slots=True)
class Emulation:
    """One run of a kernel, checked: what was found, how its numbers compare, what it did."""

    problem: Problem
    misaligned_by: int = 0
    """Where the matrices began: `first_elements`."""
    findings: tuple[Finding, ...] = ()
    check: Check | None = None
    """Of the output against float64; None where the kernel did not run to its end."""
    counters: Counters = field(default_factory=Counters)
    """Zeros where nothing was run."""
    unsupported: tuple[str, ...] = ()
    """Opcodes that the emulator does not know."""
    rounding: float = 0.0
    """Relative error that rounding alone could come to."""
    reason: str = ""
    """Why it is unverified, where that is not said by the findings."""
    accuracy: Accuracy = Accuracy.DEFAULT
    """What it was asked to meet."""
    schedules: tuple[Schedule, ...] = ()
    """The orders of execution in which it was run."""
    steps: int = 0
    """Instructions executed in the first of them, each once for a group of lanes."""
    left_out: str = ""
    """What was not run, and why; empty if nothing was left out."""
    row_blocks: tuple[int, ...] = ()
    """The number of the block that wrote the first element of each row; -1 for none."""
    elements: int = 0
    """Elements that were computed and checked; 0 for all of the problem's."""

    @property
    def status(self) -> Status:
        """`wrong` where any defect was seen; `verified` only where all was checked."""
        wrong_numbers = self.check is not None and self.check.wrong > 0
        far_off = self.check is not None and self.check.deviation > self.rounding
        if far_off or any(f.kind not in INCONCLUSIVE for f in self.findings):
            return Status.WRONG
        if self.findings or self.unsupported or self.reason or self.check is None:
            return Status.UNVERIFIED
        return Status.INACCURATE if wrong_numbers or self.excess else Status.VERIFIED

    @property
    def excess(self) -> str:
        """Which limit the numbers as a whole are beyond; empty where they are beyond none."""
        if self.check is None:
            return ""
        dtype = self.problem.output_dtype
        return self.accuracy.excess(dtype, self.check.max_ulp, self.check.mean_ulp)

    @property
    def sentence(self) -> str:
        """The numbers in words, or why there are none."""
        if self.unsupported:
            return f"the emulator does not know {', '.join(self.unsupported)}"
        if self.check is None:
            return self.reason or "it did not run to its end"
        if not self.check.wrong:
            findings = "1 finding" if len(self.findings) == 1 else f"{len(self.findings)} findings"
            found = f"{findings}; its numbers are right, " if self.findings else ""
            return f"{found}{self.excess or self._errors}"
        row, col = self.check.first or (0, 0)
        inexact = self.status is Status.INACCURATE
        checked = self.elements or self.problem.rows * self.problem.cols
        limit = self.accuracy.limits(self.problem.output_dtype).of_an_element
        # Of wrong elements, those that are no number or should be 0 have no error to speak of.
        return (
            f"{self.check.wrong} of {checked} elements are "
            f"{f'inaccurate under {self.accuracy} ({limit})' if inexact else 'wrong'}, "
            f"the first, in row {row}, column {col}, {self._first_wrong}"
            f"{f'; {self._errors}' if inexact else ''}"
        )

    @property
    def _first_wrong(self) -> str:
        """What the first wrong element is, and what it should be."""
        assert self.check is not None
        got, due = self.check.got, self.check.due
        if got is None or due is None:
            return "is not what it should be"
        is_exact = due == 0 and isinf(self.check.deviation)
        is_, should_be = _told_apart(got, due)
        return f"is {is_}, and should be {'exactly 0' if is_exact else should_be}"

    @property
    def _errors(self) -> str:
        assert self.check is not None
        return (
            f"largest relative error {self.check.error:.1e}, {self.check.max_ulp:.3g} ulp, "
            f"{self.check.mean_ulp:.2g} on average"
        )


def _told_apart(got: float, due: float) -> tuple[str, str]:
    """Two numbers in words, with as many digits as tell one from the other."""
    for digits in (3, 6, 9, 17):
        told = tuple("NaN" if isnan(n) else f"{n:.{digits}g}" for n in (got, due))
        if told[0] != told[1]:
            break
    return told[0], told[1]
