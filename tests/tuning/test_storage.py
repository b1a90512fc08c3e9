"""Storages that cannot be used are said in one sentence; the others open."""

import itertools
import multiprocessing
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import time

import pytest
from fake_evaluator import FakeEvaluator
from optuna.exceptions import StorageInternalError
from sqlalchemy import event
from sqlalchemy.engine import Engine

from explorer.model.errors import ExplorerError, InvalidInput, NotFound
from explorer.model.query import ProblemQuery
from explorer.tuning.search import run_search
from explorer.tuning.storage import default_storage, open_storage
from explorer.tuning.study_reader import load_history, survey


def refused(url, kind=InvalidInput, **options):
    with pytest.raises(kind) as raised:
        open_storage(url, **options)
    message = str(raised.value)
    assert "\n" not in message
    assert "Traceback" not in message
    return message


def test_the_default_is_a_file_under_studies(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "studies").mkdir()
    open_storage()
    assert (tmp_path / "studies" / "explorer.db").is_file()


def test_elsewhere_the_default_is_a_file_of_the_user_s(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    for folder in (tmp_path / "one", tmp_path / "other"):
        folder.mkdir()
        monkeypatch.chdir(folder)
        open_storage(read_only=folder.name == "other")  # there it is known
        assert list(folder.iterdir()) == []
    assert (tmp_path / "data" / "softmax-explorer" / "explorer.db").is_file()
    monkeypatch.setenv("XDG_DATA_HOME", "relative")  # which the standard says to ignore
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert default_storage() == f"{tmp_path}/home/.local/share/softmax-explorer/explorer.db"


def test_the_environment_names_another_default(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("EXPLORER_STORAGE", f"sqlite:///{tmp_path}/team.db")
    open_storage()
    assert [path.name for path in tmp_path.iterdir()] == ["team.db"]
    monkeypatch.setenv("EXPLORER_STORAGE", "no/such/x.db")
    assert "no/such does not exist" in refused(None)
    open_storage("mine.db")
    assert (tmp_path / "mine.db").is_file()


def test_reading_creates_nothing(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert "explorer search" in refused(None, NotFound, read_only=True)
    assert list(tmp_path.iterdir()) == []


def test_a_path_and_a_url_are_the_same_storage(tmp_path):
    open_storage(str(tmp_path / "a.db")).create_new_study([], "mine")
    again = open_storage(f"sqlite:///{tmp_path / 'a.db'}")
    assert [study.study_name for study in again.get_all_studies()] == ["mine"]


def test_no_database(tmp_path):
    path = tmp_path / "text.db"
    path.write_text("not a database at all")
    assert "is no SQLite database" in refused(str(path))
    assert path.read_text() == "not a database at all"


def test_a_damaged_database(tmp_path):
    path = tmp_path / "damaged.db"
    open_storage(str(path))
    path.write_bytes(path.read_bytes()[:4096] + b"\xff" * 8192)
    assert str(path) in refused(str(path))


def test_a_folder(tmp_path):
    assert "directory" in refused(str(tmp_path))


def test_a_missing_folder(tmp_path):
    assert "create it" in refused(str(tmp_path / "none" / "a.db"))


def test_an_unknown_scheme():
    assert "scheme 'nosql'" in refused("nosql://localhost/studies")


def test_a_missing_driver():
    message = refused("postgresql+psycopg2://user:secret@localhost/studies")
    assert "Python package psycopg2" in message
    assert "secret" not in message


def test_no_url():
    assert "is no URL" in refused("://")


def test_a_newer_schema(tmp_path):
    path = tmp_path / "newer.db"
    open_storage(str(path))
    with sqlite3.connect(path) as connection:
        connection.execute("UPDATE alembic_version SET version_num = 'v99.0.0.a'")
    assert "cannot be opened" in refused(str(path))


@pytest.mark.skipif(os.geteuid() == 0, reason="root writes anything")
def test_a_read_only_folder(tmp_path):
    tmp_path.chmod(0o555)
    assert "read-only" in refused(str(tmp_path / "a.db"))


def test_what_may_not_be_written_is_read_all_the_same(tmp_path, monkeypatch):
    path = tmp_path / "a.db"
    open_storage(str(path)).create_new_study([], "mine")
    real = os.access
    monkeypatch.setattr(os, "access", lambda at, mode: mode != os.W_OK and real(at, mode))
    assert "read-only" in refused(str(path))
    assert len(open_storage(str(path), read_only=True).get_all_studies()) == 1


def test_a_storage_that_fails_while_searching_is_said(tmp_path, monkeypatch):
    storage = open_storage(str(tmp_path / "a.db"))

    def full(*_, **__):
        raise StorageInternalError("failed") from sqlite3.OperationalError("disk is full")

    monkeypatch.setattr(storage, "put", full)
    with pytest.raises(ExplorerError, match="cannot be written: disk is full"):
        run_search(FakeEvaluator(), storage, trials=2)


def test_a_database_in_memory_serves_a_search():
    storage = open_storage("sqlite:///:memory:")
    result = run_search(FakeEvaluator(), storage, trials=3)
    assert [study.name for study in survey(storage).summaries] == [result.study]


def test_a_journal_serves_a_search_and_a_look(tmp_path):
    url = f"journal:///{tmp_path / 'a.journal'}"
    assert "explorer search" in refused(url, NotFound, read_only=True)
    result = run_search(FakeEvaluator(), open_storage(url), trials=3)
    again = open_storage(url, read_only=True)
    assert [study.name for study in survey(again).summaries] == [result.study]
    assert load_history(again, result.problem).view.finals == result.finals
    with pytest.raises(NotFound, match=f"yet in {tmp_path / 'a.journal'}; run explorer search"):
        load_history(again, ProblemQuery(999))
    assert not list(tmp_path.glob("*.lock"))


@pytest.mark.parametrize("content", ["not a journal", '{"kind": 1}\n', '{"op_code":0}\n'])
def test_no_journal(tmp_path, content):
    path = tmp_path / "text.journal"
    path.write_text(content)
    assert str(path) in refused(f"journal:///{path}")
    assert path.read_text() == content


@pytest.mark.parametrize("url", ["journal://", "journal:///", "journal://host/a.journal"])
def test_a_journal_without_a_file(url):
    assert "is no URL" in refused(url)


def killed_at(path, statement):
    """Open a storage in another process, which is killed at that statement; False if it ends."""

    def die(*_):
        nonlocal statement
        statement -= 1
        if statement < 0:
            os.kill(os.getpid(), signal.SIGKILL)

    def opens():
        event.listen(Engine, "before_cursor_execute", die)
        event.listen(Engine, "commit", die)
        open_storage(str(path))
        os._exit(0)

    process = multiprocessing.get_context("fork").Process(target=opens)
    process.start()
    process.join()
    return process.exitcode == -signal.SIGKILL


@pytest.mark.parametrize("step", [31, pytest.param(7, marks=pytest.mark.exhaustive)])
def test_a_new_database_that_was_killed_while_it_was_created_is_completed(tmp_path, step):
    """Whenever that was: it has all tables and indices, and a search goes on with it."""
    whole = tmp_path / "whole.db"
    open_storage(str(whole))
    for statement in itertools.count(0, step):
        path = tmp_path / f"{statement}.db"
        if not killed_at(path, statement):
            break
        open_storage(str(path)).create_new_study([], "mine")
        assert schema(path) == schema(whole)
        again = open_storage(str(path), read_only=True)
        assert [study.study_name for study in again.get_all_studies()] == ["mine"]
    assert statement > 50


def test_half_of_the_tables_of_an_earlier_version_are_completed(tmp_path):
    """It committed each table, so that kill -9 left some, without their indices."""
    whole, path = tmp_path / "whole.db", tmp_path / "half.db"
    open_storage(str(whole))
    shutil.copyfile(whole, path)
    with sqlite3.connect(path) as connection:
        connection.execute("DROP TABLE trial_values")
        connection.execute("DROP INDEX ix_studies_study_name")
        connection.execute("DROP INDEX ix_trials_study_id")
        connection.execute("DELETE FROM alembic_version")
    assert "is empty; run explorer search" in refused(str(path), NotFound, read_only=True)
    open_storage(str(path)).create_new_study([], "mine")
    assert schema(path) == schema(whole)


def schema(path):
    """The tables and indices of a database, and Optuna's version of them."""
    with sqlite3.connect(path) as connection:
        found = connection.execute("SELECT name FROM sqlite_master").fetchall()
        return sorted(found), connection.execute("SELECT * FROM alembic_version").fetchall()


OPENS = """
import sys, time
from pathlib import Path
from explorer.tuning.storage import open_storage
from optuna.study import StudyDirection
folder, number = Path(sys.argv[1]), sys.argv[2]
(folder / f"ready-{number}").touch()
while not (folder / "go").exists():
    time.sleep(0.001)
storage = open_storage(str(folder / "new.db"))
storage.create_new_study([StudyDirection.MINIMIZE], f"study of {number}")
"""


@pytest.mark.exhaustive
def test_a_new_database_is_opened_by_several_processes_at_once(tmp_path):
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", OPENS, str(tmp_path), str(number)],
            stderr=subprocess.PIPE,
            text=True,
        )
        for number in range(4)
    ]
    limit = time.monotonic() + 60
    while len(list(tmp_path.glob("ready-*"))) < len(processes) and time.monotonic() < limit:
        time.sleep(0.01)
    (tmp_path / "go").touch()
    said = [process.communicate()[1] for process in processes]
    assert [process.returncode for process in processes] == [0] * 4, said
    assert len(open_storage(str(tmp_path / "new.db")).get_all_studies()) == 4
