"""What a finished search prints: the finals, the circumstances, the command to go on with."""

from rich.console import Console

from explorer.evaluate.finalists import FinalistCheck
from explorer.evaluate.space_version import space_version
from explorer.report.circumstances import measurement_lines
from explorer.report.commands import CHANGED, is_reproducible, reproducing_command
from explorer.report.console import notes
from explorer.report.figures import count, counted, percent, seconds
from explorer.report.finals_table import finals_notes, finals_table
from explorer.report.rejections import rejected_by_stage
from explorer.report.words import brief_words
from explorer.tuning.results import SearchResult


def print_search(
    result: SearchResult,
    console: Console,
    storage: str | None = None,
    checked: FinalistCheck | None = None,
) -> None:
    """The table of the finals; the last line is the command that reproduces the winner."""
    finals, problem = result.finals, result.problem
    origin = "recorded on" if result.replayed else "on"
    console.print(f"{problem} {origin} {result.circumstances.gpu}", style="bold")
    console.print()
    console.print(finals_table(finals, problem, result.circumstances, console))
    console.print()
    trial = finals.winner.trial
    lines = [
        ("best", f"trial {trial.number}: {brief_words(trial.config)}"),
        *finals_notes(finals, replayed=result.replayed),
        ("trials", tally(result)),
        *_measured_where(result),
    ]
    lines += [] if checked is None else [("verified", checked_sentence(checked))]
    lines += [] if is_reproducible(trial, problem) else [("code", CHANGED)]
    console.print(notes(lines))
    console.print()
    command = reproducing_command(trial, problem, result.goal, storage)
    console.print(command, style="bold", soft_wrap=True)


def checked_sentence(checked: FinalistCheck, which: str = "the best and its ties") -> str:
    """How many finalists the emulator checked, `which` they are, and how that ended."""
    sentence = (
        f"{checked.verified} of {checked.finalists} finalists ({which}) by emulation "
        f"for {checked.arch} in {checked.elapsed_s:.1f} s"
    )
    if checked.inaccurate:
        sentence += f"; {checked.inaccurate} right but for rounding"
    if checked.unverified:
        sentence += f"; {checked.unverified} could not be verified"
    left = checked.finalists - checked.checked
    return f"{sentence}; {left} left unchecked for lack of time" if left else sentence


def tally(result: SearchResult) -> str:
    """How many trials in what time, and what became of them."""
    rejected = rejected_by_stage(result.rejected) or "none"
    kernels = "kernel of the recording" if result.replayed else "kernel of the space"
    if result.exhausted and not result.trials:
        return f"None: every {kernels} is in the study already. Seed {result.seed}."
    end = f" Nothing is left to try: every {kernels} is in the study." if result.exhausted else ""
    return (
        f"{count(result.trials)} in {seconds(result.elapsed_s)}: "
        f"{counted(result.measured, 'kernel')} measured, {count(result.duplicates)} whose code was "
        f"known, rejected: {rejected}. Seed {result.seed}.{end}"
    )


def _measured_where(result: SearchResult) -> list[tuple[str, str]]:
    (label, line), *copy = measurement_lines(result.circumstances, replayed=result.replayed)
    peak = result.circumstances.peak_gbps
    if peak:
        reached = result.problem.gbps(result.finals.winner.time_us) / peak
        line += f" · best at {percent(reached)} of the datasheet's {peak:.0f} GB/s"
    return [(label, line), *_age(result), *copy]


def _age(result: SearchResult) -> list[tuple[str, str]]:
    """What a reader must know of an older recording: newer kernels, perhaps faster, it lacks."""
    if not result.replayed or result.circumstances.space_version == space_version():
        return []
    advice = "explorer emit heuristic may be faster than its best"
    return [("older", f"recorded of an older space, without the choices that came since: {advice}")]
