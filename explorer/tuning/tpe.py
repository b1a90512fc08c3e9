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

    def __init__(
        self, values: dict[str, tuple[Value, ...]], seed: int, objectives: int = 1
    ) -> None:
        self._distributions = distributions(values)
        self._seed = seed
        self._objectives = objectives
        self._told: list[tuple[Config, tuple[float, ...]]] = []
        self._asked: dict[Config, Trial] = {}
        self._study = self._new_study()

    def ask(self) -> Config:
        """What TPE expects to be fast; with two objectives, to be near the front."""
        trial = self._study.ask(self._distributions)  # type: ignore[arg-type]
        config = Config(**trial.params)
        if config in self._asked:
            self._study.tell(trial, state=TrialState.FAIL)
        else:
            self._asked[config] = trial
        return config

    def tell(self, config: Config, values: tuple[float, ...]) -> None:
        """A value for each objective, infinite for what cannot be used."""
        trial = self._asked.pop(config, None)
        if trial is None:
            self._add(config, values)
        elif math.isinf(values[0]):
            self._study.tell(trial, state=TrialState.PRUNED)
        else:
            self._study.tell(trial, values)
        self._told.append((config, values))
        if len(self._told) > MIRROR_LIMIT:
            self._thin()

    def forget(self, config: Config) -> None:
        """Take back an asked config that will not be told: TPE ignores failed trials."""
        trial = self._asked.pop(config, None)
        if trial is not None:
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
            best |= sorted(older, key=lambda told: told[1][objective])[:share]
        self._told = [*best.items(), *recent]
        self._asked.clear()
        self._study = self._new_study()
        for config, values in self._told:
            self._add(config, values)

    def _new_study(self) -> optuna.Study:
        self._seed += 1
        sampler = TPESampler(n_startup_trials=STARTUP, seed=self._seed)
        return optuna.create_study(sampler=sampler, directions=["minimize"] * self._objectives)


def distributions(values: dict[str, tuple[Value, ...]]) -> dict[str, CategoricalDistribution]:
    """A categorical distribution a parameter."""
    return {name: CategoricalDistribution(choices) for name, choices in values.items()}
