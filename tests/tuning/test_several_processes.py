"""Several processes on one study: each evaluates its own kernels, and learns the others'.

Run on SQLite and on a journal; and on PostgreSQL where a server is named as its own tools name it,
by PGHOST.
"""

import signal
import time
from datetime import datetime, timedelta
from functools import partial

import pytest
from databases import digests, started, trials_of
from fake_evaluator import FakeEvaluator
from optuna.trial import TrialState

from explorer.model.config import Config
from explorer.model.problem import Problem
from explorer.tuning import storage as storages
from explorer.tuning.bulk_storage import ABANDONED_AFTER
from explorer.tuning.search import run_search
from explorer.tuning.storage import open_storage
from explorer.tuning.study_attributes import StudyIdentity
from explorer.tuning.study_reader import load_history

pytestmark = pytest.mark.exhaustive

PROBLEM = Problem(64, 256)


@pytest.mark.parametrize("what", ["search", pytest.param("replay", marks=pytest.mark.exhaustive)])
def test_two_duplicate_nothing_and_learn_from_each_other(url, what):
    """Both open a new database at once, with the same seed; finals are of all that was measured."""
    running = [started(url, 40, what), started(url, 25, what)]
    for process in running:
        assert process.stdout.readline() == "ready\n"
    told = [process.communicate("go\n", timeout=60)[0] for process in running]
    assert [process.returncode for process in running] == [0, 0]
    assert [int(text) for text in told] == [40, 25], "each counts what it evaluates itself"
    trials = trials_of(url)
    assert [trial.number for trial in trials] == list(range(len(trials)))
    finished = [t for t in trials if t.state in (TrialState.COMPLETE, TrialState.PRUNED)]
    assert len(digests(finished)) == len(set(digests(finished))) == 65
    assert not any(trial.state is TrialState.RUNNING for trial in trials)
    view = load_history(open_storage(url, read_only=True), PROBLEM).view
    assert view.since is None


@pytest.mark.exhaustive
def test_one_that_is_killed_leaves_its_kernels_for_ten_minutes(url, monkeypatch):
    """What it had RUNNING may be evaluated once ten minutes have passed.

    A journal's lock, which it may have held, is waited for shorter than the usual 30 s.
    """
    short = partial(storages.JournalFileSymlinkLock, grace_period=3)
    monkeypatch.setattr(storages, "JournalFileSymlinkLock", short)
    killed = started(url, 1000)
    assert killed.stdout.readline() == "ready\n"
    killed.stdin.write("go\n")
    killed.stdin.flush()
    storage = open_storage(url)
    wait_until(lambda: storage.get_all_studies() and running_in(storage))
    killed.send_signal(signal.SIGKILL)
    killed.communicate()
    (study,) = storage.get_all_studies()
    left = running_in(storage)
    evaluator = FakeEvaluator(PROBLEM, identity=Config.to_json)
    run_search(evaluator, open_storage(url), trials=3, rounds=6)
    assert left and not {Config.from_dict(t.params) for t in left} & set(evaluator.evaluated[:3])
    assert running_in(storage) == left
    again = [new(trial, began=datetime.now()) for trial in left]
    assert not any(storage.put(study._study_id, again))


def test_a_trial_that_has_run_for_ten_minutes_is_evaluated_by_another(tmp_path):
    storage = open_storage(str(tmp_path / "a.db"))
    alone = FakeEvaluator(PROBLEM, identity=Config.to_json)
    name = run_search(alone, open_storage("sqlite://"), trials=4, rounds=6).study
    first = run_search(FakeEvaluator(PROBLEM, identity=Config.to_json), storage, trials=1, rounds=6)
    assert first.study == name
    study = storage.get_study_id_from_name(name)
    (known,) = [t for t in storage.get_all_trials(study) if t.user_attrs["digest"]]
    wanted = alone.evaluated[1:4]
    now = datetime.now()
    begins = (now, now - ABANDONED_AFTER + timedelta(minutes=5), now - ABANDONED_AFTER)
    claims = [new(known, began, config) for began, config in zip(begins, wanted, strict=True)]
    assert all(storage.put(study, claims))
    evaluator = FakeEvaluator(PROBLEM, identity=Config.to_json)
    run_search(evaluator, storage, trials=30, rounds=6)
    found = evaluator.evaluated[:30]
    assert wanted[2] in found and not set(wanted[:2]) & set(found)


def new(trial, began, config=None):
    """A trial that another process has RUNNING, like one that is stored."""
    config = config or Config.from_dict(trial.params)
    study = StudyIdentity("", PROBLEM, None, None, 0, trial.distributions)
    return study.trial(config, None, config.to_json(), "seed", began)


def test_a_search_whose_finals_are_not_kept_says_so(url):
    storage = open_storage(url)

    class Overtaken(FakeEvaluator):
        def compare(self, configs, rounds):
            (study,) = storage.get_all_studies()
            storage.set_study_user_attr(study._study_id, "finals_through", 1000)
            return super().compare(configs, rounds)

    assert not run_search(FakeEvaluator(PROBLEM), storage, trials=5, rounds=6).superseded
    told = run_search(Overtaken(PROBLEM), storage, trials=5, rounds=6).superseded
    assert told.startswith("study 'softmax f32 64x256 | ") and "explorer show" in told
    assert storage.get_all_studies()[0].user_attrs["finals_through"] == 1000


def wait_until(holds):
    deadline = time.monotonic() + 30
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def running_in(storage):
    """The trials of the only study that run."""
    (study,) = storage.get_all_studies()
    return storage.get_all_trials(study._study_id, states=(TrialState.RUNNING,))
