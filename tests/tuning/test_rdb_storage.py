"""A trial that is written in bulk leaves the rows that Optuna's own storage writes."""

import datetime
import math
import sqlite3

import pytest
from optuna.distributions import CategoricalDistribution
from optuna.storages import RDBStorage
from optuna.study import StudyDirection
from optuna.trial import FrozenTrial, TrialState
from sqlalchemy import event

from explorer.tuning.storage import BulkStorage

TABLES = ("trials", "trial_values", "trial_params", "trial_user_attributes")
STARTED = datetime.datetime(2026, 1, 2, 3, 4, 5)
DISTRIBUTIONS = {
    "flag": CategoricalDistribution((False, True)),
    "number": CategoricalDistribution((0, 1)),
    "word": CategoricalDistribution(("a", "b")),
}


def trial(values, flag, attributes=None, state=TrialState.COMPLETE, distributions=DISTRIBUTIONS):
    return FrozenTrial(
        number=-1,
        trial_id=-1,
        state=state,
        value=None,
        values=values,
        datetime_start=STARTED,
        datetime_complete=STARTED,
        params={"flag": flag, "number": int(flag), "word": "b"},
        distributions=distributions,
        user_attrs=attributes or {},
        system_attrs={},
        intermediate_values={},
    )


TRIALS = [
    trial([1.5, 2.0], True, {"samples": [1.0, 2.5], "said": "a ‘word’"}),
    trial([0.5, math.inf], False, {"nothing": None}),
    trial(None, True, {"stage": "compile"}, TrialState.PRUNED),
    trial([3.0, -math.inf], True),
]


def study(kind, path, studies=2):
    storage = kind(f"sqlite:///{path}")
    directions = [StudyDirection.MINIMIZE] * 2
    return storage, [storage.create_new_study(directions, f"s{n}") for n in range(studies)]


def rows(path):
    with sqlite3.connect(path) as connection:
        return {name: connection.execute(f"SELECT * FROM {name}").fetchall() for name in TABLES}


def test_the_rows_are_those_that_optuna_writes(tmp_path):
    for kind in (RDBStorage, BulkStorage):
        storage, studies = study(kind, tmp_path / f"{kind.__name__}.db")
        for one in TRIALS:
            for each in studies:
                storage.create_new_trial(each, template_trial=one)
    assert rows(tmp_path / "BulkStorage.db") == rows(tmp_path / "RDBStorage.db")


def test_several_in_one_transaction_are_the_same_rows(tmp_path):
    """Those of other distributions go Optuna's way."""
    storage, studies = study(BulkStorage, tmp_path / "a.db")
    other = {**DISTRIBUTIONS, "more": CategoricalDistribution((1, 2))}
    more = trial([1.0, 1.0], True, distributions=DISTRIBUTIONS)
    more.params["more"], more.distributions = 2, other
    given = [*TRIALS, more, TRIALS[0]]
    stored = [storage.create_new_trials(each, given) for each in studies]
    one_by_one, again = study(RDBStorage, tmp_path / "b.db")
    for each in again:
        for one in given:
            one_by_one.create_new_trial(each, template_trial=one)
    assert rows(tmp_path / "a.db") == rows(tmp_path / "b.db")
    assert [[one.number for one in each] for each in stored] == [list(range(6))] * 2
    assert [one.trial_id for each in stored for one in each] == list(range(1, 13))


def test_what_is_read_is_what_was_written(tmp_path):
    storage, (first, _) = study(BulkStorage, tmp_path / "a.db")
    for one in TRIALS:
        storage.create_new_trial(first, template_trial=one)
    found = RDBStorage(f"sqlite:///{tmp_path / 'a.db'}").get_all_trials(first)
    assert [each.number for each in found] == list(range(len(TRIALS)))
    for each, one in zip(found, TRIALS, strict=True):
        assert (each.params, each.values, each.state) == (one.params, one.values, one.state)
        assert (each.user_attrs, each.distributions) == (one.user_attrs, one.distributions)
        assert each.datetime_complete == STARTED


@pytest.mark.parametrize("before", [0, 1])
def test_other_distributions_are_refused_as_optuna_does(tmp_path, before):
    storage, (first, _) = study(BulkStorage, tmp_path / "a.db")
    storage.create_new_trial(first, template_trial=TRIALS[0])
    again = BulkStorage(f"sqlite:///{tmp_path / 'a.db'}")
    for _ in range(before):
        again.create_new_trial(first, template_trial=TRIALS[1])
    other = {**DISTRIBUTIONS, "word": CategoricalDistribution(("b", "c"))}
    with pytest.raises(ValueError, match="dynamic value space"):
        again.create_new_trial(first, template_trial=trial([1.0, 1.0], True, distributions=other))
    assert len(rows(tmp_path / "a.db")["trials"]) == 1 + before


def test_a_trial_takes_few_statements(tmp_path):
    storage, (first, _) = study(BulkStorage, tmp_path / "a.db")
    storage.create_new_trial(first, template_trial=TRIALS[0])
    said = []
    event.listen(storage.engine, "before_cursor_execute", lambda *given: said.append(given[2]))
    storage.create_new_trial(first, template_trial=TRIALS[0])
    assert len(said) <= 8, said
