"""What to try next: seeds, then a mixture of steps around the best, TPE and random points.

Once a few kernels are measured a surrogate orders the steps: on model spaces with interactions that
takes 150 kernels from a mean of 16 % above the optimum to 4 %. `explorer benchmark` compares this
mixture with a hill-climb, TPE alone and random order in recorded spaces of which all is known.
"""

import math
import random
from bisect import insort
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Protocol

from explorer.model.config import Config
from explorer.space import Rule
from explorer.tuning.candidates import Offer
from explorer.tuning.contest import dominates
from explorer.tuning.objective import Objectives
from explorer.tuning.surrogate import OptunaSampler, SamplerOf, Surrogate, pick_between, tpe_of

# ------------------------------------------------------------------ the best so far


ELITE = 5
"""How many of the fastest are kept."""

HILLS = 3
"""Number of kinds of cache whose fastest config gets a hill-climb of its own."""

Values = tuple[float, ...]


class Elite(Protocol):
    """Keeps the best of what was measured."""

    favour: float
    """How often a step starts from a config, relative to the next better one."""

    @property
    def configs(self) -> Sequence[Config]:
        """Those that are kept, the fastest first."""

    @property
    def hills(self) -> Sequence[Config]:
        """Those of them that are climbed alone, too."""

    def add(self, config: Config, values: Values) -> list[Config]:
        """Keep `config` if it is among the best; what is kept no longer."""


class Fastest:
    """The few of least time, and the fastest of each kind of cache.

    A row kept elsewhere is another hill: its top lies several choices away, the first of which
    cost time.
    """

    favour = 0.5

    def __init__(self) -> None:
        self._kept: list[tuple[float, int, Config]] = []
        self._by_cache: dict[str, tuple[float, int, Config]] = {}
        self._added = 0

    @property
    def configs(self) -> list[Config]:
        """The fastest first."""
        others = sorted(set(self._by_cache.values()) - set(self._kept))
        return [config for _, _, config in [*self._kept, *others]]

    @property
    def hills(self) -> list[Config]:
        """The fastest of each kind of cache."""
        return [config for _, _, config in sorted(self._by_cache.values())[:HILLS]]

    def add(self, config: Config, values: Values) -> list[Config]:
        """Keep `config` if it is among the fastest, or of its cache; what it drives out."""
        before = self.configs
        self._added += 1
        entry = (values[0], self._added, config)
        self._by_cache[config.cache] = min(entry, self._by_cache.get(config.cache, entry))
        insort(self._kept, entry)
        del self._kept[ELITE:]
        kept = set(self.configs)
        return [one for one in before if one not in kept]


class Front:
    """All that none is better than in one value and as good as in the others."""

    favour = 1.0

    def __init__(self) -> None:
        self._kept: list[tuple[Values, Config]] = []

    @property
    def configs(self) -> list[Config]:
        """The fastest first."""
        return [config for _, config in self._kept]

    @property
    def hills(self) -> list[Config]:
        """All of them."""
        return self.configs

    def add(self, config: Config, values: Values) -> list[Config]:
        """Keep `config` unless one that is kept is better; what it is better than."""
        if any(dominates(kept, values) for kept, _ in self._kept):
            return []
        fallen = [one for kept, one in self._kept if dominates(values, kept)]
        rest = [entry for entry in self._kept if not dominates(values, entry[0])]
        self._kept = sorted([*rest, (values, config)], key=lambda entry: entry[0])
        return fallen


# ------------------------------------------------------------------ proposals


class Origin(StrEnum):
    """What proposed a config."""

    SEED = "seed"
    STEP = "step"
    TPE = "tpe"
    RANDOM = "random"
    SAMPLER = "sampler"
    """An Optuna sampler of the user's, in place of the three before."""


SHARES = {Origin.STEP: 0.45, Origin.TPE: 0.5, Origin.RANDOM: 0.05}
"""How the proposals after the seeds are divided. In seven brute-forced sub-spaces, without seeds, 9
of 10 searches so came within 1 % of the best in 59 evaluations, with 30 % of TPE in 72, when all
were evaluated in the order of proposals."""

CHOSEN_LATE = (Origin.STEP, Origin.TPE)
"""Of proposals of these kinds the most promising is evaluated next, whatever their order."""

DRAWS = 8
"""Random points that compete with the steps."""

JUMPS = 16
"""Configs with several choices changed that compete with the steps. Four times as many of both
found nothing sooner in six brute-forced sub-spaces, and took 20 ms more a proposal.
"""

JUMP_CHANGES = 4

PICKED = 2
"""Steps that are picked at once: to weigh them takes 20 ms on an H200's host, in which the GPU
verifies and times a kernel."""

ALONE = 0.3
"""How often one hill is climbed alone. On a model space of two hills that takes 150 kernels from a
mean of 0.9 % above the optimum to 0.2 %, and from 3.1 % at worst of 40 seeds to 1 %; on recorded
spaces it makes no difference.
"""

ASK_RETRIES = 4
"""Asks that give tried configs before another source is used."""


@dataclass(frozen=True, slots=True)
class Proposal:
    """An untried config whose code was not met before."""

    config: Config
    digest: str
    origin: Origin


class Proposer:
    """Proposes untried configs, and learns from every outcome; one seed, one sequence."""

    def __init__(
        self,
        offer: Offer,
        identity: Callable[[Config], str],
        seeds: Sequence[Config],
        seed: int,
        on_illegal: Callable[[Config, Rule, Origin], None],
        objectives: Objectives = Objectives.TIME,
        sampler: SamplerOf | None = None,
    ) -> None:
        """After the seeds a `sampler` of the user's, if there is one, proposes all else."""
        self.duplicates = 0
        """Configs that were not proposed because they emit code that was."""
        self.asked = self.changed = 0
        """Configs that the sampler was asked for and gave, and those of them that broke a rule or
        were tried before, so that others like them were proposed."""
        self._offer = offer
        self._identity = identity
        self._on_illegal = on_illegal
        self._rng = random.Random(seed)
        self._sampler = OptunaSampler(offer.values, seed, objectives.number, sampler or tpe_of)
        self.sampler = self._sampler.name if sampler else ""
        """The name of the user's sampler; empty without one."""
        self._shares = SHARES if sampler is None else {Origin.SAMPLER: 1.0, Origin.RANDOM: 0.0}
        self._rejected = (math.inf,) * objectives.number
        self._waiting: deque[tuple[Config, Origin]] = deque((s, Origin.SEED) for s in seeds)
        self._surrogates = [Surrogate(offer.values, self._rng) for _ in range(objectives.number)]
        self._known: dict[str, tuple[float, ...] | None] = {}
        """Values by digest; None for what was proposed and is not learnt yet."""
        self._elite: Elite = Fastest() if objectives is Objectives.TIME else Front()
        self._steps: dict[Config, list[Config]] = {}
        self._picked: deque[Config] = deque()
        """Picked beside the last step that was proposed, and not proposed yet."""

    @property
    def waiting(self) -> int:
        """Seeds that were not proposed yet."""
        return len(self._waiting)

    @property
    def chooses(self) -> bool:
        """Whether what it proposes now is evaluated in another order than that of proposals."""
        return (
            not self._waiting
            and self._surrogates[0].is_ready
            and Origin.SAMPLER not in self._shares
        )

    def learn(self, config: Config, digest: str, values: tuple[float, ...]) -> None:
        """What became of a config: a value for each objective, infinite where it was rejected."""
        self._offer.take(config)
        self._known[digest] = values
        self._sampler.tell(config, values)
        if values != self._rejected:
            for surrogate, value in zip(self._surrogates, values, strict=True):
                surrogate.learn(config, value)
            for fallen in self._elite.add(config, values):
                self._steps.pop(fallen, None)

    def propose(self) -> Proposal | None:
        """The next config to evaluate, or None where nothing is left to try."""
        while (wanted := self._want()) is not None:
            config, origin = wanted
            self._offer.take(config)
            digest = self._identity(config)
            if digest not in self._known:
                self._known[digest] = None
                return Proposal(config, digest, origin)
            self.duplicates += 1
            self._tell_again(config, self._known[digest])
        return None

    def _tell_again(self, config: Config, values: tuple[float, ...] | None) -> None:
        """What became of a config with the same code, once that is known."""
        if values is None:
            self._sampler.forget(config)
        else:
            self._sampler.tell(config, values)

    def most_promising(self, proposals: Sequence[Proposal]) -> Proposal:
        """The one of some proposals to evaluate next, by all that was learnt until now.

        Seeds and random configs go first, and what a sampler of the user's proposed keeps its
        order. Each of the others was proposed when less was known. With what the surrogate learns
        at once (`REFIT_EVERY`), searches of nine brute-forced sub-spaces without seeds came within
        1 % of the best in 18 evaluations in the median and 40 in nine of ten, instead of 23 and 47.
        """
        for one in proposals:
            if one.origin not in CHOSEN_LATE:
                return one
        if len(proposals) == 1 or not self._surrogates[0].is_ready:
            return proposals[0]
        configs = {one.config: one for one in proposals}
        (picked,) = pick_between(self._surrogates, list(configs), self._rng)
        return configs[picked]

    def _want(self) -> tuple[Config, Origin] | None:
        while self._waiting:
            config, origin = self._waiting.popleft()
            adopted = self._offer.adopt(config, self._rng)
            if adopted is not None:
                return adopted, origin
        origins, shares = list(self._shares), list(self._shares.values())
        (first,) = self._rng.choices(origins, weights=shares)
        for origin in _moved_to_front(first, origins):
            config_or_none = self._from(origin)
            if config_or_none is not None:
                return config_or_none, origin
        return None

    def _from(self, origin: Origin) -> Config | None:
        if origin is Origin.STEP:
            return self._step()
        return self._offer.draw(self._rng) if origin is Origin.RANDOM else self._ask(origin)

    def _step(self) -> Config | None:
        """An untried neighbour of one of the best."""
        while self._picked:
            if not self._offer.is_tried(config := self._picked.popleft()):
                return config
        if self._surrogates[0].is_ready:
            self._picked.extend(self._promising())
            return self._picked.popleft() if self._picked else None
        ranked = list(self._elite.configs)
        while ranked:
            weights = [self._elite.favour**rank for rank in range(len(ranked))]
            (base,) = self._rng.choices(ranked, weights=weights)
            steps = self._untried_steps(base)
            if steps:
                return steps.pop()
            ranked.remove(base)
        return None

    def _promising(self) -> list[Config]:
        """Of all steps from the best, and some random points, the few that the surrogates pick.

        At times of the steps from one hill alone: there a choice costs time until others follow it.
        """
        if self._rng.random() < ALONE:
            steps = self._untried_steps(self._rng.choice(self._elite.hills))
            if steps:
                return pick_between(self._surrogates, steps, self._rng, PICKED)
        pool: dict[Config, None] = {}
        for base in self._elite.configs:
            pool |= dict.fromkeys(self._untried_steps(base))
        far = [self._offer.draw(self._rng) for _ in range(DRAWS)]
        far += [self._jump() for _ in range(JUMPS)]
        pool |= {config: None for config in far if config is not None}
        return pick_between(self._surrogates, list(pool), self._rng, PICKED) if pool else []

    def _untried_steps(self, base: Config) -> list[Config]:
        if base not in self._steps:
            self._steps[base] = self._offer.steps(base, self._rng)
        untried = [step for step in self._steps[base] if not self._offer.is_tried(step)]
        self._steps[base] = untried
        return untried

    def _jump(self) -> Config | None:
        """One of the best with a few choices changed at once: what single steps cannot reach."""
        base = self._rng.choice(self._elite.configs)
        names = self._rng.sample(list(self._offer.values), self._rng.randint(2, JUMP_CHANGES))
        changes = {name: self._rng.choice(self._offer.values[name]) for name in names}
        return self._offer.adopt(replace(base, **changes), self._rng)  # type: ignore[arg-type]

    def _ask(self, origin: Origin) -> Config | None:
        """What the sampler wants: as it is, or repaired or replaced by the nearest there is."""
        for _ in range(ASK_RETRIES):
            wanted = self._sampler.ask()
            adopted = self._offer.adopt(wanted, self._rng)
            broken = self._offer.broken_rule(wanted)
            if broken is not None:
                self._sampler.tell(wanted, self._rejected)
                self._on_illegal(wanted, broken, origin)
            elif adopted != wanted:
                self._sampler.forget(wanted)
            if adopted is not None:
                self.asked += 1
                self.changed += adopted != wanted
                return adopted
        return None


def _moved_to_front(first: Origin, origins: Iterable[Origin]) -> list[Origin]:
    return [first, *(origin for origin in origins if origin != first)]
