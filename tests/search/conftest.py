import pytest
from fake_evaluator import FakeEvaluator
from storages import STORAGES, storage_of


@pytest.fixture
def path(tmp_path):
    return tmp_path / "studies.db"


@pytest.fixture(params=STORAGES)
def storage(path, request):
    return storage_of(request.param, path)


@pytest.fixture
def evaluator():
    return FakeEvaluator()
