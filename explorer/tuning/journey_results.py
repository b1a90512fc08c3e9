"""What a journey gives: every published kernel and the search's best, slowest first."""

from dataclasses import asdict, dataclass
from functools import cached_property
from statistics import median
from typing import Any

from explorer.circumstances import Circumstances
from explorer.config import Config
from explorer.errors import InvalidInput
from explorer.outcome import Timed
from explorer.plain_data import read_fields, shown
from explorer.problem import Problem
from explorer.tuning.contest import Absent, Ratio, check_rows, noise, ratio

BEST = "search's best"
"""The name of the step that a search found."""


@dataclass(frozen=True, slots=True)
class Step(Timed):
    """A kernel of the journey."""

    names: tuple[str, ...]
    """The presets that emit this code for the problem; `BEST` among them where it does too."""
    config: Config
    digest: str
    error: float
    """Largest relative error against float64, in the verification."""
    registers: int
    samples_us: tuple[float, ...]
    """Microseconds a launch, one a round, in turn with all other steps."""

    @classmethod
    def from_dict(cls, values: Any) -> "Step":
        """Read a step of a kept journey, whatever else is there. Raises InvalidInput."""
        read = read_fields(cls, values, "step", ignore_unknown=True)
        if not read.names:
            raise InvalidInput("names is empty; a step has a name")
        return read

    @property
    def name(self) -> str:
        """The name that it is told by."""
        return self.names[0]

    @property
    def is_best(self) -> bool:
        """Whether the search found it."""
        return BEST in self.names


@dataclass(frozen=True)
class Journey:
    """Steps in the order of their times, the slowest first; ratios pair samples of a round."""

    problem: Problem
    circumstances: Circumstances
    steps: tuple[Step, ...]
    left_out: tuple[Absent, ...]
    copy_us: tuple[float, ...]
    """The fastest plain copy of the same bytes, timed in the same rounds."""
    again_us: tuple[float, ...]
    """One of the fastest once more: its two rows differ by what the run cannot resolve."""
    twice: str
    """The digest of that step."""
    best_from: str
    """Where the search's best comes from; empty where there is none."""
    interleaved: bool = True

    @cached_property
    def noise(self) -> float:
        """What this run cannot resolve, relative."""
        twice = next(step for step in self.steps if step.digest == self.twice)
        return noise(self.again_us, twice.samples_us)

    @property
    def copy_time_us(self) -> float:
        """Median microseconds of the copy; 0 where it was not measured."""
        return median(self.copy_us) if self.copy_us else 0.0

    def speedup(self, slower: Step, faster: Step) -> Ratio:
        """How many times as fast one step is as another, with its confidence interval."""
        return ratio(slower.samples_us, faster.samples_us, max(1, len(self.steps) - 1))

    def is_tie(self, one: Step, other: Step) -> bool:
        """Whether two steps cannot be told apart."""
        return self.speedup(one, other).is_tie(self.noise)

    def find(self, name: str) -> Step | None:
        """The step of a preset, if it has one."""
        return next((step for step in self.steps if name in step.names), None)

    def as_dict(self) -> dict[str, Any]:
        """Plain data, for JSON: what was measured, without what follows from it."""
        return {
            "problem": self.problem.as_dict(),
            "circumstances": self.circumstances.as_dict(),
            "steps": [asdict(step) for step in self.steps],
            "left_out": [asdict(left_out) for left_out in self.left_out],
            "copy_us": list(self.copy_us),
            "again_us": list(self.again_us),
            "twice": self.twice,
            "best_from": self.best_from,
            "interleaved": self.interleaved,
        }

    @classmethod
    def from_dict(cls, values: Any) -> "Journey":
        """Read what `as_dict` wrote, whatever else is there. Raises InvalidInput for other data."""
        read = read_fields(cls, values, "journey", ignore_unknown=True)
        if not read.steps:
            raise InvalidInput("steps is empty; a journey has a step")
        if read.twice not in {step.digest for step in read.steps}:
            raise InvalidInput(f"twice is {shown(read.twice)}; it must be the digest of a step")
        check_rows([*(step.samples_us for step in read.steps), read.again_us])
        return read
