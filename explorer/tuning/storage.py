"""The database of studies: opening it, and writing a trial by few statements."""

import fcntl
import json
import os
import random
import stat
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext, suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import optuna
from optuna.distributions import BaseDistribution, distribution_to_json
from optuna.exceptions import StorageInternalError
from optuna.storages import BaseStorage, RDBStorage
from optuna.storages._rdb.models import (
    BaseModel,
    StudyModel,
    StudySystemAttributeModel,
    StudyUserAttributeModel,
    TrialModel,
    TrialParamModel,
    TrialUserAttributeModel,
    TrialValueModel,
)
from optuna.trial import FrozenTrial
from sqlalchemy import (
    bindparam,
    create_engine,
    delete,
    event,
    func,
    insert,
    inspect,
    select,
    text,
    update,
)
from sqlalchemy.engine import URL, Connection, make_url
from sqlalchemy.exc import (
    ArgumentError,
    NoSuchModuleError,
    OperationalError,
    SQLAlchemyError,
)
from sqlalchemy.pool import StaticPool

from explorer.model.errors import ExplorerError, InvalidInput, NotFound
from explorer.system.plain_data import shown
from explorer.system.user_files import studies_folder

# ------------------------------------------------------------------ statements
# Before every row that Optuna writes, it reads the trial, and an earlier value of the parameter:
# about a hundred statements for a trial of ours, which took half of a search's time. Here all rows
# of a table go in one statement, so a trial takes 8. The rows are the same as Optuna's, so any
# program that knows Optuna reads them.


ATTEMPTS = 5
"""How often a trial is tried to be stored while another process holds the lock, as by Optuna."""

MOST_SECONDS_BETWEEN = 2.0
"""Between two attempts, which are a random time apart, so that two processes do not meet again."""

_COUNT = select(func.count()).where(TrialModel.study_id == bindparam("study"))
_NUMBER_OF = select(TrialModel.number).where(TrialModel.trial_id == bindparam("trial"))


class Stored(NamedTuple):
    """What Optuna knows a stored trial by."""

    trial_id: int
    number: int


class BulkStorage(RDBStorage):
    """RDBStorage that writes finished trials in bulk.

    Where a study has trials of an earlier run, the first new one goes Optuna's way, and so does one
    of other distributions than the last: Optuna raises ValueError where the study has another
    distribution for a parameter.
    """

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._checked: dict[int, _Checked] = {}
        url = self.engine.url
        self._file = Path(str(url.database)).absolute() if _is_sqlite_file(url) else None
        self._inode = _inode(self._file)

    @property
    def gone_file(self) -> Path | None:
        """The file of the database if it was deleted, or another took its place; else None."""
        return self._file if _inode(self._file) != self._inode else None

    def lost_in_file(self, study_id: int, digests: Collection[str]) -> Path | None:
        """The file of the database if the study in it lacks some of the digests; else None.

        That is so where the file was overwritten, as by `cp`, or where trials were deleted, and
        where it is damaged. Of a server's database, which keeps what it was given, None.
        """
        if self._file is None or not digests:
            return None
        model = TrialUserAttributeModel
        of_study = select(model.value_json).join(TrialModel).where(TrialModel.study_id == study_id)
        try:
            with self.engine.connect() as connection:
                found = connection.execute(of_study.where(model.key == "digest")).scalars().all()
        except Exception as error:  # whatever a damaged database raises
            return None if LOCKED in _cause(error) else self._file
        return self._file if set(digests) - {kept_json(text) for text in found} else None

    def create_new_trial(self, study_id: int, template_trial: FrozenTrial | None = None) -> int:
        """Store a trial; returns its id. Raises NotFound where the study is gone."""
        if template_trial is None or not _is_plain(template_trial):
            return super().create_new_trial(study_id, template_trial)
        return self.create_new_trials(study_id, [template_trial])[0].trial_id

    def create_new_trials(self, study_id: int, trials: Sequence[FrozenTrial]) -> list["Stored"]:
        """Store finished trials, all that go one way in one transaction.

        Raises NotFound where the study is gone.
        """
        if study_id not in self._checked and self._is_empty(study_id):
            self._checked[study_id] = _Checked(trials[0].distributions)
        checked = self._checked.get(study_id)
        if checked is None or any(t.distributions != checked.distributions for t in trials):
            first, *others = trials
            trial_id = super().create_new_trial(study_id, first)
            self._checked[study_id] = _Checked(first.distributions)
            stored = Stored(trial_id, self.get_trial_number_from_id(trial_id))
            return [stored, *(self.create_new_trials(study_id, others) if others else ())]
        for _ in range(ATTEMPTS - 1):
            try:
                return self._put_trials(study_id, trials, checked)
            except OperationalError:  # a lock that another process held too long
                time.sleep(random.random() * MOST_SECONDS_BETWEEN)
        return self._put_trials(study_id, trials, checked)

    def _is_empty(self, study_id: int) -> bool:
        with self.engine.connect() as connection:
            return connection.execute(_COUNT, {"study": study_id}).scalar_one() == 0

    def _put_trials(
        self, study_id: int, trials: Sequence[FrozenTrial], checked: "_Checked"
    ) -> list["Stored"]:
        """Write trials and their rows in one transaction."""
        with self.alone(study_id) as connection:
            before = connection.execute(_COUNT, {"study": study_id}).scalar_one()
            stored: list[Stored] = []
            for number, trial in enumerate(trials, before):
                row = {
                    "study_id": study_id,
                    "number": number,
                    "state": trial.state,
                    "datetime_start": trial.datetime_start,
                    "datetime_complete": trial.datetime_complete,
                }
                key = connection.execute(insert(TrialModel), row).inserted_primary_key
                assert key is not None  # the table has one
                stored.append(Stored(int(key[0]), number))
            tables: dict[type[BaseModel], list[dict[str, Any]]] = {}
            for trial, (trial_id, _) in zip(trials, stored, strict=True):
                for model, rows in _rows(trial, checked.as_json).items():
                    ours = ({"trial_id": trial_id, **one} for one in rows)
                    tables.setdefault(model, []).extend(ours)
            for model, rows in tables.items():
                if rows:
                    connection.execute(insert(model), rows)
        return stored

    def get_trial_number_from_id(self, trial_id: int) -> int:
        """Return a trial's number, for which Optuna reads all of the trial. Raises KeyError."""
        with self.engine.connect() as connection:
            number = connection.execute(_NUMBER_OF, {"trial": trial_id}).scalar()
        if number is None:
            raise KeyError(f"no trial has the id {trial_id}")
        return int(number)

    @contextmanager
    def alone(self, study_id: int) -> Iterator[Connection]:
        """A transaction in which no other process changes the study, as long as it comes this way.

        It begins by a write to the study's row, which changes nothing: a server then locks the row,
        as it does for each new trial, and SQLite the file. Raises NotFound where the study is gone.
        """
        same = update(StudyModel).where(StudyModel.study_id == study_id)
        with self.engine.begin() as connection:
            if not connection.execute(same.values(study_name=StudyModel.study_name)).rowcount:
                raise NotFound(
                    "the study was deleted while it was searched; run the same command again to "
                    "begin a new one"
                )
            yield connection

    def put_finals(
        self, study_id: int, study: Mapping[str, Any], trials: Mapping[int, Mapping[str, Any]]
    ) -> bool:
        """Keep user attributes whose names begin with `finals`, of a study and of its trials.

        They take the place of all such attributes there were, in one transaction, so that what is
        read is never of two finals. `trials` are named by their numbers. Optuna itself changes no
        finished trial, and writes each attribute in a transaction of its own.

        Finals know of the trials up to `finals_through`: those of another process that know of more
        are left as they are. Returns whether these were kept.
        """
        of_study, of_trial = StudyUserAttributeModel, TrialUserAttributeModel
        ids = select(TrialModel.trial_id).where(TrialModel.study_id == study_id)
        with self.alone(study_id) as connection:
            through = select(of_study.value_json).where(
                of_study.study_id == study_id, of_study.key == "finals_through"
            )
            known = kept_json(connection.execute(through).scalar())
            if isinstance(known, int) and known > study.get("finals_through", 0):
                return False
            for table, here in (
                (of_study, of_study.study_id == study_id),
                (of_trial, of_trial.trial_id.in_(ids)),
            ):
                connection.execute(delete(table).where(here, table.key.startswith("finals")))
            found = connection.execute(
                select(TrialModel.number, TrialModel.trial_id).where(
                    TrialModel.study_id == study_id, TrialModel.number.in_(trials)
                )
            )
            rows = [
                {"trial_id": trial_id, **row}
                for number, trial_id in found
                for row in _attribute_rows(trials[number])
            ]
            ours = [{"study_id": study_id, **row} for row in _attribute_rows(study)]
            connection.execute(insert(of_study), ours)
            if rows:
                connection.execute(insert(of_trial), rows)
        return True

    def put_notes(self, study_id: int, notes: Mapping[int, str]) -> None:
        """Give trials, by their numbers, notes that optuna-dashboard shows; what has one keeps it.

        A note has less than 2045 characters. The dashboard keeps it with the study, since a
        finished trial does not change.
        """
        system = StudySystemAttributeModel
        with self.alone(study_id) as connection:
            keys = select(system.key).where(
                system.study_id == study_id, system.key.endswith(":note_ver")
            )
            there = set(connection.execute(keys).scalars())
            found = connection.execute(
                select(TrialModel.number, TrialModel.trial_id).where(
                    TrialModel.study_id == study_id, TrialModel.number.in_(notes)
                )
            )
            rows = [
                {"study_id": study_id, "key": f"dashboard:{trial_id}:{key}", "value_json": value}
                for number, trial_id in found
                if f"dashboard:{trial_id}:note_ver" not in there
                for key, value in (("note_ver", "1"), ("note_str:0", json.dumps(notes[number])))
            ]
            if rows:
                connection.execute(insert(system), rows)


def _inode(path: Path | None) -> tuple[int, int] | None:
    """Return what tells a file from one that takes its place; None where there is none."""
    try:
        found = path.stat() if path else None
    except OSError:
        return None
    return (found.st_dev, found.st_ino) if found else None


class _Checked:
    """Distributions that a study accepts, with the text that its database keeps of each."""

    def __init__(self, distributions: dict[str, BaseDistribution]) -> None:
        self.distributions = dict(distributions)
        self.as_json = {name: distribution_to_json(d) for name, d in distributions.items()}


def _is_plain(trial: FrozenTrial) -> bool:
    """Whether a trial is finished and has what ours have: values, parameters, user attributes."""
    return trial.state.is_finished() and not (trial.system_attrs or trial.intermediate_values)


def _rows(
    trial: FrozenTrial, distributions: dict[str, str]
) -> dict[type[BaseModel], list[dict[str, Any]]]:
    """The rows of each table, without the trial's id."""
    values = [TrialValueModel.value_to_stored_repr(value) for value in trial.values or ()]
    return {
        TrialValueModel: [
            {"objective": objective, "value": value, "value_type": kind}
            for objective, (value, kind) in enumerate(values)
        ],
        TrialParamModel: [
            {
                "param_name": name,
                "param_value": trial.distributions[name].to_internal_repr(value),
                "distribution_json": distributions[name],
            }
            for name, value in trial.params.items()
        ],
        TrialUserAttributeModel: _attribute_rows(trial.user_attrs),
    }


def kept_json(text: Any) -> Any:
    """What a database keeps as JSON; None for what is none."""
    with suppress(TypeError, ValueError):
        return json.loads(text)
    return None


def _attribute_rows(attributes: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The rows of user attributes, without the id of what has them."""
    return [{"key": key, "value_json": json.dumps(value)} for key, value in attributes.items()]


# ------------------------------------------------------------------ storage


STORAGE_VARIABLE = "EXPLORER_STORAGE"
"""The environment variable that names the storage where a command does not."""

SEARCH = "explorer search --cols 4096"
"""What creates a study, where no problem is meant."""


def default_storage() -> str:
    """Return what $EXPLORER_STORAGE names, else the path of explorer.db among the studies."""
    return os.environ.get(STORAGE_VARIABLE) or str(studies_folder() / "explorer.db")


LOCK_PATIENCE_S = 5.0
"""How long opening a SQLite file waits for another program that writes to it."""

LOCKED = "another program is writing to it"

_TABLES = frozenset(BaseModel.metadata.tables)
"""The names of Optuna's tables."""


_SQLITE_MAGIC = b"SQLite format 3\0"


def _remedy() -> str:
    return "name another storage, such as sqlite:///studies/explorer.db"


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
    name = parsed.render_as_string(hide_password=True)
    if _is_sqlite_file(parsed):
        is_default = url is None and not os.environ.get(STORAGE_VARIABLE)
        _check_file(Path(str(parsed.database)), missing, default=is_default)
    with said_of(f"storage {name} cannot be opened", _remedy()):
        try:
            if _is_in_memory(parsed):  # it is one connection's: all threads share it
                options = {"poolclass": StaticPool, "connect_args": {"check_same_thread": False}}
                return BulkStorage(parsed.render_as_string(hide_password=False), options)
            return _opened(parsed, name, missing)
        except ImportError as error:
            raise InvalidInput(_missing_driver(parsed, error)) from None


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


def _is_sqlite_file(url: URL) -> bool:
    return url.get_backend_name() == "sqlite" and not _is_in_memory(url)


def _is_in_memory(url: URL) -> bool:
    return url.get_backend_name() == "sqlite" and url.database in (None, "", ":memory:")


def _parse(url: str) -> URL:
    if not url.strip() or not url.isprintable():
        raise InvalidInput(f"storage is {shown(url)}, which names nothing; {_remedy()}")
    if "://" not in url:
        return URL.create("sqlite", database=url)
    try:
        parsed = _with_driver(make_url(url))
        parsed.get_dialect()
    except NoSuchModuleError:
        scheme = url.split("://")[0]
        raise InvalidInput(
            f"storage scheme '{scheme}' is not known to SQLAlchemy; {_remedy()}"
        ) from None
    except (ArgumentError, ValueError):
        raise InvalidInput(f"storage '{url}' is no URL; {_remedy()}") from None
    except ImportError as error:
        raise InvalidInput(_missing_driver(parsed, error)) from None
    return parsed


def _with_driver(url: URL) -> URL:
    """Let `postgresql://` and `postgres://` mean psycopg, where SQLAlchemy would take psycopg2."""
    if url.drivername not in ("postgresql", "postgres"):
        return url
    driver = "" if find_spec("psycopg2") else "+psycopg"
    return url.set(drivername=f"postgresql{driver}")


def _check_file(path: Path, missing: str | None, *, default: bool) -> None:
    """What a user can mend, said before SQLite says it worse.

    `missing` is what to do where there is no file, unless it may be created.
    """
    try:
        if missing is not None and not path.exists():
            raise NotFound(f"no study yet: {path} does not exist; {missing}")
        if default and missing is None:
            path.parent.mkdir(parents=True, exist_ok=True)
        if not path.parent.is_dir():
            raise InvalidInput(
                f"storage folder {path.parent} does not exist; create it, or {_remedy()}"
            )
        if path.exists():
            _check_is_database(path)
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or error
        raise InvalidInput(f"storage {path} cannot be opened: {why}; {_remedy()}") from None
    if missing is None:
        _check_writable(path)


def _check_is_database(path: Path) -> None:
    """Raises InvalidInput for what is no file, and for a file with other content than SQLite's."""
    found = path.stat()
    if stat.S_ISDIR(found.st_mode):
        raise InvalidInput(f"storage {path} is a folder, not a database; {_remedy()}")
    if not stat.S_ISREG(found.st_mode):
        raise InvalidInput(f"storage {path} is a pipe or a device, not a database; {_remedy()}")
    if found.st_size > 0:
        with path.open("rb") as file:
            if file.read(len(_SQLITE_MAGIC)) != _SQLITE_MAGIC:
                raise InvalidInput(f"storage {path} is no SQLite database; {_remedy()}")


def _check_writable(path: Path) -> None:
    # SQLite writes a journal beside the file, so the folder must be writable as well.
    for place in (path.parent, path):
        if place.exists() and not os.access(place, os.W_OK):
            raise InvalidInput(
                f"storage {path} is read-only ({place} cannot be written); {_remedy()}"
            )


def _patience(url: URL) -> dict[str, Any]:
    """Options of an engine that waits for other programs a while, unless the URL says how long."""
    if not _is_sqlite_file(url) or "timeout" in url.query:
        return {}
    return {"connect_args": {"timeout": LOCK_PATIENCE_S}}


def _is_new(url: URL, storage: str, options: dict[str, Any], missing: str | None) -> bool:
    """Return whether Optuna's tables are still to be created: none is there.

    A file with the tables of another program is refused; a server may hold them beside Optuna's.
    """
    engine = create_engine(url, **options)
    try:
        tables = set(inspect(engine).get_table_names())
    finally:
        engine.dispose()
    if tables & _TABLES:
        return False
    if tables and _is_sqlite_file(url):
        raise InvalidInput(
            f"storage {storage} is a database of another program: it has the table "
            f"{shown(min(tables))} and none of Optuna's; {_remedy()}"
        )
    if missing is not None:
        raise NotFound(f"no study yet: storage {storage} is empty; {missing}")
    return True


def _opened(url: URL, name: str, missing: str | None) -> BaseStorage:
    """Open a storage, alone among processes where its tables may have to be created.

    Two that created Optuna's tables at once would each find some that were not there before.
    """
    options = _patience(url)
    is_file = _is_sqlite_file(url) and not url.host  # a host SQLite refuses
    alone: AbstractContextManager[None] = nullcontext()
    if missing is None:
        alone = _locked_file(Path(str(url.database))) if is_file else _locked_server(url, options)
    with alone:
        return _open(url, name, options, is_new=_is_new(url, name, options, missing))


_SERVER_LOCKS = {
    "postgresql": "SELECT pg_advisory_lock(7638326661)",
    "mysql": "SELECT GET_LOCK('softmax-explorer', 60)",
    "mariadb": "SELECT GET_LOCK('softmax-explorer', 60)",
}
"""Statements that take a lock, which is free again once the connection is closed."""


@contextmanager
def _locked_server(url: URL, options: dict[str, Any]) -> Iterator[None]:
    """Let other processes wait that open a database of the same server, where it has such locks."""
    statement = _SERVER_LOCKS.get(url.get_backend_name())
    engine = create_engine(url, **options)
    try:
        with engine.connect() if statement else nullcontext() as connection:
            if connection is not None:
                connection.execute(text(str(statement)))
            yield
    finally:
        engine.dispose()


@contextmanager
def _locked_file(path: Path) -> Iterator[None]:
    """Let other processes wait that open the same file, which is created here if it is not there.

    SQLite's own locks are of another kind, and know nothing of this one.
    """
    with ExitStack() as stack:
        with suppress(OSError):  # a file system without locks, or what SQLite says better
            file = stack.enter_context(path.open("ab"))
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _open(url: URL, name: str, options: dict[str, Any], *, is_new: bool) -> BaseStorage:
    """Open a storage, creating its tables where it is new; one that lacks some is refused.

    A file that is new here has the tables of this Optuna, which takes 0.1 s to compare versions.
    """
    full = url.render_as_string(hide_password=False)
    is_file = _is_sqlite_file(url)
    sure = is_new and is_file
    storage = BulkStorage(
        full, options, skip_compatibility_check=sure, skip_table_creation=not is_new
    )
    lacking = "" if sure else _lacking(storage)
    if lacking:
        raise InvalidInput(
            f"storage {name} is damaged or of another version of Optuna: it lacks {lacking}; "
            f"restore a copy of it, or {_remedy()}"
        )
    if is_file:
        event.listen(storage.engine, "connect", _set_pragmas)
        storage.engine.dispose()
    return storage


def _lacking(storage: BulkStorage) -> str:
    """Return the first table or column of this Optuna that a database lacks; mostly empty."""
    inspector = inspect(storage.engine)
    there = set(inspector.get_table_names())
    for name, table in BaseModel.metadata.tables.items():
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
        f"installed; install {how}, or {_remedy()}"
    )


def _cause(error: BaseException) -> str:
    """Return what the innermost cause of an error says first.

    An error that is not of a database, but of Python code that reads what it found there, is named,
    since its words alone may say nothing.
    """
    told = isinstance(error, (SQLAlchemyError, StorageInternalError, OSError)) or (
        type(error) is RuntimeError  # by which Optuna says that its version does not fit
    )
    while error.__cause__ is not None:
        error = error.__cause__
    original = getattr(error, "orig", None) or error
    line = (str(original).strip() or "no more is known").splitlines()[0]
    if "database is locked" in line:
        return f"{LOCKED} ({line})"
    return line if told else f"{type(original).__name__}: {line}"
