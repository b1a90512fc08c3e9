"""Look into a storage: which studies there are, what one found, one trial of it."""

import re
import shlex
from collections import Counter
from dataclasses import dataclass, replace

from optuna.storages import BaseStorage

from explorer.asked import AskedProblem
from explorer.errors import InvalidInput, NotFound
from explorer.evaluate.space_version import space_version
from explorer.outcome import Rejected, Stage
from explorer.plain_data import shown
from explorer.problem import Problem
from explorer.tuning.effects import effects
from explorer.tuning.goal import Goal
from explorer.tuning.objectives import Objectives
from explorer.tuning.pareto import front_trials
from explorer.tuning.results import StudySummary, StudyView, TrialRecord
from explorer.tuning.stored_study import (
    DamagedStudy,
    StoredStudy,
    read_studies,
    stored_studies,
)

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
    return replace(_view(study), effects=effects(study.measured()))


def list_views(storage: BaseStorage) -> list[StudyView]:
    """What each study of time alone found that can still be shown, by problem, without effects."""
    studies = [s for s in stored_studies(storage) if s.objectives is Objectives.TIME]
    usable = [study for study in studies if _is_usable(study)]
    views = [_view(study) for study in usable if study.best() is not None]
    return sorted(views, key=_place)


def find_trial(
    storage: BaseStorage, problem: Problem | AskedProblem, which: str | int, goal: Goal = TIME
) -> TrialRecord:
    """The `best` trial of the problem's study with that goal, or a trial by its number.

    Raises NotFound for a study or number that does not exist, InvalidInput for a rejected trial.
    """
    study = _choose(storage, _Wanted(_filter(problem), goal))
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
        circumstances=study.circumstances,
        finals=study.finals,
        best=best,
        since=study.since_finals(),
        rejected=dict(Counter(r.stage for r in rejected)),
        reasons=tuple((stage, reason, n) for (stage, reason), n in reasons.most_common()),
        effects=(),
        front=tuple(front_trials(study.measured())) if two else (),
        passed_over=study.passed_over,
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
            f"was rejected, {found.stage}: {found.reason}"
            if isinstance(found, Rejected)
            else f"cannot be read: {study.faults[number]}"
            if number in study.faults
            else "did not finish"
        )
        raise InvalidInput(f"trial {number} {what}; choose another, or {BEST}")
    there = [*study.trials, *study.faults]
    has = f"trials {min(there)} to {max(there)}; choose one of them" if there else "no trials"
    raise NotFound(f"trial {number} does not exist; study '{study.name}' has {has}, or {BEST}")


@dataclass(frozen=True, slots=True)
class _Wanted:
    """Which study is meant."""

    problem: AskedProblem
    goal: Goal

    def matches(self, study: StoredStudy) -> bool:
        goal = Goal(study.objectives, study.circumstances.accuracy)
        return goal == self.goal and self.problem.matches(study.problem)

    @property
    def command(self) -> str:
        """The command that searches it."""
        return shlex.join(["explorer", "search", *self.problem.options, *self.goal.options])

    def __str__(self) -> str:
        return f"{self.problem}{self.goal}"


def _choose(storage: BaseStorage, wanted: _Wanted) -> StoredStudy:
    """Of the problem that was searched last: a live study of the installed space, else a replay."""
    found = list(read_studies(storage))
    sound = (study for study in found if isinstance(study, StoredStudy))
    matching = [study for study in sound if wanted.matches(study)]
    if not matching:
        damaged = next((study for study in found if isinstance(study, DamagedStudy)), None)
        but = f", but {damaged}" if damaged else f" yet; run {wanted.command}"
        raise NotFound(f"no study of {wanted}{but}")
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
        f"study '{study.name}' is of space version {study.circumstances.space_version}, the "
        f"installed one is {space_version()}: its times are not of today's kernels; "
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
    return (rejected.reason.splitlines() or [""])[0]
