"""Propose what to try next: seeds, then a mixture of steps around the best, TPE and random configs.

Once a few kernels are measured a surrogate orders the steps. On model spaces with interactions that
takes 150 kernels from a mean of 16 % above the optimum to 4 %. `explorer benchmark` compares this
mixture with a hill-climb, TPE alone and random order in recorded spaces that were measured whole.
"""

import math
import random
from bisect import insort
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from operator import attrgetter

import numpy as np
from numpy.typing import NDArray

from explorer.model.config import DRAWN_MIN_BLOCKS, Config, Value, parameters
from explorer.space import Rule, Space, spread_otherwise
from explorer.tuning.contest import dominates
from explorer.tuning.objective import Objectives
from explorer.tuning.surrogate import OptunaSampler, SamplerOf, Surrogate, pick_between, tpe_of

# ------------------------------------------------------------------ candidates of a space


DRAWS = 200
"""After this many consecutive samples were already tried, list the untried configs instead."""


class SpaceCandidates:
    """The legal configs of a space that are untried."""

    def __init__(self, space: Space) -> None:
        self._space = space
        self.drawn = self.values = space.parameters
        """The values of each parameter that are drawn, and those that configs may have besides."""
        if self.values["min_blocks"] == DRAWN_MIN_BLOCKS:
            every = parameters(space.problem.dtype, space.problem.operator)["min_blocks"]
            self.values = {**self.values, "min_blocks": every}
        self._tried: set[Config] = set()
        self._rest: Iterator[Config] | None = None

    def holds(self, config: Config) -> bool:
        """Return whether `config` is legal, tried or not."""
        known = all(value in self.values[name] for name, value in config.as_dict().items())
        return known and self._space.broken_rule(config) is None

    def left(self) -> int | None:
        """Return None: legal configs are too many to count in passing."""
        return None

    def take(self, config: Config) -> None:
        """Count `config` as tried."""
        self._tried.add(config)

    def is_tried(self, config: Config) -> bool:
        """Return whether `config` was taken."""
        return config in self._tried

    def broken_rule(self, config: Config) -> Rule | None:
        """Return the first rule that `config` breaks, or None."""
        return self._space.broken_rule(config)

    def adopt(self, config: Config, rng: random.Random) -> Config | None:
        """Return `config`, repaired where it is illegal; None if that was tried."""
        repaired = self._space.repair(config, rng)
        return None if repaired in self._tried else repaired

    def nearest(self, config: Config, rng: random.Random) -> Config | None:
        """Return the untried config that differs from `config` in the fewest values, or None."""
        return self._space.nearest(config, lambda one: one not in self._tried, rng)

    def steps(self, config: Config, rng: random.Random) -> list[Config]:
        """Return the untried configs that differ in one choice, in random order."""
        found = [step for step in self._space.neighbours(config) if step not in self._tried]
        rng.shuffle(found)
        return found

    def draw(self, rng: random.Random) -> Config | None:
        """Return a random untried config; None where every one was tried."""
        if self._rest is None:
            for _ in range(DRAWS):
                config = self._space.sample(rng)
                if config not in self._tried:
                    return config
            self._rest = self._space.legal()
        return next((config for config in self._rest if config not in self._tried), None)


# ------------------------------------------------------------------ candidates of a recording


NEAR = 2
"""Parameters in which a step may differ: a sample holds few configs that differ in just one."""


class RecordedCandidates:
    """The recorded configs that are untried; two are as far apart as parameters differ (Hamming).

    The methods are those of `SpaceCandidates`.
    """

    def __init__(self, configs: Sequence[Config], values: dict[str, tuple[Value, ...]]) -> None:
        self._configs = list(dict.fromkeys(configs))
        self._rows = {config: row for row, config in enumerate(self._configs)}
        self.drawn = self.values = {
            name: tuple(dict.fromkeys([*known, *map(attrgetter(name), self._configs)]))
            for name, known in values.items()
        }
        """The values of each parameter: the space's, and those that the recording has besides."""
        self._codes = {
            name: {value: code for code, value in enumerate(values)}
            for name, values in self.values.items()
        }
        encoded = [self._encode(config) for config in self._configs]
        self._by_parameter = np.array(encoded, dtype=np.int8).T.copy()
        """Codes of values, of shape (parameters, configs): a distance to all is a few passes."""
        self._untried = np.ones(len(self._configs), dtype=bool)

    def holds(self, config: Config) -> bool:
        """Return whether `config` was recorded."""
        return config in self._rows

    def left(self) -> int | None:
        """Return how many recorded configs are untried."""
        return int(self._untried.sum())

    def take(self, config: Config) -> None:
        """Count `config` as tried."""
        if config in self._rows:
            self._untried[self._rows[config]] = False

    def is_tried(self, config: Config) -> bool:
        """Return whether `config` was taken, or never recorded."""
        row = self._rows.get(config)
        return row is None or not self._untried[row]

    def broken_rule(self, config: Config) -> Rule | None:
        """Return None: the nearest recorded config stands for an illegal one."""
        return None

    def adopt(self, config: Config, rng: random.Random) -> Config | None:
        """Return the nearest untried config; None where every one was tried."""
        if not self._untried.any():
            return None
        distances = self._distances(config)
        return self._pick(distances == distances[self._untried].min(), rng)

    nearest = adopt

    def steps(self, config: Config, rng: random.Random) -> list[Config]:
        """Return the untried configs that differ in one or two parameters, the nearer ones last.

        Among the others are those in which a row is spread over other blocks of a cluster.
        """
        distances = self._distances(config)
        spread = spread_otherwise(config, self.values["threads"])
        others = [replace(config, **change) for change in spread]  # type: ignore[arg-type]
        distances[[self._rows[other] for other in others if other in self._rows]] = NEAR
        rows = [int(row) for row in np.flatnonzero(self._untried & (distances <= NEAR))]
        rng.shuffle(rows)
        rows.sort(key=lambda row: -int(distances[row]))
        return [self._configs[row] for row in rows]

    def draw(self, rng: random.Random) -> Config | None:
        """Return a random untried config; None where every one was tried."""
        return self._pick(self._untried, rng) if self._untried.any() else None

    def _distances(self, config: Config) -> NDArray[np.int8]:
        differs = self._by_parameter != np.array(self._encode(config), dtype=np.int8)[:, None]
        distances: NDArray[np.int8] = differs.sum(axis=0, dtype=np.int8)
        return distances

    def _encode(self, config: Config) -> list[int]:
        return [codes[getattr(config, name)] for name, codes in self._codes.items()]

    def _pick(self, mask: NDArray[np.bool_], rng: random.Random) -> Config:
        return self._configs[int(rng.choice(np.flatnonzero(mask & self._untried)))]


Candidates = SpaceCandidates | RecordedCandidates


# ------------------------------------------------------------------ the best so far


ELITE = 5
"""Number of the fastest configs from which steps are taken."""

HILLS = 3
"""Number of kinds of cache whose fastest config gets a hill-climb of its own."""

Values = tuple[float, ...]
"""A value for each objective, infinite where a config was rejected."""


class Fastest:
    """The few configs of least time, and the fastest of each kind of cache.

    A row in another kind of cache is another hill: its top lies several choices away, the first of
    which cost time.
    """

    favour = 0.5
    """How often a step starts from a config, relative to the next better one."""

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
        """The fastest of each kind of cache, which are climbed alone, too."""
        return [config for _, _, config in sorted(self._by_cache.values())[:HILLS]]

    def add(self, config: Config, values: Values) -> list[Config]:
        """Keep `config` if it is among the fastest, or of its cache; return what it drives out."""
        before = self.configs
        self._added += 1
        entry = (values[0], self._added, config)
        self._by_cache[config.cache] = min(entry, self._by_cache.get(config.cache, entry))
        insort(self._kept, entry)
        del self._kept[ELITE:]
        kept = set(self.configs)
        return [one for one in before if one not in kept]


class Front:
    """The configs that none dominates; the attributes are those of `Fastest`."""

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
        """Keep `config` unless one that is kept dominates it; return those that it dominates."""
        if any(dominates(kept, values) for kept, _ in self._kept):
            return []
        fallen = [one for kept, one in self._kept if dominates(values, kept)]
        rest = [entry for entry in self._kept if not dominates(values, entry[0])]
        self._kept = sorted([*rest, (values, config)], key=lambda entry: entry[0])
        return fallen


# ------------------------------------------------------------------ proposals


class Origin(StrEnum):
    """The source of a proposal."""

    SEED = "seed"
    RESIDENCY = "residency"
    """A new best with launch bounds for its own residency, or for the next fewer or more blocks."""
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
"""Of proposals from these sources the most promising is evaluated next, whatever their order."""

DRAWN = 8
"""Random configs that compete with the steps."""

JUMPS = 16
"""Configs with several choices changed that compete with the steps. Four times as many of both
found nothing sooner in six brute-forced sub-spaces, and took 20 ms more a proposal.
"""

JUMP_CHANGES = 4
"""Choices that a jump changes at most."""

PICKED = 2
"""Steps that are picked together: to weigh them takes 20 ms on an H200's host, in which the GPU
verifies and times a kernel."""

ALONE = 0.3
"""How often one hill is climbed alone. On a model space of two hills that takes 150 kernels from a
mean of 0.9 % above the optimum to 0.2 %, and from 3.1 % at worst of 40 seeds to 1 %; on recorded
spaces it makes no difference.
"""

ASK_RETRIES = 4
"""Proposals of a sampler that were tried before, after which another source is used."""


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
        candidates: Candidates,
        identity: Callable[[Config], str],
        seeds: Sequence[Config],
        seed: int,
        on_illegal: Callable[[Config, Rule, Origin], None],
        objectives: Objectives = Objectives.TIME,
        sampler: SamplerOf | None = None,
    ) -> None:
        """After the seeds, a `sampler` of the user's proposes all else, if there is one."""
        self.duplicates = 0
        """Configs that were not proposed because they emit code that was."""
        self.repaired: list[int] = []
        """Of each config that the user's sampler gave, how many values differ in the one that was
        proposed: none, unless it broke a rule or was tried before."""
        self._candidates = candidates
        self._identity = identity
        self._on_illegal = on_illegal
        self._rng = random.Random(seed)
        self._sampler = OptunaSampler(candidates.drawn, seed, objectives.number, sampler or tpe_of)
        self.sampler = self._sampler.name if sampler else ""
        """The name of the user's sampler; empty without one."""
        self._shares = SHARES if sampler is None else {Origin.SAMPLER: 1.0, Origin.RANDOM: 0.0}
        self._rejected = (math.inf,) * objectives.number
        self._seeds = deque(seeds)
        """Those that were not proposed yet."""
        self._suggested: deque[Config] = deque()
        """Residencies of the best so far that were not proposed yet."""
        self._surrogates = [
            Surrogate(candidates.values, self._rng) for _ in range(objectives.number)
        ]
        self._known: dict[str, Values | None] = {}
        """Values by digest; None for what was proposed and is not learnt yet."""
        self._elite = Front() if objectives.is_front else Fastest()
        self._steps: dict[Config, list[Config]] = {}
        self._picked: deque[Config] = deque()
        """Steps that were picked beside the last one, and not proposed yet."""

    @property
    def chooses(self) -> bool:
        """Whether the next proposals are evaluated in another order than that of proposals."""
        return (
            not self._seeds and self._surrogates[0].is_ready and Origin.SAMPLER not in self._shares
        )

    def learn(self, config: Config, digest: str, values: Values) -> None:
        """Learn what became of a config."""
        self._candidates.take(config)
        self._known[digest] = values
        self._sampler.tell(config, values)
        if values != self._rejected:
            for surrogate, value in zip(self._surrogates, values, strict=True):
                surrogate.learn(config, value)
            for fallen in self._elite.add(config, values):
                self._steps.pop(fallen, None)

    def suggest(self, configs: Sequence[Config]) -> None:
        """Propose these next, in place of those suggested before: residencies of a new best."""
        self._suggested = deque(configs)

    def propose(self) -> Proposal | None:
        """Return the next config to evaluate, or None where nothing is left to try."""
        while (wanted := self._want()) is not None:
            proposal = self.of(*wanted)
            if proposal is not None:
                return proposal
        return None

    def of(self, config: Config, origin: Origin) -> Proposal | None:
        """Return the proposal of a config that counts as tried from now on; None for known code."""
        self._candidates.take(config)
        digest = self._identity(config)
        if digest not in self._known:
            self._known[digest] = None
            return Proposal(config, digest, origin)
        self.duplicates += 1
        values = self._known[digest]
        if values is None:  # the kernel of the same code is not evaluated yet
            self._sampler.forget(config)
        else:
            self._sampler.tell(config, values)
        return None

    def most_promising(self, proposals: Sequence[Proposal]) -> Proposal:
        """Return the proposal to evaluate next, by all that was learnt until now.

        Seeds and random configs go first, and the proposals of a user's sampler keep their order.
        Each of the others was proposed when less was known. With what the surrogate has learnt
        since, searches of nine brute-forced sub-spaces without seeds came within 1 % of the best in
        18 evaluations in the median and 40 in nine of ten, instead of 23 and 47.
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
        while self._seeds:
            adopted = self._candidates.adopt(self._seeds.popleft(), self._rng)
            if adopted is not None:
                return adopted, Origin.SEED
        while self._suggested:
            if not self._candidates.is_tried(suggested := self._suggested.popleft()):
                return suggested, Origin.RESIDENCY
        origins, shares = list(self._shares), list(self._shares.values())
        (first,) = self._rng.choices(origins, weights=shares)
        for origin in [first, *(one for one in origins if one != first)]:
            config = self._from(origin)
            if config is not None:
                return config, origin
        return None

    def _from(self, origin: Origin) -> Config | None:
        if origin is Origin.STEP:
            return self._step()
        if origin is Origin.RANDOM:
            return self._candidates.draw(self._rng)
        return self._ask() if origin is Origin.TPE else self._ask_user()

    def _step(self) -> Config | None:
        """Return an untried neighbour of one of the best."""
        while self._picked:
            if not self._candidates.is_tried(config := self._picked.popleft()):
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
        """Return the steps that the surrogates pick among those from all of the best.

        A few random configs and jumps compete with them. At times all steps are from one hill:
        there a choice costs time until others follow it.
        """
        if self._rng.random() < ALONE:
            steps = self._untried_steps(self._rng.choice(self._elite.hills))
            if steps:
                return pick_between(self._surrogates, steps, self._rng, PICKED)
        pool: dict[Config, None] = {}
        for base in self._elite.configs:
            pool |= dict.fromkeys(self._untried_steps(base))
        far = [self._candidates.draw(self._rng) for _ in range(DRAWN)]
        far += [self._jump() for _ in range(JUMPS)]
        pool |= {config: None for config in far if config is not None}
        return pick_between(self._surrogates, list(pool), self._rng, PICKED) if pool else []

    def _untried_steps(self, base: Config) -> list[Config]:
        if base not in self._steps:
            self._steps[base] = self._candidates.steps(base, self._rng)
        untried = [step for step in self._steps[base] if not self._candidates.is_tried(step)]
        self._steps[base] = untried
        return untried

    def _jump(self) -> Config | None:
        """Change a few choices of one of the best, which no single step reaches."""
        base = self._rng.choice(self._elite.configs)
        values = self._candidates.drawn
        names = self._rng.sample(list(values), self._rng.randint(2, JUMP_CHANGES))
        changes = {name: self._rng.choice(values[name]) for name in names}
        return self._candidates.adopt(replace(base, **changes), self._rng)

    def _ask(self) -> Config | None:
        """Return TPE's config as it is, repaired, or replaced by the nearest there is."""
        for _ in range(ASK_RETRIES):
            wanted = self._sampler.ask()
            adopted = self._candidates.adopt(wanted, self._rng)
            broken = self._candidates.broken_rule(wanted)
            if broken is not None:
                self._sampler.tell(wanted, self._rejected)
                self._on_illegal(wanted, broken, Origin.TPE)
            elif adopted != wanted:
                self._sampler.forget(wanted)
            if adopted is not None:
                return adopted
        return None

    def _ask_user(self) -> Config | None:
        """Return the untried legal config that is the nearest to what the user's sampler gives."""
        for _ in range(ASK_RETRIES):
            wanted, nearest = self._sampler.ask_repaired(self._nearest)
            if nearest is not None:
                self.repaired.append(len(nearest.differences(wanted)))
                return nearest
        return None

    def _nearest(self, config: Config) -> Config | None:
        return self._candidates.nearest(config, self._rng)
