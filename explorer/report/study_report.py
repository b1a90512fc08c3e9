"""What `explorer show` prints of one study."""

from rich.console import Console
from rich.table import Table

from explorer.report.circumstances import measurement_lines
from explorer.report.commands import (
    CHANGED,
    is_reproducible,
    reproducing_command,
    search_command,
)
from explorer.report.console import cell, notes, plain_table, print_titled
from explorer.report.figures import (
    count,
    counted,
    microseconds,
    percent,
    share_of_copy,
    with_spread,
)
from explorer.report.finals_table import finals_notes, finals_table
from explorer.report.rejections import rejected_by_stage
from explorer.report.words import brief_words
from explorer.tuning.results import ParameterEffect, StudyView

MOST_REASONS = 12
"""How many reasons of rejection are listed."""


def print_study(view: StudyView, console: Console, storage: str | None = None) -> None:
    """Best, ties, rejections by stage and reason, and what each parameter does to the time."""
    summary = view.summary
    console.print(f"{summary.problem} on {summary.gpu}", style="bold")
    console.print(f"study {summary.name}")
    console.print()
    if view.finals is not None:
        console.print(finals_table(view.finals, summary.problem, view.circumstances, console))
        console.print()
    console.print(notes(_lines(view, storage)))
    if view.reasons:
        print_titled("Rejected, by stage and reason", _reasons_table(view), console)
    if view.effects:
        title = "Parameters, with the median µs of their fastest and slowest value"
        print_titled(title, _effects_table(view.effects), console)
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
    rejected = rejected_by_stage(view.rejected) or "none"
    tally = f"{count(summary.trials)}: {counted(summary.measured, 'kernel')} measured, "
    lines += [("trials", f"{tally}rejected: {rejected}")]
    lines += measurement_lines(view.circumstances, replayed=summary.replayed)
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
    share = share_of_copy(outcome.time_us, view.circumstances.copy_us)
    text += f", {percent(share)} of copy" if share is not None else ""
    return f"{text}; no finals yet: a search that comes to its end holds them"


def _reasons_table(view: StudyView) -> Table:
    table = plain_table()
    table.add_column("count", justify="right", no_wrap=True)
    table.add_column("stage", no_wrap=True)
    table.add_column("reason", overflow="fold")
    for stage, reason, number in view.reasons[:MOST_REASONS]:
        table.add_row(count(number), str(stage), cell(reason))
    rest = view.reasons[MOST_REASONS:]
    if rest:
        total = sum(number for _, _, number in rest)
        table.add_row(count(total), "", f"for {len(rest)} other reasons")
    return table


def _effects_table(effects: tuple[ParameterEffect, ...]) -> Table:
    table = plain_table()
    table.add_column("parameter", no_wrap=True)
    table.add_column("importance", justify="right", no_wrap=True)
    for end in ("fastest", "slowest"):
        table.add_column(end, justify="right", no_wrap=True)
        table.add_column("µs", justify="right", no_wrap=True)
    for effect in effects:
        table.add_row(
            effect.name,
            percent(effect.importance),
            effect.fastest_value,
            microseconds(effect.fastest_us),
            effect.slowest_value,
            microseconds(effect.slowest_us),
        )
    return table
