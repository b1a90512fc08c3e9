"""Contests: contenders that are timed in turn, which of them tie, and which is the best.

The finals of a search or of a table, a comparison with libraries and a journey are contests. In
each of them one contender is entered twice: its two rows of samples say what the contest cannot
resolve.
"""

import json
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property
from itertools import pairwise
from math import comb
from statistics import median
from typing import Any, TypeVar

from explorer.model.config import Config
from explorer.model.errors import InvalidInput
from explorer.model.evaluator import Comparison, Evaluator
from explorer.model.outcome import Contender, TrialRecord, spread
from explorer.system.plain_data import parse_json, read_fields, shown, write_fields
from explorer.tuning.objective import Objectives

CONFIDENCE = 0.95

ROUNDS = 30
"""Of the finals of a search, of a comparison and of a journey."""

WITHIN = 0.03
"""Contenders of finals are at most this much slower than the best, by the times before them."""

T = TypeVar("T")


def close_to_best(
    timed: Sequence[T], time_us: Callable[[T], float], *, most: int, least: int = 1
) -> list[T]:
    """Return those that may be the fastest, the fastest first: `least` to `most` of them."""
    ranked = sorted(timed, key=time_us)
    limit = time_us(ranked[0]) * (1 + WITHIN)
    close = sum(time_us(one) <= limit for one in ranked)
    return ranked[: min(most, max(least, close))]


@dataclass(frozen=True, slots=True)
class Entry:
    """A config of ours that is entered in a contest, and where it comes from, in words."""

    config: Config
    origin: str


# ------------------------------------------------------------------ ratios and their intervals


@dataclass(frozen=True, slots=True)
class Ratio:
    """Median of per-round ratios to a reference, with its confidence interval."""

    median: float
    low: float
    high: float

    @property
    def half_width(self) -> float:
        """Half the width of the interval."""
        return (self.high - self.low) / 2

    def is_tie(self, noise: float) -> bool:
        """Whether the interval includes 1, or the median is no further from 1 than `noise`."""
        return self.low <= 1.0 <= self.high or abs(self.median - 1.0) <= noise


def ratio(samples: Sequence[float], reference: Sequence[float], comparisons: int = 1) -> Ratio:
    """Return the ratio of samples of the same rounds: drift that hits both leaves it as it is.

    The interval is one of `comparisons` that shall all hold together (see `rounds_left_out`).
    """
    ratios = sorted(ours / theirs for ours, theirs in zip(samples, reference, strict=True))
    below = rounds_left_out(len(ratios), comparisons)
    return Ratio(median(ratios), ratios[below], ratios[-1 - below])


@cache
def rounds_left_out(rounds: int, comparisons: int = 1) -> int:
    """Return how many order statistics lie outside the interval of the median, at either end.

    The interval from the k-th smallest to the k-th largest of n values misses the median with
    probability 2 * P(Binomial(n, 1/2) < k), whatever the distribution: Conover, Practical
    Nonparametric Statistics, 3rd ed., section 3.2. Of m comparisons each may miss with 5 % / m, so
    that all hold together with 95 % (Bonferroni): with one for each contender but the best, the
    truly fastest is in the tie set with that confidence, whichever came out best. Where rounds are
    too few for the level (below six for one comparison, nine for eleven) the whole range is given,
    which is less sure.
    """
    left_out, missed = 0, 2 * comb(rounds, 0) / 2**rounds
    while left_out + 1 < (rounds + 1) // 2:
        missed += 2 * comb(rounds, left_out + 1) / 2**rounds
        if missed > (1 - CONFIDENCE) / comparisons:
            break
        left_out += 1
    return left_out


def check_rows(rows: Sequence[Sequence[float]]) -> None:
    """Raise InvalidInput unless all rows have as many samples, one at least: one a round."""
    lengths = sorted({len(row) for row in rows})
    if len(lengths) != 1 or not lengths[0]:
        counts = " and ".join(map(str, lengths))
        raise InvalidInput(
            f"kernels timed in turn have {counts} samples; all must have as many, and at least 1"
        )


# ------------------------------------------------------------------ a contest


@dataclass(frozen=True)
class Contest:
    """Contenders timed in turn, round by round, and the limit with them; in microseconds."""

    contenders: tuple[Contender, ...]
    again_us: tuple[float, ...]
    """The samples of the contender that was entered a second time."""
    twice: int
    """Which of `contenders` that is."""
    limit_us: tuple[float, ...]
    """Samples of the problem's limit; none where it was not timed."""
    interleaved: bool = True
    """False where samples taken one kernel after the other stand in."""
    objectives: Objectives = Objectives.TIME
    """What is compared: times, or in each round what an objective of the user's makes of them."""

    @classmethod
    def held(
        cls,
        evaluator: Evaluator,
        entered: Sequence[Contender],
        rounds: int,
        twice: int = 0,
        objectives: Objectives = Objectives.TIME,
    ) -> "Contest":
        """Time verified kernels in turn; the one at `twice` is entered twice.

        Raises DeviceLost where one of them fails now.
        """
        configs = [one.config for one in entered]
        compared = evaluator.compare([*configs, configs[twice]], rounds)
        contest = cls.of(entered, compared, twice % len(configs))
        return replace(contest, objectives=objectives)

    @classmethod
    def of(cls, entered: Sequence[Contender], comparison: Comparison, twice: int = 0) -> "Contest":
        """Return the contest of a comparison whose last row is the second entry of `twice`."""
        *rows, again = comparison.samples_us
        timed = (replace(c, samples_us=row) for c, row in zip(entered, rows, strict=True))
        return cls(tuple(timed), again, twice, comparison.limit_us, comparison.interleaved)

    @cached_property
    def noise(self) -> float:
        """What this contest cannot resolve, relative: how far one contender's two rows are apart.

        The two may agree by luck. The noise is therefore at least half the confidence interval of
        their ratio.
        """
        one = self.contenders[self.twice]
        with_itself = ratio(self._row(replace(one, samples_us=self.again_us)), self._row(one))
        return max(abs(with_itself.median - 1.0), with_itself.half_width)

    @property
    def limit_time_us(self) -> float:
        """The median of the limit's samples; 0 where it was not timed."""
        return median(self.limit_us) if self.limit_us else 0.0

    def over(self, one: Contender, other: Contender) -> Ratio:
        """Return one contender's time over another's; with the intervals of all, 95 % sure."""
        return ratio(self._row(one), self._row(other), max(1, len(self.contenders) - 1))

    def _row(self, one: Contender) -> tuple[float, ...]:
        """Return what is compared of a contender, one value a round."""
        if not self.objectives.is_own:
            return one.samples_us
        outcome = one.trial.outcome
        rounds = (replace(outcome, samples_us=(sample,)) for sample in one.samples_us)
        return tuple(self.objectives.values(round)[0] for round in rounds)

    def is_tie(self, one: Contender, other: Contender) -> bool:
        """Return whether two contenders cannot be told apart."""
        return self.over(one, other).is_tie(self.noise)

    def ranked(self) -> tuple[Contender, ...]:
        """Return the contenders, each beside the fastest, the best first.

        Of the kernels that tie with the fastest the best states its residency, so that another
        compiler keeps its time, then has the fewest registers, then the shortest code, then the
        least time. The others follow by their ratio to the fastest.
        """
        fastest = min(self.contenders, key=lambda one: median(self._row(one)))
        return tuple(sorted((self._judged(one, fastest) for one in self.contenders), key=_rank))

    def _judged(self, one: Contender, fastest: Contender) -> Contender:
        to_best = self.over(one, fastest)
        return replace(
            one,
            ratio_to_best=to_best.median,
            ratio_low=to_best.low,
            ratio_high=to_best.high,
            tied=to_best.is_tie(self.noise),
            value=median(self._row(one)) if self.objectives.is_own else None,
        )


def _rank(one: Contender) -> tuple[float, ...]:
    if one.tied:
        return (0, not one.states_residency, one.registers, one.code_bytes, one.time_us)
    return (1, one.ratio_to_best)


# ------------------------------------------------------------------ the finals of a search


@dataclass(frozen=True, slots=True)
class Finals:
    """The finalists, best first: of the tie set the one that `Contest.ranked` takes."""

    finalists: tuple[Contender, ...]
    limit_us: float
    limit_spread: float | None
    """Interquartile range over median; None where the limit was not timed in the same rounds."""
    rounds: int
    noise: float
    """What the contest cannot resolve, relative: `Contest.noise`."""
    interleaved: bool
    """Timed in turn, now or when recorded; else recorded one after the other."""

    @property
    def winner(self) -> Contender:
        """The one to emit."""
        return self.finalists[0]

    @property
    def ties(self) -> tuple[Contender, ...]:
        """The tie set, the winner first."""
        return tuple(f for f in self.finalists if f.tied)


MAX_CONTENDERS = 12
MIN_CONTENDERS = 3


def contenders(
    trials: Sequence[TrialRecord], objectives: Objectives = Objectives.TIME
) -> list[TrialRecord]:
    """Return those that may be the best: at most 12 within 3 % of the best, three at least."""
    return close_to_best(
        trials, lambda t: objectives.values(t.outcome)[0], most=MAX_CONTENDERS, least=MIN_CONTENDERS
    )


def run_finals(
    evaluator: Evaluator,
    trials: Sequence[TrialRecord],
    rounds: int = ROUNDS,
    objectives: Objectives = Objectives.TIME,
) -> Finals:
    """Compare those that may be the best."""
    entered = contenders(trials, objectives)
    if evaluator.compared:
        entered = _compared(entered, evaluator.compared)
    return time_in_turn(evaluator, entered, rounds, objectives)


def time_in_turn(
    evaluator: Evaluator,
    entered: Sequence[TrialRecord],
    rounds: int,
    objectives: Objectives = Objectives.TIME,
) -> Finals:
    """Compare the trials' kernels, of which the first is entered twice."""
    for trial in entered:
        evaluator.submit(trial.config)
    kernels = [Contender.of_trial(trial) for trial in entered]
    return judge(Contest.held(evaluator, kernels, rounds, objectives=objectives))


def _compared(entered: list[TrialRecord], compared: Collection[Config]) -> list[TrialRecord]:
    """Those that were compared in turn when recorded, unless that leaves too few to compare.

    A recording compares its best, so the others are the slowest of the contenders.
    """
    recorded = [trial for trial in entered if trial.config in compared]
    enough = len(recorded) >= min(MIN_CONTENDERS, len(entered))
    return recorded if enough and recorded[0] is entered[0] else entered


def judge(contest: Contest) -> Finals:
    """Return the finals that a contest of trials is."""
    return Finals(
        finalists=contest.ranked(),
        limit_us=contest.limit_time_us,
        limit_spread=spread(contest.limit_us) if len(contest.limit_us) > 1 else None,
        rounds=len(contest.again_us),
        noise=contest.noise,
        interleaved=contest.interleaved,
    )


def finals_to_json(finals: Finals) -> str:
    """Return finals as one line of JSON, which is kept with the study, configs included."""
    return json.dumps(write_fields(finals), separators=(",", ":"))


def finals_from_json(text: Any, objectives: Objectives = Objectives.TIME) -> Finals:
    """Read what `finals_to_json` wrote of a study with these objectives. Raises InvalidInput."""
    if not isinstance(text, str):
        raise InvalidInput(f"finals is {shown(text)}; it must be JSON as text")
    finals = read_fields(Finals, parse_json(text, "finals"), "finals")
    if not finals.finalists:
        raise InvalidInput("finalists is empty; finals have a winner")
    check_rows([finalist.samples_us for finalist in finals.finalists])
    for finalist in finals.finalists:
        if finalist.record is None:
            raise InvalidInput("finals has a finalist without a trial")
        if objectives.is_front and finalist.max_ulp is None:
            raise InvalidInput("finals has a finalist without max_ulp, which its study minimises")
    return finals


# ------------------------------------------------------------------ Pareto fronts


MOST_CONTENDERS = 16
"""Of a larger front so many are timed in turn, at equal steps from the fastest on."""


def dominates(these: Sequence[float], those: Sequence[float]) -> bool:
    """Whether `these` values are nowhere greater than `those`, and somewhere less."""
    pairs = list(zip(these, those, strict=True))
    return all(a <= b for a, b in pairs) and any(a < b for a, b in pairs)


def _front(these: Sequence[T], values: Callable[[T], tuple[float, float]]) -> list[T]:
    """Return those that none dominates, by the first value; one of those that are equal in both."""
    kept: list[T] = []
    for one in sorted(these, key=values):
        if not kept or values(one)[1] < values(kept[-1])[1]:
            kept.append(one)
    return kept


def front_trials(trials: Sequence[TrialRecord]) -> list[TrialRecord]:
    """Return the trials that none dominates in time and error, the fastest first."""
    return _front(trials, _values)


def front_contenders(trials: Sequence[TrialRecord]) -> list[TrialRecord]:
    """Return the front, or members of it from the fastest to the most exact if it is large."""
    front = front_trials(trials)
    if len(front) <= MOST_CONTENDERS:
        return front
    step = (len(front) - 1) / (MOST_CONTENDERS - 1)
    return [front[round(number * step)] for number in range(MOST_CONTENDERS)]


def since_finals(front: Sequence[TrialRecord], finals: Finals) -> list[TrialRecord]:
    """Return those of a study's front that came after its finals and are better than a finalist.

    Of a front that was timed whole also those that stand between two finalists.
    """
    timed = {finalist.trial.number: finalist.trial for finalist in finals.finalists}
    later = [trial for trial in front if trial.number not in timed]
    if len(timed) < MOST_CONTENDERS:
        return later
    return [t for t in later if any(dominates(_values(t), _values(f)) for f in timed.values())]


def front_of(finals: Finals) -> list[Contender]:
    """Return the finalists that none dominates by the finals' times, the fastest first."""
    return _front(finals.finalists, lambda f: (f.time_us, _values(f.trial)[1]))


def ratios_to_next(front: Sequence[Contender]) -> list[Ratio | None]:
    """Return the time of each member of a front over that of the next, which is more exact.

    It is None for the last. A member that ties with the next is not known to be faster, and so the
    next is the better of the two.
    """
    comparisons = len(front) - 1
    to_next = [ratio(a.samples_us, b.samples_us, comparisons) for a, b in pairwise(front)]
    return [*to_next, None]


def _values(trial: TrialRecord) -> tuple[float, float]:
    assert trial.outcome.max_ulp is not None  # of studies of time and error each has one
    return trial.outcome.time_us, trial.outcome.max_ulp
