"""Trials that a storage does not take are kept in a file, from which they are merged.

The file lies in the current folder, which is the test's own.
"""

import io
import json
import sqlite3
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import pytest
from databases import delete_study
from fake_evaluator import Disturbed, FakeEvaluator
from optuna.exceptions import StorageInternalError
from typer.testing import CliRunner

from explorer.cli import app
from explorer.model.config import Config
from explorer.model.errors import ExplorerError, InvalidInput
from explorer.model.problem import Problem
from explorer.tuning import (
    load_study,
    merge_trials,
    open_storage,
    read_unsaved,
    run_search,
)
from explorer.tuning.claims import Claims
from explorer.tuning.unsaved import UnsavedTrials

PROBLEM = Problem(64, 256)


def searched(storage, trials=20):
    return run_search(
        FakeEvaluator(PROBLEM, identity=Config.to_json), storage, trials=trials, rounds=6
    )


def gone_after(storage, trials, monkeypatch):
    """Let the storage go away where it would have taken more trials."""
    create = storage.create_new_trials
    taken = []

    def take(study_id, given):
        if len(taken) + len(given) > trials:
            raise StorageInternalError("failed") from sqlite3.OperationalError("disk is full")
        stored = create(study_id, given)
        taken.extend(stored)
        return stored

    monkeypatch.setattr(storage, "create_new_trials", take)


def lost(storage, tmp_path):
    """Search until the storage goes away; gives the sentence and the file."""
    with pytest.raises(InvalidInput) as caught:
        searched(storage)
    (file,) = tmp_path.glob("unsaved-trials-*.jsonl")
    trials = len(file.read_text().splitlines()) - 1
    assert str(caught.value) == (
        "the study cannot be written: disk is full; "
        f"{'1 finished trial is' if trials == 1 else f'{trials} finished trials are'} kept in "
        f"{file.name}: once the storage can be written, run explorer merge {file.name} with the "
        "--storage of the search, and then the same search again"
    )
    return file


def test_nothing_that_finished_is_lost(tmp_path, monkeypatch):
    """The stored trials and those of the file are those of the search, in its order."""
    storage = open_storage("a.db")
    evaluator = FakeEvaluator(PROBLEM, identity=Config.to_json)
    gone_after(storage, 5, monkeypatch)
    with pytest.raises(InvalidInput, match="kept in"):
        run_search(evaluator, storage, trials=20, rounds=6)
    monkeypatch.undo()
    monkeypatch.chdir(tmp_path)
    (file,) = tmp_path.glob("unsaved-trials-*.jsonl")
    merged = merge_trials(storage, read_unsaved(file))
    assert merged.added >= 1 and merged.known == merged.left == 0
    (study,) = storage.get_all_studies()
    stored = storage.get_all_trials(study._study_id)
    evaluated = [t.params for t in stored if t.user_attrs["digest"]]
    assert evaluated == [config.as_dict() for config in evaluator.evaluated]
    again = merge_trials(storage, read_unsaved(file))
    assert again == (merged.study, 0, merged.added, 0)
    assert searched(storage, 3).finals.winner


def test_the_command_puts_them_into_another_storage(tmp_path, monkeypatch):
    storage = open_storage("a.db")
    gone_after(storage, 0, monkeypatch)
    file = lost(storage, tmp_path)
    ran = CliRunner().invoke(app, ["merge", str(file), "--storage", "b.db", "--json"])
    assert ran.exit_code == 0, ran.output
    told = json.loads(ran.stdout)
    assert told["added"] >= 1 and told["known"] == 0 and "softmax f32 64x256" in told["study"]
    assert load_study(open_storage("b.db", read_only=True), PROBLEM).best.outcome.time_us > 0
    again = CliRunner().invoke(app, ["merge", str(file), "--storage", "b.db"])
    assert again.exit_code == 0 and f"{told['added']} were there before" in again.stderr


def test_a_claim_that_fails_is_said(tmp_path, monkeypatch):
    """Where the storage goes away before anything was measured there is nothing to keep."""
    storage = open_storage("a.db")

    def fail(*_, **__):
        raise StorageInternalError("failed") from sqlite3.OperationalError("connection lost")

    monkeypatch.setattr(storage, "alone", fail)
    with pytest.raises(InvalidInput, match="connection lost"):
        searched(storage)
    assert not list(tmp_path.glob("unsaved-trials-*.jsonl"))


def test_a_study_that_is_deleted_meanwhile_is_said(tmp_path):
    """What was measured since is kept, and the search does not wait for ever."""
    storage = open_storage("a.db")
    deleting = Disturbed(PROBLEM, partial(delete_study, storage))
    with pytest.raises(ExplorerError) as caught:
        run_search(deleting, storage, trials=20, rounds=6)
    assert "\n" not in str(caught.value)
    (file,) = tmp_path.glob("unsaved-trials-*.jsonl")
    assert merge_trials(storage, read_unsaved(file)).added >= 1


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
    is_said = "was deleted or replaced while it was searched"
    if "overwritten" in how:
        is_said = "no longer has all trials|cannot be (written|read)"
    with pytest.raises(InvalidInput, match=is_said):
        run_search(losing, storage, trials=20, rounds=6)
    (file,) = tmp_path.glob("unsaved-trials-*.jsonl")
    assert merge_trials(open_storage("new.db"), read_unsaved(file)).added >= 7 + 5
    assert searched(open_storage("new.db"), 3).finals.winner


def test_where_this_folder_cannot_be_written_another_is(tmp_path, monkeypatch):
    storage = open_storage("a.db")
    gone_after(storage, 0, monkeypatch)
    (tmp_path / "other").mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "other"))
    monkeypatch.setattr("explorer.tuning.unsaved.token_hex", lambda _: "aa")
    (tmp_path / "unsaved-trials-aa.jsonl").mkdir()
    with pytest.raises(InvalidInput, match="other/unsaved-trials"):
        searched(storage)


DAMAGED = {
    "an empty file": lambda lines: [],
    "another file": lambda lines: ['{"kind": "something else"}'],
    "no JSON": lambda lines: [lines[0], "{"],
    "half a line": lambda lines: [*lines[:-1], lines[-1][:100]],
    "a trial without outcome": lambda lines: [lines[0], changed(lines[1], attributes={})],
    "a trial of another space": lambda lines: [lines[0], changed(lines[1], params={"threads": 7})],
    "no dates": lambda lines: [lines[0], changed(lines[1], started="yesterday")],
    "no parameters": lambda lines: [changed(lines[0], parameters=[]), *lines[1:]],
    "parameters of lists": lambda lines: [changed(lines[0], parameters={"threads": [[1]]})],
    "another study's name": lambda lines: [changed(lines[0], study="mine"), *lines[1:]],
    "no digest": lambda lines: [lines[0], changed_attributes(lines[1], digest="")],
    "no problem": lambda lines: [changed(lines[0], problem={"rows": "many"}), *lines[1:]],
}


def changed(line, **values):
    return json.dumps({**json.loads(line), **values})


def changed_attributes(line, **values):
    return changed(line, attributes={**json.loads(line)["attributes"], **values})


@pytest.mark.parametrize("damage", DAMAGED)
def test_a_damaged_file_is_one_sentence(damage, tmp_path, monkeypatch):
    storage = open_storage("a.db")
    gone_after(storage, 0, monkeypatch)
    file = lost(storage, tmp_path)
    lines = DAMAGED[damage](file.read_text().splitlines())
    file.write_text("".join(f"{line}\n" for line in lines))
    ran = CliRunner().invoke(app, ["merge", str(file), "--storage", "b.db"])
    assert ran.exit_code == 2 and ran.stderr.count("\n") == 1, ran.output
    said = (
        "is empty; name" if damage == "an empty file" else "holds no trials of this version: line"
    )
    assert said in ran.stderr
    assert not (tmp_path / "b.db").exists()


def test_a_last_line_that_was_cut_off_costs_one_trial(tmp_path, monkeypatch):
    """A full disk, or kill -9, ends a file so."""
    storage = open_storage("a.db")
    gone_after(storage, 2, monkeypatch)
    file = lost(storage, tmp_path)
    text = file.read_text()
    file.write_text(text + text.splitlines()[-1][:100])
    ran = CliRunner().invoke(app, ["merge", str(file), "--storage", "b.db"])
    assert ran.exit_code == 0 and "was cut off: its trial is lost" in ran.stderr
    assert f"{len(text.splitlines()) - 1} trial" in ran.stderr


def test_a_file_that_takes_no_more_goes_on_in_another(tmp_path, monkeypatch):
    """What was written halfway is taken back, so that the first file stays whole."""
    storage = open_storage("a.db")
    gone_after(storage, 0, monkeypatch)
    file = lost(storage, tmp_path)
    unsaved = read_unsaved(file)
    kept = UnsavedTrials(unsaved.study)
    kept.keep(unsaved.trials[0])
    (first,) = kept.paths
    before = first.read_bytes()

    class Full(io.FileIO):
        def write(self, data):
            super().write(data[:10])
            raise OSError(28, "No space left on device")

    real = Path.open
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "other"))
    (tmp_path / "other").mkdir()
    full = lambda path, *a: Full(path, *a) if path.parent == Path() else real(path, *a)  # noqa: E731
    monkeypatch.setattr(Path, "open", full)
    kept.keep(unsaved.trials[0])
    monkeypatch.undo()
    monkeypatch.chdir(tmp_path)
    assert first.read_bytes() == before and len(kept.paths) == 2 and kept.number == 2
    assert len(read_unsaved(kept.paths[1]).trials) == 1


def test_a_study_of_another_problem_is_not_taken_for_it(tmp_path, monkeypatch):
    storage = open_storage("a.db")
    gone_after(storage, 1, monkeypatch)
    file = lost(storage, tmp_path)
    (study,) = storage.get_all_studies()
    storage.set_study_user_attr(study._study_id, "problem", Problem(64, 512).as_dict())
    with pytest.raises(InvalidInput, match="is of another problem"):
        merge_trials(storage, read_unsaved(file))


def test_what_another_process_evaluates_is_left_to_it(tmp_path, monkeypatch):
    """Its file is then of use still, and the command says so."""
    storage = open_storage("a.db")
    gone_after(storage, 0, monkeypatch)
    file = lost(storage, tmp_path)
    digest = json.loads(file.read_text().splitlines()[-1])["attributes"]["digest"]
    (study,) = storage.get_all_studies()
    claims = Claims(storage, study._study_id)
    assert claims.exchange([digest], [], -1).granted, "the search that was ended holds no claims"
    ran = CliRunner().invoke(app, ["merge", str(file), "--storage", "a.db"])
    assert ran.exit_code == 0 and "1 is being evaluated by another process" in ran.stderr
    assert "can be deleted" not in ran.stderr
    claims.withdraw()
    ran = CliRunner().invoke(app, ["merge", str(file), "--storage", "a.db"])
    assert "1 trial added" in ran.stderr and "can be deleted" in ran.stderr


def test_two_that_merge_at_once_add_each_trial_once(tmp_path, monkeypatch):
    storage = open_storage("a.db")
    gone_after(storage, 0, monkeypatch)
    unsaved = read_unsaved(lost(storage, tmp_path))
    monkeypatch.undo()
    monkeypatch.chdir(tmp_path)
    storages = [open_storage("b.db") for _ in range(2)]
    with ThreadPoolExecutor(2) as pool:
        merged = list(pool.map(lambda storage: merge_trials(storage, unsaved), storages))
    digests = [t.user_attrs["digest"] for t in unsaved.trials if t.user_attrs["digest"]]
    (study,) = storages[0].get_all_studies()
    stored = storages[0].get_all_trials(study._study_id)
    assert sorted(t.user_attrs["digest"] for t in stored if t.user_attrs["digest"]) == sorted(
        digests
    )
    assert sum(one.added for one in merged) >= len(digests)
