"""What a study says of each parameter: its weight, its fastest and its slowest value."""

from collections import defaultdict
from collections.abc import Sequence
from statistics import median

import optuna
from optuna.distributions import CategoricalDistribution
from optuna.importance import get_param_importances
from optuna.trial import create_trial

from explorer.space.parameters import Value
from explorer.tuning.results import ParameterEffect, TrialRecord

LEAST_TRIALS = 8
"""Below these, nothing can be said."""


def effects(trials: Sequence[TrialRecord]) -> tuple[ParameterEffect, ...]:
    """By importance, greatest first; parameters that never varied are left out."""
    if len(trials) < LEAST_TRIALS:
        return ()
    times = _times_by_value(trials)
    varied = {name: by_value for name, by_value in times.items() if len(by_value) > 1}
    weights = _importances(trials, varied)
    found = [_effect(name, weights.get(name, 0.0), by_value) for name, by_value in varied.items()]
    return tuple(sorted(found, key=lambda effect: -effect.importance))


def _times_by_value(trials: Sequence[TrialRecord]) -> dict[str, dict[Value, list[float]]]:
    times: dict[str, dict[Value, list[float]]] = defaultdict(lambda: defaultdict(list))
    for trial in trials:
        for name, value in trial.config.as_dict().items():
            times[name][value].append(trial.outcome.time_us)
    return times


def _effect(name: str, importance: float, times: dict[Value, list[float]]) -> ParameterEffect:
    medians = sorted((median(us), str(value)) for value, us in times.items())
    (fastest_us, fastest), (slowest_us, slowest) = medians[0], medians[-1]
    return ParameterEffect(name, importance, fastest, fastest_us, slowest, slowest_us)


def _importances(
    trials: Sequence[TrialRecord], varied: dict[str, dict[Value, list[float]]]
) -> dict[str, float]:
    """PED-ANOVA, Optuna's default; it looks at ranks, so time serves for its logarithm."""
    distributions = {
        name: CategoricalDistribution(tuple(values)) for name, values in varied.items()
    }
    study = optuna.create_study()
    for trial in trials:
        values = trial.config.as_dict()
        study.add_trial(
            create_trial(
                params={name: values[name] for name in varied},
                distributions=distributions,  # type: ignore[arg-type]
                value=trial.outcome.time_us,
            )
        )
    return get_param_importances(study)
