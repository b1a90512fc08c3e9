"""A process of its own stores a search's trials: as the search itself would, and nothing is lost.

Run on SQLite; and on PostgreSQL where a server is named as its own tools name it, by PGHOST.
"""

import multiprocessing
import os
import signal
from contextlib import closing
from functools import partial

import pytest
from databases import delete_study, digests, started, trials_of
from fake_evaluator import Disturbed, FakeEvaluator, instead_of_a_gpu
from sqlalchemy.exc import OperationalError

import explorer
from explorer.model.config import Config
from explorer.model.errors import ExplorerError, InvalidInput
from explorer.model.problem import Problem
from explorer.tuning import load_study, merge_trials, open_storage, read_unsaved, run_search
from explorer.tuning.study_process import ClaimsElsewhere, StudyProcess, _chain, _linked

PROBLEM = Problem(64, 256)


@pytest.fixture(scope="module")
def process():
    """One for several databases: it takes a second to start."""
    with closing(StudyProcess()) as process:
        yield process


def searched(storage, process, evaluator=None, trials=20):
    evaluator = evaluator or FakeEvaluator(PROBLEM, identity=Config.to_json)
    run_search(evaluator, storage, trials=trials, rounds=6, process=process)
    return evaluator


def test_it_stores_what_was_evaluated_in_that_order(process, url):
    storage = open_storage(url)
    assert process.open(storage.shared_url)
    evaluator = searched(storage, process)
    trials = [trial for trial in trials_of(url) if trial.user_attrs["digest"]]
    assert [trial.params for trial in trials] == [c.as_dict() for c in evaluator.evaluated]
    assert all(trial.distributions for trial in trials)
    (study,) = storage.get_all_studies()
    assert not [name for name in study.system_attrs if name.startswith("softmax-explorer")]
    again = searched(storage, process, trials=3)
    assert not {c.to_json() for c in again.evaluated} & {c.to_json() for c in evaluator.evaluated}
    assert load_study(storage, PROBLEM).best.outcome.time_us > 0
    storage.engine.dispose()


def test_it_shares_the_study_with_other_searches(process, url):
    storage = open_storage(url)
    assert process.open(storage.shared_url)
    other = started(url, 25)
    assert other.stdout.readline() == "ready\n"
    other.stdin.write("go\n")
    other.stdin.flush()
    searched(storage, process)
    other.communicate(timeout=60)
    found = digests(trials_of(url))
    assert len(found) == len(set(found)) == 45
    storage.engine.dispose()


def test_what_the_database_raises_is_raised_here(process, tmp_path):
    storage = open_storage("a.db")
    assert process.open(storage.shared_url)

    deleting = Disturbed(PROBLEM, partial(delete_study, storage))
    with pytest.raises(ExplorerError, match="the study was deleted while it was searched"):
        searched(storage, process, deleting)
    (file,) = tmp_path.glob("unsaved-trials-*.jsonl")
    assert merge_trials(storage, read_unsaved(file)).added >= 1
    with pytest.raises(ExplorerError, match="deleted"):
        ClaimsElsewhere(process, 1000).exchange(["a"], [], -1)


def test_ctrl_c_is_left_to_the_search(process):
    storage = open_storage("a.db")
    os.kill(process.pid, signal.SIGINT)
    assert process.open(storage.shared_url)


def test_where_it_is_killed_nothing_that_finished_is_lost(tmp_path):
    storage = open_storage("a.db")
    with closing(StudyProcess()) as process:
        assert process.open(storage.shared_url)
        killing = Disturbed(PROBLEM, partial(os.kill, process.pid, signal.SIGKILL))
        with pytest.raises(InvalidInput, match="the process that stores trials has ended"):
            searched(storage, process, killing)
    (file,) = tmp_path.glob("unsaved-trials-*.jsonl")
    merge_trials(storage, read_unsaved(file))
    (study,) = storage.get_all_studies()
    stored = [t.params for t in storage.get_all_trials(study._study_id) if t.user_attrs["digest"]]
    assert stored == [config.as_dict() for config in killing.evaluated]


def test_a_search_on_a_gpu_has_one_and_ends_it(monkeypatch, tmp_path):
    stored, store = [], StudyProcess.create_new_trials

    def noted(self, study_id, trials):
        stored.extend(trials)
        return store(self, study_id, trials)

    instead_of_a_gpu(monkeypatch)
    monkeypatch.setattr(StudyProcess, "create_new_trials", noted)
    others = set(multiprocessing.active_children())
    result = explorer.search(cols=256, rows=64, trials=8, storage="a.db")
    assert result.measured == len([t for t in stored if t.values])
    with pytest.raises(InvalidInput, match="folder"):
        explorer.search(cols=256, rows=64, trials=8, storage=str(tmp_path / "no folder" / "a.db"))
    assert set(multiprocessing.active_children()) <= others


def test_what_it_cannot_open_is_left_to_the_search(tmp_path):
    process = StudyProcess()
    assert not process.open(f"sqlite:///{tmp_path / 'no folder' / 'a.db'}")
    process.close()
    assert open_storage("sqlite://").shared_url is None, "in memory: it is this process's alone"


def test_an_error_is_sent_with_its_causes():
    """By the innermost of them a user is told what is wrong."""

    class Unsendable(Exception):
        """Of a class that no other process finds."""

    locked = OperationalError("UPDATE", {}, Exception("database is locked"))
    try:
        raise Unsendable("words") from locked
    except Unsendable as error:
        linked = _linked(_chain(error))
    assert "words" in str(linked) and str(linked.__cause__) == str(locked)
    assert str(linked.__cause__.orig) == "database is locked"
