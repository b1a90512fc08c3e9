"""What a search, and a look into a study, give: plain data for reports."""

from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING

from explorer.model.accuracy import Accuracy
from explorer.model.config import Config, Value
from explorer.model.outcome import Contender, Environment, Rejected, Stage, TrialRecord
from explorer.model.problem import Problem
from explorer.tuning.contest import Finals
from explorer.tuning.objective import Goal, Objectives, Where

if TYPE_CHECKING:
    from explorer.evaluate.verify import FinalistCheck


@dataclass(frozen=True, slots=True)
class Progress:
    """Where a running search stands, after every trial."""

    trials: int
    """Trials of this run so far, duplicates of known code included."""
    measured: int
    """Kernels verified and timed in this run."""
    rejected: dict[Stage, int]
    best_us: float | None
    limit_us: float
    """0 until the limit was measured."""
    elapsed_s: float
    remaining_trials: int | None
    best_trial: int | None = None
    remaining_s: float | None = None
    """Of the time budget; None without one."""
    phase: str = "search"
    """`search`, then `finals`."""
    workers: tuple[str, ...] = ()
    """A line on each worker of a cluster."""


@dataclass(frozen=True, slots=True)
class SearchResult:
    """A search that ended with at least one measured kernel."""

    study: str
    problem: Problem
    environment: Environment
    finals: Finals
    trials: int
    measured: int
    duplicates: int
    rejected: dict[Stage, int]
    elapsed_s: float
    seed: int
    replayed: bool
    exhausted: bool = False
    """Nothing was left to try."""
    stopped: str = ""
    """Why it ended before its number of kernels: what could still be gained was below the noise."""
    objectives: Objectives = Objectives.TIME
    passed_over: str = ""
    """A sentence on trials of earlier runs that cannot be read; empty where there is none."""
    superseded: str = ""
    """A sentence where the study keeps another process's finals; empty where it keeps these."""
    changed: str = ""
    """A sentence where kernels of the user's sampler could not be evaluated as it proposed them."""
    is_one_of_several: bool = False
    """Whether a command must name its study, since others fit its problem and goal as well."""
    attempts: tuple["Attempt", ...] = ()
    """Every kernel of the study that was evaluated, also in earlier runs, by number."""
    where: Where = field(default_factory=dict)
    """What the search was restricted to."""
    ended: str = ""
    """Why it evaluated no more kernels."""
    verification: "FinalistCheck | None" = None
    """Of a replay's finalists, on the emulator; None where a GPU verified them, or nothing did."""
    notices: tuple[str, ...] = ()
    """What the command line says of it on stderr: whose times a replay shows, rows left out."""

    def __repr__(self) -> str:
        """Return a line for a notebook, without the samples."""
        of_limit = self.problem.of_limit(self.time_us, self.limit_us)
        kernels = "1 kernel" if self.measured == 1 else f"{self.measured} kernels"
        return (
            f"SearchResult({self.problem} {'recorded on' if self.replayed else 'on'} {self.gpu}: "
            f"best {self.time_us:.2f} µs{of_limit and f', {of_limit}'}, of {kernels})"
        )

    @property
    def goal(self) -> Goal:
        """What was searched for, with its study's name where a command must name it."""
        name = self.study if self.is_one_of_several else ""
        return Goal(self.objectives, self.environment.accuracy, name)

    @property
    def best(self) -> Contender:
        """The finals' winner: its trial, samples, and ratios to the others."""
        return self.finals.winner

    @property
    def config(self) -> Config:
        """The best's config."""
        return self.best.config

    @property
    def time_us(self) -> float:
        """Median microseconds of a launch of the best, in the finals."""
        return self.best.time_us

    @property
    def limit_us(self) -> float:
        """Median microseconds of the problem's limit, in the finals."""
        return self.finals.limit_us

    @property
    def gbps(self) -> float:
        """The best's bandwidth, in 1e9 bytes a second."""
        return self.problem.gbps(self.time_us)

    @property
    def ties(self) -> tuple[Contender, ...]:
        """The finalists that tie with the best, which is the first."""
        return self.finals.ties

    @property
    def finalists(self) -> tuple[Contender, ...]:
        """All that were timed in turn, best first."""
        return self.finals.finalists

    @property
    def gpu(self) -> str:
        """The GPU that the times come from, as its driver calls it."""
        return self.environment.gpu

    @property
    def date(self) -> str:
        """When they were measured: of a replay, when it was recorded. UTC, ISO 8601."""
        return self.environment.date


@dataclass(frozen=True, slots=True)
class StudySummary:
    """One line of `explorer studies`."""

    name: str
    problem: Problem
    gpu: str
    timing: str
    space_version: str
    is_current: bool
    """Whether the installed space and templates are the study's."""
    trials: int
    measured: int
    best_us: float | None
    """Of the finals where there were any, as `limit_us`; else the fastest trial's."""
    limit_us: float
    date: str
    replayed: bool
    accuracy: Accuracy = Accuracy.DEFAULT
    """What its kernels had to meet."""
    objectives: Objectives = Objectives.TIME
    is_one_of_several: bool = False
    """Whether a command must name it, since others fit its problem and goal as well."""
    has_usual_name: bool = True
    """Whether its name is that which a search gives it; not if it was renamed."""
    where: Where = field(default_factory=dict)
    """What its search was restricted to; nothing in a study of the whole space."""

    @property
    def goal(self) -> Goal:
        """What was searched for, with its name where a command must name it."""
        return Goal(self.objectives, self.accuracy, self.name if self.is_one_of_several else "")


@dataclass(frozen=True, slots=True)
class ParameterEffect:
    """One parameter's weight in a study, and its fastest and slowest value."""

    name: str
    importance: float
    """Its share in a kernel being among the fastest tenth (PED-ANOVA, Watanabe et al. 2023).

    The shares of all parameters sum to 1.
    """
    importance_low: float
    """The least of its importances in samples of the trials, and in the earlier parts of them."""
    importance_high: float
    fastest_value: str
    fastest_us: float
    """Median time of the trials with that value, microseconds."""
    slowest_value: str
    slowest_us: float


@dataclass(frozen=True, slots=True)
class Contrast:
    """Two values of one parameter, compared by pairs of kernels that differ in nothing else."""

    name: str
    """The parameter; `threads = threads_per_row` where a row is a block's and both change."""
    faster: Value
    slower: Value
    ratio: float
    """Median over the pairs of the slower value's time over the faster's: 1 or more."""
    low: float
    """Lower end of that median's 95 % confidence interval."""
    high: float
    pairs: int
    agreeing: int
    """Pairs in which `faster` is the faster."""

    @property
    def is_sure(self) -> bool:
        """Whether the interval leaves out 1."""
        return self.low > 1.0


@dataclass(frozen=True, slots=True)
class Unpaired:
    """A parameter that too few pairs tell apart: the fastest kernels of some of its values.

    They are its two usual values, and that of the study's best kernel.
    """

    name: str
    one: tuple[Value, float, int]
    """The value, the time of its fastest kernel in microseconds, and how many have it."""
    other: tuple[Value, float, int]
    best: tuple[Value, float, int] | None = None
    """Those of the best kernel's value, where it is neither of the two."""

    @property
    def seen(self) -> tuple[tuple[Value, float, int], ...]:
        """All that is known of its values, the most frequent first."""
        return (self.one, self.other, *([self.best] if self.best is not None else []))


@dataclass(frozen=True, slots=True)
class StudyView:
    """What `explorer show` prints."""

    summary: StudySummary
    environment: Environment
    finals: Finals | None
    """None where no search of the study came to its end."""
    best: TrialRecord
    """The finals' winner; the fastest trial where there were no finals."""
    since: TrialRecord | None
    """A trial measured after the finals that looks faster than their winner."""
    rejected: dict[Stage, int]
    reasons: tuple[tuple[Stage, str, int], ...]
    """Stage, reason (the rule's name for invalid ones) and count, most frequent first."""
    effects: tuple[ParameterEffect, ...]
    """By importance, greatest first; empty with fewer than a handful of trials."""
    contrasts: tuple[Contrast, ...] = ()
    """What parameters do by themselves: by parameter, those of most pairs first."""
    unpaired: tuple[Unpaired, ...] = ()
    """The other parameters that varied."""
    front: tuple[TrialRecord, ...] = ()
    """Of a study of time and error: the trials that none is faster and more exact than."""
    passed_over: str = ""
    """A sentence on trials that cannot be read; empty where there is none."""
    ended: str = ""
    """Why the search that held the finals evaluated no more; empty where it is not known."""
    seed: int | None = None
    """Of the latest search; None where it is not known."""


@dataclass(frozen=True, slots=True)
class Attempt:
    """A finished trial, whatever became of it."""

    number: int
    trial: TrialRecord | Rejected
    started: datetime | None
    """When its evaluation began, in the local time of who searched; None where it is not known."""
    seconds: float
    """From there until its outcome was known; 0 where that was not kept."""


@dataclass(frozen=True, slots=True)
class StudyHistory:
    """A study with every finished trial: what a report is made of."""

    view: StudyView
    attempts: tuple[Attempt, ...]
    """By number."""

    @property
    def measured(self) -> tuple[TrialRecord, ...]:
        """The trials that measured a kernel, by number."""
        return tuple(a.trial for a in self.attempts if isinstance(a.trial, TrialRecord))
