"""A study in its storage: what is known of a problem's kernels, and where finished trials go."""

import tempfile
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import compress
from pathlib import Path
from secrets import token_hex
from shlex import quote
from typing import NamedTuple

from optuna.study import create_study
from optuna.trial import FrozenTrial, TrialState

from explorer.model.config import Config
from explorer.model.errors import ExplorerError, InvalidInput
from explorer.model.outcome import Environment, Measured, Outcome, Rejected, TrialRecord
from explorer.model.problem import Problem
from explorer.system.plain_data import shown
from explorer.tuning.bulk_storage import FINISHED, BulkStorage
from explorer.tuning.contest import Finals
from explorer.tuning.objective import REPLAY_SUFFIX
from explorer.tuning.proposer import Proposal
from explorer.tuning.results import Attempt
from explorer.tuning.storage import LOCKED, Journal, Storage, file_of, one_sentence, open_journal
from explorer.tuning.study_attributes import (
    StudyIdentity,
    finals_text,
    finals_to_attributes,
    notes_of,
    passed_over,
    read_trials,
    verdict_of,
)
from explorer.tuning.study_reader import StoredStudy, name_of, read_studies

_UNWRITABLE = "the study cannot be written"

_REMEDY = "mend the storage or name another, and run the search again"

_KEPT = f"what finished before is kept: {_REMEDY}"

MAX_NAME = 512
"""Characters of a study's name: as many as Optuna's tables hold."""

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


def open_study(storage: Storage, study: StudyIdentity) -> int:
    """Open a study in a storage, or create it; returns its id.

    Raises InvalidInput where the storage has a study of that name for something else, and what the
    storage raises.
    """
    number = study.objectives.number
    opened = create_study(
        storage=storage,
        study_name=study.name,
        directions=["minimize"] * number,
        load_if_exists=True,
    )
    existing = opened.user_attrs
    problem = Problem.from_dict(existing.get("problem", study.problem.as_dict()))
    if problem != study.problem or len(opened.directions) != number:
        raise InvalidInput(
            f"study '{study.name}' of the storage is of another problem or has other objectives; "
            "name another storage"
        )
    first = {"best": "not known yet: no finals were held", "problem": study.problem.as_dict()}
    first |= {"objectives": str(study.objectives)}
    first |= {"where": {name: [*values] for name, values in study.where.items()}}
    first = {key: value for key, value in first.items() if key not in existing}
    metrics = {"study:metric_names": study.objectives.metrics}  # where Optuna keeps them
    storage.put_attributes(opened._study_id, first, metrics, {})
    return opened._study_id


def _begin(storage: Storage, study_id: int, study: StudyIdentity, sampler: str = "") -> None:
    """Keep when a run began, the user's sampler, if one proposed kernels, and the environment.

    The environment of finals stays.
    """
    attributes = {"searched_at": _now(), **({"sampler": sampler} if sampler else {})}
    if finals_text(storage.get_study_user_attrs(study_id)) is None:
        attributes |= study.described()
    storage.put_attributes(study_id, attributes, {}, {})


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="microseconds")


class Ledger:
    """Opens or creates a study, stores finished trials, and reads those of other processes.

    A kernel that is to be evaluated is a RUNNING trial, by which other processes leave it alone.
    What the storage does not take is kept in a file, and so is what a SQLite file lacks in the end,
    because it was deleted, replaced or overwritten.
    """

    def __init__(
        self,
        storage: Storage,
        study: StudyIdentity,
        holds: Callable[[Config], bool],
        sampler: str = "",
        *,
        is_alone: bool = False,
    ) -> None:
        """Open the study; `holds` says of a config whether the search could propose it.

        A `sampler` of the user's is kept by its name. Where no other process searches the study, as
        beside the coordinator of a cluster, `is_alone`: then no trial is RUNNING, which one that is
        killed would leave for ten minutes.
        """
        self.name, self._is_alone = study.name, is_alone
        self._study, self._storage, self._holds = study, storage, holds
        self.kernels: list[Known] = []
        """All kernels of the study that were evaluated, by this run, earlier ones or others."""
        self._unwritten: list[Known] = []
        self._running: dict[str, FrozenTrial] = {}
        """Our RUNNING trials, by digest."""
        self._seen: set[int] = set()
        """Ids of the trials that this run stored or has read."""
        self._faults: dict[int, str] = {}
        self._lost = ""
        """What the storage said when it took no more; empty as long as it does."""
        with one_sentence(_UNWRITABLE, _KEPT):
            self._study_id = open_study(storage, study)
            _begin(storage, self._study_id, study, sampler)

    @property
    def records(self) -> list[TrialRecord]:
        """The kernels that were measured."""
        found = ((known.trial.number, known.config, known.outcome) for known in self.kernels)
        return [TrialRecord(n, c, o) for n, c, o in found if isinstance(o, Measured)]

    @property
    def attempts(self) -> tuple[Attempt, ...]:
        """The kernels that were evaluated, by the numbers of their trials."""
        found = [
            Attempt(
                number := known.trial.number,
                known.outcome
                if isinstance(known.outcome, Rejected)
                else TrialRecord(number, known.config, known.outcome),
                known.trial.datetime_start,
                known.trial.duration.total_seconds() if known.trial.duration else 0.0,
            )
            for known in self.kernels
        ]
        return tuple(sorted(found, key=lambda attempt: attempt.number))

    @property
    def passed_over(self) -> str:
        """A sentence on the trials that cannot be used; empty where there is none."""
        return passed_over(self._faults, self.name)

    def heard(self) -> list[Known]:
        """Return what earlier runs and other processes have evaluated since this was last asked.

        What cannot be read, and a config that the search does not hold, is passed over.
        """
        storage, study_id = self._storage, self._study_id
        with one_sentence(f"study '{self.name}' cannot be read", _REMEDY):
            if self._seen:
                new = storage.finished(study_id) - self._seen
                trials = [storage.get_trial(trial_id) for trial_id in sorted(new)]
            else:
                trials = storage.get_all_trials(study_id, deepcopy=False, states=FINISHED)
        return self._read(trials)

    def run(self, proposals: Sequence[Proposal]) -> list[bool]:
        """Have kernels RUNNING, but for those that another process has so, or has finished.

        Returns which of them are. Raises InvalidInput where the storage fails.
        """
        if self._is_alone:
            return [True] * len(proposals)
        return self._put([self._trial(one, None, datetime.now()) for one in proposals])

    def add(self, proposal: Proposal, outcome: Outcome, started: datetime) -> Known:
        """Take a finished trial, COMPLETE or PRUNED, which is stored together with others."""
        trial = self._trial(proposal, outcome, started)
        if ours := self._running.pop(proposal.digest, None):
            trial.number = ours.number
        known = Known(proposal.config, proposal.digest, outcome, trial)
        self._unwritten.append(known)
        self.kernels += [known] if known.digest else []
        return known

    def flush(self, most: int = -1) -> None:
        """Store what is not stored yet if more than `most` of it are kernels that were evaluated.

        Raises InvalidInput where the storage fails; then `close` keeps all that are not stored.
        """
        if most < 0 or sum(bool(known.digest) for known in self._unwritten) > most:
            self._put([])

    def close(self) -> None:
        """Store what finished, and leave no trial of ours RUNNING.

        Raises InvalidInput if the storage did not take all, or lacks some: it says in which file
        these are kept.
        """
        for trial in self._running.values():
            trial.state, trial.datetime_complete = TrialState.FAIL, datetime.now()
        with suppress(ExplorerError):  # which is raised below
            self._put([] if self._lost else list(self._running.values()))
        lacking = self._lacking()
        if lacking and not self._lost:
            self._lost = (
                f"storage {file_of(self._storage)} lacks {len(lacking)} trials that were stored in "
                "it: it was deleted, replaced or damaged while it was searched"
            )
        if self._lost:
            kept = keep_unsaved(self._study, self._storage, lacking) if lacking else _KEPT
            raise InvalidInput(f"{self._lost}; {kept}")

    def delete_if_empty(self) -> None:
        """Delete the study if nobody evaluates or evaluated a kernel: it would say nothing."""
        with suppress(ExplorerError), one_sentence(_UNWRITABLE):
            trials = self._storage.get_all_trials(self._study_id, deepcopy=False)
            if all(trial.state is TrialState.FAIL for trial in trials):
                self._storage.delete_study(self._study_id)

    def _lacking(self) -> list[FrozenTrial]:
        """Return the trials that are not stored, or that a SQLite file lacks by now."""
        unwritten = [known.trial for known in self._unwritten if known.digest]
        trials, path = [known.trial for known in self.kernels], file_of(self._storage)
        if path is None or not isinstance(self._storage, BulkStorage):
            return unwritten
        try:
            with one_sentence(""):
                self._storage.engine.dispose()  # the file of that name at present is opened
                if path.exists():
                    return self._storage.lacking(self._study_id, trials)
        except InvalidInput as error:
            if LOCKED in str(error):
                return unwritten
        return trials

    def _trial(self, proposal: Proposal, outcome: Outcome | None, started: datetime) -> FrozenTrial:
        origin = str(proposal.origin)
        return self._study.trial(proposal.config, outcome, proposal.digest, origin, started)

    def _put(self, more: Sequence[FrozenTrial]) -> list[bool]:
        """Store what is not stored yet and `more`; return which of `more` are stored.

        Raises InvalidInput where the storage fails.
        """
        waiting = self._unwritten
        trials = [known.trial for known in waiting] + list(more)
        try:
            with one_sentence(_UNWRITABLE):
                stored = self._storage.put(self._study_id, trials) if trials else []
        except ExplorerError as error:
            self._lost = str(error)
            raise
        self._unwritten = []
        for trial in compress(trials, stored):
            self._seen.add(trial._trial_id)
            if trial.state is TrialState.RUNNING:
                self._running[trial.user_attrs["digest"]] = trial
        return stored[len(waiting) :]

    def _read(self, trials: Sequence[FrozenTrial]) -> list[Known]:
        """Return the trials that evaluated a kernel and can be read, of earlier runs or others."""
        self._seen |= {trial._trial_id for trial in trials}
        known = []
        for trial, config, outcome in read_trials(trials, self._study.objectives, self._faults):
            digest = trial.user_attrs.get("digest")
            if not (isinstance(digest, str) and digest):
                continue
            if self._holds(config):
                known.append(Known(config, digest, outcome, trial))
            else:
                self._faults[trial.number] = (
                    f"its config {shown(config.to_json(brief=True))} is none of those that are "
                    "searched"
                )
        self.kernels += known
        return known

    def conclude(self, finals: Finals, environment: Environment, ended: str) -> bool:
        """Keep the finals of the measured trials, with their environment, and why the search ended.

        Their verdict stands on the trials as well, where a storage can change a finished one, and
        in the notes that a dashboard shows. The finals of another process that knew of more trials
        stay. Returns whether these were kept.
        """
        ids = {known.trial.number: known.trial._trial_id for known in self.kernels}
        ending = {"finals_through": max(ids, default=-1), "ended": ended, "searched_at": _now()}
        user = {
            **finals_to_attributes(finals, self._study.problem),
            **ending,
            **self._study.described(environment),
        }
        verdict = {ids[number]: of for number, of in verdict_of(finals).items()}
        with one_sentence(_UNWRITABLE, _KEPT):
            existing = self._storage.get_study_system_attrs(self._study_id)
            notes = notes_of(finals, self._study, self.records, ids, existing)
            return self._storage.put_attributes(self._study_id, user, notes, verdict)


# ------------------------------------------------------------------ studies deleted and renamed


class Removed(NamedTuple):
    """A study that was deleted."""

    study: str
    trials: int


def delete_study(storage: Storage, named: str, *, force: bool) -> Removed:
    """Delete a study with its trials, for good.

    Raises InvalidInput without `force`, and as `name_of` where that finds none, or several.
    """
    name = name_of(storage, named)
    with one_sentence(_UNWRITABLE):
        study_id = storage.get_study_id_from_name(name)
        trials = storage.get_n_trials(study_id)
        if not force:
            raise InvalidInput(
                f"study '{name}' has {trials} trials, which are lost for good: delete it with "
                "--force"
            )
        storage.delete_study(study_id)
    return Removed(name, trials)


def rename_study(storage: Storage, named: str, to: str) -> str:
    """Give a study another name; returns the one that it had.

    A search goes on with studies by the names that it gives them, so it begins a new one.
    Raises InvalidInput for a name that a study has, and as `name_of`.
    """
    name = name_of(storage, named)
    if not to.strip() or not to.isprintable() or len(to) > MAX_NAME:
        raise InvalidInput(
            f"the new name is {shown(to)}; it must be words of {MAX_NAME} characters at most"
        )
    if to in (study.study_name for study in storage.get_all_studies()):
        raise InvalidInput(f"there is a study '{to}' already; give another name")
    with one_sentence(_UNWRITABLE):
        study_id = storage.get_study_id_from_name(name)
        kept = storage.get_study_user_attrs(study_id).get("replayed")
        replayed = name.endswith(REPLAY_SUFFIX) if kept is None else kept
        storage.set_study_user_attr(study_id, "replayed", replayed)
        storage.rename(study_id, to)
    return name


# ------------------------------------------------------------------ trials that were not stored


def keep_unsaved(study: StudyIdentity, storage: Storage, trials: Sequence[FrozenTrial]) -> str:
    """Keep finished trials that a storage did not take in a new journal; return what to do.

    It lies beside the database, or in the folder for temporary files where that takes nothing.
    """
    beside, name = (file_of(storage) or Path("x")).parent, f"unsaved-trials-{token_hex(4)}.journal"
    for folder in (beside, None):
        path = beside / name
        try:
            path = (folder or Path(tempfile.gettempdir())) / name
            journal = Journal(path)
            study_id = open_study(journal, study)
            _begin(journal, study_id, study)
            for trial in trials:
                journal.create_new_trial(study_id, trial)
        except Exception:  # whatever a full disk has Optuna raise
            with suppress(OSError):
                path.unlink()
            continue
        number, file = len(trials), quote(str(path))
        return (
            f"{'1 finished trial is' if number == 1 else f'{number} finished trials are'} kept in "
            f"{file}: once the storage can be written, run explorer merge {file} with the "
            "--storage of the search, and then the same search again"
        )
    return f"none is kept, {len(trials)} lost: {_REMEDY}"


class Merged(NamedTuple):
    """What came of the trials of a study."""

    study: str
    added: int
    known: int
    """Trials that the study had already."""


def merge_trials(storage: Storage, file: Path) -> list[Merged]:
    """Store the trials of a journal, such as a search keeps; again, it adds none.

    Raises InvalidInput where there are none, where the study of that name is of something else, and
    where a storage fails.
    """
    remedy = "name a file that explorer search wrote when it could not write its storage"
    journal = open_journal(file, remedy, remedy)
    studies, damaged = read_studies(journal)
    if damaged or not studies:
        why = f"cannot be used: {damaged[0]}" if damaged else f"has no study; {remedy}"
        raise InvalidInput(f"{file} {why}")
    return [_merged(storage, journal, study) for study in studies]


def _merged(storage: Storage, journal: Journal, study: StoredStudy) -> Merged:
    """Store the kernels of a study that the storage's study of that name lacks."""
    source = journal.get_study_id_from_name(study.name)
    kernels: dict[str, FrozenTrial] = {}
    for trial in journal.get_all_trials(source):
        if trial.number in study.attempts and (digest := str(trial.user_attrs.get("digest") or "")):
            kernels[digest], trial.number = trial, -1
    seed = journal.get_study_user_attrs(source).get("seed", 0)
    identity = StudyIdentity(
        study.name, study.problem, study.objectives, study.environment, seed, {}, study.where
    )
    with one_sentence(_UNWRITABLE, _REMEDY):
        study_id = open_study(storage, identity)
        added = sum(storage.put(study_id, list(kernels.values())))
        if added:
            _begin(storage, study_id, identity)
    return Merged(study.name, added, len(kernels) - added)
