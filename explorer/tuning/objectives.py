"""What a study minimises: the time alone, or time and error."""

import math
from enum import StrEnum

from explorer.accuracy import Accuracy
from explorer.errors import InvalidInput
from explorer.outcome import Measured, Outcome


class Objectives(StrEnum):
    """What is minimised: microseconds a launch; with `time,error` the largest error in ulps too."""

    TIME = "time"
    TIME_ERROR = "time,error"

    @classmethod
    def parse(cls, text: str) -> "Objectives":
        """Read what is to be minimised; raises InvalidInput naming what can be."""
        try:
            return cls(text)
        except ValueError:
            raise InvalidInput(
                f"objectives are '{text}'; choose {cls.TIME} or {cls.TIME_ERROR}"
            ) from None

    @property
    def number(self) -> int:
        """How many values each trial has."""
        return len(self.split(","))

    @property
    def metrics(self) -> list[str]:
        """Names of the values, for dashboards."""
        return ["µs", "ulp"][: self.number]

    @property
    def usual_accuracy(self) -> Accuracy:
        """What kernels must meet where nothing is asked: loose where exactness is traded."""
        return Accuracy.DEFAULT if self is Objectives.TIME else Accuracy.FAST

    def values(self, outcome: Outcome) -> tuple[float, ...]:
        """What a trial came to; infinite where it was rejected."""
        if not isinstance(outcome, Measured):
            return (math.inf,) * self.number
        if self is Objectives.TIME:
            return (outcome.time_us,)
        assert outcome.max_ulp is not None  # asked for before the search began
        return (outcome.time_us, outcome.max_ulp)
