"""The sections of a page on one study: what was searched, what won, and how sure that is."""

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from math import exp, lgamma
from typing import Any

from explorer.codegen import emit
from explorer.devices.recorded import Recording, list_recordings, read_recording
from explorer.model.config import Config
from explorer.model.config_words import brief_words
from explorer.model.errors import ExplorerError
from explorer.model.outcome import Contender, Measured, Stage, TrialRecord
from explorer.model.parameters import MEANING
from explorer.model.problem import Problem
from explorer.report.charts import (
    Chart,
    Row,
    bars_chart,
    front_chart,
    intervals_chart,
    kernels_chart,
    lollipops_chart,
)
from explorer.report.finals import finals_notes
from explorer.report.main_effects import (
    METHOD,
    UNPAIRED,
    contrast_sentence,
    headlines,
    unpaired_table,
    value_phrase,
)
from explorer.report.page import Figure, Section, command, definitions, source
from explorer.report.studies import importance_method
from explorer.report.table import Table, numbers, prose, words
from explorer.report.text import (
    CHANGED,
    copy_line,
    count,
    counted,
    environment_line,
    is_reproducible,
    microseconds,
    percent,
    rejected_by_stage,
    rejections,
    reproducing_command,
    share_of_copy,
    ulps,
    with_spread,
)
from explorer.space import can_emit
from explorer.tuning.contest import front_trials
from explorer.tuning.results import Contrast, StudyHistory
from explorer.tuning.study_attributes import why_finals_count

# ------------------------------------------------------------------ the whole


def study_sections(history: StudyHistory, storage: str | None = None) -> list[Section]:
    """Return the sections of a page on a study."""
    return [
        _winner(history, storage),
        _kernels(history),
        _ties(history),
        _parameters(history),
        _effects(history),
        _error(history),
        _rejections(history),
        _time_spent(history),
        _source(history),
        _environment(history),
    ]


def study_lead(history: StudyHistory) -> str:
    """Return the sentence below the page's title."""
    view = history.view
    best_us, copy_us = _best_us(history), view.environment.copy_us
    share = share_of_copy(best_us, copy_us)
    of_copy = f", {percent(share)} of the speed of copy" if share is not None else ""
    origin = "recorded on" if view.summary.replayed else "on"
    in_finals = " in the finals," if view.finals is not None else ""
    return (
        f"The best of {counted(len(history.measured), 'kernel')} takes "
        f"{microseconds(best_us)} µs a launch{in_finals} {origin} {view.summary.gpu}{of_copy}."
    )


def _best_us(history: StudyHistory) -> float:
    finals = history.view.finals
    return history.view.best.outcome.time_us if finals is None else finals.winner.time_us


def first_times_words(history: StudyHistory) -> str:
    """Return what the times of a section are that shows each kernel's first time.

    The kernel of the least first time may be another than the best of the finals, and then the
    page has two that may be taken for the fastest.
    """
    finals = history.view.finals
    first = min(history.measured, key=lambda trial: trial.outcome.time_us)
    said = "Times in this section are first times: each kernel has the one that it took by itself."
    if finals is None:
        return said
    said = f"{said} {why_finals_count(finals)}"
    winner = finals.winner
    if first.number == winner.trial.number:
        return f"{said} Trial {first.number} is the fastest by both."
    return (
        f"{said} By first times trial {first.number} is the fastest, with "
        f"{microseconds(first.outcome.time_us)} µs. The best by the finals is trial "
        f"{winner.trial.number}, with {microseconds(winner.time_us)} µs there and "
        f"{microseconds(winner.trial.outcome.time_us)} µs at first."
    )


KERNELS = "Every kernel, and the search"

FIRST_TIMES_TOO = f"Times in this section are first times, as in the section “{KERNELS}”."


def _winner(history: StudyHistory, storage: str | None) -> Section:
    view, section = history.view, Section("What was found")
    problem, best = view.summary.problem, view.best
    lines = [("best", f"trial {best.number}: {brief_words(best.config)}")]
    if view.finals is not None:
        lines += finals_notes(view.finals, replayed=view.summary.replayed)
        time = with_spread(view.finals.winner.time_us, view.finals.winner.spread)
    else:
        time = with_spread(best.outcome.time_us, best.outcome.spread)
        lines += [("ties", "No search of this study came to its finals, so ties are not known.")]
    lines.insert(1, ("time", f"{time} µs, {problem.gbps(_best_us(history)):.0f} GB/s"))
    if view.since is not None:
        us = microseconds(view.since.outcome.time_us)
        lines += [("since", f"Trial {view.since.number} took {us} µs after the finals.")]
    if not is_reproducible(best, problem):
        lines += [("code", CHANGED)]
    section.add(definitions(lines))
    section.say(
        "A search times no other libraries. `explorer compare --save FILE` does, and "
        "`explorer report --from FILE` draws that comparison, on this page too if it is given "
        "beside `--cols`."
    )
    section.say("This command writes the winner:")
    section.add(command(reproducing_command(best, problem, view.summary.goal, storage)))
    return section


# ------------------------------------------------------------------ every kernel, and the search


def _reference_us(history: StudyHistory) -> tuple[float, str]:
    """Return the time that others are held against: copy's, or the fastest kernel's."""
    copy_us = history.view.environment.copy_us
    if copy_us:
        return copy_us, "copy"
    return min(t.outcome.time_us for t in history.measured), "the fastest kernel"


def kernel_rows(history: StudyHistory) -> list[Row]:
    """Return every measured kernel, the fastest first, as the charts take them."""
    reference_us, _ = _reference_us(history)
    ordered = sorted(history.measured, key=lambda trial: trial.outcome.time_us)
    fastest_us = ordered[0].outcome.time_us
    finals = history.view.finals
    tied = {f.trial.number for f in finals.ties} if finals is not None else set()
    return [
        {
            "rank": rank,
            "trial": trial.number,
            "time_us": round(trial.outcome.time_us, 4),
            "above_best": _above(trial.outcome.time_us, fastest_us),
            "above_copy": _above(trial.outcome.time_us, reference_us),
            "what": brief_words(trial.config),
            "kind": "the best"
            if trial.number == history.view.best.number
            else "tie"
            if trial.number in tied
            else "other kernel",
        }
        for rank, trial in enumerate(ordered, 1)
    ]


def _above(time_us: float, reference_us: float) -> float:
    """Per cent by which a time exceeds another."""
    return round(100 * (time_us / reference_us - 1), 4)


LINE_GROWTH = 1.05
"""Trials from one point of the line of random searches to the next, as a ratio."""

SEARCH_LINE = "best so far in this search"


def progress_lines(history: StudyHistory) -> tuple[list[Row], list[Row], str]:
    """Return the best so far of the search and of random ones, a band, and whose kernels those are.

    The band holds eight of ten random searches.
    """
    reference_us, _ = _reference_us(history)
    lines, best_us, last = [], float("inf"), history.attempts[-1].number
    for attempt in history.attempts:
        before = best_us
        if isinstance(attempt.trial, TrialRecord):
            best_us = min(best_us, attempt.trial.outcome.time_us)
        if best_us < before or (attempt.number == last and best_us < float("inf")):
            above = _above(best_us, reference_us)
            lines.append({"trial": attempt.number, "above_copy": above, "line": SEARCH_LINE})
    population = _population(history)
    band = []
    places = {round(LINE_GROWTH**step) for step in range(1000) if LINE_GROWTH**step <= last}
    for place, attempt in enumerate(history.attempts, 1):
        if place not in places and attempt.number != last:
            continue
        low, middle, high = (population.best_of(place, share) for share in (0.1, 0.5, 0.9))
        if middle is not None:
            lines.append({"trial": attempt.number, "above_copy": middle, "line": population.line})
        if low is not None and high is not None:
            band.append({"trial": attempt.number, "low": low, "high": high})
    return lines, band, population.says


@dataclass(frozen=True, slots=True)
class Population:
    """The kernels that a random search would draw from."""

    above: tuple[float, ...]
    """Of those that can be used, per cent above copy, the least first."""
    size: int
    """How many there are, with those that cannot be used."""
    line: str
    says: str

    def best_of(self, draws: int, share: float) -> float | None:
        """Return what the best of so many different kernels is at most in `share` of all searches.

        None where fewer searches have any usable kernel. The chance that none of the r best is
        drawn is C(size - r, draws) / C(size, draws).
        """
        if draws >= self.size:
            return self.above[0] if self.above else None
        found = bisect_left(
            range(1, len(self.above) + 1), share, key=lambda rank: 1 - self._missed(rank, draws)
        )
        return self.above[found] if found < len(self.above) else None

    def _missed(self, rank: int, draws: int) -> float:
        left = self.size - rank
        if draws > left:
            return 0.0
        return exp(
            lgamma(left + 1) - lgamma(left - draws + 1)
            - lgamma(self.size + 1) + lgamma(self.size - draws + 1)
        )  # fmt: skip


def _population(history: StudyHistory) -> Population:
    """Return the kernels of a recording of the problem on this GPU; else those of the study."""
    recording = _recording(history)
    copy_us = recording.header.environment.copy_us if recording is not None else 0.0
    if recording is not None and copy_us and history.view.environment.copy_us:
        times = [k.outcome.time_us for k in recording.kernels if isinstance(k.outcome, Measured)]
        return Population(
            tuple(sorted(_above(us, copy_us) for us in times)),
            len(recording.kernels),
            "half of all random searches have this or better",
            f"Random searches draw from the {count(len(recording.kernels))} kernels of the "
            f"recording {recording.name}. {_how_chosen(recording)}",
        )
    reference_us, _ = _reference_us(history)
    return Population(
        tuple(sorted(_above(t.outcome.time_us, reference_us) for t in history.measured)),
        len(history.attempts),
        "the same kernels in random order: half have this or better",
        "No recording has all kernels of this problem on this GPU, so it is not known what a "
        "random search of the space would have. The dashed line takes the kernels of this search "
        "in random order. It is better than a random search, since the search chose them.",
    )


def _how_chosen(recording: Recording) -> str:
    """Say what kernels of a recording a random search draws from."""
    if not recording.header.sub_space:
        return f"They were chosen so: {recording.header.rule}."
    return (
        "Most of them have values that were expected to be fast. A random search of the whole "
        "space would draw from all others, too."
    )


def _recording(history: StudyHistory) -> Recording | None:
    """The recording that a replay was of; of a live study, the latest of its problem and GPU."""
    summary = history.view.summary
    found = [
        (file.header.environment.date, file.path)
        for file in list_recordings()
        if file.header
        and file.header.problem == summary.problem
        and file.header.environment.gpu == summary.gpu
        and file.header.environment.timing == summary.timing
        and (not summary.replayed or file.header.environment.date == summary.date)
    ]
    try:
        return read_recording(max(found)[1]) if found else None
    except ExplorerError:
        return None


MOST_DRAWN = 1000
"""Kernels in a chart: each takes 250 bytes of the page."""

MOST_LISTED = 100
"""Kernels in the table below it."""


def _thinned(rows: Sequence[Row]) -> list[Row]:
    """Return at most MOST_DRAWN rows, half of them the first, the others evenly among the rest."""
    if len(rows) <= MOST_DRAWN:
        return list(rows)
    first, rest = rows[: MOST_DRAWN // 2], rows[MOST_DRAWN // 2 :]
    step = -(-len(rest) // (MOST_DRAWN // 2))
    return [*first, *rest[::step]]


def study_chart(history: StudyHistory) -> Chart:
    """Return the picture of a study for a file: every kernel, and the search."""
    rows, (lines, band, _) = kernel_rows(history), progress_lines(history)
    summary = history.view.summary
    title = f"{summary.problem} on {summary.gpu}, {summary.date[:10]}"
    return kernels_chart(_thinned(rows), _near(rows), lines, band, title)


def _near(rows: Sequence[Row]) -> dict[int, int]:
    """Count the kernels that are within 1, 5 and 10 per cent of the fastest."""
    return {at: sum(row["above_best"] <= at for row in rows) for at in (1, 5, 10)}


def _kernels(history: StudyHistory) -> Section:
    section = Section(KERNELS)
    rows = kernel_rows(history)
    lines, band, whose = progress_lines(history)
    _, reference = _reference_us(history)
    near = _near(rows)
    says = (
        f"Of {count(len(rows))} measured kernels, {near[1]} are within 1 % of the fastest, "
        f"{near[5]} within 5 % and {near[10]} within 10 %. The first of those within 1 % was trial "
        f"{min(row['trial'] for row in rows if row['above_best'] <= 1)}. Both vertical axes are "
        f"logarithmic above 0.5 %, so that the last per cent can be seen."
    )
    drawn = _thinned(rows)
    if len(drawn) < len(rows):
        says += (
            f" Of the {count(len(rows))} kernels {count(len(drawn))} are drawn: the fastest "
            f"{count(MOST_DRAWN // 2)}, and some of the others, evenly by rank."
        )
    if reference != "copy":
        says += " Copy was not timed, so 0 is the fastest kernel."
    table = Table([*numbers("rank", "trial", "µs", "above best"), prose("config")])
    table.title = f"The fastest {min(MOST_LISTED, len(rows))} of {count(len(rows))} kernels"
    for row in rows[:MOST_LISTED]:
        above = f"{row['above_best']:.2f} %"
        cells = (str(row["rank"]), str(row["trial"]), microseconds(row["time_us"]), above)
        table.add(*cells, row["what"])
    title = "Kernels by time, and in the order of the search"
    chart = kernels_chart(drawn, near, lines, band)
    section.say(first_times_words(history))
    section.add(Figure(title, says, chart, table, is_brushed=True))
    section.say(whose)
    random = [row for row in lines if row["line"] != SEARCH_LINE]
    own = [row for row in lines if row["line"] == SEARCH_LINE]
    if random and own:
        section.say(
            f"At the end the search's best is {own[-1]['above_copy']:.2f} % above {reference}; "
            f"half of all random searches of as many kernels have {random[-1]['above_copy']:.2f} % "
            "or better. The shaded band holds eight of ten random searches."
        )
    return section


# ------------------------------------------------------------------ ties


def _ties(history: StudyHistory) -> Section:
    section, finals = Section("The finals: ties and intervals"), history.view.finals
    if finals is None:
        section.say(
            "No search of this study came to its end, so no kernels were timed in turn. The same "
            "search again goes on, and holds finals at its end."
        )
        return section
    rows = [_finalist_row(finalist) for finalist in finals.finalists]
    tied = len(finals.ties)
    how = "timed in turn" if finals.interleaved else "recorded one after another"
    says = (
        f"{counted(len(finals.finalists), 'kernel')}, {how}, {finals.rounds} samples of each. "
        f"{tied} of them cannot be told apart (ties). Each line is the 95 % confidence "
        "interval of a kernel's time over the fastest's, for all kernels together. The shaded band "
        f"is the noise: {percent(finals.noise, 2)}."
    )
    table = Table(
        [*numbers("trial", "µs", "% above", "low", "high", "registers"), *words("result")]
    )
    for finalist, row in zip(finals.finalists, rows, strict=True):
        figures = (f"{row[key]:.3f}" for key in ("value", "low", "high"))
        registers = str(finalist.trial.outcome.resources.registers)
        time = with_spread(finalist.time_us, finalist.spread)
        table.add(str(finalist.trial.number), time, *figures, registers, row["kind"])
    chart = intervals_chart(rows, "% above the fastest of the finals", 100 * finals.noise)
    section.add(Figure("The finals", says, chart, table))
    return section


def _finalist_row(finalist: Contender) -> Row:
    return {
        "label": f"trial {finalist.trial.number}",
        "value": 100 * (finalist.ratio_to_best - 1),
        "low": 100 * (finalist.ratio_low - 1),
        "high": 100 * (finalist.ratio_high - 1),
        "kind": "tie" if finalist.tied else "slower than the best",
    }


# ------------------------------------------------------------------ parameters


def best_of_values(history: StudyHistory) -> list[Row]:
    """Return the fastest kernel of each value of each parameter that varied, beside the best.

    The parameters come in the order of what their worst value costs, the greatest first.
    """
    times: dict[str, dict[Any, list[float]]] = defaultdict(lambda: defaultdict(list))
    for trial in history.measured:
        for name, value in trial.config.as_dict().items():
            times[name][value].append(trial.outcome.time_us)
    fastest_us = min(trial.outcome.time_us for trial in history.measured)
    best = history.view.best.config.as_dict()
    groups = []
    for name, by_value in times.items():
        if len(by_value) < 2:
            continue
        rows = [
            {
                "label": f"{name} = {_shown(value)}",
                "value": _above(min(us), fastest_us),
                "told": counted(len(us), "kernel"),
                "kind": "value of the best kernel" if value == best[name] else "another value",
                "best_us": min(us),
            }
            for value, us in by_value.items()
        ]
        groups.append(sorted(rows, key=lambda row: row["value"]))
    groups.sort(key=lambda rows: -float(rows[-1]["value"]))
    return [row for rows in groups for row in rows]


def _shown(value: Any) -> str:
    return {True: "yes", False: "no"}.get(value, str(value)) if type(value) is bool else str(value)


def _parameters(history: StudyHistory) -> Section:
    section = Section("The best of each value of each parameter")
    rows = best_of_values(history)
    if not rows:
        section.say("All measured kernels have the same parameters.")
        return section
    section.say(FIRST_TIMES_TOO)
    first = rows[0]["label"].split(" = ")[0]
    says = (
        "For each value of a parameter, the fastest kernel that has it: how far it is above the "
        "fastest of all. The fastest kernel of each value counts; an average would mostly show "
        "kernels that nobody would use. The parameter that costs most where it is chosen badly "
        f"comes first: {first}. A value of few kernels may have faster ones that were not tried."
    )
    table = Table([*words("value"), *numbers("best µs", "above", "kernels")])
    for row in rows:
        kernels = row["told"].split()[0]
        table.add(row["label"], microseconds(row["best_us"]), f"{row['value']:.2f} %", kernels)
    chart = lollipops_chart(rows, "% above the fastest kernel of all")
    section.add(Figure("Best over the rest", says, chart, table))
    return section


def _effects(history: StudyHistory) -> Section:
    section, view = Section("What each parameter does by itself"), history.view
    problem = view.summary.problem
    if not (view.contrasts or view.unpaired):
        section.say("Too few kernels were measured to tell what a parameter does by itself.")
        return section
    section.say(FIRST_TIMES_TOO)
    if view.contrasts:
        section.add(_contrasts_figure(view.contrasts, problem))
        section.add(definitions(headlines(view)))
        section.say(f"Method: {METHOD}.")
    if view.unpaired:
        section.add(unpaired_table(view))
        section.say(f"{UNPAIRED[0].upper()}{UNPAIRED[1:]}.")
    if view.effects:
        importances = Table([*words("parameter"), *numbers("importance", "range")])
        for effect in view.effects:
            low, high = 100 * effect.importance_low, 100 * effect.importance_high
            importances.add(effect.name, percent(effect.importance), f"{low:.0f} to {high:.0f} %")
        importances.title = "Importance of each parameter"
        section.add(importances)
        section.say(f"Method: {importance_method(view.effects)}.")
    return section


def _contrasts_figure(compared: Sequence[Contrast], problem: Problem) -> Figure:
    most: dict[str, Contrast] = {}
    for contrast in compared:
        most.setdefault(contrast.name, contrast)
    ordered = sorted(most.values(), key=lambda found: (not found.is_sure, -found.ratio))
    rows = [
        {
            "label": f"{found.name}: {_shown(found.faster)} over {_shown(found.slower)}",
            "value": 100 * (found.ratio - 1),
            "low": 100 * (found.low - 1),
            "high": 100 * (found.high - 1),
            "kind": "sure" if found.is_sure else "may be chance",
        }
        for found in ordered
    ]
    sure = sum(found.is_sure for found in ordered)
    says = (
        f"How much more time the slower of two values takes where nothing else differs, with its "
        f"95 % interval. {sure} of {counted(len(ordered), 'parameter')} have an effect that is "
        "sure."
    )
    table = Table(
        [*words("parameter"), prose("what pairs say"), *numbers("pairs", "agree")],
    )
    for found in compared:
        sentence = contrast_sentence(found, problem)
        table.add(found.name, sentence, str(found.pairs), str(found.agreeing))
    return Figure("Matched pairs", says, intervals_chart(rows, "% more time"), table)


# ------------------------------------------------------------------ error, rejections, seconds


def _error(history: StudyHistory) -> Section:
    section = Section("Time and error")
    known = [trial for trial in history.measured if trial.outcome.max_ulp is not None]
    if not known:
        section.say("The errors of these kernels in ulps were not recorded.")
        return section
    section.say(FIRST_TIMES_TOO)
    fastest_us = min(trial.outcome.time_us for trial in known)
    front = front_trials(known)
    members = {trial.number for trial in front}
    rows = [
        {
            "above_best": _above(trial.outcome.time_us, fastest_us),
            "ulp": trial.outcome.max_ulp,
            "kind": "front" if trial.number in members else "other kernel",
            "what": brief_words(trial.config) if trial.number in members else "",
        }
        for trial in sorted(known, key=lambda t: t.outcome.time_us)
    ]
    exact, fast = front[-1].outcome, front[0].outcome
    says = (
        f"{counted(len(front), 'kernel')} of {count(len(known))} are such that none is both faster "
        f"and more exact (the front): from {microseconds(fast.time_us)} µs with an error of "
        f"{ulps(fast.max_ulp)} ulp to {microseconds(exact.time_us)} µs with {ulps(exact.max_ulp)} "
        "ulp. Neighbours on the front may tie."
    )
    table = Table([*numbers("trial", "µs", "max ulp", "mean ulp"), prose("config")])
    for trial in front:
        figures = (ulps(trial.outcome.max_ulp), ulps(trial.outcome.mean_ulp))
        time = microseconds(trial.outcome.time_us)
        table.add(str(trial.number), time, *figures, brief_words(trial.config))
    title = "The front of time and error"
    section.add(Figure(title, says, front_chart(_thinned_front(rows)), table))
    return section


def _thinned_front(rows: Sequence[Row]) -> list[Row]:
    front = [row for row in rows if row["kind"] == "front"]
    return [*front, *_thinned([row for row in rows if row["kind"] != "front"])]


def _rejections(history: StudyHistory) -> Section:
    section, view = Section("What was rejected, and why"), history.view
    total = sum(view.rejected.values())
    if not total:
        section.say("No trial was rejected.")
        return section
    says = (
        f"{counted(total, 'trial')} of {count(len(history.attempts))} had no usable kernel, by "
        f"stage: {rejected_by_stage(view.rejected)}."
    )
    rows = [
        {"label": str(stage), "value": view.rejected[stage], "told": count(view.rejected[stage])}
        for stage in Stage
        if view.rejected.get(stage)
    ]
    table = Table([*numbers("count"), *words("stage"), prose("reason")])
    for stage, reason, number in view.reasons:
        table.add(count(number), str(stage), reason)
    section.add(Figure("Rejections by stage", says, bars_chart(rows, "trials")), table)
    if view.passed_over:
        section.say(view.passed_over)
    return section


PAUSE_S = 60.0
"""A longer time without a trial is a pause between two searches."""


def spent_seconds(history: StudyHistory) -> dict[str, float]:
    """Return seconds by what they were spent on, as far as a study says.

    Times in which several processes evaluated are counted once for each trial.
    """
    spent: dict[str, float] = defaultdict(float)
    ended = None
    clocked = [a for a in history.attempts if a.started is not None]
    for attempt in sorted(clocked, key=lambda a: (a.started, a.number)):
        assert attempt.started is not None
        began = attempt.started.timestamp()
        if ended is not None and 0 < began - ended <= PAUSE_S:
            spent["between trials"] += began - ended
        trial = attempt.trial
        rejected = "" if isinstance(trial, TrialRecord) else f"trials, rejected at {trial.stage}"
        spent[rejected or "kernels that were measured"] += attempt.seconds
        ended = max(ended or 0.0, began + attempt.seconds)
    return dict(spent)


def _time_spent(history: StudyHistory) -> Section:
    section, spent = Section("Where the seconds went"), spent_seconds(history)
    total = sum(spent.values())
    if not total:
        section.say("The study does not say when its trials began and ended.")
        return section
    rows = [
        {"label": what, "value": s, "told": f"{s:.2f} s, {percent(s / total)}"}
        for what, s in sorted(spent.items(), key=lambda item: -item[1])
    ]
    says = (
        f"{total:.1f} s by the clock of {counted(len(history.attempts), 'trial')}. Between trials "
        "the search proposes kernels and waits for the compiler."
    )
    if history.view.summary.replayed:
        says += (
            " This study replays a recording: its seconds are those of looking times up. What the "
            "kernels took to compile, to verify and to time on the GPU was not recorded."
        )
    else:
        says += (
            " The verification and the timing of a kernel are not kept apart. The finals come "
            "after the last trial, and are not among these."
        )
    table = Table([*words("what"), *numbers("seconds and share")])
    for row in rows:
        table.add(str(row["label"]), str(row["told"]))
    section.add(Figure("Seconds", says, bars_chart(rows, "seconds"), table))
    return section


# ------------------------------------------------------------------ the winner, and environment


def _source(history: StudyHistory) -> Section:
    section, view = Section("The winner: its config and its source"), history.view
    problem, config = view.summary.problem, view.best.config
    section.add(config_table(config, problem))
    if not can_emit(problem, config):
        section.say("The installed templates do not emit this config any more.")
        return section
    if not is_reproducible(view.best, problem):
        section.say(f"This is not the source that was measured: {CHANGED}.")
    section.add(source(emit(problem, config).source))
    return section


def config_table(config: Config, problem: Problem) -> Table:
    """Return each parameter of a config: its value in words, and what the parameter chooses."""
    table = Table([*words("parameter", "value"), prose("in words"), prose("what it chooses")])
    default = Config()
    for name, value in config.as_dict().items():
        mark = "" if value != getattr(default, name) else " (the default)"
        table.add(name, _shown(value), value_phrase(name, value, problem) + mark, MEANING[name])
    table.title = "The config, parameter by parameter"
    return table


def _environment(history: StudyHistory) -> Section:
    section, view = Section("Environment"), history.view
    made, summary = view.environment, view.summary
    resources = view.best.outcome.resources
    spilled = resources.spill_store_bytes + resources.spill_load_bytes
    lines = [
        ("problem", f"{summary.problem}, {count(summary.problem.bytes)} bytes read and written"),
        ("replayed" if summary.replayed else "measured", environment_line(made)),
        ("copy", f"{microseconds(made.copy_us)} µs: {copy_line(made)}" if made.copy_us else
         "Copy was not timed."),
        ("architecture", made.arch),
        ("accuracy", f"{summary.accuracy}; minimised: {summary.objectives}"),
        ("trials", f"{count(summary.trials)}, of which {counted(summary.measured, 'kernel')} were "
         f"measured, {rejections(view.rejected) or 'none rejected'}"),
        ("winner", f"{resources.registers} registers a thread, {count(resources.shared_bytes)} "
         f"bytes of shared memory a block, {spilled} bytes spilled"),
        ("study", summary.name),
        ("templates", f"{made.template_digest}; space version {made.space_version}"),
        ("explorer", made.explorer),
    ]  # fmt: skip
    if made.peak_gbps:
        reached = summary.problem.gbps(_best_us(history)) / made.peak_gbps
        lines.insert(
            3, ("datasheet", f"{made.peak_gbps:.0f} GB/s; the best reaches {percent(reached)}")
        )
    section.add(definitions(lines))
    return section
