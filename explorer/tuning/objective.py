"""The goal of a search: time, or time and error; accuracy; effort; and the name of its study."""

import math
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from hashlib import sha256
from importlib import import_module
from typing import ClassVar

from explorer.model.accuracy import Accuracy
from explorer.model.config import Value
from explorer.model.errors import InvalidInput
from explorer.model.outcome import Environment, Measured, Outcome
from explorer.model.problem import Problem
from explorer.system.plain_data import parse_name, shown

# ------------------------------------------------------------------ what a study minimises


Score = Callable[[Measured], float]
"""Makes the number to minimise, which is above 0, of what was measured of a kernel."""


@dataclass(frozen=True, slots=True)
class Objectives:
    """The values to minimise: microseconds a launch; with `time,error` the largest error, too.

    An objective of the user's is a function, known by its name.
    """

    TIME: ClassVar["Objectives"]
    TIME_ERROR: ClassVar["Objectives"]

    name: str
    """`time`, `time,error`, or `module:function`."""
    score: Score | None = field(default=None, compare=False)
    """The user's function, once it is loaded."""

    @classmethod
    def parse(cls, text: str) -> "Objectives":
        """Read objectives without loading a function; raises InvalidInput for other text."""
        for known in (cls.TIME, cls.TIME_ERROR):
            if text == known.name:
                return known
        if _FUNCTION.fullmatch(text):
            return cls(text)
        raise InvalidInput(
            f"objectives are {text!r}; choose {cls.TIME} or {cls.TIME_ERROR}, or name a function "
            "of an outcome as module:function"
        )

    @classmethod
    def of(cls, wanted: "str | Score | Objectives") -> "Objectives":
        """Return objectives, loaded, by their name or by the function itself.

        Raises InvalidInput for a function that cannot be loaded, and one that another process
        would not find by its name.
        """
        if isinstance(wanted, Objectives):
            return wanted.loaded()
        if isinstance(wanted, str):
            return cls.parse(wanted).loaded()
        name = f"{getattr(wanted, '__module__', '')}:{getattr(wanted, '__qualname__', '')}"
        if not callable(wanted) or not _FUNCTION.fullmatch(name):
            raise InvalidInput(
                f"objectives are {shown(wanted)}; give {cls.TIME}, {cls.TIME_ERROR}, or a function "
                "of a module, which names the study"
            )
        return cls(name, wanted)

    def loaded(self) -> "Objectives":
        """Return objectives with the user's function. Raises InvalidInput where there is none."""
        if not self.is_own or self.score is not None:
            return self
        module, _, attribute = self.name.partition(":")
        try:
            found = getattr(import_module(module), attribute)
        except Exception as error:  # a module may raise what it likes
            raise InvalidInput(
                f"objective {self.name} cannot be loaded ({type(error).__name__}: {error}); write "
                "module:function of a module that Python finds, as by PYTHONPATH"
            ) from None
        if not callable(found):
            raise InvalidInput(f"objective {self.name} is {shown(found)}; it must be a function")
        return replace(self, score=found)

    @property
    def is_own(self) -> bool:
        """Whether a function of the user's is minimised."""
        return ":" in self.name

    @property
    def is_front(self) -> bool:
        """Whether the result is a Pareto front."""
        return self.number > 1

    @property
    def number(self) -> int:
        """The number of values of each trial."""
        return len(self.name.split(","))

    @property
    def metrics(self) -> list[str]:
        """Names of the values, for dashboards."""
        return [self.name] if self.is_own else ["µs", "ulp"][: self.number]

    @property
    def usual_accuracy(self) -> Accuracy:
        """The accuracy of kernels if none is given: loose where exactness is traded for time."""
        return Accuracy.FAST if self.is_front else Accuracy.DEFAULT

    def values(self, outcome: Outcome) -> tuple[float, ...]:
        """Return the values of a trial; they are infinite if it was rejected.

        Raises InvalidInput for what a function of the user's raises, and for what is no number
        above 0.
        """
        if not isinstance(outcome, Measured):
            return (math.inf,) * self.number
        if self.is_own:
            return (self._scored(outcome),)
        if not self.is_front:
            return (outcome.time_us,)
        assert outcome.max_ulp is not None  # checked before the search began
        return (outcome.time_us, outcome.max_ulp)

    def _scored(self, outcome: Measured) -> float:
        assert self.score is not None  # which `of` has loaded
        remedy = "what finished before is kept: mend it, and run the search again"
        try:
            value = self.score(outcome)
            number = float(value)
        except (KeyboardInterrupt, MemoryError):
            raise
        except (Exception, SystemExit) as error:
            message = f"{type(error).__name__}: {error}".splitlines()[0]
            raise InvalidInput(f"objective {self.name} raised {message}; {remedy}") from error
        if not (0 < number < math.inf):
            raise InvalidInput(
                f"objective {self.name} gave {shown(value)}, which is no number above 0; {remedy}"
            )
        return number

    def __str__(self) -> str:
        """Return its name."""
        return self.name


Objectives.TIME = Objectives("time")
Objectives.TIME_ERROR = Objectives("time,error")

_FUNCTION = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*")
"""The name of a function of a module; one within a function is found by no other process."""


# ---------------------------------------------------------------- and how exact its kernels must be


@dataclass(frozen=True, slots=True)
class Goal:
    """Objectives and an accuracy; each problem has one study for each goal."""

    objectives: Objectives = Objectives.TIME
    accuracy: Accuracy = Accuracy.DEFAULT
    study: str = field(default="", compare=False)
    """A study's name, or a part of it, where several have the goal."""
    gpu: str = field(default="", compare=False)
    """A GPU's name, a part of it or its architecture, where studies of several GPUs have it."""

    @classmethod
    def of(
        cls,
        objectives: Objectives,
        accuracy: Accuracy | None,
        study: str | None = None,
        gpu: str | None = None,
    ) -> "Goal":
        """Return a goal; without an accuracy it has the usual one of the objectives."""
        return cls(objectives, accuracy or objectives.usual_accuracy, study or "", gpu or "")

    @property
    def options(self) -> list[str]:
        """The options of a command for it; there are none for time alone under `default`."""
        words = [] if self.objectives == Objectives.TIME else ["--objectives", str(self.objectives)]
        return words + ([] if self.is_usually_exact else ["--accuracy", str(self.accuracy)])

    @property
    def study_options(self) -> list[str]:
        """The options of a command that reads a study with it."""
        return self.options + (["--study", self.study] if self.study else [])

    @property
    def is_usually_exact(self) -> bool:
        """Whether the accuracy is the usual one of the objectives."""
        return self.accuracy is self.objectives.usual_accuracy

    def __str__(self) -> str:
        """Return what it adds to a problem's name, such as ` under strict`."""
        words = " for time and error" if self.objectives.is_front else ""
        words = f" for {self.objectives}" if self.objectives.is_own else words
        return words if self.is_usually_exact else f"{words} under {self.accuracy}"


# ------------------------------------------------------------------ how long it may take


class Effort(StrEnum):
    """How long a search goes on without a number of kernels or a time."""

    QUICK = "quick"
    DEFAULT = "default"
    FULL = "full"

    @classmethod
    def parse(cls, text: str) -> "Effort":
        """Read an effort; raises InvalidInput that names the possible ones."""
        return parse_name(cls, "effort", text)

    @classmethod
    def help(cls) -> str:
        """Return what the efforts mean, for `explorer search --help`."""
        names = _either(cls)
        most, patience = (_either(getattr(e, name) for e in cls) for name in ("trials", "patience"))
        return (
            f"{names}: {most} kernels at most; it ends sooner once {patience} in a row gained "
            f"nothing beyond noise; left out: {cls.DEFAULT}."
        )

    @property
    def trials(self) -> int:
        """Kernels to evaluate at most."""
        return {Effort.QUICK: 60, Effort.DEFAULT: 200, Effort.FULL: 1000}[self]

    @property
    def patience(self) -> int:
        """Kernels in a row that gain less than LEAST_GAIN, after which a search for time ends.

        In seven brute-forced sub-spaces, three seeds each, a search ended so after 51, 112 and 200
        kernels in the median; its best was then 0.14, 0.05 and 0.005 % above the best there is.
        """
        return {Effort.QUICK: 30, Effort.DEFAULT: 80, Effort.FULL: 250}[self]


def _either(values: Iterable[object]) -> str:
    *first, last = map(str, values)
    return f"{', '.join(first)} or {last}"


LEAST_GAIN = 0.0005
"""The least gain, as a fraction of the time. One kernel's time differs by more than twice as much
when it is timed again."""


# ------------------------------------------------------------------ the study's name


REPLAY_SUFFIX = " | replay"

Where = Mapping[str, tuple[Value, ...]]
"""The values that are left of each parameter that a search is restricted to some of."""

MAX_WHERE = 120
"""Characters of a restriction in the name of a study; a longer one is a digest there."""


def where_words(where: Where) -> str:
    """Return a restriction as `threads=128,256 cache=shared`."""
    return " ".join(f"{name}={','.join(map(str, values))}" for name, values in where.items())


def _where_part(where: Where) -> str:
    words = where_words(where)
    digest = sha256(words.encode()).hexdigest()[:8]
    return words if len(words) <= MAX_WHERE else f"where {digest}"


def study_name(
    problem: Problem,
    environment: Environment,
    version: str,
    objectives: Objectives = Objectives.TIME,
    where: Where | None = None,
    *,
    replayed: bool,
) -> str:
    """Return a name such as `softmax f32 8192x4096 | NVIDIA H200 | cold | 1a2b3c4d`.

    Unusual objectives and accuracy follow, what the search is restricted to, and ` | replay` if
    outcomes come from a recording.
    """
    parts = [str(problem), environment.gpu, environment.timing, version]
    parts += [] if objectives == Objectives.TIME else [str(objectives)]
    goal = Goal(objectives, environment.accuracy)
    parts += [] if goal.is_usually_exact else [str(goal.accuracy)]
    parts += [_where_part(where)] if where else []
    return " | ".join(parts) + (REPLAY_SUFFIX if replayed else "")
