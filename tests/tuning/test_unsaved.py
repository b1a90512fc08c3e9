"""Trials that a storage does not take are kept in a file, from which they are merged.

The file lies in the current folder, which is the test's own.
"""

import json
import sqlite3

import pytest
from fake_evaluator import FakeEvaluator
from optuna.exceptions import StorageInternalError
from typer.testing import CliRunner

from explorer.cli import app
from explorer.config import Config
from explorer.errors import ExplorerError, InvalidInput
from explorer.problem import Problem
from explorer.tuning import load_study, merge_trials, open_storage, run_search

PROBLEM = Problem(64, 256)


def searched(storage, trials=20):
    return run_search(
        FakeEvaluator(PROBLEM, identity=Config.to_json), storage, trials=trials, rounds=6
    )


def gone_after(storage, trials, monkeypatch):
    """Let the storage go away once it has taken so many trials."""
    create = storage.create_new_trial
    taken = []

    def take(study_id, template_trial=None):
        if len(taken) == trials:
            raise StorageInternalError("failed") from sqlite3.OperationalError("disk is full")
        taken.append(create(study_id, template_trial))
        return taken[-1]

    monkeypatch.setattr(storage, "create_new_trial", take)


def lost(storage, tmp_path):
    """Search until the storage goes away; gives the sentence and the file."""
    with pytest.raises(InvalidInput) as caught:
        searched(storage)
    (file,) = tmp_path.glob("unsaved-trials-*.jsonl")
    trials = len(file.read_text().splitlines()) - 1
    assert str(caught.value) == (
        "the study cannot be written: disk is full; "
        f"{'1 finished trial is' if trials == 1 else f'{trials} finished trials are'} kept in "
        f"{file.name}: once the storage is mended, run explorer merge {file.name} with the "
        "--storage of the search, and then the same search again"
    )
    return file


def contents(storage):
    (study,) = storage.get_all_studies()
    trials = storage.get_all_trials(study._study_id)
    return [(t.params, t.values, t.state, t.user_attrs, t.datetime_start) for t in trials]


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
    merged = merge_trials(storage, file)
    assert merged.added >= 1 and merged.known == 0
    (study,) = storage.get_all_studies()
    stored = storage.get_all_trials(study._study_id)
    evaluated = [t.params for t in stored if t.user_attrs["digest"]]
    assert evaluated == [config.as_dict() for config in evaluator.evaluated]
    assert merge_trials(storage, file) == (merged.study, 0, merged.added), "again, nothing is added"
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

    class Deleting(FakeEvaluator):
        def evaluate(self, config):
            if len(self.evaluated) == 5:
                (study,) = storage.get_all_studies()
                storage.delete_study(study._study_id)
            return super().evaluate(config)

    with pytest.raises(ExplorerError) as caught:
        run_search(Deleting(PROBLEM, identity=Config.to_json), storage, trials=20, rounds=6)
    assert "\n" not in str(caught.value)
    (file,) = tmp_path.glob("unsaved-trials-*.jsonl")
    assert merge_trials(storage, file).added >= 1


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
    "no problem": lambda lines: [changed(lines[0], problem={"rows": "many"}), *lines[1:]],
}


def changed(line, **values):
    return json.dumps({**json.loads(line), **values})


@pytest.mark.parametrize("damage", DAMAGED)
def test_a_damaged_file_is_one_sentence(damage, tmp_path, monkeypatch):
    storage = open_storage("a.db")
    gone_after(storage, 0, monkeypatch)
    file = lost(storage, tmp_path)
    lines = DAMAGED[damage](file.read_text().splitlines())
    file.write_text("".join(f"{line}\n" for line in lines))
    ran = CliRunner().invoke(app, ["merge", str(file), "--storage", "b.db"])
    assert ran.exit_code == 2 and ran.stderr.count("\n") == 1, ran.output
    assert "holds no trials of this version: line" in ran.stderr
