"""The table of a comparison, as cells: a row a problem, geometric means at the bottom."""

from statistics import median

from explorer.report.circumstances import measurement_lines
from explorer.report.compare_data import (
    Means,
    geometric_mean,
    groups,
    left_out_lines,
    means,
    verdict_counts,
)
from explorer.report.figures import microseconds, percent
from explorer.tuning.peer_results import LOSS, TIE, PeerComparison, PeerRun, PeerTime

MARKS = {TIE: " =", LOSS: " <"}
INEXACT = " ~"
HEURISTIC = "heuristic"

LEGEND = (
    "µs a launch; % is copy's time over ours; ratio is the best peer's time over ours. "
    "`=` a peer that cannot be told from ours, `<` one that is faster than ours, `~` one that is "
    "less exact than our kernels must be."
)


OURS = 7
"""Columns before those of single peers."""


def headings(columns: list[str]) -> list[str]:
    """Of one table, with those of single peers."""
    return ["rows × cols", "copy", "ours", "% of copy", "best peer", "", "ratio", *columns]


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


def tables(run: PeerRun) -> list[tuple[str, list[list[str]]]]:
    """A title, headings and rows for each op and dtype."""
    found = []
    for label, comparisons in groups(run).items():
        columns = columns_of(comparisons)
        rows = [headings(columns), *(cells(one, columns) for one in comparisons)]
        found.append((label, [*rows, mean_cells(means(comparisons), columns)]))
    return found


def notes_of(run: PeerRun) -> list[tuple[str, str]]:
    """What stands under the tables: verdicts, versions, what was left out, circumstances."""
    counts = verdict_counts(run.comparisons)
    lines = [("against the best peer", ", ".join(f"{n} {w}" for w, n in _plural(counts).items()))]
    lines += [("ours", origin) for origin in _origins(run)]
    lines += [("heuristic", text) for text in _heuristic(run)]
    lines += [("peers", "; ".join(_versions(run)))] if run.peer_names else []
    lines += [("inexact ~", text) for text in _inexact(run)]
    lines += [("wrong rows", text) for text in _wrong_rows(run)]
    lines += [(f"left out: {name}", reason) for name, reason in left_out_lines(run)]
    lines += [("not compared", f"{one.problem}: {one.reason}") for one in run.unmeasured]
    lines += [("rounds", f"{run.rounds}, interleaved, seed {run.seed}")]
    if run.comparisons:
        first = run.comparisons[0].circumstances
        lines += measurement_lines(first, replayed=False)[:1]
        lines += [("templates", first.template_digest)]
    return lines


def _best_cells(one: PeerComparison, best: PeerTime | None) -> list[str]:
    if best is None:
        return ["", "", ""]
    ratio = f"{one.over_ours(best).median:.3f}{MARKS.get(one.verdict(best), '')}"
    return [microseconds(best.time_us), best.name, ratio]


def _column_cell(one: PeerComparison, name: str) -> str:
    """The time of a peer, or of the heuristic's config, with its marks."""
    peer = one.find(name)
    if name == HEURISTIC:
        return microseconds(median(one.heuristic_us)) if one.heuristic_us else "ours"
    if peer is None:
        return "–"
    inexact = INEXACT if peer.inexact else ""
    return microseconds(peer.time_us) + MARKS.get(one.verdict(peer), "") + inexact


def _plural(counts: dict[str, int]) -> dict[str, int]:
    words = {"win": "wins", "tie": "ties", "loss": "losses"}
    return {word if counts[word] == 1 else words[word]: counts[word] for word in words}


def _origins(run: PeerRun) -> list[str]:
    """Where our configs come from, each origin once, with how many problems have it."""
    origins = [one.origin for one in run.comparisons]
    if len(set(origins)) > 3:
        return [f"the best of {len(set(origins))} studies and configs, named in the JSON"]
    return list(dict.fromkeys(origins))


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
