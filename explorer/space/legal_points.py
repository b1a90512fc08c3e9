"""All legal points of a space, counted and drawn without walking through them one by one."""

import random
from dataclasses import dataclass, replace
from itertools import product
from math import prod
from operator import attrgetter
from typing import Any

from explorer.config import Config
from explorer.gpu_spec import GpuSpec
from explorer.problem import Problem
from explorer.space.parameters import Value
from explorer.space.rules import RULES, Point, Rule

MOST_COMBINATIONS = 1000
"""Combinations of a rule's parameters that are tried one by one."""


class _Judge:
    """A rule that remembers what it said of the values that it reads."""

    def __init__(self, rule: Rule) -> None:
        self._rule = rule
        self._values = attrgetter(*rule.reads)
        self._said: dict[Any, bool] = {}

    def holds(self, point: Point) -> bool:
        """Whether the rule holds at a point."""
        values = self._values(point.config)
        said = self._said.get(values)
        if said is None:
            said = self._said[values] = self._rule.holds(point)
        return said


@dataclass(frozen=True, slots=True)
class _Level:
    """One parameter to choose, after those of the levels above it."""

    name: str
    values: tuple[Value, ...]
    telling: tuple[str, ...]
    """Parameters chosen above that rules still to judge read: what follows depends on these."""
    due: tuple[_Judge, ...]
    """Rules that can be judged once this parameter is chosen, first those that read least."""


class LegalPoints:
    """Counts of the legal completions of partial choices, each counted once.

    What can still go wrong depends on few of the values chosen so far. Branches that agree in
    them are counted once.
    """

    def __init__(
        self, problem: Problem, gpu: GpuSpec, parameters: dict[str, tuple[Value, ...]]
    ) -> None:
        parameters, rules = _possible(problem, gpu, parameters)
        reads = {name for rule in rules for name in rule.reads}
        order = _order([name for name in parameters if name in reads], parameters, rules)
        self._levels = [_level(order, depth, parameters, rules) for depth in range(len(order))]
        self._free = {name: v for name, v in parameters.items() if name not in reads}
        self._draft = Config()
        """Assigned in place while counting: a Config for each step would take seconds."""
        self._point = Point(problem, gpu, self._draft)
        self._known: dict[tuple[Any, ...], tuple[int, ...]] = {}

    def count(self) -> int:
        """How many there are."""
        return prod(len(v) for v in self._free.values()) * self._below(0)

    def draw(self, rng: random.Random) -> Config | None:
        """One of them, each as likely as any other; None if there is none."""
        for depth, level in enumerate(self._levels):
            counts = self._counts(depth)
            if not any(counts):
                return None
            self._choose(level.name, rng.choices(level.values, counts)[0])
        for name, values in self._free.items():
            self._choose(name, rng.choice(values))
        return replace(self._draft)

    def _below(self, depth: int) -> int:
        return sum(self._counts(depth)) if depth < len(self._levels) else 1

    def _counts(self, depth: int) -> tuple[int, ...]:
        """The legal completions of what is chosen above `depth`, for each value there."""
        level = self._levels[depth]
        key = (depth, *(getattr(self._draft, name) for name in level.telling))
        if key not in self._known:
            counts = []
            for value in level.values:
                self._choose(level.name, value)
                counts.append(self._below(depth + 1) if self._holds(level.due) else 0)
            self._known[key] = tuple(counts)
        return self._known[key]

    def _holds(self, judges: tuple[_Judge, ...]) -> bool:
        return all(judge.holds(self._point) for judge in judges)

    def _choose(self, name: str, value: Value) -> None:
        object.__setattr__(self._draft, name, value)


def _possible(
    problem: Problem, gpu: GpuSpec, parameters: dict[str, tuple[Value, ...]]
) -> tuple[dict[str, tuple[Value, ...]], list[Rule]]:
    """The values that no rule excludes whatever the others are, and the rules that exclude others.

    Other kernels' choices go, and the rules of those. Rules of very many combinations are not
    tried: they seldom exclude a value altogether.
    """
    possible = dict(parameters)
    rules = []
    for rule in RULES:
        values = [possible[name] for name in rule.reads]
        if prod(map(len, values)) > MOST_COMBINATIONS:
            rules.append(rule)
            continue
        drafts = [dict(zip(rule.reads, chosen, strict=True)) for chosen in product(*values)]
        held = [d for d in drafts if rule.holds(Point(problem, gpu, Config(**d)))]  # type: ignore[arg-type]
        for name in rule.reads:
            found = {draft[name] for draft in held}
            possible[name] = tuple(v for v in possible[name] if v in found)
        if not held or len(held) < prod(len(possible[name]) for name in rule.reads):
            rules.append(rule)
    return possible, rules


def _order(
    names: list[str], parameters: dict[str, tuple[Value, ...]], rules: list[Rule]
) -> list[str]:
    """The names, next always one that leaves fewest cases to tell apart."""
    order: list[str] = []
    while len(order) < len(names):
        cases = {
            name: prod(len(parameters[told]) for told in _telling([*order, name], rules))
            for name in names
            if name not in order
        }
        order.append(min(cases, key=lambda name: cases[name]))
    return order


def _telling(chosen: list[str], rules: list[Rule]) -> tuple[str, ...]:
    """Those of the chosen that a rule reads together with one not chosen yet."""
    pending = [rule for rule in rules if not set(rule.reads) <= set(chosen)]
    read = {name for rule in pending for name in rule.reads}
    return tuple(name for name in chosen if name in read)


def _level(
    order: list[str], depth: int, parameters: dict[str, tuple[Value, ...]], rules: list[Rule]
) -> _Level:
    above, chosen = set(order[:depth]), set(order[: depth + 1])
    pending = [rule for rule in rules if not set(rule.reads) <= above]
    due = [rule for rule in pending if set(rule.reads) <= chosen]
    return _Level(
        name=order[depth],
        values=parameters[order[depth]],
        telling=_telling(order[:depth], rules),
        due=tuple(map(_Judge, sorted(due, key=lambda rule: len(rule.reads)))),
    )
