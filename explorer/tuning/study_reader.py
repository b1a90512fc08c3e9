"""Read a storage: which studies there are, which one is meant, and what it found."""

import math
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from operator import attrgetter
from typing import Any

from optuna.storages import BaseStorage

from explorer.evaluate.space_version import space_version
from explorer.model.errors import InvalidInput, NotFound
from explorer.model.outcome import Environment, Rejected, Stage, TrialRecord
from explorer.model.problem import Problem
from explorer.model.query import ProblemQuery, command, needed
from explorer.system.plain_data import read_object, read_text, shown
from explorer.tuning.contest import Finals, finals_from_json, front_trials
from explorer.tuning.main_effects import contrasts, effects, unpaired
from explorer.tuning.objective import (
    REPLAY_SUFFIX,
    Goal,
    Objectives,
    Where,
    study_name,
)
from explorer.tuning.results import (
    Attempt,
    SearchResult,
    StudyHistory,
    StudySummary,
    StudyView,
)
from explorer.tuning.storage import file_of, one_sentence, open_storage
from explorer.tuning.study_attributes import finals_text, passed_over, read_trials

BEST = "best"

TIME = Goal()
"""The goal of a search for which none is given."""

_REMEDY = "restore a copy of the storage, or name another"

# ------------------------------------------------------------------ a study as it lies in a storage


class StoredStudy:
    """A study's attributes, and its trials, which are read when they are first needed.

    What reads the trials raises InvalidInput where these cannot be read.
    """

    def __init__(self, study: Any, storage: BaseStorage) -> None:
        """Take a study of Optuna's. Raises InvalidInput with what is wrong with it."""
        self._study, self._storage = study, storage
        attributes = study.user_attrs
        self.name = read_text(study.study_name, "its name")
        self.problem = Problem.from_dict(attributes["problem"])
        self.environment = Environment.from_dict(attributes["circumstances"])
        """Of the run that held the finals; else of the latest."""
        self.objectives = Objectives.parse(
            read_text(attributes.get("objectives", str(Objectives.TIME)), "objectives")
        )
        self.where: Where = {
            name: tuple(values)
            for name, values in read_object(attributes.get("where", {}), "where").items()
        }
        """What its search was restricted to; nothing in a study of the whole space."""
        self.searched_at = read_text(attributes.get("searched_at", ""), "searched_at")
        """When its latest run began or ended, UTC; text that sorts."""
        self.ended = read_text(attributes.get("ended", ""), "ended")
        """Why the run that held the finals evaluated no more; empty where that was not kept."""
        seed = attributes.get("seed")
        self.seed = seed if isinstance(seed, int) else None
        finals = finals_text(attributes)
        self.finals = None if finals is None else finals_from_json(finals, self.objectives)
        """Of the latest run that came to its end."""
        self.replayed = attributes.get("replayed", self.name.endswith(REPLAY_SUFFIX)) is True
        """Whether its times come from a recording: one that was renamed keeps that."""
        self.faults: dict[int, str] = {}
        """What is wrong with the trials that cannot be read, by number; they are passed over."""
        self._values: dict[int, float] = {}
        """What was minimised of each trial that was measured, as the storage has it."""
        self.is_one_of_several = False
        """Whether a command must name it, since others fit its problem and goal as well."""

    @property
    def goal(self) -> Goal:
        """What was searched for."""
        return Goal(self.objectives, self.environment.accuracy)

    @property
    def is_current(self) -> bool:
        """Whether the installed space and templates are the study's."""
        return self.environment.space_version == space_version(self.problem)

    @property
    def is_usable(self) -> bool:
        """Whether its times are of installed kernels, or of a replay, which says whose."""
        return self.replayed or self.is_current

    @property
    def _usual_name(self) -> str:
        """The name that a search gives it."""
        made = self.environment
        whose = (self.problem, made, made.space_version, self.objectives, self.where)
        return study_name(*whose, replayed=self.replayed)

    @property
    def has_usual_name(self) -> bool:
        """Whether it was not renamed."""
        return self.name == self._usual_name

    @property
    def is_set_apart(self) -> bool:
        """Whether it was restricted or renamed, so that a plain search does not go on with it."""
        return bool(self.where) or not self.has_usual_name

    @property
    def place(self) -> tuple[Problem, str, str]:
        """The problem, the GPU and the timing mode, which a live study and its replay share."""
        return self.problem, self.environment.gpu, self.environment.timing

    @cached_property
    def attempts(self) -> dict[int, Attempt]:
        """The finished trials that can be read, by number."""
        with one_sentence("its trials cannot be read"):
            trials = self._storage.get_all_trials(self._study._study_id, deepcopy=False)
        attempts = {}
        for trial, config, outcome in read_trials(trials, self.objectives, self.faults):
            number = trial.number
            found = (
                outcome if isinstance(outcome, Rejected) else TrialRecord(number, config, outcome)
            )
            seconds = trial.duration.total_seconds() if trial.duration else 0.0
            attempts[number] = Attempt(number, found, trial.datetime_start, seconds)
            if isinstance(found, TrialRecord) and trial.values:
                self._values[number] = trial.values[0]
        return dict(sorted(attempts.items()))

    @property
    def passed_over(self) -> str:
        """A sentence on the trials that cannot be read; empty where there is none."""
        return passed_over(self.faults, self.name)

    def measured(self) -> list[TrialRecord]:
        """Return the trials that measured a kernel."""
        found = (attempt.trial for attempt in self.attempts.values())
        return [trial for trial in found if isinstance(trial, TrialRecord)]

    def best(self) -> TrialRecord | None:
        """Return the finals' winner; where there were none, the fastest trial."""
        return self._fastest() if self.finals is None else self.finals.winner.trial

    def _fastest(self) -> TrialRecord | None:
        return min(self.measured(), key=self._value, default=None)

    def _value(self, trial: TrialRecord) -> float:
        """Return what was minimised of a trial: its time, or an objective of the user's."""
        if not self.objectives.is_own:
            return trial.outcome.time_us
        return self._values.get(trial.number, math.inf)

    def _since_finals(self) -> TrialRecord | None:
        """Return a trial that is faster than the finalists were in the search: it came later."""
        fastest, finals = self._fastest(), self.finals
        if fastest is None or finals is None:
            return None
        trials = [finalist.trial for finalist in finals.finalists]
        is_new = fastest.number not in {trial.number for trial in trials}
        before = min(map(self._value, trials))
        return fastest if is_new and self._value(fastest) < before else None

    def summary(self) -> StudySummary:
        """Return one line about it."""
        environment, best = self.environment, self.best()
        best_us = best.outcome.time_us if best else None
        return StudySummary(
            name=self.name,
            problem=self.problem,
            gpu=environment.gpu,
            timing=environment.timing,
            space_version=environment.space_version,
            is_current=self.is_current,
            trials=len(self.attempts) + len(self.faults),
            measured=len(self.measured()),
            best_us=best_us if self.finals is None else self.finals.winner.time_us,
            limit_us=environment.limit_us,
            date=environment.date,
            replayed=self.replayed,
            accuracy=environment.accuracy,
            objectives=self.objectives,
            is_one_of_several=self.is_one_of_several,
            has_usual_name=self.has_usual_name,
            where=self.where,
        )

    def view(self) -> StudyView:
        """Return what it found, without what each parameter does."""
        best = self.best()
        assert best is not None  # those that measured nothing are passed over
        view = _viewed(self.summary(), self.environment, self.attempts.values(), self.finals, best)
        since, passed_over = self._since_finals(), self.passed_over
        return replace(view, since=since, passed_over=passed_over, ended=self.ended, seed=self.seed)

    def trial(self, which: str | int) -> TrialRecord:
        """Return its `best` trial, or one by number. Raises NotFound, and InvalidInput."""
        if which == BEST and (best := self.best()):
            return best
        if not re.fullmatch("[0-9]{1,15}", str(which)):
            raise InvalidInput(f"trial {shown(which)} is no trial; name {BEST} or a number")
        number = int(which)
        found = self.attempts[number].trial if number in self.attempts else None
        if isinstance(found, TrialRecord):
            return found
        numbers = [*self.attempts, *self.faults]
        if isinstance(found, Rejected):
            why = f"was rejected, {found.stage}: {found.reason}"
        elif number in self.faults:
            why = f"cannot be read: {self.faults[number]}"
        else:
            has = f"trials {min(numbers)} to {max(numbers)}; choose one of them" if numbers else ""
            raise NotFound(
                f"trial {number} does not exist; study '{self.name}' has {has or 'no trials'}, or "
                f"{BEST}"
            )
        raise InvalidInput(f"trial {number} {why}; choose another, or {BEST}")


def _viewed(
    summary: StudySummary,
    environment: Environment,
    attempts: Iterable[Attempt],
    finals: Finals | None,
    best: TrialRecord,
) -> StudyView:
    """Return what a study found, without what each parameter does."""
    trials = [attempt.trial for attempt in attempts]
    rejected = [trial for trial in trials if isinstance(trial, Rejected)]
    measured = [trial for trial in trials if isinstance(trial, TrialRecord)]
    reasons = Counter((one.stage, _short(one)) for one in rejected)
    return StudyView(
        summary=summary,
        environment=environment,
        finals=finals,
        best=best,
        since=None,
        rejected=dict(Counter(one.stage for one in rejected)),
        reasons=tuple((stage, reason, n) for (stage, reason), n in reasons.most_common()),
        effects=(),
        front=tuple(front_trials(measured)) if summary.objectives.is_front else (),
    )


def searched_history(result: SearchResult) -> StudyHistory:
    """Return the study of a search, as it was when that ended, without reading its storage."""
    made = result.environment
    summary = StudySummary(
        name=result.study,
        problem=result.problem,
        gpu=made.gpu,
        timing=made.timing,
        space_version=made.space_version,
        is_current=made.space_version == space_version(result.problem),
        trials=len(result.attempts),
        measured=sum(isinstance(attempt.trial, TrialRecord) for attempt in result.attempts),
        best_us=result.time_us,
        limit_us=made.limit_us,
        date=made.date,
        replayed=result.replayed,
        accuracy=made.accuracy,
        objectives=result.objectives,
        is_one_of_several=result.is_one_of_several,
        where=result.where,
    )
    view = _viewed(summary, made, result.attempts, result.finals, result.best.trial)
    return _with_effects(replace(view, ended=result.ended), result.attempts)


def read_studies(storage: BaseStorage) -> tuple[list[StoredStudy], list[str]]:
    """Return this program's studies, with their trials, and a sentence on each that is damaged.

    The one searched last goes first; others' studies are passed over. Raises InvalidInput where the
    storage cannot be read at all.
    """
    studies, damaged = _headers(storage)
    return _readable(studies, damaged), damaged


def _headers(storage: BaseStorage) -> tuple[list[StoredStudy], list[str]]:
    """Return what `read_studies` does, but do not read the trials yet."""
    sound, damaged = [], []
    for study in _ours(storage):
        try:
            sound.append(StoredStudy(study, storage))
        except InvalidInput as error:
            damaged.append(_damaged(study.study_name, error))
    return sorted(sound, key=lambda study: study.searched_at, reverse=True), damaged


def _ours(storage: BaseStorage) -> list[Any]:
    """Return this program's studies as Optuna has them. Raises InvalidInput."""
    with one_sentence("the studies of the storage cannot be read", _REMEDY):
        studies = storage.get_all_studies()
    return [study for study in studies if study.user_attrs.keys() >= {"problem", "circumstances"}]


def _readable(studies: Sequence[StoredStudy], damaged: list[str]) -> list[StoredStudy]:
    """Return the studies whose trials can be read; add a sentence on each other one."""
    sound = []
    for study in studies:
        try:
            study.attempts  # noqa: B018 (it keeps what it has read)
        except InvalidInput as error:
            damaged.append(_damaged(study.name, error))
        else:
            sound.append(study)
    return sound


def _damaged(name: str, error: InvalidInput) -> str:
    return f"study '{name}' is damaged: {error}; {_REMEDY}"


# ------------------------------------------------------------------ which studies there are


@dataclass(frozen=True, slots=True)
class Survey:
    """What a storage has of this program."""

    summaries: list[StudySummary]
    """Of the studies that can be read, the one searched last first."""
    faults: list[str]
    """A sentence on each study, and on the trials of one, that cannot be read."""


def survey(storage: BaseStorage) -> Survey:
    """Look at all studies of this program."""
    studies, damaged = read_studies(storage)
    passed_over = [study.passed_over for study in studies if study.faults]
    return Survey([study.summary() for study in studies], damaged + passed_over)


def list_views(storage: BaseStorage) -> list[StudyView]:
    """Return what each study of time alone found that can still be shown, without effects.

    They come by problem, and what was measured here before replays.
    """
    studies = [
        study
        for study in read_studies(storage)[0]
        if study.objectives == Objectives.TIME and study.is_usable and study.best()
    ]
    order = attrgetter("problem.dtype", "problem.cols", "problem.rows", "replayed", "name")
    studies.sort(key=order)
    return [study.view() for study in studies]


# ------------------------------------------------------------------ which one is meant


def load_history(
    storage: BaseStorage, problem: Problem | ProblemQuery, goal: Goal = TIME
) -> StudyHistory:
    """Return what the problem's study with that goal found, its effects, and each finished trial.

    Raises NotFound where there is none, or none of the installed space, and InvalidInput where
    several fit: it names them.
    """
    return history_of(_chosen(storage, problem, goal))


def history_of(study: StoredStudy) -> StudyHistory:
    """Return what a study found, its effects, and each finished trial."""
    return _with_effects(study.view(), tuple(study.attempts.values()))


def _with_effects(view: StudyView, attempts: tuple[Attempt, ...]) -> StudyHistory:
    """Return a study with what each parameter does."""
    measured = [one.trial for one in attempts if isinstance(one.trial, TrialRecord)]
    compared = contrasts(measured)
    whole = replace(
        view,
        effects=effects(measured),
        contrasts=compared,
        unpaired=unpaired(measured, compared, view.best.config),
    )
    return StudyHistory(whole, attempts)


def load_trial(
    storage: BaseStorage,
    problem: Problem | ProblemQuery,
    which: str | int,
    goal: Goal = TIME,
    near: str | None = None,
) -> tuple[StudyView, TrialRecord]:
    """Return a study, without effects, and its `best` trial or one by number.

    Of several that fit, those of the GPU `near` go first. Effects are left out because they take as
    long as reading the study. Raises as `load_history`, NotFound for a number that does not exist,
    and InvalidInput for a rejected trial.
    """
    study = _chosen(storage, problem, goal, near)
    return study.view(), study.trial(which)


def searching(problem: ProblemQuery, goal: Goal) -> str:
    """Return the command that searches a problem with that goal."""
    return command("search", *problem.options, *goal.options)


def fitting(
    storage: BaseStorage, problem: Problem | ProblemQuery, goal: Goal = TIME
) -> list[StoredStudy]:
    """Return the studies with results of a problem and a goal, the one searched last first.

    One of another version of the space is among them only if the goal has its whole name.

    Raises NotFound where there is none.
    """
    query = problem if isinstance(problem, ProblemQuery) else ProblemQuery.of(problem)
    fits, damaged = _with_goal(storage, query, goal)
    usable = [study for study in fits if study.is_usable or study.name == goal.study]
    unread: list[str] = []
    if sound := [study for study in _readable(usable, unread) if study.best()]:
        return sound
    search = searching(query, goal)
    if lost := unread if fits else damaged:
        raise NotFound(f"no study of {query}{goal}, but {lost[0]}")
    if not fits:
        others = [one.name for one in _headers(storage)[0] if query.matches(one.problem)]
        where = file_of(storage) or "this storage"
        there = f" (there is {others[0]!r}, which --study names)" if others else ""
        raise NotFound(
            f"no study of {query}{goal} yet in {where}{there}; run {search}, or take a kernel that "
            f"needs no search: {query.without_search}"
        )
    if not usable:
        raise NotFound(
            f"study '{fits[0].name}' is of space version {fits[0].environment.space_version}, the "
            f"installed one is {space_version(fits[0].problem)}: its times are not of today's "
            f"kernels; run {search} to search again (the old study is kept: name it with --study)"
        )
    but = f": {usable[0].passed_over}" if usable[0].faults else ""
    raise NotFound(f"study '{usable[0].name}' has no measured kernel yet{but}; run {search}")


def _with_goal(
    storage: BaseStorage, query: ProblemQuery, goal: Goal
) -> tuple[list[StoredStudy], list[str]]:
    """Return the studies of a problem and a goal, without their trials; and what is damaged."""
    headers, damaged = _headers(storage)
    return [s for s in headers if s.goal == goal and query.matches(s.problem)], damaged


def must_be_named(storage: BaseStorage, study: str, problem: Problem, goal: Goal) -> bool:
    """Return whether a command that means the study must name it, since others fit as well."""
    try:
        fits, _ = _with_goal(storage, ProblemQuery.of(problem), goal)
    except InvalidInput:  # the storage went away meanwhile
        return True
    usable = [fit for fit in fits if fit.is_usable]
    if any(fit.is_set_apart for fit in usable if fit.name == study):
        return True  # a plain search may come, whose study would be meant without a name
    return [fit.name for fit in _live_first(_plain_first(usable))] != [study]


def _chosen(
    storage: BaseStorage, problem: Problem | ProblemQuery, goal: Goal, near: str | None = None
) -> StoredStudy:
    """Return the only study that fits. Raises as `load_trial`."""
    query = problem if isinstance(problem, ProblemQuery) else ProblemQuery.of(problem)
    there = fitting(storage, query, goal)
    meant = meant_by(goal, there)
    if not meant:
        named = [f"has {goal.study!r} in its name"] if goal.study else []
        named += [f"is of a GPU {goal.gpu!r}"] if goal.gpu else []
        raise NotFound(f"no study of {query}{goal} {' and '.join(named)}; {_name_one(there)}")
    meant = [study for study in meant if _is_on(study, near or "")] or meant
    if query.rows is None:  # the usual rows, which a search has as well, go before others
        meant = [study for study in meant if study.problem == query.problem()] or meant
    if len(meant) > 1:
        raise InvalidInput(f"{len(meant)} studies fit {query}{goal}; {_name_one(meant)}")
    (study,) = meant
    there = [other for other in there if other.problem == study.problem]
    study.is_one_of_several = study.is_set_apart or _live_first(_plain_first(there)) != meant
    return study


def name_of(storage: BaseStorage, named: str) -> str:
    """Return the name of the study of that name, else of the only one with that in its name.

    Raises NotFound where there is none, and InvalidInput where several fit.
    """
    names = [str(study.study_name) for study in _ours(storage)]
    meant = [name for name in names if name == named] or [n for n in names if named and named in n]
    if not meant:
        where = file_of(storage) or "this storage"
        raise NotFound(
            f"no study of {where} has {named!r} in its name; explorer studies lists them"
        )
    if len(meant) > 1:
        told = ", ".join(map(repr, meant))
        raise InvalidInput(f"{len(meant)} studies have {named!r} in their names; name one: {told}")
    return meant[0]


def study_of(storage: BaseStorage, goal: Goal) -> tuple[ProblemQuery, Goal]:
    """Return the problem and the whole goal of the study that a goal names.

    Of several that fit, it is the one with the goal's objectives and accuracy.

    Raises as `name_of`, and NotFound for one that is damaged or of another GPU.
    """
    headers, damaged = _headers(storage)
    fits = meant_by(goal, headers) if goal.study else []
    alike = [study for study in fits if study.goal == goal]
    meant = alike if len(alike) == 1 else fits
    if len(meant) != 1:
        name = name_of(storage, goal.study)
        lost = [fault for fault in damaged if fault.startswith(f"study '{name}'")]
        raise NotFound(lost[0] if lost else f"study '{name}' is of no GPU {goal.gpu!r}")
    return ProblemQuery.of(meant[0].problem), replace(meant[0].goal, study=meant[0].name)


def study_named(storage: BaseStorage, named: str) -> StoredStudy:
    """Return the study of that name. Raises as `study_of` and `load_history`."""
    return _chosen(storage, *study_of(storage, Goal(study=named)))


def open_to_read(
    storage: str | None, query: ProblemQuery | None, goal: Goal
) -> tuple[BaseStorage, ProblemQuery, Goal]:
    """Open a storage; return it with the problem and the goal of the study that is meant.

    Without a problem they are those of the study that the goal names. Raises as `study_of`,
    InvalidInput where neither is given, and NotFound where there is no storage yet.
    """
    if query is None and goal.study:
        opened = open_storage(storage, read_only=True)
        return opened, *study_of(opened, goal)
    query = needed(query)
    return open_storage(storage, read_only=True, command=searching(query, goal)), query, goal


def meant_by(goal: Goal, studies: Sequence[StoredStudy]) -> list[StoredStudy]:
    """Return the study that the goal names, else those whose names and GPUs have what it says.

    Of these, those that were restricted or renamed are left out where there is one of a plain
    search, and replays where there is a live study.
    """
    if named := [study for study in studies if study.name == goal.study]:
        return named
    meant = [study for study in studies if goal.study in study.name and _is_on(study, goal.gpu)]
    return _live_first(_plain_first(meant))


def _name_one(studies: Sequence[StoredStudy]) -> str:
    names = ", ".join(repr(study.name) for study in studies)
    of_several_gpus = len({study.environment.gpu for study in studies}) > 1
    or_gpu = ", or its GPU with --gpu" if of_several_gpus else ""
    return f"name one with --study{or_gpu}: {names}"


def _plain_first(studies: Sequence[StoredStudy]) -> list[StoredStudy]:
    """Leave out studies that are set apart where one of a plain search is of the same place."""
    plain = {study.place for study in studies if not study.is_set_apart}
    return [study for study in studies if not study.is_set_apart or study.place not in plain]


def _live_first(studies: Sequence[StoredStudy]) -> list[StoredStudy]:
    """Leave out replays of a problem, a GPU and a timing mode that a live study is of as well."""
    live = {study.place for study in studies if not study.replayed}
    return [study for study in studies if not study.replayed or study.place not in live]


def _is_on(study: StoredStudy, gpu: str) -> bool:
    """Whether a study is of a GPU, given by its name, a part of that, or an architecture."""
    environment = study.environment
    return gpu.casefold() in environment.gpu.casefold() or gpu == environment.arch


def _short(rejected: Rejected) -> str:
    """Return the rule's name of an invalid config; else the first line of the reason."""
    return rejected.reason.partition(":" if rejected.stage is Stage.INVALID else "\n")[0]
