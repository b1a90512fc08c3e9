"""Comparisons with peers as JSON, with what follows from the times; read back as well."""

from collections.abc import Iterable
from dataclasses import dataclass
from math import exp, log
from pathlib import Path
from statistics import median
from typing import Any

from explorer.errors import InvalidInput
from explorer.plain_data import parse_json
from explorer.report.figures import share_of_copy
from explorer.tuning.peer_results import PeerComparison, PeerRun, PeerTime
from explorer.user_files import read_text


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


def verdict_counts(comparisons: Iterable[PeerComparison]) -> dict[str, int]:
    """Against the fastest peer of each problem: how many wins, ties and losses."""
    counts = {"win": 0, "tie": 0, "loss": 0}
    for one in comparisons:
        if one.best is not None:
            counts[one.verdict(one.best)] += 1
    return counts


def left_out_lines(run: PeerRun) -> list[tuple[str, str]]:
    """Each peer and reason once, with the problems that it was left out of."""
    found: dict[tuple[str, str], list[str]] = {}
    for one in run.comparisons:
        for entry in one.left_out:
            key = (entry.name, f"{entry.stage}: {entry.reason}")
            found.setdefault(key, []).append(str(one.problem))
    total = len(run.comparisons)
    return [
        (name, f"{reason} ({'all' if len(of) == total else ', '.join(of)})")
        for (name, reason), of in found.items()
    ]


def compare_data(run: PeerRun) -> dict[str, Any]:
    """What `PeerRun.as_dict` has, with times, ratios, verdicts and geometric means.

    Times are microseconds (`_us`), shares fractions of 1, ratios a peer's time over ours.
    """
    data = run.as_dict()
    for entry, one in zip(data["comparisons"], run.comparisons, strict=True):
        entry |= _derived(one)
        for values, peer in zip(entry["peers"], one.peers, strict=True):
            values |= _peer(one, peer)
    data["geometric_means"] = [
        {"of": label, **_means(means(found)), **verdict_counts(found)}
        for label, found in groups(run).items()
    ]
    return data


def _derived(one: PeerComparison) -> dict[str, Any]:
    best = one.best
    return {
        "time_us": one.time_us,
        "copy_time_us": one.copy_time_us,
        "of_copy": share_of_copy(one.time_us, one.copy_time_us),
        "noise": one.noise,
        "heuristic_over_ours": one.heuristic_over_ours,
        "best_peer": None if best is None else {"name": best.name, **_peer(one, best)},
    }


def _peer(one: PeerComparison, peer: PeerTime) -> dict[str, Any]:
    over = one.over_ours(peer)
    return {
        "time_us": peer.time_us,
        "spread": peer.spread,
        "of_copy": share_of_copy(peer.time_us, one.copy_time_us),
        "over_ours": over.median,
        "over_ours_low": over.low,
        "over_ours_high": over.high,
        "verdict": one.verdict(peer),
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
    text = read_text(path, remedy="name a kept comparison")
    try:
        return PeerRun.from_dict(parse_json(text, "its text"))
    except InvalidInput as error:
        raise InvalidInput(
            f"{path} keeps no comparison of this version: {error}; name a file that "
            "explorer compare --save wrote"
        ) from None
