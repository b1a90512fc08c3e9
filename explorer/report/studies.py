"""What `explorer search`, `show` and `studies` print."""

import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from explorer.evaluate.space_version import space_version
from explorer.evaluate.verify import FinalistCheck
from explorer.model.config_words import brief_words
from explorer.model.errors import NotFound
from explorer.report.finals import finals_notes, print_finals
from explorer.report.main_effects import (
    FIRST_TIMES,
    METHOD,
    UNPAIRED,
    headlines,
    unpaired_table,
)
from explorer.report.table import Table, as_markdown, notes, numbers, print_table, prose, words
from explorer.report.text import (
    CHANGED,
    count,
    counted,
    is_reproducible,
    measurement_lines,
    microseconds,
    percent,
    rejections,
    reproducing_command,
    search_command,
    seconds,
    share_of_copy,
    with_spread,
)
from explorer.tuning.objective import Objectives
from explorer.tuning.results import ParameterEffect, SearchResult, StudySummary, StudyView
from explorer.tuning.storage import Journal, default_storage, open_storage
from explorer.tuning.study_reader import EARLIER, SAMPLED, SAMPLES, read_studies

# ------------------------------------------------------------------ a search


def print_search(
    result: SearchResult,
    console: Console,
    storage: str | None = None,
    checked: FinalistCheck | None = None,
) -> None:
    """The table of the finals; the last line is the command that reproduces the winner."""
    finals, problem = result.finals, result.problem
    origin = "recorded on" if result.replayed else "on"
    console.print(f"{problem} {origin} {result.environment.gpu}", style="bold")
    console.print()
    print_finals(finals, problem, result.environment, console)
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
    rejected = rejections(result.rejected) or "none rejected"
    kernels = "kernel of the recording" if result.replayed else "kernel of the space"
    if result.exhausted and not result.trials:
        return f"None: every {kernels} is in the study already. Seed {result.seed}."
    end = f" Nothing is left to try: every {kernels} is in the study." if result.exhausted else ""
    if result.stopped:
        end = f" Stopped early: {result.stopped}; --trials tries more, or a greater --effort."
    return (
        f"{count(result.trials)} in {seconds(result.elapsed_s)}: "
        f"{counted(result.measured, 'kernel')} measured, {count(result.duplicates)} skipped "
        f"as duplicates, {rejected}. Seed {result.seed}.{end}"
    )


def _measured_where(result: SearchResult) -> list[tuple[str, str]]:
    (label, line), *copy = measurement_lines(result.environment, replayed=result.replayed)
    peak = result.environment.peak_gbps
    if peak:
        reached = result.problem.gbps(result.finals.winner.time_us) / peak
        line += f" · best at {percent(reached)} of the datasheet's {peak:.0f} GB/s"
    return [(label, line), *_age(result), *copy]


def _age(result: SearchResult) -> list[tuple[str, str]]:
    """What a reader must know of an older recording: its kernels may not be those of today."""
    if not result.replayed or result.environment.space_version == space_version(result.problem):
        return []
    return [
        (
            "note",
            "this recording predates some options of the space. explorer emit writes the kernels "
            "as the templates emit them today; explorer emit heuristic may be faster",
        )
    ]


# ------------------------------------------------------------------ a study


MOST_REASONS = 12
"""How many reasons of rejection are listed."""


def print_study(view: StudyView, console: Console, storage: str | None = None) -> None:
    """Best, ties, rejections by stage and reason, and what each parameter does to the time."""
    summary = view.summary
    console.print(f"{summary.problem} on {summary.gpu}", style="bold")
    console.print(f"study {summary.name}")
    console.print()
    if view.finals is not None:
        print_finals(view.finals, summary.problem, view.environment, console)
        console.print()
    console.print(notes(_lines(view, storage)))
    if view.reasons:
        print_table(_reasons_table(view), console)
    if view.effects:
        print_table(_effects_table(view.effects), console)
        console.print(notes([("method", importance_method(view.effects))]))
    told = headlines(view)
    if told:
        print_table(_main_effects_table(told), console)
        console.print(notes([("method", METHOD)]))
    if view.unpaired:
        print_table(unpaired_table(view), console)
        console.print(notes([("note", UNPAIRED)]))
        if view.finals is not None:
            console.print(notes([("times", FIRST_TIMES)]))
    console.print()
    command = reproducing_command(view.best, summary.problem, summary.goal, storage)
    console.print(command, style="bold", soft_wrap=True)


def _lines(view: StudyView, storage: str | None) -> list[tuple[str, str]]:
    summary, best = view.summary, view.best
    lines = [("best", f"trial {best.number}: {brief_words(best.config)}")]
    if view.finals is not None:
        lines += finals_notes(view.finals, replayed=summary.replayed)
    else:
        lines += [("time", _time_without_finals(view))]
    if view.since is not None:
        lines += [("since", _since(view, storage))]
    if not summary.is_current:
        search = search_command(summary, storage)
        lines += [("older", f"made with another space or other templates; start anew: {search}")]
    rejected = rejections(view.rejected) or "none rejected"
    tally = f"{count(summary.trials)}: {counted(summary.measured, 'kernel')} measured, "
    lines += [("trials", f"{tally}{rejected}")]
    lines += [("ended", view.ended)] if view.ended else []
    lines += measurement_lines(view.environment, replayed=summary.replayed)
    return lines if is_reproducible(best, summary.problem) else [*lines, ("code", CHANGED)]


def _since(view: StudyView, storage: str | None) -> str:
    assert view.since is not None
    time = microseconds(view.since.outcome.time_us)
    search = search_command(view.summary, storage)
    return (
        f"trial {view.since.number} took {time} µs in a search that was stopped before its finals; "
        f"compare it with the best: {search}"
    )


def _time_without_finals(view: StudyView) -> str:
    outcome, problem = view.best.outcome, view.summary.problem
    text = f"{with_spread(outcome.time_us, outcome.spread)} µs, "
    text += f"{problem.gbps(outcome.time_us):.0f} GB/s"
    share = share_of_copy(outcome.time_us, view.environment.copy_us)
    text += f", {percent(share)} of copy" if share is not None else ""
    return f"{text}; no finals yet: a search that comes to its end holds them"


def _reasons_table(view: StudyView) -> Table:
    columns = [*numbers("count"), *words("stage"), prose("reason")]
    table = Table(columns, title="Rejected, by stage and reason")
    for stage, reason, number in view.reasons[:MOST_REASONS]:
        table.add(count(number), str(stage), reason)
    rest = view.reasons[MOST_REASONS:]
    if rest:
        total = sum(number for _, _, number in rest)
        table.add(count(total), "", f"for {len(rest)} other reasons")
    return table


def _effects_table(effects: tuple[ParameterEffect, ...]) -> Table:
    columns = [*words("parameter"), *numbers("importance", "range")]
    table = Table(columns, title="How much each parameter matters")
    for effect in effects:
        span = f"{100 * effect.importance_low:.0f}–{100 * effect.importance_high:.0f} %"
        table.add(effect.name, percent(effect.importance), span)
    return table


def _main_effects_table(told: list[tuple[str, str]]) -> Table:
    table = Table([*words("parameter"), prose("by itself")], title="What each parameter does")
    for name, sentence in told:
        table.add(name, sentence)
    return table


def importance_method(effects: tuple[ParameterEffect, ...]) -> str:
    """What an importance is, and whether it can be told which parameter matters most."""
    earlier = " and the first ".join(f"{100 * share:.0f} %" for share in EARLIER)
    text = (
        "importance: how much of the difference between the fastest tenth of the kernels and all "
        "of them the parameter explains (PED-ANOVA); range: the least and most that it has in "
        f"{SAMPLES} samples of {100 * SAMPLED:.0f} % of the kernels, and in the first {earlier} of "
        "the search; with more kernels an importance may leave its range. "
    )
    first, *others = effects
    close = [effect.name for effect in others if effect.importance_high >= first.importance_low]
    if not close:
        return f"{text}{first.name} is the most important in all of these"
    return (
        f"{text}These ranges overlap, so that it is not certain whether {first.name} matters more "
        f"than {' or '.join(close)}"
    )


# ------------------------------------------------------------------ all studies


def print_studies(summaries: Sequence[StudySummary], console: Console) -> None:
    """A table of all studies of a storage: kernels measured of trials, what was best."""
    figures = numbers("measured", "best µs", "of copy")
    gpu, remarks = prose("GPU", least_width=8), prose("", least_width=8)
    table = Table([*words("problem"), gpu, *words("L2"), *figures, *words("date"), remarks])
    for summary in summaries:
        share = share_of_copy(summary.best_us, summary.copy_us) if summary.best_us else None
        table.add(
            str(summary.problem).removeprefix("softmax "),
            summary.gpu.removeprefix("NVIDIA "),
            summary.timing,
            f"{count(summary.measured)}/{count(summary.trials)}",
            microseconds(summary.best_us) if summary.best_us else "-",
            percent(share) if share is not None else "-",
            summary.date[:10],
            remark(summary),
        )
    print_table(table, console)


def remark(summary: StudySummary) -> str:
    """Return what a reader of a study's line must know, such as that it is a replay."""
    two = summary.objectives is not Objectives.TIME
    remarks = ["time against error"] if two else []
    remarks += [] if summary.goal.is_usually_exact else [str(summary.accuracy)]
    remarks += ["replayed"] if summary.replayed else []
    remarks += [] if summary.is_current else ["made by an older version"]
    return ", ".join(remarks)


# ------------------------------------------------------------------ all studies as Markdown


def markdown_table(views: Sequence[StudyView]) -> str:
    """One line a study: the finals' winner where there were finals, else the fastest trial."""
    figures = numbers("µs", "copy µs", "GB/s", "of copy")
    last = (*words("config"), *numbers("ties"), *words("GPU", "date"))
    table = Table([*words("rows × cols", "dtype"), *figures, *last])
    for view in views:
        table.add(*_cells(view))
    return as_markdown(table) + "\n"


def markdown_notices(summaries: Sequence[StudySummary], views: Sequence[StudyView]) -> list[str]:
    """What a reader of the table alone would not know: studies left out, nothing but replays."""
    lines = []
    left_out = len(summaries) - len(views)
    if left_out:
        studies = "1 study is" if left_out == 1 else f"{left_out} studies are"
        lines.append(
            f"{studies} left out: made by an older version, searched for time and error, or "
            "without a kernel"
        )
    if all(view.summary.replayed for view in views):
        what = "every row is a replay of a recording" if views else "no study has results"
        lines.append(f"{what}: nothing was measured here; search where there is a GPU")
    return lines


def _cells(view: StudyView) -> list[str]:
    problem, finals = view.summary.problem, view.finals
    if finals is None:
        time_us, spread = view.best.outcome.time_us, view.best.outcome.spread
        copy_us, ties = view.environment.copy_us, "no finals"
    else:
        time_us, spread = finals.winner.time_us, finals.winner.spread
        copy_us, ties = finals.copy_us, str(len(finals.ties) - 1)
    share = share_of_copy(time_us, copy_us)
    return [
        f"{problem.rows} × {problem.cols}",
        str(problem.dtype),
        with_spread(time_us, spread),
        microseconds(copy_us) if copy_us else "-",
        f"{problem.gbps(time_us):.0f}",
        percent(share) if share is not None else "-",
        brief_words(view.best.config),
        ties,
        view.summary.gpu + (f" ({remark(view.summary)})" if remark(view.summary) else ""),
        view.environment.date[:10],
    ]


# ------------------------------------------------------------------ dashboard


PROGRAM = "optuna-dashboard"


def dashboard_program() -> str | None:
    """The path of optuna-dashboard: beside this Python, else anywhere on PATH."""
    beside = shutil.which(PROGRAM, path=str(Path(sys.executable).parent))
    return beside or shutil.which(PROGRAM)


def dashboard_command(storage: str | None, port: int) -> list[str]:
    """What to run; raises NotFound without the extra, and where the storage has no studies.

    Raises InvalidInput for a storage that cannot be read.
    """
    program = dashboard_program()
    if program is None:
        raise NotFound(f"{PROGRAM} is not installed: pip install 'softmax-explorer[dashboard]'")
    opened = open_storage(storage, read_only=True)
    list(read_studies(opened))  # what it cannot read it cannot show
    url = storage or default_storage()
    if isinstance(opened, Journal):
        url = str(opened.path)
    elif "://" not in url:
        url = f"sqlite:///{url}"
    return [program, url, "--port", str(port)]
