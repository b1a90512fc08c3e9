"""Read a storage: which studies there are, what one found, and what each parameter did in it."""

import random
import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from statistics import median

import optuna
from optuna.distributions import CategoricalDistribution
from optuna.storages import BaseStorage
from optuna.study._frozen import FrozenStudy
from optuna.trial import FrozenTrial, create_trial

from explorer.evaluate.space_version import space_version
from explorer.model.asked import AskedProblem, command
from explorer.model.config import Config
from explorer.model.errors import InvalidInput, NotFound
from explorer.model.outcome import Environment, Measured, Outcome, Rejected, Stage, TrialRecord
from explorer.model.parameters import Value
from explorer.model.problem import Problem
from explorer.system.plain_data import read_text, read_whole, shown
from explorer.tuning.contest import Finals, finals_from_json, front_trials
from explorer.tuning.main_effects import contrasts, unpaired
from explorer.tuning.objective import REPLAY_SUFFIX, Goal, Objectives
from explorer.tuning.results import (
    Attempt,
    ParameterEffect,
    StudyHistory,
    StudySummary,
    StudyView,
)
from explorer.tuning.storage import name_of, said_of
from explorer.tuning.study_attributes import finals_text, passed_over, to_outcome

# ------------------------------------------------------------------ a study as it lies in a storage


def _remedy() -> str:
    return "restore a copy of the storage, or name another"


@dataclass(frozen=True)
class StoredStudy:
    """A study's attributes and finished trials, by number."""

    name: str
    problem: Problem
    kept_environment: Environment
    objectives: Objectives
    """What it minimises."""
    searched_at: str
    """When its latest run began or ended, UTC; text that sorts."""
    finals: Finals | None
    """Of the latest run that came to its end."""
    ended: str
    """Why that run evaluated no more kernels; empty where that was not kept."""
    trials: dict[int, TrialRecord | Rejected | None]
    """By number: what was measured, what was rejected, and None for what is not finished."""
    clock: dict[int, tuple[datetime, float]]
    """By number, when the evaluation of a finished trial began, and its seconds."""
    faults: dict[int, str]
    """What is wrong with the trials that cannot be read, by number; they are passed over."""

    @property
    def environment(self) -> Environment:
        """Of the run that held the finals, with the copy of the finals; else of the latest."""
        kept = self.kept_environment
        return kept if self.finals is None else replace(kept, copy_us=self.finals.copy_us)

    @property
    def replayed(self) -> bool:
        """Whether its times come from a recording."""
        return self.name.endswith(REPLAY_SUFFIX)

    @property
    def is_current(self) -> bool:
        """Whether the installed space and templates are the study's."""
        return self.environment.space_version == space_version(self.problem)

    @property
    def passed_over(self) -> str:
        """A sentence on the trials that cannot be read; empty where there is none."""
        return passed_over(self.faults, self.name)

    def measured(self) -> list[TrialRecord]:
        """The trials that measured a kernel."""
        return [trial for trial in self.trials.values() if isinstance(trial, TrialRecord)]

    def rejected(self) -> list[Rejected]:
        """The outcomes of the trials that measured none."""
        return [trial for trial in self.trials.values() if isinstance(trial, Rejected)]

    def best(self) -> TrialRecord | None:
        """The finals' winner; where there were none, the fastest trial."""
        return self._fastest() if self.finals is None else self.finals.winner.trial

    def since_finals(self) -> TrialRecord | None:
        """A trial that is faster than the finalists were in the search: it came after them."""
        fastest, finals = self._fastest(), self.finals
        if fastest is None or finals is None:
            return None
        if fastest.number in {finalist.trial.number for finalist in finals.finalists}:
            return None
        before = min(finalist.trial.outcome.time_us for finalist in finals.finalists)
        return fastest if fastest.outcome.time_us < before else None

    def summary(self) -> StudySummary:
        """One line about it."""
        environment, best = self.environment, self.best()
        best_us = best.outcome.time_us if best else None
        return StudySummary(
            name=self.name,
            problem=self.problem,
            gpu=environment.gpu,
            timing=environment.timing,
            space_version=environment.space_version,
            is_current=self.is_current,
            trials=len(self.trials) + len(self.faults),
            measured=len(self.measured()),
            best_us=best_us if self.finals is None else self.finals.winner.time_us,
            copy_us=environment.copy_us,
            date=environment.date,
            replayed=self.replayed,
            accuracy=environment.accuracy,
            objectives=self.objectives,
        )

    def _fastest(self) -> TrialRecord | None:
        return min(self.measured(), key=lambda trial: trial.outcome.time_us, default=None)


@dataclass(frozen=True, slots=True)
class DamagedStudy:
    """A study of this program that cannot be read, and why."""

    name: str
    fault: str

    def __str__(self) -> str:
        return f"study '{self.name}' is damaged: {self.fault}; {_remedy()}"


def stored_studies(storage: BaseStorage) -> Iterator[StoredStudy]:
    """This program's studies in a storage that can be read; others' studies are passed over."""
    return (study for study in read_studies(storage) if isinstance(study, StoredStudy))


def read_studies(storage: BaseStorage) -> Iterator[StoredStudy | DamagedStudy]:
    """This program's studies in a storage; raises InvalidInput where it cannot be read at all."""
    with said_of("the studies of the storage cannot be read", _remedy()):
        found = storage.get_all_studies()
    for study in found:
        if study.user_attrs.keys() >= {"problem", "circumstances"}:
            try:
                yield _read(study, storage)
            except InvalidInput as error:
                yield DamagedStudy(str(study.study_name), str(error))


def _read(study: FrozenStudy, storage: BaseStorage) -> StoredStudy:
    """Read a study; raises InvalidInput with what is wrong with it."""
    attributes = study.user_attrs
    with said_of("its trials cannot be read"):
        found = storage.get_all_trials(study._study_id, deepcopy=False)
    objectives = Objectives.parse(attributes.get("objectives", Objectives.TIME))
    finals = finals_text(attributes)
    trials: dict[int, TrialRecord | Rejected | None] = {}
    clock: dict[int, tuple[datetime, float]] = {}
    faults: dict[int, str] = {}
    for trial in found:
        number = read_whole(trial.number, "the number of a trial")
        try:
            trials[number] = _read_trial(trial, objectives)
            if trial.datetime_start is not None and trial.duration is not None:
                clock[number] = trial.datetime_start, trial.duration.total_seconds()
        except InvalidInput as error:
            faults[number] = str(error)
    return StoredStudy(
        name=read_text(study.study_name, "its name"),
        problem=Problem.from_dict(attributes["problem"]),
        kept_environment=Environment.from_dict(attributes["circumstances"]),
        objectives=objectives,
        searched_at=read_text(attributes.get("searched_at", ""), "searched_at"),
        finals=None if finals is None else finals_from_json(finals, objectives),
        ended=read_text(attributes.get("ended", ""), "ended"),
        trials=trials,
        clock=clock,
        faults=faults,
    )


def _read_trial(trial: FrozenTrial, objectives: Objectives) -> TrialRecord | Rejected | None:
    outcome: Outcome | None = to_outcome(trial.user_attrs, objectives)
    if isinstance(outcome, Measured):
        return TrialRecord(trial.number, Config.from_dict(trial.params), outcome)
    return outcome


# ------------------------------------------------------------------ what each parameter did


LEAST_TRIALS = 30
"""Below these, nothing can be said: the fastest tenth would be one or two kernels."""

SAMPLES = 8
"""Samples of the trials, by which it is told how far an importance is a matter of chance."""

SAMPLED = 0.75
"""Of the trials, in each sample."""

EARLIER = (0.5, 0.75)
"""Shares of the trials, from the first on: what the study would have said if it had ended then.

A search moves towards the best, so that random samples of what it has tried alone would say too
little of how importances change with more trials.
"""


def effects(trials: Sequence[TrialRecord]) -> tuple[ParameterEffect, ...]:
    """By importance, greatest first; parameters that never varied are left out."""
    if len(trials) < LEAST_TRIALS:
        return ()
    times = _times_by_value(trials)
    varied = {name: by_value for name, by_value in times.items() if len(by_value) > 1}
    weights = _importances(trials, varied)
    rng, number = random.Random(0), round(SAMPLED * len(trials))
    taken = [rng.sample(list(trials), number) for _ in range(SAMPLES)]
    in_order = sorted(trials, key=lambda trial: trial.number)
    taken += [in_order[: round(share * len(trials))] for share in EARLIER]
    samples = [_importances(some, varied) for some in taken]
    found = [
        _effect(name, weights, [sample.get(name, 0.0) for sample in samples], by_value)
        for name, by_value in varied.items()
    ]
    return tuple(sorted(found, key=lambda effect: -effect.importance))


def _times_by_value(trials: Sequence[TrialRecord]) -> dict[str, dict[Value, list[float]]]:
    times: dict[str, dict[Value, list[float]]] = defaultdict(lambda: defaultdict(list))
    for trial in trials:
        for name, value in trial.config.as_dict().items():
            times[name][value].append(trial.outcome.time_us)
    return times


def _effect(
    name: str, weights: dict[str, float], sampled: list[float], times: dict[Value, list[float]]
) -> ParameterEffect:
    medians = sorted((median(us), str(value)) for value, us in times.items())
    (fastest_us, fastest), (slowest_us, slowest) = medians[0], medians[-1]
    return ParameterEffect(
        name=name,
        importance=weights.get(name, 0.0),
        importance_low=min(sampled),
        importance_high=max(sampled),
        fastest_value=fastest,
        fastest_us=fastest_us,
        slowest_value=slowest,
        slowest_us=slowest_us,
    )


def _importances(
    trials: Sequence[TrialRecord], varied: dict[str, dict[Value, list[float]]]
) -> dict[str, float]:
    """PED-ANOVA, Optuna's default; it looks at ranks, so time serves for its logarithm."""
    # Where scikit-learn is installed this imports all of it, in 1.2 s on an H200's host.
    from optuna.importance import get_param_importances

    distributions = {
        name: CategoricalDistribution(tuple(values)) for name, values in varied.items()
    }
    study = optuna.create_study()
    for trial in trials:
        values = trial.config.as_dict()
        study.add_trial(
            create_trial(
                params={name: values[name] for name in varied},
                distributions=distributions,  # type: ignore[arg-type]
                value=trial.outcome.time_us,
            )
        )
    return get_param_importances(study)


# ----------------------------------------------------------- which studies there are, and one trial


BEST = "best"
TIME = Goal()
"""What a search is after where nothing else is said."""


@dataclass(frozen=True, slots=True)
class Survey:
    """What a storage has of this program."""

    summaries: list[StudySummary]
    """Of the studies that can be read, the one searched last first."""
    faults: list[str]
    """A sentence on each study, and on the trials of one, that cannot be read."""


def survey(storage: BaseStorage) -> Survey:
    """Look at all studies of this program."""
    found = list(read_studies(storage))
    sound = [study for study in found if isinstance(study, StoredStudy)]
    sound.sort(key=lambda study: study.searched_at, reverse=True)
    faults = [str(s) if isinstance(s, DamagedStudy) else s.passed_over for s in found]
    return Survey([study.summary() for study in sound], [fault for fault in faults if fault])


def list_studies(storage: BaseStorage) -> list[StudySummary]:
    """All studies of this program that can be read, the one searched last first."""
    return survey(storage).summaries


def load_study(
    storage: BaseStorage,
    problem: Problem | AskedProblem,
    goal: Goal = TIME,
) -> StudyView:
    """What the problem's study with that goal found; a live study goes before a replay.

    Raises NotFound where there is none, or none of the installed space.
    """
    study = _choose(storage, _Wanted(_filter(problem), goal))
    return _whole_view(study)


def load_history(
    storage: BaseStorage, problem: Problem | AskedProblem, goal: Goal = TIME
) -> StudyHistory:
    """What `load_study` gives, and every finished trial. Raises as it does."""
    study = _choose(storage, _Wanted(_filter(problem), goal))
    attempts = (
        Attempt(number, trial, *study.clock.get(number, (None, 0.0)))
        for number, trial in sorted(study.trials.items())
        if trial is not None
    )
    return StudyHistory(_whole_view(study), tuple(attempts))


def list_views(storage: BaseStorage) -> list[StudyView]:
    """What each study of time alone found that can still be shown, by problem, without effects."""
    studies = [s for s in stored_studies(storage) if s.objectives is Objectives.TIME]
    usable = [study for study in studies if _is_usable(study)]
    views = [_view(study) for study in usable if study.best() is not None]
    return sorted(views, key=_place)


def load_trial(
    storage: BaseStorage, problem: Problem | AskedProblem, which: str | int, goal: Goal = TIME
) -> tuple[StudyView, TrialRecord]:
    """The problem's study with that goal, without effects, and its `best` trial or one by number.

    Effects are left out because they take as long as reading the study. Raises NotFound for a study
    or number that does not exist, InvalidInput for a rejected trial.
    """
    study = _choose(storage, _Wanted(_filter(problem), goal))
    return _view(study), _trial_named(study, which)


def load_trials(
    storage: BaseStorage, problem: Problem | AskedProblem, goal: Goal = TIME
) -> dict[int, TrialRecord | Rejected]:
    """Every finished trial of the study that `load_study` chooses, by number. Raises as it does."""
    study = _choose(storage, _Wanted(_filter(problem), goal))
    return {number: trial for number, trial in study.trials.items() if trial is not None}


def load_measured(
    storage: BaseStorage, problem: Problem | AskedProblem, goal: Goal = TIME
) -> tuple[StudyView, list[TrialRecord]]:
    """The study that `load_study` chooses, without effects, and its trials that measured a kernel.

    Raises as it does.
    """
    study = _choose(storage, _Wanted(_filter(problem), goal))
    return _view(study), study.measured()


def _trial_named(study: StoredStudy, which: str | int) -> TrialRecord:
    if which == BEST:
        best = study.best()
        assert best is not None  # _choose passes studies over that measured nothing
        return best
    if not re.fullmatch("[0-9]{1,15}", str(which)):
        raise InvalidInput(f"trial {shown(which)} is no trial; name {BEST} or a number")
    return _trial(study, int(which))


def _view(study: StoredStudy) -> StudyView:
    best, rejected = study.best(), study.rejected()
    assert best is not None  # those that measured nothing are passed over
    reasons = Counter((r.stage, _short(r)) for r in rejected)
    two = study.objectives is Objectives.TIME_ERROR
    return StudyView(
        summary=study.summary(),
        environment=study.environment,
        finals=study.finals,
        best=best,
        since=study.since_finals(),
        rejected=dict(Counter(r.stage for r in rejected)),
        reasons=tuple((stage, reason, n) for (stage, reason), n in reasons.most_common()),
        effects=(),
        front=tuple(front_trials(study.measured())) if two else (),
        passed_over=study.passed_over,
        ended=study.ended,
    )


def _whole_view(study: StoredStudy) -> StudyView:
    """With what each parameter did."""
    measured = study.measured()
    compared, best = contrasts(measured), study.best()
    assert best is not None  # as in `_view`
    return replace(
        _view(study),
        effects=effects(measured),
        contrasts=compared,
        unpaired=unpaired(measured, compared, best.config),
    )


def _place(view: StudyView) -> tuple[str, int, int, bool, str]:
    """Where a study stands in a list by problem: what was measured here before replays."""
    problem, summary = view.summary.problem, view.summary
    return (problem.dtype, problem.cols, problem.rows, summary.replayed, summary.name)


def _trial(study: StoredStudy, number: int) -> TrialRecord:
    found = study.trials.get(number)
    if isinstance(found, TrialRecord):
        return found
    if number in study.trials or number in study.faults:
        what = (
            f"was rejected, {found.stage}: {in_one_unit(found.reason)}"
            if isinstance(found, Rejected)
            else f"cannot be read: {study.faults[number]}"
            if number in study.faults
            else "did not finish"
        )
        raise InvalidInput(f"trial {number} {what}; choose another, or {BEST}")
    there = [*study.trials, *study.faults]
    has = f"trials {min(there)} to {max(there)}; choose one of them" if there else "no trials"
    raise NotFound(f"trial {number} does not exist; study '{study.name}' has {has}, or {BEST}")


def searching(problem: AskedProblem, goal: Goal) -> str:
    """Return the command that searches a problem with that goal."""
    return command("search", *problem.options, *goal.options)


@dataclass(frozen=True, slots=True)
class _Wanted:
    """Which study is meant."""

    problem: AskedProblem
    goal: Goal

    def matches(self, study: StoredStudy) -> bool:
        goal = Goal(study.objectives, study.environment.accuracy)
        return goal == self.goal and self.problem.matches(study.problem)

    @property
    def command(self) -> str:
        """The command that searches it."""
        return searching(self.problem, self.goal)

    def __str__(self) -> str:
        return f"{self.problem}{self.goal}"


def _choose(storage: BaseStorage, wanted: _Wanted) -> StoredStudy:
    """Of the problem that was searched last: a live study of the installed space, else a replay."""
    found = list(read_studies(storage))
    sound = (study for study in found if isinstance(study, StoredStudy))
    matching = [study for study in sound if wanted.matches(study)]
    if not matching:
        damaged = next((study for study in found if isinstance(study, DamagedStudy)), None)
        if damaged:
            raise NotFound(f"no study of {wanted}, but {damaged}")
        raise NotFound(
            f"no study of {wanted} yet in {name_of(storage)}; run {wanted.command}, or take a "
            f"kernel that needs no search: {wanted.problem.without_search}"
        )
    usable = [study for study in matching if _is_usable(study)]
    if not usable:
        latest = max(matching, key=lambda study: study.searched_at)
        raise NotFound(_outdated(latest, wanted))
    with_result = [study for study in usable if study.best() is not None]
    if not with_result:
        but = f": {usable[0].passed_over}" if usable[0].faults else ""
        raise NotFound(
            f"study '{usable[0].name}' has no measured kernel yet{but}; run {wanted.command}"
        )
    last = max(with_result, key=lambda study: study.searched_at)
    same = [study for study in with_result if study.problem == last.problem]
    return max(same, key=lambda study: (not study.replayed, study.searched_at))


def _is_usable(study: StoredStudy) -> bool:
    """A replay says of itself where its times come from; other times are of installed kernels."""
    return study.replayed or study.is_current


def _outdated(study: StoredStudy, wanted: _Wanted) -> str:
    return (
        f"study '{study.name}' is of space version {study.environment.space_version}, the "
        f"installed one is {space_version(study.problem)}: its times are not of today's kernels; "
        f"run {wanted.command} to search again (the old study is kept)"
    )


def _filter(problem: Problem | AskedProblem) -> AskedProblem:
    if isinstance(problem, AskedProblem):
        return problem
    return AskedProblem.of(problem)


def _short(rejected: Rejected) -> str:
    """The rule's name of an invalid config; the first line of what others say."""
    if rejected.stage is Stage.INVALID:
        return rejected.reason.split(":")[0]
    return in_one_unit((rejected.reason.splitlines() or [""])[0])


_TWO_UNITS = re.compile(
    r"(?P<ulp>\S+) ulp \(relative error (?P<error>\S+)\), the limit under (?P<level>\w+) is "
    r"(?P<limit>.+ of the magnitude|(?P<steps>\d+) numbers? beside the rounded truth)"
)


def in_one_unit(reason: str) -> str:
    """Say the error of a kernel that was measured as too inexact in the unit of its limit.

    Version 0.1.0 and older recordings say both errors, whichever of the two the limit is of.
    """
    found = _TWO_UNITS.search(reason)
    if found is None:
        return reason
    if found["steps"]:  # representable numbers beside the truth, which itself lies up to 0.5 beside
        told, limit = f"{found['ulp']} ulp", f"{int(found['steps']) + 0.5:g} ulp"
    else:
        told, limit = f"{found['error']} of the magnitude", found["limit"]
    before, after = reason[: found.start()], reason[found.end() :]
    return f"{before}{told}, the limit under {found['level']} is {limit}{after}"
