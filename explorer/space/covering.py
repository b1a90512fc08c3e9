"""Covering arrays: few legal configs in which the values of a space occur, or pairs of them."""

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import combinations, product
from math import prod
from operator import attrgetter
from typing import Any

from explorer.model.config import Config, Value
from explorer.space.rules import Point, Rule, rules_of
from explorer.space.space import Space, choose

Setting = tuple[str, Value]
"""A parameter's name and one of its values."""

Combination = tuple[Setting, ...]

CANDIDATES = 12
"""Legal completions tried for each combination; the one that covers most is taken."""


def covering_array(space: Space, strength: int = 1, seed: int = 0) -> list[Config]:
    """Return legal configs in which each combination of `strength` values occurs that any has.

    Greedy, as in AETG (Cohen et al. 1997): each config is chosen to cover one combination that
    is still missing, and as many others as it can.
    """
    rng = random.Random(seed)
    completions = _Completions(space)
    missing = list(_combinations(space, strength))
    rng.shuffle(missing)
    covered: set[Combination] = set()
    array: list[Config] = []
    for wanted in missing:
        if wanted in covered:
            continue
        candidates = completions.draw(dict(wanted), CANDIDATES, rng)
        if candidates:
            best = max(candidates, key=lambda c: len(_in(c, strength) - covered))
            covered |= _in(best, strength)
            array.append(best)
    return array


def _combinations(space: Space, strength: int) -> list[Combination]:
    """Return every combination of values of `strength` different parameters, legal or not."""
    return [
        wanted
        for names in combinations(space.parameters, strength)
        for wanted in product(*([(n, value) for value in space.parameters[n]] for n in names))
    ]


def _in(config: Config, strength: int) -> set[Combination]:
    return set(combinations(config.as_dict().items(), strength))


# ------------------------------------------------------------------ legal completions


FIRST = (
    "cluster",
    "cache",
    "staging",
    "launches",
    "rows_per_thread",
    "threads_per_row",
    "threads",
)
"""Parameters to choose first: with them known, most rules read few others."""


Judge = tuple[Rule, Callable[[Config], Any], dict[Any, int]]
"""A rule, what reads its other parameters, and the bits of the values that it allows by these."""


@dataclass(frozen=True, slots=True)
class _Level:
    """One parameter to choose, after those of the levels above it."""

    name: str
    values: tuple[Value, ...]
    bits: tuple[int, ...]
    """A bit for each value, different from those of all other levels."""
    state: Callable[[Config], Any]
    """The values chosen above that rules still to judge read: what can follow depends on these."""
    judges: tuple[Judge, ...]
    """Rules that can be judged once this parameter is chosen, first those that read least."""
    known: dict[Any, int | None]
    """The bits of all values in legal completions, by state; None where there is none."""


class _Completions:
    """The legal completions of partial configs, of which each state is looked at once."""

    def __init__(self, space: Space) -> None:
        self._draft = Config()
        self._point = Point(space.problem, space.gpu, self._draft)
        self._levels = _levels(space.parameters, rules_of(space.problem))

    def draw(self, wanted: dict[str, Value], number: int, rng: random.Random) -> list[Config]:
        """Return so many legal configs with the wanted values, perhaps the same; [] if none has.

        Each choice is uniform among those that a legal config can follow.
        """
        due = [0]  # the bits that are wanted at each level and below it
        for level in reversed(self._levels):
            bits = zip(level.values, level.bits, strict=True)
            here = sum(bit for value, bit in bits if wanted.get(level.name) == value)
            due.append(due[-1] | here)
        due.reverse()
        dead: set[tuple[int, Any]] = set()
        drawn: list[Config] = []
        while len(drawn) < number and self._complete(0, due, rng, dead):
            drawn.append(replace(self._draft))
        return drawn

    def _complete(
        self, depth: int, due: list[int], rng: random.Random, dead: set[tuple[int, Any]]
    ) -> bool:
        """Choose from `depth` on; False if nothing legal is as wanted, which `dead` remembers."""
        if depth == len(self._levels):
            return True
        level = self._levels[depth]
        state = (depth, level.state(self._draft))
        following = self._following(depth)
        if following is None or due[depth] & ~following or state in dead:
            return False
        here = due[depth] & ~due[depth + 1]
        places = [p for p, bit in enumerate(level.bits) if bit & (here or following)]
        rng.shuffle(places)
        for place in places:
            choose(self._draft, level.name, level.values[place])
            if self._complete(depth + 1, due, rng, dead):
                return True
        dead.add(state)
        return False

    def _following(self, depth: int) -> int | None:
        """Return the bits of all values from `depth` on in legal completions; None without any."""
        if depth == len(self._levels):
            return 0
        level = self._levels[depth]
        state = level.state(self._draft)
        if state not in level.known:
            level.known[state] = self._found(level, depth)
        return level.known[state]

    def _found(self, level: _Level, depth: int) -> int | None:
        found, allowed = None, self._allowed(level)
        for value, bit in zip(level.values, level.bits, strict=True):
            if allowed & bit:
                choose(self._draft, level.name, value)
                following = self._following(depth + 1)
                if following is not None:
                    found = (found or 0) | following | bit
        return found

    def _allowed(self, level: _Level) -> int:
        """Return the bits of the values that all rules allow which can be judged at a level."""
        allowed = -1
        for rule, others, known in level.judges:
            read = others(self._draft)
            if read not in known:
                known[read] = 0
                for value, bit in zip(level.values, level.bits, strict=True):
                    choose(self._draft, level.name, value)
                    known[read] |= bit * rule.holds(self._point)
            allowed &= known[read]
        return allowed


def _levels(parameters: dict[str, tuple[Value, ...]], rules: Sequence[Rule]) -> list[_Level]:
    """Return a level for each parameter: after FIRST always one that leaves fewest states."""
    read = {name for rule in rules for name in rule.reads}
    order = [name for name in FIRST if name in read]
    while len(order) < len(read):
        states = {
            name: prod(len(parameters[n]) for n in _undecided([*order, name], rules))
            for name in parameters
            if name in read and name not in order
        }
        order.append(min(states, key=lambda name: states[name]))
    order += [name for name in parameters if name not in read]
    levels = []
    for depth, name in enumerate(order):
        place = sum(len(parameters[n]) for n in order[:depth])
        bits = tuple(1 << place + i for i in range(len(parameters[name])))
        due = [r for r in rules if name in r.reads and set(r.reads) <= set(order[: depth + 1])]
        judges: list[Judge] = [
            (rule, _values_of([n for n in rule.reads if n != name]), {})
            for rule in sorted(due, key=lambda r: len(r.reads))
        ]
        state = _values_of(_undecided(order[:depth], rules))
        levels.append(_Level(name, parameters[name], bits, state, tuple(judges), {}))
    return levels


def _undecided(chosen: Sequence[str], rules: Sequence[Rule]) -> list[str]:
    """Return those of the chosen that a rule reads together with one not chosen yet."""
    pending = [rule for rule in rules if not set(rule.reads) <= set(chosen)]
    read = {name for rule in pending for name in rule.reads}
    return [name for name in chosen if name in read]


def _values_of(names: Sequence[str]) -> Callable[[Config], Any]:
    """Return what reads these parameters of a config."""
    return attrgetter(*names) if names else lambda config: ()
