"""A study in its storage: what is known of a problem's kernels, and where finished trials go."""

import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from secrets import token_hex
from shlex import quote
from typing import NamedTuple

from optuna.distributions import check_distribution_compatibility
from optuna.exceptions import DuplicatedStudyError
from optuna.storages import BaseStorage
from optuna.study import StudyDirection
from optuna.trial import FrozenTrial, TrialState

from explorer.model.config import Config
from explorer.model.errors import ExplorerError, InvalidInput
from explorer.model.outcome import Environment, Outcome, TrialRecord
from explorer.system.plain_data import read_text, read_whole, shown
from explorer.system.user_files import open_regular
from explorer.tuning.bulk_storage import FINISHED, BulkStorage, Stored
from explorer.tuning.contest import Finals
from explorer.tuning.proposer import Proposal
from explorer.tuning.storage import JOURNAL_BEGINS, LOCKED, Journal, bulk, file_of, one_sentence
from explorer.tuning.study_attributes import (
    StudyIdentity,
    finals_text,
    finals_to_attributes,
    notes_of,
    passed_over,
    to_outcome,
    verdict_of,
)
from explorer.tuning.study_reader import DamagedStudy, StoredStudy, read_studies

_UNWRITABLE = "the study cannot be written"

_REMEDY = "mend the storage or name another, and run the search again"

_KEPT = f"what finished before is kept: {_REMEDY}"

UNWRITTEN = 1
"""Finished kernels that wait to be stored at most, as hardly more than what is measured is to be
lost by kill -9. The transaction that has the next kernel run stores them as well."""


@dataclass(eq=False, slots=True)
class Known:
    """A kernel of the study that was evaluated: in this run, an earlier one, or another process."""

    config: Config
    digest: str
    """Of its code; empty of an illegal config."""
    outcome: Outcome
    trial: FrozenTrial
    """Its number is negative until it is stored."""

    @property
    def number(self) -> int:
        """The number of its trial."""
        return self.trial.number


def open_study(storage: BaseStorage, study: StudyIdentity) -> int:
    """Open a study in a storage, or create it; returns its id. Raises what the storage raises."""
    directions = [StudyDirection.MINIMIZE] * study.objectives.number
    try:
        study_id = storage.create_new_study(directions, study.name)
    except DuplicatedStudyError:
        study_id = storage.get_study_id_from_name(study.name)
    existing = storage.get_study_user_attrs(study_id)
    first = {key: value for key, value in study.first_attributes.items() if key not in existing}
    metrics = {"study:metric_names": study.objectives.metrics}  # where Optuna keeps them
    bulk(storage).put_attributes(study_id, first, metrics, {})
    return study_id


class Ledger:
    """Opens or creates a study, stores finished trials, and reads those of other processes.

    A kernel that is to be evaluated is a RUNNING trial, by which other processes leave it alone.
    What the storage does not take is kept in a file, and so is what a SQLite file lacks in the end,
    because it was deleted, replaced or overwritten.
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
        self._bulk = bulk(storage)
        self._unwritten: list[Known] = []
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
        self._heard: list[Known] = []
        self._faults: dict[int, str] = {}
        self._unsaved = UnsavedTrials(study, storage)
        self._lost = ""
        """What the storage said when it took no more; empty as long as it does."""
        with one_sentence(_UNWRITABLE, _KEPT):
            self._study_id = open_study(storage, study)

    @property
    def passed_over(self) -> str:
        """A sentence on the trials that cannot be used; empty where there is none."""
        return passed_over(self._faults, self.name)

    def known(self) -> list[Known]:
        """Return the trials of the study that evaluated a kernel.

        What cannot be read, and a config that the search does not hold, is passed over.
        """
        with one_sentence(f"study '{self.name}' cannot be read", _REMEDY):
            trials = self._storage.get_all_trials(self._study_id, deepcopy=False)
            for name, distribution in trials[0].distributions.items() if trials else ():
                check_distribution_compatibility(distribution, self._study.distributions[name])
        self._last_id = max((trial._trial_id for trial in trials), default=-1)
        return [known for trial in trials for known in self._read(trial)]

    def run(self, proposals: Sequence[Proposal]) -> list[bool]:
        """Have kernels RUNNING, but for those that another process has so, or has finished.

        Returns which of them are. Raises InvalidInput where the storage fails.
        """
        trials = [self._trial(one, None, datetime.now()) for one in proposals]
        return [at.is_new for at in self._put(trials)]

    def add(self, proposal: Proposal, outcome: Outcome, started: datetime) -> Known:
        """Take a finished trial, COMPLETE or PRUNED, which is stored together with others."""
        trial = self._trial(proposal, outcome, started)
        if ours := self._running.pop(proposal.digest, None):
            trial._trial_id, trial.number = ours._trial_id, ours.number
        self._unwritten.append(Known(proposal.config, proposal.digest, outcome, trial))
        return self._unwritten[-1]

    def flush(self, most: int = -1) -> None:
        """Store what is not stored yet if more than `most` of it are kernels that were evaluated.

        Raises InvalidInput where the storage fails; then all that are not stored are kept in a
        file.
        """
        if most < 0 or sum(bool(known.digest) for known in self._unwritten) > most:
            self._put([])

    def heard(self) -> list[Known]:
        """Return what other processes have evaluated since this was last asked."""
        heard, self._heard = self._heard, []
        return heard

    def close(self) -> None:
        """Store what finished, and leave no trial of ours RUNNING.

        Raises InvalidInput if the storage did not take all, or lacks some: it says in which files
        these are kept.
        """
        for trial in self._running.values():
            trial.state, trial.datetime_complete = TrialState.FAIL, datetime.now()
        with suppress(ExplorerError):  # which is raised below
            self._put(list(self._running.values()))
        self._unsaved.keep([known.trial for known in self._unwritten])
        if lacking := self._lacking():
            self._unsaved.keep(lacking)
            self._lost = self._lost or (
                f"storage {file_of(self._storage)} lacks {len(lacking)} trials that were stored in "
                "it: it was deleted, replaced or damaged while it was searched"
            )
        if self._lost:
            raise InvalidInput(f"{self._lost}; {self._unsaved.sentence or _KEPT}")

    def _lacking(self) -> list[FrozenTrial]:
        """Return the stored trials that a SQLite file lacks by now."""
        path = file_of(self._storage)
        if path is None or not isinstance(self._storage, BulkStorage):
            return []
        digests: set[str] = set()
        try:
            with one_sentence(""):
                digests = self._storage.digests(self._study_id) if path.exists() else digests
        except InvalidInput as error:
            digests = set(self._stored) if LOCKED in str(error) else digests
        return [trial for digest, trial in self._stored.items() if digest not in digests]

    def _trial(self, proposal: Proposal, outcome: Outcome | None, started: datetime) -> FrozenTrial:
        origin = str(proposal.origin)
        return self._study.trial(proposal.config, outcome, proposal.digest, origin, started)

    def _put(self, more: Sequence[FrozenTrial]) -> list[Stored]:
        """Store what is not stored yet and `more`, and read what others have stored since.

        Returns where `more` are. Raises InvalidInput where the storage fails.
        """
        if self._lost:
            raise InvalidInput(f"{self._lost}; {_KEPT}")
        waiting = self._unwritten
        trials = [known.trial for known in waiting] + list(more)
        try:
            with one_sentence(_UNWRITABLE):
                stored = self._bulk.put(self._study_id, trials) if trials else []
        except ExplorerError as error:
            self._lost, self._unwritten = str(error), []
            self._unsaved.keep([known.trial for known in waiting])
            raise InvalidInput(f"{error}; {_KEPT}") from None
        self._unwritten = []
        for trial, at in zip(trials, stored, strict=True):
            trial._trial_id, trial.number = at.trial_id, at.number
            self._ids[at.number] = at.trial_id
            self._own |= {at.trial_id} if at.is_new else set()
            if trial.state is TrialState.RUNNING and at.is_new:
                self._running[trial.user_attrs["digest"]] = trial
        self._stored |= {known.digest: known.trial for known in waiting if known.digest}
        self._listen()
        return stored[len(waiting) :]

    def _listen(self) -> None:
        """Read what other processes have finished since this was last done."""
        with one_sentence(f"study '{self.name}' cannot be read", _KEPT):
            changed = self._bulk.changed(self._study_id, self._last_id, self._watched)
            self._last_id = max([self._last_id, *changed])
            for trial_id in changed:
                if trial_id not in self._own:
                    self._heard += self._read(self._storage.get_trial(trial_id))

    def _read(self, trial: FrozenTrial) -> Iterator[Known]:
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
                yield Known(config, digest, outcome, trial)
        except InvalidInput as error:
            self._faults[number] = str(error)

    def begin(self, sampler: str = "") -> None:
        """Keep when a run began, the user's sampler, if one proposed kernels, and the environment,
        unless that of finals is kept.
        """
        attributes = {"searched_at": _now(), **({"sampler": sampler} if sampler else {})}
        with one_sentence(_UNWRITABLE, _KEPT):
            if finals_text(self._storage.get_study_user_attrs(self._study_id)) is None:
                attributes |= self._study.described()
            self._bulk.put_attributes(self._study_id, attributes, {}, {})

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
        through = {"finals_through": max(self._ids, default=-1)}
        ending = {**through, "ended": ended, "searched_at": _now()}
        user = {**finals_to_attributes(finals), **ending, **self._study.described(environment)}
        verdict = {self._ids[number]: of for number, of in verdict_of(finals).items()}
        with one_sentence(_UNWRITABLE, _KEPT):
            existing = self._storage.get_study_system_attrs(self._study_id)
            notes = notes_of(finals, self._study, records, self._ids, existing)
            return self._bulk.put_attributes(self._study_id, user, notes, verdict)


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="microseconds")


# ------------------------------------------------------------------ trials that were not stored


class UnsavedTrials:
    """Keeps finished trials that a storage did not take, each time in a new journal of Optuna's.

    It lies beside the database, or in the folder for temporary files where that takes nothing.
    """

    def __init__(self, study: StudyIdentity, storage: BaseStorage) -> None:
        self._study = study
        self._folder = (file_of(storage) or Path("x")).parent
        self._files: list[str] = []
        self._number = self._lost = 0
        """Trials that are kept, and that could not be."""

    @property
    def sentence(self) -> str:
        """Where they are and what to do; empty where there was nothing to keep."""
        lost = f", {self._lost} lost" if self._lost else ""
        if not self._files:
            return f"none is kept{lost}: {_REMEDY}" if lost else ""
        trials = (
            "1 finished trial is" if self._number == 1 else f"{self._number} finished trials are"
        )
        return (
            f"{trials} kept in {' and '.join(self._files)}{lost}: once the storage can be written, "
            f"run explorer merge {' '.join(self._files)} with the --storage of the search, and "
            "then the same search again"
        )

    def keep(self, trials: Sequence[FrozenTrial]) -> None:
        """Keep finished trials in a new file; count those for which there is no place."""
        name = f"unsaved-trials-{token_hex(4)}.journal"
        for folder in (self._folder, None) if trials else ():
            path = self._folder / name
            try:
                path = (folder or Path(tempfile.gettempdir())) / name
                journal = Journal(path)
                study_id = open_study(journal, self._study)
                bulk(journal).put_attributes(study_id, self._study.described(), {}, {})
                for trial in trials:
                    journal.create_new_trial(study_id, trial)
            except Exception:  # whatever a full disk has Optuna raise
                with suppress(OSError):
                    path.unlink()
            else:
                self._files.append(quote(str(path)))
                self._number += len(trials)
                return
        self._lost += len(trials)


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
    with open_regular(file, most_bytes=sys.maxsize, remedy=remedy) as opened:
        if not opened.read(len(JOURNAL_BEGINS)) == JOURNAL_BEGINS:
            raise InvalidInput(f"{file} is no journal of Optuna; {remedy}")
    with one_sentence(f"{file} is no journal of Optuna", remedy):
        journal = Journal(file)
    studies = list(read_studies(journal))
    for study in studies:
        if isinstance(study, DamagedStudy):
            raise InvalidInput(f"{file} cannot be used: {study}")
    if not studies:
        raise InvalidInput(f"{file} has no study; {remedy}")
    return [_merged(storage, journal, study) for study in studies if isinstance(study, StoredStudy)]


def _merged(storage: BaseStorage, journal: Journal, study: StoredStudy) -> Merged:
    """Store the trials of a study that the storage's study of that name lacks."""
    source = journal.get_study_id_from_name(study.name)
    read = [trial for trial in journal.get_all_trials(source) if trial.number not in study.faults]
    finished = [trial for trial in read if trial.state in FINISHED]
    trials = {_kernel(trial): trial for trial in finished}
    seed = journal.get_study_user_attrs(source).get("seed", 0)
    identity = StudyIdentity(
        study.name, study.problem, study.objectives, study.kept_environment, seed, {}
    )
    with one_sentence(_UNWRITABLE, _REMEDY):
        _check_is_same(storage, study)
        study_id = open_study(storage, identity)
        existing = storage.get_all_trials(study_id, deepcopy=False)
        for trial in existing:
            if trial.state in FINISHED:
                trials.pop(_kernel(trial), None)
        for trial in trials.values():
            trial._trial_id = -1
        added = sum(at.is_new for at in bulk(storage).put(study_id, list(trials.values())))
        if added:
            attributes = {} if existing else identity.described()
            bulk(storage).put_attributes(study_id, {**attributes, "searched_at": _now()}, {}, {})
    return Merged(study.name, added, len(finished) - added)


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
