"""All legal points of a space, counted and drawn without walking through them one by one."""

import random
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from explorer.config import Config
from explorer.gpu_spec import GpuSpec
from explorer.problem import Problem
from explorer.space.levels import choose, levels
from explorer.space.parameters import Value
from explorer.space.rules import Point

Choice = tuple[str, Value]
Step = tuple[Choice, tuple[Any, ...], tuple[Any, ...]]
"""A choice, what its level is told, and what it tells the level below."""
Below = tuple[int, int]
"""How many legal completions there are, and the choices that these make, as bits."""


class LegalPoints:
    """Counts of the legal completions of partial choices, each counted once.

    What can still go wrong depends on few of the values chosen so far. Branches that agree in
    them are counted once. Which choices can still follow is known of each as well, as bits, so that
    what is wanted is not looked for where it cannot be.
    """

    def __init__(
        self, problem: Problem, gpu: GpuSpec, parameters: dict[str, tuple[Value, ...]]
    ) -> None:
        self._levels = levels(problem, gpu, parameters)
        self._draft = Config()
        self._point = Point(problem, gpu, self._draft)
        self._known: list[dict[tuple[Any, ...], tuple[int, ...]]] = [{} for _ in self._levels]
        self._totals: list[dict[tuple[Any, ...], Below]] = [{} for _ in self._levels]
        self._kept: dict[Any, Any] = {}
        """What is known of many branches is the same: each such tuple is kept once."""
        bits = (1 << place for place in range(sum(len(level.values) for level in self._levels)))
        self._bits = [tuple(next(bits) for _ in level.values) for level in self._levels]

    def count(self) -> int:
        """How many there are."""
        return self._below(0)[0]

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

    def pairs(self) -> set[tuple[Choice, Choice]]:
        """Every two choices that some legal config makes together, either one first."""
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
            for value, count in zip(level.values, self._counts(depth), strict=True):
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
        if due[depth] & ~self._below(depth)[1] or state in dead:
            return False
        counts, here = list(self._counts(depth)), due[depth] & ~due[depth + 1]
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
            return 1, 0
        told, totals = self._levels[depth].told(self._draft), self._totals[depth]
        found = totals.get(told)
        if found is None:
            counts, choices = self._completions(depth)
            found = sum(counts), choices
            self._known[depth][told] = self._kept.setdefault(counts, counts)
            found = totals[told] = self._kept.setdefault(found, found)
        return found

    def _counts(self, depth: int) -> tuple[int, ...]:
        """The legal completions of what is chosen above `depth`, for each value there."""
        told, known = self._levels[depth].told(self._draft), self._known[depth]
        if told not in known:
            self._below(depth)
        return known[told]

    def _completions(self, depth: int) -> tuple[tuple[int, ...], int]:
        """For each value at `depth`, how many there are; and the choices from there on in all."""
        level, draft, below = self._levels[depth], self._draft, self._below
        name, values, bits = level.name, level.values, self._bits[depth]
        allowed = (1 << len(values)) - 1
        for judge in level.due:
            allowed &= judge.allows(self._point)
            if not allowed:
                return (0,) * len(values), 0
        counts, choices = [], 0
        for place, value in enumerate(values):
            count = 0
            if allowed >> place & 1:
                choose(draft, name, value)
                count, further = below(depth + 1)
                if count:
                    choices |= bits[place] | further
            counts.append(count)
        return tuple(counts), choices
