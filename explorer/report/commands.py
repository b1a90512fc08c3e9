"""Commands that the user can run next, written out."""

import shlex
from collections.abc import Sequence

from explorer.asked import AskedProblem
from explorer.codegen import emit
from explorer.problem import Problem
from explorer.space import can_emit
from explorer.tuning.objective import Goal
from explorer.tuning.results import StudySummary, TrialRecord

CHANGED = "the templates have changed since: the last line writes what they emit now for its config"
"""What to say of a trial that is not reproducible."""


def reproducing_command(
    trial: TrialRecord, problem: Problem, goal: Goal, storage: str | None = None
) -> str:
    """The `explorer emit` of a trial of the study with that goal: by number.

    By config where templates have changed since.
    """
    if is_reproducible(trial, problem):
        return _command("emit", str(trial.number), problem, storage, goal.options)
    accuracy = Goal(accuracy=goal.accuracy)  # all that a config by itself has of a goal
    return _command("emit", trial.config.to_json(brief=True), problem, more=accuracy.options)


def is_reproducible(trial: TrialRecord, problem: Problem) -> bool:
    """Whether the templates still emit the code that the trial measured."""
    if not can_emit(problem, trial.config):
        return False
    return emit(problem, trial.config).digest == trial.outcome.digest


def search_command(study: StudySummary, storage: str | None = None) -> str:
    """The `explorer search` that continues a study."""
    return _command("search", None, study.problem, storage, study.goal.options)


def _command(
    name: str,
    what: str | None,
    problem: Problem,
    storage: str | None = None,
    more: Sequence[str] = (),
) -> str:
    words = ["explorer", name, *([what] if what is not None else [])]
    words += [*AskedProblem.of(problem).options, *more]
    words += ["--storage", storage] if storage else []
    return shlex.join(words)
