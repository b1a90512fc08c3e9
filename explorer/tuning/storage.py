"""Storages of studies: how one is opened, and how many rows are written in one transaction.

A storage is a SQLite file, which is the default, Optuna's journal in a file, or a database of a
server. Before every row that Optuna writes to a database, it reads the trial, and an earlier value
of the parameter: some hundred statements for a trial of ours. `BulkStorage` writes the same rows by
one statement a table. This is the one file that uses Optuna's private modules.
"""

import json
import os
import random
import sys
import time
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from datetime import datetime, timedelta
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import optuna
from optuna.distributions import distribution_to_json
from optuna.exceptions import StorageInternalError
from optuna.storages import BaseStorage, JournalStorage, RDBStorage
from optuna.storages._rdb import models
from optuna.storages.journal import JournalFileBackend, JournalFileSymlinkLock
from optuna.trial import FrozenTrial, TrialState
from sqlalchemy import (
    and_,
    create_engine,
    delete,
    event,
    func,
    insert,
    inspect,
    or_,
    select,
    update,
)
from sqlalchemy.engine import URL, Engine, make_url
from sqlalchemy.exc import ArgumentError, NoSuchModuleError, SQLAlchemyError
from sqlalchemy.orm import Session
from sqlalchemy.pool import StaticPool

from explorer.model.errors import ExplorerError, InvalidInput, NotFound
from explorer.system.plain_data import shown
from explorer.system.user_files import open_regular, studies_folder

# ------------------------------------------------------------------ trials that keep others out

ABANDONED_AFTER = timedelta(minutes=10)
"""Age of a RUNNING trial from which its process is taken to have ended without an outcome."""

FINISHED = (TrialState.COMPLETE, TrialState.PRUNED)

KNOWN_BEFORE = ("digest", "origin", "config", "emit")
"""The attributes of a RUNNING trial; its outcome adds the others."""


class Stored(NamedTuple):
    """The trial of a study that has the code of a trial that was to be stored."""

    trial_id: int
    number: int
    is_new: bool = True
    """Whether it was stored now; else the study had it."""


def keeps_out(state: TrialState, started: datetime | None, new: FrozenTrial) -> bool:
    """Return whether a trial of a study keeps out a new trial with the same code.

    A finished trial does. A RUNNING one keeps out another that would run as well, for ten minutes.
    """
    if state is not TrialState.RUNNING or new.state is not TrialState.RUNNING:
        return state in FINISHED
    return started is not None and datetime.now() - started < ABANDONED_AFTER


# ------------------------------------------------------------------ many rows in one transaction


class BulkStorage(RDBStorage):
    """RDBStorage that also writes many rows in one transaction.

    Its user sees to it that all trials of a study have the same distributions.
    """

    def put(self, study_id: int, trials: Sequence[FrozenTrial]) -> list[Stored]:
        """Store trials in one transaction, in their order.

        One that has an id is our RUNNING trial, which gets its outcome. Another one is new, and
        left out if a trial of the study keeps it out. Raises NotFound where the study is gone.
        """
        rows: dict[type[models.BaseModel], list[dict[str, Any]]] = defaultdict(list)
        stored = []
        with self._alone(study_id) as session:
            there = _same_code(session, study_id, trials)
            number = _count(session, study_id)
            for trial in trials:
                same = there[trial.user_attrs.get("digest")]
                row, is_ours = _row_of(session, trial, same), trial._trial_id >= 0
                if row is not None and not (is_ours and row.state is TrialState.RUNNING):
                    stored.append(Stored(row.trial_id, row.number, is_ours))
                    continue
                values = _rows(trial, is_whole=row is None)
                if row is None:
                    row = models.TrialModel(study_id=study_id, number=number)
                    number += 1
                    same += [row] if trial.user_attrs.get("digest") else []
                row.state = trial.state
                row.datetime_start = trial.datetime_start
                row.datetime_complete = trial.datetime_complete
                session.add(row)
                session.flush()  # by which a new row gets its id
                stored.append(Stored(row.trial_id, row.number))
                for model, one in values:
                    rows[model].append({"trial_id": row.trial_id, **one})
            for model, some in rows.items():
                session.execute(insert(model), some)
        return stored

    def put_attributes(
        self,
        study_id: int,
        user: Mapping[str, Any],
        system: Mapping[str, Any],
        trials: Mapping[int, Mapping[str, Any]],
    ) -> bool:
        """Set attributes of a study, and of trials by their ids, in one transaction.

        Those of finals, whose names begin with `finals`, take the place of all there were, also of
        finished trials, which Optuna does not change. Finals know of the trials up to
        `finals_through`: where the study has some that know of more, nothing is set. Returns
        whether it was set.
        """
        of_study, of_system = models.StudyUserAttributeModel, models.StudySystemAttributeModel
        of_trial = models.TrialUserAttributeModel
        with self._alone(study_id) as session:
            if "finals_through" in user:
                if _finals_through(session, study_id) > user["finals_through"]:
                    return False
                _delete_finals(session, study_id)
            _set(session, of_study, of_study.study_id, study_id, user)
            _set(session, of_system, of_system.study_id, study_id, system)
            for trial_id, given in trials.items():
                _set(session, of_trial, of_trial.trial_id, trial_id, given)
        return True

    def changed(self, study_id: int, after: int, watched: Collection[int]) -> list[int]:
        """Return ids of the trials that came after an id, and of those watched that have ended."""
        model = models.TrialModel
        ended = and_(model.trial_id.in_(watched), model.state != TrialState.RUNNING)
        wanted = select(model.trial_id).where(model.study_id == study_id)
        with self.engine.connect() as connection:
            found = connection.execute(wanted.where(or_(model.trial_id > after, ended)))
            return list(found.scalars())

    def lacking(self, study_id: int, digests: Collection[str]) -> set[str]:
        """Return the digests that the file of the database lacks.

        It may have been deleted, replaced, overwritten or damaged since it was opened. A server's
        database, or one that another program is writing to, is taken to have them.
        """
        path = file_of(self)
        if path is None:
            return set()
        model = models.TrialUserAttributeModel
        wanted = (
            select(model.value_json)
            .join(models.TrialModel)
            .where(models.TrialModel.study_id == study_id)
        )
        self.engine.dispose()  # what is opened now has the file of that name
        try:
            if not path.stat().st_size:
                return set(digests)
            with self.engine.connect() as connection:
                found = connection.execute(wanted.where(model.key == "digest")).scalars().all()
        except Exception as error:  # whatever a damaged database raises
            return set() if LOCKED in _cause(error) else set(digests)
        return set(digests) - {_kept_json(text) for text in found}

    @contextmanager
    def _alone(self, study_id: int) -> Iterator[Session]:
        """A transaction in which no other process changes the study, as long as it comes this way.

        It begins by a write to the study's row, which changes nothing: a server then locks the row,
        as it does for each new trial, and SQLite the file. Raises NotFound where the study is gone.
        """
        same = update(models.StudyModel).where(models.StudyModel.study_id == study_id)
        same = same.values(study_name=models.StudyModel.study_name)
        with Session(self.engine) as session, session.begin():
            result: Any = session.execute(same.execution_options(synchronize_session=False))
            if not result.rowcount:
                raise NotFound("the study was deleted while it was searched")
            yield session


def _same_code(
    session: Session, study_id: int, trials: Sequence[FrozenTrial]
) -> dict[Any, list[Any]]:
    """Return the rows of a study with the digests that new trials have, by these."""
    found: dict[Any, list[Any]] = defaultdict(list)
    digests = {trial.user_attrs.get("digest") for trial in trials if trial._trial_id < 0}
    attribute = models.TrialUserAttributeModel
    texts = [json.dumps(digest) for digest in digests if digest]
    wanted = select(attribute.value_json, models.TrialModel).join(models.TrialModel)
    wanted = wanted.where(models.TrialModel.study_id == study_id, attribute.key == "digest")
    for text, row in session.execute(wanted.where(attribute.value_json.in_(texts))):
        found[json.loads(text)].append(row)
    return found


def _row_of(session: Session, trial: FrozenTrial, same: list[Any]) -> Any:
    """Return the row of our RUNNING trial, or the one that keeps out a new trial, or None."""
    if trial._trial_id >= 0:
        return session.get(models.TrialModel, trial._trial_id)
    return next((row for row in same if keeps_out(row.state, row.datetime_start, trial)), None)


def _count(session: Session, study_id: int) -> int:
    count = select(func.count()).where(models.TrialModel.study_id == study_id)
    return session.execute(count).scalar_one()


def _rows(
    trial: FrozenTrial, *, is_whole: bool
) -> list[tuple[type[models.BaseModel], dict[str, Any]]]:
    """Return a trial's rows of other tables, without its id: all, or those of its outcome."""
    rows: list[tuple[type[models.BaseModel], dict[str, Any]]] = []
    row: dict[str, Any]
    for objective, value in enumerate(trial.values or ()):
        stored, kind = models.TrialValueModel.value_to_stored_repr(value)
        row = {"objective": objective, "value": stored, "value_type": kind}
        rows.append((models.TrialValueModel, row))
    for name, value in trial.params.items() if is_whole else ():
        distribution = trial.distributions[name]
        row = {"param_name": name, "param_value": distribution.to_internal_repr(value)}
        row |= {"distribution_json": distribution_to_json(distribution)}
        rows.append((models.TrialParamModel, row))
    attributes = trial.user_attrs.items()
    known = () if is_whole else KNOWN_BEFORE
    new = _attribute_rows({key: value for key, value in attributes if key not in known})
    return rows + [(models.TrialUserAttributeModel, row) for row in new]


def _set(session: Session, table: Any, column: Any, owner: int, given: Mapping[str, Any]) -> None:
    """Set attributes of what has that id in the column; those that are there keep their places."""
    there = set(session.execute(select(table.key).where(column == owner)).scalars())
    rows = [{column.key: owner, **row} for row in _attribute_rows(given)]
    for row in rows:
        if row["key"] in there:
            here = (column == owner, table.key == row["key"])
            session.execute(update(table).where(*here).values(value_json=row["value_json"]))
    new = [row for row in rows if row["key"] not in there]
    if new:
        session.execute(insert(table), new)


def _attribute_rows(attributes: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the rows of attributes, without the id of what has them."""
    return [{"key": key, "value_json": json.dumps(value)} for key, value in attributes.items()]


def _finals_through(session: Session, study_id: int) -> int:
    model = models.StudyUserAttributeModel
    here = (model.study_id == study_id, model.key == "finals_through")
    known = _kept_json(session.execute(select(model.value_json).where(*here)).scalar())
    return known if isinstance(known, int) else -1


def _delete_finals(session: Session, study_id: int) -> None:
    """Delete the attributes of finals, of a study and of its trials."""
    study, trial = models.StudyUserAttributeModel, models.TrialUserAttributeModel
    ids = select(models.TrialModel.trial_id).where(models.TrialModel.study_id == study_id)
    of_study = (study.study_id == study_id, study.key.startswith("finals"))
    of_trials = (trial.trial_id.in_(ids), trial.key.startswith("finals"))
    session.execute(delete(study).where(*of_study))
    session.execute(delete(trial).where(*of_trials))


def _kept_json(text: Any) -> Any:
    """Return what a database keeps as JSON; None for what is none."""
    with suppress(TypeError, ValueError):
        return json.loads(text)
    return None


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


class Journal(JournalStorage):
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


def in_one_write(storage: BaseStorage) -> AbstractContextManager[None]:
    """Have what is set in the block written together, where a storage can do that."""
    return storage.in_one_write() if isinstance(storage, Journal) else nullcontext()


# ------------------------------------------------------------------ opening a storage


STORAGE_VARIABLE = "EXPLORER_STORAGE"
"""The environment variable that names the storage where a command does not."""

SEARCH = "explorer search --cols 4096"
"""The command that creates a study, where no problem is meant."""


def default_storage() -> str:
    """Return the value of $EXPLORER_STORAGE, else the path of explorer.db among the studies."""
    return os.environ.get(STORAGE_VARIABLE) or str(studies_folder() / "explorer.db")


LOCK_PATIENCE_S = 5.0
"""How long opening a SQLite file waits for another program that writes to it."""

LOCKED = "another program is writing to it"

JOURNAL = "journal"
"""The scheme of the URL of a journal, such as journal:///studies/explorer.journal."""

ATTEMPTS = 4
"""How often the tables of a new database are tried to be created. Another process may create the
same ones: then each finds some that were not there before."""

_SQLITE_BEGINS, _JOURNAL_BEGINS = b"SQLite format 3\0", b'{"op_code":'

_TABLES = frozenset(models.BaseModel.metadata.tables)
"""The names of Optuna's tables."""

_REMEDY = "name another storage, such as sqlite:///studies/explorer.db"


def open_storage(
    url: str | None = None, *, read_only: bool = False, command: str = SEARCH
) -> BaseStorage:
    """Open `url` (None: `default_storage`; a plain path: SQLite), creating it if absent.

    With `read_only` nothing is created, and NotFound is raised for an absent file and a database
    without tables, naming the `command` that makes a study. Raises InvalidInput for a storage that
    cannot be opened, and for a database with other tables than Optuna's.
    """
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    parsed = _parse(default_storage() if url is None else url)
    missing = f"run {command}" if read_only else None
    path = _file(parsed)
    if path is not None:
        is_default = url is None and not os.environ.get(STORAGE_VARIABLE)
        _check_file(path, parsed, missing, default=is_default)
    name = parsed.render_as_string(hide_password=True)
    with said_of(f"storage {name} cannot be opened", _REMEDY):
        if path is not None and parsed.drivername == JOURNAL:
            return Journal(path)
        try:
            return _database(parsed, name, missing)
        except ImportError as error:
            raise InvalidInput(_missing_driver(parsed, error)) from None


def file_of(storage: BaseStorage) -> Path | None:
    """Return the file of a storage; None where it is a server's, or in memory."""
    if isinstance(storage, Journal):
        return storage.path
    return _file(storage.engine.url) if isinstance(storage, RDBStorage) else None


def name_of(storage: BaseStorage) -> str:
    """Return the file or the URL of a storage, without its password."""
    path = file_of(storage)
    if path is None and isinstance(storage, RDBStorage):
        return str(storage.engine.url.render_as_string(hide_password=True))
    return "this storage" if path is None else str(path)


@contextmanager
def said_of(what: str, remedy: str = "") -> Iterator[None]:
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
        parsed = _with_driver(make_url(url))
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
    except ImportError as error:
        raise InvalidInput(_missing_driver(parsed, error)) from None
    return parsed


def _with_driver(url: URL) -> URL:
    """Let `postgresql://` and `postgres://` mean psycopg, where SQLAlchemy would take psycopg2."""
    if url.drivername not in ("postgresql", "postgres"):
        return url
    driver = "" if find_spec("psycopg2") else "+psycopg"
    return url.set(drivername=f"postgresql{driver}")


def _check_file(path: Path, url: URL, missing: str | None, *, default: bool) -> None:
    """Say of a file what a user can mend, before SQLite says it worse.

    `missing` is what to do where there is no file, unless it may be created.
    """
    begins, what = _SQLITE_BEGINS, "SQLite database"
    if url.drivername == JOURNAL:
        begins, what = _JOURNAL_BEGINS, "journal of Optuna"
    try:
        if missing is not None and not path.exists():
            raise NotFound(f"no study yet: {path} does not exist; {missing}")
        if default and missing is None:
            path.parent.mkdir(parents=True, exist_ok=True)
        if not path.parent.is_dir():
            raise InvalidInput(
                f"storage folder {path.parent} does not exist; create it, or {_REMEDY}"
            )
        if path.exists():
            with open_regular(path, most_bytes=sys.maxsize, remedy=_REMEDY) as file:
                if file.read(len(begins)) not in (begins, b""):
                    raise InvalidInput(f"storage {path} is no {what}; {_REMEDY}")
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or error
        raise InvalidInput(f"storage {path} cannot be opened: {why}; {_REMEDY}") from None
    for place in (path.parent, path) if missing is None else ():  # locks lie beside the file
        if place.exists() and not os.access(place, os.W_OK):
            raise InvalidInput(
                f"storage {path} is read-only ({place} cannot be written); {_REMEDY}"
            )


# ------------------------------------------------------------------ opening a database


def _database(url: URL, name: str, missing: str | None) -> BulkStorage:
    """Open a database, creating its tables unless they are to be there (`missing`)."""
    options = _options(url)
    is_new = _is_new(url, name, options, missing)

    full = url.render_as_string(hide_password=False)
    for _ in range(ATTEMPTS if is_new else 0):
        with suppress(SQLAlchemyError):
            _create_tables(url, options)
            storage = BulkStorage(full, options)
            break
        time.sleep(random.uniform(0.0, 0.2))
    else:
        storage = BulkStorage(full, options, skip_table_creation=not is_new)
    if lacking := _lacking(storage):
        raise InvalidInput(
            f"storage {name} is damaged or of another version of Optuna: it lacks {lacking}; "
            f"restore a copy of it, or {_REMEDY}"
        )
    if _file(url) is not None:
        event.listen(storage.engine, "connect", _set_pragmas)
        storage.engine.dispose()
    return storage


def _options(url: URL) -> dict[str, Any]:
    """Return the options of an engine, by which a file waits for other programs a while.

    A database in memory is one connection's, which all threads share.
    """
    if url.get_backend_name() != "sqlite":
        return {}
    if _file(url) is None:
        return {"poolclass": StaticPool, "connect_args": {"check_same_thread": False}}
    return {} if "timeout" in url.query else {"connect_args": {"timeout": LOCK_PATIENCE_S}}


def _is_new(url: URL, storage: str, options: dict[str, Any], missing: str | None) -> bool:
    """Return whether Optuna's tables are to be created, or completed: there is no study yet.

    Half of them are there where the process that created them was killed. A file with the tables
    of another program is refused; a server may hold them beside Optuna's.
    """
    with _engine(url, options) as engine:
        tables = set(inspect(engine).get_table_names())
        if models.StudyModel.__tablename__ in tables:
            with engine.connect() as connection:
                if connection.execute(select(models.StudyModel.study_id).limit(1)).first():
                    return False
    if tables and not tables & _TABLES and _file(url) is not None:
        raise InvalidInput(
            f"storage {storage} is a database of another program: it has the table "
            f"{shown(min(tables))} and none of Optuna's; {_REMEDY}"
        )
    if missing is not None and not tables >= _TABLES:
        raise NotFound(f"no study yet: storage {storage} is empty; {missing}")
    return missing is None


def _create_tables(url: URL, options: dict[str, Any]) -> None:
    """Create the tables and indices that a database lacks, in one transaction: all or none."""
    with _engine(url, options) as engine, engine.begin() as connection:
        if url.get_backend_name() == "sqlite":  # Python would commit each statement by itself
            connection.exec_driver_sql("BEGIN IMMEDIATE")
        models.BaseModel.metadata.create_all(connection)
        for table in models.BaseModel.metadata.tables.values():
            for index in table.indexes:
                index.create(connection, checkfirst=True)


@contextmanager
def _engine(url: URL, options: dict[str, Any]) -> Iterator[Engine]:
    """An engine of a database, of which no connection is left in the end."""
    engine = create_engine(url, **options)
    try:
        yield engine
    finally:
        engine.dispose()


def _lacking(storage: BulkStorage) -> str:
    """Return the first table or column of this Optuna that a database lacks; mostly empty."""
    inspector = inspect(storage.engine)
    there = set(inspector.get_table_names())
    for name, table in models.BaseModel.metadata.tables.items():
        if name not in there:
            return f"the table {name}"
        columns = {column["name"] for column in inspector.get_columns(name)}
        lost = [column.name for column in table.columns if column.name not in columns]
        if lost:
            return f"the column {lost[0]} of the table {name}"
    return ""


def _set_pragmas(connection: Any, _record: Any) -> None:
    """One fsync less a commit, and patience with readers; the file's format stays plain."""
    connection.execute("PRAGMA synchronous=NORMAL")
    connection.execute("PRAGMA busy_timeout=30000")


def _missing_driver(url: URL, error: ImportError) -> str:
    cause: BaseException | None = error
    while cause is not None and not getattr(cause, "name", None):
        cause = cause.__cause__ or cause.__context__
    module = getattr(cause, "name", None) or url.drivername
    how = "it by pip install 'softmax-explorer[postgresql]'" if module == "psycopg" else "it"
    return (
        f"storage scheme '{url.drivername}' needs the Python package {module}, which is not "
        f"installed; install {how}, or {_REMEDY}"
    )


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
