"""Studies and searches: what `explorer search`, `show` and `studies` print, and as plain data.

Data goes to `--json` and `--csv` under keys that stay as they are: they may be added in a later
version, never renamed or removed. Times are microseconds (`_us`), bandwidths 1e9 bytes a second
(`gbps`), shares fractions of 1; what is not known is null.
"""

import shutil
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from rich.console import Console

from explorer.evaluate.space_version import space_version
from explorer.evaluate.verify import FinalistCheck
from explorer.model.config import Config, Value, brief_words, difference_words
from explorer.model.config import words as config_words
from explorer.model.errors import NotFound
from explorer.model.outcome import Contender, Environment, Rejected, Resources, Stage, TrialRecord
from explorer.model.problem import Problem
from explorer.report.table import (
    Field,
    Kind,
    Table,
    as_markdown,
    data_of,
    notes,
    numbers,
    picked,
    print_table,
    prose,
    table_of,
    words,
)
from explorer.report.text import (
    CHANGED,
    TIMED,
    TimedRow,
    count,
    counted,
    is_reproducible,
    limit_cells,
    limit_us_heading,
    measurement_lines,
    microseconds,
    of_limit_heading,
    percent,
    problem_data,
    rejections,
    reproducing_command,
    search_command,
    seconds,
    share_of_limit,
    ulps,
)
from explorer.tuning.contest import CONFIDENCE, Finals, front_of, ratios_to_next, since_finals
from explorer.tuning.main_effects import (
    BLOCK_OF_A_ROW,
    EARLIER,
    LEAST_PAIRS,
    NEAR,
    SAMPLED,
    SAMPLES,
)
from explorer.tuning.objective import Objectives, where_words
from explorer.tuning.results import (
    Contrast,
    ParameterEffect,
    SearchResult,
    StudySummary,
    StudyView,
    Unpaired,
)
from explorer.tuning.storage import Journal, default_storage, open_storage
from explorer.tuning.study_reader import read_studies, searched_history

Data = dict[str, Any]

# ------------------------------------------------------------------ the fields of a kernel


DIFFERENCE_WIDTH = 34
"""Characters of a line that says how a config differs from the best: two of them fit a terminal of
100 columns beside the other columns."""


@dataclass(frozen=True, slots=True)
class Standing(TimedRow):
    """A kernel of a study as a row of a table: in its finals, or as the search measured it."""

    kernel: Contender
    best: Config
    """The config that it is compared with in words."""
    rank: int = 0
    """From 1; 0 where it was in no finals."""
    is_tie: bool = False
    """Whether it ties with the best; in a front, with the next member, which is more exact."""

    @property
    def resources(self) -> Resources:
        """What ptxas allotted to it."""
        return self.kernel.trial.outcome.resources


FINALIST: tuple[Field[Standing], ...] = (
    Field("rank", lambda r: r.rank, "rank", cell=lambda r: _place(r), kind=Kind.WORD),
    Field("trial", lambda r: r.kernel.trial.number, "trial"),
    *TIMED,
    Field("tied", lambda r: r.kernel.tied),
    Field("ratio_to_best", lambda r: r.kernel.ratio_to_best, "ratio", "{:.3f}".format),
    Field("value", lambda r: r.kernel.value, "value", "{:.5g}".format),
    Field("ratio_low", lambda r: r.kernel.ratio_low),
    Field("ratio_high", lambda r: r.kernel.ratio_high),
    Field("config", lambda r: r.kernel.config.as_dict()),
    Field("registers", lambda r: r.resources.registers, "regs"),
    Field("shared_bytes", lambda r: r.resources.shared_bytes),
    Field("spill_bytes", lambda r: r.resources.spilled_bytes),
    Field("resident_blocks", lambda r: r.resources.resident_blocks or None),
    Field("states_residency", lambda r: r.resources.is_stated(r.kernel.config)),
    Field("code_bytes", lambda r: r.resources.code_bytes),
    Field("error", lambda r: r.kernel.error),
    Field("max_ulp", lambda r: r.kernel.max_ulp, "max ulp", ulps),
    Field("mean_ulp", lambda r: r.kernel.trial.outcome.mean_ulp, show=ulps),
    Field("digest", lambda r: r.kernel.digest),
)
"""What is known of each kernel of the finals. Those with a heading are columns of their table."""

_OF_FINALS = {"rank", "of_limit", "tied", "ratio_to_best", "value", "ratio_low", "ratio_high"}

SEARCHED = [field for field in FINALIST if field.name not in _OF_FINALS]
"""What is known of each kernel that a search has measured."""

_DIFFERENCE: Field[Standing] = Field(
    "", lambda r: _difference(r), "differs from the best by", kind=Kind.PROSE
)


def _place(row: Standing) -> str:
    return f"{row.rank:>2}{' =' if row.is_tie else ''}"


def _difference(row: Standing) -> str:
    config, best = row.kernel.config, row.best
    return "the best" if config == best else difference_words(config, best, DIFFERENCE_WIDTH)


_FRONT = (
    *picked(FINALIST, "rank", "trial", "time_us", "of_limit", "max_ulp"),
    replace(*picked(SEARCHED, "mean_ulp"), heading="mean ulp"),
    *picked(FINALIST, "registers"),
    _DIFFERENCE,
)
"""The columns of a front, which is ordered by error as well."""


def searched(trial: TrialRecord, problem: Problem, limit_us: float, best: Config) -> Standing:
    """Return a kernel as the search measured it."""
    return Standing(Contender.of_trial(trial), problem, limit_us, best)


def standings(finals: Finals, problem: Problem) -> list[Standing]:
    """Return the finalists, the best first."""
    best = finals.winner.config
    return [
        Standing(one, problem, finals.limit_us, best, rank, one.tied)
        for rank, one in enumerate(finals.finalists, 1)
    ]


def best_standing(view: StudyView) -> Standing:
    """Return the best of a study's finals; where there were none, of its search."""
    problem, finals = view.summary.problem, view.finals
    if finals is not None:
        return standings(finals, problem)[0]
    return searched(view.best, problem, view.environment.limit_us, view.best.config)


def front_standings(finals: Finals, problem: Problem) -> list[Standing]:
    """Return the Pareto front, the fastest first."""
    front = front_of(finals)
    return [
        Standing(
            one,
            problem,
            finals.limit_us,
            front[0].config,
            rank,
            to_next is not None and to_next.is_tie(finals.noise),
        )
        for rank, (one, to_next) in enumerate(zip(front, ratios_to_next(front), strict=True), 1)
    ]


# ------------------------------------------------------------------ as data


def finals_data(finals: Finals, problem: Problem) -> Data:
    """Return how the finals were held, the limit, and every finalist in order."""
    return {
        "interleaved": finals.interleaved,
        "rounds": finals.rounds,
        "noise": finals.noise,
        "limit": problem.limit,
        "limit_us": finals.limit_us or None,
        "limit_spread": finals.limit_spread,
        "limit_gbps": problem.gbps(finals.limit_us) if finals.limit_us else None,
        "finalists": [data_of(FINALIST, one) for one in standings(finals, problem)],
    }


def search_data(
    result: SearchResult, storage: str | None = None, checked: FinalistCheck | None = None
) -> Data:
    """Return a search, under the keys of `study_data`. Its counts are of this run alone.

    `front` is the Pareto front of one for time and error, else null.
    """
    return {
        **study_data(searched_history(result).view, storage),
        "trials": result.trials,
        "measured": result.measured,
        "duplicates": result.duplicates,
        "rejected": _rejected_data(result.rejected),
        "elapsed_s": result.elapsed_s,
        "stopped": result.stopped or None,
        "seed": result.seed,
        "verification": None if checked is None else asdict(checked),
    }


def _front_data(of: StudySummary, storage: str | None, finals: Finals) -> list[Data]:
    """Return the members of a front, with how each compares with the next, and its command."""
    front = front_standings(finals, of.problem)
    ratios = ratios_to_next([one.kernel for one in front])
    return [
        {
            **data_of(FINALIST, one),
            "ratio_to_next": None if to_next is None else to_next.median,
            "tied_with_next": one.is_tie,
            "emit": reproducing_command(one.kernel.trial, of.problem, of.goal, storage),
        }
        for one, to_next in zip(front, ratios, strict=True)
    ]


def study_data(view: StudyView, storage: str | None = None) -> Data:
    """Return a study's summary with environment, best, finals (or null), rejections and effects.

    What only a search knows is null. Where there were no finals, the best and the front are as the
    search measured them.
    """
    summary, finals = view.summary, view.finals
    problem = summary.problem
    front = None
    if summary.objectives.is_front:
        front = (
            [_searched_data(trial, problem) for trial in view.front]
            if finals is None
            else _front_data(summary, storage, finals)
        )
    sentences = [*headlines(view), *((one.name, unpaired_sentence(one)) for one in view.unpaired)]
    return {
        **data_of(SUMMARY, summary),
        "circumstances": view.environment.as_dict(),
        "best": data_of(SEARCHED if finals is None else FINALIST, best_standing(view)),
        "finals": None if finals is None else finals_data(finals, problem),
        "front": front,
        "ended": view.ended or None,
        "seed": view.seed,
        **dict.fromkeys(("duplicates", "elapsed_s", "stopped", "verification")),
        "rejected": _rejected_data(view.rejected),
        "reasons": [
            {"stage": str(stage), "reason": reason, "count": number}
            for stage, reason, number in view.reasons
        ],
        "parameters": [asdict(effect) for effect in view.effects],
        "main_effects": [asdict(contrast) for contrast in view.contrasts],
        "main_effects_in_words": [{"name": n, "sentence": text} for n, text in sentences],
        "emit": reproducing_command(view.best, problem, summary.goal, storage),
    }


def _searched_data(trial: TrialRecord, problem: Problem) -> Data:
    return data_of(SEARCHED, searched(trial, problem, 0.0, trial.config))


def _rejected_data(rejected: Mapping[Stage, int]) -> dict[str, int]:
    return {str(stage): rejected.get(stage, 0) for stage in Stage}


def trial_rows(
    trials: Mapping[int, TrialRecord | Rejected], problem: Problem, limit_us: float
) -> list[Data]:
    """Return every finished trial of a study by its number: its measurement, or its rejection."""
    rows: list[Data] = []
    for number, trial in sorted(trials.items()):
        row: Data = {"trial": number, "stage": "measured", "reason": None}
        if isinstance(trial, Rejected):
            row |= {"stage": str(trial.stage), "reason": trial.reason}
        else:
            row |= _searched_data(trial, problem)
            row["of_limit"] = share_of_limit(trial.outcome.time_us, limit_us)
            row["config"] = row.pop("config")  # its columns are the last
        rows.append(row)
    return rows


# ------------------------------------------------------------------ a search


ROWS_AFTER_TIES = 5
"""How many finalists are shown after the tie set."""

MOST_ROWS = 15
"""How many finalists are shown at most: a large tie set is told by its count."""

Notes = list[tuple[str, str]]


def print_search(
    result: SearchResult,
    console: Console,
    storage: str | None = None,
    checked: FinalistCheck | None = None,
) -> None:
    """Print the finals, or the front; at the end the command that writes each kernel of these."""
    finals, problem, two = result.finals, result.problem, _is_front(result.objectives)
    origin = "recorded on" if result.replayed else "on"
    lines = finals_notes(finals, replayed=result.replayed, two=two)
    lines += [("trials", tally(result)), *_measured_where(result)]
    lines += [] if checked is None else [("verified", checked_sentence(checked, two=two))]
    trials = [one.trial for one in (front_of(finals) if two else finals.finalists[:1])]
    lines += [] if all(is_reproducible(one, problem) for one in trials) else [("code", CHANGED)]
    console.print(_title(problem, f"{origin} {result.gpu}", two=two), style="bold")
    _print_kernels(finals_table(finals, problem, result.environment, two=two), lines, console)
    _print_commands(trials, result, storage, console)


def _is_front(objectives: Objectives) -> bool:
    return objectives.is_front


def _title(problem: Problem, where: str, *, two: bool) -> str:
    return f"{problem} {where}{': time against error' if two else ''}"


def _print_kernels(table: Table | None, lines: Notes, console: Console) -> None:
    console.print()
    if table is not None:
        print_table(table, console)
        console.print()
    console.print(notes(lines))


def _print_commands(
    trials: Sequence[TrialRecord],
    of: SearchResult | StudySummary,
    storage: str | None,
    console: Console,
) -> None:
    """Print the command that writes each kernel."""
    console.print()
    for trial in trials:
        command = reproducing_command(trial, of.problem, of.goal, storage)
        console.print(command, style="bold", soft_wrap=True)


def finals_table(
    finals: Finals, problem: Problem, environment: Environment, *, two: bool = False
) -> Table:
    """Return the best and its ties (marked =) with the next few, or the front; then the limit."""
    if two:
        table = table_of(_FRONT, front_standings(finals, problem), keys=2)
    else:
        shown = standings(finals, problem)[: min(MOST_ROWS, len(finals.ties) + ROWS_AFTER_TIES)]
        is_own = finals.winner.value is not None
        fields = [field for field in FINALIST if is_own or field.name != "value"]
        table = table_of((*fields, _DIFFERENCE), shown)
    difference, limit, limit_us = table.columns[-1].heading, problem.limit, finals.limit_us
    if not limit_us:
        table.add_under({difference: f"{limit} was not measured"})
    else:
        ratio = limit_us / min(f.time_us for f in finals.finalists)
        cells = limit_cells(problem, limit_us, finals.limit_spread)
        more = {"rank": limit, "ratio": f"{ratio:.3f}", difference: f"{limit} of the same bytes"}
        table.add_under(cells | more)
    if environment.peak_gbps and not two:
        peak = f"{environment.peak_gbps:.0f}"
        table.add_under({"rank": "peak", "GB/s": peak, difference: "datasheet"})
    return table


def finals_notes(finals: Finals, *, replayed: bool, two: bool = False) -> Notes:
    """Return the best, what the front is, who ties, and by what the rows are ordered."""
    how = f"{finals.rounds} rounds, interleaved{' when recorded' if replayed else ''}"
    if not finals.interleaved:
        how = f"{finals.rounds} samples each, not interleaved: recorded one after another"
    how = f"Noise {percent(finals.noise, 2)}; {how}."
    if two:
        return _front_notes(finals, how)
    best, others = finals.winner, len(finals.ties) - 1
    lines = [*_best_notes(best.trial), *([("value", _OWN)] if best.value is not None else [])]
    if others < 1:  # also of a damaged database, which may have no tie
        return [*lines, ("ties", f"No other finalist ties with the best. {how} {_TIES}")]
    ratios = [finalist.ratio_to_best for finalist in finals.ties]
    tied = f"{counted(others, 'other config')} {'ties' if others == 1 else 'tie'} with the best (=)"
    apart = f"at most {percent(max(ratios) - min(ratios))} apart"
    return [*lines, ("ties", f"{tied}, {apart}. {how} {_TIES} {_choice(finals)}")]


def _best_notes(best: TrialRecord) -> Notes:
    """Return the best in brief, and how many of its blocks an SM holds, if that is known."""
    residency = best.outcome.resources.residency(best.config)
    lines = [("best", f"trial {best.number}: {brief_words(best.config)}")]
    return [*lines, ("residency", residency)] if residency else lines


_OWN = (
    "What the study's own objective makes of a kernel, of which the least is the best: the median "
    "over rounds. Ratios and ties are of it, and not of times."
)

_TIES = (
    "A config ties if its ratio, the median over rounds of its time over the fastest's, is within "
    f"the noise of 1, or if the ratio's {percent(CONFIDENCE, 0)} confidence interval, for all "
    "finalists together, includes 1. Those that tie (=) come first: kernels of which other "
    "compilers give an SM no fewer blocks, then others; by fewer registers, then by shorter code. "
    "The others follow by ratio."
)


def _choice(finals: Finals) -> str:
    """Say why the first of several ties is the first, although another may have a lower time."""
    first, second, *_ = finals.ties
    if first.states_residency != second.states_residency:
        why = "its residency: other compilers give an SM no fewer of its blocks"
    elif first.registers != second.registers:
        why = f"fewer registers: {first.registers}, not {second.registers}"
    elif first.code_bytes != second.code_bytes:
        why = f"shorter code: {first.code_bytes} bytes, not {second.code_bytes}"
    else:
        why = "its time, the least of those that are as small"
    return f"Trial {first.trial.number} is chosen for {why}."


def _front_notes(finals: Finals, how: str) -> Notes:
    front = front_of(finals)
    left = len(finals.finalists) - len(front)
    ratios = ratios_to_next(front)
    tied = sum(ratio is not None and ratio.is_tie(finals.noise) for ratio in ratios)
    sentence = f"{counted(len(front), 'kernel')} than which none is both faster and more exact"
    sentence += f"; {count(left)} more looked so before they were timed in turn" if left else ""
    ties = f"{count(tied)} of them (=) not known to be faster than the next, which is more exact"
    if not tied:
        ties = "Each is faster than the next, which is more exact"
    if len(front) == 1:
        ties = "None: one kernel is both the fastest and the most exact"
    return [
        ("fastest", brief_words(front[0].config)),
        ("front", f"{sentence}."),
        ("ties", f"{ties}. {how}"),
    ]


def checked_sentence(checked: FinalistCheck, *, two: bool = False) -> str:
    """Say how many finalists the emulator checked, which they are, and how that ended."""
    sentence = (
        f"{checked.verified} of {checked.finalists} finalists "
        f"({'the front' if two else 'the best and its ties'}) by emulation "
        f"for {checked.arch} in {checked.elapsed_s:.1f} s"
    )
    left = checked.finalists - checked.checked
    more = {
        "right but for rounding": checked.inaccurate,
        "could not be verified": checked.unverified,
        "left unchecked for lack of time": left,
    }
    return "; ".join([sentence, *(f"{number} {what}" for what, number in more.items() if number)])


def tally(result: SearchResult) -> str:
    """Say how many trials there were in what time, and how they ended."""
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


def _measured_where(result: SearchResult) -> Notes:
    made, problem = result.environment, result.problem
    (label, line), *limit = measurement_lines(made, problem, replayed=result.replayed)
    peak = result.environment.peak_gbps
    if peak:
        line += f" · best at {percent(result.gbps / peak)} of the datasheet's {peak:.0f} GB/s"
    is_old = result.environment.space_version != space_version(result.problem)
    age = [("note", _OLD)] if result.replayed and is_old else []
    return [(label, line), *age, *limit]


_OLD = (
    "this recording predates some options of the space. explorer emit writes the kernels "
    "as the templates emit them today; explorer emit heuristic may be faster"
)


# ------------------------------------------------------------------ a study


MOST_REASONS = 12
"""How many reasons of rejection are listed."""

NO_FINALS = "no finals yet: a search that comes to its end holds them"

FIRST_TIMES = (
    "times here are first times, each kernel by itself; the finals above timed the fastest again"
)


def print_study(view: StudyView, console: Console, storage: str | None = None) -> None:
    """Print the finals or the front, rejections, what each parameter does, and the commands."""
    summary, finals, two = view.summary, view.finals, _is_front(view.summary.objectives)
    problem, table, trials = summary.problem, None, [view.best]
    if finals is not None:
        table = finals_table(finals, problem, view.environment, two=two)
        trials = [one.trial for one in front_of(finals)] if two else trials
    elif two:
        trials = [*view.front]
        limit_us, best = view.environment.limit_us, view.front[0].config
        table = table_of(_FRONT[1:], [searched(t, problem, limit_us, best) for t in trials])
    console.print(_title(problem, f"on {summary.gpu}", two=two), style="bold")
    console.print(f"study {summary.name}")
    _print_kernels(table, _study_notes(view, storage), console)
    if not two:
        _print_effects(view, console)
    _print_commands(trials, summary, storage, console)


def _print_effects(view: StudyView, console: Console) -> None:
    """Print what was rejected for which reason, and what each parameter does to the time."""
    if view.reasons:
        print_table(_reasons_table(view), console)
    if view.effects:
        print_table(effects_table(view.effects), console)
        console.print(notes([("method", importance_method(view.effects))]))
    if found := headlines(view):
        title = "What each parameter does"
        table = Table([*words("parameter"), prose("by itself")], [*found], title)
        print_table(table, console)
        console.print(notes([("method", METHOD)]))
    if view.unpaired:
        print_table(unpaired_table(view), console)
        times = [("times", FIRST_TIMES)] if view.finals is not None else []
        console.print(notes([("note", UNPAIRED), *times]))


def _study_notes(view: StudyView, storage: str | None) -> Notes:
    summary, best, finals = view.summary, view.best, view.finals
    two, search = _is_front(summary.objectives), search_command(view.summary, storage)
    if finals is not None:
        lines = finals_notes(finals, replayed=summary.replayed, two=two)
    elif two:
        lines = [("front", NO_FINALS)]
    else:
        lines = [*_best_notes(best), ("time", f"{best_standing(view).speed}; {NO_FINALS}")]
    if since := _since(view):
        lines += [("since", f"{since}: {search}")]
    if not summary.is_current:
        lines += [("older", f"made with another space or other templates; start anew: {search}")]
    rejected = rejections(view.rejected) or "none rejected"
    measured = f"{counted(summary.measured, 'kernel')} measured"
    lines += [("trials", f"{count(summary.trials)}: {measured}, {rejected}")]
    lines += [("ended", view.ended)] if view.ended else []
    lines += measurement_lines(view.environment, summary.problem, replayed=summary.replayed)
    return lines if is_reproducible(best, summary.problem) else [*lines, ("code", CHANGED)]


def _since(view: StudyView) -> str:
    """Say which trials came after the finals and look better; empty where there is none."""
    if view.finals is None:
        return ""
    if _is_front(view.summary.objectives):
        later = since_finals(view.front, view.finals)
        many = counted(len(later), "trial")
        return f"{many} {_STOPPED} would be on the front; compare with the others" if later else ""
    if view.since is None:
        return ""
    us = microseconds(view.since.outcome.time_us)
    return f"trial {view.since.number} {_STOPPED} took {us} µs; compare it with the best"


_STOPPED = "of a search that was stopped before its finals"


def _reasons_table(view: StudyView) -> Table:
    shown, rest = view.reasons[:MOST_REASONS], view.reasons[MOST_REASONS:]
    rows = [[count(number), str(stage), reason] for stage, reason, number in shown]
    if rest:
        total = sum(number for _, _, number in rest)
        rows.append([count(total), "", f"for {len(rest)} other reasons"])
    columns = [*numbers("count"), *words("stage"), prose("reason")]
    return Table(columns, [*rows], "Rejected, by stage and reason")


# ------------------------------------------------------------------ what parameters do


def effects_table(effects: Sequence[ParameterEffect]) -> Table:
    """Return the importance of each parameter, with its range."""
    spans = [(100 * effect.importance_low, 100 * effect.importance_high) for effect in effects]
    rows = [
        [effect.name, percent(effect.importance), f"{low:.0f}–{high:.0f} %"]
        for effect, (low, high) in zip(effects, spans, strict=True)
    ]
    columns = [*words("parameter"), *numbers("importance", "range")]
    return Table(columns, [*rows], "How much each parameter matters")


def importance_method(effects: Sequence[ParameterEffect]) -> str:
    """Say what an importance is, and whether it is known which parameter matters most."""
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


METHOD = (
    "matched pairs: two kernels of the study that differ in this parameter alone, the faster of "
    f"which takes at most {100 * (NEAR - 1):.0f} % more than the study's fastest. The figure is "
    "the median over the pairs of the slower's time over the faster's, with its 95 % confidence "
    "interval. For each parameter, the two values with the most pairs are compared"
)

UNPAIRED = (
    f"fewer than {LEAST_PAIRS} pairs of fast kernels differ in one of these parameters alone, so "
    "that it is not known what the parameter does by itself. For its two most frequent values, and "
    "for that of the best kernel, the table has the fastest kernel that was seen; these kernels "
    "differ in other parameters, too"
)


def value_words(name: str, value: Value) -> str:
    """Return a parameter's value in words, as those of a config: 16 B, no clusters."""
    if name == BLOCK_OF_A_ROW:
        return f"{value} threads a row"
    return config_words(Config(**{name: value}), [name])  # type: ignore[arg-type]


def contrast_sentence(contrast: Contrast) -> str:
    """Return what pairs of kernels say of two values of a parameter."""
    faster, slower = (value_words(contrast.name, v) for v in (contrast.faster, contrast.slower))
    pairs = f"{contrast.pairs} pairs that differ in nothing else"
    interval = f"{_times(contrast.low)} to {_times(contrast.high)} ×"
    if not contrast.is_sure:
        return f"{faster} and {slower}: no measurable difference in {pairs} ({interval})"
    agreeing = "every one" if contrast.agreeing == contrast.pairs else str(contrast.agreeing)
    ratio = _times(contrast.ratio)
    return f"{faster}: {ratio} × as fast as {slower}, in {agreeing} of {pairs} ({interval})"


def _times(ratio: float) -> str:
    """Return a ratio to three decimals below 1.1, where most effects are; else to two."""
    return f"{ratio:.3f}" if ratio < 1.1 else f"{ratio:.2f}"


def unpaired_sentence(one: Unpaired) -> str:
    """Return what is known of a parameter that too few pairs tell apart."""
    seen = ", ".join(
        f"{microseconds(us)} µs with {value_words(one.name, value)}" for value, us, _ in one.seen
    )
    return (
        f"not known: fewer than {LEAST_PAIRS} pairs of fast kernels differ in {one.name} alone. "
        f"Fastest seen: {seen}; these kernels differ in other parameters, too"
    )


def unpaired_table(view: StudyView) -> Table:
    """Return the fastest kernels of parameters that too few pairs tell apart."""
    rows = [
        [one.name, value_words(one.name, value), microseconds(time_us), count(kernels)]
        for one in view.unpaired
        for value, time_us, kernels in one.seen
    ]
    columns = [*words("parameter"), prose("value"), *numbers("best µs", "kernels")]
    return Table(columns, [*rows], "Parameters that few pairs tell apart", keys=2)


def telling_contrasts(contrasts: Sequence[Contrast]) -> list[Contrast]:
    """Return one comparison of each parameter: sure ones first, then by size.

    The values are those of most pairs, which does not depend on the times: so each interval misses
    with 5 % at most, as if no other had been looked at.
    """
    most: dict[str, Contrast] = {}
    for contrast in contrasts:
        most.setdefault(contrast.name, contrast)
    return sorted(most.values(), key=lambda found: (not found.is_sure, -found.ratio))


def headlines(view: StudyView) -> Notes:
    """Return each parameter that pairs compare, with one sentence."""
    return [(one.name, contrast_sentence(one)) for one in telling_contrasts(view.contrasts)]


# ------------------------------------------------------------------ all studies


SUMMARY: tuple[Field[StudySummary], ...] = (
    Field("study", lambda s: s.name),
    Field(
        "problem",
        lambda s: problem_data(s.problem),
        "problem",
        cell=lambda s: str(s.problem).removeprefix("softmax "),
        kind=Kind.WORD,
    ),
    Field("gpu", lambda s: s.gpu, "GPU", lambda gpu: gpu.removeprefix("NVIDIA "), kind=Kind.PROSE),
    Field("timing", lambda s: s.timing, "L2", kind=Kind.WORD),
    Field("replayed", lambda s: s.replayed),
    Field("accuracy", lambda s: str(s.accuracy)),
    Field("objectives", lambda s: str(s.objectives)),
    Field("where", lambda s: where_words(s.where) or None),
    Field("is_current", lambda s: s.is_current),
    Field("space_version", lambda s: s.space_version),
    Field("trials", lambda s: s.trials),
    Field("measured", lambda s: s.measured, "measured", cell=lambda s: f"{s.measured}/{s.trials}"),
    Field("best_us", lambda s: s.best_us, "best µs", microseconds),
    Field("limit", lambda s: s.problem.limit),
    Field("limit_us", lambda s: s.limit_us or None),
    Field(
        "",
        lambda s: s.best_us and share_of_limit(s.best_us, s.limit_us),
        of_limit_heading,
        percent,
    ),
    Field("date", lambda s: s.date, "date", lambda date: date[:10], kind=Kind.WORD),
    Field("", lambda s: remark(s), "remarks", kind=Kind.PROSE),
)
"""What is known of each study."""


def remark(summary: StudySummary) -> str:
    """Return what a reader of a study's line must know, such as that it is a replay."""
    remarks = {
        "time against error": _is_front(summary.objectives),
        str(summary.objectives): summary.objectives.is_own,
        str(summary.accuracy): not summary.goal.is_usually_exact,
        where_words(summary.where): bool(summary.where),
        "replayed": summary.replayed,
        "made by an older version": not summary.is_current,
        f"named {summary.name}": not summary.has_usual_name,
    }
    return ", ".join(what for what, applies in remarks.items() if applies)


def print_studies(summaries: Sequence[StudySummary], console: Console) -> None:
    """Print a table of all studies of a storage.

    Those of one problem, GPU and timing mode that have the same remarks differ in the version of
    the space, which then is a remark as well.
    """
    rows = Counter(map(_told, summaries))

    def remarks(summary: StudySummary) -> str:
        version = f"version {summary.space_version}"
        return ", ".join(filter(None, (remark(summary), version * (rows[_told(summary)] > 1))))

    *fields, last = SUMMARY
    print_table(table_of([*fields, replace(last, value=remarks)], summaries), console)


def _told(summary: StudySummary) -> tuple[object, ...]:
    return summary.problem, summary.gpu, summary.timing, remark(summary)


def markdown_table(views: Sequence[StudyView]) -> str:
    """Return a line a study: the finals' winner where there were finals, else the fastest trial."""
    best_of = [best_standing(view) for view in views]
    columns = [*table_of(TIMED, best_of).columns, *numbers(limit_us_heading(best_of))]
    last = words("config", "ties", "GPU", "date")
    table = Table([*words("rows × cols", "dtype"), *columns, *last])
    for view, best in zip(views, best_of, strict=True):
        problem, finals, told = view.summary.problem, view.finals, remark(view.summary)
        table.add(
            f"{problem.rows} × {problem.cols}",
            str(problem.dtype),
            *table_of(TIMED, [best]).rows[0],
            microseconds(best.limit_us) if best.limit_us else "",
            brief_words(best.kernel.config),
            "no finals" if finals is None else str(len(finals.ties) - 1),
            view.summary.gpu + (f" ({told})" if told else ""),
            view.environment.date[:10],
        )
    return as_markdown(table) + "\n"


def markdown_notices(summaries: Sequence[StudySummary], views: Sequence[StudyView]) -> list[str]:
    """Say what a reader of the table alone would not know: studies left out, only replays."""
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


# ------------------------------------------------------------------ dashboard


PROGRAM = "optuna-dashboard"


def dashboard_program() -> str | None:
    """Return the path of optuna-dashboard: beside this Python, else anywhere on PATH."""
    beside = shutil.which(PROGRAM, path=str(Path(sys.executable).parent))
    return beside or shutil.which(PROGRAM)


def dashboard_command(storage: str | None, port: int) -> list[str]:
    """Return the command to run; raises NotFound without the extra, or in a storage of no studies.

    Raises InvalidInput for a storage that cannot be read.
    """
    program = dashboard_program()
    if program is None:
        raise NotFound(f"{PROGRAM} is not installed: pip install '.[dashboard]' in the checkout")
    opened = open_storage(storage, read_only=True)
    read_studies(opened)  # what it cannot read it cannot show
    url = storage or default_storage()
    if isinstance(opened, Journal):
        url = str(opened.path)
    elif "://" not in url:
        url = f"sqlite:///{url}"
    return [program, url, "--port", str(port)]
