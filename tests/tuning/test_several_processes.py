"""Several processes on one study: each evaluates its own kernels, and learns the others'.

Run on SQLite; and on PostgreSQL where a server is named as its own tools name it, by PGHOST.
"""

import threading
import time

import pytest
from databases import digests, started, trials_of
from fake_evaluator import FakeEvaluator

from explorer.model.config import Config
from explorer.model.errors import NotFound
from explorer.model.problem import Problem
from explorer.tuning import load_study, open_storage, run_search
from explorer.tuning.claims import LEASE_S, Claims

PROBLEM = Problem(64, 256)


@pytest.mark.parametrize("what", ["search", "replay"])
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
    assert len(digests(trials)) == len(set(digests(trials))) == 65
    storage = open_storage(url, read_only=True)
    (study,) = storage.get_all_studies()
    view = load_study(storage, PROBLEM)
    assert view.since is None and study.user_attrs["finals_through"] == len(trials) - 1
    assert not [name for name in study.system_attrs if name.startswith("softmax-explorer")]
    storage.engine.dispose()


def test_one_that_is_killed_leaves_its_kernels_to_others(url):
    """What it had claimed, and not finished, may be claimed once it is known to have ended."""
    killed = started(url, 1000)
    assert killed.stdout.readline() == "ready\n"
    killed.stdin.write("go\n")
    killed.stdin.flush()
    storage = open_storage(url)
    wait_until(lambda: storage.get_all_studies() and claimed(storage))
    killed.kill()
    killed.communicate()
    left = claimed(storage)
    unfinished = left - set(digests(trials_of(url)))
    assert unfinished
    (study,) = storage.get_all_studies()
    exchanged = Claims(storage, study._study_id).exchange(sorted(left), [], -1)
    assert exchanged.granted == unfinished
    run_search(FakeEvaluator(PROBLEM), storage, trials=3, rounds=6)
    found = digests(trials_of(url))
    assert len(found) == len(set(found))
    storage.engine.dispose()


def test_nothing_is_claimed_twice(url):
    """Of two that want the same at once each gets what the other does not."""
    storage = open_storage(url)
    study = storage.create_new_study([], "shared")
    wanted = [f"digest {number}" for number in range(40)]
    both = [Claims(storage, study) for _ in range(2)]
    granted = [set(), set()]

    def claim(index):
        for start in range(0, 40, 5):
            granted[index] |= both[index].exchange(wanted[start : start + 5], [], -1).granted

    threads = [threading.Thread(target=claim, args=(index,)) for index in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not granted[0] & granted[1] and granted[0] | granted[1] == set(wanted)
    both[0].withdraw()
    assert claimed(storage) == granted[1]
    assert both[1].exchange(wanted, [], -1).granted == set(wanted), "its own, and what is free"
    storage.engine.dispose()


def test_a_claim_outlives_no_lease(tmp_path):
    """A process of another host is taken to have ended when it has said nothing for a while."""
    storage = open_storage(str(tmp_path / "a.db"))
    study = storage.create_new_study([], "shared")
    far, near = Claims(storage, study), Claims(storage, study)
    far._host = "elsewhere"
    far._name = "elsewhere:1:ab"
    assert far.exchange(["a"], [], -1).granted == {"a"}
    assert not near.exchange(["a"], [], -1).granted
    key = "softmax-explorer:process:elsewhere:1:ab"
    sign = storage.get_study_system_attrs(study)[key]
    storage.set_study_system_attr(study, key, {**sign, "seen": sign["seen"] - LEASE_S - 1})
    assert near.exchange(["a"], [], -1).granted == {"a"}


def test_damaged_claims_are_no_hindrance(tmp_path):
    storage = open_storage(str(tmp_path / "a.db"))
    study = storage.create_new_study([], "shared")
    for number, value in enumerate((None, 7, [], {"seen": "x"}, {"seen": 1e300, "pid": 10**30})):
        storage.set_study_system_attr(study, f"softmax-explorer:process:p{number}", value)
        storage.set_study_system_attr(study, f"softmax-explorer:claim:d{number}", value)
    claims = Claims(storage, study)
    assert "d0" in claims.exchange(["d0", "d1", "d2", "new"], [], -1).granted
    claims.withdraw()
    assert not claimed(storage)


def test_a_study_that_is_deleted_is_said(tmp_path):
    storage = open_storage(str(tmp_path / "a.db"))
    study = storage.create_new_study([], "shared")
    claims = Claims(storage, study)
    storage.delete_study(study)
    with pytest.raises(NotFound, match="deleted"):
        claims.exchange(["a"], [], -1)


def test_what_an_ended_process_had_claimed_is_offered_again(tmp_path):
    """It is refused as long as that process lives; the first kernels may be among it."""
    storage = open_storage(str(tmp_path / "a.db"))
    first = run_search(FakeEvaluator(PROBLEM, identity=Config.to_json), storage, trials=1, rounds=6)
    study = storage.get_study_id_from_name(first.study)
    far = Claims(storage, study)
    far._host, far._name = "elsewhere", "elsewhere:1:ab"

    class Watched(FakeEvaluator):
        def evaluate(self, config):
            if len(self.evaluated) == 10:  # by then it has refused what was claimed
                far.withdraw()
            return super().evaluate(config)

    alone = FakeEvaluator(PROBLEM, identity=Config.to_json)
    run_search(alone, open_storage("sqlite:///:memory:"), trials=4, rounds=6)
    wanted = [config.to_json() for config in alone.evaluated[1:]]
    assert far.exchange(wanted, [], -1).granted == set(wanted)
    watched = Watched(PROBLEM, identity=Config.to_json)
    result = run_search(watched, storage, trials=40, rounds=6)
    found = [config.to_json() for config in watched.evaluated]
    assert not set(wanted) & set(found[:10]) and set(wanted) < set(found[10:])
    assert len(found) == len(set(found)) == 40 and result.duplicates == 0
    trials = trials_of(f"sqlite:///{tmp_path / 'a.db'}")
    assert len(digests(trials)) == len(set(digests(trials))) == 41


def test_a_search_whose_finals_are_not_kept_says_so(tmp_path):
    storage = open_storage(str(tmp_path / "a.db"))

    class Overtaken(FakeEvaluator):
        def compare(self, configs, rounds):
            (study,) = storage.get_all_studies()
            storage.set_study_user_attr(study._study_id, "finals_through", 1000)
            return super().compare(configs, rounds)

    assert not run_search(FakeEvaluator(PROBLEM), storage, trials=5, rounds=6).superseded
    told = run_search(Overtaken(PROBLEM), storage, trials=5, rounds=6).superseded
    assert told.startswith("study 'softmax f32 64x256 | ") and "explorer show" in told
    assert storage.get_all_studies()[0].user_attrs["finals_through"] == 1000


def test_finals_that_know_of_more_trials_stay(tmp_path):
    storage = open_storage(str(tmp_path / "a.db"))
    study = storage.create_new_study([], "shared")
    assert storage.put_finals(study, {"finals_through": 9, "finals_parts": 1}, {})
    assert not storage.put_finals(study, {"finals_through": 8, "finals_parts": 2}, {})
    assert storage.get_study_user_attrs(study) == {"finals_through": 9, "finals_parts": 1}
    assert storage.put_finals(study, {"finals_through": 9, "finals_parts": 3}, {})


def wait_until(holds):
    deadline = time.monotonic() + 30
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def claimed(storage):
    """The digests that are claimed, by whomever."""
    (study,) = storage.get_all_studies()
    claims = (n for n in study.system_attrs if n.startswith("softmax-explorer:claim:"))
    return {name.removeprefix("softmax-explorer:claim:") for name in claims}
