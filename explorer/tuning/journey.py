"""A journey: known designs timed in turn, from the simplest to the best, and its results."""

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from typing import Any

from optuna.storages import BaseStorage

from explorer.codegen import emit
from explorer.model.config import Config
from explorer.model.errors import InvalidInput, NotFound
from explorer.model.evaluator import Evaluator
from explorer.model.outcome import Environment, Measured, Timed
from explorer.model.problem import Problem
from explorer.presets import PRESETS
from explorer.space import can_emit
from explorer.system.plain_data import read_fields, shown
from explorer.tuning.contest import Absent, Contest, Ratio, check_rows, ratio
from explorer.tuning.search import evaluator_study
from explorer.tuning.study_reader import stored_studies

# ------------------------------------------------------------------ results


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
    environment: Environment = field(metadata={"key": "circumstances"})
    steps: tuple[Step, ...]
    left_out: tuple[Absent, ...]
    copy_us: tuple[float, ...]
    """The fastest plain copy of the same bytes, timed in the same rounds."""
    again_us: tuple[float, ...]
    """One of the fastest once more: its two rows differ by what the contest cannot resolve."""
    twice: str
    """The digest of that step."""
    best_from: str
    """Where the search's best comes from; empty where there is none."""
    interleaved: bool = True

    @cached_property
    def contest(self) -> Contest:
        """The samples of the steps, of one step's second entry and of copy."""
        twice = [step.digest for step in self.steps].index(self.twice)
        rows = tuple(step.samples_us for step in self.steps)
        return Contest(rows, self.again_us, twice, self.copy_us, self.interleaved)

    @property
    def copy_time_us(self) -> float:
        """Median microseconds of the copy; 0 where it was not measured."""
        return self.contest.copy_time_us

    def speedup(self, slower: Step, faster: Step) -> Ratio:
        """How many times as fast one step is as another, with its confidence interval."""
        return ratio(slower.samples_us, faster.samples_us, max(1, len(self.steps) - 1))

    def is_tie(self, one: Step, other: Step) -> bool:
        """Whether two steps cannot be told apart."""
        return self.speedup(one, other).is_tie(self.contest.noise)

    def find(self, name: str) -> Step | None:
        """The step of a preset, if it has one."""
        return next((step for step in self.steps if name in step.names), None)

    def as_dict(self) -> dict[str, Any]:
        """Plain data, for JSON: what was measured, without what follows from it."""
        return {
            "problem": self.problem.as_dict(),
            "circumstances": self.environment.as_dict(),
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


# ------------------------------------------------------------------ journey


ROUNDS = 30
FEWEST = 2
"""Kernels that a journey has at least."""

Progress = Callable[[str, int, int], None]
"""Told the name of what is verified and timed next, its number from 1, and of how many."""


@dataclass(frozen=True, slots=True)
class Found:
    """The search's best of a problem, and where it comes from, in words."""

    config: Config
    origin: str


@dataclass(frozen=True, slots=True)
class _Contender:
    names: tuple[str, ...]
    config: Config
    digest: str


def stored_best(evaluator: Evaluator, storage: BaseStorage) -> Found | None:
    """The best of the study that a search with `evaluator` would go on with; None without one."""
    name = evaluator_study(evaluator)
    for study in stored_studies(storage):
        best = study.best() if study.name == name else None
        if best is not None and can_emit(study.problem, best.config):
            return Found(best.config, f"trial {best.number} of study {name}")
    return None


def run_journey(
    evaluator: Evaluator,
    find_best: Callable[[], Found | None],
    *,
    rounds: int = ROUNDS,
    on_progress: Progress | None = None,
) -> Journey:
    """Verify and time each preset that can compute the problem, then all of them in turn.

    `find_best` is asked once the presets are known to be there. Raises NotFound where fewer than
    two kernels could be measured, or where a recording lacks some of them.
    """
    contenders, left_out = _contenders(evaluator)
    found = find_best()
    if found is not None:
        contenders = _entered(contenders, BEST, found.config, evaluator)
    for contender in contenders:
        evaluator.submit(contender.config)
    measured: list[tuple[_Contender, Measured]] = []
    for number, contender in enumerate(contenders, 1):
        if on_progress is not None:
            on_progress(contender.names[0], number, len(contenders))
        outcome = evaluator.evaluate(contender.config)
        if isinstance(outcome, Measured):
            measured.append((contender, outcome))
        else:
            left_out += [Absent(name, outcome.reason, outcome.stage) for name in contender.names]
    if len(measured) < FEWEST:
        raise NotFound(_too_few(evaluator, len(measured), left_out))
    return _compared(evaluator, measured, left_out, found, rounds)


def _contenders(evaluator: Evaluator) -> tuple[list[_Contender], list[Absent]]:
    """Presets that are legal, each code once; why others are not."""
    contenders: list[_Contender] = []
    left_out = []
    for preset in PRESETS:
        fault = preset.fault(evaluator.problem, evaluator.gpu)
        if fault is None:
            config = preset.config(evaluator.problem, evaluator.gpu)
            contenders = _entered(contenders, preset.name, config, evaluator)
        else:
            left_out.append(Absent(preset.name, fault))
    return _held(evaluator, contenders), left_out


def _entered(
    contenders: list[_Contender], name: str, config: Config, evaluator: Evaluator
) -> list[_Contender]:
    """With one more, or one more name for the one that has its code."""
    digest = emit(evaluator.problem, config).digest
    if all(contender.digest != digest for contender in contenders):
        return [*contenders, _Contender((name,), config, digest)]
    return [
        replace(one, names=(*one.names, name)) if one.digest == digest else one
        for one in contenders
    ]


def _held(evaluator: Evaluator, contenders: list[_Contender]) -> list[_Contender]:
    """The contenders as a recording knows them; raises NotFound where it lacks some."""
    if evaluator.catalogue is None:
        return contenders
    recorded = {evaluator.identity(config): config for config in evaluator.catalogue}
    lacking = sum(contender.digest not in recorded for contender in contenders)
    if lacking:
        environment = evaluator.environment
        raise NotFound(
            f"the recording made on {environment.gpu} on {environment.date[:10]} lacks "
            f"{lacking} of the {len(contenders)} presets of {evaluator.problem}: a journey needs "
            "a GPU, or one that was kept, as the repository's studies/results/journey-*.json: "
            "--from FILE"
        )
    return [replace(contender, config=recorded[contender.digest]) for contender in contenders]


def _compared(
    evaluator: Evaluator,
    measured: list[tuple[_Contender, Measured]],
    left_out: Sequence[Absent],
    found: Found | None,
    rounds: int,
) -> Journey:
    """Time all of them in turn, the fastest twice."""
    ranked = sorted(measured, key=lambda pair: -pair[1].time_us)
    configs = [contender.config for contender, _ in ranked]
    contest = Contest.held(evaluator.compare, configs, rounds, twice=-1)
    steps = [
        Step(
            names=contender.names,
            config=contender.config,
            digest=outcome.digest,
            error=outcome.error,
            registers=outcome.resources.registers,
            samples_us=row,
        )
        for (contender, outcome), row in zip(ranked, contest.rows, strict=True)
    ]
    return Journey(
        problem=evaluator.problem,
        environment=replace(evaluator.environment, copy_us=contest.copy_time_us),
        steps=tuple(sorted(steps, key=lambda step: -step.time_us)),
        left_out=tuple(left_out),
        copy_us=contest.copy_us,
        again_us=contest.again_us,
        twice=steps[contest.twice].digest,
        best_from=found.origin if found is not None else "",
        interleaved=contest.interleaved,
    )


def _too_few(evaluator: Evaluator, measured: int, left_out: Sequence[Absent]) -> str:
    reasons = "; ".join(f"{entry.name}: {entry.why}" for entry in left_out[:3])
    return (
        f"a journey over {evaluator.problem} would have {measured} of the {FEWEST} kernels that "
        f"it needs ({reasons}); explorer presets says why"
    )
