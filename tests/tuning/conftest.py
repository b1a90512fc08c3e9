import os
from uuid import uuid4

import pytest
from fake_evaluator import FakeEvaluator
from small_database import make
from sqlalchemy import create_engine, text
from storages import STORAGES, storage_of

from explorer.tuning.storage import open_storage

needs_server = pytest.mark.skipif(
    "PGHOST" not in os.environ, reason="needs a server: pg_virtualenv pytest, with psycopg"
)


@pytest.fixture(params=["sqlite", "journal", pytest.param("postgresql", marks=needs_server)])
def url(request, tmp_path):
    """A storage that nothing has opened yet."""
    if request.param != "postgresql":
        yield f"{request.param}:///{tmp_path / 'shared'}"
        return
    name = f"studies_{uuid4().hex}"
    server = create_engine("postgresql+psycopg://", isolation_level="AUTOCOMMIT")
    with server.connect() as connection:
        connection.execute(text(f"CREATE DATABASE {name}"))
        yield f"postgresql+psycopg:///{name}"
        connection.execute(text(f"DROP DATABASE {name} WITH (FORCE)"))
    server.dispose()


@pytest.fixture
def path(tmp_path):
    return tmp_path / "studies.db"


@pytest.fixture(params=STORAGES)
def storage(path, request):
    return storage_of(request.param, path)


@pytest.fixture(scope="session")
def base(tmp_path_factory):
    """A database of one small study, which tests copy before they damage it."""
    path = tmp_path_factory.mktemp("base") / "studies.db"
    make(path)
    return path


@pytest.fixture(scope="session")
def opened(base):
    return open_storage(str(base))


@pytest.fixture
def evaluator():
    return FakeEvaluator()


@pytest.fixture(autouse=True)
def folder_of_its_own(tmp_path, monkeypatch):
    """What a search keeps in the current folder, when its storage fails, goes with the test."""
    monkeypatch.chdir(tmp_path)
