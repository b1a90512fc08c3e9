"""A study as it lies in a storage: read, not written."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from optuna.storages import BaseStorage
from optuna.trial import FrozenTrial

from explorer.circumstances import Circumstances
from explorer.config import Config
from explorer.evaluate.space_version import space_version
from explorer.outcome import Measured, Rejected
from explorer.problem import Problem
from explorer.search.finals_json import finals_from_json
from explorer.search.objectives import Objectives
from explorer.search.results import Finals, StudySummary, TrialRecord
from explorer.search.study_name import REPLAY_SUFFIX
from explorer.search.trial_attributes import to_outcome


@dataclass(frozen=True)
class StoredStudy:
    """A study's attributes and finished trials, by number."""

    name: str
    problem: Problem
    attributes: dict[str, Any]
    trials: list[FrozenTrial]

    @property
    def circumstances(self) -> Circumstances:
        """Of the run that held the finals, with the copy of the finals; else of the latest."""
        kept = Circumstances.from_dict(self.attributes["circumstances"])
        return kept if self.finals is None else replace(kept, copy_us=self.finals.copy_us)

    @property
    def replayed(self) -> bool:
        """Whether its times come from a recording."""
        return self.name.endswith(REPLAY_SUFFIX)

    @property
    def objectives(self) -> Objectives:
        """What it minimises."""
        return Objectives(self.attributes.get("objectives", Objectives.TIME))

    @property
    def is_current(self) -> bool:
        """Whether the installed space and templates are the study's."""
        return self.circumstances.space_version == space_version()

    @property
    def searched_at(self) -> str:
        """When its latest run began or ended, UTC; text that sorts."""
        return str(self.attributes.get("searched_at", ""))

    @cached_property
    def finals(self) -> Finals | None:
        """Of the latest run that came to its end."""
        text = self.attributes.get("finals")
        return None if text is None else finals_from_json(text)

    def measured(self) -> list[TrialRecord]:
        """The trials that measured a kernel."""
        outcomes = ((trial, to_outcome(trial.user_attrs)) for trial in self.trials)
        return [
            TrialRecord(trial.number, Config.from_dict(trial.params), outcome)
            for trial, outcome in outcomes
            if isinstance(outcome, Measured)
        ]

    def rejected(self) -> list[Rejected]:
        """The outcomes of the trials that measured none."""
        outcomes = (to_outcome(trial.user_attrs) for trial in self.trials)
        return [outcome for outcome in outcomes if isinstance(outcome, Rejected)]

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
            trials=len(self.trials),
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


def stored_studies(storage: BaseStorage) -> Iterator[StoredStudy]:
    """This program's studies in a storage; others' studies are passed over."""
    for study in storage.get_all_studies():
        attributes = study.user_attrs
        if "problem" in attributes and "circumstances" in attributes:
            study_id = storage.get_study_id_from_name(study.study_name)
            trials = storage.get_all_trials(study_id, deepcopy=False)
            yield StoredStudy(study.study_name, _problem(attributes["problem"]), attributes, trials)


def _problem(values: dict[str, Any]) -> Problem:
    return Problem.from_dict(values)
