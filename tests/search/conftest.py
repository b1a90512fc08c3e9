import pytest
from fake_evaluator import FakeEvaluator

from explorer.search.storage import open_storage


@pytest.fixture
def path(tmp_path):
    return tmp_path / "studies.db"


@pytest.fixture
def storage(path):
    return open_storage(str(path))


@pytest.fixture
def evaluator():
    return FakeEvaluator()
