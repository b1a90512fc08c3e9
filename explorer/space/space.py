"""The legal points of one problem on one GPU: check, sample, step, repair, count."""

import random
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from math import inf, prod, sqrt
from operator import attrgetter
from statistics import fmean, stdev
from typing import Any

from explorer.model.config import MEANING, Config, Value, parameters, searched
from explorer.model.errors import InvalidInput
from explorer.model.gpu_spec import DEFAULT_GPU, GpuSpec, known_gpu
from explorer.model.problem import Problem
from explorer.space.rules import Point, Rule, rules_of

# ------------------------------------------------------------------ results of rules, cached


Change = dict[str, Value]
"""Values to give to some parameters of a config."""

Readers = dict[str, tuple[Rule, ...]]
"""The rules that read a parameter: a change of it is a matter of these alone."""


def readers_of(rules: Iterable[Rule]) -> Readers:
    """Return of each parameter the rules that read it."""
    every = tuple(rules)
    return {name: tuple(rule for rule in every if name in rule.reads) for name in MEANING}


class RuleCache:
    """The result of each rule, by the values that it reads: the same few come up again and again.

    A search judges some hundred thousand configs; how they would divide a row is worked out for
    some thousand.
    """

    def __init__(self, problem: Problem, gpu: GpuSpec) -> None:
        self._problem = problem
        self._gpu = gpu
        self.rules = rules_of(problem)
        self.readers = readers_of(self.rules)
        self._shared: dict[Any, int] = {}
        self._results: dict[str, tuple[Callable[[Config], Any], dict[Any, bool]]] = {
            rule.name: (attrgetter(*rule.reads), {}) for rule in self.rules
        }

    def holds(self, rule: Rule, config: Config) -> bool:
        """Whether a rule holds for a config."""
        read, results = self._results[rule.name]
        values = read(config)
        holds = results.get(values)
        if holds is None:
            holds = results[values] = self._holds(rule, config)
        return holds

    def broken_rule(self, config: Config) -> Rule | None:
        """Return the first rule that a config breaks, or None."""
        return next(self._broken(config), None)

    def broken_rules(self, config: Config) -> list[Rule]:
        """All rules that a config breaks."""
        return list(self._broken(config))

    def still_broken(
        self, config: Config, before: Iterable[Rule], changed: Iterable[str]
    ) -> list[Rule]:
        """All rules that a config breaks, where it broke those `before` some parameters `changed`.

        The others need not be asked: they held, and read nothing that changed.
        """
        concerned = {rule.name for rule in before}
        concerned |= {rule.name for name in changed for rule in self.readers[name]}
        return [
            rule for rule in self.rules if rule.name in concerned and not self.holds(rule, config)
        ]

    def mending(self, config: Config, rule: Rule, changes: Iterable[Change]) -> list[Change]:
        """Return the changes of a config after which a rule holds."""
        return [change for change, draft in _drafts(config, changes) if self.holds(rule, draft)]

    def legal(
        self, config: Config, broken: Iterable[Rule], changes: Iterable[Change]
    ) -> list[Change]:
        """Return the changes after which a config that breaks the `broken` rules breaks none."""
        mended = [c for c in changes if not any(c.keys().isdisjoint(r.reads) for r in broken)]
        return [
            change
            for change, draft in _drafts(config, mended)
            if all(self.holds(rule, draft) for name in change for rule in self.readers[name])
        ]

    def _holds(self, rule: Rule, config: Config) -> bool:
        return rule.holds(Point(self._problem, self._gpu, config, self._shared))

    def _broken(self, config: Config) -> Iterator[Rule]:
        return (rule for rule in self.rules if not self.holds(rule, config))


def _drafts(config: Config, changes: Iterable[Change]) -> Iterator[tuple[Change, Config]]:
    """Each change with the config so changed, until the next: the same one throughout.

    To make one for each takes longer than to judge it.
    """
    draft = replace(config)
    for change in changes:
        for name, value in change.items():
            choose(draft, name, value)
        yield change, draft
        for name in change:
            choose(draft, name, getattr(config, name))


def choose(draft: Config, name: str, value: Value) -> None:
    """Assign in place: a Config for each step would take seconds."""
    object.__setattr__(draft, name, value)


# ------------------------------------------------------------------ space


def spread_otherwise(config: Config, threads: Iterable[Value]) -> list[Change]:
    """Spread a row's threads over fewer or more blocks of a cluster, in blocks of other sizes.

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

MOST_DRAFTS = 5000
"""Configs that are looked at for the nearest legal one: half a second."""

TRIES = 200
"""Random descents to a legal config, of which 1 to 50 % lead to one, before all are enumerated."""

DESCENTS = 4000
"""Random descents by which legal configs are counted: within some 20 %, in a second or two."""

FEW = 20_000
"""Legal configs that are counted exactly."""

MOST_JUDGED = 10_000
"""Combinations of values for which a rule is judged to say what share it excludes."""


SPACES_KEPT = 4
"""Problems of which the results of rules are cached."""


@dataclass(frozen=True, slots=True)
class Count:
    """How many configs there are."""

    number: int
    error: float = 0.0
    """Half of the 95 % interval of an estimate, as a share of the number; 0 if it is exact."""


@dataclass(slots=True)
class _Looked:
    """What a search for the nearest config wants, and how many drafts it has looked at."""

    is_wanted: Callable[[Config], bool]
    rng: random.Random
    drafts: int = 0

    def shuffled(self, values: Iterable[Any]) -> list[Any]:
        """Return values in random order, the same for the same seed."""
        ordered = sorted(values, key=str)
        self.rng.shuffle(ordered)
        return ordered


def _least_changes(mending: Iterable[frozenset[str]]) -> float:
    """Return how many values must change at least, where each rule needs one of its own set."""
    number, seen = 0, frozenset[str]()
    for names in sorted(mending, key=len):
        if not names:
            return inf
        if seen.isdisjoint(names):
            number, seen = number + 1, seen | names
    return number


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
        self.parameters = _narrowed(parameters(problem.dtype, problem.operator), fixed or {})
        self._rule_cache = _rule_cache(problem, gpu)

    @classmethod
    def searched(
        cls, problem: Problem, gpu: GpuSpec, fixed: dict[str, tuple[Value, ...]] | None = None
    ) -> "Space":
        """Return what a search proposes: no value that measurement refuted, unless `fixed` has it.

        Raises InvalidInput for a parameter or a value in `fixed` that there is not.
        """
        return cls(problem, gpu, {**searched(problem.dtype, problem.operator), **(fixed or {})})

    def broken_rule(self, config: Config) -> Rule | None:
        """Return the first rule that `config` breaks, or None if it is legal."""
        return self._rule_cache.broken_rule(config)

    def broken_rules(self, config: Config) -> list[Rule]:
        """Return all rules that `config` breaks."""
        return self._rule_cache.broken_rules(config)

    def reason(self, rule: Rule, config: Config) -> str:
        """Return why a rule excludes `config`, with what the problem and the GPU allow."""
        point = Point(self.problem, self.gpu, config)
        return rule.reason(config, "" if rule.limit is None else rule.limit(point))

    def is_legal(self, config: Config) -> bool:
        """Whether no rule excludes `config` and every value is one of its parameter's."""
        return self.foreign_value(config) is None and self.broken_rule(config) is None

    def foreign_value(self, config: Config) -> str | None:
        """Return a sentence on the first value that is none of its parameter's, or None."""
        for name, value in config.as_dict().items():
            if value not in self.parameters[name]:
                values = ", ".join(map(str, self.parameters[name]))
                return f"{name} is {value}; its values for {self.problem.dtype} are {values}"
        return None

    def sample(self, rng: random.Random) -> Config:
        """Return a legal config at random; raises InvalidInput if there is none.

        Its values are drawn one after the other among those that the rules still allow. The draws
        are not uniform: values that few others go with come more often than among all legal ones.
        """
        for _ in range(TRIES):
            config, _ = self._descend(rng)
            if config is not None:
                return config
        legal = next(self.legal(rng), None)
        if legal is None:
            raise InvalidInput(f"no config is legal for {self.problem} with these values")
        return legal

    def _descend(self, rng: random.Random) -> tuple[Config | None, int]:
        """Draw a value of each parameter that rules allow with those drawn before.

        Return the config and the number of ways: how many configs there would be if each choice had
        as many values elsewhere. Return (None, 0) where no value was left.
        """
        draft, ways = Config(), 1
        for name, due in self._steps:
            allowed = self._allowed(draft, name, due)
            if not allowed:
                return None, 0
            choose(draft, name, rng.choice(allowed))
            ways *= len(allowed)
        return draft, ways

    def draw(self, rng: random.Random) -> Config:
        """Draw a random value of each parameter, legal together or not."""
        values = {name: rng.choice(values) for name, values in self.parameters.items()}
        return Config(**values)  # type: ignore[arg-type]

    def neighbours(self, config: Config) -> list[Config]:
        """Return the legal configs with another value of one parameter, and of what goes with it.

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
        """Repair a config to a legal one: broken rules are mended one by one, at random ends."""
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

    def nearest(
        self, config: Config, is_wanted: Callable[[Config], bool], rng: random.Random
    ) -> Config | None:
        """Return a legal config that is wanted and differs from `config` in the fewest values.

        Of several it is a random one. A rule that is broken can be mended only by a value that it
        reads, so those alone are changed, one value more each time until there is such a config:
        that took 8 to 141 drafts, and 20 ms at most, from random values of 8192 x 4096 f32. None
        where no config is found in MOST_DRAFTS.
        """
        free = frozenset(name for name, values in self.parameters.items() if len(values) > 1)
        looked = _Looked(is_wanted, rng)
        broken = self._rule_cache.broken_rules(config)
        for changes in range(len(free) + 1):
            found = self._within(config, broken, free, changes, looked)
            if found is not None or looked.drafts > MOST_DRAFTS:
                return found
        return None

    def _within(
        self,
        draft: Config,
        broken: list[Rule],
        free: frozenset[str],
        changes: int,
        looked: "_Looked",
    ) -> Config | None:
        """Return a wanted config with so many changes more at most, of parameters that are free."""
        looked.drafts += 1
        if not broken and looked.is_wanted(draft):
            return draft
        mending: list[frozenset[str]] = [free.intersection(rule.reads) for rule in broken] or [free]
        if _least_changes(mending) > changes or looked.drafts > MOST_DRAFTS:
            return None
        fewest: frozenset[str] = min(mending, key=len)
        for name in looked.shuffled(fewest):
            free = free - {name}  # what follows leaves it as it is
            for value in looked.shuffled(self.parameters[name]):
                if value == getattr(draft, name):
                    continue
                step = self._with(draft, {name: value})
                left = self._rule_cache.still_broken(step, broken, (name,))
                found = self._within(step, left, free, changes - 1, looked)
                if found is not None:
                    return found
        return None

    @cached_property
    def point_count(self) -> int:
        """All combinations of values, legal or not."""
        return prod(len(values) for values in self.parameters.values())

    def legal_count(self) -> Count:
        """Estimate how many combinations break no rule; few are counted exactly.

        The mean of what random descents estimate is right (Knuth, Estimating the efficiency of
        backtrack programs, 1975). The same descents are made each time.
        """
        rng = random.Random(0)
        ways = [self._descend(rng)[1] for _ in range(DESCENTS)]
        mean, error = fmean(ways), 1.96 * stdev(ways) / sqrt(DESCENTS)
        if mean + error > FEW:
            return Count(round(mean), error / mean)
        return Count(sum(1 for _ in self.legal()))

    def legal(self, rng: random.Random | None = None) -> Iterator[Config]:
        """Yield every legal config, in a fixed order; with `rng` in a random one."""
        return self._extend(Config(), 0, rng)

    def excluded_share(self, rule: Rule) -> float:
        """Return the share of all combinations that `rule` excludes by itself, 0 to 1.

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

    @cached_property
    def _steps(self) -> list[tuple[str, list[Rule]]]:
        """The parameters so ordered that rules can be judged early, and those to judge at each."""
        rules, readers = self._rule_cache.rules, self._rule_cache.readers
        order = list(dict.fromkeys(name for rule in rules for name in rule.reads))
        order += [name for name in self.parameters if name not in order]
        return [
            (name, [r for r in readers[name] if set(r.reads) <= set(order[: place + 1])])
            for place, name in enumerate(order)
        ]

    def _allowed(self, draft: Config, name: str, due: list[Rule]) -> list[Value]:
        """Return the values of a parameter with which the rules hold; `draft` has any of them."""
        found = []
        for value in self.parameters[name]:
            choose(draft, name, value)
            if all(self._rule_cache.holds(rule, draft) for rule in due):
                found.append(value)
        return found

    def _extend(self, draft: Config, depth: int, rng: random.Random | None) -> Iterator[Config]:
        """Choose from `depth` on, dropping a branch as soon as a judged rule is broken."""
        if depth == len(self._steps):
            yield replace(draft)
            return
        name, due = self._steps[depth]
        allowed = self._allowed(draft, name, due)
        if rng is not None:
            rng.shuffle(allowed)
        for value in allowed:
            choose(draft, name, value)
            yield from self._extend(draft, depth + 1, rng)

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


def sampled(space: Space, number: int, seed: int = 0) -> list[Config]:
    """Different legal configs drawn at random; fewer than `number` where there are hardly more."""
    rng = random.Random(seed)
    drawn: dict[Config, None] = {}
    for _ in range(20 * number):
        drawn[space.sample(rng)] = None
        if len(drawn) == number:
            break
    return list(drawn)
