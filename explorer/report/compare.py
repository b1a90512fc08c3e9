"""Comparisons with other libraries: what `explorer compare` prints, as data, and as a page."""

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from math import exp, log
from pathlib import Path
from statistics import median
from typing import Any

from rich.console import Console

from explorer.model.errors import InvalidInput
from explorer.model.outcome import Contender, Environment
from explorer.model.problem import Problem
from explorer.report.charts import Chart, Row, is_curve, shares_chart, stacked
from explorer.report.page import Block, Figure, Folded, KeptPage, command, definitions, tiles
from explorer.report.table import (
    Field,
    Kind,
    Table,
    as_markdown,
    notes,
    numbers,
    print_table,
    table_of,
    words,
)
from explorer.report.text import (
    config_command,
    counted,
    environment_line,
    limit_word,
    microseconds,
    percent,
    share_of_limit,
)
from explorer.system.user_files import COMPARISON, read_kept, shipped_results
from explorer.tuning.peer_comparison import (
    LOSS,
    LOSS_THAT_COUNTS,
    TIE,
    UNSEARCHED,
    WIN,
    Loss,
    PeerComparison,
    PeerRun,
    losses,
)


def read_compared(path: Path) -> PeerRun:
    """Return the comparisons that a file keeps; raises InvalidInput for a file that keeps none."""
    return read_kept(path, PeerRun.from_dict, COMPARISON, "compare")


def beside_limit(problem: Problem, made: Environment) -> PeerComparison | None:
    """Return the latest comparison of a problem beside PyTorch that comes with the package.

    None where none of them has the problem on that GPU with that timing.
    """
    found = [
        one
        for name, path in shipped_results().items()
        if name.startswith("compare-")
        for one in read_compared(path).comparisons
        if one.problem == problem
        and (one.environment.gpu, one.environment.timing) == (made.gpu, made.timing)
        and one.find("torch") is not None
    ]
    return max(found, key=lambda one: one.environment.date, default=None)


# ------------------------------------------------------------------ means and counts


def geometric_mean(values: Iterable[float]) -> float | None:
    """Return the geometric mean of positive numbers; None of none."""
    logs = [log(value) for value in values]
    return exp(sum(logs) / len(logs)) if logs else None


def groups(run: PeerRun) -> dict[str, list[PeerComparison]]:
    """Return the comparisons by op and dtype, in the order of the run."""
    found: dict[str, list[PeerComparison]] = {}
    for one in run.comparisons:
        found.setdefault(f"{one.problem.op} {one.problem.dtype}", []).append(one)
    return found


@dataclass(frozen=True, slots=True)
class Means:
    """Geometric means over the problems of one op and dtype."""

    of_limit: float | None
    """The limit's time over ours."""
    best_over_ours: float | None
    """The fastest peer's time over ours, problem by problem."""
    of_limit_by_name: dict[str, float]
    """The limit's time over that of each peer, where it has one, and of the heuristic or ours."""
    counts: dict[str, int]
    """How many those are."""


HEURISTIC = "heuristic"


def means(comparisons: Sequence[PeerComparison]) -> Means:
    """Return the means that stand at the bottom of a table."""
    shares: dict[str, list[float]] = {}
    is_timed = any(one.heuristic_us for one in comparisons)
    for one in comparisons:
        times = {peer.name: peer.time_us for peer in one.peers}
        if is_timed:  # where it has no time of its own it is ours
            times[HEURISTIC] = median(one.heuristic_us or one.ours_us)
        for name, time_us in times.items():
            shares.setdefault(name, []).append(one.limit_time_us / time_us)
    best = [(one, one.best) for one in comparisons]
    return Means(
        of_limit=geometric_mean(one.limit_time_us / one.time_us for one in comparisons),
        best_over_ours=geometric_mean(p.time_us / one.time_us for one, p in best if p is not None),
        of_limit_by_name={name: geometric_mean(s) or 0.0 for name, s in shares.items()},
        counts={name: len(s) for name, s in shares.items()},
    )


def result_counts(comparisons: Iterable[PeerComparison]) -> dict[str, int]:
    """Return how many wins, ties and losses there are against the fastest peer of each problem."""
    found = Counter(one.result_against(one.best) for one in comparisons if one.best is not None)
    return {result: found[result] for result in (WIN, TIE, LOSS)}


def counts_words(comparisons: Iterable[PeerComparison]) -> str:
    """Say so in words: `3 wins, 1 tie, 0 losses`."""
    counts = result_counts(comparisons)
    several = {LOSS: "losses"}
    return ", ".join(counted(n, result, several.get(result)) for result, n in counts.items())


# ------------------------------------------------------------------ as data


def compare_data(run: PeerRun) -> dict[str, Any]:
    """Return `PeerRun.as_dict` with times, ratios, results and geometric means.

    Times are microseconds (`_us`), shares fractions of 1, ratios a peer's time over ours.
    """
    data = run.as_dict()
    for entry, one in zip(data["comparisons"], run.comparisons, strict=True):
        best = one.best
        entry |= {
            "time_us": one.time_us,
            "limit": one.problem.limit,
            "limit_time_us": one.limit_time_us,
            "of_limit": share_of_limit(one.time_us, one.limit_time_us),
            "noise": one.contest.noise,
            "heuristic_over_ours": one.heuristic_over_ours,
            "best_peer": None if best is None else {"name": best.name, **_peer(one, best)},
        }
        for values, peer in zip(entry["peers"], one.peers, strict=True):
            values |= _peer(one, peer)
    data["geometric_means"] = [
        {"of": label, **_means_data(means(of)), **result_counts(of)}
        for label, of in groups(run).items()
    ]
    data["losses"] = [
        {**asdict(loss), "problem": loss.problem.as_dict(), "beyond_limit": loss.counts}
        for loss in losses(run)
    ]
    data["loss_limit"] = LOSS_THAT_COUNTS
    return data


def _peer(one: PeerComparison, peer: Contender) -> dict[str, Any]:
    over = one.over_ours(peer)
    return {
        "time_us": peer.time_us,
        "spread": peer.spread,
        "of_limit": share_of_limit(peer.time_us, one.limit_time_us),
        "over_ours": over.median,
        "over_ours_low": over.low,
        "over_ours_high": over.high,
        "verdict": one.result_against(peer),
    }


def _means_data(found: Means) -> dict[str, Any]:
    shares = found.of_limit_by_name.items()
    return {
        "of_limit": found.of_limit,
        "best_over_ours": found.best_over_ours,
        "peers": {n: {"of_limit": share, "problems": found.counts[n]} for n, share in shares},
    }


def compare_rows(run: PeerRun) -> list[dict[str, Any]]:
    """Return a row for each problem and contender: ours, limit, each peer, and who is left out."""
    rows: list[dict[str, Any]] = []
    for one in run.comparisons:
        made, limit_us = one.environment, one.limit_time_us
        common = {"problem": one.problem.as_dict(), "gpu": made.gpu, "timing": made.timing}
        common |= {"date": made.date}
        ours = {"contender": "ours", "version": None, "time_us": one.time_us}
        ours |= {"of_limit": share_of_limit(one.time_us, limit_us), "error": one.error}
        rows.append({**common, **ours, "max_ulp": one.max_ulp, "over_ours": 1.0})
        limit = {"contender": one.problem.limit, "time_us": limit_us, "of_limit": 1.0}
        rows.append({**common, **limit})
        for peer in one.peers:
            known = {name: getattr(peer, name) for name in _OF_A_ROW}
            rows.append({**common, "contender": peer.name, **known, **_peer(one, peer)})
        rows += [
            {**common, "contender": left.name, "stage": left.stage, "reason": left.reason}
            for left in one.left_out
        ]
    return rows


_OF_A_ROW = ("version", "note", "error", "max_ulp", "form", "other_forms")


# ------------------------------------------------------------------ as tables


MARKS = {TIE: " =", LOSS: " <"}
INEXACT = " ~"

_LEGEND = (
    "Times are in µs a launch; % of {limit} is {limit}'s time over ours, and the ratio is the best "
    "peer's time over ours. `=` marks a peer that cannot be told from ours, `<` a peer that is "
    "faster than ours, and `~` a peer that is less exact than our kernels must be."
)


def _named_time(peer: Contender) -> str:
    return f"{peer.name} {microseconds(peer.time_us)}"


def _ratio(one: PeerComparison, peer: Contender) -> str:
    return f"{one.over_ours(peer).median:.3f}{_mark(one, peer)}"


def legend(run: PeerRun) -> str:
    """Return what the numbers and marks of the tables mean."""
    return _LEGEND.format(limit=limit_word(run.comparisons))


def _share_heading(comparisons: Sequence[PeerComparison]) -> str:
    return f"% of {limit_word(comparisons)}"


_OURS: tuple[Field[PeerComparison], ...] = (
    Field("", lambda c: f"{c.problem.rows}×{c.problem.cols}", "rows × cols", kind=Kind.WORD),
    Field("", lambda c: c.limit_time_us, limit_word, microseconds),
    Field("", lambda c: c.time_us, "ours", microseconds),
    Field("", lambda c: 100 * c.limit_time_us / c.time_us, _share_heading, "{:.1f}".format),
    Field("", lambda c: c.best, "best peer", _named_time, kind=Kind.WORD),
    Field("", lambda c: c.best and _ratio(c, c.best), "ratio"),
)
"""The columns before those of single peers."""

_SHARE = 3
"""Which of them is our share of the limit's speed."""


def tables(run: PeerRun) -> list[Table]:
    """Return a table for each op and dtype: ours, the best peer, and every peer."""
    found = []
    for label, comparisons in groups(run).items():
        mean = means(comparisons)
        peers = dict.fromkeys(peer.name for one in comparisons for peer in one.peers)
        named = [*([HEURISTIC] if HEURISTIC in mean.counts else []), *peers]
        each = [Field("", partial(_peer_cell, name=name), name) for name in named]
        table = table_of((*_OURS, *each), comparisons, label)
        share = "" if mean.of_limit is None else f"{100 * mean.of_limit:.1f}"
        ratio = "" if mean.best_over_ours is None else f"{mean.best_over_ours:.3f}"
        shares = (f"{100 * mean.of_limit_by_name[name]:.0f} %" for name in named)
        table.add("geometric mean", "", "", share, "", ratio, *shares)
        found.append(table)
    return found


def _mark(one: PeerComparison, peer: Contender) -> str:
    return MARKS.get(one.result_against(peer), "")


def _peer_cell(one: PeerComparison, name: str) -> str:
    """Return the time of a peer, or of the heuristic's config, with its marks."""
    peer = one.find(name)
    if name == HEURISTIC:
        return microseconds(median(one.heuristic_us)) if one.heuristic_us else "ours"
    if peer is None:
        return "–"
    return microseconds(peer.time_us) + _mark(one, peer) + (INEXACT if peer.inexact else "")


def losses_table(found: Sequence[Loss]) -> Table:
    """Return a line for each problem that a right peer computes faster than ours, worst first."""
    figures = numbers("ours, µs", "peer, µs", "ours takes", "95 % interval")
    table = Table((*words("problem", "peer"), *figures), title="losses to a right peer")
    for loss in found:
        table.add(
            str(loss.problem),
            loss.peer + (", wrong on some rows" if loss.wrong_rows else ""),
            microseconds(loss.ours_us),
            microseconds(loss.peer_us),
            f"{100 * loss.slower:+.1f} %",
            f"{100 * loss.least:+.1f} to {100 * loss.most:+.1f} %",
        )
    return table


# ------------------------------------------------------------------ notes


Notes = list[tuple[str, str]]


def notes_of(run: PeerRun) -> Notes:
    """Return the notes under the tables: results, versions, who was left out, environment."""
    versions = {peer.name: peer.version for one in run.comparisons for peer in one.peers}
    lines = [("against the best peer", counts_words(run.comparisons))]
    lines += [("losses", losses_sentence(run)), *_means_notes(run), *_origins(run)]
    lines += _heuristic(run)
    lines += [("peers", "; ".join(f"{n}: {v}" for n, v in versions.items()))] if versions else []
    lines += [*_forms(run), *_wrong_rows(run), *left_out_lines(run), *_spent(run)]
    lines += [("not compared", f"{one.problem}: {one.reason}") for one in run.unmeasured]
    lines += [("drawn", run.drawn)] if run.drawn else []
    lines += [("rounds", f"{run.rounds}, interleaved, seed {run.seed}")]
    if run.comparisons:
        first = run.comparisons[0].environment
        lines += [("measured", environment_line(first))]
        lines += [("templates", first.template_digest)]
    return lines


def losses_sentence(run: PeerRun) -> str:
    """Say on how many problems ours takes more time than a right peer, beyond the limit if any."""
    found, limit = losses(run), percent(LOSS_THAT_COUNTS, 0)
    total = counted(len(run.comparisons), "problem")
    beyond = sum(loss.counts for loss in found)
    if beyond:
        are = "is" if beyond == 1 else "are"
        return f"{beyond} of {total} {are} lost to a right peer by more than {limit}"
    within = f"; {counted(len(found), 'loss', 'losses')} by less, beyond noise" if found else ""
    return f"no loss beyond {limit} on {total}{within}"


def _means_notes(run: PeerRun) -> Notes:
    """Say which peers' geometric means are of fewer problems than ours, and of how many."""
    found = []
    for label, comparisons in groups(run).items():
        by_number: dict[int, list[str]] = {}
        for name, number in means(comparisons).counts.items():
            by_number.setdefault(number, []).append(name)
        found += [
            f"{label}: that of {', '.join(names)} is over the {number} of "
            f"{counted(len(comparisons), 'problem')} that are computed"
            for number, names in sorted(by_number.items(), reverse=True)
            if number < len(comparisons)
        ]
    return [("means", text) for text in found]


def _origins(run: PeerRun) -> Notes:
    """Say where our configs come from: each origin once, or how many there are of each kind."""
    origins = [one.origin for one in run.comparisons]
    if len(set(origins)) <= 3:
        return [("ours", origin) for origin in dict.fromkeys(origins)]
    plain = sum(origin.endswith(UNSEARCHED) for origin in origins)
    chosen = f"what is taken without a search at {counted(plain, 'problem')}; " if plain else ""
    best = f"the best of a search at {counted(len(origins) - plain, 'problem')}"
    return [("ours", f"{chosen}{best}, which the JSON names")]


def _heuristic(run: PeerRun) -> Notes:
    """Say how far the configs that are taken without a search are from those that were found."""
    over = [(o, one.problem) for one in run.comparisons if (o := one.heuristic_over_ours)]
    if not over:
        return []
    worst, problem = max(over, key=lambda pair: pair[0])
    mean = geometric_mean(ratio for ratio, _ in over) or 1.0
    said = f"{mean:.3f} × the searched time in geometric mean, {worst:.3f} × at worst ({problem})"
    return [("heuristic", said)]


def _forms(run: PeerRun) -> Notes:
    """Say of each peer with forms on how many problems each is the fastest."""
    found: dict[str, dict[str, list[str]]] = {}
    for one in run.comparisons:
        for peer in filter(lambda peer: peer.form, one.peers):
            found.setdefault(peer.name, {}).setdefault(peer.form, []).append(str(one.problem))
    lines = []
    for name, forms in found.items():
        (most, of), *fewer = sorted(forms.items(), key=lambda pair: -len(pair[1]))
        parts = [f"{name} is {most} at {counted(len(of), 'problem')}"]
        parts += [f"{form} at {few_of(problems)}" for form, problems in fewer]
        lines.append(("form", "; ".join(parts)))
    return lines


def _wrong_rows(run: PeerRun) -> Notes:
    """Say why peers are inexact, and which rows each gets wrong for some problem."""
    peers = [(one, peer) for one in run.comparisons for peer in one.peers]
    inexact = [(f"{p.name}, {one.problem}", p.inexact) for one, p in peers if p.inexact]
    found: dict[str, dict[str, None]] = {}
    for _, peer in peers:
        found.setdefault(peer.name, {}).update(dict.fromkeys(peer.wrong_rows))
    wrong = [f"{name}: {', '.join(rows)}" for name, rows in found.items() if rows]
    lines = [("inexact ~", f"{who}: {why}") for who, why in inexact]
    return [*lines, *(("wrong rows", text) for text in wrong)]


NAMED_PROBLEMS = 6
"""Problems that a line names; it counts the others, and the JSON has all."""


def few_of(names: Sequence[str]) -> str:
    """Return the first names, and how many more there are."""
    more = len(names) - NAMED_PROBLEMS
    return ", ".join(names[:NAMED_PROBLEMS]) + (f" and {more} more" if more > 0 else "")


def left_out_lines(run: PeerRun) -> Notes:
    """Return each peer that was left out with each reason, and the problems of that reason.

    Reasons that differ in numbers alone are one: the first stands for the others.
    """
    found: dict[tuple[str, str], tuple[str, list[str]]] = {}
    for one in run.comparisons:
        for entry in one.left_out:
            key = entry.name, re.sub(r"\d+", "", entry.why)
            found.setdefault(key, (entry.why, []))[1].append(str(one.problem))
    return [
        (
            f"left out: {name}",
            f"{why} ({'all' if len(problems) == len(run.comparisons) else few_of(problems)})",
        )
        for (name, _), (why, problems) in found.items()
    ]


def _spent(run: PeerRun) -> Notes:
    """Say the seconds of a problem, and of its steps in the mean, the longest first."""
    steps: Counter[str] = Counter()
    for step in (step for one in run.comparisons for step in one.spent):
        steps[step.step] += step.seconds / len(run.comparisons)  # type: ignore[assignment]
    if not steps:
        return []
    each = ", ".join(f"{name} {mean:.1f}" for name, mean in steps.most_common() if mean >= 0.05)
    return [("time spent", f"{sum(steps.values()):.1f} s a problem in the mean: {each}")]


# ------------------------------------------------------------------ for a terminal and a document


def print_compared(run: PeerRun, console: Console, *, kept: bool = False) -> None:
    """Print ours beside the best peer, then every peer, for each op and dtype; losses; notes.

    `kept` runs are from a file.
    """
    for table in tables(run):
        print_table(table.only(range(len(_OURS))), console)
        if len(table.columns) > len(_OURS):
            title = f"every peer, µs (at the bottom, {table.columns[_SHARE].heading})"
            print_table(table.only([0, *range(len(_OURS), len(table.columns))], title), console)
    if found := losses(run):
        print_table(losses_table(found), console)
    console.print()
    console.print(legend(run).replace("`", ""))
    console.print(notes([*notes_of(run), *([("shown", "from a file")] if kept else [])]))


def compared_markdown(run: PeerRun) -> str:
    """Return the same for documents."""
    found = losses(run)
    every = [*tables(run), *([losses_table(found)] if found else [])]
    blocks = [f"**{table.title}**\n\n{as_markdown(table)}" for table in every]
    listed = "\n".join(f"- {label}: {text}" for label, text in notes_of(run))
    return "\n\n".join([*blocks, legend(run), listed]) + "\n"


# ------------------------------------------------------------------ as charts and a page


OURS = "ours"

LARGE_BYTES = 32 * 2**20
"""Of a problem that fills a GPU: smaller ones take a few microseconds, whatever their rows."""


def share_rows(comparisons: Sequence[PeerComparison]) -> list[Row]:
    """Return the share of the limit's speed, in per cent, of ours and of each library."""
    return [
        {
            "cols": one.problem.cols,
            "share": round(100 * one.limit_time_us / who.time_us, 2),
            "who": who.name,
            "problem": str(one.problem),
            "is_large": one.problem.bytes >= LARGE_BYTES,
        }
        for one in comparisons
        for who in one.contest.contenders
    ]


def contender_names(run: PeerRun) -> list[str]:
    """Return ours and every library of a comparison: each has one mark in all of its charts."""
    return list(dict.fromkeys([OURS, *run.peer_names]))


def shares_figure(
    label: str, comparisons: Sequence[PeerComparison], names: Sequence[str]
) -> Figure:
    """Return the chart of shares of the limit over columns, for one op and element type."""
    mean, shapes, limit = means(comparisons), len(comparisons), limit_word(comparisons)
    said = [f"ours {100 * (mean.of_limit or 0.0):.0f} %"]
    for name, share in mean.of_limit_by_name.items():
        number = mean.counts[name]
        of = f" (of {counted(number, 'shape')})" if number < shapes else ""
        said.append(f"{name} {100 * share:.0f} %{of}")
    joined = ", which lines join" if is_curve(share_rows(comparisons)) else ""
    says = (
        f"{limit.capitalize()}'s time over that of each library; the dashed line at 100 is "
        f"{limit}. Points of less than {LARGE_BYTES // 2**20} MiB of traffic are faint beside "
        f"others{joined}. Geometric means over {counted(shapes, 'shape')}: {', '.join(said)}. "
        f"Against the fastest other library of each shape ours has {counts_words(comparisons)}."
    )
    return Figure(f"Share of {limit}'s speed, {label}", says, _chart(comparisons, label, names))


def comparison_chart(run: PeerRun) -> Chart:
    """Return the picture of a comparison for a file: a chart for each op and element type."""
    names, made = contender_names(run), run.comparisons[0].environment
    where = f"{made.gpu}, {made.date[:10]}"
    return stacked([_chart(of, f"{kind}, {where}", names) for kind, of in groups(run).items()])


def _chart(of: Sequence[PeerComparison], title: str, names: Sequence[str]) -> Chart:
    across = of[0].problem.operator.across
    return shares_chart(share_rows(of), title, names, limit_word(of), across, OURS)


def _large_numbers(run: PeerRun) -> list[tuple[str, str, str]]:
    """Return on how many problems ours wins, and what it reaches in geometric mean."""
    of, mean, counts = run.comparisons, means(run.comparisons), result_counts(run.comparisons)
    others = "problems that other libraries compute, faster than any of them"
    found = [(str(counts[WIN]), f"of {sum(counts.values())}", others)]
    if mean.of_limit:
        share = f"{100 * mean.of_limit:.0f}"
        found.append((share, "%", f"of the speed of {limit_word(of)}, geometric mean"))
    over = [one.over_ours(peer).median for one in of if (peer := one.find("torch"))]
    ratio, how = (median(over), "median") if over else (mean.best_over_ours, "geometric mean")
    if ratio:
        name = "torch" if over else "the fastest other"
        found.append((f"{ratio:.2f}", "×", f"as fast as {name}, {how}"))
    return found


def comparison_page(run: PeerRun) -> KeptPage:
    """Return the page of a comparison. Raises InvalidInput where it compares nothing."""
    if not run.comparisons:
        raise InvalidInput("this comparison has no problem that was compared; name another file")
    names = contender_names(run)
    first = run.comparisons[0].environment
    lead = (
        f"{counted(len(run.comparisons), 'problem')} on {first.gpu}, {first.date[:10]}: against "
        f"the fastest other library ours has {counts_words(run.comparisons)}."
    )
    largest = max(run.comparisons, key=lambda one: one.problem.bytes)
    every = [Folded(f"Every time, {table.title}", [table]) for table in tables(run)]
    sections: dict[str, Iterable[Block]] = {
        "What the comparison found": [
            tiles(_large_numbers(run)),
            f"This command writes our kernel for the largest problem, {largest.problem}:",
            command(config_command(largest.config, largest.problem, first.accuracy)),
            *(shares_figure(label, of, names) for label, of in groups(run).items()),
        ],
        "Every time": [*every, legend(run)],
        "Environment of the comparison": [Folded("All of it", [definitions(notes_of(run))])],
    }
    return KeptPage.of("Our kernels beside other libraries", lead, sections)
