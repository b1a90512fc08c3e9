"""What a search may still propose: the legal configs of a space that were not tried yet."""

import random
from collections.abc import Iterator
from typing import Protocol

from explorer.config import Config
from explorer.space import Rule, Space
from explorer.space.parameters import Value

DRAWS = 200
"""Draws in a row that hit tried configs before what is left is enumerated."""


class Offer(Protocol):
    """Hands out untried configs; what was taken is not offered again."""

    @property
    def values(self) -> dict[str, tuple[Value, ...]]:
        """The values of each parameter."""

    def holds(self, config: Config) -> bool:
        """Whether `config` is one of them, tried or not."""

    def left(self) -> int | None:
        """How many are untried; None where they are not counted."""

    def take(self, config: Config) -> None:
        """Count `config` as tried."""

    def is_tried(self, config: Config) -> bool:
        """Whether `config` was taken."""

    def broken_rule(self, config: Config) -> Rule | None:
        """The rule that keeps `config` from being offered; None where the nearest one serves."""

    def adopt(self, config: Config, rng: random.Random) -> Config | None:
        """An untried config at `config` or near it, or None."""

    def steps(self, config: Config, rng: random.Random) -> list[Config]:
        """Untried configs a small step from `config`, in random order; take them from the end."""

    def draw(self, rng: random.Random) -> Config | None:
        """An untried config at random, or None where every one was tried."""


class OpenOffer:
    """Every legal config of a space."""

    def __init__(self, space: Space) -> None:
        self._space = space
        self._tried: set[Config] = set()
        self._rest: Iterator[Config] | None = None

    @property
    def values(self) -> dict[str, tuple[Value, ...]]:
        """The values of each parameter."""
        return self._space.parameters

    def holds(self, config: Config) -> bool:
        """Whether `config` is legal."""
        return self._space.is_legal(config)

    def left(self) -> int | None:
        """None: legal configs are too many to count in passing."""
        return None

    def take(self, config: Config) -> None:
        """Count `config` as tried."""
        self._tried.add(config)

    def is_tried(self, config: Config) -> bool:
        """Whether `config` was taken."""
        return config in self._tried

    def broken_rule(self, config: Config) -> Rule | None:
        """The first rule that `config` breaks."""
        return self._space.broken_rule(config)

    def adopt(self, config: Config, rng: random.Random) -> Config | None:
        """`config`, made legal; None where that was tried."""
        repaired = self._space.repair(config, rng)
        return None if repaired in self._tried else repaired

    def steps(self, config: Config, rng: random.Random) -> list[Config]:
        """The legal configs that differ in one choice."""
        found = [step for step in self._space.neighbours(config) if step not in self._tried]
        rng.shuffle(found)
        return found

    def draw(self, rng: random.Random) -> Config | None:
        """Uniform among the legal ones; where few are left, the first of those."""
        if self._rest is None:
            for _ in range(DRAWS):
                config = self._space.sample(rng)
                if config not in self._tried:
                    return config
            self._rest = self._space.legal()
        return next((config for config in self._rest if config not in self._tried), None)
