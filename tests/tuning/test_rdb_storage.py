"""A trial that is written in bulk leaves the rows that Optuna's own storage writes."""

import datetime
import json
import math
import sqlite3
import time
from copy import deepcopy

import pytest
from optuna.distributions import CategoricalDistribution
from optuna.storages import RDBStorage
from optuna.study import StudyDirection
from optuna.trial import FrozenTrial, TrialState
from sqlalchemy import event
from storages import Memory

from explorer.tuning.bulk_storage import ABANDONED_AFTER, BulkStorage
from explorer.tuning.storage import Journal, PublicStorage

pytestmark = pytest.mark.exhaustive

TABLES = ("trials", "trial_values", "trial_params", "trial_user_attributes")
STARTED = datetime.datetime(2026, 1, 2, 3, 4, 5)
DISTRIBUTIONS = {
    "flag": CategoricalDistribution((False, True)),
    "number": CategoricalDistribution((0, 1)),
    "word": CategoricalDistribution(("a", "b")),
}


def trial(values, flag, attributes=None, state=TrialState.COMPLETE, started=STARTED):
    return FrozenTrial(
        number=-1,
        trial_id=-1,
        state=state,
        value=None,
        values=values,
        datetime_start=started,
        datetime_complete=None if state is TrialState.RUNNING else STARTED,
        params={"flag": flag, "number": int(flag), "word": "b"},
        distributions=DISTRIBUTIONS,
        user_attrs=attributes or {},
        system_attrs={},
        intermediate_values={},
    )


TRIALS = [
    trial([1.5, 2.0], True, {"samples": [1.0, 2.5], "said": "a ‘word’"}),
    trial([0.5, math.inf], False, {"nothing": None, "digest": "one"}),
    trial(None, True, {"stage": "compile", "digest": "two"}, TrialState.PRUNED),
    trial([3.0, -math.inf], True, {"digest": ""}),
    trial([3.0, 1.0], False, {"digest": ""}),
]


def study(storage, studies=2):
    directions = [StudyDirection.MINIMIZE] * 2
    return storage, [storage.create_new_study(directions, f"s{n}") for n in range(studies)]


def rows(path):
    with sqlite3.connect(path) as connection:
        return {name: connection.execute(f"SELECT * FROM {name}").fetchall() for name in TABLES}


@pytest.mark.parametrize("zone", ["UTC", "Asia/Tokyo"])
def test_the_rows_are_those_that_optuna_writes(tmp_path, monkeypatch, zone):
    monkeypatch.setenv("TZ", zone)
    time.tzset()
    for kind in (RDBStorage, BulkStorage):
        storage, studies = study(kind(f"sqlite:///{tmp_path / kind.__name__}.db"))
        for each in studies:
            if kind is RDBStorage:
                for one in TRIALS:
                    storage.create_new_trial(each, template_trial=one)
            else:
                new = deepcopy(TRIALS)
                assert all(storage.put(each, new))
                assert [one.number for one in new] == list(range(len(TRIALS)))
    assert rows(tmp_path / "BulkStorage.db") == rows(tmp_path / "RDBStorage.db")
    found = RDBStorage(f"sqlite:///{tmp_path / 'BulkStorage.db'}").get_all_trials(studies[0])
    monkeypatch.undo()
    time.tzset()
    assert [(t.params, t.values, t.state, t.user_attrs, t.datetime_start) for t in found] == [
        (t.params, t.values, t.state, t.user_attrs, t.datetime_start) for t in TRIALS
    ]


class Plain(PublicStorage, RDBStorage):
    """Optuna's database, as it writes it itself."""


@pytest.fixture(params=["bulk", "journal", "memory", "plain database"])
def opened(request, tmp_path):
    """A storage of each kind, which has a study."""
    kinds = {
        "bulk": lambda: BulkStorage(f"sqlite:///{tmp_path / 'a.db'}"),
        "journal": lambda: Journal(tmp_path / "a.journal"),
        "memory": Memory,
        "plain database": lambda: Plain(f"sqlite:///{tmp_path / 'a.db'}"),
    }
    storage, (first,) = study(kinds[request.param](), 1)
    return storage, first


def running(digest, started=None):
    started = started or datetime.datetime.now()
    return trial(None, True, {"digest": digest, "origin": "seed"}, TrialState.RUNNING, started)


def test_a_running_trial_gets_its_outcome(opened):
    storage, first = opened
    storage.put(first, [ours := running("one")])
    assert storage.get_trial(ours._trial_id).params == TRIALS[0].params
    outcome = trial([1.0, 2.0], True, {"digest": "one", "origin": "seed", "gbps": 3.5})
    outcome.number = ours.number
    storage.put(first, [outcome, outcome])  # the second time it is finished already
    (found,) = storage.get_all_trials(first)
    assert (found.values, found.state) == ([1.0, 2.0], TrialState.COMPLETE)
    assert found.user_attrs == {"digest": "one", "origin": "seed", "gbps": 3.5}


def test_an_outcome_is_stored_where_another_program_ended_the_running_trial(opened):
    storage, first = opened
    storage.put(first, [ours := running("one")])
    storage.set_trial_state_values(ours._trial_id, TrialState.FAIL)
    outcome = trial([1.0, 2.0], True, {"digest": "one", "origin": "seed"})
    outcome.number = ours.number
    assert storage.put(first, [outcome]) == [True]
    assert outcome._trial_id != ours._trial_id
    assert storage.get_trial(outcome._trial_id).values == [1.0, 2.0]


def test_what_is_finished_or_running_keeps_others_out(opened):
    storage, first = opened
    old = datetime.datetime.now() - ABANDONED_AFTER - datetime.timedelta(seconds=1)
    given = [trial([1.0, 1.0], True, {"digest": "done"}), running("runs"), running("old", old)]
    assert all(storage.put(first, given))
    again = [running("done"), running("runs"), running("old")]
    assert storage.put(first, again) == [False, False, True]
    assert [one.number for one in again] == [0, 1, 3]
    outcomes = [trial([1.0, 1.0], True, {"digest": name}) for name in ("done", "runs", "new")]
    assert storage.put(first, outcomes) == [False, True, True]


def test_a_trial_takes_few_statements(tmp_path):
    storage, (first,) = study(BulkStorage(f"sqlite:///{tmp_path / 'a.db'}"), 1)
    told = []
    event.listen(storage.engine, "before_cursor_execute", lambda *given: told.append(given[2]))
    storage.put(first, deepcopy(TRIALS[:1]))
    assert len(told) <= 8, told
    told.clear()
    many = [trial([1.0, 1.0], True, {"digest": str(n)}) for n in range(16)]
    storage.put(first, many)
    assert len(told) <= 8 + 16, told


def test_finals_that_know_of_more_trials_stay(tmp_path):
    storage, (first,) = study(BulkStorage(f"sqlite:///{tmp_path / 'a.db'}"), 1)
    storage.put(first, [one := deepcopy(TRIALS[1])])
    finals = {one._trial_id: {"finals_rank": 1}}
    for through, parts, kept in ((9, 1, True), (8, 2, False), (9, 3, True)):
        told = {"finals_through": through, "finals_parts": parts, f"finals:{parts}": ""}
        assert storage.put_attributes(first, told, {"word": 1}, finals) == kept
    assert storage.get_study_user_attrs(first) == told
    assert storage.get_trial(one._trial_id).user_attrs == {**TRIALS[1].user_attrs, "finals_rank": 1}
    storage.put_attributes(first, {"finals_through": 9}, {}, {})
    assert storage.get_trial(one._trial_id).user_attrs == TRIALS[1].user_attrs


def test_finals_of_the_first_trial_alone_replace_others(tmp_path):
    storage, (first,) = study(BulkStorage(f"sqlite:///{tmp_path / 'a.db'}"), 1)
    for part in ("one", "two"):
        storage.put_attributes(first, {"finals_through": 0, f"finals:{part}": ""}, {}, {})
    assert storage.get_study_user_attrs(first) == {"finals_through": 0, "finals:two": ""}


def test_a_journal_that_was_cut_off_goes_on(tmp_path):
    """As a full disk leaves it; what is written next would be lost with half a line."""
    path = tmp_path / "a.journal"
    storage, (first,) = study(Journal(path), 1)
    storage.put(first, deepcopy(TRIALS))
    whole = path.read_text()
    path.write_text(whole + json.dumps({"op_code": 4})[:-5])
    storage.put(first, [running("another")])
    again = Journal(path)
    assert len(again.get_all_trials(first)) == len(TRIALS) + 1
