"""A small database of one search, and all that looks into a database."""

import io
import shutil
import sqlite3
from contextlib import closing
from copy import copy as shallow_copy
from functools import lru_cache

from fake_evaluator import FakeEvaluator
from optuna.storages import InMemoryStorage
from rich.console import Console

from explorer.model.config import Config
from explorer.model.errors import ExplorerError
from explorer.model.outcome import Rejected, Stage
from explorer.model.problem import Problem
from explorer.report.studies import SUMMARY, markdown_table, print_studies, print_study, study_data
from explorer.report.table import data_of
from explorer.report.text import as_json
from explorer.tuning.search import run_search
from explorer.tuning.storage import open_storage
from explorer.tuning.study_reader import list_views, load_history, load_trial, survey

PROBLEM = Problem(64, 256)
TRIALS = 6


class Evaluator(FakeEvaluator):
    """Every third kernel is rejected; identities are those of configs, which costs no emission."""

    def __init__(self):
        super().__init__(PROBLEM, identity=Config.to_json)

    def evaluate(self, config):
        if len(self.evaluated) % 3 == 2:
            self.evaluated.append(config)
            return Rejected(Stage.VERIFY, "relative error 0.5 exceeds 4e-06")
        return super().evaluate(config)


def make(path):
    """Search into a new database; trials 2 and 5 are rejected."""
    storage = open_storage(str(path))
    run_search(Evaluator(), storage, trials=TRIALS, rounds=6)
    storage.engine.dispose()


def execute(path, statement, *values):
    """Change a database; the statement must hit something."""
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("PRAGMA writable_schema=ON")  # tables are dropped by their names
        changed = connection.execute(statement, values).rowcount
    assert changed, statement


class Looked(list):
    """What was said while a storage was looked into."""

    def tried(self, action):
        """Do it; ExplorerErrors are what is said, and whatever else is raised is a bug."""
        try:
            return action()
        except ExplorerError as error:
            self.append(str(error))
            assert "\n" not in str(error) and len(str(error)) < 1500
            str(error).encode()
            return None


def look(path):
    """Open a database and read everything in it, as commands do; gives what was said."""
    said = Looked()
    storage = said.tried(lambda: open_storage(str(path), read_only=True))
    if storage is not None:
        said += look_into(storage)
        storage.engine.dispose()
    return said


def look_into(storage):
    """Read everything in a storage, and print it; gives what was said."""
    said, console = Looked(), Console(file=io.StringIO(), width=200)
    found = said.tried(lambda: survey(storage))
    if found is not None:
        said += found.faults
        print_studies(found.summaries, console)
        as_json([data_of(SUMMARY, summary) for summary in found.summaries]).encode()
    markdown_table(said.tried(lambda: list_views(storage)) or []).encode()
    view = said.tried(lambda: load_history(storage, PROBLEM).view)
    if view is not None:
        print_study(view, console)
        as_json(study_data(view)).encode()
    for which in (0, 99):
        said.tried(lambda which=which: load_trial(storage, PROBLEM, which)[1])
    console.file.getvalue().encode()
    return said


def go_on(path):
    """Search on with a study; gives its result, or the sentence that says why not."""
    try:
        return run_search(Evaluator(), open_storage(str(path)), trials=2, rounds=6)
    except ExplorerError as error:
        assert "\n" not in str(error)
        return str(error)


@lru_cache(maxsize=1)
def kept_in(storage):
    """The study of a storage and its trials, which are read once: nobody may change them."""
    (study,) = storage.get_all_studies()
    return study, storage.get_all_trials(study._study_id)


def in_memory(storage, study=None, trial=None):
    """The same study in memory, with other attributes: of the study, and of each trial.

    Finals may be given whole, as one attribute, in place of their parts.
    """
    source, trials = kept_in(storage)
    made = InMemoryStorage()
    study_id = made.create_new_study(source.directions, source.study_name)
    kept = source.user_attrs
    if "finals" in (study or {}):
        kept = {name: value for name, value in kept.items() if not name.startswith("finals")}
    for name, value in {**kept, **(study or {})}.items():
        made.set_study_user_attr(study_id, name, value)
    for kept_trial in trials:
        template, attributes = shallow_copy(kept_trial), kept_trial.user_attrs
        changes = {n: v for n, v in (trial or {}).items() if n in attributes}
        template.user_attrs = attributes | changes
        made.create_new_trial(study_id, template)
    return made


def copy(base, path):
    """A database of its own for a test."""
    shutil.copyfile(base, path)
    return path
