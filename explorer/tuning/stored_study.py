"""A study as it lies in a storage: read and checked, not written."""

from collections.abc import Iterator
from dataclasses import dataclass, replace

from optuna.storages import BaseStorage
from optuna.study._frozen import FrozenStudy
from optuna.trial import FrozenTrial

from explorer.circumstances import Circumstances
from explorer.config import Config
from explorer.errors import InvalidInput
from explorer.evaluate.space_version import space_version
from explorer.outcome import Measured, Outcome, Rejected
from explorer.plain_data import read_text, read_whole
from explorer.problem import Problem
from explorer.tuning.finals_json import finals_from_json
from explorer.tuning.objectives import Objectives
from explorer.tuning.results import Finals, StudySummary, TrialRecord
from explorer.tuning.storage import said_of
from explorer.tuning.study_name import REPLAY_SUFFIX
from explorer.tuning.trial_attributes import passed_over, to_outcome

_REMEDY = "restore a copy of the storage, or name another with --storage"


@dataclass(frozen=True)
class StoredStudy:
    """A study's attributes and finished trials, by number."""

    name: str
    problem: Problem
    kept_circumstances: Circumstances
    objectives: Objectives
    """What it minimises."""
    searched_at: str
    """When its latest run began or ended, UTC; text that sorts."""
    finals: Finals | None
    """Of the latest run that came to its end."""
    trials: dict[int, TrialRecord | Rejected | None]
    """By number: what was measured, what was rejected, and None for what is not finished."""
    faults: dict[int, str]
    """What is wrong with the trials that cannot be read, by number; they are passed over."""

    @property
    def circumstances(self) -> Circumstances:
        """Of the run that held the finals, with the copy of the finals; else of the latest."""
        kept = self.kept_circumstances
        return kept if self.finals is None else replace(kept, copy_us=self.finals.copy_us)

    @property
    def replayed(self) -> bool:
        """Whether its times come from a recording."""
        return self.name.endswith(REPLAY_SUFFIX)

    @property
    def is_current(self) -> bool:
        """Whether the installed space and templates are the study's."""
        return self.circumstances.space_version == space_version()

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
        circumstances, best = self.circumstances, self.best()
        best_us = best.outcome.time_us if best else None
        return StudySummary(
            name=self.name,
            problem=self.problem,
            gpu=circumstances.gpu,
            timing=circumstances.timing,
            space_version=circumstances.space_version,
            is_current=self.is_current,
            trials=len(self.trials) + len(self.faults),
            measured=len(self.measured()),
            best_us=best_us if self.finals is None else self.finals.winner.time_us,
            copy_us=circumstances.copy_us,
            date=circumstances.date,
            replayed=self.replayed,
            accuracy=circumstances.accuracy,
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
        return f"study '{self.name}' is damaged: {self.fault}; {_REMEDY}"


def stored_studies(storage: BaseStorage) -> Iterator[StoredStudy]:
    """This program's studies in a storage that can be read; others' studies are passed over."""
    return (study for study in read_studies(storage) if isinstance(study, StoredStudy))


def read_studies(storage: BaseStorage) -> Iterator[StoredStudy | DamagedStudy]:
    """This program's studies in a storage; raises InvalidInput where it cannot be read at all."""
    with said_of("the studies of the storage cannot be read", _REMEDY):
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
    finals = attributes.get("finals")
    trials: dict[int, TrialRecord | Rejected | None] = {}
    faults: dict[int, str] = {}
    for trial in found:
        number = read_whole(trial.number, "the number of a trial")
        try:
            trials[number] = _read_trial(trial, objectives)
        except InvalidInput as error:
            faults[number] = str(error)
    return StoredStudy(
        name=read_text(study.study_name, "its name"),
        problem=Problem.from_dict(attributes["problem"]),
        kept_circumstances=Circumstances.from_dict(attributes["circumstances"]),
        objectives=objectives,
        searched_at=read_text(attributes.get("searched_at", ""), "searched_at"),
        finals=None if finals is None else finals_from_json(finals, objectives),
        trials=trials,
        faults=faults,
    )


def _read_trial(trial: FrozenTrial, objectives: Objectives) -> TrialRecord | Rejected | None:
    outcome: Outcome | None = to_outcome(trial.user_attrs, objectives)
    if isinstance(outcome, Measured):
        return TrialRecord(trial.number, Config.from_dict(trial.params), outcome)
    return outcome
