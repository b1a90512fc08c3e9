"""What one parameter does by itself, by pairs of kernels, and how much each one matters.

A search does not draw its kernels at random: it looks mostly near the best, so that the median time
of a value says more about where the search looked than about the value. Two kernels that differ in
one parameter alone have no such other cause. One of them must be nearly as fast as the fastest.
"""

import random
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from itertools import combinations
from statistics import median

from explorer.model.config import Config, Value
from explorer.model.outcome import TrialRecord
from explorer.tuning.contest import ratio
from explorer.tuning.results import Contrast, ParameterEffect, Unpaired

LEAST_PAIRS = 6
"""The fewest pairs whose ratios have an interval of 95 %: six agree by chance once in 32 times."""

TOGETHER = ("threads", "threads_per_row")
"""Where one row is a block's, these two are one number, and cannot change one without the other."""

NEAR = 1.05
"""The faster kernel of a pair takes at most so many times the study's fastest.

What a parameter does among kernels that nobody would take is another question, whose answer changes
with how many of them a search has seen. In a replay of f32 8192x4096 on an H200, pairs of all
kernels have plain stores 0.7 % faster than stores with the hint cs after 200 trials, and 0.2 %
slower after 2478. Pairs of fast ones have them 0.7 % and 0.5 % faster.
"""

BLOCK_OF_A_ROW = " = ".join(TOGETHER)
"""The name of that number."""


def contrasts(trials: Sequence[TrialRecord]) -> tuple[Contrast, ...]:
    """Return every two values of a parameter that LEAST_PAIRS pairs of kernels compare.

    They come by parameter, those of most pairs first. Of two given values no kernel is in two
    pairs, since what else it has names its only partner.
    """
    found = []
    most_us = NEAR * min((trial.outcome.time_us for trial in trials), default=0.0)
    for name, groups in _groups(trials):
        times: dict[tuple[Value, Value], list[tuple[float, float]]] = defaultdict(list)
        for by_value in groups:
            for one, other in combinations(sorted(by_value, key=_order), 2):
                pair = by_value[one], by_value[other]
                if min(pair) <= most_us:
                    times[one, other].append(pair)
        enough = [_contrast(name, of, us) for of, us in times.items() if len(us) >= LEAST_PAIRS]
        found += sorted(enough, key=lambda contrast: -contrast.pairs)
    return tuple(found)


def unpaired(
    trials: Sequence[TrialRecord], compared: Sequence[Contrast], best: Config | None = None
) -> tuple[Unpaired, ...]:
    """Return what can be said of the parameters that varied, but that no pairs tell apart.

    `best` is the config of the study's best kernel, whose values are shown in any case.
    """
    shown = {contrast.name for contrast in compared}
    shown |= set(TOGETHER) if BLOCK_OF_A_ROW in shown else set()
    found = []
    for name in trials[0].config.as_dict() if trials else ():
        values = Counter(getattr(trial.config, name) for trial in trials)
        if name not in shown and len(values) > 1:
            told_of = _two_usual(values)
            of_best = [] if best is None else [getattr(best, name)]
            # in a damaged study no kernel that was measured may have the best one's values
            told_of += [value for value in of_best if value in values and value not in told_of]
            found.append(Unpaired(name, *(_fastest(trials, name, v) for v in told_of)))
    return tuple(found)


def _groups(trials: Sequence[TrialRecord]) -> Iterator[tuple[str, list[dict[Value, float]]]]:
    """Yield each parameter, and the times by its value of kernels that are otherwise the same."""
    configs = [(trial.config.as_dict(), trial.outcome.time_us) for trial in trials]
    for name in configs[0][0] if configs else ():
        yield name, _grouped(configs, (name,))
    one_row = [(c, us) for c, us in configs if c["threads"] == c["threads_per_row"]]
    yield BLOCK_OF_A_ROW, _grouped(one_row, TOGETHER)


def _grouped(
    configs: Sequence[tuple[dict[str, Value], float]], names: tuple[str, ...]
) -> list[dict[Value, float]]:
    groups: dict[tuple[Value, ...], dict[Value, float]] = defaultdict(dict)
    for values, time_us in configs:
        rest = tuple(value for name, value in values.items() if name not in names)
        value = values[names[0]]
        groups[rest][value] = min(time_us, groups[rest].get(value, time_us))
    return [group for group in groups.values() if len(group) > 1]


def _contrast(
    name: str, values: tuple[Value, Value], times: Sequence[tuple[float, float]]
) -> Contrast:
    one_us, other_us = zip(*times, strict=True)
    over = ratio(other_us, one_us)
    faster, slower = values
    if over.median < 1:
        over, faster, slower = ratio(one_us, other_us), slower, faster
        one_us, other_us = other_us, one_us
    agreeing = sum(fast < slow for fast, slow in zip(one_us, other_us, strict=True))
    return Contrast(name, faster, slower, over.median, over.low, over.high, len(times), agreeing)


def _two_usual(values: Counter[Value]) -> list[Value]:
    """Return the two values of most kernels."""
    return sorted(values, key=lambda value: (-values[value], _order(value)))[:2]


def _fastest(trials: Sequence[TrialRecord], name: str, value: Value) -> tuple[Value, float, int]:
    times = [t.outcome.time_us for t in trials if getattr(t.config, name) == value]
    return value, min(times), len(times)


def _order(value: Value) -> tuple[int, str]:
    """Numbers by size, then words."""
    return (value, "") if isinstance(value, int) else (0, value)


# ------------------------------------------------------------------ how much each parameter matters


LEAST_TRIALS = 30
"""Below these, nothing can be said: the fastest tenth would be one or two kernels."""

SAMPLES = 8
"""Samples of the trials, which show how far an importance is a matter of chance."""

SAMPLED = 0.75
"""Of the trials, in each sample."""

EARLIER = (0.5, 0.75)
"""Shares of the trials, from the first on: what the study would have said if it had ended then.

A search moves towards the best, so that random samples of what it has tried alone would say too
little of how importances change with more trials.
"""


def effects(trials: Sequence[TrialRecord]) -> tuple[ParameterEffect, ...]:
    """Return what each parameter that varied weighs, the greatest importance first."""
    if len(trials) < LEAST_TRIALS:
        return ()
    times = _times_by_value(trials)
    varied = {name: by_value for name, by_value in times.items() if len(by_value) > 1}
    weights = _importances(trials, varied)
    rng, number = random.Random(0), round(SAMPLED * len(trials))
    taken = [rng.sample(list(trials), number) for _ in range(SAMPLES)]
    in_order = sorted(trials, key=lambda trial: trial.number)
    taken += [in_order[: round(share * len(trials))] for share in EARLIER]
    samples = [_importances(some, varied) for some in taken]
    found = [
        _effect(name, weights, [sample.get(name, 0.0) for sample in samples], by_value)
        for name, by_value in varied.items()
    ]
    return tuple(sorted(found, key=lambda effect: -effect.importance))


def _times_by_value(trials: Sequence[TrialRecord]) -> dict[str, dict[Value, list[float]]]:
    times: dict[str, dict[Value, list[float]]] = defaultdict(lambda: defaultdict(list))
    for trial in trials:
        for name, value in trial.config.as_dict().items():
            times[name][value].append(trial.outcome.time_us)
    return times


def _effect(
    name: str, weights: dict[str, float], sampled: list[float], times: dict[Value, list[float]]
) -> ParameterEffect:
    medians = sorted((median(us), str(value)) for value, us in times.items())
    (fastest_us, fastest), (slowest_us, slowest) = medians[0], medians[-1]
    return ParameterEffect(
        name=name,
        importance=weights.get(name, 0.0),
        importance_low=min(sampled),
        importance_high=max(sampled),
        fastest_value=fastest,
        fastest_us=fastest_us,
        slowest_value=slowest,
        slowest_us=slowest_us,
    )


def _importances(
    trials: Sequence[TrialRecord], varied: dict[str, dict[Value, list[float]]]
) -> dict[str, float]:
    """PED-ANOVA, Optuna's default; it looks at ranks, so time serves for its logarithm."""
    # Where scikit-learn is installed this imports all of it, in 1.2 s on an H200's host.
    import optuna
    from optuna.distributions import CategoricalDistribution
    from optuna.importance import get_param_importances
    from optuna.trial import create_trial

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
