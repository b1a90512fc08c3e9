"""All legal points of a space, counted and drawn without walking through them one by one."""

import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from itertools import product
from math import prod
from multiprocessing.connection import Connection
from operator import attrgetter
from typing import Any

from explorer.model.config import Config
from explorer.model.gpu_spec import GpuSpec
from explorer.model.parameters import MEANING, Value
from explorer.model.problem import Problem
from explorer.space.rules import RULES, Point, Rule
from explorer.system.processes import leave_interrupts, talking_to

# ------------------------------------------------------------------ what rules said, kept


Change = dict[str, Value]

READERS = {name: tuple(rule for rule in RULES if name in rule.reads) for name in MEANING}
"""The rules that read a parameter: a change of it is a matter of these alone."""


class RuleCache:
    """What each rule said, by the values that it reads: the same few come up again and again.

    A search judges some hundred thousand configs; how they would divide a row is worked out for
    some thousand.
    """

    def __init__(self, problem: Problem, gpu: GpuSpec) -> None:
        self._problem = problem
        self._gpu = gpu
        self._shared: dict[Any, int] = {}
        self._said: dict[str, tuple[Callable[[Config], Any], dict[Any, bool]]] = {
            rule.name: (attrgetter(*rule.reads), {}) for rule in RULES
        }

    def holds(self, rule: Rule, config: Config) -> bool:
        """Whether a rule holds for a config."""
        read, said = self._said[rule.name]
        values = read(config)
        holds = said.get(values)
        if holds is None:
            holds = said[values] = self._holds(rule, config)
        return holds

    def broken_rule(self, config: Config) -> Rule | None:
        """The first rule that a config breaks, or None."""
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
        asked = {rule.name for rule in before}
        asked |= {rule.name for name in changed for rule in READERS[name]}
        return [rule for rule in RULES if rule.name in asked and not self.holds(rule, config)]

    def mending(self, config: Config, rule: Rule, changes: Iterable[Change]) -> list[Change]:
        """The changes of a config after which a rule holds."""
        return [change for change, draft in _drafts(config, changes) if self.holds(rule, draft)]

    def legal(
        self, config: Config, broken: Iterable[Rule], changes: Iterable[Change]
    ) -> list[Change]:
        """The changes of a config that breaks the `broken` rules after which it breaks none."""
        mended = [c for c in changes if not any(c.keys().isdisjoint(r.reads) for r in broken)]
        return [
            change
            for change, draft in _drafts(config, mended)
            if all(self.holds(rule, draft) for name in change for rule in READERS[name])
        ]

    def _holds(self, rule: Rule, config: Config) -> bool:
        return rule.holds(Point(self._problem, self._gpu, config, self._shared))

    def _broken(self, config: Config) -> Iterator[Rule]:
        return (rule for rule in RULES if not self.holds(rule, config))


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


# ------------------------------------------------------------------ levels


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


class AllowedValues:
    """A rule, asked of all values of one parameter at once; it remembers what it said.

    Its answers are bits: bit i is set where the parameter may have its value i.
    """

    def __init__(self, rule: Rule, name: str, values: tuple[Value, ...]) -> None:
        self._rule = rule
        self._name = name
        self._values = values
        self._others = _values_of([read for read in rule.reads if read != name])
        self._said: dict[tuple[Any, ...], tuple[int, int]] = {}
        """The values that it was asked of, and those among them that it allows."""

    def allows(self, point: Point, asked: int) -> int:
        """Those of the values asked of with which the rule holds at a point, whose own value is
        changed."""
        others = self._others(point.config)
        known, allowed = self._said.get(others, (0, 0))
        unknown = asked & ~known
        if unknown:
            for place, value in enumerate(self._values):
                if unknown >> place & 1:
                    choose(point.config, self._name, value)
                    allowed |= self._rule.holds(point) << place
            self._said[others] = known | unknown, allowed
        return asked & allowed


@dataclass(frozen=True, slots=True)
class Level:
    """One parameter to choose, after those of the levels above it."""

    name: str
    values: tuple[Value, ...]
    telling: tuple[str, ...]
    """Parameters chosen above that rules still to judge read: what follows depends on these."""
    told: Callable[[Config], tuple[Any, ...]]
    """Their values."""
    due: tuple[AllowedValues, ...]
    """Rules that can be judged once this parameter is chosen, first those that read least."""
    decides: bool
    """Whether a rule still to judge reads this parameter: else the same follows all its values."""


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
        AllowedValues(rule, name, parameters[name])
        for rule in sorted(due, key=lambda r: len(r.reads))
    ]
    decides = name in _telling(order[: depth + 1], rules)
    return Level(name, parameters[name], telling, _values_of(telling), tuple(judges), decides)


# ------------------------------------------------------------------ legal points


Setting = tuple[str, Value]
"""A parameter's name and one of its values."""
Step = tuple[Setting, tuple[Any, ...], tuple[Any, ...]]
"""A setting, what its level is told, and what it tells the level below."""
Below = tuple[int, int, tuple[int, ...]]
"""How many legal completions there are, the settings that these have, as bits, and how many of them
there are for each value of the next level."""
Known = list[dict[tuple[Any, ...], Below]]
"""For each level, what can follow it, by what the level is told."""


class LegalPoints:
    """Counts of the legal completions of partial choices, each counted once.

    What can still go wrong depends on few of the values chosen so far. Branches that agree in
    them are counted once. Which choices can still follow is known of each as well, as bits, so that
    what is wanted is not looked for where it cannot be.
    """

    def __init__(
        self, problem: Problem, gpu: GpuSpec, parameters: dict[str, tuple[Value, ...]]
    ) -> None:
        self._asked = problem, gpu, parameters
        self._levels = levels(problem, gpu, parameters)
        self._draft = Config()
        self._point = Point(problem, gpu, self._draft)
        self._known: Known = [{} for _ in self._levels]
        self._kept: dict[Below, Below] = {}
        """What is known of many branches is the same: each such tuple is kept once."""
        bits = (1 << place for place in range(sum(len(level.values) for level in self._levels)))
        self._bits = [tuple(next(bits) for _ in level.values) for level in self._levels]

    @property
    def known(self) -> Known:
        """What was counted until now."""
        return self._known

    def count(self) -> int:
        """How many there are."""
        return self._below(0)[0]

    @contextmanager
    def counted_elsewhere(self) -> Iterator[None]:
        """Have a process of its own count them during the block; after it they are counted.

        The threads of a search share one of Python's interpreters, in which this takes up to half a
        second. What the process tells, 2 MB, takes 15 ms to read. Where it fails, nothing is lost:
        they are counted here when they are asked for.
        """
        connection, counting = talking_to(_tell_known, *self._asked)
        with connection:
            yield
            with suppress(EOFError, OSError):  # it was ended, for want of memory for instance
                self._known = connection.recv()
        counting.join()

    def draw(self, rng: random.Random) -> Config | None:
        """One of them, each as likely as any other; None if there is none."""
        return next(iter(self.draw_with({}, 1, rng)), None)

    def draw_with(self, wanted: dict[str, Value], number: int, rng: random.Random) -> list[Config]:
        """So many of those that have the wanted values, perhaps with repeats; [] if none has."""
        due = [0]
        for level, bits in zip(reversed(self._levels), reversed(self._bits), strict=True):
            bit = 0
            if level.name in wanted:
                if wanted[level.name] not in level.values:
                    return []
                bit = bits[level.values.index(wanted[level.name])]
            due.append(due[-1] | bit)
        due.reverse()
        drawn: list[Config] = []
        dead: set[tuple[Any, ...]] = set()
        while len(drawn) < number and self._complete(0, due, rng, dead):
            drawn.append(replace(self._draft))
        return drawn

    def pairs(self) -> set[tuple[Setting, Setting]]:
        """Every two settings that some legal config has together, either one first."""
        choices = [(level.name, value) for level in self._levels for value in level.values]
        bits = {choice: 1 << place for place, choice in enumerate(choices)}
        before = dict.fromkeys(choices, 0)
        ways: dict[tuple[Any, ...], int] = {(): 0}
        """What a level is told, and the choices that are made on the ways there, as bits."""
        for depth in range(len(self._levels)):
            following: dict[tuple[Any, ...], int] = {}
            for choice, told, told_below in self._steps(depth, list(ways)):
                before[choice] |= ways[told]
                following[told_below] = following.get(told_below, 0) | ways[told] | bits[choice]
            ways = following
        found = [(a, b) for b in choices for a in choices if before[b] & bits[a]]
        return {*found, *((b, a) for a, b in found)}

    def _steps(self, depth: int, reached: list[tuple[Any, ...]]) -> Iterator[Step]:
        """The choices that can be made at a level of which all that is told can be `reached`."""
        level = self._levels[depth]
        below = self._levels[min(depth + 1, len(self._levels) - 1)]  # nobody asks past the last
        for told in reached:
            for name, value in zip(level.telling, told, strict=True):
                choose(self._draft, name, value)
            for value, count in zip(level.values, self._below(depth)[2], strict=True):
                if count:
                    choose(self._draft, level.name, value)
                    yield (level.name, value), told, below.told(self._draft)

    def _complete(
        self, depth: int, due: list[int], rng: random.Random, dead: set[tuple[Any, ...]]
    ) -> bool:
        """Choose from `depth` on; False if nothing legal is as wanted, which `dead` remembers.

        `due` has the choices wanted at each depth and below it, as bits.
        """
        if depth == len(self._levels):
            return True
        level = self._levels[depth]
        state = (depth, level.told(self._draft))
        _, choices, completions = self._below(depth)
        if due[depth] & ~choices or state in dead:
            return False
        counts, here = list(completions), due[depth] & ~due[depth + 1]
        if here:
            bits = self._bits[depth]
            counts = [n if bit & here else 0 for bit, n in zip(bits, counts, strict=True)]
        while any(counts):
            place = rng.choices(range(len(counts)), counts)[0]
            choose(self._draft, level.name, level.values[place])
            if self._complete(depth + 1, due, rng, dead):
                return True
            counts[place] = 0
        dead.add(state)
        return False

    def _below(self, depth: int) -> Below:
        """What can follow what is chosen above `depth`."""
        if depth == len(self._levels):
            return 1, 0, ()
        told, known = self._levels[depth].told(self._draft), self._known[depth]
        found = known.get(told)
        if found is None:
            found = self._completions(depth)
            found = known[told] = self._kept.setdefault(found, found)
        return found

    def _completions(self, depth: int) -> Below:
        """What can follow, worked out from what can follow each value at `depth`."""
        level, draft, bits = self._levels[depth], self._draft, self._bits[depth]
        allowed = (1 << len(level.values)) - 1
        for judge in level.due:
            allowed = judge.allows(self._point, allowed)
            if not allowed:
                return 0, 0, (0,) * len(level.values)
        counts, choices, count, further = [], 0, 0, 0
        known = False
        for place, value in enumerate(level.values):
            if not allowed >> place & 1:
                counts.append(0)
                continue
            if not known:
                choose(draft, level.name, value)
                count, further, _ = self._below(depth + 1)
                known = not level.decides
            if count:
                choices |= bits[place] | further
            counts.append(count)
        return sum(counts), choices, tuple(counts)


def _tell_known(
    connection: Connection,
    problem: Problem,
    gpu: GpuSpec,
    parameters: dict[str, tuple[Value, ...]],
) -> None:
    """Count the legal points of a space, and send what is known of every level then."""
    leave_interrupts()
    points = LegalPoints(problem, gpu, parameters)
    points.count()
    with suppress(OSError):  # the process that asked has ended
        connection.send(points.known)
