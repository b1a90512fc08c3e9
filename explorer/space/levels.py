"""The order in which to choose a space's parameters, and which rules each choice decides."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
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

TELLING_MOST = (
    "cluster",
    "cache",
    "staging",
    "launches",
    "rows_per_thread",
    "threads_per_row",
    "threads",
)
"""Parameters to choose first: with them known, most rules are judged of few others."""


class Judge:
    """A rule, asked of all values of one parameter at once; it remembers what it said.

    Its answers are bits: bit i is set where the parameter may have its value i.
    """

    def __init__(self, rule: Rule, name: str, values: tuple[Value, ...]) -> None:
        self._rule = rule
        self._name = name
        self._values = values
        self._others = _values_of([read for read in rule.reads if read != name])
        self._said: dict[tuple[Any, ...], int] = {}

    def allows(self, point: Point) -> int:
        """The values with which the rule holds at a point, whose own value is changed."""
        others = self._others(point.config)
        said = self._said.get(others)
        if said is None:
            said = 0
            for place, value in enumerate(self._values):
                choose(point.config, self._name, value)
                said |= self._rule.holds(point) << place
            self._said[others] = said
        return said


@dataclass(frozen=True, slots=True)
class Level:
    """One parameter to choose, after those of the levels above it."""

    name: str
    values: tuple[Value, ...]
    telling: tuple[str, ...]
    """Parameters chosen above that rules still to judge read: what follows depends on these."""
    told: Callable[[Config], tuple[Any, ...]]
    """Their values."""
    due: tuple[Judge, ...]
    """Rules that can be judged once this parameter is chosen, first those that read least."""


def levels(problem: Problem, gpu: GpuSpec, parameters: dict[str, tuple[Value, ...]]) -> list[Level]:
    """A level for each parameter, with those of its values that can be legal at all."""
    parameters, rules = _possible(problem, gpu, parameters)
    order = _order(parameters, rules)
    return [_level(order, depth, parameters, rules) for depth in range(len(order))]


def choose(draft: Config, name: str, value: Value) -> None:
    """Assign in place: a Config for each step would take seconds."""
    object.__setattr__(draft, name, value)


def _nothing(config: Config) -> tuple[Any, ...]:
    return ()


def _values_of(names: Sequence[str]) -> Callable[[Config], tuple[Any, ...]]:
    """What reads these parameters of a config."""
    if len(names) > 1:
        return attrgetter(*names)
    return (lambda config: (getattr(config, names[0]),)) if names else _nothing


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


def _order(parameters: dict[str, tuple[Value, ...]], rules: list[Rule]) -> list[str]:
    """All names: after those that tell most, always one that leaves fewest cases to tell apart.

    Those that no rule reads come last.
    """
    read = {name for rule in rules for name in rule.reads}
    order = [name for name in TELLING_MOST if name in read]
    while len(order) < len(read):
        cases = {
            name: prod(len(parameters[told]) for told in _telling([*order, name], rules))
            for name in parameters
            if name in read and name not in order
        }
        order.append(min(cases, key=lambda name: cases[name]))
    return order + [name for name in parameters if name not in read]


def _telling(chosen: list[str], rules: list[Rule]) -> tuple[str, ...]:
    """Those of the chosen that a rule reads together with one not chosen yet."""
    pending = [rule for rule in rules if not set(rule.reads) <= set(chosen)]
    read = {name for rule in pending for name in rule.reads}
    return tuple(name for name in chosen if name in read)


def _level(
    order: list[str], depth: int, parameters: dict[str, tuple[Value, ...]], rules: list[Rule]
) -> Level:
    name, above, chosen = order[depth], set(order[:depth]), set(order[: depth + 1])
    pending = [rule for rule in rules if not set(rule.reads) <= above]
    due = [rule for rule in pending if set(rule.reads) <= chosen]
    telling = _telling(order[:depth], rules)
    judges = [
        Judge(rule, name, parameters[name]) for rule in sorted(due, key=lambda r: len(r.reads))
    ]
    return Level(name, parameters[name], telling, _values_of(telling), tuple(judges))
