"""Optuna samplers by name, and the search's own mixture as one of them."""

import inspect
import math
import random
from collections.abc import Mapping
from importlib import import_module
from typing import Any

from optuna.distributions import BaseDistribution
from optuna.samplers import BaseSampler, RandomSampler
from optuna.study import Study, StudyDirection
from optuna.trial import FrozenTrial, TrialState

from explorer.model.config import Config
from explorer.model.errors import InvalidInput
from explorer.space import Space
from explorer.system.plain_data import shown
from explorer.tuning.objective import Goal
from explorer.tuning.proposer import Proposer, SpaceCandidates
from explorer.tuning.seeds import seeds_of
from explorer.tuning.surrogate import SamplerOf, blamed, distributions

# ------------------------------------------------------------------ the mixture as a sampler


class ExplorerSampler(BaseSampler):
    """Propose the configs that `explorer search` would, in an Optuna study of your own.

    The study minimises a time, and its parameters are those of a space:

        space = Space(problem, gpu)
        study = optuna.create_study(sampler=ExplorerSampler(space))
        trial = study.ask(distributions(space.parameters))
        study.tell(trial, time_us(Config(**trial.params)))

    A trial that ends PRUNED or FAIL is a config that cannot be used. Every proposal is legal and
    untried, as long as there is one. A search calls the mixture itself, since it knows more than a
    trial tells: which configs a recording holds, which ones emit the same code, and what other
    processes evaluate. So `--sampler` with this class is the search without `--sampler`.
    """

    def __init__(self, space: Space, seed: int = 0) -> None:
        candidates = SpaceCandidates(space)
        first = seeds_of(Goal(), space, random.Random(seed))
        self._proposer = Proposer(candidates, Config.to_json, first, seed, lambda *_: None)
        self._space = distributions(space.parameters)
        self._independent = RandomSampler(seed=seed)
        self._learnt: set[int] = set()

    def infer_relative_search_space(
        self, study: Study, trial: FrozenTrial
    ) -> dict[str, BaseDistribution]:
        """Return the distributions of the space's parameters."""
        return dict(self._space)

    def sample_relative(
        self, study: Study, trial: FrozenTrial, search_space: Mapping[str, BaseDistribution]
    ) -> dict[str, Any]:
        """Return the values of an untried legal config; nothing where every config was tried.

        Raises InvalidInput for a study that does not minimise one value.
        """
        if study.directions != [StudyDirection.MINIMIZE]:
            raise InvalidInput("the study of an ExplorerSampler must minimise one value, a time")
        for finished in study.get_trials(deepcopy=False):
            if finished.state.is_finished() and finished.number not in self._learnt:
                self._learn(finished)
        proposal = self._proposer.propose()
        return {} if proposal is None else proposal.config.as_dict()

    def sample_independent(
        self,
        study: Study,
        trial: FrozenTrial,
        param_name: str,
        param_distribution: BaseDistribution,
    ) -> Any:
        """Return a random value of a parameter that the space does not have."""
        return self._independent.sample_independent(study, trial, param_name, param_distribution)

    def _learn(self, trial: FrozenTrial) -> None:
        """Learn a finished trial, unless its parameters are none of the space's."""
        self._learnt.add(trial.number)
        values = {name: trial.params.get(name) for name in self._space}
        if any(value not in self._space[name].choices for name, value in values.items()):
            return
        config = Config.from_dict(values)
        done = trial.state is TrialState.COMPLETE
        time_us = trial.values[0] if done else math.inf
        self._proposer.learn(config, config.to_json(), (time_us,))


# ------------------------------------------------------------------ samplers of the user's


Sampler = str | type[BaseSampler] | BaseSampler
"""A sampler of Optuna: `module:Class`, its class, or one that is made."""


def sampler_of(wanted: Sampler) -> SamplerOf | None:
    """Return what makes a sampler of a seed, which one that is made takes no more.

    A class is called with `seed=` if it takes one. None stands for the search's own,
    ExplorerSampler. Raises InvalidInput for what is no sampler of Optuna.
    """
    if isinstance(wanted, BaseSampler):
        return lambda _: wanted
    found = _loaded(wanted) if isinstance(wanted, str) else wanted
    if not (isinstance(found, type) and issubclass(found, BaseSampler)):
        raise InvalidInput(
            f"sampler {shown(wanted)} is no class of optuna.samplers.BaseSampler; write "
            "module:Class, such as optuna.samplers:RandomSampler, or in a program give the class "
            "or a sampler"
        )
    if found is ExplorerSampler:
        return None

    def made(seed: int) -> BaseSampler:
        with blamed(f"{found.__module__}:{found.__qualname__}"):
            takes_seed = "seed" in inspect.signature(found).parameters
            sampler: BaseSampler = found(**({"seed": seed} if takes_seed else {}))
            return sampler

    return made


def _loaded(name: str) -> Any:
    """Return the attribute that `module:attribute` names. Raises InvalidInput."""
    module, _, attribute = name.partition(":")
    try:
        return getattr(import_module(module), attribute)
    except Exception as error:  # a module may raise what it likes
        raise InvalidInput(
            f"sampler {shown(name)} cannot be loaded ({type(error).__name__}: {error}); write "
            "module:Class, such as optuna.samplers:RandomSampler"
        ) from None
