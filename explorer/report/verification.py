"""What `explorer verify`, `time` and `emit` say of kernels: verdicts, findings, times, launches."""

import re
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.text import Text

from explorer.codegen.variant import (
    HOST_HEADING,
    LIBRARY_MACRO,
    POINTER,
    HostCall,
    Variant,
    needed_arch,
)
from explorer.devices.program_under_test import ProgramUnderTest
from explorer.devices.verdict import Emulation, Status, Verdict, told_once
from explorer.evaluate.verify import TimedFile
from explorer.model.outcome import Measured, Resources
from explorer.model.problem import Mask, inputs, output, scalars
from explorer.ptx_emulator import Finding, SourceLine
from explorer.reference.check import Check
from explorer.reference.layout import misalignment
from explorer.report.profile import what_data
from explorer.report.progress import LiveLine
from explorer.report.table import Table, data_of, notes, prose, words
from explorer.report.text import (
    TIMED,
    TimedRow,
    count,
    counted,
    measurement_lines,
    microseconds,
    problem_data,
    seconds,
)

# ------------------------------------------------------------------ one finding


def finding_lines(finding: Finding, program: ProgramUnderTest) -> list[str]:
    """Say what is wrong, then where: lines of the `.cu` with their text, of the PTX, the thread."""
    # The other access has a line of its own below.
    message = finding.message.replace(f" at {finding.other}", "")
    lines = [f"{finding.kind}: {message}"]
    lines += _place("at", finding.source, program)
    lines += _place("against", finding.other, program)
    where = []
    if finding.ptx_line:
        where.append(f"PTX line {finding.ptx_line}")
    if finding.block is not None and finding.thread is not None:
        where.append(f"block {_extent(finding.block)}, thread {_extent(finding.thread)}")
    where.append("once" if finding.count == 1 else f"{finding.count} times")
    return [*lines, f"  {' · '.join(where)}"]


def line_text(source: str, number: int) -> str:
    """Return line `number`, from 1, of a source; empty where it has no such line."""
    lines = source.splitlines()
    return lines[number - 1].strip() if 1 <= number <= len(lines) else ""


def _place(word: str, place: SourceLine | None, program: ProgramUnderTest) -> list[str]:
    if place is None:
        return []
    name, source = program.file, program.source
    own = place.file == name
    file, text = (name, line_text(source, place.line)) if own else (Path(place.file).name, "")
    lines = [f"  {word} {file}:{place.line}" + (f": {text}" if text else "")]
    text = line_text(source, place.inlined_at or 0)
    if text:
        lines.append(f"  called in {name}:{place.inlined_at}: {text}")
    return lines


def _extent(place: tuple[int, int, int]) -> str:
    """Return 5 for (5, 0, 0), since launches have one dimension."""
    return str(place[0]) if not any(place[1:]) else str(place)


# ------------------------------------------------------------------ as JSON


Data = dict[str, Any]


def verification_data(verdicts: Sequence[Verdict]) -> Data:
    """Return the count of each status, and every program with its runs and findings."""
    found = Counter(verdict.status for verdict in verdicts)
    return {
        **{str(status): found[status] for status in Status},
        "programs": [verdict_data(verdict) for verdict in verdicts],
    }


def verdict_data(verdict: Verdict) -> Data:
    """Return status, by, sentence, config, cols, what was drawn by which seed, and the runs."""
    program = verdict.program
    return {
        "status": str(verdict.status),
        "by": verdict.by,
        "sentence": verdict.sentence,
        **what_data(program),
        "hint": verdict.hint or None,
        "suspects": [text.strip() for text in hint_lines(verdict)[1:]],
        "remarks": list(_remarks(verdict)),
        "cols": program.cols,
        "most_cols": verdict.most_cols,
        "dtype": str(program.problem.dtype),
        "seed": program.seed,
        "thorough": program.is_thorough,
        "runs": [_run(run, program) for run in verdict.runs],
    }


def _run(run: Emulation, program: ProgramUnderTest) -> Data:
    return {
        "rows": run.problem.rows,
        "cols": run.problem.cols,
        "checked_rows": run.elements // run.problem.result_cols or run.problem.rows,
        "misaligned_by": run.misaligned_by,
        "status": str(run.status),
        "sentence": run.sentence,
        "error": run.check.error if run.check else None,
        "max_ulp": run.check.max_ulp if run.check else None,
        "mean_ulp": run.check.mean_ulp if run.check else None,
        "accuracy": str(run.accuracy) if run.check else None,
        "wrong_elements": run.check.wrong if run.check else None,
        "unsupported": list(run.unsupported),
        "left_out": run.left_out,
        "findings": [_finding(finding, program) for finding in run.findings],
    }


def verdict_rows(verdict: Verdict) -> list[Data]:
    """Return a row for each emulated run; one of the verdict alone where a GPU checked it."""
    of_all = {"by": verdict.by, **what_data(verdict.program)}
    if not verdict.runs:
        return [{"status": str(verdict.status), "sentence": verdict.sentence, **of_all}]
    rows = (_run(run, verdict.program) for run in verdict.runs)
    return [{**row, "findings": [one["kind"] for one in row["findings"]], **of_all} for row in rows]


def verdict_tables(verdict: Verdict) -> list[Table]:
    """Return the runs, those that are told together on one line, and what was found."""
    runs = Table([*words("run"), prose("result")])
    for shape, run in _told_together(verdict):
        runs.add(shape, _run_words(run, verdict))
    found = Table([*words("status"), prose("found")])
    found.add(str(verdict.status), verdict.sentence)
    for finding in told_once(verdict.findings)[:MOST_FINDINGS]:
        found.add("", " · ".join(map(str.strip, finding_lines(finding, verdict.program))))
    for text in (*hint_lines(verdict), *_remarks(verdict)):
        found.add("", text.strip())
    return [runs, found] if runs.rows else [found]


def _finding(finding: Finding, program: ProgramUnderTest) -> Data:
    return {
        **asdict(finding),
        "kind": str(finding.kind),
        "ptx_line": finding.ptx_line or None,
        "source": _line(finding.source, program),
        "other": _line(finding.other, program),
    }


def _line(place: SourceLine | None, program: ProgramUnderTest) -> Data | None:
    if place is None:
        return None
    text = line_text(program.source, place.line)
    return {**asdict(place), "file": program.file, "text": text}


# ------------------------------------------------------------------ the report


MOST_FINDINGS = 8
"""Findings printed for one program; a defect often shows at many instructions."""

COLOURS = {
    Status.VERIFIED: "green",
    Status.INACCURATE: "yellow",
    Status.UNVERIFIED: "yellow",
    Status.WRONG: "red",
}


def exit_code(verdicts: Sequence[Verdict]) -> int:
    """Return 0 if all are verified, 1 if one is wrong, 2 if one could not be verified.

    What is inaccurate alone counts as wrong by itself, but not among many: searches reject it.
    """
    found = {verdict.status for verdict in verdicts}
    if Status.WRONG in found or (len(verdicts) == 1 and Status.INACCURATE in found):
        return 1
    return 2 if Status.UNVERIFIED in found or not verdicts else 0


def print_verdicts(verdicts: Sequence[Verdict], console: Console, elapsed_s: float) -> None:
    """Print what was found of each that is not verified, then the count of each status."""
    if len(verdicts) == 1:
        _print_one(verdicts[0], console, elapsed_s)
        return
    for verdict in verdicts:
        if verdict.status is not Status.VERIFIED:
            _print_verdict(verdict, console)
    if any(v.status is not Status.VERIFIED for v in verdicts):
        console.print()
    console.print(summary(verdicts, elapsed_s), soft_wrap=not console.is_terminal)


def summary(verdicts: Sequence[Verdict], elapsed_s: float) -> str:
    """Say how many there are of each status, by what, in what time."""
    found = Counter(verdict.status for verdict in verdicts)
    counts = ", ".join(f"{count(found[status])} {status}" for status in COLOURS)
    by = f" by {verdicts[0].by}, drawn by seed {verdicts[0].program.seed}," if verdicts else ""
    return f"{count(len(verdicts))} programs: {counts}{by} in {seconds(elapsed_s)}"


def _print_one(verdict: Verdict, console: Console, elapsed_s: float) -> None:
    problem = verdict.program.problem
    title = f"{problem.op} {problem.dtype}, {verdict.program.cols} columns: "
    console.print(title + verdict.program.words, style="bold")
    for shape, run in _told_together(verdict):
        if not _is_told_at_the_end(run, verdict):
            console.print(f"  {shape}: {_run_words(run, verdict)}")
        if run.left_out:
            console.print(f"    left out: {run.left_out}", style="yellow")
    _print_verdict(verdict, console, named=False)
    for remark in _remarks(verdict):
        console.print(f"  {remark}", style="yellow", soft_wrap=not console.is_terminal)
    seed = verdict.program.seed
    console.print(f"by {verdict.by}, drawn by seed {seed}, {elapsed_s:.1f} s", style="dim")


def _told_together(verdict: Verdict) -> Iterator[tuple[str, Emulation]]:
    """Yield each run and its shape in words; the verified ones after the first are told as one."""
    program, groups = verdict.program, dict[object, list[Emulation]]()
    for number, run in enumerate(verdict.runs):
        alone = number == 0 or run.status is not Status.VERIFIED or run.left_out
        key = id(run) if alone else (run.accuracy, bool(run.elements))
        groups.setdefault(key, []).append(run)
    for first, *others in groups.values():
        if not others:
            yield _shape_words(first, program), first
            continue
        by_result = zip(*(run.checks for run in (first, *others)), strict=True)
        largest = replace(first, checks=tuple(map(Check.largest, by_result)))
        if all(run.problem == first.problem for run in others):
            yield f"{1 + len(others)} times {_shape_words(first, program)}", largest
        elif first.elements:
            yield f"{1 + len(others)} sizes, at rows far from the first ones", largest
        else:
            cols = [run.problem.cols for run in (first, *others)]
            least, most = min(cols), max(cols)
            sizes = f"sizes of {least} to {most} columns" if least < most else "numbers of rows"
            yield f"{len(cols)} other {sizes}{_varied_words([first, *others], program)}", largest


def _varied_words(runs: Sequence[Emulation], program: ProgramUnderTest) -> str:
    """Say which run-time arguments of some runs are not the kernel's."""
    own = program.problem
    each = [run.problem for run in runs]
    varied = {
        "scales": any(one.scale != own.scale for one in each),
        "gaps between rows": any(
            one.input_stride - one.cols != own.input_stride - own.cols for one in each
        ),
    }
    words = " and ".join(what for what, is_so in varied.items() if is_so)
    unaligned = ", some unaligned" if any(run.misaligned_by for run in runs) else ""
    return f"{f', of other {words}' if words else ''}{unaligned}"


def _remarks(verdict: Verdict) -> Iterator[str]:
    """Yield what is to be said of a file besides its verdict."""
    program = verdict.program
    yield from verdict.runs[0].remarks if verdict.runs else ()
    is_right = verdict.status is Status.VERIFIED
    if is_right and program.is_own and verdict.runs and not any(r.elements for r in verdict.runs):
        tried = max(run.problem.rows for run in verdict.runs)
        grid = "" if program.has_bounded_grid else ": is the grid right?"
        yield (
            f"only the first {tried} rows were tried, since a block does not work on rows that "
            f"stand together{grid}"
        )
    if program.is_own and "__activemask" in program.compiled_source:
        yield (
            "its __activemask() may leave lanes out on a GPU, where threads of a warp need not go "
            "on together: name the lanes that are meant"
        )
    if program.is_own and re.search(r"\bprintf\s*\(", program.compiled_source):
        yield "its calls of printf were left out, since the emulator prints nothing"
    if program.header_cols:
        yield (
            f"its text is for {program.problem.cols} columns, for which it was checked; its header "
            f"says {program.header_cols}"
        )


def _is_told_at_the_end(run: Emulation, verdict: Verdict) -> bool:
    """Return whether the closing line says all there is of a run that executed nothing."""
    return run.check is None and not run.findings and run.sentence == verdict.sentence


def _run_words(run: Emulation, verdict: Verdict) -> str:
    words = f"{run.status}, {run.sentence}"
    is_looser = run.check is not None and run.accuracy is not verdict.runs[0].accuracy
    return f"{words} (held to {run.accuracy} here)" if is_looser else words


def _shape_words(run: Emulation, program: ProgramUnderTest) -> str:
    """Return the rows and columns of a run, and which run-time arguments are not the kernel's."""
    problem, own = run.problem, program.problem
    words = f"{problem.rows} x {problem.cols}"
    if run.elements:
        words = f"{run.elements // problem.result_cols} rows of {words}, far from the first ones"
    if problem.mask is Mask.CAUSAL:
        words += f" under a mask of {problem.mask_rows} rows"
    if problem.scale != own.scale:
        words += f", scale {problem.scale:g}"
    if problem.input_stride - problem.cols != own.input_stride - own.cols:
        words += f", rows {problem.input_stride} elements apart"
    if problem.mask is Mask.ADDITIVE and problem.mask_rows not in (own.mask_rows, problem.rows):
        words += f", a mask of {counted(problem.mask_rows, 'row')}"
    return words + misalignment(run.misaligned_by)


def _print_verdict(verdict: Verdict, console: Console, *, named: bool = True) -> None:
    line = Text.assemble((str(verdict.status), COLOURS[verdict.status]))
    told = verdict.deciding_run
    line.append(" " + verdict.program.config.to_json(brief=True) if named else "")
    if told is not None and named:
        line.append(f" on {_shape_words(told, verdict.program)}")
    found = len(told_once(verdict.findings))
    line.append(f": {counted(found, 'finding') if found else verdict.sentence}")
    is_one_line = named or verdict.status is not Status.VERIFIED
    console.print(line, soft_wrap=is_one_line and not console.is_terminal)
    print_findings(verdict, console)


def print_findings(verdict: Verdict, console: Console) -> None:
    """Print the findings of the run that decided, with their lines of source."""
    findings = told_once(verdict.findings)
    for finding in findings[:MOST_FINDINGS]:
        for text in finding_lines(finding, verdict.program):
            console.print(f"  {text}", soft_wrap=not console.is_terminal)
    for text in hint_lines(verdict):
        console.print(f"  {text}", soft_wrap=not console.is_terminal)
    if len(findings) > MOST_FINDINGS:
        console.print(f"  and {len(findings) - MOST_FINDINGS} more findings")


MOST_SUSPECTS = 3
"""Lines that are named of those that may hold a mistake."""


def hint_lines(verdict: Verdict) -> list[str]:
    """Return what a defect looks like, and the lines that may hold it; none for what is right."""
    run, program = verdict.deciding_run, verdict.program
    if run is None or (not verdict.hint and run.stored_at is None):
        return []
    lines = [verdict.hint] if verdict.hint else []
    if run.findings or not program.has_own_text or verdict.status is Status.INACCURATE:
        return lines
    suspects = _suspects(program, run.mistake.lines if run.mistake else ())
    for number in suspects[:MOST_SUSPECTS]:
        lines.append(f"  see {program.file}:{number}: {line_text(program.source, number)}")
    if not suspects:
        lines += _place("the numbers are stored at", run.stored_at, program)
    return lines


def _suspects(program: ProgramUnderTest, patterns: Sequence[str]) -> list[int]:
    """Return the lines of a program's kernels that the first of some expressions finds."""
    device = program.compiled_source.partition(HOST_HEADING)[0]
    lines = [line.partition("//")[0] for line in device.splitlines()]
    if program.is_own:
        lines.pop()  # the kernel that calls it
    found = ([n for n, line in enumerate(lines, 1) if re.search(one, line)] for one in patterns)
    return next(filter(None, found), [])


LONG_S = 2.0
"""Seconds of a check after which it is said how far it is."""


class VerifyProgress(LiveLine):
    """Shows the count of each status as verdicts come; it times all of them."""

    def __init__(self, total: int, console: Console) -> None:
        super().__init__(console)
        self.total = total
        self.elapsed_s = 0.0
        self._found: Counter[Status] = Counter()
        self._started = time.monotonic()

    def told(self, ended: int, runs: int) -> None:
        """Say how far the check of a program is, if it takes long."""
        if time.monotonic() - self._started > LONG_S:
            self.show(f"{ended} of {runs} runs, then rows far from the first ones", "runs")

    def __call__(self, verdict: Verdict) -> Verdict:
        """Count a verdict, and say how far it is; of one program that goes without saying."""
        self._found[verdict.status] += 1
        self.elapsed_s = time.monotonic() - self._started
        if self.total > 1:
            counts = ", ".join(f"{count(n)} {status}" for status, n in self._found.items())
            self.show(f"{self._found.total()}/{self.total} programs: {counts}")
        return verdict


# ------------------------------------------------------------------ a file that was timed as well


def print_timed_file(timed: TimedFile, path: Path, console: Console) -> None:
    """Print the time with its spread, the limit's, bandwidth and environment; or what is wrong."""
    program, verdict = timed.verdict.program, timed.verdict
    edited = ", edited" if program.has_own_text else ""
    title = f"{path}{edited}: {timed.problem}, {program.words}"
    console.print(title, style="bold", soft_wrap=not console.is_terminal)
    line = Text.assemble((str(verdict.status), COLOURS[verdict.status]))
    line.append(f" on {verdict.by}: {verdict.sentence}")
    console.print(line, soft_wrap=not console.is_terminal)
    print_findings(verdict, console)
    if timed.measured is None:
        console.print("not timed")
    else:
        console.print(time_words(timed, timed.measured), soft_wrap=not console.is_terminal)
        lines = [("takes", str(timed.measured.resources))]
        lines += measurement_lines(timed.environment, timed.problem, replayed=False)
        console.print(notes(lines))
    for remark in _remarks(verdict):
        console.print(remark, style="yellow", soft_wrap=not console.is_terminal)


def time_words(timed: TimedFile, measured: Measured) -> str:
    """Return time, spread, bandwidth, share of the limit and its time, of a file that was timed."""
    limit_us = timed.environment.limit_us
    beside = f" at {microseconds(limit_us)} µs" if limit_us else ""
    return TimedRow(measured, timed.problem, limit_us).speed + beside


_OF_A_TIME = (
    *("time_us", "spread", "gbps", "of_limit", "error", "max_ulp", "mean_ulp"),
    *("samples_us", "resources"),
)


def timed_file_data(timed: TimedFile, path: Path) -> dict[str, Any]:
    """Return what is printed, as data; times are null where the kernel was not verified."""
    measured, limit_us, known = timed.measured, timed.environment.limit_us, {}
    if measured is not None:
        row = TimedRow(measured, timed.problem, limit_us)
        known = {**asdict(measured), **data_of(TIMED, row)}
    return {
        "file": str(path),
        "is_edited": timed.verdict.program.has_own_text,
        "host_checked": not timed.verdict.program.host.unknown,
        "problem": problem_data(timed.problem),
        "verification": verdict_data(timed.verdict),
        **{name: known.get(name) for name in _OF_A_TIME},
        "limit": timed.problem.limit,
        "limit_us": limit_us or None,
        "circumstances": timed.environment.as_dict(),
    }


# ------------------------------------------------------------------ an emitted kernel as data


def emission_data(
    variant: Variant,
    path: Path,
    written: str,
    arch: str,
    resources: Resources | None,
    verdict: Verdict | None = None,
    program: tuple[Path, str] | None = None,
) -> Data:
    """Return what was written, how it is launched, resources and verification (null: neither).

    `launches` and `arguments` are all that a program needs that compiles the file by NVRTC, and
    `library` all that one needs that calls it as nvcc has compiled it. `program` is the file that
    runs it from a framework, and whether that was written (null: none was asked for).
    """
    needed = needed_arch(variant.problem, variant.config, overlapped=variant.launches[0].overlaps)
    return {
        "file": str(path),
        "written": str(written),
        "problem": problem_data(variant.problem),
        "config": variant.config.as_dict(),
        "digest": variant.digest,
        "arch": arch,
        "resources": None if resources is None else asdict(resources),
        "states_residency": None if resources is None else resources.is_stated(variant.config),
        "verification": None if verdict is None else verdict_data(verdict),
        "launches": [asdict(launch) for launch in variant.launches],
        "arguments": _arguments(variant),
        "scratch_bytes": variant.scratch_bytes,
        "needed_arch": None if needed is None else f"sm_{needed.number}",
        "library": _library(variant),
        "program": None
        if program is None
        else {"file": str(program[0]), "written": str(program[1])},
    }


def _arguments(variant: Variant) -> dict[str, Data]:
    """Return by the names that launches pass: kind, an array's dtype and bytes, a number's value.

    Lengths are int32, scratch memory has no dtype. A launch's grid is `grid` blocks, or, where
    `blocks_per_sm` is not 0, at most so many on each SM. Its cluster is declared in the kernel.
    """
    problem = variant.problem
    arrays = {array.name: array for array in (*inputs(problem), output(problem))}
    numbers = scalars(problem)
    told: dict[str, Data] = {}
    for name in dict.fromkeys(name for launch in variant.launches for name in launch.arguments):
        if name in numbers:
            told[name] = {"kind": numbers[name].dtype.array_name, "value": numbers[name].value}
        elif name in arrays:
            array = arrays[name]
            told[name] = {"kind": POINTER, "dtype": str(array.dtype), "bytes": array.bytes}
        else:
            told[name] = {"kind": POINTER, "dtype": None, "bytes": variant.scratch_bytes}
    return told


def _library(variant: Variant) -> Data:
    """Return the C functions that nvcc makes of the file with a macro, and the C++ namespace."""
    call = HostCall.of(variant.problem, variant.config)
    stream = {"name": "stream", "kind": POINTER}
    scratch = call.scratch_arguments
    return {
        "macro": LIBRARY_MACRO,
        "namespace": call.namespace,
        "function": call.function,
        "arguments": [*(asdict(argument) for argument in call.arguments), stream],
        "scratch_function": call.scratch_function,
        "scratch_arguments": None if scratch is None else [asdict(a) for a in scratch],
    }
