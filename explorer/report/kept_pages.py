"""The sections of a page on what a file keeps: a comparison, a journey, or a tuned table."""

import shlex
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import log
from pathlib import Path
from statistics import median
from typing import Any

from explorer.devices.recorded import SUFFIX, read_header
from explorer.model.asked import AskedProblem
from explorer.model.config import Config
from explorer.model.config_words import brief_words
from explorer.model.errors import InvalidInput
from explorer.model.problem import Problem
from explorer.model.tuned_table import TunedProblem, TunedTable, read_table, table_file
from explorer.report.charts import (
    Chart,
    Row,
    lollipops_chart,
    map_chart,
    matrix_chart,
    shares_chart,
    stacked,
)
from explorer.report.compare import (
    LEGEND,
    geometric_mean,
    groups,
    notes_of,
    read_compared,
    result_counts,
    tables,
)
from explorer.report.journey import pairs, read_journey, source_words
from explorer.report.page import Figure, Section, definitions
from explorer.report.table import Table, numbers, prose, words
from explorer.report.text import (
    copy_line,
    counted,
    environment_line,
    microseconds,
    percent,
    share_of_copy,
    times_as_fast,
    with_spread,
)
from explorer.system.user_files import COMPARISON, JOURNEY, TUNED_TABLE, kind_of, read_json
from explorer.tuning.journey import BEST, Journey
from explorer.tuning.peer_comparison import PeerComparison, PeerRun

# ------------------------------------------------------------------ what a file is


@dataclass(frozen=True, slots=True)
class KeptPage:
    """What a file's page is called, the sentence below that, and its sections."""

    title: str
    lead: str
    sections: list[Section]


def kept_page(named: Path) -> KeptPage:
    """Return the sections on what a file keeps. Raises InvalidInput for a file that keeps nothing.

    A comparison, a journey and a tuned table are known by what stands in them. A tuned table may
    also be named as `explorer table list` does.
    """
    remedy = "name a comparison, a journey or a tuned table"
    path = table_file(named)
    if path.name.endswith(SUFFIX):
        raise InvalidInput(_of_a_recording(path))
    kind = kind_of(read_json(path, remedy))
    if kind == COMPARISON:
        return comparison_page(read_compared(path))
    if kind == JOURNEY:
        return journey_page(read_journey(path))
    if kind == TUNED_TABLE:
        return table_page(read_table(path))
    raise InvalidInput(
        f"{path} is none of the files that a report shows; name what explorer compare --save, "
        "explorer journey --save or explorer tune wrote"
    )


def _of_a_recording(path: Path) -> str:
    """Say which commands show what a recording holds; raises its own error for a damaged one."""
    options = shlex.join(AskedProblem.of(read_header(path).problem).options)
    device = shlex.join(["--device", f"recorded:{path}"])
    return (
        f"{path} is a recording, which a report shows once a search has replayed it: give "
        f"explorer search {options} {device}, and then explorer report {options}"
    )


# ------------------------------------------------------------------ a comparison


OURS = "ours"

LARGE_BYTES = 32 * 2**20
"""Of a matrix that fills a GPU: smaller ones take a few microseconds, whatever their columns."""


def share_rows(comparisons: Sequence[PeerComparison]) -> list[Row]:
    """Return the share of copy's speed, in per cent, of ours and of each library."""
    rows = []
    for one in comparisons:
        times = {OURS: one.time_us, **{peer.name: peer.time_us for peer in one.peers}}
        rows += [
            {
                "cols": one.problem.cols,
                "share": round(100 * one.copy_time_us / time_us, 2),
                "who": who,
                "problem": str(one.problem),
                "is_large": one.problem.bytes >= LARGE_BYTES,
            }
            for who, time_us in times.items()
        ]
    return rows


def contender_names(run: PeerRun) -> list[str]:
    """Return ours and every library of a comparison: each has one mark in all of its charts."""
    peers = (peer.name for one in run.comparisons for peer in one.peers)
    return list(dict.fromkeys([OURS, *peers]))


def shares_figure(
    label: str, comparisons: Sequence[PeerComparison], names: Sequence[str]
) -> Figure:
    """Return the chart of shares of copy over columns, for one op and element type."""
    rows = share_rows(comparisons)
    shares: dict[str, list[float]] = {}
    for row in rows:
        shares.setdefault(row["who"], []).append(row["share"])
    said = ", ".join(
        f"{who} {geometric_mean(found) or 0.0:.0f} %"
        + (f" (of {counted(len(found), 'shape')})" if len(found) < len(comparisons) else "")
        for who, found in shares.items()
    )
    counts = result_counts(comparisons)
    says = (
        "Copy's time over that of each library; the dashed line at 100 is copy. Lines join "
        f"matrices of at least {LARGE_BYTES // 2**20} MiB of traffic; points without a line are "
        f"smaller. Geometric means over {counted(len(comparisons), 'shape')}: {said}. Against the "
        f"fastest other library of each shape ours wins {counts['win']}, ties {counts['tie']} and "
        f"loses {counts['loss']}."
    )
    return Figure(f"Share of copy's speed, {label}", says, shares_chart(rows, label, names))


def comparison_chart(run: PeerRun) -> Chart:
    """Return the picture of a comparison for a file: a chart for each op and element type."""
    names = contender_names(run)
    return stacked(
        [
            shares_chart(share_rows(of), f"{label}, {_where(of)}", names)
            for label, of in groups(run).items()
        ]
    )


def _where(comparisons: Sequence[PeerComparison]) -> str:
    made = comparisons[0].environment
    return f"{made.gpu}, {made.date[:10]}"


def comparison_page(run: PeerRun) -> KeptPage:
    """Return the page of a comparison. Raises InvalidInput where it compares nothing."""
    if not run.comparisons:
        raise InvalidInput("this comparison has no problem that was compared; name another file")
    drawn, told = Section("Share of copy's speed over columns"), Section("Every time")
    names = contender_names(run)
    for label, comparisons in groups(run).items():
        drawn.add(shares_figure(label, comparisons, names))
    told.add(*map(_with_all_headings, tables(run)))
    told.say(LEGEND)
    about = Section("Environment of the comparison")
    about.add(definitions(notes_of(run)))
    first, counts = run.comparisons[0].environment, result_counts(run.comparisons)
    lead = (
        f"{counted(len(run.comparisons), 'problem')} on {first.gpu}, {first.date[:10]}: against "
        f"the fastest other library ours wins {counts['win']}, ties {counts['tie']} and loses "
        f"{counts['loss']}."
    )
    return KeptPage("Our kernels beside other libraries", lead, [drawn, told, about])


def _with_all_headings(table: Table) -> Table:
    """Return a table whose column without a heading has one: a terminal has no room for it."""
    columns = [replace(one, heading=one.heading or "which peer") for one in table.columns]
    return replace(table, columns=columns)


# ------------------------------------------------------------------ a journey


def journey_rows(journey: Journey) -> list[Row]:
    """Return each step, as a chart takes it: per cent above copy, or above the fastest step."""
    reference_us = journey.copy_time_us or journey.steps[-1].time_us
    best = journey.steps[-1]
    return [
        {
            "label": step.name,
            "value": 100 * (step.time_us / reference_us - 1),
            "told": f"{microseconds(step.time_us)} µs",
            "kind": "the search's best"
            if BEST in step.names
            else "ties with the fastest"
            if journey.is_tie(step, best)
            else "published kernel",
        }
        for step in journey.steps
    ]


def journey_chart(journey: Journey) -> Chart:
    """Return the chart of a journey: its last third, where it is decided, has room."""
    us = microseconds(journey.copy_time_us)
    reference = f"copy's time, {us} µs" if journey.copy_us else "the fastest"
    return lollipops_chart(journey_rows(journey), f"% above {reference}", step=24)


def journey_picture(journey: Journey) -> Chart:
    """Return the picture of a journey for a file."""
    made = journey.environment
    title = f"{journey.problem} on {made.gpu}, {made.timing} L2, {made.date[:10]}"
    return journey_chart(journey).properties(title=title)


def journey_page(journey: Journey) -> KeptPage:
    """Return the page of a journey."""
    slowest, fastest = journey.steps[0], journey.steps[-1]
    over = times_as_fast(journey.speedup(slowest, fastest).median)
    lead = (
        f"{counted(len(journey.steps), 'kernel')} on {journey.environment.gpu}, from "
        f"{slowest.name} ({microseconds(slowest.time_us)} µs) to {fastest.name} "
        f"({microseconds(fastest.time_us)} µs), which is {over} × as fast."
    )
    section = Section("From the slowest kernel to the fastest")
    tied = sum(journey.is_tie(step, fastest) for step in journey.steps) - 1
    says = (
        "Time above copy, on an axis that is logarithmic above 0.5 %, so that the fastest kernels, "
        f"among which it is decided, can be told apart. {_tied_words(tied)} with the fastest; "
        f"noise {percent(journey.contest.noise, 2)}."
    )
    figures = numbers("µs", "GB/s", "of copy", "× step")
    table = Table([*words("kernel"), *figures, prose("config"), prose("from")])
    for before, step in pairs(journey):
        share = share_of_copy(step.time_us, journey.copy_time_us)
        table.add(
            ", ".join(step.names),
            with_spread(step.time_us, step.spread),
            f"{journey.problem.gbps(step.time_us):.0f}",
            percent(share) if share is not None else "-",
            "" if before is None else times_as_fast(journey.speedup(before, step).median),
            brief_words(step.config),
            source_words(journey, step),
        )
    section.add(Figure("The journey", says, journey_chart(journey)), table)
    about = Section("Environment of the journey")
    made = journey.environment
    lines = [("problem", str(journey.problem)), ("measured", environment_line(made))]
    lines += [("copy", copy_line(made))] if copy_line(made) else []
    lines += [(f"left out: {entry.name}", entry.why) for entry in journey.left_out]
    about.add(definitions(lines))
    return KeptPage(f"{journey.problem}: published kernels", lead, [section, about])


def _tied_words(tied: int) -> str:
    return {0: "No other kernel ties", 1: "1 other kernel ties"}.get(tied, f"{tied} others tie")


# ------------------------------------------------------------------ a tuned table


FAMILIES = (
    "a thread a row",
    "a warp or less a row",
    "a few warps a row, several rows a block",
    "a block a row",
    "a cluster of blocks a row",
    "several launches",
)
"""Families of kernels, from the least of the GPU that works on one row to the most."""


def family(config: Config) -> str:
    """Return the one of FAMILIES of a kernel: how much of the GPU works on one row."""
    thread, warp, warps, block, cluster, launches = FAMILIES
    if config.launches != "one":
        return launches
    if config.cluster > 1:
        return cluster
    if config.threads_per_row == 1:
        return thread
    if config.threads_per_row <= 32:
        return warp
    return block if config.rows_per_block == 1 else warps


@dataclass(frozen=True, slots=True)
class Kind:
    """What problems must have in common so that a kernel of one can serve another."""

    label: str
    problems: tuple[TunedProblem, ...]


def kinds(table: TunedTable) -> list[Kind]:
    """Return the problems by op, element types, mask and axis, the largest group first."""
    found: dict[str, list[TunedProblem]] = {}
    for one in table.problems:
        found.setdefault(_kind(one.problem), []).append(one)
    made = [Kind(label, tuple(problems)) for label, problems in found.items()]
    return sorted(made, key=lambda kind: -len(kind.problems))


def _kind(problem: Problem) -> str:
    extra = f" {problem.mask}" if str(problem.mask) != "none" else ""
    along = f" inner {problem.inner}" if problem.inner > 1 else ""
    return f"{problem.op} {problem.dtype}{extra}{along}"


def times_of(one: TunedProblem) -> dict[Config, float]:
    """Return the time of each config that was timed: of the finals where it was in them."""
    return {t.config: t.time_us for t in one.timed} | {f.config: f.time_us for f in one.finalists}


BANDS = (64, 256, 1024, 4096, 16384, 65536)
"""Upper ends of the bands of columns of the family matrix; the last band has none."""


def family_losses(problems: Sequence[TunedProblem]) -> list[Row]:
    """Return how much the best kernel of each family loses, in each band of columns.

    The value is the geometric mean over the problems of the band of which the family has a timed
    kernel.
    """
    names = [*(f"to {end}" for end in BANDS), f"above {BANDS[-1]}"]
    found: dict[tuple[str, str], list[float]] = {}
    for one in problems:
        band = names[sum(one.problem.cols > end for end in BANDS)]
        best: dict[str, float] = {}
        for config, time_us in times_of(one).items():
            name = family(config)
            best[name] = min(time_us, best.get(name, time_us))
        for name, time_us in best.items():
            found.setdefault((band, name), []).append(time_us / min(best.values()))
    rows = []
    for name in FAMILIES:
        for band in names:
            ratios = found.get((band, name))
            if ratios:
                loss = 100 * ((geometric_mean(ratios) or 1.0) - 1)
                rows.append({"x": band, "y": name, "value": loss, "told": f"{loss:.1f} %"})
    return sorted(rows, key=lambda row: names.index(row["x"]))


NEIGHBOURS = 2
"""Problems beside each whose kernels are tried on it."""


def neighbour_losses(problems: Sequence[TunedProblem]) -> tuple[list[Row], int]:
    """Return what the best kernels of each problem's neighbours lose on it, and how many are known.

    A neighbour is one of the NEIGHBOURS problems of the nearest columns and rows, by logarithms.
    Its best kernel has a loss where it was timed on this problem.
    """
    rows, asked = [], 0
    for one in problems:
        near = sorted(
            (other for other in problems if other is not one),
            key=lambda other: (_distance(one.problem, other.problem), str(other.problem)),
        )[:NEIGHBOURS]
        times = times_of(one)
        fastest_us = min(times.values())
        for other in near:
            asked += 1
            time_us = times.get(other.best.config)
            if time_us is not None:
                rows.append(
                    {
                        "problem": str(one.problem),
                        "neighbour": str(other.problem),
                        "label": f"{_shape(one.problem)} with {_shape(other.problem)}'s",
                        "loss": 100 * (time_us / fastest_us - 1),
                        "what": brief_words(other.best.config),
                    }
                )
    return sorted(rows, key=lambda row: -row["loss"]), asked


def _distance(one: Problem, other: Problem) -> float:
    return abs(log(one.cols / other.cols)) + abs(log(one.rows / other.rows))


LEAST_PROBLEMS = 10
"""A kind of fewer problems stands in the table of all alone."""


def table_page(table: TunedTable) -> KeptPage:
    """Return the page of a tuned table. Raises InvalidInput where it has no problem."""
    if not table.problems:
        raise InvalidInput("this table has no problem; name another file")
    large = [kind for kind in kinds(table) if len(kind.problems) >= LEAST_PROBLEMS]
    kernels = sum(len(one.timed) for one in table.problems)
    dates = sorted(one.environment.date[:10] for one in table.problems)
    lead = (
        f"The best of {kernels} timed kernels for {counted(len(table.problems), 'problem')} on "
        f"{table.gpu.name}, {dates[0]}{f' to {dates[-1]}' if dates[-1] != dates[0] else ''}."
    )
    sections = [_families(large), _neighbours(large), _untuned(table), _best(table), _made(table)]
    return KeptPage(f"Tuned kernels of {table.gpu.name}", lead, sections)


def _families(large: Sequence[Kind]) -> Section:
    section = Section("Which kernel family is the fastest where")
    if not large:
        section.say(
            f"No kind of problem has {LEAST_PROBLEMS} problems or more, so that no map is drawn."
        )
    else:
        section.say(
            "A map shows the family of the best kernel of each problem. Below it, each row is a "
            "family and each column a band of row lengths. A cell says how much more time the best "
            "timed kernel of the family takes than the best of all, in geometric mean over the "
            "problems of the band on which one was timed. In an empty cell none was. Finalists "
            "have the times of the finals, in which kernels are timed in turn; other kernels those "
            "that they took by themselves."
        )
    for kind in large:
        rows = [
            {
                "cols": one.problem.cols,
                "rows": one.problem.rows,
                "family": family(one.best.config),
                "told": brief_words(one.best.config),
            }
            for one in kind.problems
        ]
        wins = {name: sum(row["family"] == name for row in rows) for name in _families_of(rows)}
        told = "; ".join(f"{name} on {n}" for name, n in sorted(wins.items(), key=lambda w: -w[1]))
        says = f"The family of the best kernel of each of {len(rows)} problems: {told}."
        section.add(
            Figure(f"Best family, {kind.label}", says, map_chart(rows, kind.label, FAMILIES))
        )
        section.add(_losses_figure(kind))
    return section


def _losses_figure(kind: Kind) -> Figure:
    losses = family_losses(kind.problems)
    worst = max(losses, key=lambda row: row["value"])
    says = (
        "How much more time each family takes than the best. The greatest loss is of "
        f"{worst['y']}, for rows of {worst['x'].replace('to ', 'up to ')} columns: "
        f"{worst['told']}."
    )
    cells = [{**row, "figure": _cell(row["value"])} for row in losses]
    title = (kind.label, "% more time than the best family")
    chart = matrix_chart(cells, "columns", title, FAMILIES)
    table = Table([*words("family", "columns"), *numbers("loss")])
    for row in losses:
        table.add(row["y"], row["x"], row["told"])
    return Figure(f"What another family loses, {kind.label}", says, chart, table)


def _cell(loss: float) -> str:
    """Return per cent for a cell, on which four characters have room."""
    return f"{loss:.1f}" if loss < 99.95 else f"{loss:.0f}"


def _families_of(rows: Sequence[Row]) -> list[str]:
    return list(dict.fromkeys(row["family"] for row in rows))


MOST_LOSSES = 15
"""How many of the greatest losses are listed for a kind of problem."""


def _neighbours(large: Sequence[Kind]) -> Section:
    section = Section("What the neighbours' kernels lose")
    section.say(
        f"For each problem the best kernels of its {NEIGHBOURS} nearest problems (by the "
        "logarithms of columns and rows) are looked up among the kernels that were timed on it. "
        "This says what it costs to tune one shape and use its kernel for the next."
    )
    for kind in large:
        rows, asked = neighbour_losses(kind.problems)
        if not rows:
            section.say(f"{kind.label}: no neighbour's kernel was timed on another problem.")
            continue
        mean = 100 * ((geometric_mean(1 + row["loss"] / 100 for row in rows) or 1.0) - 1)
        half = median(row["loss"] for row in rows)
        says = (
            f"Of {asked} pairs of a problem and a neighbour, {len(rows)} were timed. They lose "
            f"{mean:.1f} % in geometric mean, {half:.1f} % in the median and {rows[0]['loss']:.1f} "
            "% at most. Those that were not timed may lose more."
        )
        shown = [
            {
                "label": row["label"],
                "value": row["loss"],
                "told": f"{row['loss']:.1f} %",
                "kind": "loss",
            }
            for row in rows[:MOST_LOSSES]
        ]
        table = Table([*words("problem", "kernel of"), *numbers("loss"), prose("that kernel")])
        table.title = f"The {len(shown)} greatest losses, {kind.label}"
        for row in rows[:MOST_LOSSES]:
            table.add(row["problem"], row["neighbour"], f"{row['loss']:.1f} %", row["what"])
        chart = lollipops_chart(shown, "% more time than the best")
        section.add(Figure(f"Greatest losses, {kind.label}", says, chart, table))
    return section


def _shape(problem: Problem) -> str:
    return f"{problem.rows}x{problem.cols}"


def _untuned(table: TunedTable) -> Section:
    section = Section("What is lost without a search")
    known = [one for one in table.problems if one.gain is not None]
    if not known:
        section.say("What was taken without a search has no time in this table.")
        return section
    mean = geometric_mean(one.gain or 1.0 for one in known) or 1.0
    section.say(
        "What was taken without a search when the table was made (the heuristic) takes "
        f"{mean:.3f} × the best's time in geometric mean over {counted(len(known), 'problem')}. "
        "It loses most on these:"
    )
    listed = Table([*words("problem"), *numbers("loss"), prose("best"), prose("heuristic")])
    for one in sorted(known, key=lambda one: -(one.gain or 1.0))[:MOST_LOSSES]:
        loss = percent((one.gain or 1.0) - 1)
        listed.add(str(one.problem), loss, brief_words(one.best.config), brief_words(one.untuned))
    section.add(listed)
    with_torch = [one.torch_over_best for one in table.problems if one.torch_over_best]
    if with_torch:
        over = geometric_mean(with_torch) or 1.0
        section.say(
            f"Torch's own function takes {over:.2f} × the best's time in geometric mean over "
            f"{counted(len(with_torch), 'problem')}."
        )
    else:
        section.say("Torch was not timed beside these kernels.")
    return section


def _best(table: TunedTable) -> Section:
    section = Section("The best kernel of each problem")
    section.say(_shares_words(table))
    figures = numbers("µs", "of copy", "ties")
    listed = Table([*words("problem"), *figures, prose("family"), prose("best")])
    listed.title = "The best kernel of each problem, with its time"
    for one in table.problems:
        share = share_of_copy(one.best.time_us, one.environment.copy_us)
        ties = sum(f.tied for f in one.finalists) - 1
        listed.add(
            str(one.problem),
            microseconds(one.best.time_us),
            percent(share) if share is not None else "-",
            str(ties),
            family(one.best.config),
            brief_words(one.best.config),
        )
    section.add(listed)
    return section


def _shares_words(table: TunedTable) -> str:
    """Say in a sentence how fast the best kernels are beside copy."""
    found = [share_of_copy(one.best.time_us, one.environment.copy_us) for one in table.problems]
    shares = sorted(share for share in found if share is not None)
    if not shares:
        return "Copy was not timed beside these kernels."
    return (
        f"The best kernel of a problem has {percent(shares[0])} to {percent(shares[-1])} of copy's "
        f"speed, {percent(median(shares))} in the median over {counted(len(shares), 'problem')}. "
        "A problem that takes a few microseconds is far from copy's speed, whatever its kernel."
    )


def _made(table: TunedTable) -> Section:
    section = Section("Environment of the table")
    made = [one.environment for one in table.problems]
    failed = sum(len(one.failed) for one in table.problems)

    def each(of: Callable[[Any], Any]) -> str:
        return ", ".join(dict.fromkeys(str(of(one)) for one in made))

    throttled = sum(bool(one.throttle_reasons) for one in made)
    section.add(
        definitions(
            [
                ("GPU", f"{table.gpu.name}, {table.gpu.arch}, {table.gpu.sm_count} SMs"),
                ("driver", each(lambda c: c.driver)),
                ("NVRTC", each(lambda c: c.nvrtc)),
                ("clocks", f"SM {each(lambda c: c.sm_clock_mhz)} MHz, memory "
                 f"{each(lambda c: c.memory_clock_mhz)} MHz"),
                ("throttled", f"on {throttled} of {len(made)} problems"),
                ("L2", each(lambda c: c.timing)),
                ("accuracy", each(lambda c: c.accuracy)),
                ("effort", ", ".join(dict.fromkeys(one.effort for one in table.problems))),
                ("without a time", counted(failed, "kernel")),
                ("templates", each(lambda c: c.template_digest)),
                ("explorer", each(lambda c: c.explorer)),
            ]
        )
    )  # fmt: skip
    return section
