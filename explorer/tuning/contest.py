"""Contenders that are timed in turn: whether they can be told apart, and who is absent.

The finals of a search, a comparison with peers and a journey are such contests. In each of them one
contender is entered twice, so that its two rows of samples tell what the contest cannot resolve.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from math import comb
from statistics import median

from explorer.model.config import Config
from explorer.model.errors import InvalidInput
from explorer.model.evaluator import Comparison

CONFIDENCE = 0.95


@dataclass(frozen=True, slots=True)
class Absent:
    """Who has no time in a contest, and why."""

    name: str
    reason: str
    stage: str = ""
    """Where it fell, such as `verify` or `missing`; empty where a rule keeps it out."""

    @property
    def why(self) -> str:
        """The reason, after the stage where there is one."""
        return f"{self.stage}: {self.reason}" if self.stage else self.reason


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
    """Of samples taken in the same rounds: drift that hits both leaves their ratio as it is.

    The interval is one of `comparisons` that shall all hold together (see `rounds_left_out`).
    """
    ratios = sorted(ours / theirs for ours, theirs in zip(samples, reference, strict=True))
    below = rounds_left_out(len(ratios), comparisons)
    return Ratio(median(ratios), ratios[below], ratios[-1 - below])


def check_rows(rows: Sequence[Sequence[float]]) -> None:
    """Raises InvalidInput unless all rows have as many samples, one at least: one a round."""
    lengths = sorted({len(row) for row in rows})
    if len(lengths) != 1 or not lengths[0]:
        counts = " and ".join(map(str, lengths))
        raise InvalidInput(
            f"kernels timed in turn have {counts} samples; all must have as many, and at least 1"
        )


@dataclass(frozen=True, slots=True)
class Contest:
    """Contenders that were timed in turn, round by round, and copy with them; in microseconds."""

    rows: tuple[tuple[float, ...], ...]
    """The samples of each contender, one a round."""
    again_us: tuple[float, ...]
    """Those of the contender that was entered a second time."""
    twice: int
    """Which of `rows` is its first entry."""
    copy_us: tuple[float, ...]
    """Samples of the fastest plain copy of the same bytes; none where it was not timed."""
    interleaved: bool = True
    """False where samples taken one kernel after the other stand in."""

    @classmethod
    def held(
        cls,
        compare: Callable[[Sequence[Config], int], Comparison],
        configs: Sequence[Config],
        rounds: int,
        twice: int = 0,
    ) -> "Contest":
        """Time verified configs in turn by an evaluator's `compare`; that at `twice` enters twice.

        Raises DeviceLost where one of them fails now.
        """
        return cls.of(compare([*configs, configs[twice]], rounds), twice % len(configs))

    @classmethod
    def of(cls, comparison: Comparison, twice: int = 0) -> "Contest":
        """Return the contest of a comparison whose last row is the second entry of `twice`."""
        *rows, again = comparison.samples_us
        return cls(tuple(rows), again, twice, comparison.copy_us, comparison.interleaved)

    @property
    def noise(self) -> float:
        """What this contest cannot resolve, relative: how far one contender's two rows are apart.

        The two may agree by luck. The noise is therefore at least half the confidence interval of
        their ratio.
        """
        with_itself = ratio(self.again_us, self.rows[self.twice])
        return max(abs(with_itself.median - 1.0), with_itself.half_width)

    @property
    def copy_time_us(self) -> float:
        """The median of the copy's samples; 0 where it was not timed."""
        return median(self.copy_us) if self.copy_us else 0.0


@cache
def rounds_left_out(rounds: int, comparisons: int = 1) -> int:
    """How many order statistics lie outside the interval of the median, at either end.

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
