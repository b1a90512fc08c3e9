"""The Pareto front of a search for time and error: a table for a person, data for a program."""

from typing import Any

from rich.console import Console

from explorer.evaluate.verify import FinalistCheck
from explorer.model.config_words import brief_words, difference_words
from explorer.model.outcome import Contender, TrialRecord
from explorer.model.problem import Problem
from explorer.report.finals import finalist_data
from explorer.report.studies import checked_sentence, tally
from explorer.report.table import Table, notes, numbers, print_table, prose, words
from explorer.report.text import (
    count,
    counted,
    measurement_lines,
    microseconds,
    percent,
    rejections,
    reproducing_command,
    search_command,
    share_of_copy,
    ulps,
    with_spread,
)
from explorer.tuning.contest import Finals, front_of, ratios_to_next, since_finals
from explorer.tuning.objective import Goal
from explorer.tuning.results import SearchResult, StudyView

# ------------------------------------------------------------------ as a table


DIFFERENCE_WIDTH = 40
"""Columns for what a config has that the fastest has not."""

FRONT = "the front"
"""What is checked of its finalists."""

_COLUMNS = (
    *words(""),
    *numbers("trial", "µs", "of copy", "max ulp", "mean ulp", "regs"),
    prose("differs from the fastest by", 1),
)


def print_front(
    result: SearchResult,
    console: Console,
    storage: str | None = None,
    checked: FinalistCheck | None = None,
) -> None:
    """What a search for time and error found, and the command that writes each member."""
    problem, origin = result.problem, "recorded on" if result.replayed else "on"
    title = f"{problem} {origin} {result.environment.gpu}: time against error"
    console.print(title, style="bold")
    console.print()
    print_table(_front_table(result.finals), console)
    console.print()
    lines = [*_front_notes(result.finals), ("trials", tally(result))]
    lines += measurement_lines(result.environment, replayed=result.replayed)
    lines += [] if checked is None else [("verified", checked_sentence(checked, FRONT))]
    console.print(notes(lines))
    trials = [member.trial for member in front_of(result.finals)]
    _print_commands(
        [reproducing_command(t, problem, result.goal, storage) for t in trials], console
    )


def print_front_study(view: StudyView, console: Console, storage: str | None = None) -> None:
    """The same of a stored study; as the search measured it where there were no finals yet."""
    summary, finals = view.summary, view.finals
    console.print(f"{summary.problem} on {summary.gpu}: time against error", style="bold")
    console.print(f"study {summary.name}")
    console.print()
    if finals is None:
        print_table(_trials_table(view.front, view.environment.copy_us), console)
        members = list(view.front)
        lines = [("front", "no finals yet: a search that comes to its end holds them")]
    else:
        print_table(_front_table(finals), console)
        members = [member.trial for member in front_of(finals)]
        lines = _front_notes(finals) + _since(view, finals, storage)
    rejected = rejections(view.rejected) or "none rejected"
    measured = counted(summary.measured, "kernel")
    lines += [("trials", f"{count(summary.trials)}: {measured} measured, {rejected}")]
    lines += measurement_lines(view.environment, replayed=summary.replayed)
    console.print()
    console.print(notes(lines))
    problem, goal = summary.problem, summary.goal
    _print_commands([reproducing_command(t, problem, goal, storage) for t in members], console)


def _front_table(finals: Finals) -> Table:
    """The front from the fastest to the most exact, `=` where the next is as fast; then copy."""
    table = Table(_COLUMNS, keys=2)
    front = front_of(finals)
    fastest = front[0].trial
    for member, is_tie in zip(front, _ties_with_next(front, finals), strict=True):
        share = share_of_copy(member.time_us, finals.copy_us)
        time = with_spread(member.time_us, member.spread)
        table.add("=" if is_tie else "", *_cells(member.trial, time, share, fastest))
    if finals.copy_us:
        time = microseconds(finals.copy_us)
        table.add("", "copy", time, "100.0 %", "", "", "", "copy of the same bytes")
    return table


def _trials_table(trials: tuple[TrialRecord, ...], copy_us: float) -> Table:
    table = Table(_COLUMNS, keys=2)
    for trial in trials:
        outcome = trial.outcome
        share = share_of_copy(outcome.time_us, copy_us)
        time = with_spread(outcome.time_us, outcome.spread)
        table.add("", *_cells(trial, time, share, trials[0]))
    return table


def _cells(trial: TrialRecord, time: str, share: float | None, fastest: TrialRecord) -> list[str]:
    outcome = trial.outcome
    differs = difference_words(trial.config, fastest.config, DIFFERENCE_WIDTH) or "nothing"
    return [
        str(trial.number),
        time,
        percent(share) if share is not None else "",
        ulps(outcome.max_ulp),
        ulps(outcome.mean_ulp),
        str(outcome.resources.registers),
        "the fastest" if trial is fastest else differs,
    ]


def _front_notes(finals: Finals) -> list[tuple[str, str]]:
    """What the front is, and which of its members are ties."""
    front = front_of(finals)
    fastest = brief_words(front[0].config)
    left = len(finals.finalists) - len(front)
    sentence = f"{counted(len(front), 'kernel')} than which none is both faster and more exact"
    if left:
        sentence += f"; {count(left)} more looked so before they were timed in turn"
    return [
        ("fastest", fastest),
        ("front", f"{sentence}."),
        ("ties", _ties(front, finals)),
    ]


def _ties_with_next(front: list[Contender], finals: Finals) -> list[bool]:
    return [r is not None and r.is_tie(finals.noise) for r in ratios_to_next(front)]


def _ties(front: list[Contender], finals: Finals) -> str:
    if len(front) == 1:
        return "None: one kernel is both the fastest and the most exact."
    tied = sum(_ties_with_next(front, finals))
    how = "interleaved" if finals.interleaved else "not interleaved: recorded one after another"
    what = (
        f"{count(tied)} of them (=) not known to be faster than the next, which is more exact"
        if tied
        else "Each is faster than the next, which is more exact"
    )
    return f"{what}. Noise {percent(finals.noise, 2)}; {finals.rounds} rounds, {how}."


def _since(view: StudyView, finals: Finals, storage: str | None) -> list[tuple[str, str]]:
    later = since_finals(view.front, finals)
    if not later:
        return []
    search = search_command(view.summary, storage)
    sentence = (
        f"{counted(len(later), 'trial')} of a search that was stopped before its finals would be "
        f"on the front; compare with the others: {search}"
    )
    return [("since", sentence)]


def _print_commands(commands: list[str], console: Console) -> None:
    """One a member of the front."""
    console.print()
    for command in commands:
        console.print(command, style="bold", soft_wrap=True)


# ------------------------------------------------------------------ as JSON


def front_data(
    finals: Finals, problem: Problem, goal: Goal, storage: str | None = None
) -> list[dict[str, Any]]:
    """The Pareto front, the fastest first: the finalist, how it compares with the next, emit."""
    front = front_of(finals)
    return [
        {
            **finalist_data(rank, member, finals, problem),
            "ratio_to_next": to_next.median if to_next else None,
            "tied_with_next": to_next is not None and to_next.is_tie(finals.noise),
            "emit": reproducing_command(member.trial, problem, goal, storage),
        }
        for rank, (member, to_next) in enumerate(zip(front, ratios_to_next(front), strict=True), 1)
    ]
