import pytest
from fake_evaluator import FakeEvaluator
from small_database import make
from storages import STORAGES, storage_of

from explorer.tuning import open_storage


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


@pytest.fixture
def one_at_a_time(monkeypatch):
    """What a search tries depends on no clock: nothing is handed over beside what is evaluated."""
    monkeypatch.setattr("explorer.tuning.search.MOST_BEGUN", 1)
