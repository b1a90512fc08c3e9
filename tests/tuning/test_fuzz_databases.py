"""Whatever a database is changed to, it is read, or refused in one sentence."""

import json
import sqlite3
from contextlib import closing

import pytest
from hostile_values import bounded, changed, changed_bytes, json_values, quick, thorough
from hypothesis import given
from hypothesis import strategies as st
from optuna.storages._rdb.storage import _VersionManager
from small_database import go_on, in_memory, kept_in, look, look_into

from explorer.tuning.study_attributes import finals_text


@pytest.fixture(scope="module")
def whole(base):
    return base.read_bytes()


@pytest.fixture(scope="module", autouse=True)
def head_read_once(opened):
    """Optuna reads its newest schema from scripts of its own wherever it opens a database."""
    head = opened.get_head_version()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_VersionManager, "get_head_version", lambda manager: head)
        yield


def changed_study(data, opened):
    """The study in memory, some of its attributes, or those of all trials, changed."""
    study, trials = kept_in(opened)
    attributes = study.user_attrs
    if data.draw(st.booleans()):
        name = data.draw(st.sampled_from(sorted({*attributes, "finals"})))
        if name == "finals":
            finals = data.draw(changed(json.loads(finals_text(attributes))))
            return in_memory(opened, study={name: json.dumps(finals)})
        return in_memory(opened, study=data.draw(changed({name: attributes[name]})))
    trial = trials[data.draw(st.integers(0, 5))]
    return in_memory(opened, trial=data.draw(changed(trial.user_attrs)))


@given(st.data())
@quick(12)
def test_changed_attributes(opened, data):
    with bounded():
        look_into(changed_study(data, opened))


@given(st.data())
@quick(5)
def test_changed_bytes(base, whole, data):
    path = base.with_name("changed.db")
    path.write_bytes(data.draw(changed_bytes(whole)))
    with bounded():
        look(path)


COLUMNS = {
    "study_user_attributes": "value_json",
    "study_system_attributes": "value_json",
    "trial_user_attributes": "value_json",
    "trial_params": "distribution_json",
}


@pytest.mark.exhaustive
@given(st.data())
@thorough(3000)
def test_many_changed_attributes(opened, data):
    with bounded():
        look_into(changed_study(data, opened))


@pytest.mark.exhaustive
@given(st.data())
@thorough(300)
def test_many_changed_bytes(base, whole, data):
    path = base.with_name("changed.db")
    path.write_bytes(data.draw(changed_bytes(whole, most=40)))
    with bounded():
        look(path)
        go_on(path)


@pytest.mark.exhaustive
@given(st.data())
@thorough(300)
def test_many_changed_texts_of_the_database(base, whole, data):
    """What Optuna itself reads as JSON."""
    path = base.with_name("changed.db")
    path.write_bytes(whole)
    with closing(sqlite3.connect(path)) as connection, connection:
        table = data.draw(st.sampled_from(sorted(COLUMNS)))
        column = COLUMNS[table]
        kept = connection.execute(f"SELECT rowid, {column} FROM {table}").fetchall()
        for row, text in data.draw(st.lists(st.sampled_from(kept), min_size=1, max_size=4)):
            made = data.draw(
                json_values.map(json.dumps)
                | changed_bytes(text.encode()).map(lambda content: content.decode(errors="ignore"))
                | changed({"it": json.loads(text)}).map(lambda one: json.dumps(one.get("it")))
            )
            connection.execute(f"UPDATE {table} SET {column} = ? WHERE rowid = ?", (made, row))
    with bounded():
        look(path)
        go_on(path)


NUMBERS = {
    "trials": ("number", "study_id", "state", "datetime_start", "datetime_complete"),
    "trial_values": ("value", "value_type", "objective", "trial_id"),
    "trial_params": ("param_name", "param_value", "trial_id"),
    "studies": ("study_name",),
    "study_directions": ("direction", "objective"),
    "version_info": ("schema_version", "library_version"),
    "alembic_version": ("version_num",),
}

cells = st.sampled_from(
    [None, 0, 1, -1, 5, 99, 2**31, 2**62, 0.5, 1e308, float("inf"), "", "abc", "PRUNED", b"\xff"]
)


@pytest.mark.exhaustive
@given(st.data())
@thorough(300)
def test_many_changed_cells(base, whole, data):
    path = base.with_name("changed.db")
    path.write_bytes(whole)
    with closing(sqlite3.connect(path)) as connection:
        for _ in range(data.draw(st.integers(1, 3))):
            table = data.draw(st.sampled_from(sorted(NUMBERS)))
            column = data.draw(st.sampled_from(NUMBERS[table]))
            where = data.draw(st.sampled_from(["1", "rowid = 1", "rowid % 2"]))
            statement = f"UPDATE OR IGNORE {table} SET {column} = ? WHERE {where}"
            connection.execute(statement, (data.draw(cells),))
        connection.commit()
    with bounded():
        look(path)
        go_on(path)
