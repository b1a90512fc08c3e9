"""What a search on a recording may propose: its configs, the nearest for whatever is wanted."""

import random
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from explorer.config import Config
from explorer.space import Rule
from explorer.space.parameters import Value

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
        self._matrix = np.array([self._encode(c) for c in self._configs], dtype=np.int8)
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
        """Untried configs that differ in one or two parameters, the nearer ones last."""
        distances = self._distances(config)
        rows = [int(row) for row in np.flatnonzero(self._untried & (distances <= NEAR))]
        rng.shuffle(rows)
        rows.sort(key=lambda row: -int(distances[row]))
        return [self._configs[row] for row in rows]

    def draw(self, rng: random.Random) -> Config | None:
        """Uniform among the untried ones."""
        return self._pick(self._untried, rng) if self._untried.any() else None

    def _distances(self, config: Config) -> NDArray[np.int64]:
        differs = self._matrix != np.array(self._encode(config), dtype=np.int8)
        distances: NDArray[np.int64] = differs.sum(axis=1, dtype=np.int64)
        return distances

    def _encode(self, config: Config) -> list[int]:
        return [codes[getattr(config, name)] for name, codes in self._codes.items()]

    def _pick(self, mask: NDArray[np.bool_], rng: random.Random) -> Config:
        return self._configs[int(rng.choice(np.flatnonzero(mask & self._untried)))]


def _united(
    values: dict[str, tuple[Value, ...]], configs: Sequence[Config]
) -> dict[str, tuple[Value, ...]]:
    return {
        name: tuple(dict.fromkeys([*known, *(getattr(config, name) for config in configs)]))
        for name, known in values.items()
    }
