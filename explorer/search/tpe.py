"""Optuna's TPE as a source of proposals: it learns from an in-memory mirror of the study.

A mirror, because TPE asks and tells cost a database 25 commits a trial; finished trials reach
the study's storage in one transaction each (see `ledger`).
"""

import math

import optuna
from optuna.distributions import CategoricalDistribution
from optuna.samplers import TPESampler
from optuna.trial import Trial, TrialState, create_trial

from explorer.config import Config
from explorer.space.parameters import Value

STARTUP = 5
"""Told trials before TPE models: the seeds are good already."""

MIRROR_LIMIT = 500
"""Trials in the mirror before it is thinned: asks slow down, and memory grows, with them."""

KEPT_BEST = 100
KEPT_RECENT = 100


class Tpe:
    """Ask for a config, legal or not, tried or not; tell what became of any config."""

    def __init__(self, values: dict[str, tuple[Value, ...]], seed: int) -> None:
        self._distributions = distributions(values)
        self._seed = seed
        self._told: list[tuple[Config, float]] = []
        self._asked: dict[Config, Trial] = {}
        self._study = self._new_study()

    def ask(self) -> Config:
        """What TPE expects to be fast."""
        trial = self._study.ask(self._distributions)  # type: ignore[arg-type]
        config = Config(**trial.params)
        if config in self._asked:
            self._study.tell(trial, state=TrialState.FAIL)
        else:
            self._asked[config] = trial
        return config

    def tell(self, config: Config, time_us: float) -> None:
        """A time, or infinity for what cannot be used."""
        trial = self._asked.pop(config, None)
        if trial is None:
            self._add(config, time_us)
        elif math.isinf(time_us):
            self._study.tell(trial, state=TrialState.PRUNED)
        else:
            self._study.tell(trial, time_us)
        self._told.append((config, time_us))
        if len(self._told) > MIRROR_LIMIT:
            self._thin()

    def forget(self, config: Config) -> None:
        """Take back an asked config that will not be told: TPE ignores failed trials."""
        trial = self._asked.pop(config, None)
        if trial is not None:
            self._study.tell(trial, state=TrialState.FAIL)

    def _add(self, config: Config, time_us: float) -> None:
        pruned = math.isinf(time_us)
        self._study.add_trial(
            create_trial(
                state=TrialState.PRUNED if pruned else TrialState.COMPLETE,
                value=None if pruned else time_us,
                params=config.as_dict(),
                distributions=self._distributions,  # type: ignore[arg-type]
            )
        )

    def _thin(self) -> None:
        """Start the mirror anew from the best and the latest."""
        older, recent = self._told[:-KEPT_RECENT], self._told[-KEPT_RECENT:]
        self._told = sorted(older, key=lambda told: told[1])[:KEPT_BEST] + recent
        self._asked.clear()
        self._study = self._new_study()
        for config, time_us in self._told:
            self._add(config, time_us)

    def _new_study(self) -> optuna.Study:
        self._seed += 1
        sampler = TPESampler(n_startup_trials=STARTUP, seed=self._seed)
        return optuna.create_study(sampler=sampler)


def distributions(values: dict[str, tuple[Value, ...]]) -> dict[str, CategoricalDistribution]:
    """A categorical distribution a parameter."""
    return {name: CategoricalDistribution(choices) for name, choices in values.items()}
