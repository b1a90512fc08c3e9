"""The variant of a finished trial, as long as the templates still emit what was measured."""

import shlex

from explorer.circumstances import Circumstances
from explorer.codegen import Variant, emit
from explorer.errors import NotFound
from explorer.problem import Problem
from explorer.space import can_emit
from explorer.tuning.results import TrialRecord


def variant_of(
    trial: TrialRecord, problem: Problem, recorded: Circumstances | None = None
) -> Variant:
    """What the trial measured, emitted again; raises NotFound where it cannot be any longer.

    `recorded` are the circumstances of the recording that the trial replays, if it does.
    """
    if not can_emit(problem, trial.config):
        raise NotFound(
            f"trial {trial.number} measured the config {trial.config.to_json(brief=True)}, which "
            "the installed space does not allow: run the search again"
        )
    variant = emit(problem, trial.config)
    measured = trial.outcome.digest
    if variant.digest == measured:
        return variant
    changed = f"these templates emit {variant.digest} for its config"
    command = _command(trial, problem)
    if recorded is None:
        raise NotFound(
            f"trial {trial.number} measured code {measured}, but {changed}: run the search again, "
            f"or emit the config as it is now: {command}"
        )
    raise NotFound(
        f"the recording made on {recorded.gpu} on {recorded.date[:10]} is older than the "
        f"templates: trial {trial.number} replays code {measured}, but {changed}; emit the config "
        f"as it is now: {command}"
    )


def _command(trial: TrialRecord, problem: Problem) -> str:
    words = ["explorer", "emit", trial.config.to_json(brief=True)]
    words += ["--cols", str(problem.cols), "--dtype", str(problem.dtype)]
    return shlex.join([*words, "--rows", str(problem.rows)])
