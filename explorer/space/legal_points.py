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


class LegalPoints:
    """Counts of the legal completions of partial choices, each counted once.

    What can still go wrong depends on few of the values chosen so far. Branches that agree in
    them are counted once.
    """

    def __init__(
        self, problem: Problem, gpu: GpuSpec, parameters: dict[str, tuple[Value, ...]]
    ) -> None:
        self._levels = levels(problem, gpu, parameters)
        self._draft = Config()
        self._point = Point(problem, gpu, self._draft)
        self._known: list[dict[tuple[Any, ...], tuple[int, ...]]] = [{} for _ in self._levels]
        self._totals: list[dict[tuple[Any, ...], int]] = [{} for _ in self._levels]

    def count(self) -> int:
        """How many there are."""
        return self._below(0)

    def draw(self, rng: random.Random) -> Config | None:
        """One of them, each as likely as any other; None if there is none."""
        return next(iter(self.draw_with({}, 1, rng)), None)

    def draw_with(self, wanted: dict[str, Value], number: int, rng: random.Random) -> list[Config]:
        """So many of those that have the wanted values, perhaps with repeats; [] if none has."""
        for level in self._levels:
            if level.name in wanted and wanted[level.name] not in level.values:
                return []
        drawn: list[Config] = []
        dead: set[tuple[Any, ...]] = set()
        while len(drawn) < number and self._complete(0, wanted, rng, dead):
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
        self, depth: int, wanted: dict[str, Value], rng: random.Random, dead: set[tuple[Any, ...]]
    ) -> bool:
        """Choose from `depth` on; False if nothing legal is as wanted, which `dead` remembers."""
        if depth == len(self._levels):
            return True
        level = self._levels[depth]
        state = (depth, level.told(self._draft))
        if state in dead:
            return False
        counts = list(self._counts(depth))
        if level.name in wanted:
            here = wanted[level.name]
            counts = [n * (v == here) for v, n in zip(level.values, counts, strict=True)]
        while any(counts):
            place = rng.choices(range(len(counts)), counts)[0]
            choose(self._draft, level.name, level.values[place])
            if self._complete(depth + 1, wanted, rng, dead):
                return True
            counts[place] = 0
        dead.add(state)
        return False

    def _below(self, depth: int) -> int:
        """The legal completions of what is chosen above `depth`."""
        if depth == len(self._levels):
            return 1
        told, totals = self._levels[depth].told(self._draft), self._totals[depth]
        total = totals.get(told)
        if total is None:
            counts = self._known[depth][told] = self._completions(depth)
            total = totals[told] = sum(counts)
        return total

    def _counts(self, depth: int) -> tuple[int, ...]:
        """The legal completions of what is chosen above `depth`, for each value there."""
        told, known = self._levels[depth].told(self._draft), self._known[depth]
        if told not in known:
            self._below(depth)
        return known[told]

    def _completions(self, depth: int) -> tuple[int, ...]:
        level, draft, below = self._levels[depth], self._draft, self._below
        name, values = level.name, level.values
        allowed = (1 << len(values)) - 1
        for judge in level.due:
            allowed &= judge.allows(self._point)
            if not allowed:
                return (0,) * len(values)
        counts = []
        for place, value in enumerate(values):
            if allowed >> place & 1:
                choose(draft, name, value)
                counts.append(below(depth + 1))
            else:
                counts.append(0)
        return tuple(counts)
