"""What `explorer compare` prints: our kernel, copy and every peer, problem by problem."""

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from math import exp, log
from pathlib import Path
from statistics import median
from typing import Any

from rich.console import Console

from explorer.model.outcome import Contender
from explorer.report.left_out import few_of, left_out_lines
from explorer.report.table import (
    Column,
    Table,
    as_markdown,
    cell,
    notes,
    numbers,
    print_table,
    words,
)
from explorer.report.text import (
    counted,
    measurement_lines,
    microseconds,
    percent,
    share_of_copy,
)
from explorer.system.user_files import COMPARISON, read_kept
from explorer.tuning.peer_comparison import (
    LOSS,
    LOSS_THAT_COUNTS,
    TIE,
    UNSEARCHED,
    Loss,
    PeerComparison,
    PeerRun,
    losses,
)

# ------------------------------------------------------------------ as JSON


def geometric_mean(values: Iterable[float]) -> float | None:
    """Of positive numbers; None of none."""
    logs = [log(value) for value in values]
    return exp(sum(logs) / len(logs)) if logs else None


@dataclass(frozen=True, slots=True)
class Means:
    """Geometric means over the problems of one op and dtype."""

    of_copy: float | None
    """Copy's time over ours."""
    best_over_ours: float | None
    """The fastest peer's time over ours, problem by problem."""
    of_copy_by_name: dict[str, float]
    """Copy's time over that of each peer, where it has one, and of the heuristic or ours."""
    counts: dict[str, int]
    """How many those are."""


def groups(run: PeerRun) -> dict[str, list[PeerComparison]]:
    """Comparisons by op and dtype, in the order of the run."""
    found: dict[str, list[PeerComparison]] = {}
    for one in run.comparisons:
        problem = one.problem
        label = f"{problem.op} {problem.dtype}"
        found.setdefault(label, []).append(one)
    return found


def means(comparisons: list[PeerComparison]) -> Means:
    """What the bottom of a table says."""
    shares: dict[str, list[float]] = {}
    is_timed = any(one.heuristic_us for one in comparisons)
    for one in comparisons:
        times = {peer.name: peer.time_us for peer in one.peers}
        if is_timed:  # where it has no time of its own it is ours
            times["heuristic"] = median(one.heuristic_us) if one.heuristic_us else one.time_us
        for name, time_us in times.items():
            shares.setdefault(name, []).append(one.copy_time_us / time_us)
    best = [(one, one.best) for one in comparisons]
    return Means(
        of_copy=geometric_mean(one.copy_time_us / one.time_us for one in comparisons),
        best_over_ours=geometric_mean(p.time_us / one.time_us for one, p in best if p is not None),
        of_copy_by_name={name: geometric_mean(s) or 0.0 for name, s in shares.items()},
        counts={name: len(s) for name, s in shares.items()},
    )


def result_counts(comparisons: Iterable[PeerComparison]) -> dict[str, int]:
    """Against the fastest peer of each problem: how many wins, ties and losses."""
    counts = {"win": 0, "tie": 0, "loss": 0}
    for one in comparisons:
        if one.best is not None:
            counts[one.result_against(one.best)] += 1
    return counts


def means_notes(run: PeerRun) -> list[str]:
    """Say which peers' geometric means are of fewer problems than ours, and of how many."""
    notes = []
    for label, comparisons in groups(run).items():
        by_number: dict[int, list[str]] = {}
        for name, number in means(comparisons).counts.items():
            by_number.setdefault(number, []).append(name)
        notes += [
            f"{label}: {_mean_of(names)} of the {counted(number, 'problem')}, of "
            f"{len(comparisons)}, that {'it computes' if len(names) == 1 else 'they compute'}"
            for number, names in sorted(by_number.items(), reverse=True)
            if number < len(comparisons)
        ]
    return notes


def _mean_of(names: list[str]) -> str:
    if len(names) == 1:
        return f"the mean of {names[0]} is"
    return f"the means of {', '.join(names[:-1])} and {names[-1]} are"


def compare_data(run: PeerRun) -> dict[str, Any]:
    """What `PeerRun.as_dict` has, with times, ratios, results and geometric means.

    Times are microseconds (`_us`), shares fractions of 1, ratios a peer's time over ours.
    """
    data = run.as_dict()
    for entry, one in zip(data["comparisons"], run.comparisons, strict=True):
        entry |= _derived(one)
        for values, peer in zip(entry["peers"], one.peers, strict=True):
            values |= _peer(one, peer)
    data["geometric_means"] = [
        {"of": label, **_means(means(found)), **result_counts(found)}
        for label, found in groups(run).items()
    ]
    data["losses"] = [
        {**asdict(loss), "problem": loss.problem.as_dict(), "beyond_limit": loss.counts}
        for loss in losses(run)
    ]
    data["loss_limit"] = LOSS_THAT_COUNTS
    return data


def _derived(one: PeerComparison) -> dict[str, Any]:
    best = one.best
    return {
        "time_us": one.time_us,
        "copy_time_us": one.copy_time_us,
        "of_copy": share_of_copy(one.time_us, one.copy_time_us),
        "noise": one.contest.noise,
        "heuristic_over_ours": one.heuristic_over_ours,
        "best_peer": None if best is None else {"name": best.name, **_peer(one, best)},
    }


def _peer(one: PeerComparison, peer: Contender) -> dict[str, Any]:
    over = one.over_ours(peer)
    return {
        "time_us": peer.time_us,
        "spread": peer.spread,
        "of_copy": share_of_copy(peer.time_us, one.copy_time_us),
        "over_ours": over.median,
        "over_ours_low": over.low,
        "over_ours_high": over.high,
        "verdict": one.result_against(peer),
    }


def _means(found: Means) -> dict[str, Any]:
    return {
        "of_copy": found.of_copy,
        "best_over_ours": found.best_over_ours,
        "peers": {
            name: {"of_copy": share, "problems": found.counts[name]}
            for name, share in found.of_copy_by_name.items()
        },
    }


def read_compared(path: Path) -> PeerRun:
    """The comparisons that a file keeps; raises InvalidInput for a file that keeps none."""
    return read_kept(path, PeerRun.from_dict, COMPARISON, "compare")


# ------------------------------------------------------------------ as a table


MARKS = {TIE: " =", LOSS: " <"}
INEXACT = " ~"
HEURISTIC = "heuristic"
LEAST_SHOWN_S = 0.05
"""Of a problem's steps: shorter ones are left out."""

WRONG_ROWS = ", wrong on some rows"
"""Of a peer that is right on the rows that are timed; a note names the other rows."""

LEGEND = (
    "Times are in µs a launch; % of copy is copy's time over ours, and the ratio is the best "
    "peer's time over ours. `=` marks a peer that cannot be told from ours, `<` a peer that is "
    "faster than ours, and `~` a peer that is less exact than our kernels must be."
)


OURS = 7
"""Columns before those of single peers."""


def headings(columns: list[str]) -> list[Column]:
    """Of one table, with those of single peers."""
    figures = numbers("copy", "ours", "% of copy", "best peer")
    name = Column("", follows=True)  # of the best peer, whose heading is above its time
    return [*words("rows × cols"), *figures, name, *numbers("ratio", *columns)]


def columns_of(comparisons: list[PeerComparison]) -> list[str]:
    """What has a time for some of these: the heuristic, the peers in the order of entering."""
    heuristic = [HEURISTIC] if any(one.heuristic_us for one in comparisons) else []
    return [*heuristic, *dict.fromkeys(p.name for one in comparisons for p in one.peers)]


def cells(one: PeerComparison, columns: list[str]) -> list[str]:
    """A problem's row."""
    best = one.best
    return [
        f"{one.problem.rows}×{one.problem.cols}",
        microseconds(one.copy_time_us),
        microseconds(one.time_us),
        percent(one.copy_time_us / one.time_us).removesuffix(" %"),
        *_best_cells(one, best),
        *(_column_cell(one, name) for name in columns),
    ]


def mean_cells(found: Means, columns: list[str]) -> list[str]:
    """The bottom row: of each peer, copy's time over its."""
    ratio = "" if found.best_over_ours is None else f"{found.best_over_ours:.3f}"
    share = "" if found.of_copy is None else f"{100 * found.of_copy:.1f}"
    shares = [f"{100 * found.of_copy_by_name[name]:.0f} %" for name in columns]
    return ["geometric mean", "", "", share, "", "", ratio, *shares]


def tables(run: PeerRun) -> list[Table]:
    """A table for each op and dtype."""
    found = []
    for label, comparisons in groups(run).items():
        columns = columns_of(comparisons)
        table = Table(headings(columns), title=label)
        for one in comparisons:
            table.add(*cells(one, columns))
        table.add(*mean_cells(means(comparisons), columns))
        found.append(table)
    return found


def losses_table(found: list[Loss]) -> Table:
    """A line for each problem that a right peer computes faster than ours, the worst first."""
    figures = numbers("ours, µs", "peer, µs", "ours takes", "95 % interval")
    table = Table((*words("problem", "peer"), *figures), title="losses to a right peer")
    for loss in found:
        interval = f"{100 * loss.least:+.1f} to {100 * loss.most:+.1f} %"
        table.add(
            str(loss.problem),
            loss.peer + (WRONG_ROWS if loss.wrong_rows else ""),
            microseconds(loss.ours_us),
            microseconds(loss.peer_us),
            f"{100 * loss.slower:+.1f} %",
            interval,
        )
    return table


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


def notes_of(run: PeerRun) -> list[tuple[str, str]]:
    """What stands under the tables: results, versions, what was left out, environment."""
    counts = result_counts(run.comparisons)
    lines = [("against the best peer", ", ".join(f"{n} {w}" for w, n in _plural(counts).items()))]
    lines += [("losses", losses_sentence(run))]
    lines += [("means", text) for text in means_notes(run)]
    lines += [("ours", origin) for origin in _origins(run)]
    lines += [("heuristic", text) for text in _heuristic(run)]
    lines += [("peers", "; ".join(_versions(run)))] if run.peer_names else []
    lines += [("form", text) for text in _forms(run)]
    lines += [("inexact ~", text) for text in _inexact(run)]
    lines += [("wrong rows", text) for text in _wrong_rows(run)]
    lines += [(f"left out: {name}", reason) for name, reason in left_out_lines(run)]
    lines += [("not compared", f"{one.problem}: {one.reason}") for one in run.unmeasured]
    lines += [("time spent", text) for text in _spent(run)]
    lines += [("drawn", run.drawn)] if run.drawn else []
    lines += [("rounds", f"{run.rounds}, interleaved, seed {run.seed}")]
    if run.comparisons:
        first = run.comparisons[0].environment
        lines += measurement_lines(first, replayed=False)[:1]
        lines += [("templates", first.template_digest)]
    return lines


def _best_cells(one: PeerComparison, best: Contender | None) -> list[str]:
    if best is None:
        return ["", "", ""]
    ratio = f"{one.over_ours(best).median:.3f}{MARKS.get(one.result_against(best), '')}"
    return [microseconds(best.time_us), best.name, ratio]


def _column_cell(one: PeerComparison, name: str) -> str:
    """The time of a peer, or of the heuristic's config, with its marks."""
    peer = one.find(name)
    if name == HEURISTIC:
        return microseconds(median(one.heuristic_us)) if one.heuristic_us else "ours"
    if peer is None:
        return "–"
    inexact = INEXACT if peer.inexact else ""
    return microseconds(peer.time_us) + MARKS.get(one.result_against(peer), "") + inexact


def _plural(counts: dict[str, int]) -> dict[str, int]:
    words = {"win": "wins", "tie": "ties", "loss": "losses"}
    return {word if counts[word] == 1 else words[word]: counts[word] for word in words}


def _origins(run: PeerRun) -> list[str]:
    """Where our configs come from: each origin once, or where they are many, how many there are."""
    origins = [one.origin for one in run.comparisons]
    if len(set(origins)) <= 3:
        return list(dict.fromkeys(origins))
    searched = sum(not origin.endswith(UNSEARCHED) for origin in origins)
    if searched == len(origins):
        return [f"the best of a search at all {counted(searched, 'problem')}; the JSON names them"]
    unsearched = counted(len(origins) - searched, "problem")
    return [
        f"what is taken without a search at {unsearched}; at {searched} the best of a search, "
        "which the JSON names"
    ]


def _heuristic(run: PeerRun) -> list[str]:
    """How far the configs that are taken without a search are from those that were found."""
    found = [(one.heuristic_over_ours or 1.0, one.problem) for one in run.comparisons]
    timed = [one for one in run.comparisons if one.heuristic_us]
    if not timed:
        return []
    worst, problem = max(found, key=lambda pair: pair[0])
    mean = geometric_mean(one.heuristic_over_ours or 1.0 for one in timed) or 1.0
    return [f"{mean:.3f} × the searched time in geometric mean, {worst:.3f} × at worst ({problem})"]


def _versions(run: PeerRun) -> list[str]:
    named = {peer.name: peer.version for one in run.comparisons for peer in one.peers}
    return [f"{name}: {version}" for name, version in named.items()]


def _spent(run: PeerRun) -> list[str]:
    """Seconds of a problem, and of its steps in the mean over all problems, the longest first."""
    steps: dict[str, float] = {}
    for step in (step for one in run.comparisons for step in one.spent):
        steps[step.step] = steps.get(step.step, 0.0) + step.seconds / len(run.comparisons)
    if not steps:
        return []
    longest = sorted(steps.items(), key=lambda pair: -pair[1])
    each = ", ".join(f"{name} {mean:.1f}" for name, mean in longest if mean >= LEAST_SHOWN_S)
    return [f"{sum(steps.values()):.1f} s a problem in the mean: {each}"]


def _forms(run: PeerRun) -> list[str]:
    """Of each peer with forms, on how many problems each is the fastest; the fewer are named."""
    found: dict[str, dict[str, list[str]]] = {}
    for one in run.comparisons:
        for peer in one.peers:
            if peer.form:
                of = found.setdefault(peer.name, {}).setdefault(peer.form, [])
                of.append(str(one.problem))
    lines = []
    for name, forms in found.items():
        (most, of), *fewer = sorted(forms.items(), key=lambda pair: -len(pair[1]))
        parts = [f"{name} is {most} at {counted(len(of), 'problem')}"]
        parts += [f"{form} at {few_of(problems)}" for form, problems in fewer]
        lines.append("; ".join(parts))
    return lines


def _inexact(run: PeerRun) -> list[str]:
    return [
        f"{peer.name}, {one.problem}: {peer.inexact}"
        for one in run.comparisons
        for peer in one.peers
        if peer.inexact
    ]


def _wrong_rows(run: PeerRun) -> list[str]:
    """Each peer with the rows that it gets wrong for some problem."""
    found: dict[str, dict[str, None]] = {}
    for one in run.comparisons:
        for peer in one.peers:
            found.setdefault(peer.name, {}).update(dict.fromkeys(peer.wrong_rows))
    return [f"{name}: {', '.join(rows)}" for name, rows in found.items() if rows]


# ------------------------------------------------------------------ the report


def print_compared(run: PeerRun, console: Console, *, kept: bool = False) -> None:
    """Two tables for each op and dtype, ours beside the best peer and then every peer.

    The problems that are lost, and notes, stand below.

    `kept` runs are from a file.
    """
    for table in tables(run):
        print_table(table.only(range(OURS)), console)
        if len(table.columns) > OURS:
            every = table.only([0, *range(OURS, len(table.columns))])
            every.title = "every peer, µs (at the bottom, % of copy)"
            print_table(every, console)
    if found := losses(run):
        print_table(losses_table(found), console)
    console.print()
    console.print(cell(LEGEND.replace("`", "")))
    console.print(notes([*notes_of(run), *([("shown", "from a file")] if kept else [])]))


def compared_markdown(run: PeerRun) -> str:
    """The same for documents."""
    found = losses(run)
    every = [*tables(run), *([losses_table(found)] if found else [])]
    blocks = [f"**{table.title}**\n\n{as_markdown(table)}" for table in every]
    blocks.append(LEGEND)
    blocks.append("\n".join(f"- {label}: {text}" for label, text in notes_of(run)))
    return "\n\n".join(blocks) + "\n"
