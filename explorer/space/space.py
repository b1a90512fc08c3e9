"""The legal points of one problem on one GPU: check, sample, step, repair, count, cover."""

import random
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager
from functools import cached_property, lru_cache
from itertools import combinations
from math import prod

from explorer.model.config import Config
from explorer.model.errors import InvalidInput
from explorer.model.gpu_spec import DEFAULT_GPU, GpuSpec, known_gpu
from explorer.model.parameters import Value, parameters, searched
from explorer.model.problem import Problem
from explorer.space.legal_points import Change, LegalPoints, RuleCache, Setting
from explorer.space.rules import RULES, Point, Rule

# ------------------------------------------------------------------ space


def spread_otherwise(config: Config, threads: Iterable[Value]) -> list[Change]:
    """A row's threads spread over fewer or more blocks of a cluster, in blocks of other sizes.

    Each thread keeps its share of the row, and each SM its number of threads where `min_blocks`
    goes with it. One by one these changes lose: all else the same, 100 x 131072 bf16 takes an H200
    17.0 us by 8 blocks of 256 threads and 16.5 us by 16 of 128, but 18.2 us by 16 of 256 and 21.4
    us by 8 of 128.
    """
    found: list[Change] = []
    for number in map(int, threads):
        cluster, rest = divmod(config.cluster * config.threads, number)
        per_row, part = divmod(config.threads_per_row * number, config.threads)
        if rest or part or cluster in (0, config.cluster):
            continue
        change: Change = {"threads": number, "threads_per_row": per_row, "cluster": cluster}
        resident = config.min_blocks * config.threads // number
        found += [change, {**change, "min_blocks": resident}]
    return found


MAX_REPAIR_STEPS = 32

TRIES = 1000
"""Random points that a space tries before it counts its legal ones, which takes up to a second."""

MOST_JUDGED = 10_000
"""Combinations of values for which a rule is judged to say what share it excludes."""


SPACES_KEPT = 4
"""Problems of which what is known of their legal points is kept, some 55 MB each."""


class Space:
    """All configs for `problem` on `gpu`; `fixed` narrows parameters to some of their values."""

    def __init__(
        self,
        problem: Problem,
        gpu: GpuSpec,
        fixed: dict[str, tuple[Value, ...]] | None = None,
    ) -> None:
        self.problem = problem
        self.gpu = gpu
        self.parameters = _narrowed(parameters(problem.dtype), fixed or {})
        self._tries = 0
        self._rule_cache = _rule_cache(problem, gpu)

    @classmethod
    def searched(
        cls, problem: Problem, gpu: GpuSpec, fixed: dict[str, tuple[Value, ...]] | None = None
    ) -> "Space":
        """What a search proposes: no value that measurement refuted, unless `fixed` has it.

        Raises InvalidInput for a parameter or a value in `fixed` that there is not.
        """
        return cls(problem, gpu, {**searched(problem.dtype), **(fixed or {})})

    def broken_rule(self, config: Config) -> Rule | None:
        """The first rule that `config` breaks, or None if it is legal."""
        return self._rule_cache.broken_rule(config)

    def is_legal(self, config: Config) -> bool:
        """Whether no rule excludes `config` and every value is one of its parameter's."""
        return self.foreign_value(config) is None and self.broken_rule(config) is None

    def foreign_value(self, config: Config) -> str | None:
        """A sentence on the first value that is none of its parameter's, or None."""
        for name, value in config.as_dict().items():
            if value not in self.parameters[name]:
                values = ", ".join(map(str, self.parameters[name]))
                return f"{name} is {value}; its values for {self.problem.dtype} are {values}"
        return None

    def sample(self, rng: random.Random) -> Config:
        """A legal config drawn uniformly; raises InvalidInput if there is none."""
        while self._tries < TRIES:  # of all samples together: once counted, drawing is fast
            self._tries += 1
            config = self.draw(rng)
            if self.broken_rule(config) is None:
                return config
        legal = self.legal_draw(rng)
        if legal is None:
            raise InvalidInput(f"no config is legal for {self.problem} with these values")
        return legal

    def legal_draw(self, rng: random.Random) -> Config | None:
        """As `sample`, by counting at once; None if no config is legal."""
        return self._points.draw(rng)

    def legal_draws(
        self, wanted: dict[str, Value], number: int, rng: random.Random
    ) -> list[Config]:
        """So many legal configs with the wanted values, repeats among them; [] if there is none."""
        return self._points.draw_with(wanted, number, rng)

    def legal_pairs(self) -> set[tuple[Setting, Setting]]:
        """Every two settings that some legal config has together, either one first."""
        return self._points.pairs()

    def draw(self, rng: random.Random) -> Config:
        """A random value of each parameter, legal together or not."""
        values = {name: rng.choice(values) for name, values in self.parameters.items()}
        return Config(**values)  # type: ignore[arg-type]

    def neighbours(self, config: Config) -> list[Config]:
        """The legal configs that differ from `config` in one parameter, or in what goes with it.

        `threads` moves together with `threads_per_row` as well, so that a block of one row stays
        one, and with the number of blocks that share a row (`spread_otherwise`).
        """
        changes = [{name: v} for name in self.parameters for v in self.parameters[name]]
        changes += [
            {"threads": threads, "threads_per_row": threads_per_row}
            for threads in self.parameters["threads"]
            for threads_per_row in self.parameters["threads_per_row"]
            if threads_per_row == threads
            or int(threads) * config.threads_per_row == config.threads * int(threads_per_row)
        ]
        changes += [
            change
            for change in spread_otherwise(config, self.parameters["threads"])
            if all(value in self.parameters[name] for name, value in change.items())
        ]
        broken = self._rule_cache.broken_rules(config)
        legal = self._rule_cache.legal(config, broken, changes)
        steps = dict.fromkeys(self._with(config, change) for change in legal)
        return [step for step in steps if step != config]

    def repair(self, config: Config, rng: random.Random) -> Config:
        """A legal config near `config`: broken rules are mended one by one, at random ends."""
        broken = self._rule_cache.broken_rules(config)
        for _ in range(MAX_REPAIR_STEPS):
            if not broken:
                return config
            changes = [
                {name: value}
                for name in broken[0].reads
                for value in self.parameters[name]
                if value != getattr(config, name)
            ]
            mending = self._rule_cache.mending(config, broken[0], changes)
            legal = self._rule_cache.legal(config, broken, mending)
            change = rng.choice(legal or mending or changes)
            config = self._with(config, change)
            broken = self._rule_cache.still_broken(config, broken, change)
        return self.sample(rng)

    @cached_property
    def point_count(self) -> int:
        """All combinations of values, legal or not."""
        return prod(len(values) for values in self.parameters.values())

    def legal_count(self) -> int:
        """How many combinations break no rule, counted exactly."""
        return self._points.count()

    def counted_elsewhere(self) -> AbstractContextManager[None]:
        """Have another process count what is legal, during a block; draws after it need not."""
        return self._points.counted_elsewhere()

    @cached_property
    def _points(self) -> LegalPoints:
        return _legal_points(self.problem, self.gpu, tuple(self.parameters.items()))

    def legal(self) -> Iterator[Config]:
        """Every legal config, in a fixed order."""
        order = self._order()
        rest = [name for name in self.parameters if name not in order]
        return self._extend(Config(), order + rest, 0)

    def excluded_share(self, rule: Rule) -> float:
        """What share of all combinations `rule` excludes by itself, 0 to 1.

        Exact where the parameters that it reads have up to 10 000 combinations; else of 10 000
        random ones, the same each time: a standard error of 0.005 at most.
        """
        few = prod(len(self.parameters[name]) for name in rule.reads) <= MOST_JUDGED
        configs = list(self._product(Config(), rule.reads)) if few else self._random_configs
        broken = [not rule.holds(Point(self.problem, self.gpu, config)) for config in configs]
        return sum(broken) / len(broken)

    @cached_property
    def _random_configs(self) -> list[Config]:
        rng = random.Random(0)
        return [self.draw(rng) for _ in range(MOST_JUDGED)]

    def _order(self) -> list[str]:
        """The parameters that rules read, so ordered that rules can be judged early."""
        return list(dict.fromkeys(name for rule in RULES for name in rule.reads))

    def _extend(self, config: Config, order: list[str], depth: int) -> Iterator[Config]:
        """Assign `order[depth:]`, dropping a branch as soon as a judged rule is broken."""
        if depth == len(order):
            yield config
            return
        assigned = set(order[: depth + 1])
        due = [r for r in RULES if order[depth] in r.reads and assigned.issuperset(r.reads)]
        for value in self.parameters[order[depth]]:
            step = self._with(config, {order[depth]: value})
            point = Point(self.problem, self.gpu, step)
            if all(rule.holds(point) for rule in due):
                yield from self._extend(step, order, depth + 1)

    def _product(self, config: Config, names: Iterable[str]) -> Iterator[Config]:
        first, *rest = names
        for value in self.parameters[first]:
            step = self._with(config, {first: value})
            yield from self._product(step, rest) if rest else (step,)

    @staticmethod
    def _with(config: Config, changes: dict[str, Value]) -> Config:
        return Config(**{**config.as_dict(), **changes})


def can_emit(problem: Problem, config: Config) -> bool:
    """Whether the templates have a text for `config`: a GPU that allows most would allow it.

    What a file or a database keeps may have any values; templates rely on the rules.
    """
    return Space(problem, known_gpu(DEFAULT_GPU)).is_legal(config)


# Spaces of one problem are made anew for each search and each command; what they found is kept.


@lru_cache(maxsize=SPACES_KEPT)
def _rule_cache(problem: Problem, gpu: GpuSpec) -> RuleCache:
    return RuleCache(problem, gpu)


@lru_cache(maxsize=SPACES_KEPT)
def _legal_points(
    problem: Problem, gpu: GpuSpec, parameters: tuple[tuple[str, tuple[Value, ...]], ...]
) -> LegalPoints:
    return LegalPoints(problem, gpu, dict(parameters))


def _narrowed(
    all_values: dict[str, tuple[Value, ...]], fixed: dict[str, tuple[Value, ...]]
) -> dict[str, tuple[Value, ...]]:
    for name, values in fixed.items():
        if name not in all_values:
            raise InvalidInput(
                f"parameter '{name}' is not known; there are {', '.join(all_values)}"
            )
        for value in values:
            if value not in all_values[name]:
                shown = ", ".join(map(str, all_values[name]))
                raise InvalidInput(f"{name} has no value {value}; its values are {shown}")
    return {**all_values, **fixed}


# ------------------------------------------------------------------ covering arrays


Combination = tuple[Setting, ...]

CANDIDATES = 12
"""Legal completions tried for each combination; the one that covers most is taken."""


def covering_array(space: Space, strength: int = 1, seed: int = 0) -> list[Config]:
    """Legal configs in which each combination of `strength` values occurs that any legal has.

    Greedy, as in AETG (Cohen et al. 1997): each config is chosen to cover one combination that
    is still missing, and as many others as it can.
    """
    rng = random.Random(seed)
    missing = _combinations(space, strength)
    rng.shuffle(missing)
    covered: set[Combination] = set()
    array: list[Config] = []
    for wanted in missing:
        if wanted in covered:
            continue
        candidates = space.legal_draws(dict(wanted), CANDIDATES, rng)
        if candidates:
            best = max(candidates, key=lambda c: len(_in(c, strength) - covered))
            covered |= _in(best, strength)
            array.append(best)
    return array


def _combinations(space: Space, strength: int) -> list[Combination]:
    """Every combination of values of `strength` different parameters of which each two are legal.

    That is every legal pair; of more values, some combinations may not be legal as a whole.
    """
    result: list[Combination] = []
    for names in combinations(space.parameters, strength):
        partial: list[Combination] = [()]
        for name in names:
            partial = [(*c, (name, value)) for c in partial for value in space.parameters[name]]
        result += partial
    if strength == 1:
        return result
    legal = space.legal_pairs()
    return [c for c in result if all(pair in legal for pair in combinations(c, 2))]


def _in(config: Config, strength: int) -> set[Combination]:
    return set(combinations(config.as_dict().items(), strength))


def sampled(space: Space, number: int, seed: int = 0) -> list[Config]:
    """Different legal configs drawn at random; fewer than `number` where there are hardly more."""
    rng = random.Random(seed)
    drawn: dict[Config, None] = {}
    for _ in range(20 * number):
        drawn[space.sample(rng)] = None
        if len(drawn) == number:
            break
    return list(drawn)
