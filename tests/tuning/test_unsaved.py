"""Trials that a storage does not take are kept in journals of Optuna's, from which they are merged.

They lie beside the database, in the current folder, which is the test's own.
"""

import json
import shutil
import sqlite3
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import pytest
from databases import delete_study
from fake_evaluator import Disturbed, FakeEvaluator, as_replay
from optuna.exceptions import StorageInternalError
from optuna.trial import TrialState
from typer.testing import CliRunner

from explorer.cli import app
from explorer.model.config import Config
from explorer.model.errors import ExplorerError, InvalidInput
from explorer.model.problem import Problem
from explorer.tuning.bulk_storage import BulkStorage
from explorer.tuning.search import run_search
from explorer.tuning.storage import Journal, open_storage
from explorer.tuning.study_reader import load_history
from explorer.tuning.study_writer import merge_trials

pytestmark = pytest.mark.exhaustive

PROBLEM = Problem(64, 256)


def searched(storage, trials=20):
    return run_search(
        FakeEvaluator(PROBLEM, identity=Config.to_json), storage, trials=trials, rounds=6
    )


def gone_after(storage, trials, monkeypatch):
    """Let the storage go away where it would have taken more outcomes."""
    real, taken = storage.put, []

    def put(study_id, given):
        finished = [trial for trial in given if trial.state is not TrialState.RUNNING]
        if len(taken) + len(finished) > trials:
            raise StorageInternalError("failed") from sqlite3.OperationalError("disk is full")
        taken.extend(finished)
        return real(study_id, given)

    monkeypatch.setattr(storage, "put", put)


def kept_in(folder):
    return sorted(folder.glob("unsaved-trials-*.journal"))


def lost(storage, folder, evaluator=None):
    """Search until the storage goes away; gives the files, whose trials the sentence counts."""
    before = set(kept_in(folder))
    evaluator = evaluator or FakeEvaluator(PROBLEM, identity=Config.to_json)
    with pytest.raises(InvalidInput) as caught:
        run_search(evaluator, storage, trials=20, rounds=6)
    files = sorted(set(kept_in(folder)) - before)
    trials = sum(len(trials_in(Journal(path))) for path in files)
    told = str(caught.value)
    assert told.startswith("the study cannot be written: disk is full; "), told
    assert told.split("; ")[1].startswith(
        f"{'1 finished trial is' if trials == 1 else f'{trials} finished trials are'} kept in "
    )
    assert all(file.name in told.split("run explorer merge ")[1] for file in files)
    assert told.endswith(" with the --storage of the search, and then the same search again")
    return files


def trials_in(storage):
    (study,) = storage.get_all_studies()
    return storage.get_all_trials(study._study_id)


def merged_all(storage, files):
    return [one for file in files for one in merge_trials(storage, file)]


@pytest.mark.sampled(2)
@pytest.mark.parametrize("what", ["search", "replay"])
@pytest.mark.parametrize("after", [0, 5])
def test_nothing_that_finished_is_lost(tmp_path, monkeypatch, what, after):
    """The stored trials and those of the files are those of the search."""
    storage = open_storage("a.db")
    evaluator = FakeEvaluator(PROBLEM, identity=Config.to_json)
    if what == "replay":
        as_replay(evaluator)
    with monkeypatch.context() as patched:
        gone_after(storage, after, patched)
        files = lost(storage, tmp_path, evaluator)
    merged = merged_all(storage, files)
    assert sum(one.added for one in merged) >= 1 and not any(one.known for one in merged)
    stored = [t for t in trials_in(storage) if t.state in (TrialState.COMPLETE, TrialState.PRUNED)]
    evaluated = {Config.from_dict(t.params) for t in stored if t.user_attrs["digest"]}
    assert evaluated == set(evaluator.evaluated)
    again = merged_all(storage, files)
    assert [(one.added, one.known) for one in again] == [(0, one.added) for one in merged]
    assert len([t for t in trials_in(storage) if t.state.is_finished()]) == len(stored)
    assert searched(storage, 3).finals.winner


def test_each_failed_write_has_a_file_of_its_own(tmp_path, monkeypatch):
    storage = open_storage("a.db")
    gone_after(storage, 3, monkeypatch)
    files = {*lost(storage, tmp_path), *lost(storage, tmp_path)}
    assert len(files) >= 2 and files == set(kept_in(tmp_path))


def test_the_command_puts_them_into_another_storage(tmp_path, monkeypatch):
    storage = open_storage("a.db")
    gone_after(storage, 0, monkeypatch)
    files = list(map(str, lost(storage, tmp_path)))
    ran = CliRunner().invoke(app, ["merge", *files, "--storage", "b.db", "--json"])
    assert ran.exit_code == 0, ran.output
    told = json.loads(ran.stdout)["studies"]
    assert told[0]["added"] >= 1 and told[0]["known"] == 0
    assert "softmax f32 64x256" in told[0]["study"]
    assert load_history(open_storage("b.db", read_only=True), PROBLEM).view.best.outcome.time_us > 0
    again = CliRunner().invoke(app, ["merge", *files, "--storage", "b.db"])
    assert again.exit_code == 0 and f"{told[0]['added']} were there before" in again.stderr
    other = CliRunner().invoke(app, ["merge", *files, "--storage", "journal:///c.journal"])
    assert other.exit_code == 0, other.output
    assert len(trials_in(open_storage("journal:///c.journal"))) == sum(t["added"] for t in told)


def test_a_storage_that_goes_away_first_is_said(tmp_path, monkeypatch):
    """Where it goes away before anything was measured there is nothing to keep."""
    storage = open_storage("a.db")

    def fail(*_, **__):
        raise StorageInternalError("failed") from sqlite3.OperationalError("connection lost")

    monkeypatch.setattr(storage, "put", fail)
    with pytest.raises(InvalidInput, match="connection lost; what finished before is kept: mend"):
        searched(storage)
    assert not kept_in(tmp_path)


def test_a_study_that_is_deleted_meanwhile_is_said(tmp_path):
    """What was measured since is kept."""
    storage = open_storage("a.db")
    deleting = Disturbed(PROBLEM, partial(delete_study, storage))
    with pytest.raises(ExplorerError, match="the study was deleted while") as caught:
        run_search(deleting, storage, trials=20, rounds=6)
    assert "\n" not in str(caught.value)
    assert sum(one.added for one in merged_all(storage, kept_in(tmp_path))) >= 1


@pytest.mark.sampled(4)
@pytest.mark.parametrize(
    "how",
    [
        "deleted",
        "replaced by a copy",
        "replaced by an empty file",
        "overwritten by a copy",
        "overwritten by an empty file",
        "overwritten by junk",
    ],
)
def test_all_trials_of_a_database_that_goes_away_are_kept(how, tmp_path):
    """Those of earlier runs, too; merged into a new one they are those of the search."""
    searched(open_storage("a.db"), trials=7)
    copy = Path("a.db").read_bytes()
    storage = open_storage("a.db")

    def lose():
        if how == "deleted":
            return Path("a.db").unlink()
        target = tmp_path / "b.db" if "replaced" in how else Path("a.db")
        target.write_bytes(copy if "copy" in how else b"junk" * 9999 if "junk" in how else b"")
        return target.replace("a.db")

    losing = Disturbed(PROBLEM, lose)
    with pytest.raises(InvalidInput, match="kept in unsaved-trials"):
        run_search(losing, storage, trials=20, rounds=6)
    new = open_storage("new.db")
    if "copy" in how:
        shutil.copyfile("a.db", "new.db")
    merged_all(new, kept_in(tmp_path))
    evaluated = {t.user_attrs["digest"] for t in trials_in(new) if t.user_attrs["digest"]}
    assert len(evaluated) >= 7 + 5
    assert {config.to_json() for config in losing.evaluated} <= evaluated | {""}
    assert searched(open_storage("new.db"), 3).finals.winner


@pytest.mark.parametrize("where", ["another folder", "nowhere"])
def test_where_the_databases_folder_takes_nothing(tmp_path, monkeypatch, where):
    """The folder for temporary files may take them; else the sentence says how many are lost."""
    storage = open_storage("a.db")
    gone_after(storage, 0, monkeypatch)
    other = tmp_path / "other"
    if where == "another folder":
        other.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(other))
    monkeypatch.setattr("explorer.tuning.study_writer.token_hex", lambda _: "aa")
    (tmp_path / "unsaved-trials-aa.journal").mkdir()
    with pytest.raises(InvalidInput) as caught:
        searched(storage)
    if where == "nowhere":
        assert "none is kept, " in str(caught.value) and " lost: mend" in str(caught.value)
    else:
        assert f"kept in {other}/unsaved-trials-aa.journal" in str(caught.value)


def test_half_a_file_is_none(tmp_path, monkeypatch):
    """Where the disk is full there as well, what was begun is taken away."""
    storage, real = open_storage("a.db"), Journal.create_new_trial
    gone_after(storage, 0, monkeypatch)
    (tmp_path / "other").mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "other"))

    def full(self, *given):
        if self.path.parent == Path():
            raise OSError(28, "No space left on device")
        return real(self, *given)

    monkeypatch.setattr(Journal, "create_new_trial", full)
    with pytest.raises(InvalidInput, match=r"kept in .*other/unsaved-trials"):
        searched(storage)
    assert not kept_in(tmp_path) and kept_in(tmp_path / "other")


DAMAGED = {
    "an empty file": lambda lines: [],
    "another file": lambda lines: ['{"kind": "something else"}'],
    "no JSON": lambda lines: [lines[0], "{", *lines[1:]],
    "no study": lambda lines: [line for line in lines if '"op_code":0' not in line],
    "no problem": lambda lines: [line.replace('"rows"', '"moons"') for line in lines],
    "a list": lambda lines: ["[1]"],
}


@pytest.mark.parametrize("damage", DAMAGED)
def test_a_damaged_file_is_one_sentence(damage, tmp_path, monkeypatch):
    storage = open_storage("a.db")
    gone_after(storage, 0, monkeypatch)
    file = lost(storage, tmp_path)[0]
    lines = DAMAGED[damage](file.read_text().splitlines())
    file.write_text("".join(f"{line}\n" for line in lines))
    ran = CliRunner().invoke(app, ["merge", str(file), "--storage", "b.db"])
    assert ran.exit_code == 2 and ran.stderr.count("\n") == 1, ran.output
    assert file.name in ran.stderr
    assert damage == "no JSON" or "JSONDecodeError" not in ran.stderr


@pytest.mark.parametrize("name", ["nothing.journal", "."])
def test_what_is_no_file_is_one_sentence(name):
    ran = CliRunner().invoke(app, ["merge", name, "--storage", "b.db"])
    assert ran.exit_code == 2 and ran.stderr.count("\n") == 1 and "name a file that" in ran.stderr
    assert not Path("nothing.journal").exists()


def test_a_last_line_that_was_cut_off_costs_one_trial(tmp_path, monkeypatch):
    """Kill -9 ends a file so."""
    storage = open_storage("a.db")
    gone_after(storage, 2, monkeypatch)
    file = lost(storage, tmp_path)[0]
    trials = len(trials_in(Journal(file)))
    text = file.read_text()
    file.write_text(text + text.splitlines()[-1][:100])
    ran = CliRunner().invoke(app, ["merge", str(file), "--storage", "b.db"])
    assert ran.exit_code == 0 and f"{trials} trial" in ran.stderr


def test_a_study_of_another_problem_is_not_taken_for_it(tmp_path, monkeypatch):
    storage = open_storage("a.db")
    gone_after(storage, 1, monkeypatch)
    file = lost(storage, tmp_path)[0]
    (study,) = storage.get_all_studies()
    storage.set_study_user_attr(study._study_id, "problem", Problem(64, 512).as_dict())
    with pytest.raises(InvalidInput, match="is of another problem"):
        merge_trials(storage, file)


def test_two_that_merge_at_once_add_each_trial_once(tmp_path, monkeypatch):
    storage = open_storage("a.db")
    with monkeypatch.context() as patched:
        gone_after(storage, 0, patched)
        file = lost(storage, tmp_path)[0]
    kept = [t.user_attrs["digest"] for t in trials_in(Journal(file)) if t.user_attrs["digest"]]
    storages = [open_storage("b.db") for _ in range(2)]
    assert all(isinstance(storage, BulkStorage) for storage in storages)
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(lambda storage: merge_trials(storage, file), storages))
    stored = [t.user_attrs["digest"] for t in trials_in(storages[0]) if t.user_attrs["digest"]]
    assert sorted(stored) == sorted(kept)
