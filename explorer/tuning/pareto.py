"""Time against error: the kernels than which none is both faster and more exact."""

from collections.abc import Sequence
from dataclasses import dataclass

from explorer.tuning.contest import Ratio, ratio
from explorer.tuning.results import Finalist, Finals, TrialRecord

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
