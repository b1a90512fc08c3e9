"""The configs that a search steps from: the fastest, or those that nothing is better than."""

from bisect import insort
from collections.abc import Sequence
from typing import Protocol

from explorer.config import Config
from explorer.search.pareto import dominates

ELITE = 5
"""How many of the fastest are kept."""

Values = tuple[float, ...]


class Elite(Protocol):
    """Keeps the best of what was measured."""

    favour: float
    """How often one is stepped from, relative to the one before it."""

    @property
    def configs(self) -> Sequence[Config]:
        """Those that are kept, the fastest first."""

    def add(self, config: Config, values: Values) -> list[Config]:
        """Keep `config` if it is among the best; what is kept no longer."""


class Fastest:
    """The few of least time."""

    favour = 0.5

    def __init__(self) -> None:
        self._kept: list[tuple[float, int, Config]] = []
        self._added = 0

    @property
    def configs(self) -> list[Config]:
        """The fastest first."""
        return [config for _, _, config in self._kept]

    def add(self, config: Config, values: Values) -> list[Config]:
        """Keep `config` among the fastest; what it drives out."""
        self._added += 1
        insort(self._kept, (values[0], self._added, config))
        fallen = [config for _, _, config in self._kept[ELITE:]]
        del self._kept[ELITE:]
        return fallen


class Front:
    """All that none is better than in one value and as good as in the others."""

    favour = 1.0

    def __init__(self) -> None:
        self._kept: list[tuple[Values, Config]] = []

    @property
    def configs(self) -> list[Config]:
        """The fastest first."""
        return [config for _, config in self._kept]

    def add(self, config: Config, values: Values) -> list[Config]:
        """Keep `config` unless one that is kept is better; what it is better than."""
        if any(dominates(kept, values) for kept, _ in self._kept):
            return []
        fallen = [one for kept, one in self._kept if dominates(values, kept)]
        rest = [entry for entry in self._kept if not dominates(values, entry[0])]
        self._kept = sorted([*rest, (values, config)], key=lambda entry: entry[0])
        return fallen
