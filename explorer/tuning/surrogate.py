"""Models of what was measured: Optuna's samplers, and a Gaussian process."""

import math
import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np
import optuna
from numpy.typing import NDArray
from optuna.distributions import CategoricalDistribution
from optuna.samplers import BaseSampler, TPESampler
from optuna.trial import Trial, TrialState, create_trial

from explorer.model.config import Config, Value
from explorer.model.errors import ExplorerError, InvalidInput

# ------------------------------------------------------------------ samplers of Optuna
# They learn from an in-memory mirror of the study, because to ask and to tell costs a database 25
# commits a trial; finished trials reach the study's storage in one transaction each.


STARTUP = 5
"""Trials before TPE models them: the seeds are good already."""

MIRROR_LIMIT = 150
"""Trials in the mirror before it is thinned: on an H200's host an ask takes 15 ms among 120 trials
and 22 ms among 250."""

KEPT_BEST = 50
KEPT_RECENT = 50


SamplerOf = Callable[[int], BaseSampler]
"""Makes an Optuna sampler of a seed."""


def tpe_of(seed: int) -> BaseSampler:
    """Optuna's TPE, which models from the first few trials on."""
    return TPESampler(n_startup_trials=STARTUP, seed=seed)


@contextmanager
def blamed(name: str) -> Iterator[None]:
    """Raise InvalidInput for what a sampler of the user's raises."""
    try:
        yield
    except (ExplorerError, KeyboardInterrupt, MemoryError):
        raise
    except (Exception, SystemExit) as error:
        message = f"{type(error).__name__}: {error}".splitlines()[0]
        raise InvalidInput(
            f"sampler {name} raised {message}; what finished before is kept: mend the sampler, or "
            "leave it out, and run the search again"
        ) from error


class _Choices(CategoricalDistribution):
    """A distribution that is the same object in all trials of the mirror.

    Optuna copies the distributions of each trial, and compares each with those of all trials value
    by value: that was a quarter of the CPU time of a replay's proposals.
    """

    def __deepcopy__(self, memo: dict[int, Any]) -> "_Choices":
        return self

    def __eq__(self, other: object) -> bool:
        return self is other or super().__eq__(other)

    __hash__ = CategoricalDistribution.__hash__


class OptunaSampler:
    """Proposes configs, legal or not, tried or not, and learns what became of any config.

    The sampler is Optuna's TPE, whose mirror is thinned, or one of the user's, which keeps all
    trials.
    """

    def __init__(
        self,
        values: dict[str, tuple[Value, ...]],
        seed: int,
        objectives: int = 1,
        sampler: SamplerOf = tpe_of,
    ) -> None:
        self._sampler = sampler
        self._distributions = {name: _Choices(choices) for name, choices in values.items()}
        self._seed = seed
        self._objectives = objectives
        self._told: list[tuple[Config, tuple[float, ...]]] = []
        self._asked: dict[Config, Trial] = {}
        self._study = self._new_study()

    @property
    def name(self) -> str:
        """The module and the name of the sampler's class."""
        kind = type(self._study.sampler)
        return f"{kind.__module__}:{kind.__qualname__}"

    def ask(self) -> Config:
        """Return what the sampler expects to be fast; with two objectives, near the front."""
        trial = self._new_trial()
        config = Config(**trial.params)
        if config in self._asked:
            self._fail(trial)
        else:
            self._asked[config] = trial
        return config

    def ask_repaired(
        self, repair: Callable[[Config], Config | None]
    ) -> tuple[Config, Config | None]:
        """Return what the sampler gives, and the untried config that stands for it, if any.

        The sampler learns of its own config what is told of that one.
        """
        trial = self._new_trial()
        config = Config(**trial.params)
        repaired = repair(config)
        if repaired is None:
            self._fail(trial)
        else:
            self._asked[repaired] = trial
        return config, repaired

    def _new_trial(self) -> Trial:
        with blamed(type(self._study.sampler).__name__):
            return self._study.ask(self._distributions)  # type: ignore[arg-type]

    def tell(self, config: Config, values: tuple[float, ...]) -> None:
        """Learn the value of each objective, infinite for what cannot be used.

        A config with a value that the sampler does not draw is not one of its trials.
        """
        drawn = self._distributions.items()
        trial = self._asked.pop(config, None)
        if trial is None and any(getattr(config, n) not in v.choices for n, v in drawn):
            return
        with blamed(type(self._study.sampler).__name__):
            if trial is None:
                self._add(config, values)
            elif math.isinf(values[0]):
                self._study.tell(trial, state=TrialState.PRUNED)
            else:
                self._study.tell(trial, values)
        self._told.append((config, values))
        if self._sampler is tpe_of and len(self._told) > MIRROR_LIMIT:
            self._thin()

    def forget(self, config: Config) -> None:
        """Take back a config whose values are never known: samplers ignore failed trials."""
        trial = self._asked.pop(config, None)
        if trial is not None:
            self._fail(trial)

    def _fail(self, trial: Trial) -> None:
        with blamed(type(self._study.sampler).__name__):
            self._study.tell(trial, state=TrialState.FAIL)

    def _add(self, config: Config, values: tuple[float, ...]) -> None:
        pruned = math.isinf(values[0])
        self._study.add_trial(
            create_trial(
                state=TrialState.PRUNED if pruned else TrialState.COMPLETE,
                values=None if pruned else values,
                params=config.as_dict(),
                distributions=self._distributions,  # type: ignore[arg-type]
            )
        )

    def _thin(self) -> None:
        """Start the mirror anew from the best of each objective and the latest."""
        older, recent = self._told[:-KEPT_RECENT], self._told[-KEPT_RECENT:]
        share = KEPT_BEST // self._objectives
        best: dict[Config, tuple[float, ...]] = {}
        for objective in range(self._objectives):
            best |= sorted(older, key=lambda known: known[1][objective])[:share]
        self._told = [*best.items(), *recent]
        self._asked.clear()
        self._study = self._new_study()
        for config, values in self._told:
            self._add(config, values)

    def _new_study(self) -> optuna.Study:
        self._seed += 1
        sampler = self._sampler(self._seed)
        before = optuna.logging.get_verbosity()
        optuna.logging.set_verbosity(optuna.logging.WARNING)  # the mirror is no study of the user's
        try:
            return optuna.create_study(sampler=sampler, directions=["minimize"] * self._objectives)
        finally:
            optuna.logging.set_verbosity(before)


def distributions(values: dict[str, tuple[Value, ...]]) -> dict[str, CategoricalDistribution]:
    """Return a categorical distribution for each parameter."""
    return {name: CategoricalDistribution(choices) for name, choices in values.items()}


# ------------------------------------------------------------------ surrogate
# A Gaussian process over the logarithm of what is measured, whose covariance falls with the
# distance of configs: one for each parameter that differs, less for neighbouring numbers. It orders
# the steps that a search could take next; it is never a result.


Floats = NDArray[np.float64]

LEAST = 8
"""Measured configs before the process predicts anything."""

KEPT = 128
"""Measured configs of a fit: the fastest half of them, and a sample of the others. A fit takes
2 ms."""

CHOSEN_EVERY = 4
"""New measurements after which the configs of a fit are chosen anew; until then each new one is
added."""

FULL_STEP = 3
"""Numeric values so many places apart are as different as two names."""

LENGTH_GROWTH = 1.5
"""Growth of the number of measured configs after which the length is chosen again."""

LENGTHS = (2.0, 4.0, 8.0, 16.0)
"""Distances over which configs are alike; the likeliest is chosen."""

NOISE = 1e-3
"""Fraction of the variance that is the clock's."""

LEAST_VALUE = 1e-3
"""Below this all is the same: an error may be 0, whose logarithm is infinite."""


class Surrogate:
    """Learns measured values, such as times, and predicts those of other configs."""

    def __init__(self, values: dict[str, tuple[Value, ...]], rng: random.Random) -> None:
        self._codes = {n: {v: i for i, v in enumerate(choices)} for n, choices in values.items()}
        self._tables = [_distance_table(choices) for choices in values.values()]
        self._encoded: dict[Config, list[int]] = {}
        self._rng = rng
        self._rows: list[list[int]] = []
        self._logs: list[float] = []
        self._chosen: list[int] = []
        """Places of the configs of a fit."""
        self._chosen_at = 0
        """Measured configs when they were chosen."""
        self._length = LENGTHS[0]
        self._length_at = 0
        """Measured configs when the length was chosen."""
        self._fit: _Fit | None = None
        """The fit of all that was learnt; None where something was learnt since."""

    @property
    def is_ready(self) -> bool:
        """Whether enough was learnt."""
        return len(self._rows) >= LEAST

    def learn(self, config: Config, value: float) -> None:
        """Learn a measured time, or error."""
        self._rows.append(self._encode(config))
        self._logs.append(math.log(max(value, LEAST_VALUE)))
        self._fit = None

    def bounds(self, configs: Sequence[Config], number: int = 1) -> list[Floats]:
        """Return `number` lower bounds on the logarithms of the values, each drawn afresh."""
        self._fit = fit = self._fit or self._fitted()
        rows = np.array([self._encode(config) for config in configs])
        near = np.exp(-self._distances(fit.rows, rows) / fit.length)
        mean = near.T @ fit.weights
        variance = 1.0 - (near * (fit.inverse @ near)).sum(axis=0)
        deviation = fit.scale * np.sqrt(np.maximum(variance, 0.0))
        return [np.asarray(mean - self._rng.uniform(0.0, 2.0) * deviation) for _ in range(number)]

    def _fitted(self) -> "_Fit":
        known = len(self._rows)
        if known >= self._chosen_at + CHOSEN_EVERY or not self._chosen:
            self._chosen, self._chosen_at = self._kept(), known
        chosen = [*self._chosen, *range(self._chosen_at, known)]
        rows, logs = np.array(self._rows)[chosen], np.array(self._logs)[chosen]
        distances = self._distances(rows, rows)
        if self._chosen_at == known and known >= LENGTH_GROWTH * self._length_at:
            self._length_at = known
            fits = [_fit(rows, logs, distances, length) for length in LENGTHS]
            self._length = max(fits, key=lambda fit: fit.likelihood).length
        return _fit(rows, logs, distances, self._length)

    def _kept(self) -> list[int]:
        if len(self._rows) <= KEPT:
            return list(range(len(self._rows)))
        order = [int(row) for row in np.argsort(self._logs)]
        return order[: KEPT // 2] + self._rng.sample(order[KEPT // 2 :], KEPT // 2)

    def _distances(self, these: NDArray[np.int64], those: NDArray[np.int64]) -> Floats:
        total = np.zeros((len(these), len(those)))
        for column, table in enumerate(self._tables):
            total += table[these[:, column]][:, those[:, column]]
        return total

    def _encode(self, config: Config) -> list[int]:
        """Return the places of its values; steps from the best are encoded time and again."""
        found = self._encoded.get(config)
        if found is None:
            found = [codes[getattr(config, name)] for name, codes in self._codes.items()]
            self._encoded[config] = found
        return found


class _Fit(NamedTuple):
    """The process with one length: what predictions need, and how likely it makes the values."""

    rows: NDArray[np.int64]
    length: float
    inverse: Floats
    """Of the covariance, the clock's share included."""
    weights: Floats
    scale: float
    likelihood: float


def _fit(rows: NDArray[np.int64], logs: Floats, distances: Floats, length: float) -> _Fit:
    """Fit the process to values at so many distances from each other."""
    covariance = np.exp(-distances / length) + NOISE * np.eye(len(rows))
    inverse = np.asarray(np.linalg.inv(covariance), np.float64)
    centred = logs - logs.mean()
    weights = inverse @ centred
    variance = max(float(centred @ weights) / len(rows), 1e-12)
    _, log_determinant = np.linalg.slogdet(covariance)
    likelihood = -len(rows) * math.log(variance) - float(log_determinant)
    return _Fit(rows, length, inverse, np.asarray(weights), math.sqrt(variance), likelihood)


def pick_between(
    surrogates: Sequence[Surrogate], configs: Sequence[Config], rng: random.Random, number: int = 1
) -> list[Config]:
    """Up to `number` configs that are most promising for all values at once.

    Each by weights and by a caution that are drawn afresh, so that they differ, or are fewer.
    Chebyshev's scalarisation: what counts is the value that is furthest above the least, so that
    also a bay in the front is reached (Knowles, ParEGO, 2006).
    """
    all_bounds = [surrogate.bounds(configs, number) for surrogate in surrogates]
    picked: dict[Config, None] = {}
    for bounds_of_each in zip(*all_bounds, strict=True):
        if len(surrogates) == 1:
            furthest = bounds_of_each[0]
        else:
            furthest = np.zeros(len(configs))
            for bounds in bounds_of_each:
                above = (bounds - bounds.min()) / max(float(np.ptp(bounds)), 1e-9)
                furthest = np.maximum(furthest, rng.expovariate(1.0) * above)
        picked[configs[int(np.argmin(furthest))]] = None
    return list(picked)


def _distance_table(choices: Sequence[Value]) -> Floats:
    """Return the distance of every two values of a parameter, from 0 to 1."""
    if not all(isinstance(value, int) and not isinstance(value, bool) for value in choices):
        return np.asarray(1.0 - np.eye(len(choices)))
    places = np.arange(len(choices))
    return np.asarray(np.minimum(np.abs(places[:, None] - places), FULL_STEP) / FULL_STEP)
