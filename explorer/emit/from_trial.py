"""The variant of a finished trial, as long as the templates still emit what was measured."""

from explorer.codegen import Variant, emit
from explorer.errors import NotFound
from explorer.problem import Problem
from explorer.search.results import TrialRecord


def variant_of(trial: TrialRecord, problem: Problem) -> Variant:
    """What the trial measured, emitted again; raises NotFound where templates have changed."""
    variant = emit(problem, trial.config)
    measured = trial.outcome.digest
    if variant.digest != measured:
        raise NotFound(
            f"trial {trial.number} measured code {measured}, but these templates emit "
            f"{variant.digest} for its config: run the search again, or emit the config as it is "
            f"now: explorer emit '{trial.config.to_json(brief=True)}' --cols {problem.cols} "
            f"--dtype {problem.dtype} --rows {problem.rows}"
        )
    return variant
