"""A process of its own that stores a search's trials, and claims code for it.

The threads of a search share one of Python's interpreters. On an H200's host they needed it all the
time, and to store 200 trials and to claim their code took a fifth of it: 1.3 of 5.8 s.
"""

import os
import pickle
from collections.abc import Sequence
from contextlib import suppress
from copy import copy
from importlib import import_module
from itertools import pairwise
from multiprocessing.connection import Connection
from typing import TYPE_CHECKING, Any

from explorer.system.processes import leave_interrupts, talking_to

if TYPE_CHECKING:  # Optuna takes a second to import: here it is once both processes are under way
    from optuna.distributions import BaseDistribution
    from optuna.trial import FrozenTrial

    from explorer.tuning.claims import Claims, Exchanged
    from explorer.tuning.storage import Stored

ENDED = "the process that stores trials has ended"


class StudyProcess:
    """Another process, which has a database open: it stores finished trials there.

    `ClaimsElsewhere` claims code by it. Methods raise what the database raises there, and
    StorageInternalError once it has ended. One thread at a time may call them.
    """

    def __init__(self) -> None:
        """Start it; it imports Optuna meanwhile, which takes a second."""
        self._connection, self._process = talking_to(_serve)
        self.pid = self._process.pid
        self._distributions: dict[str, BaseDistribution] | None = None

    def open(self, url: str) -> bool:
        """Have it open a database; False if it cannot, as nothing was asked of it yet."""
        try:
            self.ask("open", url)
        except Exception:  # whatever it is, this process can do without the other one
            self.close()
            return False
        return True

    def create_new_trials(self, study_id: int, trials: "Sequence[FrozenTrial]") -> "list[Stored]":
        """Store finished trials (`BulkStorage.create_new_trials`)."""
        stored: list[Stored] = []
        for trial in trials:
            if trial.distributions != self._distributions:
                self.ask("expect", trial.distributions)
                self._distributions = trial.distributions
            bare = copy(trial)
            bare.distributions = {}  # they are the same in every trial
            stored += self.ask("store", study_id, bare)
        return stored

    def close(self) -> None:
        """End it, once it has done what it was asked."""
        self._connection.close()
        self._process.join()

    def ask(self, name: str, *arguments: Any) -> Any:
        """Return what the method of that name of `_Server` returns; raises what it raises."""
        try:
            self._connection.send((name, arguments))
            value, raised = self._connection.recv()
        except (EOFError, OSError):
            raise _failure(ENDED) from None
        if raised:
            raise _linked(raised)
        return value


class ClaimsElsewhere:
    """The claims of one study (`Claims`), of which another process asks the database."""

    def __init__(self, process: StudyProcess, study_id: int) -> None:
        self._process = process
        self._study_id = study_id

    def exchange(self, wanted: Sequence[str], done: Sequence[str], after: int) -> "Exchanged":
        """As `Claims.exchange`."""
        told: Exchanged = self._process.ask("exchange", self._study_id, wanted, done, after)
        return told

    def withdraw(self) -> None:
        """As `Claims.withdraw`."""
        self._process.ask("withdraw", self._study_id)


# ------------------------------------------------------------------ in that process


class _Server:
    """Answers what is asked of the process, by the names of its methods."""

    def __init__(self) -> None:
        self._storage: Any = None
        """A BulkStorage, once it is open."""
        self._claims: dict[int, Claims] = {}
        self._distributions: dict[str, BaseDistribution] = {}

    def open(self, url: str) -> None:
        from explorer.tuning.storage import open_storage

        self._storage = open_storage(url)
        self._claims.clear()

    def expect(self, distributions: "dict[str, BaseDistribution]") -> None:
        """Of the trials that follow."""
        self._distributions = distributions

    def store(self, study_id: int, trial: "FrozenTrial") -> "list[Stored]":
        trial.distributions = self._distributions
        return self._storage.create_new_trials(study_id, [trial])  # type: ignore[no-any-return]

    def exchange(
        self, study_id: int, wanted: Sequence[str], done: Sequence[str], after: int
    ) -> "Exchanged":
        return self._claims_of(study_id).exchange(wanted, done, after)

    def withdraw(self, study_id: int) -> None:
        self._claims_of(study_id).withdraw()

    def close(self) -> None:
        """Say good-bye to the database."""
        if self._storage is not None:
            self._storage.engine.dispose()

    def _claims_of(self, study_id: int) -> "Claims":
        from explorer.tuning.claims import Claims

        if study_id not in self._claims:
            self._claims[study_id] = Claims(self._storage, study_id)
        return self._claims[study_id]


def _serve(connection: Connection) -> None:
    """Answer until the other process ends, or closes the connection."""
    leave_interrupts()
    import_module("explorer.tuning.claims")  # and Optuna with it, before anything is asked
    server = _Server()
    with suppress(EOFError, OSError):
        while True:
            name, arguments = connection.recv()
            value, raised = None, []
            try:
                value = getattr(server, name)(*arguments)
            except Exception as error:  # whatever a database raises is for the other process
                raised = _chain(error)
            connection.send((value, raised))
    server.close()
    os._exit(0)  # Python's own end takes 0.15 s, for which the other process would wait


def _chain(error: BaseException | None) -> list[Exception]:
    """Return an error and its causes, which are lost where an error is sent."""
    found: list[Exception] = []
    while isinstance(error, Exception):
        found.append(_sendable(error))
        error = error.__cause__
    return found


def _sendable(error: Exception) -> Exception:
    """Return the error, or one of the same words where it cannot be sent."""
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:
        return _failure(f"{type(error).__name__}: {error}")
    return error


def _failure(words: str) -> Exception:
    """Return an error as Optuna raises it where a storage fails."""
    from optuna.exceptions import StorageInternalError

    return StorageInternalError(words)


def _linked(chain: list[Exception]) -> Exception:
    """Return the first error, with its causes."""
    for error, cause in pairwise(chain):
        error.__cause__ = cause
    return chain[0]
