"""What a check of one program came to, wherever it was made."""

from dataclasses import dataclass

from explorer.devices.emulated.emulation import WORST_FIRST, Emulation, Status
from explorer.evaluate.program_under_test import ProgramUnderTest


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


def _sentence(runs: tuple[Emulation, ...], status: Status) -> str:
    deciding = [run for run in runs if run.status is status]
    if not deciding:
        return "nothing was run"
    if status in (Status.WRONG, Status.UNVERIFIED):
        findings = deciding[0].findings
        return f"{findings[0].kind}: {findings[0].message}" if findings else deciding[0].sentence
    least_exact = max(deciding, key=lambda run: run.check.max_ulp if run.check else 0.0)
    return least_exact.sentence
