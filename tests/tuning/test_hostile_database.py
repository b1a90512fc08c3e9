"""A database that is damaged, foreign or of another version gives a sentence, never a traceback."""

import json
import os
import sqlite3
from contextlib import closing

import pytest
from small_database import PROBLEM, copy, execute, go_on, in_memory, look, look_into

from explorer.export.choice import variant_of
from explorer.model.errors import InvalidInput, NotFound
from explorer.report.studies import dashboard_command
from explorer.tuning.storage import open_storage
from explorer.tuning.study_attributes import finals_text
from explorer.tuning.study_reader import load_trial

pytestmark = pytest.mark.exhaustive


@pytest.fixture
def path(base, tmp_path):
    return copy(base, tmp_path / "studies.db")


def test_the_base_is_sound(path):
    assert look(path) == [
        "trial 99 does not exist; study "
        f"'{study_name(path)}' has trials 0 to 5; choose one of them, or best"
    ]


def study_name(path):
    with closing(sqlite3.connect(path)) as connection:
        return connection.execute("SELECT study_name FROM studies").fetchone()[0]


def refused(path, says):
    """Nothing is read or written of it; it stays as it is."""
    before = path.read_bytes()
    for read_only in (True, False):
        with pytest.raises(InvalidInput) as raised:
            open_storage(str(path), read_only=read_only)
        message = str(raised.value)
        assert says in message and "\n" not in message and "name another storage" in message
    with pytest.raises(InvalidInput):
        dashboard_command(str(path), 8080)
    assert path.read_bytes() == before
    assert sorted(one.name for one in path.parent.iterdir()) == [path.name]


@pytest.fixture(autouse=True)
def dashboard_is_installed(monkeypatch):
    monkeypatch.setattr("explorer.report.studies.dashboard_program", lambda: "/bin/dashboard")


def test_a_database_of_another_program(tmp_path):
    path = tmp_path / "mine.db"
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("CREATE TABLE songs (title)")
    refused(path, "is a database of another program: it has the table 'songs'")


def test_a_table_that_is_missing(path):
    execute(path, "DELETE FROM sqlite_master WHERE name = 'trials'")
    refused(path, "trials")


def test_a_column_that_is_missing(path):
    execute(path, "DROP INDEX ix_trials_study_id")
    execute(path, "ALTER TABLE trials RENAME COLUMN number TO figure")
    refused(path, "no such column: trials.number")


def test_another_version_of_optuna(path):
    execute(path, "UPDATE alembic_version SET version_num = 'v99.0.0.a'")
    refused(path, "no longer compatible with the table schema")


def test_an_older_version_is_not_changed(path):
    """Optuna would create the tables that it lacks, and then not be able to upgrade it."""
    execute(path, "UPDATE alembic_version SET version_num = 'v2.4.0.a'")
    execute(path, "DROP TABLE trial_intermediate_values")
    refused(path, "optuna storage upgrade")


@pytest.mark.parametrize("content", [b"text", b"SQLite format 3\0", b"SQLite format 3\0" * 999])
def test_other_content(tmp_path, content):
    path = tmp_path / "mine.db"
    path.write_bytes(content)
    refused(path, "mine.db")


@pytest.mark.parametrize("share", [0.9])
def test_a_database_that_is_cut_short(path, share):
    path.write_bytes(path.read_bytes()[: int(path.stat().st_size * share)])
    assert look(path)
    assert isinstance(go_on(path), str)


def test_an_empty_file_is_no_study_yet(tmp_path):
    path = tmp_path / "new.db"
    path.touch()
    assert look(path) == [
        f"no study yet: storage sqlite:///{path} is empty; run explorer search --cols 4096"
    ]
    assert path.read_bytes() == b""  # reading creates nothing


@pytest.mark.parametrize("kind", ["pipe", "folder", "device", "loop"])
def test_no_file(tmp_path, kind):
    path = tmp_path / "it.db"
    {
        "pipe": lambda: os.mkfifo(path),
        "folder": path.mkdir,
        "device": lambda: path.symlink_to("/dev/zero"),
        "loop": lambda: path.symlink_to(path.name),
    }[kind]()
    (said,) = look(path)
    assert "it.db" in said
    assert "it.db" in go_on(path)


def test_a_locked_database(path):
    impatient = f"sqlite:///{path}?timeout=0.01"
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("BEGIN EXCLUSIVE")
        (said,) = look(impatient)
        assert "another program is writing to it (database is locked)" in said
        assert said.count("\n") == 0 and go_on(impatient) == said


@pytest.mark.parametrize(
    "url", ["", " ", "sqlite:///%00", "sqlite:///\udcff.db", "sqlite://h/x.db"]
)
def test_a_url_that_names_nothing(url, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for read_only in (True, False):
        with pytest.raises((InvalidInput, NotFound)):
            open_storage(url, read_only=read_only)
    assert list(tmp_path.iterdir()) == []


DEEP = [[[[[[[]]]]]]]
STUDY_VALUES = {
    "problem": ("x", None, {}, {"rows": 64, "cols": 256, "hats": 1}),
    "circumstances": ({}, None),
    "finals": (5, "{", "[]", '{"finalists":[]}', "9" * 5000, "[" * 100_000),
    "objectives": ("speed", []),
    "searched_at": ([1], "\ud800"),
}


@pytest.mark.parametrize(("key", "value"), [(k, v) for k in STUDY_VALUES for v in STUDY_VALUES[k]])
def test_an_attribute_of_a_study(opened, key, value):
    said = look_into(in_memory(opened, study={key: value}))
    assert said and all("is damaged" in one for one in said), said


@pytest.mark.parametrize("name", ["gpu", "date", "accuracy"])
def test_a_circumstance_of_another_type(opened, name):
    (study,) = opened.get_all_studies()
    values = {**study.user_attrs["circumstances"], name: DEEP}
    said = look_into(in_memory(opened, study={"circumstances": values}))
    assert f"is damaged: {name} is [[" in said[0]


FINALS = {
    ("finalists",): ([], [5]),
    ("finalists", 0, "time_us"): (0,),
    ("finalists", 0, "samples_us"): ([1.0],),
    ("finalists", 0, "tied"): (1,),
    ("finalists", 0, "trial"): ({},),
    ("finalists", 0, "trial", "config", "threads"): (1.5,),
    ("finalists", 0, "trial", "outcome", "samples_us"): ([],),
    ("limit_us",): (None,),
    ("noise",): (float("nan"),),
    ("hats",): (1,),
}


@pytest.mark.parametrize(("place", "value"), [(p, v) for p in FINALS for v in FINALS[p]])
def test_finals_of_other_values(opened, place, value):
    (study,) = opened.get_all_studies()
    finals = json.loads(finals_text(study.user_attrs))
    *path, name = place
    within = finals
    for step in path:
        within = within[step]
    within[name] = value
    said = look_into(in_memory(opened, study={"finals": json.dumps(finals)}))
    assert said and all("is damaged" in one for one in said), said


TRIAL_VALUES = {
    "samples_us": ("abc", 5, [-1], [float("nan")], [10**400], ["1"], DEEP),
    "error": ("abc", None, float("inf")),
    "max_ulp": (-1,),
    "resources": ([5], {"registers": "x"}),
    "digest": (5, "\ud800"),
    "stage": ("moon", None),
    "reason": (5,),
}


@pytest.mark.parametrize(("key", "value"), [(k, v) for k in TRIAL_VALUES for v in TRIAL_VALUES[k]])
def test_an_attribute_of_all_trials(opened, key, value):
    """Finals are kept whole beside them: so the best is known all the same."""
    said = look_into(in_memory(opened, trial={key: value}))
    assert any("passed over, which cannot be read: trial" in one and key in one for one in said)


TRIAL = "UPDATE trial_user_attributes SET value_json = ? WHERE key = 'samples_us' AND trial_id <= ?"


def test_one_damaged_trial_is_passed_over(path):
    execute(path, TRIAL, "[-1]", 1)
    said = look(path)
    assert f"1 trial of study '{study_name(path)}' passed over" in said[0]
    assert any("trial 0 cannot be read: samples_us[0] is -1" in one for one in said)
    result = go_on(path)
    assert "trial 0: samples_us[0] is -1" in result.passed_over
    assert len(result.finals.finalists) >= 3


@pytest.mark.parametrize("values", [{"threads_per_row": 7}, {"threads": 100}, {"cluster": 2}])
def test_a_winner_that_the_space_does_not_allow(opened, values):
    """It is shown, and cannot be emitted: its text would be that of no kernel."""
    (study,) = opened.get_all_studies()
    finals = json.loads(finals_text(study.user_attrs))
    finals["finalists"][0]["trial"]["config"] |= values
    storage = in_memory(opened, study={"finals": json.dumps(finals)})
    assert len(look_into(storage)) == 1
    with pytest.raises(NotFound, match="which the installed space does not allow"):
        variant_of(load_trial(storage, PROBLEM, "best")[1], PROBLEM)


def test_nothing_is_left_without_finals_and_trials(path):
    execute(path, TRIAL, '"abc"', 999)
    execute(path, "DELETE FROM study_user_attributes WHERE key LIKE 'finals%'")
    assert any("no measured kernel yet: 4 trials" in one for one in look(path))


TEXTS = [
    ("study_user_attributes", "problem", "[" * 100_000),
    ("trial_user_attributes", "samples_us", "9" * 5000),
]


@pytest.mark.parametrize(("table", "key", "value"), TEXTS, ids=lambda text: text[:9])
def test_text_where_json_is_expected(path, table, key, value):
    execute(path, f"UPDATE {table} SET value_json = ? WHERE key = ?", value, key)
    said = look(path)
    assert said and all("cannot be read" in one for one in said), said
    assert table.startswith("study") or "cannot be read" in go_on(path)


ROWS = [
    "UPDATE trial_params SET param_value = 99 WHERE param_name = 'unroll'",
    "UPDATE trials SET number = NULL",
    "UPDATE studies SET study_name = CAST(x'ff' AS TEXT)",
    "DELETE FROM trials",
]

MORE_ROWS = [
    "DELETE FROM trial_params WHERE param_name = 'threads'",
    "UPDATE trials SET state = 'MOON'",
    "UPDATE trial_values SET value = NULL",
    """UPDATE trial_params SET distribution_json = '{"name":"CategoricalDistribution",
        "attributes":{"choices":[null,"a",1.5,true]}}' WHERE param_name = 'unroll'""",
    "UPDATE trial_params SET param_name = 'hats' WHERE param_name = 'unroll'",
    """UPDATE trial_params SET distribution_json = '{"name":"FloatDistribution",
        "attributes":{"low":0.0,"high":1.0,"log":false,"step":null}}'
        WHERE param_name = 'unroll'""",
    """UPDATE trial_params SET distribution_json = '{"name":"CategoricalDistribution",
        "attributes":{"choices":[1000,2000,3000,4000,5000,6000]}}' WHERE param_name = 'unroll'""",
    """UPDATE trial_params SET distribution_json = '{"name":"Hats","attributes":{}}'""",
    "UPDATE trial_params SET distribution_json = '{'",
    "DELETE FROM trial_params",
    "UPDATE trials SET state = 'RUNNING'",
    "UPDATE trials SET number = 5",
    "UPDATE trials SET number = -7",
    "UPDATE trials SET datetime_start = 'moon'",
    "UPDATE trials SET study_id = 99",
    "UPDATE trial_values SET value = 'abc'",
    "UPDATE trial_values SET value_type = 'MOON'",
    "UPDATE study_directions SET direction = 'MOON'",
    "DELETE FROM study_directions",
    "UPDATE studies SET study_name = 'mine'",
    "UPDATE trial_user_attributes SET key = key || ' of hats'",
    "DELETE FROM trial_user_attributes",
    *(f"DELETE FROM {table}" for table in ("study_user_attributes", "studies", "trial_values")),
]


@pytest.mark.parametrize("statement", ROWS)
def test_rows_of_other_values(path, statement):
    execute(path, statement)
    look(path)


@pytest.mark.exhaustive
@pytest.mark.parametrize("statement", [*ROWS, *MORE_ROWS])
def test_a_search_goes_on_or_says_why_not(path, statement):
    execute(path, statement)
    look(path)
    go_on(path)
    look(path)
