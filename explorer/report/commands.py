"""Commands that the user can run next, written out."""

import shlex

from explorer.asked import AskedProblem
from explorer.codegen import emit
from explorer.problem import Problem
from explorer.search.results import TrialRecord

CHANGED = "the templates have changed since: the last line writes what they emit now for its config"
"""What to say of a trial that is not reproducible."""


def emit_command(what: str, problem: Problem, storage: str | None = None) -> str:
    """The `explorer emit` that writes a trial (or best, or a config as JSON) of a problem."""
    return _command("emit", what, problem, storage)


def reproducing_command(trial: TrialRecord, problem: Problem, storage: str | None = None) -> str:
    """The `explorer emit` of a trial: by number, by config where templates have changed since."""
    unchanged = is_reproducible(trial, problem)
    what = str(trial.number) if unchanged else trial.config.to_json(brief=True)
    return emit_command(what, problem, storage if unchanged else None)


def is_reproducible(trial: TrialRecord, problem: Problem) -> bool:
    """Whether the templates still emit the code that the trial measured."""
    return emit(problem, trial.config).digest == trial.outcome.digest


def search_command(problem: Problem, storage: str | None = None) -> str:
    """The `explorer search` that continues the problem's study."""
    return _command("search", None, problem, storage)


def _command(name: str, what: str | None, problem: Problem, storage: str | None) -> str:
    words = ["explorer", name, *([what] if what is not None else [])]
    words += AskedProblem.of(problem).options
    words += ["--storage", storage] if storage else []
    return shlex.join(words)
