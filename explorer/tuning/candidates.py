"""What a search may still propose: legal configs of a space, or those that a recording holds."""

import random
from collections.abc import Iterator, Sequence
from dataclasses import replace
from operator import attrgetter
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from explorer.model.config import Config
from explorer.model.parameters import Value
from explorer.space import Rule, Space, spread_otherwise

# ------------------------------------------------------------------ the legal configs of a space


DRAWS = 200
"""After this many draws in a row of tried configs, the untried ones are listed instead."""


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
        """Return the first rule that `config` breaks, or None.

        It is always None for a recording, whose nearest config stands for one that it lacks.
        """

    def adopt(self, config: Config, rng: random.Random) -> Config | None:
        """Return `config` if it is untried, else an untried one near it, or None."""

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


# ------------------------------------------------------------------ the configs of a recording


NEAR = 2
"""Parameters in which a step may differ: a sample holds few configs that differ in just one."""


class Catalogue:
    """Only what was recorded; distance is the number of parameters that differ (Hamming)."""

    def __init__(self, configs: Sequence[Config], values: dict[str, tuple[Value, ...]]) -> None:
        self._configs = list(dict.fromkeys(configs))
        self._rows = {config: row for row, config in enumerate(self._configs)}
        self._values = _united(values, self._configs)
        self._codes = {
            name: {value: code for code, value in enumerate(values)}
            for name, values in self._values.items()
        }
        self._by_parameter = np.array(
            [
                [codes[value] for value in map(attrgetter(name), self._configs)]
                for name, codes in self._codes.items()
            ],
            dtype=np.int8,
        )
        """Codes of values, of shape (parameters, configs): so a distance to all is a few passes."""
        self._untried = np.ones(len(self._configs), dtype=bool)

    @property
    def values(self) -> dict[str, tuple[Value, ...]]:
        """The values of each parameter: the space's, and what the recording has beyond them."""
        return self._values

    def holds(self, config: Config) -> bool:
        """Whether `config` was recorded."""
        return config in self._rows

    def left(self) -> int | None:
        """How many recorded configs are untried."""
        return int(self._untried.sum())

    def take(self, config: Config) -> None:
        """Count `config` as tried."""
        if config in self._rows:
            self._untried[self._rows[config]] = False

    def is_tried(self, config: Config) -> bool:
        """Whether `config` was taken; what was never recorded is none to try."""
        row = self._rows.get(config)
        return row is None or not self._untried[row]

    def broken_rule(self, config: Config) -> Rule | None:
        """None: whatever is wanted, the nearest recorded config stands for it."""
        return None

    def adopt(self, config: Config, rng: random.Random) -> Config | None:
        """The nearest untried config; None where every one was tried."""
        if not self._untried.any():
            return None
        distances = self._distances(config)
        return self._pick(distances == distances[self._untried].min(), rng)

    def steps(self, config: Config, rng: random.Random) -> list[Config]:
        """Untried configs that differ in one or two parameters, the nearer ones last.

        Among the others are those in which a row is spread over other blocks of a cluster.
        """
        distances = self._distances(config)
        spread = spread_otherwise(config, self._values["threads"])
        others = [replace(config, **change) for change in spread]  # type: ignore[arg-type]
        distances[[self._rows[other] for other in others if other in self._rows]] = NEAR
        rows = [int(row) for row in np.flatnonzero(self._untried & (distances <= NEAR))]
        rng.shuffle(rows)
        rows.sort(key=lambda row: -int(distances[row]))
        return [self._configs[row] for row in rows]

    def draw(self, rng: random.Random) -> Config | None:
        """Uniform among the untried ones."""
        return self._pick(self._untried, rng) if self._untried.any() else None

    def _distances(self, config: Config) -> NDArray[np.int8]:
        differs = self._by_parameter != np.array(self._encode(config), dtype=np.int8)[:, None]
        distances: NDArray[np.int8] = differs.sum(axis=0, dtype=np.int8)
        return distances

    def _encode(self, config: Config) -> list[int]:
        return [codes[getattr(config, name)] for name, codes in self._codes.items()]

    def _pick(self, mask: NDArray[np.bool_], rng: random.Random) -> Config:
        return self._configs[int(rng.choice(np.flatnonzero(mask & self._untried)))]


def _united(
    values: dict[str, tuple[Value, ...]], configs: Sequence[Config]
) -> dict[str, tuple[Value, ...]]:
    return {
        name: tuple(dict.fromkeys([*known, *map(attrgetter(name), configs)]))
        for name, known in values.items()
    }
