"""What `explorer verify --json` prints."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from explorer.devices.emulated.emulation import Emulation, Status
from explorer.evaluate.program_under_test import ProgramUnderTest
from explorer.evaluate.verdict import Verdict
from explorer.ptx_emulator import Finding, SourceLine
from explorer.report.findings_text import line_text

Data = dict[str, Any]


def verification_data(verdicts: Sequence[Verdict]) -> Data:
    """The count of each status, and every program with its runs and findings."""
    found = Counter(verdict.status for verdict in verdicts)
    return {
        **{str(status): found[status] for status in Status},
        "programs": [verdict_data(verdict) for verdict in verdicts],
    }


def verdict_data(verdict: Verdict) -> Data:
    """status, by, sentence, config, cols, dtype, runs."""
    program = verdict.program
    return {
        "status": str(verdict.status),
        "by": verdict.by,
        "sentence": verdict.sentence,
        "config": program.config.as_dict(),
        "cols": program.cols,
        "dtype": str(program.problem.dtype),
        "runs": [_run(run, program) for run in verdict.runs],
    }


def _run(run: Emulation, program: ProgramUnderTest) -> Data:
    return {
        "rows": run.problem.rows,
        "cols": run.problem.cols,
        "checked_rows": run.elements // run.problem.cols or run.problem.rows,
        "odd_elements": run.odd_elements,
        "status": str(run.status),
        "sentence": run.sentence,
        "error": run.check.error if run.check else None,
        "max_ulp": run.check.max_ulp if run.check else None,
        "mean_ulp": run.check.mean_ulp if run.check else None,
        "wrong_elements": run.check.wrong if run.check else None,
        "unsupported": list(run.unsupported),
        "left_out": run.left_out,
        "findings": [_finding(finding, program) for finding in run.findings],
    }


def _finding(finding: Finding, program: ProgramUnderTest) -> Data:
    return {
        "kind": str(finding.kind),
        "message": finding.message,
        "source": _line(finding.source, program),
        "other": _line(finding.other, program),
        "ptx_line": finding.ptx_line or None,
        "block": finding.block,
        "thread": finding.thread,
        "count": finding.count,
    }


def _line(place: SourceLine | None, program: ProgramUnderTest) -> Data | None:
    if place is None:
        return None
    text = line_text(program.source, place.line)
    return {**asdict(place), "file": program.file, "text": text}
