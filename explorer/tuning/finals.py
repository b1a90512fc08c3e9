"""The best trials, re-measured in turn with each other and with copy: a winner and its ties."""

from collections.abc import Collection, Sequence
from statistics import median

from explorer.config import Config
from explorer.evaluator import Comparison, Evaluator, ReplaysComparison
from explorer.outcome import spread
from explorer.tuning.contest import Ratio, noise, ratio
from explorer.tuning.results import Finalist, Finals, TrialRecord

MAX_CONTENDERS = 12
MIN_CONTENDERS = 3
WITHIN = 0.03
"""Contenders are at most this much slower than the best, by the search's own medians."""

DEFAULT_ROUNDS = 30


def contenders(trials: Sequence[TrialRecord]) -> list[TrialRecord]:
    """Those that may be the fastest: at most 12 within 3 % of the best, three at least."""
    ranked = sorted(trials, key=lambda trial: trial.outcome.time_us)
    limit = ranked[0].outcome.time_us * (1 + WITHIN)
    close = sum(trial.outcome.time_us <= limit for trial in ranked)
    return ranked[: min(MAX_CONTENDERS, max(MIN_CONTENDERS, close))]


def run_finals(
    evaluator: Evaluator, trials: Sequence[TrialRecord], rounds: int = DEFAULT_ROUNDS
) -> Finals:
    """Compare those that may be the fastest."""
    entered = contenders(trials)
    if isinstance(evaluator, ReplaysComparison):
        entered = _compared(entered, evaluator.compared)
    return time_in_turn(evaluator, entered, rounds)


def time_in_turn(evaluator: Evaluator, entered: Sequence[TrialRecord], rounds: int) -> Finals:
    """Compare the contenders, the first of them entered twice: its two entries tell the noise."""
    configs = [trial.config for trial in entered]
    for config in configs:
        evaluator.submit(config)
    comparison = evaluator.compare([*configs, configs[0]], rounds)
    return judge(entered, comparison)


def _compared(entered: list[TrialRecord], compared: Collection[Config]) -> list[TrialRecord]:
    """Those that were compared in turn when recorded, unless that leaves too few to compare.

    A recording compares its best, so the others are the slowest of the contenders.
    """
    recorded = [trial for trial in entered if trial.config in compared]
    enough = len(recorded) >= min(MIN_CONTENDERS, len(entered))
    return recorded if enough and recorded[0] is entered[0] else entered


def judge(entered: Sequence[TrialRecord], comparison: Comparison) -> Finals:
    """Order the contenders; the comparison's last row is the first contender once more."""
    *rows, again = comparison.samples_us
    resolution = noise(again, rows[0])
    best = min(rows, key=median)
    others = max(1, len(rows) - 1)
    finalists = [
        _finalist(trial, row, ratio(row, best, others), resolution)
        for trial, row in zip(entered, rows, strict=True)
    ]
    copy = comparison.copy_us
    return Finals(
        finalists=tuple(sorted(finalists, key=_rank)),
        copy_us=median(copy) if copy else 0.0,
        copy_spread=spread(copy) if len(copy) > 1 else None,
        rounds=len(best),
        noise=resolution,
        interleaved=comparison.interleaved,
    )


def _finalist(
    trial: TrialRecord, samples: tuple[float, ...], to_best: Ratio, resolution: float
) -> Finalist:
    return Finalist(
        trial=trial,
        samples_us=samples,
        time_us=median(samples),
        spread=spread(samples),
        ratio_to_best=to_best.median,
        ratio_low=to_best.low,
        ratio_high=to_best.high,
        tied=to_best.is_tie(resolution),
    )


def _rank(finalist: Finalist) -> tuple[bool, float, float, float]:
    """Ties first: fewer registers, then shorter code, then less time; the others by time."""
    if not finalist.tied:
        return (True, finalist.ratio_to_best, 0.0, 0.0)
    resources = finalist.trial.outcome.resources
    return (False, resources.registers, resources.code_bytes, finalist.time_us)
