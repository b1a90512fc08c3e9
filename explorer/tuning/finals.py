"""The last contest of a search: the best timed in turn, or the front of time and error."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from statistics import median

from explorer.model.config import Config
from explorer.model.evaluator import Evaluator, ReplaysComparison
from explorer.model.outcome import spread
from explorer.tuning.contest import Contest, Ratio, ratio
from explorer.tuning.results import Finalist, Finals, TrialRecord

# ------------------------------------------------------------------ finals


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
    return judge(entered, Contest.held(evaluator.compare, configs, rounds))


def _compared(entered: list[TrialRecord], compared: Collection[Config]) -> list[TrialRecord]:
    """Those that were compared in turn when recorded, unless that leaves too few to compare.

    A recording compares its best, so the others are the slowest of the contenders.
    """
    recorded = [trial for trial in entered if trial.config in compared]
    enough = len(recorded) >= min(MIN_CONTENDERS, len(entered))
    return recorded if enough and recorded[0] is entered[0] else entered


def judge(entered: Sequence[TrialRecord], contest: Contest) -> Finals:
    """Order the trials that entered a contest, by their rows of it."""
    best = min(contest.rows, key=median)
    others = max(1, len(contest.rows) - 1)
    finalists = [
        _finalist(trial, row, ratio(row, best, others), contest.noise)
        for trial, row in zip(entered, contest.rows, strict=True)
    ]
    return Finals(
        finalists=tuple(sorted(finalists, key=_rank)),
        copy_us=contest.copy_time_us,
        copy_spread=spread(contest.copy_us) if len(contest.copy_us) > 1 else None,
        rounds=len(best),
        noise=contest.noise,
        interleaved=contest.interleaved,
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


# ------------------------------------------------------------------ Pareto fronts


MOST_CONTENDERS = 16
"""Of a larger front so many are timed in turn, at equal steps from the fastest on."""


@dataclass(frozen=True, slots=True)
class FrontMember:
    """A finalist on the front."""

    finalist: Finalist
    to_next: Ratio | None
    """Its time over that of the next member, which is more exact; None for the most exact."""
    tied: bool
    """Not known to be faster than the next member, which then is the better one of the two."""


def dominates(these: Sequence[float], those: Sequence[float]) -> bool:
    """Whether `these` values are nowhere greater than `those`, and somewhere less."""
    pairs = list(zip(these, those, strict=True))
    return all(a <= b for a, b in pairs) and any(a < b for a, b in pairs)


def front_trials(trials: Sequence[TrialRecord]) -> list[TrialRecord]:
    """The trials that none dominates, the fastest first; one of those that are equal in both."""
    kept: list[TrialRecord] = []
    for trial in sorted(trials, key=lambda trial: (trial.outcome.time_us, _ulp(trial))):
        if not kept or _ulp(trial) < _ulp(kept[-1]):
            kept.append(trial)
    return kept


def front_contenders(trials: Sequence[TrialRecord]) -> list[TrialRecord]:
    """The front, or members of it from the fastest to the most exact where it is large."""
    front = front_trials(trials)
    if len(front) <= MOST_CONTENDERS:
        return front
    step = (len(front) - 1) / (MOST_CONTENDERS - 1)
    return [front[round(number * step)] for number in range(MOST_CONTENDERS)]


def since_finals(front: Sequence[TrialRecord], finals: Finals) -> list[TrialRecord]:
    """Those of a study's front that came after its finals and are better than a finalist.

    Of a front that was timed whole also those that stand between two finalists.
    """
    timed = {finalist.trial.number: finalist.trial for finalist in finals.finalists}
    later = [trial for trial in front if trial.number not in timed]
    if len(timed) < MOST_CONTENDERS:
        return later
    return [t for t in later if any(dominates(_values(t), _values(f)) for f in timed.values())]


def front_of(finals: Finals) -> tuple[FrontMember, ...]:
    """The finalists that none dominates by the finals' times, the fastest first."""
    kept: list[Finalist] = []
    for finalist in sorted(finals.finalists, key=lambda f: (f.time_us, _ulp(f.trial))):
        if not kept or _ulp(finalist.trial) < _ulp(kept[-1].trial):
            kept.append(finalist)
    following = [*kept[1:], None]
    return tuple(
        _member(finalist, after, finals, len(kept) - 1)
        for finalist, after in zip(kept, following, strict=True)
    )


def _member(
    finalist: Finalist, after: Finalist | None, finals: Finals, comparisons: int
) -> FrontMember:
    if after is None:
        return FrontMember(finalist, None, tied=False)
    to_next = ratio(finalist.samples_us, after.samples_us, comparisons)
    return FrontMember(finalist, to_next, tied=to_next.is_tie(finals.noise))


def _values(trial: TrialRecord) -> tuple[float, float]:
    return trial.outcome.time_us, _ulp(trial)


def _ulp(trial: TrialRecord) -> float:
    assert trial.outcome.max_ulp is not None  # of studies of time and error each has one
    return trial.outcome.max_ulp
