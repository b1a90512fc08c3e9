"""Storages of studies: which kinds there are, how one is opened, and what all of them can do.

A storage is a SQLite file, which is the default, Optuna's journal in a file, or the database of a
server.
"""

import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import optuna
from optuna.exceptions import StorageInternalError
from optuna.storages import BaseStorage, JournalStorage, RDBStorage
from optuna.storages.journal import JournalFileBackend, JournalFileSymlinkLock
from optuna.trial import FrozenTrial, TrialState
from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import ArgumentError, NoSuchModuleError, SQLAlchemyError

from explorer.model.errors import ExplorerError, InvalidInput, NotFound
from explorer.system.plain_data import shown
from explorer.system.user_files import check_writable, open_regular, studies_folder
from explorer.tuning.bulk_storage import (
    FINISHED,
    KNOWN_BEFORE,
    BulkStorage,
    open_database,
    place_of,
)

# ------------------------------------------------------------------ opening a storage

STORAGE_VARIABLE = "EXPLORER_STORAGE"
"""The environment variable that names the storage where a command does not."""

SEARCH = "explorer search --cols 4096"
"""The command that creates a study, where no problem is meant."""

LOCKED = "another program is writing to it"

JOURNAL = "journal"
"""The scheme of the URL of a journal, such as journal:///studies/explorer.journal."""

_BEGINS = {"SQLite database": b"SQLite format 3\0", "journal of Optuna": b'{"op_code":'}

_REMEDY = "name another storage, such as sqlite:///studies/explorer.db"


def default_storage() -> str:
    """Return the value of $EXPLORER_STORAGE, else the path of explorer.db among the studies."""
    return os.environ.get(STORAGE_VARIABLE) or str(studies_folder() / "explorer.db")


def open_storage(
    url: str | None = None, *, read_only: bool = False, command: str = SEARCH
) -> "Storage":
    """Open `url` (None: `default_storage`; a plain path: SQLite), creating it if absent.

    With `read_only` nothing is created, and NotFound is raised for an absent file and a database
    without tables, naming the `command` that makes a study. Raises InvalidInput for a storage that
    cannot be opened, and for a database with other tables than Optuna's.
    """
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    parsed = _parse(default_storage() if url is None else url)
    missing = f"run {command}" if read_only else None
    path, name = _file(parsed), parsed.render_as_string(hide_password=True)
    if path is not None:
        if url is None and not os.environ.get(STORAGE_VARIABLE) and not read_only:
            check_writable(path, _REMEDY)  # which makes its folder
        if parsed.drivername == JOURNAL:
            return open_journal(path, missing)
        _check_file(path, "SQLite database", missing)
    with one_sentence(f"storage {name} cannot be opened", _REMEDY):
        try:
            return open_database(parsed, name, _REMEDY, missing)
        except ModuleNotFoundError as error:
            raise InvalidInput(
                f"storage scheme '{parsed.drivername}' needs the Python package {error.name}, "
                "which is not installed; install it (psycopg by pip install "
                f"'.[postgresql]' in the checkout), or {_REMEDY}"
            ) from None


def open_journal(path: Path, missing: str | None, remedy: str = _REMEDY) -> "Journal":
    """Open a journal, creating it if absent unless `missing` says what to do then.

    Raises NotFound then, and InvalidInput, which ends in `remedy`, for another file.
    """
    _check_file(path, "journal of Optuna", missing, remedy)
    with one_sentence(f"storage {path} cannot be opened", remedy):
        return Journal(path)


def file_of(storage: BaseStorage) -> Path | None:
    """Return the file of a storage; None where it is a server's, or in memory."""
    if isinstance(storage, Journal):
        return storage.path
    return _file(storage.engine.url) if isinstance(storage, RDBStorage) else None


@contextmanager
def one_sentence(what: str, remedy: str = "") -> Iterator[None]:
    """Say in one sentence, as InvalidInput, whatever Optuna or a database raises.

    A damaged database makes them raise anything, AssertionError and RecursionError included: so
    nothing but calls of theirs may stand within.
    """
    try:
        yield
    except (ExplorerError, MemoryError):
        raise
    except Exception as error:
        end = f"; {remedy}" if remedy else ""
        raise InvalidInput(f"{what}: {_cause(error)}{end}") from None


def _file(url: URL) -> Path | None:
    """Return the file that a URL names; None for a server's, and for a database in memory."""
    is_file = url.drivername == JOURNAL or url.get_backend_name() == "sqlite"
    return Path(url.database) if is_file and url.database not in (None, "", ":memory:") else None


def _parse(url: str) -> URL:
    if not url.strip() or not url.isprintable():
        raise InvalidInput(f"storage is {shown(url)}, which names nothing; {_REMEDY}")
    if "://" not in url:
        return URL.create("sqlite", database=url)
    try:
        parsed = make_url(url)
        if parsed.drivername in ("postgresql", "postgres"):  # before 2.1 SQLAlchemy took psycopg2
            driver = "" if find_spec("psycopg2") else "+psycopg"
            parsed = parsed.set(drivername=f"postgresql{driver}")
        if parsed.drivername != JOURNAL:
            parsed.get_dialect()
        elif not parsed.database or parsed.host:
            raise ValueError
    except NoSuchModuleError:
        scheme = url.split("://")[0]
        raise InvalidInput(
            f"storage scheme '{scheme}' is not known to SQLAlchemy; {_REMEDY}"
        ) from None
    except (ArgumentError, ValueError):
        raise InvalidInput(f"storage '{url}' is no URL; {_REMEDY}") from None
    return parsed


def _check_file(path: Path, what: str, missing: str | None, remedy: str = _REMEDY) -> None:
    """Say of a file what a user can mend, before SQLite says it worse.

    `missing` is what to do where there is no file, unless it may be created.
    """
    try:
        if missing is not None and not path.exists():
            raise NotFound(f"no study yet: {path} does not exist; {missing}")
        if not path.parent.is_dir():
            raise InvalidInput(
                f"storage folder {path.parent} does not exist; create it, or {remedy}"
            )
        if path.exists():
            with open_regular(path, most_bytes=sys.maxsize, remedy=remedy) as file:
                if file.read(len(_BEGINS[what])) not in (_BEGINS[what], b""):
                    raise InvalidInput(f"storage {path} is no {what}; {remedy}")
    except InvalidInput:
        raise
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or error
        raise InvalidInput(f"storage {path} cannot be opened: {why}; {remedy}") from None
    if missing is None:  # locks lie beside the file, so its folder must be writable as well
        check_writable(path, remedy)


def _cause(error: BaseException) -> str:
    """Return what the innermost cause of an error says first.

    An error that is not of a database, but of Python code that reads what it found there, is named,
    since its words alone may say nothing.
    """
    speaks = isinstance(error, (SQLAlchemyError, StorageInternalError, OSError)) or (
        type(error) is RuntimeError  # by which Optuna says that its version does not fit
    )
    while error.__cause__ is not None:
        error = error.__cause__
    original = getattr(error, "orig", None) or error
    line = (str(original).strip() or "no more is known").splitlines()[0]
    if "database is locked" in line:
        return f"{LOCKED} ({line})"
    return line if speaks else f"{type(original).__name__}: {line}"


# ------------------------------------------------------------------ what all of them can do


class PublicStorage(BaseStorage):
    """The methods of `BulkStorage` by Optuna's public interface, for a storage of another kind.

    No attribute of a finished trial is set.
    """

    def in_one_write(self) -> AbstractContextManager[None]:
        """Return a block whose attributes are written together, where the storage can do that."""
        return nullcontext()

    def put(self, study_id: int, trials: Sequence[FrozenTrial]) -> list[bool]:
        """Store trials, as `BulkStorage.put` does."""
        return [self._put(study_id, trial) for trial in trials]

    def _put(self, study_id: int, trial: FrozenTrial) -> bool:
        there = self._place_of(study_id, trial)
        if there is None:
            trial_id = self.create_new_trial(study_id, trial)
            is_running = trial.state is TrialState.RUNNING
            first = self._place_of(study_id, trial) if is_running else None
            there = first or self.get_trial(trial_id)
            is_ours = there._trial_id == trial_id
            if not is_ours:  # another was faster
                self.set_trial_state_values(trial_id, TrialState.FAIL)
        else:
            is_ours = there.number == trial.number
            if is_ours and there.state is TrialState.RUNNING:
                with self.in_one_write():
                    for key in trial.user_attrs.keys() - KNOWN_BEFORE:
                        self.set_trial_user_attr(there._trial_id, key, trial.user_attrs[key])
                    self.set_trial_state_values(there._trial_id, trial.state, trial.values)
        trial._trial_id, trial.number = there._trial_id, there.number
        return is_ours

    def _place_of(self, study_id: int, trial: FrozenTrial) -> FrozenTrial | None:
        """Return the trial that `place_of` returns."""
        digest = trial.user_attrs.get("digest")
        trials = self.get_all_trials(study_id, deepcopy=False) if digest else []
        same_code = [other for other in trials if other.user_attrs.get("digest") == digest]
        found: FrozenTrial | None = place_of(trial, same_code)
        return found

    def put_attributes(
        self,
        study_id: int,
        user: Mapping[str, Any],
        system: Mapping[str, Any],
        _trials: Mapping[int, Mapping[str, Any]],
    ) -> bool:
        """Set attributes of a study, as `BulkStorage.put_attributes` does."""
        through = self.get_study_user_attrs(study_id).get("finals_through", -1)
        if user.get("finals_through", through) < through:
            return False
        with self.in_one_write():
            for key, value in user.items():
                self.set_study_user_attr(study_id, key, value)
            for key, value in system.items():
                self.set_study_system_attr(study_id, key, value)
        return True

    def rename(self, study_id: int, name: str) -> None:
        """Give a study another name: it is copied, and deleted once the copy is whole."""
        old = self.get_study_name_from_id(study_id)
        optuna.copy_study(
            from_study_name=old, from_storage=self, to_storage=self, to_study_name=name
        )
        self.delete_study(study_id)

    def finished(self, study_id: int) -> set[int]:
        """Return the ids of the finished trials."""
        trials = self.get_all_trials(study_id, deepcopy=False, states=FINISHED)
        return {trial._trial_id for trial in trials}


# ------------------------------------------------------------------ Optuna's journal in a file


class _JournalFile(JournalFileBackend):
    """A journal whose last line is whole before another one is appended.

    What follows half a line cannot be read, and kill -9, or a full disk, leaves one.
    """

    def __init__(self, path: Path) -> None:
        self._path, self._file_lock = path, JournalFileSymlinkLock(str(path))
        super().__init__(str(path), self._file_lock)
        self.held: list[dict[str, Any]] | None = None
        """Lines that are to be written together; None where each is written by itself."""

    def append_logs(self, logs: list[dict[str, Any]]) -> None:
        """Append lines, later if they are held. Raises OSError."""
        if self.held is not None:
            self.held += logs
            return
        if not self._ends_whole():
            self._file_lock.acquire()  # by now another process may have written the rest
            try:
                os.truncate(self._path, self._path.read_bytes().rfind(b"\n") + 1)
            finally:
                self._file_lock.release()
        super().append_logs(logs)

    def _ends_whole(self) -> bool:
        with self._path.open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(0, size - 1))
            return file.read() in (b"", b"\n")


class Journal(PublicStorage, JournalStorage):
    """Optuna's journal in a file, which several processes may share, also over NFS."""

    def __init__(self, path: Path) -> None:
        """Open a journal, or create it."""
        self.path = path
        self._file = _JournalFile(path)
        super().__init__(self._file)

    @contextmanager
    def in_one_write(self) -> Iterator[None]:
        """Write what is set in the block in its end, all or nothing; no trial is created in it."""
        held: list[dict[str, Any]] = []
        self._file.held = held
        try:
            yield
        finally:
            self._file.held = None
        self._file.append_logs(held)


Storage = BulkStorage | PublicStorage
"""What a search stores its trials in."""
