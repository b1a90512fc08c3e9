"""What `explorer time` prints: a file's time beside copy, or why it was not timed."""

from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich.console import Console

from explorer.config_words import brief_words
from explorer.evaluate.verify import TimedFile
from explorer.report.json_data import problem_data
from explorer.report.table import cell, notes
from explorer.report.text import (
    measurement_lines,
    microseconds,
    percent,
    resources_line,
    share_of_copy,
    with_spread,
)
from explorer.report.verification import COLOURS, HOST_NOT_CHECKED, print_findings, verdict_data


def print_timed_file(timed: TimedFile, path: Path, console: Console) -> None:
    """The time with its spread, copy's, bandwidth and circumstances; or what is wrong."""
    program, verdict = timed.verdict.program, timed.verdict
    edited = ", edited" if program.is_edited else ""
    title = f"{path}{edited}: {timed.problem}, {brief_words(program.config)}"
    console.print(cell(title), style="bold", soft_wrap=not console.is_terminal)
    line = cell(str(verdict.status))
    line.stylize(COLOURS[verdict.status])
    line.append(f" on {verdict.by}: {verdict.sentence}")
    console.print(line, soft_wrap=not console.is_terminal)
    print_findings(verdict, console)
    if timed.measured is None:
        console.print("not timed")
    else:
        console.print(cell(time_words(timed)), soft_wrap=not console.is_terminal)
        lines = [("takes", resources_line(timed.measured.resources))]
        console.print(notes([*lines, *measurement_lines(timed.circumstances, replayed=False)]))
    if not program.host_checked:
        console.print(cell(HOST_NOT_CHECKED), style="yellow", soft_wrap=not console.is_terminal)


def time_words(timed: TimedFile) -> str:
    """Time, spread, bandwidth, share of copy and copy's time of a file that was timed."""
    assert timed.measured is not None
    time_us, copy_us = timed.measured.time_us, timed.circumstances.copy_us
    told = f"{with_spread(time_us, timed.measured.spread)} µs, {timed.problem.gbps(time_us):.0f}"
    share = share_of_copy(time_us, copy_us)
    beside = "" if share is None else f", {percent(share)} of copy at {microseconds(copy_us)} µs"
    return f"{told} GB/s{beside}"


def timed_file_data(timed: TimedFile, path: Path) -> dict[str, Any]:
    """What is printed, as data; the times are null where the kernel was not verified."""
    measured, copy_us = timed.measured, timed.circumstances.copy_us
    time_us = None if measured is None else measured.time_us
    return {
        "file": str(path),
        "is_edited": timed.verdict.program.is_edited,
        "host_checked": timed.verdict.program.host_checked,
        "problem": problem_data(timed.problem),
        "verification": verdict_data(timed.verdict),
        "time_us": time_us,
        "spread": None if measured is None else measured.spread,
        "gbps": None if time_us is None else timed.problem.gbps(time_us),
        "copy_us": copy_us or None,
        "of_copy": None if time_us is None else share_of_copy(time_us, copy_us),
        "error": None if measured is None else measured.error,
        "max_ulp": None if measured is None else measured.max_ulp,
        "mean_ulp": None if measured is None else measured.mean_ulp,
        "samples_us": None if measured is None else list(measured.samples_us),
        "resources": None if measured is None else asdict(measured.resources),
        "circumstances": timed.circumstances.as_dict(),
    }
