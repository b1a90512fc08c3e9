"""Commands that the user can run next, written out."""

import shlex
from collections.abc import Sequence

from explorer.asked import AskedProblem
from explorer.codegen import emit
from explorer.problem import Problem
from explorer.search.objectives import Objectives
from explorer.search.results import StudySummary, TrialRecord

CHANGED = "the templates have changed since: the last line writes what they emit now for its config"
"""What to say of a trial that is not reproducible."""


def emit_command(what: str, problem: Problem, storage: str | None = None) -> str:
    """The `explorer emit` that writes a trial (or best, or a config as JSON) of a problem."""
    return _command("emit", what, problem, storage)


def reproducing_command(
    trial: TrialRecord, problem: Problem, storage: str | None = None, *, usual: bool = True
) -> str:
    """The `explorer emit` of a trial: by number, which means one of the `usual` study.

    By config where it is of another study, or templates have changed since.
    """
    by_number = usual and is_reproducible(trial, problem)
    what = str(trial.number) if by_number else trial.config.to_json(brief=True)
    return emit_command(what, problem, storage if by_number else None)


def is_reproducible(trial: TrialRecord, problem: Problem) -> bool:
    """Whether the templates still emit the code that the trial measured."""
    return emit(problem, trial.config).digest == trial.outcome.digest


def search_command(study: StudySummary, storage: str | None = None) -> str:
    """The `explorer search` that continues a study."""
    two = study.objectives is not Objectives.TIME
    words = ["--objectives", str(study.objectives)] if two else []
    usual = study.accuracy is study.objectives.usual_accuracy
    words += [] if usual else ["--accuracy", str(study.accuracy)]
    return _command("search", None, study.problem, storage, words)


def _command(
    name: str, what: str | None, problem: Problem, storage: str | None, more: Sequence[str] = ()
) -> str:
    words = ["explorer", name, *([what] if what is not None else [])]
    words += [*AskedProblem.of(problem).options, *more]
    words += ["--storage", storage] if storage else []
    return shlex.join(words)
