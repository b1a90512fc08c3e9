"""Where studies are kept: any storage that Optuna opens, by default a SQLite file."""

import os
from pathlib import Path
from typing import Any

import optuna
from optuna.exceptions import StorageInternalError
from optuna.storages import BaseStorage, RDBStorage
from sqlalchemy import event
from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import ArgumentError, NoSuchModuleError, SQLAlchemyError
from sqlalchemy.pool import StaticPool

from explorer.errors import InvalidInput, NotFound

DEFAULT_PATH = Path("studies") / "explorer.db"

_SQLITE_MAGIC = b"SQLite format 3\0"
_REMEDY = "name another with --storage, such as sqlite:///studies/explorer.db"


def open_storage(url: str | None = None, *, read_only: bool = False) -> BaseStorage:
    """Open `url` (None: studies/explorer.db here; a plain path: SQLite), creating it if absent.

    With `read_only` nothing is created and an absent file raises NotFound; raises InvalidInput
    for a storage that cannot be opened.
    """
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    parsed = _parse(url)
    if parsed.get_backend_name() == "sqlite" and parsed.database not in (None, "", ":memory:"):
        _check_file(Path(str(parsed.database)), read_only=read_only, default=url is None)
    return _open(parsed)


def _parse(url: str | None) -> URL:
    if url is None or "://" not in url:
        return URL.create("sqlite", database=str(DEFAULT_PATH if url is None else url))
    try:
        parsed = make_url(url)
        parsed.get_dialect()
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


def _check_file(path: Path, *, read_only: bool, default: bool) -> None:
    """What a user can mend, said before SQLite says it worse."""
    try:
        if read_only and not path.exists():
            raise NotFound(f"no study yet: {path} does not exist; run explorer search --cols 4096")
        if default and not read_only:
            path.parent.mkdir(exist_ok=True)
        if not path.parent.is_dir():
            raise InvalidInput(
                f"storage folder {path.parent} does not exist; create it, or {_REMEDY}"
            )
        if path.is_dir():
            raise InvalidInput(f"storage {path} is a folder, not a database; {_REMEDY}")
        if path.exists() and path.stat().st_size > 0:
            with path.open("rb") as file:
                if file.read(len(_SQLITE_MAGIC)) != _SQLITE_MAGIC:
                    raise InvalidInput(f"storage {path} is no SQLite database; {_REMEDY}")
    except OSError as error:
        raise InvalidInput(
            f"storage {path} cannot be opened: {error.strerror}; {_REMEDY}"
        ) from None
    if not read_only:
        _check_writable(path)


def _check_writable(path: Path) -> None:
    # SQLite writes a journal beside the file, so the folder must be writable as well.
    for place in (path.parent, path):
        if place.exists() and not os.access(place, os.W_OK):
            raise InvalidInput(
                f"storage {path} is read-only ({place} cannot be written); {_REMEDY}"
            )


def _open(url: URL) -> BaseStorage:
    shown = url.render_as_string(hide_password=True)
    try:
        storage = RDBStorage(url.render_as_string(hide_password=False), _engine_options(url))
    except ImportError as error:
        raise InvalidInput(_missing_driver(url, error)) from None
    except (SQLAlchemyError, StorageInternalError, RuntimeError, ValueError, OSError) as error:
        raise InvalidInput(
            f"storage {shown} cannot be opened: {first_line(error)}; {_REMEDY}"
        ) from None
    if url.get_backend_name() == "sqlite" and _engine_options(url) is None:
        event.listen(storage.engine, "connect", _set_pragmas)
        storage.engine.dispose()
    return storage


def _engine_options(url: URL) -> dict[str, Any] | None:
    """A database in memory is one connection's: all threads share it."""
    if url.get_backend_name() != "sqlite" or url.database not in (None, "", ":memory:"):
        return None
    return {"poolclass": StaticPool, "connect_args": {"check_same_thread": False}}


def _set_pragmas(connection: Any, _record: Any) -> None:
    """One fsync less a commit, and patience with readers; the file's format stays plain."""
    connection.execute("PRAGMA synchronous=NORMAL")
    connection.execute("PRAGMA busy_timeout=30000")


def _missing_driver(url: URL, error: ImportError) -> str:
    cause: BaseException | None = error
    while cause is not None and not getattr(cause, "name", None):
        cause = cause.__cause__ or cause.__context__
    module = getattr(cause, "name", None) or url.drivername
    return (
        f"storage scheme '{url.drivername}' needs the Python package {module}, which is not "
        f"installed; install it, or {_REMEDY}"
    )


def first_line(error: BaseException) -> str:
    """The first line of an error's innermost cause, for a one-line message."""
    while error.__cause__ is not None:
        error = error.__cause__
    original = getattr(error, "orig", None) or error
    return (str(original).strip() or type(original).__name__).splitlines()[0]
