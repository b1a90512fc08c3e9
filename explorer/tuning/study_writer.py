"""A study in its storage: what is known of a problem's kernels, and where finished trials go."""

import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from math import inf
from pathlib import Path
from secrets import token_hex
from shlex import quote
from typing import Any, NamedTuple

from optuna.distributions import CategoricalDistribution, check_distribution_compatibility
from optuna.exceptions import DuplicatedStudyError
from optuna.storages import BaseStorage
from optuna.study import StudyDirection
from optuna.trial import FrozenTrial, TrialState

from explorer.model.config import Config
from explorer.model.errors import ExplorerError, InvalidInput
from explorer.model.outcome import Environment, Outcome, TrialRecord
from explorer.model.problem import Problem
from explorer.system.plain_data import read_text, read_whole, shown
from explorer.system.user_files import open_regular
from explorer.tuning.contest import Finals
from explorer.tuning.objective import Objectives
from explorer.tuning.proposer import Proposal
from explorer.tuning.storage import (
    FINISHED,
    KNOWN_BEFORE,
    BulkStorage,
    Journal,
    Stored,
    file_of,
    in_one_write,
    keeps_out,
    name_of,
    said_of,
)
from explorer.tuning.study_attributes import (
    NO_VERDICT,
    finals_text,
    finals_to_attributes,
    in_parts,
    note_of,
    passed_over,
    to_attributes,
    to_outcome,
    trial_note,
    trial_of,
    verdict_of,
    verdict_words,
)
from explorer.tuning.study_reader import DamagedStudy, StoredStudy, read_studies

_UNWRITABLE = "the study cannot be written"

_REMEDY = "mend the storage or name another, and run the search again"

_KEPT = f"what finished before is kept: {_REMEDY}"

UNWRITTEN = 1
"""Finished kernels that wait to be stored at most, as hardly more than what is measured is to be
lost by kill -9. The transaction that has the next kernel run stores them as well."""

UNWRITTEN_OF_REPLAYS = 16
"""The same of a replay, whose trials can be had again. It would wait for the disk: 0.6 to 24 ms a
transaction."""

NOTE_VERSION, NOTE_PART = "dashboard:note_ver", "dashboard:note_str:"
"""Where optuna-dashboard keeps the note of a study, in parts."""

METRIC_NAMES = "study:metric_names"
"""Where Optuna keeps the names of a study's values."""


@dataclass(frozen=True, slots=True)
class StudyIdentity:
    """All that is needed to create a study."""

    name: str
    problem: Problem
    objectives: Objectives
    environment: Environment
    seed: int
    distributions: Mapping[str, CategoricalDistribution]

    def opened(self, storage: BaseStorage) -> int:
        """Open the study in a storage, or create it; returns its id."""
        directions = [StudyDirection.MINIMIZE] * self.objectives.number
        try:
            study_id = storage.create_new_study(directions, self.name)
        except DuplicatedStudyError:
            study_id = storage.get_study_id_from_name(self.name)
        first: dict[str, Any] = (
            {} if storage.get_study_user_attrs(study_id) else {"best": NO_VERDICT}
        )
        first |= {"problem": self.problem.as_dict(), "objectives": str(self.objectives)}
        _set(storage, study_id, first, {METRIC_NAMES: self.objectives.metrics})
        return study_id

    def described(self, environment: Environment | None = None) -> dict[str, Any]:
        """Return the attributes that tell of the environment and the seed."""
        environment = environment or self.environment
        told = {"circumstances": environment.as_dict(), "copy_us": environment.copy_us}
        return {**told, "seed": self.seed}


class Heard(NamedTuple):
    """A trial of the study that evaluated a kernel: in an earlier run, or in another process."""

    number: int
    config: Config
    digest: str
    outcome: Outcome


class Entry:
    """A finished trial of this run."""

    def __init__(
        self, config: Config, outcome: Outcome, trial: FrozenTrial, store: Callable[[], None]
    ) -> None:
        self.config, self.outcome, self.trial = config, outcome, trial
        self.digest = str(trial.user_attrs["digest"])
        """Of its code; empty of an illegal config."""
        self.at: Stored | None = None
        self._store = store

    @property
    def number(self) -> int:
        """The trial's number, for which it is stored if it is not; raises what that meets."""
        if self.at is None:
            self._store()
        assert self.at is not None, "else it has raised why not"
        return self.at.number


class Ledger:
    """Opens or creates a study, stores finished trials, and reads those of other processes.

    A kernel that is to be evaluated is a RUNNING trial, by which other processes leave it alone.
    A replay's trials enter finished, since an outcome costs nothing: those that another process was
    the first to store are `doubles`. What the storage does not take is kept in a file, and so is
    what a SQLite file lacks in the end, because it was deleted, replaced or overwritten.
    """

    def __init__(
        self,
        storage: BaseStorage,
        study: StudyIdentity,
        holds: Callable[[Config], bool] = lambda config: True,
    ) -> None:
        """Open the study; `holds` says of a config whether the search could propose it."""
        self.name = study.name
        self._study, self._storage, self._holds = study, storage, holds
        self._unwritten: list[Entry] = []
        self._running: dict[str, FrozenTrial] = {}
        """Our RUNNING trials, by digest."""
        self._stored: dict[str, FrozenTrial] = {}
        """The trials of the study that evaluated a kernel, whoever stored them, by digest."""
        self._ids: dict[int, int] = {}
        """Ids of trials by their numbers."""
        self._own: set[int] = set()
        self._watched: set[int] = set()
        """Ids of the trials that this run stored, and of those that others have RUNNING."""
        self._last_id = -1
        self._heard: list[Heard] = []
        self._doubles: list[Entry] = []
        self._faults: dict[int, str] = {}
        self._files = UnsavedTrials(study, storage)
        self._lost = ""
        """What the storage said when it took no more; empty as long as it does."""
        with said_of(_UNWRITABLE, _KEPT):
            self._study_id = study.opened(storage)

    @property
    def passed_over(self) -> str:
        """A sentence on the trials that cannot be used; empty where there is none."""
        return passed_over(self._faults, self.name)

    # ---------------------------------------------------------------- trials

    def known(self) -> list[Heard]:
        """Return the trials of the study that evaluated a kernel.

        What cannot be read, and a config that the search does not hold, is passed over.
        """
        with said_of(f"study '{self.name}' cannot be read", _REMEDY):
            found = self._storage.get_all_trials(self._study_id, deepcopy=False)
            for name, distribution in found[0].distributions.items() if found else ():
                check_distribution_compatibility(distribution, self._study.distributions[name])
        self._last_id = max((trial._trial_id for trial in found), default=-1)
        return [heard for trial in found for heard in self._read(trial)]

    def run(self, proposal: Proposal) -> bool:
        """Have a kernel RUNNING, unless another process has it so, or has finished it.

        Raises InvalidInput where the storage fails.
        """
        trial = self._trial(proposal, None, datetime.now())
        (at,) = self._put([trial])
        if at.is_new:
            trial._trial_id, trial.number = at.trial_id, at.number
            self._running[proposal.digest] = trial
        return at.is_new

    def add(self, proposal: Proposal, outcome: Outcome, started: datetime) -> Entry:
        """Take a finished trial, COMPLETE or PRUNED, which is stored together with others."""
        trial = self._trial(proposal, outcome, started)
        entry = Entry(proposal.config, outcome, trial, self.flush)
        if ours := self._running.pop(proposal.digest, None):
            trial._trial_id, trial.number = ours._trial_id, ours.number
            entry.at = Stored(trial._trial_id, trial.number)
        self._unwritten.append(entry)
        return entry

    def flush(self, most: int = -1) -> None:
        """Store what is not stored yet if more than `most` of it are kernels that were evaluated.

        Raises InvalidInput where the storage fails; then all that are not stored are kept in a
        file.
        """
        if most < 0 or sum(bool(entry.digest) for entry in self._unwritten) > most:
            self._put([])

    def heard(self) -> list[Heard]:
        """Return what other processes have evaluated since this was last asked."""
        heard, self._heard = self._heard, []
        return heard

    def doubles(self) -> list[Entry]:
        """Return what another process was the first to store, since this was last asked."""
        doubles, self._doubles = self._doubles, []
        return doubles

    def close(self) -> None:
        """Store what finished, and leave no trial of ours RUNNING.

        Raises InvalidInput if the storage did not take all, or lacks some: it says in which files
        these are kept.
        """
        for trial in self._running.values():
            trial.state, trial.datetime_complete = TrialState.FAIL, datetime.now()
        if not self._lost:
            with suppress(ExplorerError):  # which is told below
                self._put(list(self._running.values()))
        self._keep()
        lacking = set()
        if isinstance(self._storage, BulkStorage):
            lacking = self._storage.lacking(self._study_id, self._stored)
        if lacking:
            self._files.keep([self._stored[digest] for digest in lacking])
            self._lost = self._lost or (
                f"storage {name_of(self._storage)} lacks {len(lacking)} trials that were stored in "
                "it: it was deleted, replaced or damaged while it was searched"
            )
        if self._lost:
            raise InvalidInput(f"{self._lost}; {self._files.sentence or _KEPT}")

    def _trial(self, proposal: Proposal, outcome: Outcome | None, started: datetime) -> FrozenTrial:
        study, config = self._study, proposal.config
        told = to_attributes(
            config,
            outcome,
            proposal.digest,
            str(proposal.origin),
            study.problem,
            study.environment.copy_us,
        )
        return trial_of(config, outcome, told, study.objectives, study.distributions, started)

    def _put(self, more: Sequence[FrozenTrial]) -> list[Stored]:
        """Store what is not stored yet and `more`, and read what others have stored since.

        Returns where `more` are. Raises InvalidInput where the storage fails.
        """
        if self._lost:
            raise InvalidInput(f"{self._lost}; {_KEPT}")
        waiting = self._unwritten
        try:
            with said_of(_UNWRITABLE):
                trials = [entry.trial for entry in waiting] + list(more)
                stored = put(self._storage, self._study_id, trials) if trials else []
        except ExplorerError as error:
            self._lost = str(error)
            self._keep()
            raise InvalidInput(f"{error}; {_KEPT}") from None
        self._unwritten = []
        for entry, at in zip(waiting, stored, strict=False):
            entry.at = at
            if at.is_new and entry.digest:
                self._stored[entry.digest] = entry.trial
            elif not at.is_new:
                self._doubles.append(entry)
        for at in stored:
            self._ids[at.number] = at.trial_id
            self._own |= {at.trial_id} if at.is_new else set()
        self._listen()
        return stored[len(waiting) :]

    def _listen(self) -> None:
        """Read what other processes have finished since this was last done."""
        with said_of(f"study '{self.name}' cannot be read", _KEPT):
            changed = _changed(self._storage, self._study_id, self._last_id, self._watched)
            self._last_id = max([self._last_id, *changed])
            for trial_id in changed:
                if trial_id not in self._own:
                    self._heard += self._read(self._storage.get_trial(trial_id))

    def _read(self, trial: FrozenTrial) -> Iterator[Heard]:
        """Yield a trial of another process if it evaluated a kernel and can be read."""
        number = read_whole(trial.number, f"study '{self.name}': the number of a trial")
        self._ids[number] = trial._trial_id
        self._watched.discard(trial._trial_id)
        if trial.state is TrialState.RUNNING:
            self._watched.add(trial._trial_id)
        if trial.state not in FINISHED:
            return
        try:
            outcome = to_outcome(trial.user_attrs, self._study.objectives)
            digest = read_text(trial.user_attrs.get("digest", ""), "digest")
            if outcome is not None and digest:
                config = Config.from_dict(trial.params)
                if not self._holds(config):
                    raise InvalidInput(
                        f"its config {shown(config.to_json(brief=True))} is none of those "
                        "that are searched"
                    )
                self._stored[digest] = trial
                yield Heard(number, config, digest, outcome)
        except InvalidInput as error:
            self._faults[number] = str(error)

    def _keep(self) -> None:
        """Keep in a file what is not stored."""
        if self._unwritten and self._lost:
            self._files.keep([entry.trial for entry in self._unwritten])
            self._unwritten = []

    # ---------------------------------------------------------------- what the study says of itself

    def begin(self, sampler: str = "") -> None:
        """Keep when a run began, the user's sampler, if one proposed kernels, and the environment,
        unless that of finals is kept.
        """
        told = {"searched_at": _now(), **({"sampler": sampler} if sampler else {})}
        with said_of(_UNWRITABLE, _KEPT):
            if finals_text(self._storage.get_study_user_attrs(self._study_id)) is None:
                told |= self._study.described()
            _set(self._storage, self._study_id, told)

    def conclude(
        self,
        finals: Finals,
        environment: Environment,
        records: Sequence[TrialRecord],
        ended: str,
    ) -> bool:
        """Keep the finals of the measured trials, with their environment, and why the search ended.

        Their verdict stands on the trials as well, where a storage can change a finished one, and
        in the notes that a dashboard shows. The finals of another process that knew of more trials
        stay. Returns whether these were kept.
        """
        with said_of(_UNWRITABLE, _KEPT):
            there = self._storage.get_study_system_attrs(self._study_id)
            user = {
                **finals_to_attributes(finals),
                "finals_through": max(self._ids, default=-1),
                "best": verdict_words(finals),
                "ended": ended,
                "searched_at": _now(),
                **self._study.described(environment),
            }
            verdict = {self._ids[number]: of for number, of in verdict_of(finals).items()}
            notes = self._notes(finals, records, there)
            return _set(self._storage, self._study_id, user, notes, verdict)

    def _notes(
        self, finals: Finals, records: Sequence[TrialRecord], there: Mapping[str, Any]
    ) -> dict[str, Any]:
        """Return the notes of the study and of its trials; a trial that has one keeps it."""
        problem, copy_us = self._study.problem, self._study.environment.copy_us
        fastest = min(records, key=lambda trial: trial.outcome.time_us)
        parts = in_parts(note_of(finals, problem, fastest))
        notes: dict[str, Any] = {f"{NOTE_PART}{n}": part for n, part in enumerate(parts)}
        notes[NOTE_VERSION] = there.get(NOTE_VERSION, 0) + 1
        for trial in records:
            place = f"dashboard:{self._ids[trial.number]}:"
            if f"{place}note_ver" not in there:
                notes[f"{place}note_ver"] = 1
                notes[f"{place}note_str:0"] = trial_note(trial, problem, copy_us)
        return notes


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="microseconds")


# ------------------------------------------------------------------ what all storages can do
# By Optuna's public methods; a database has many rows written in one transaction instead.


def put(storage: BaseStorage, study_id: int, trials: Sequence[FrozenTrial]) -> list[Stored]:
    """Store trials, as `BulkStorage.put` says; raises what the storage raises."""
    if isinstance(storage, BulkStorage):
        return storage.put(study_id, trials)
    return [_put_one(storage, study_id, trial) for trial in trials]


def _put_one(storage: BaseStorage, study_id: int, trial: FrozenTrial) -> Stored:
    if trial._trial_id >= 0:
        _finish(storage, trial)
        return Stored(trial._trial_id, trial.number)
    if there := _same_code(storage, study_id, trial):
        return there
    trial_id = storage.create_new_trial(study_id, trial)
    stored = Stored(trial_id, storage.get_trial_number_from_id(trial_id))
    first = _same_code(storage, study_id, trial, stored.number)
    if first is None or trial.state is not TrialState.RUNNING:
        return stored
    storage.set_trial_state_values(trial_id, TrialState.FAIL)  # another process was faster
    return first


def _same_code(
    storage: BaseStorage, study_id: int, trial: FrozenTrial, before: float = inf
) -> Stored | None:
    """Return the trial before that number that keeps out a new one with its digest."""
    digest = trial.user_attrs.get("digest")
    for other in storage.get_all_trials(study_id, deepcopy=False) if digest else ():
        same = other.number < before and other.user_attrs.get("digest") == digest
        if same and keeps_out(other.state, other.datetime_start, trial):
            return Stored(other._trial_id, other.number, False)
    return None


def _finish(storage: BaseStorage, trial: FrozenTrial) -> None:
    """Give our RUNNING trial its outcome, unless it has one."""
    if storage.get_trial(trial._trial_id).state is TrialState.RUNNING:
        with in_one_write(storage):
            for key in trial.user_attrs.keys() - KNOWN_BEFORE:
                storage.set_trial_user_attr(trial._trial_id, key, trial.user_attrs[key])
            storage.set_trial_state_values(trial._trial_id, trial.state, trial.values)


def _changed(storage: BaseStorage, study_id: int, after: int, watched: set[int]) -> list[int]:
    """Return the ids of trials that came after an id, and of those watched that have ended."""
    if isinstance(storage, BulkStorage):
        return storage.changed(study_id, after, watched)
    return [
        trial._trial_id
        for trial in storage.get_all_trials(study_id, deepcopy=False)
        if trial._trial_id > after
        or (trial._trial_id in watched and trial.state is not TrialState.RUNNING)
    ]


def _set(
    storage: BaseStorage,
    study_id: int,
    user: Mapping[str, Any],
    system: Mapping[str, Any] | None = None,
    trials: Mapping[int, Mapping[str, Any]] | None = None,
) -> bool:
    """Set attributes, as `BulkStorage.put_attributes` says; of finished trials there alone."""
    if isinstance(storage, BulkStorage):
        return storage.put_attributes(study_id, user, system or {}, trials or {})
    through = storage.get_study_user_attrs(study_id).get("finals_through", -1)
    if user.get("finals_through", through) < through:
        return False
    with in_one_write(storage):
        for key, value in user.items():
            storage.set_study_user_attr(study_id, key, value)
        for key, value in (system or {}).items():
            storage.set_study_system_attr(study_id, key, value)
    return True


# ------------------------------------------------------------------ trials that were not stored


class UnsavedTrials:
    """Keeps finished trials that a storage did not take, each time in a new journal of Optuna's.

    It lies beside the database, or in the folder for temporary files where that takes nothing.
    """

    def __init__(self, study: StudyIdentity, storage: BaseStorage) -> None:
        self._study = study
        self._folder = (file_of(storage) or Path("x")).parent
        self.paths: list[Path] = []
        self.number = self.lost = 0
        """Trials that are kept, and that could not be."""

    @property
    def sentence(self) -> str:
        """Where they are and what to do; empty where there was nothing to keep."""
        lost = f"{self.lost} lost" if self.lost else ""
        if not self.paths:
            return (
                f"none is kept, {lost}: mend the storage, and run the search again" if lost else ""
            )
        trials = "1 finished trial is" if self.number == 1 else f"{self.number} finished trials are"
        files = [quote(str(path)) for path in self.paths]
        return (
            f"{trials} kept in {' and '.join(files)}{lost and f', {lost}'}: once the storage can "
            f"be written, run explorer merge {' '.join(files)} with the --storage of the search, "
            "and then the same search again"
        )

    def keep(self, trials: Sequence[FrozenTrial]) -> None:
        """Keep finished trials in a new file; count those for which there is no place."""
        name = f"unsaved-trials-{token_hex(4)}.journal"
        for folder in (self._folder, None):
            path = self._folder / name
            try:
                path = (folder or Path(tempfile.gettempdir())) / name
                journal = Journal(path)
                study_id = self._study.opened(journal)
                _set(journal, study_id, self._study.described())
                for trial in trials:
                    journal.create_new_trial(study_id, trial)
            except Exception:  # whatever a full disk has Optuna raise
                with suppress(OSError):
                    path.unlink()
            else:
                self.paths.append(path)
                self.number += len(trials)
                return
        self.lost += len(trials)


class Merged(NamedTuple):
    """What came of the trials of a study."""

    study: str
    added: int
    known: int
    """Trials that the study had already."""


def merge_trials(storage: BaseStorage, file: Path) -> list[Merged]:
    """Store the trials of a journal, such as a search keeps; again, it adds none.

    Raises InvalidInput where there are none, where the study of that name is of something else, and
    where a storage fails.
    """
    remedy = "name a file that explorer search wrote when it could not write its storage"
    with open_regular(file, most_bytes=sys.maxsize, remedy=remedy):
        pass
    with said_of(f"{file} is no journal of Optuna", remedy):
        kept = Journal(file)
    studies = list(read_studies(kept))
    for study in studies:
        if isinstance(study, DamagedStudy):
            raise InvalidInput(f"{file} cannot be used: {study}")
    if not studies:
        raise InvalidInput(f"{file} has no study; {remedy}")
    return [_merged(storage, kept, study) for study in studies if isinstance(study, StoredStudy)]


def _merged(storage: BaseStorage, kept: Journal, study: StoredStudy) -> Merged:
    """Store the trials of a study that the storage's study of that name lacks."""
    source = kept.get_study_id_from_name(study.name)
    read = [trial for trial in kept.get_all_trials(source) if trial.number not in study.faults]
    trials = {_kernel(trial): trial for trial in read if trial.state in FINISHED}
    with said_of(_UNWRITABLE, _REMEDY):
        _check_is_same(storage, study)
        identity = StudyIdentity(
            study.name,
            study.problem,
            study.objectives,
            study.kept_environment,
            kept.get_study_user_attrs(source).get("seed", 0),
            {},
        )
        study_id = identity.opened(storage)
        there = storage.get_all_trials(study_id, deepcopy=False)
        for trial in there:
            if trial.state in FINISHED:
                trials.pop(_kernel(trial), None)
        for trial in trials.values():
            trial._trial_id = -1
        added = sum(at.is_new for at in put(storage, study_id, list(trials.values())))
        if added:
            told = {} if there else identity.described()
            _set(storage, study_id, {**told, "searched_at": _now()})
    return Merged(study.name, added, len(read) - added)


def _check_is_same(storage: BaseStorage, study: StoredStudy) -> None:
    """Raise InvalidInput where the storage has a study of that name for something else."""
    for found in storage.get_all_studies():
        problem = found.user_attrs.get("problem", study.problem.as_dict())
        same = problem == study.problem.as_dict()
        if found.study_name == study.name and not (
            same and len(found.directions) == study.objectives.number
        ):
            raise InvalidInput(
                f"study '{study.name}' of the storage is of another problem or has other "
                "objectives; name another storage"
            )


def _kernel(trial: FrozenTrial) -> str:
    """Return what two trials of the same have in common: the digest, or an illegal config."""
    return str(trial.user_attrs.get("digest") or sorted(trial.params.items()))
