"""The pages of `explorer report`: of what a file keeps, and the sections of one on a study."""

import shlex
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from explorer.codegen.units import emit
from explorer.devices.program_under_test import ProgramUnderTest
from explorer.devices.recording import SUFFIX, read_header
from explorer.evaluate.profile import Profile, profile
from explorer.model.config import MEANING, Config, brief_words
from explorer.model.errors import InvalidInput
from explorer.model.gpu_spec import SUB_PARTITIONS, is_known_gpu, known_gpu
from explorer.model.outcome import Stage, TrialRecord
from explorer.model.query import ProblemQuery
from explorer.model.tuned_table import TunedTable
from explorer.report.charts import (
    Chart,
    Row,
    above_chart,
    bars_chart,
    front_chart,
    intervals_chart,
    kernels_chart,
    roofline_chart,
)
from explorer.report.compare import beside_limit, comparison_page
from explorer.report.journey import journey_page
from explorer.report.page import (
    Block,
    Blocks,
    Figure,
    Folded,
    KeptPage,
    Meter,
    command,
    definitions,
    meters,
    source,
    tiles,
)
from explorer.report.profile import (
    counted_sentence,
    memory_sentence,
    moved_bytes,
    occupancy_sentence,
    profile_tables,
)
from explorer.report.side_by_side import Result, SideBySide, read_result, side_page
from explorer.report.studies import (
    METHOD,
    UNPAIRED,
    Standing,
    best_standing,
    contrast_sentence,
    effects_table,
    finals_notes,
    headlines,
    importance_method,
    standings,
    telling_contrasts,
    unpaired_table,
    value_words,
)
from explorer.report.table import Field, Kind, Table, data_of, numbers, prose, table_of, words
from explorer.report.text import (
    CHANGED,
    config_command,
    count,
    counted,
    environment_line,
    is_reproducible,
    limit_line,
    microseconds,
    percent,
    rejections,
    ulps,
)
from explorer.report.tune import FAMILIES, family, table_page
from explorer.space import can_emit
from explorer.system.user_files import is_there
from explorer.tuning.contest import front_trials
from explorer.tuning.journey import Journey
from explorer.tuning.peer_comparison import PeerComparison, PeerRun
from explorer.tuning.results import Contrast, ParameterEffect, StudyHistory
from explorer.tuning.study_attributes import why_finals_count

# ------------------------------------------------------------------ of what a file keeps


def kept_pages(named: Sequence[str], storage: str | None = None) -> list[KeptPage]:
    """Return the pages of results by their names, as `read_result` takes these.

    Several comparisons, or tables, or studies share one page, on which they stand side by side.
    Raises InvalidInput for a file that keeps nothing, and as `read_result` and `SideBySide.of`.
    """
    kinds: dict[str, list[tuple[str, Result]]] = {}
    for one in named:
        if one.endswith(SUFFIX) and is_there(Path(one)):
            raise InvalidInput(_of_a_recording(Path(one)))
        result = read_result(one, storage)
        kind = one if isinstance(result, Journey) else type(result).__name__  # a page a journey
        kinds.setdefault(kind, []).append((one, result))
    return [
        side_page(SideBySide.of(of)) if len(of) > 1 else result_page(of[0][1])
        for of in kinds.values()
    ]


def result_page(result: Result) -> KeptPage:
    """Return the page of one result. Raises InvalidInput where it has no problem."""
    if isinstance(result, PeerRun):
        return comparison_page(result)
    if isinstance(result, Journey):
        return journey_page(result)
    if isinstance(result, TunedTable):
        return table_page(result)
    return study_page(result)


def _of_a_recording(path: Path) -> str:
    """Say which commands show what a recording holds; raises its own error for a damaged one."""
    options = shlex.join(ProblemQuery.of(read_header(path).problem).options)
    device = shlex.join(["--device", f"recorded:{path}"])
    return (
        f"{path} is a recording, which a report shows once a search has replayed it: give "
        f"explorer search {options} {device}, and then explorer report {options}"
    )


# ------------------------------------------------------------------ of a study


def study_page(history: StudyHistory) -> KeptPage:
    """Return the page of a study."""
    title = f"{history.view.summary.problem}: report of a study"
    sections = {
        "What was found": _found(history),
        "The finals": _ties(history),
        "What the parameters do": _parameters(history),
        "What the kernel does": _kernel(history),
        "Time and error": _error(history),
        "How the search went": _search(history),
        "The source": _source(history),
        "Environment": _environment(history),
    }
    return KeptPage.of(title, study_lead(history), sections)


def study_lead(history: StudyHistory) -> str:
    """Return the sentence below the page's title."""
    view, best = history.view, best_standing(history.view)
    limit = view.summary.problem.limit
    share = "" if best.of_limit is None else f", {percent(best.of_limit)} of the speed of {limit}"
    origin = "recorded on" if view.summary.replayed else "on"
    in_finals = " in the finals," if view.finals is not None else ""
    return (
        f"The best of {counted(len(history.measured), 'kernel')} takes "
        f"{microseconds(best.kernel.time_us)} µs a launch{in_finals} {origin} {view.summary.gpu}"
        f"{share}."
    )


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


def _found(history: StudyHistory) -> Blocks:
    view = history.view
    best, summary = best_standing(view), view.summary
    problem, made = summary.problem, view.environment
    yield tiles(_large_numbers(history, beside := beside_limit(problem, made)))
    reached, peak = problem.gbps(best.kernel.time_us), made.peak_gbps
    if peak:
        marks = {problem.limit: problem.gbps(made.limit_us) / peak} if made.limit_us else {}
        says = f"{percent(reached / peak)}: {count(round(reached))} of {count(round(peak))} GB/s"
        yield meters([Meter("Speed of light", reached / peak, says, marks)])
    tied = 0 if view.finals is None else len(view.finals.ties)
    which = f"kernel, which was chosen of {tied} that tie," if tied > 1 else "fastest kernel"
    yield f"This command writes the {which} to a file in generated/:"
    yield command(config_command(view.best.config, problem, summary.goal.accuracy))
    yield _kernels_figure(history)
    lines = [("best", f"trial {view.best.number}: {brief_words(view.best.config)}")]
    lines += [("ties", "No search of this study came to its finals, so ties are not known.")]
    if view.finals is not None:
        lines = finals_notes(view.finals, replayed=summary.replayed)
    if view.since is not None:
        us = microseconds(view.since.outcome.time_us)
        lines += [("since", f"Trial {view.since.number} took {us} µs after the finals.")]
    lines += [] if is_reproducible(view.best, problem) else [("code", CHANGED)]
    lines += [("first times", first_times_words(history))]
    lines += [] if beside else [("other libraries", _NO_PEERS)]
    yield Folded("Which kernel it is, and which tie with it", [definitions(lines)])


_NO_PEERS = (
    "A search times none. `explorer compare --save FILE` does, and `explorer report --from FILE` "
    "draws that comparison, on this page too if it is given beside `--cols`."
)


def _large_numbers(
    history: StudyHistory, beside: PeerComparison | None
) -> list[tuple[str, str, str]]:
    """Return the time, the share of the limit, and PyTorch's time over it where that is known."""
    view = history.view
    best, problem = best_standing(view), view.summary.problem
    time, _, spread = best.time.partition(" ± ")
    within = f", ± {spread}" if spread else ""
    found = [(time, "µs", f"a launch{within}")]
    if best.of_limit is not None:
        share = f"{100 * best.of_limit:.1f}"
        found += [(share, "%", f"of the speed of {problem.limit}")]
        if beside is not None:
            found.append(_beside_others(beside, best.of_limit))
    near = _near(kernel_rows(history))[1]
    if len(found) < 3:
        found += [(count(near), f"of {count(len(history.measured))}", "kernels within 1 %")]
    return found


def _beside_others(beside: PeerComparison, of_limit: float) -> tuple[str, str, str]:
    """Return PyTorch's time over ours, and the fastest library's, of a comparison on such a GPU.

    Both runs timed the limit, by which times of one are stated as times of the other: within 2 %
    two kernels are about as fast.
    """
    over = {peer.name: peer.time_us / beside.limit_time_us * of_limit for peer in beside.peers}
    name = min(over, key=over.__getitem__)
    times = "level with" if abs(over[name] - 1) <= 0.02 else f"{over[name]:.2f} × as fast as"
    fastest = f" and {times} {name}" if name != "torch" else ""
    return f"{over['torch']:.2f}", "×", f"as fast as PyTorch{fastest}, in another run"


# ------------------------------------------------------------------ every kernel, and the search


def _reference_us(history: StudyHistory) -> tuple[float, str]:
    """Return the time that others are held against: the limit's, or the fastest kernel's."""
    limit_us = history.view.environment.limit_us
    if limit_us:
        return limit_us, history.view.summary.problem.limit
    return min(t.outcome.time_us for t in history.measured), "the fastest kernel"


def _above(time_us: float, reference_us: float) -> float:
    """Return per cent by which a time exceeds another."""
    return round(100 * (time_us / reference_us - 1), 4)


def kernel_rows(history: StudyHistory) -> list[Row]:
    """Return every measured kernel, the fastest first, as the charts take them."""
    reference_us, _ = _reference_us(history)
    ordered = sorted(history.measured, key=lambda trial: trial.outcome.time_us)
    finals = history.view.finals
    kinds = {f.trial.number: "tie" for f in finals.ties} if finals is not None else {}
    kinds[history.view.best.number] = "the best"
    return [
        {
            "rank": rank,
            "trial": trial.number,
            "time_us": round(trial.outcome.time_us, 4),
            "above_best": _above(trial.outcome.time_us, ordered[0].outcome.time_us),
            "above_limit": _above(trial.outcome.time_us, reference_us),
            "what": brief_words(trial.config),
            "kind": kinds.get(trial.number, "other kernel"),
            "family": family(trial.config),
        }
        for rank, trial in enumerate(ordered, 1)
    ]


def progress_rows(history: StudyHistory) -> list[Row]:
    """Return the best so far of the search, in per cent above the limit, where it changes."""
    reference_us, _ = _reference_us(history)
    rows, best_us, last = [], float("inf"), history.attempts[-1].number
    for attempt in history.attempts:
        before = best_us
        if isinstance(attempt.trial, TrialRecord):
            best_us = min(best_us, attempt.trial.outcome.time_us)
        if best_us < before or (attempt.number == last and best_us < float("inf")):
            above = _above(best_us, reference_us)
            rows.append({"trial": attempt.number, "above_limit": above})
    return rows


MOST_DRAWN = 1000
"""Kernels in a chart: each takes 250 bytes of the page."""

MOST_LISTED = 30
"""Kernels in the table below it."""


def _thinned(rows: Sequence[Row]) -> list[Row]:
    """Return at most MOST_DRAWN rows, half of them the first, the others evenly among the rest."""
    if len(rows) <= MOST_DRAWN:
        return list(rows)
    first, rest = rows[: MOST_DRAWN // 2], rows[MOST_DRAWN // 2 :]
    step = -(-len(rest) // (MOST_DRAWN // 2))
    return [*first, *rest[::step]]


def study_chart(history: StudyHistory, title: str = "") -> Chart:
    """Return every kernel, by rank and in the order of the search; one with a title for a file."""
    rows = kernel_rows(history)
    limit = history.view.summary.problem.limit
    best = progress_rows(history)
    return kernels_chart(_thinned(rows), _near(rows), best, limit, FAMILIES, title)


def study_picture(history: StudyHistory) -> Chart:
    """Return the picture of a study for a file."""
    summary = history.view.summary
    return study_chart(history, f"{summary.problem} on {summary.gpu}, {summary.date[:10]}")


def _near(rows: Sequence[Row]) -> dict[int, int]:
    """Count the kernels that are within 1, 5 and 10 per cent of the fastest."""
    return {at: sum(row["above_best"] <= at for row in rows) for at in (1, 5, 10)}


def _kernels_figure(history: StudyHistory) -> Figure:
    rows = kernel_rows(history)
    near, (_, reference) = _near(rows), _reference_us(history)
    says = (
        f"Of {counted(len(rows), 'measured kernel')}, {near[1]} are within 1 % of the fastest, "
        f"{near[5]} within 5 % and {near[10]} within 10 %. The axes upwards are logarithmic above "
        "0.5 %."
    )
    if len(rows) > MOST_DRAWN:
        says += (
            f" Of the {count(len(rows))} kernels {count(len(_thinned(rows)))} are drawn: the "
            f"fastest {count(MOST_DRAWN // 2)}, and some of the others, evenly by rank."
        )
    limit = history.view.summary.problem.limit
    if reference != limit:
        says += f" {limit.capitalize()} was not timed, so 0 is the fastest kernel."
    table = Table([*numbers("rank", "trial", "µs", "above best"), prose("config")])
    table.title = f"The fastest {min(MOST_LISTED, len(rows))} of {count(len(rows))} kernels"
    for row in rows[:MOST_LISTED]:
        time, above = microseconds(row["time_us"]), f"{row['above_best']:.2f} %"
        table.add(str(row["rank"]), str(row["trial"]), time, above, row["what"])
    return Figure("The search", says, study_chart(history), table, is_brushed=True)


# ------------------------------------------------------------------ ties


_TIE: tuple[Field[Standing], ...] = (
    Field("label", lambda r: f"trial {r.kernel.trial.number}"),
    Field("", lambda r: r.kernel.trial.number, "trial"),
    Field("", lambda r: r.time, "µs"),
    Field("value", lambda r: _above_one(r.kernel.ratio_to_best), "% above", "{:.3f}".format),
    Field("low", lambda r: _above_one(r.kernel.ratio_low), "low", "{:.3f}".format),
    Field("high", lambda r: _above_one(r.kernel.ratio_high), "high", "{:.3f}".format),
    Field("", lambda r: r.kernel.registers, "registers"),
    Field("kind", lambda r: _result(r), "result", kind=Kind.WORD),
)
"""What the chart and the table of the finals show of each kernel."""


def _above_one(ratio: float) -> float:
    return 100 * (ratio - 1)


def _result(row: Standing) -> str:
    return "tie" if row.kernel.tied else "slower than the best"


def _ties(history: StudyHistory) -> Blocks:
    finals = history.view.finals
    if finals is None:
        yield (
            "No search of this study came to its end, so no kernels were timed in turn. The same "
            "search again goes on, and holds finals at its end."
        )
        return
    listed = standings(finals, history.view.summary.problem)
    rows = [data_of(_TIE, one) for one in listed]
    how = "timed in turn" if finals.interleaved else "recorded one after another"
    says = (
        f"{counted(len(rows), 'kernel')}, {how}, {finals.rounds} samples of each: "
        f"{len(finals.ties)} cannot be told apart (ties). Lines are 95 % confidence intervals, and "
        f"the band is the noise, {percent(finals.noise, 2)}."
    )
    chart = intervals_chart(rows, "% above the fastest of the finals", 100 * finals.noise)
    yield Figure("The finals", says, chart, table_of(_TIE, listed))


# ------------------------------------------------------------------ parameters


def best_of_values(history: StudyHistory, least: int = 1) -> list[Row]:
    """Return the fastest kernel of each value that `least` kernels have, where a parameter varied.

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
        rows = [
            {
                "label": f"{name} = {value}",
                "name": name,
                "value": _above(min(us), fastest_us),
                "told": f"{_above(min(us), fastest_us):.1f} % ({counted(len(us), 'kernel')})",
                "kernels": len(us),
                "kind": "value of the best kernel" if value == best[name] else "another value",
                "best_us": min(us),
            }
            for value, us in by_value.items()
            if len(us) >= least
        ]
        groups += [sorted(rows, key=lambda row: row["value"])] if len(rows) > 1 else []
    groups.sort(key=lambda rows: -float(rows[-1]["value"]))
    return [row for rows in groups for row in rows]


def _parameters(history: StudyHistory) -> Blocks:
    view, every = history.view, best_of_values(history)
    if not every:
        yield "All measured kernels have the same parameters."
        return
    if view.contrasts:
        yield _contrasts_figure(view.contrasts)
    else:
        yield "Too few kernels were measured to tell what a parameter does by itself."
    if ranked := best_of_values(history, LEAST_KERNELS):
        yield _values_figure(ranked, every)
    more: list[Block] = []
    if view.effects:
        more += [_importances(view.effects), f"Method: {importance_method(view.effects)}."]
    if view.contrasts:
        more += [definitions(headlines(view)), f"Method: {METHOD}."]
    if view.unpaired:
        more += [unpaired_table(view), f"{UNPAIRED[0].upper()}{UNPAIRED[1:]}."]
    if more:
        yield Folded("More on parameters, and how these figures are found", more)


def _values_figure(ranked: Sequence[Row], every: Sequence[Row]) -> Figure:
    costly = list(dict.fromkeys(row["name"] for row in ranked))[:MOST_PARAMETERS]
    drawn = [row for row in ranked if row["name"] in costly]
    few = sum(row["kernels"] < LEAST_KERNELS for row in every)
    says = (
        "How far the fastest kernel of a value is above the fastest of all, by first times. "
        f"{count(few)} of {counted(len(every), 'value')} are not ranked, since fewer than "
        f"{LEAST_KERNELS} kernels have them. The {counted(len(costly), 'parameter')} that can cost "
        "most are drawn; the table has all."
    )
    table = Table([*words("value"), *numbers("best µs", "above", "kernels")])
    for row in every:
        time, above = microseconds(row["best_us"]), f"{row['value']:.2f} %"
        table.add(row["label"], time, above, str(row["kernels"]))
    chart = above_chart(drawn, "% above the fastest kernel of all", kinds=_VALUES)
    return Figure("The best kernel of each value", says, chart, table)


LEAST_KERNELS = 3
"""Of a value that is ranked: the one kernel that has a value says little of it."""

MOST_PARAMETERS = 6
"""Parameters whose values are drawn."""

_VALUES = ("value of the best kernel", "another value")


def _importances(effects: Sequence[ParameterEffect]) -> Figure:
    rows = [
        {"label": one.name, "value": 100 * one.importance, "told": percent(one.importance)}
        for one in effects
    ]
    says = f"{effects[0].name} explains most of how the fastest tenth differs from all kernels."
    return Figure("Importance", says, bars_chart(rows, "% of it"), effects_table(effects))


_CONTRAST: tuple[Field[Contrast], ...] = (
    Field("label", lambda c: f"{c.name}: {c.slower} instead of {c.faster}"),
    Field("value", lambda c: _above_one(c.ratio)),
    Field("low", lambda c: _above_one(c.low)),
    Field("high", lambda c: _above_one(c.high)),
    Field("kind", lambda c: "sure" if c.is_sure else "may be chance"),
    Field("", lambda c: c.name, "parameter", kind=Kind.WORD),
    Field("", lambda c: contrast_sentence(c), "what pairs say", kind=Kind.PROSE),
    Field("", lambda c: c.pairs, "pairs"),
    Field("", lambda c: c.agreeing, "agree"),
)
"""What the chart and the table of matched pairs show of two values of a parameter."""


def _contrasts_figure(compared: Sequence[Contrast]) -> Figure:
    telling = telling_contrasts(compared)
    says = (
        "How much more time the slower of two values takes where nothing else differs. "
        f"{sum(one.is_sure for one in telling)} of "
        f"{counted(len(telling), 'parameter')} have an effect that is sure."
    )
    chart = intervals_chart([data_of(_CONTRAST, one) for one in telling], "% more time")
    return Figure("What each parameter does by itself", says, chart, table_of(_CONTRAST, compared))


# ------------------------------------------------------------------ what the kernel does


def _kernel(history: StudyHistory) -> Blocks:
    """Yield shares of what the GPU can do, the roofline, and the counts of the best kernel."""
    view = history.view
    problem, name = view.summary.problem, view.summary.gpu
    if not is_known_gpu(name) or not can_emit(problem, view.best.config):
        yield f"Nothing is counted: {name} is not known, or the templates emit this no more."
        return
    gpu = known_gpu(name)
    try:
        counted_work = profile(ProgramUnderTest.of_config(problem, view.best.config), gpu)
    except InvalidInput as error:
        yield f"{str(error)[0].upper()}{str(error)[1:]}."
        return
    best_us = best_standing(view).kernel.time_us
    yield meters(_kernel_meters(counted_work))
    if gpu.peak_gbps and view.environment.sm_clock_mhz:
        yield _roofline(counted_work, best_us, history)
    sentences = [
        ("counted", counted_sentence(counted_work)),
        ("occupancy", occupancy_sentence(counted_work.occupancy, counted_work)),
        *([("memory", memory_sentence(counted_work))] if gpu.peak_gbps else []),
    ]
    tables = [
        Table([*words("what"), *table.columns[1:]], table.rows, table.title)
        for table in profile_tables(counted_work)
    ]
    yield Folded("Every count", [definitions(sentences), *tables])


def _kernel_meters(of: Profile) -> list[Meter]:
    """Return its occupancy, and the least bytes of loads and stores over those that it moves."""
    held, due = of.occupancy, of.emulated
    limited = " and ".join(held.limited_by)
    warps = f"{held.warps_per_sm} of {held.max_warps_per_sm} warps an SM, limited by {limited}"
    found = [Meter("Occupancy", held.share, warps)]
    counters = of.counters
    for what, traffic, least in (
        ("Loads", counters.global_loads, due.read_bytes),
        ("Stores", counters.global_stores, due.written_bytes),
    ):
        if traffic.sector_bytes:
            says = f"{traffic.sector_bytes / of.elements:.2f} bytes an element"
            says += f", of which {least / of.elements:.2f} are needed"
            found.append(Meter(what, least / traffic.sector_bytes, says))
    return found


def _roofline(of: Profile, time_us: float, history: StudyHistory) -> Figure:
    made, problem = history.view.environment, history.view.summary.problem
    issued = of.counters.warp_instructions * of.scale
    rate = 1e-3 * SUB_PARTITIONS * of.gpu.sm_count * made.sm_clock_mhz
    intensity, gips = issued / (moved_bytes(of) * of.scale), issued / time_us * 1e-3
    roofs = [
        {"line": f"datasheet, {count(round(of.gpu.peak_gbps))} GB/s", "gbps": of.gpu.peak_gbps}
    ]
    if made.limit_us:
        gbps = problem.gbps(made.limit_us)
        roofs.append({"line": f"{problem.limit}, {count(round(gbps))} GB/s", "gbps": gbps})
    issue, memory = gips / rate, problem.gbps(time_us) / of.gpu.peak_gbps
    nearer = "memory" if memory > issue else "instructions"
    bound = f"bound by {nearer}" if max(memory, issue) > NEAR_A_ROOF else "bound by latency"
    says = (
        f"The best kernel has {percent(memory)} of the memory's bandwidth, and issues "
        f"{percent(issue)} of the instructions for which the SMs have time, so that it is {bound}. "
        "Instructions are those of PTX, bytes those that it asks for."
    )
    points = [{"intensity": intensity, "gips": gips, "who": "the best kernel"}]
    return Figure("Roofline", says, roofline_chart(points, roofs, rate))


NEAR_A_ROOF = 0.5
"""Share of the bandwidth or of the schedulers' rate: a kernel that has less of both waits."""


# ------------------------------------------------------------------ error, rejections, seconds


def _error(history: StudyHistory) -> Blocks:
    known = [trial for trial in history.measured if trial.outcome.max_ulp is not None]
    if not known:
        yield "The errors of these kernels in ulps were not recorded."
        return
    front = front_trials(known)
    exact, fast = front[-1].outcome, front[0].outcome
    members = {trial.number for trial in front}
    others = sorted(
        (trial for trial in known if trial.number not in members), key=lambda t: t.outcome.time_us
    )
    rows = [
        {
            "above_best": _above(trial.outcome.time_us, fast.time_us),
            "ulp": trial.outcome.max_ulp,
            "kind": "front" if trial.number in members else "other kernel",
            "what": brief_words(trial.config) if trial.number in members else "",
        }
        for trial in [*front, *others]
    ]
    drawn = [*rows[: len(front)], *_thinned(rows[len(front) :])]
    says = (
        f"{counted(len(front), 'kernel')} of {count(len(known))} are such that none is both faster "
        f"and more exact by first times: from {microseconds(fast.time_us)} µs with an error of "
        f"{ulps(fast.max_ulp)} ulp to {microseconds(exact.time_us)} µs with {ulps(exact.max_ulp)} "
        "ulp. Neighbours on the front may tie."
    )
    table = Table([*numbers("trial", "µs", "max ulp", "mean ulp"), prose("config")])
    for trial in front:
        figures = (ulps(trial.outcome.max_ulp), ulps(trial.outcome.mean_ulp))
        time = microseconds(trial.outcome.time_us)
        table.add(str(trial.number), time, *figures, brief_words(trial.config))
    yield Figure("The front of time and error", says, front_chart(drawn), table)


def _search(history: StudyHistory) -> Blocks:
    yield from _rejections(history)
    yield from _time_spent(history)


def _rejections(history: StudyHistory) -> Blocks:
    view = history.view
    total = sum(view.rejected.values())
    if not total:
        yield "No trial was rejected."
        return
    found = {str(stage): view.rejected[stage] for stage in Stage if view.rejected.get(stage)}
    by_stage = ", ".join(f"{number} by {stage}" for stage, number in found.items())
    all_trials = count(len(history.attempts))
    says = f"{counted(total, 'trial')} of {all_trials} had no usable kernel, by stage: {by_stage}."
    table = Table([*numbers("count"), *words("stage"), prose("reason")])
    table.rows += [[count(number), str(stage), reason] for stage, reason, number in view.reasons]
    if len(found) > 1:
        rows = [{"label": s, "value": number, "told": count(number)} for s, number in found.items()]
        yield Figure("Rejections by stage", says, bars_chart(rows, "trials"))
    else:
        yield says
    yield Folded("Every reason", [table, *([view.passed_over] if view.passed_over else [])])


PAUSE_S = 60.0
"""A longer time without a trial is a pause between two searches."""


def spent_seconds(history: StudyHistory) -> dict[str, float]:
    """Return seconds by what they were spent on, as far as a study says.

    Times in which several processes evaluated are counted once for each trial.
    """
    spent: dict[str, float] = defaultdict(float)
    ended = None
    clocked = [(a.started.timestamp(), a) for a in history.attempts if a.started is not None]
    for began, attempt in sorted(clocked, key=lambda pair: (pair[0], pair[1].number)):
        if ended is not None and 0 < began - ended <= PAUSE_S:
            spent["between trials"] += began - ended
        trial = attempt.trial
        rejected = "" if isinstance(trial, TrialRecord) else f"trials, rejected at {trial.stage}"
        spent[rejected or "kernels that were measured"] += attempt.seconds
        ended = max(ended or 0.0, began + attempt.seconds)
    return dict(spent)


def _time_spent(history: StudyHistory) -> Blocks:
    spent = spent_seconds(history)
    total = sum(spent.values())
    if not total:
        yield "The study does not say when its trials began and ended."
        return
    if history.view.summary.replayed:
        yield (
            "A recording was replayed: what its kernels took to compile, to verify and to time on "
            "the GPU was not recorded."
        )
        return
    rows = [
        {"label": what, "value": s, "told": f"{s:.2f} s, {percent(s / total)}"}
        for what, s in sorted(spent.items(), key=lambda item: -item[1])
    ]
    says = (
        f"{total:.1f} s by the clock of {counted(len(history.attempts), 'trial')}. Between trials "
        "the search proposes kernels and waits for the compiler. The finals are not among these."
    )
    yield Figure("Seconds", says, bars_chart(rows, "seconds"))


# ------------------------------------------------------------------ the winner, and environment


def _source(history: StudyHistory) -> Blocks:
    view = history.view
    problem, config = view.summary.problem, view.best.config
    yield Folded("The config, parameter by parameter", [config_table(config)])
    if not can_emit(problem, config):
        yield "The installed templates do not emit this config any more."
        return
    if not is_reproducible(view.best, problem):
        yield f"This is not the source that was measured: {CHANGED}."
    yield source(emit(problem, config).source)


def config_table(config: Config) -> Table:
    """Return each parameter of a config: its value in words, and what the parameter chooses."""
    columns = [*words("parameter"), prose("value"), prose("what it chooses")]
    table = Table(columns)
    for name, value in config.as_dict().items():
        mark = "" if value != getattr(Config(), name) else " (the default)"
        table.add(name, value_words(name, value) + mark, MEANING[name])
    return table


def _environment(history: StudyHistory) -> Blocks:
    view = history.view
    made, summary = view.environment, view.summary
    resources = view.best.outcome.resources
    limit, limit_time = summary.problem.limit, f"{microseconds(made.limit_us)} µs"
    not_timed = f"{limit.capitalize()} was not timed."
    reached = summary.problem.gbps(best_standing(view).kernel.time_us) / (made.peak_gbps or 1.0)
    peak = f"{made.peak_gbps:.0f} GB/s; the best reaches {percent(reached)}"
    lines = [
        ("problem", f"{summary.problem}, {count(summary.problem.bytes)} bytes read and written"),
        ("replayed" if summary.replayed else "measured", environment_line(made)),
        (limit, f"{limit_time}: {limit_line(made)}" if made.limit_us else not_timed),
        ("datasheet", peak if made.peak_gbps else "not known"),
        ("architecture", made.arch),
        ("accuracy", f"{summary.accuracy}; minimised: {summary.objectives}"),
        (
            "trials",
            f"{count(summary.trials)}, of which {counted(summary.measured, 'kernel')} were "
            f"measured, {rejections(view.rejected) or 'none rejected'}",
        ),
        ("winner", " ".join([f"{resources}.", resources.residency(view.best.config)]).strip()),
        ("study", summary.name),
        ("templates", f"{made.template_digest}; space version {made.space_version}"),
        ("explorer", made.explorer),
    ]
    yield definitions(lines)
