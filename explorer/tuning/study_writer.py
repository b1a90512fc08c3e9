"""A study in its storage: what is known of a problem's kernels, and where finished trials go."""

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, suppress
from datetime import UTC, datetime
from typing import Any, NamedTuple, TypeVar

from optuna.exceptions import DuplicatedStudyError
from optuna.storages import BaseStorage
from optuna.study import StudyDirection
from optuna.trial import FrozenTrial, TrialState

from explorer.model.config import Config
from explorer.model.errors import ExplorerError, InvalidInput
from explorer.model.outcome import Environment, Outcome, Rejected, Stage, TrialRecord
from explorer.system.plain_data import read_text, read_whole, shown
from explorer.tuning.claims import Claims
from explorer.tuning.contest import Finals
from explorer.tuning.objective import Objectives
from explorer.tuning.storage import LOCKED, BulkStorage, Stored, said_of
from explorer.tuning.study_attributes import (
    NO_VERDICT,
    finals_text,
    finals_to_attributes,
    finished_trial,
    in_parts,
    note_of,
    passed_over,
    to_attributes,
    to_outcome,
    trial_note,
    verdict_of,
    verdict_words,
)
from explorer.tuning.unsaved import StudyIdentity, Unsaved, UnsavedTrials

_UNWRITABLE = "the study cannot be written"


def _remedy() -> str:
    return "mend the storage or name another, and run the search again"


def _kept() -> str:
    return f"what finished before is kept: {_remedy()}"


UNWRITTEN = 1
"""Trials that wait to be stored at most, so that hardly more than what is measured is ever lost."""

CLAIMED_AT_ONCE = 4
"""Codes that are claimed in one transaction. More than these are proposed ahead, so that nothing
waits for its claim."""

EXCHANGES = 5
"""Attempts to claim, each as long as a storage's patience, while another program writes to it: as
many as Optuna makes to store a trial."""

UNWRITTEN_OF_REPLAYS = 64
"""The same of a replay, whose trials can be had again. It would wait for the disk: 0.6 to 14 ms a
transaction."""

TRANSACTIONS_OF_UNWRITTEN = 4
"""Transactions, about, in which UNWRITTEN_OF_REPLAYS trials are stored. With one for each trial,
and those that claim code, a replay of 200 kernels made 350, and waited for them a third of its
time. Other processes hear of these trials later for it."""

NOTE_VERSION, NOTE_PART = "dashboard:note_ver", "dashboard:note_str:"
"""Where optuna-dashboard keeps the note of a study, in parts."""

METRIC_NAMES = "study:metric_names"
"""Where Optuna keeps what a study's values are called."""


class Heard(NamedTuple):
    """A trial of the study that evaluated a kernel: in an earlier run, or in another process."""

    number: int
    config: Config
    digest: str
    outcome: Outcome


Answer = TypeVar("Answer")


class Asked(Future[Answer]):
    """An answer that is asked for at the latest by who waits for its result.

    `concurrent.futures.wait` does not ask, and callbacks do not.
    """

    def __init__(self, ask: Callable[[], None]) -> None:
        super().__init__()
        self._ask = ask

    def ask(self) -> None:
        """Ask, unless the answer is there; does not wait for it."""
        if not self.done():
            self._ask()

    def result(self, timeout: float | None = None) -> Answer:
        """Ask, and wait for the answer; raises what it met."""
        self.ask()
        return super().result(timeout)


class Claim(Asked[bool]):
    """Code that a process would evaluate, unless another one does, or did."""

    def is_granted(self) -> bool:
        """Whether this process is to evaluate it; waits for the answer. Raises what that met."""
        return self.result()


class Ledger:
    """Opens or creates a study, stores finished trials, and hears of those of other processes.

    A trial enters in one transaction, finished. So no trial is ever left running, whenever the
    process ends; one that runs is another program's, and is left to it. What the storage does not
    take is kept in a file, and so are all trials of a database whose file was deleted, replaced or
    overwritten meanwhile. Of a server's or a file's database each code is claimed before it is
    evaluated, or before the outcome of a replay is used; a storage of another kind is taken to be
    this process's alone.
    """

    def __init__(
        self,
        storage: BaseStorage,
        study: StudyIdentity,
        holds: Callable[[Config], bool] = lambda config: True,
        most_unwritten: int = UNWRITTEN,
    ) -> None:
        """Open the study; `holds` says of a config whether the search could propose it."""
        self.name = study.name
        self._study = study
        self._holds = holds
        self._most_unwritten = most_unwritten
        self._stored_at_once = max(1, most_unwritten // TRANSACTIONS_OF_UNWRITTEN)
        self._storage = storage
        self._objectives = study.objectives
        self._writer = ThreadPoolExecutor(1, "ledger")
        self._finished: deque[tuple[FrozenTrial, Future[int]]] = deque()
        self._unwritten: deque[Future[int]] = deque()
        self._unsaved = UnsavedTrials(study)
        self._lost = ""
        """What the storage said when it took no more; empty as long as it does."""
        self._faults: dict[int, str] = {}
        self._problem = study.problem
        self._wanted: deque[tuple[str, Claim]] = deque()
        self._done: list[str] = []
        """Digests of stored trials, whose claims are to be dropped."""
        self._may_claim = False
        """Whether claims of this process may be in the storage."""
        self._heard: deque[Heard] = deque()
        self._stored: list[FrozenTrial] = []
        """The trials of the storage that evaluated a kernel, whoever stored them."""
        self._own: set[int] = set()
        """Ids of the trials that this process stored."""
        self._last_id = self._last_number = -1
        with _writing():
            self._study_id = _open_study(storage, self.name, self._objectives)
            if not storage.get_study_user_attrs(self._study_id):
                self._set(best=NO_VERDICT)  # dashboards list attributes in this order
            self._set(problem=self._problem.as_dict(), objectives=str(self._objectives))
            storage.set_study_system_attr(self._study_id, METRIC_NAMES, self._objectives.metrics)
        self._claims = self._own_claims()

    def _own_claims(self) -> Claims | None:
        storage = self._storage
        return Claims(storage, self._study_id) if isinstance(storage, BulkStorage) else None

    @property
    def passed_over(self) -> str:
        """A sentence on the trials that cannot be used; empty where there is none."""
        return passed_over(self._faults, self.name)

    def known(self) -> Iterator[Heard]:
        """The trials of the study that evaluated a kernel.

        What cannot be read, and a config that the search does not hold, is passed over.
        """
        states = (TrialState.COMPLETE, TrialState.PRUNED)
        with said_of(f"study '{self.name}' cannot be read", _remedy()):
            found = self._storage.get_all_trials(self._study_id, deepcopy=False, states=states)
        self._last_id = max((trial._trial_id for trial in found), default=-1)
        for trial in found:
            yield from self._read(trial)

    def _read(self, trial: FrozenTrial) -> Iterator[Heard]:
        """The trial, if it evaluated a kernel and can be read."""
        number = read_whole(trial.number, f"study '{self.name}': the number of a trial")
        self._last_number = max(self._last_number, number)
        try:
            outcome = to_outcome(trial.user_attrs, self._objectives)
            digest = read_text(trial.user_attrs.get("digest", ""), "digest")
            if outcome is not None and digest:
                config = Config.from_dict(trial.params)
                if not self._holds(config):
                    raise InvalidInput(
                        f"its config {shown(config.to_json(brief=True))} is none of those "
                        "that are searched"
                    )
                if trial.datetime_start and trial.datetime_complete:
                    self._stored.append(trial)
                yield Heard(number, config, digest, outcome)
        except InvalidInput as error:
            self._faults[number] = str(error)

    def trials(self) -> list[FrozenTrial]:
        """All trials of the study, as they are stored."""
        return self._storage.get_all_trials(self._study_id, deepcopy=False)

    # In the background: what is claimed, stored and heard.

    def claim(self, digest: str) -> Claim:
        """Claim code that is to be evaluated.

        It is asked for once CLAIMED_AT_ONCE codes are wanted, or the claim is told to ask: a
        transaction for each code took a third of the time of the thread that writes.
        """
        claim = Claim(self._ask)
        if self._claims is None:
            claim.set_result(True)
        else:
            self._wanted.append((digest, claim))
            if len(self._wanted) >= CLAIMED_AT_ONCE:
                self._ask()
        return claim

    def _ask(self) -> None:
        """Ask for what is claimed and was not asked for yet."""
        if self._wanted:
            self._writer.submit(self._exchange)

    def add(
        self, config: Config, outcome: Outcome, *, digest: str, origin: str, started: datetime
    ) -> Future[int]:
        """Store a finished trial in the background, COMPLETE or PRUNED; gives its number.

        Raises what an earlier trial met; then all that are not stored are kept in a file. What a
        rule excludes is not waited for: it cost nothing to find.
        """
        copy_us = self._study.environment.copy_us
        attributes = to_attributes(config, outcome, digest, origin, self._problem, copy_us)
        parameters, completed = self._study.distributions, datetime.now()
        trial = finished_trial(
            config, outcome, attributes, self._objectives, parameters, started, completed
        )
        stored = Asked[int](self._ask_to_store)
        self._finished.append((trial, stored))
        self._unwritten.append(stored)
        if len(self._finished) >= self._stored_at_once:
            self._ask_to_store()
        if not (isinstance(outcome, Rejected) and outcome.stage is Stage.INVALID):
            self._wait(self._most_unwritten)
        return stored

    def heard(self) -> Iterator[Heard]:
        """What other processes have evaluated since this was last asked."""
        while self._heard:
            yield self._heard.popleft()

    def flush(self) -> None:
        """Wait until all is stored, and heard; raises InvalidInput if that could not be."""
        self._wait(0)
        if self._claims is not None:
            self._writer.submit(self._exchange, anew=True).result()
            # What is not evaluated any more others may have. It is waited for, since a database in
            # memory has one connection, which two threads may not use at once.
            self._writer.submit(self._withdraw).result()

    def close(self) -> None:
        """Wait for what is being stored, and end the background thread.

        Raises InvalidInput if the storage did not take all, or is gone: it says where the rest, or
        all of it, is kept.
        """
        self._ask_to_store()
        self._writer.submit(self._withdraw)
        self._writer.shutdown()
        self._give_up()
        if self._unsaved.told:
            raise InvalidInput(f"{self._lost}; {self._unsaved.told}")

    def _wait(self, most: int) -> None:
        """Wait until no more than `most` trials are to be stored."""
        while self._unwritten and (len(self._unwritten) > most or self._unwritten[0].done()):
            self._unwritten.popleft().result()

    def _ask_to_store(self) -> None:
        self._writer.submit(self._store)

    def _store(self) -> None:
        """Store the trials that have finished since the last time, in one transaction."""
        waiting = [self._finished.popleft() for _ in range(len(self._finished))]
        if not waiting:
            return  # a turn before this one had the trial for which it was begun
        try:
            numbers = self._stored_or_kept([trial for trial, _ in waiting])
        except Exception as error:  # whatever it is, who waits for a number is to meet it
            for _, stored in waiting:
                stored.set_exception(error)
            return
        for (_, stored), number in zip(waiting, numbers, strict=True):
            stored.set_result(number)

    def _stored_or_kept(self, trials: Sequence[FrozenTrial]) -> list[int]:
        """Store trials; raises InvalidInput where they had to be kept in a file, or are lost."""
        if not self._lost:
            try:
                return self.put(trials)
            except ExplorerError as error:
                self._give_up(str(error))
        raise self._kept(trials) or InvalidInput(f"{self._lost}; {_kept()}")

    def _kept(self, trials: Sequence[FrozenTrial]) -> InvalidInput | None:
        """Keep each trial in a file; returns why one could not be kept, if there was such."""
        failure = None
        for trial in trials:
            try:
                self._unsaved.keep(trial)
            except InvalidInput as error:
                failure = error
        return failure

    def _give_up(self, why: str = "") -> None:
        """Store no more, since `why`, or since the database is gone: then keep what it held in a
        file. Nothing comes of it where neither is so.
        """
        if self._lost or not isinstance(self._storage, BulkStorage):
            self._lost = self._lost or why
            return
        digests = {trial.user_attrs.get("digest", "") for trial in self._stored} - {""}
        gone, lacking = self._storage.gone_file, self._storage.lost_in_file(self._study_id, digests)
        if gone:
            why = f"storage {gone} was deleted or replaced while it was searched"
        elif lacking and not why:
            why = (
                f"storage {lacking} no longer has all trials that were stored in it: while it was "
                "searched, it was overwritten or damaged, or they were deleted"
            )
        self._lost = why
        if gone or lacking:
            self._kept(self._stored)

    def put(self, trials: Sequence[FrozenTrial]) -> list[int]:
        """Store trials now; gives their numbers. Raises InvalidInput where the storage fails."""
        with said_of(_UNWRITABLE):
            stored = self._put(trials)
        self._own.update(trial_id for trial_id, _ in stored)
        self._stored.extend(trials)
        self._last_number = max([self._last_number, *(number for _, number in stored)])
        self._done += [trial.user_attrs.get("digest", "") for trial in trials]
        return [number for _, number in stored]

    def _put(self, trials: Sequence[FrozenTrial]) -> list[Stored]:
        if isinstance(self._storage, BulkStorage):
            return self._storage.create_new_trials(self._study_id, trials)
        ids = [self._storage.create_new_trial(self._study_id, trial) for trial in trials]
        return [Stored(n, self._storage.get_trial_number_from_id(n)) for n in ids]

    def _exchange(self, *, anew: bool = False) -> None:
        """Claim what is wanted, and read what others have stored; `anew` even if nothing is."""
        assert self._claims is not None
        wanted = [self._wanted.popleft() for _ in range(len(self._wanted))]
        if not wanted and not anew:
            return  # an exchange before this one had the claim for which it was begun
        try:
            granted = self._claimed(self._claims, [digest for digest, _ in wanted], EXCHANGES)
        except Exception as error:  # whatever it is, who waits for a claim is to meet it
            for _, claim in wanted:
                claim.set_exception(error)
            if anew:
                raise
            return
        for digest, claim in wanted:
            claim.set_result(digest in granted)

    def _claimed(self, claims: Claims, wanted: Sequence[str], attempts: int) -> frozenset[str]:
        """Return what is ours of what is wanted, and hear of what others have stored."""
        if self._lost:
            raise InvalidInput(f"{self._lost}; {_kept()}")
        self._may_claim = True
        try:
            with _writing():
                exchanged = claims.exchange(wanted, self._done, self._last_id)
                others = [n for n in exchanged.trials if n not in self._own]
                trials = [self._storage.get_trial(number) for number in others]
        except InvalidInput as error:
            if attempts > 1 and LOCKED in str(error):
                return self._claimed(claims, wanted, attempts - 1)
            self._give_up()
            raise
        self._done = []
        self._last_id = max(self._last_id, *exchanged.trials, -1)
        for trial in trials:
            self._heard.extend(self._read(trial))
        return exchanged.granted

    def _withdraw(self) -> None:
        """Drop the claims that there may be; those of a storage that fails end with the process."""
        if self._claims is None or not self._may_claim:
            return
        with suppress(ExplorerError), _writing():
            self._claims.withdraw()
            self._may_claim = False

    # What the study says of itself.

    def begin(self, sampler: str = "") -> None:
        """Keep when a run began, what sampler of the user's proposed kernels, if one did, and the
        environment, unless those of finals are kept.
        """
        with _writing():
            self._set(searched_at=_now(), **({"sampler": sampler} if sampler else {}))
            if finals_text(self._storage.get_study_user_attrs(self._study_id)) is None:
                self._describe(self._study.environment)

    def conclude(
        self,
        finals: Finals,
        environment: Environment,
        records: Sequence[TrialRecord],
        ended: str,
    ) -> bool:
        """Keep the finals of the measured trials, with the environment of the finals, and why the
        search `ended`.

        Their verdict stands on the trials as well, and in the notes that a dashboard shows. The
        finals of another process that knew of more trials stay. Returns whether these were kept.
        """
        fastest = min(records, key=lambda trial: trial.outcome.time_us)
        note = in_parts(note_of(finals, self._problem, fastest))
        copy_us = self._study.environment.copy_us
        notes = {trial.number: trial_note(trial, self._problem, copy_us) for trial in records}
        with _writing():
            if isinstance(self._storage, BulkStorage):
                self._storage.put_notes(self._study_id, notes)
            if not self._keep_finals(finals):
                return False
            self._set(best=verdict_words(finals), ended=ended, searched_at=_now())
            self._describe(environment)
            before = self._storage.get_study_system_attrs(self._study_id).get(NOTE_VERSION, 0)
            for number, part in enumerate(note):
                self._storage.set_study_system_attr(self._study_id, f"{NOTE_PART}{number}", part)
            self._storage.set_study_system_attr(self._study_id, NOTE_VERSION, before + 1)
        return True

    def _keep_finals(self, finals: Finals) -> bool:
        """Keep the finals on the study and on the trials; in a database all of it, or none."""
        attributes = {**finals_to_attributes(finals), "finals_through": self._last_number}
        if isinstance(self._storage, BulkStorage):
            return self._storage.put_finals(self._study_id, attributes, verdict_of(finals))
        self._set(**attributes)
        return True

    def _describe(self, environment: Environment) -> None:
        copy_us, seed = environment.copy_us, self._study.seed
        self._set(circumstances=environment.as_dict(), copy_us=copy_us, seed=seed)

    def _set(self, **attributes: Any) -> None:
        for key, value in attributes.items():
            self._storage.set_study_user_attr(self._study_id, key, value)


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="microseconds")


def _open_study(storage: BaseStorage, name: str, objectives: Objectives) -> int:
    try:
        return storage.create_new_study([StudyDirection.MINIMIZE] * objectives.number, name)
    except DuplicatedStudyError:
        return storage.get_study_id_from_name(name)


def _writing() -> AbstractContextManager[None]:
    """A full disk, a lock held too long or a read-only file is the user's to mend."""
    return said_of(_UNWRITABLE, _kept())


# ------------------------------------------------------------------ trials that were kept in a file


class Merged(NamedTuple):
    """What came of the trials of a file."""

    study: str
    added: int
    known: int
    """Trials that the study had already."""
    left: int
    """Trials whose code another process evaluates at present."""


def merge_trials(storage: BaseStorage, unsaved: Unsaved) -> Merged:
    """Store the trials that a search kept in a file; again, it adds nothing.

    Raises InvalidInput where the study of that name is of something else, and where the storage
    fails.
    """
    study, trials = unsaved.study, unsaved.trials
    with said_of(f"study '{study.name}' cannot be read", _remedy()):
        _check_is_same(storage, study)
    ledger = Ledger(storage, study)
    there = {_kernel(trial) for trial in ledger.trials()}
    new = {_kernel(trial): trial for trial in trials if _kernel(trial) not in there}
    digests = (trial.user_attrs.get("digest") for trial in new.values())
    claims = [ledger.claim(digest) if digest else None for digest in digests]
    added = [
        trial
        for trial, granted in zip(new.values(), claims, strict=True)
        if granted is None or granted.is_granted()
    ]
    if added:
        ledger.put(added)
        ledger.begin()
    left = 0
    if len(added) < len(new):  # what was not ours is stored meanwhile, or under way elsewhere
        there = {_kernel(trial) for trial in ledger.trials()}
        left = len(new.keys() - there)
    ledger.close()
    return Merged(study.name, len(added), len(trials) - len(added) - left, left)


def _check_is_same(storage: BaseStorage, study: StudyIdentity) -> None:
    """Raises InvalidInput where the storage has a study of that name for something else."""
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
    """What two trials of the same have in common: the digest of the code, or an illegal config."""
    return str(trial.user_attrs.get("digest") or sorted(trial.params.items()))
