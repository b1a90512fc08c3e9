"""The finals of a search: a table for a person, plain data for a program."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from rich.console import Console

from explorer.model.config_words import difference_words
from explorer.model.outcome import Contender, Environment, Measured, TrialRecord
from explorer.model.problem import Problem
from explorer.report.table import GAP, LEAST_PROSE, Column, Table, number, print_table, prose, word
from explorer.report.text import (
    counted,
    microseconds,
    percent,
    share_of_copy,
    ulps,
    with_spread,
)
from explorer.tuning.contest import CONFIDENCE, Finals

# ------------------------------------------------------------------ as JSON


Data = dict[str, Any]


def finals_data(finals: Finals, problem: Problem) -> Data:
    """How they were held, copy, and every finalist in order."""
    contenders = enumerate(finals.finalists, start=1)
    return {
        "interleaved": finals.interleaved,
        "rounds": finals.rounds,
        "noise": finals.noise,
        "copy_us": finals.copy_us or None,
        "copy_spread": finals.copy_spread,
        "copy_gbps": problem.gbps(finals.copy_us) if finals.copy_us else None,
        "finalists": [finalist_data(rank, f, finals, problem) for rank, f in contenders],
    }


def finalist_data(rank: int, finalist: Contender, finals: Finals, problem: Problem) -> Data:
    """Return a finalist of a rank from 1, beside the fastest and beside copy."""
    return {
        "rank": rank,
        **trial_data(finalist.trial, problem),
        "time_us": finalist.time_us,
        "spread": finalist.spread,
        "gbps": problem.gbps(finalist.time_us),
        "of_copy": share_of_copy(finalist.time_us, finals.copy_us),
        "tied": finalist.tied,
        "ratio_to_best": finalist.ratio_to_best,
        "ratio_low": finalist.ratio_low,
        "ratio_high": finalist.ratio_high,
    }


def trial_data(trial: TrialRecord, problem: Problem) -> Data:
    """A trial as the search measured it."""
    outcome: Measured = trial.outcome
    return {
        "trial": trial.number,
        "time_us": outcome.time_us,
        "spread": outcome.spread,
        "gbps": problem.gbps(outcome.time_us),
        "config": trial.config.as_dict(),
        "registers": outcome.resources.registers,
        "shared_bytes": outcome.resources.shared_bytes,
        "spill_bytes": outcome.resources.spill_store_bytes + outcome.resources.spill_load_bytes,
        "code_bytes": outcome.resources.code_bytes,
        "error": outcome.error,
        "max_ulp": outcome.max_ulp,
        "mean_ulp": outcome.mean_ulp,
        "digest": outcome.digest,
    }


def winner_data(finals: Finals, problem: Problem) -> Data:
    """The winner, as it is among the finalists."""
    return finalist_data(1, finals.winner, finals, problem)


# ------------------------------------------------------------------ as a table


ROWS_AFTER_TIES = 5
"""How many finalists are shown after the tie set."""

MOST_ROWS = 15
"""How many finalists are shown at most: a large tie set is told by its count."""


@dataclass(frozen=True, slots=True)
class _Ranked:
    """A finalist and what its row is about."""

    rank: int
    """From 1."""
    finalist: Contender
    finals: Finals
    problem: Problem

    @property
    def share(self) -> str:
        """Copy's time over the finalist's, in percent; empty where copy was not measured."""
        share = share_of_copy(self.finalist.time_us, self.finals.copy_us)
        return percent(share) if share is not None else ""


@dataclass(frozen=True, slots=True)
class _FinalsColumn:
    """One column: its heading, its cell of each finalist, and that of copy."""

    column: Column
    cell: Callable[[_Ranked], str]
    of_copy: Callable[[Finals, Problem], str] = lambda finals, problem: ""


def _copy_time(finals: Finals, problem: Problem) -> str:
    if finals.copy_spread is None:
        return microseconds(finals.copy_us)
    return with_spread(finals.copy_us, finals.copy_spread)


def _copy_ratio(finals: Finals, problem: Problem) -> str:
    return f"{finals.copy_us / min(finalist.time_us for finalist in finals.finalists):.3f}"


_COLUMNS = (
    _FinalsColumn(
        word("rank"),
        lambda r: f"{r.rank:>2}{' =' if r.finalist.tied else ''}",
        lambda finals, problem: "copy",
    ),
    _FinalsColumn(number("trial"), lambda r: str(r.finalist.trial.number)),
    _FinalsColumn(
        number("µs"), lambda r: with_spread(r.finalist.time_us, r.finalist.spread), _copy_time
    ),
    _FinalsColumn(
        number("GB/s"),
        lambda r: f"{r.problem.gbps(r.finalist.time_us):.0f}",
        lambda finals, problem: f"{problem.gbps(finals.copy_us):.0f}",
    ),
    _FinalsColumn(number("of copy"), lambda r: r.share, lambda finals, problem: "100.0 %"),
    _FinalsColumn(number("ratio"), lambda r: f"{r.finalist.ratio_to_best:.3f}", _copy_ratio),
    _FinalsColumn(number("regs"), lambda r: str(r.finalist.trial.outcome.resources.registers)),
    _FinalsColumn(number("ulp"), lambda r: ulps(r.finalist.trial.outcome.max_ulp)),
)
"""What the table says of each finalist; beside it stands how its config differs from the best."""


def print_finals(
    finals: Finals, problem: Problem, environment: Environment, console: Console
) -> None:
    """The best and its tie set (marked =), the next few, then copy and the datasheet."""
    listed = shown(finals)
    rows = [
        [column.cell(_Ranked(rank, finalist, finals, problem)) for column in _COLUMNS]
        for rank, finalist in enumerate(listed, start=1)
    ]
    rows.append([column.of_copy(finals, problem) if finals.copy_us else "" for column in _COLUMNS])
    headings = [column.column.heading for column in _COLUMNS]
    widths = [max(map(len, cells)) for cells in zip(headings, *rows, strict=True)]
    left = console.width - sum(widths) - GAP * len(widths)
    if left < LEAST_PROSE:  # the last column then stands below, beside the first one
        left = console.width - widths[0] - GAP
    table = Table([*(column.column for column in _COLUMNS), prose("differs from the best by", 1)])
    for row, finalist in zip(rows, listed, strict=False):
        table.add(*row, _last_cell(finalist, finals, left))
    table.add(*rows[-1], "copy of the same bytes" if finals.copy_us else "copy was not measured")
    if environment.peak_gbps:
        peak = f"{environment.peak_gbps:.0f}"
        told = {"rank": "peak", "GB/s": peak}
        table.add(*(told.get(name, "") for name in headings), "datasheet")
    print_table(table, console)


def shown(finals: Finals) -> tuple[Contender, ...]:
    """The finalists that the table lists."""
    return finals.finalists[: min(MOST_ROWS, len(finals.ties) + ROWS_AFTER_TIES)]


def finals_notes(finals: Finals, *, replayed: bool) -> list[tuple[str, str]]:
    """Who is tied and what can be resolved; by what the rows are ordered."""
    lines = [("ties", _ties_sentence(finals, replayed=replayed))]
    if len(finals.finalists) > 1:
        lines.append(("order", _ORDER))
    return lines


_ORDER = (
    "The kernels that tie with the fastest (=) come first, since their times cannot be told apart: "
    "among them those of fewer registers, then of shorter code. The others follow by ratio, the "
    "median over rounds of their time over the fastest's."
)


def _last_cell(finalist: Contender, finals: Finals, width: int) -> str:
    if finalist is finals.winner:
        return "the best"
    best = finals.winner.config
    return difference_words(finalist.config, best, width) or "nothing"


def _ties_sentence(finals: Finals, *, replayed: bool) -> str:
    """Say how many tie, what decides a tie, and why the first of several is the first."""
    how = f"Noise {percent(finals.noise, 2)}; {_how(finals, replayed=replayed)}. {_rule(finals)}"
    if len(finals.ties) <= 1:  # none, in a damaged database
        return f"No other finalist ties with the best. {how}"
    ratios = [finalist.ratio_to_best for finalist in finals.ties]
    apart = percent(max(ratios) - min(ratios))
    others = counted(len(finals.ties) - 1, "other config")
    verb = "ties" if len(finals.ties) == 2 else "tie"
    return f"{others} {verb} with the best (=), at most {apart} apart. {how} {_choice(finals)}"


def _rule(finals: Finals) -> str:
    """Say what decides a tie; with the intervals that did, where a tie's ratio is beyond noise."""
    interval = f"{percent(CONFIDENCE, 0)} confidence interval, for all finalists together,"
    rule = f"A config ties if its ratio is within the noise of 1, or if the ratio's {interval}"
    furthest = max(finals.ties, key=lambda f: f.ratio_to_best, default=None)
    if furthest is None or abs(furthest.ratio_to_best - 1) <= finals.noise:
        return f"{rule} includes 1."
    told = f"as trial {furthest.trial.number}'s {_interval(furthest)} does"
    others = [f for f in finals.finalists if not f.tied]
    if others:
        nearest = min(others, key=lambda f: f.ratio_to_best)
        told += f" and trial {nearest.trial.number}'s {_interval(nearest)} does not"
    return f"{rule} includes 1, {told}."


def _interval(finalist: Contender) -> str:
    return f"({finalist.ratio_low:.4f} to {finalist.ratio_high:.4f})"


def _choice(finals: Finals) -> str:
    """Say why the first of several ties is the first, although another may have a lower time."""
    first, second = (finalist.trial for finalist in finals.ties[:2])
    chosen, next_one = first.outcome.resources, second.outcome.resources
    if chosen.registers != next_one.registers:
        why = f"fewer registers: {chosen.registers}, not {next_one.registers}"
    elif chosen.code_bytes != next_one.code_bytes:
        why = f"shorter code: {chosen.code_bytes} bytes, not {next_one.code_bytes}"
    else:
        return f"Trial {first.number} is chosen: it is the fastest of those that are as small."
    return f"Trial {first.number} is chosen for {why}."


def _how(finals: Finals, *, replayed: bool) -> str:
    if not finals.interleaved:
        return f"{finals.rounds} samples each, not interleaved: recorded one after another"
    return f"{finals.rounds} rounds, interleaved{' when recorded' if replayed else ''}"
