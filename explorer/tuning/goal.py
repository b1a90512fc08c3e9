"""What a search is after: what it minimises, and how exact its kernels must be."""

from dataclasses import dataclass

from explorer.accuracy import Accuracy
from explorer.tuning.objectives import Objectives


@dataclass(frozen=True, slots=True)
class Goal:
    """One study a problem for each of these."""

    objectives: Objectives = Objectives.TIME
    accuracy: Accuracy = Accuracy.DEFAULT

    @classmethod
    def of(cls, objectives: Objectives, accuracy: Accuracy | None) -> "Goal":
        """An accuracy left out is what is usual for the objectives."""
        return cls(objectives, accuracy or objectives.usual_accuracy)

    @property
    def options(self) -> list[str]:
        """The options of a command that mean it; none for time alone under `default`."""
        words = [] if self.objectives is Objectives.TIME else ["--objectives", str(self.objectives)]
        return words + ([] if self.is_usually_exact else ["--accuracy", str(self.accuracy)])

    @property
    def is_usually_exact(self) -> bool:
        """Whether the accuracy is what is usual for the objectives, and goes without saying."""
        return self.accuracy is self.objectives.usual_accuracy

    def __str__(self) -> str:
        """What it adds to a problem's name, such as ` under strict`."""
        words = "" if self.objectives is Objectives.TIME else " for time and error"
        return words if self.is_usually_exact else f"{words} under {self.accuracy}"
