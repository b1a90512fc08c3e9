"""The configs that a search steps from: the fastest, or those that nothing is better than."""

from bisect import insort
from collections.abc import Sequence
from typing import Protocol

from explorer.config import Config
from explorer.tuning.finals import dominates

ELITE = 5
"""How many of the fastest are kept."""

HILLS = 3
"""Of how many kinds of cache the fastest is climbed alone."""

Values = tuple[float, ...]


class Elite(Protocol):
    """Keeps the best of what was measured."""

    favour: float
    """How often one is stepped from, relative to the one before it."""

    @property
    def configs(self) -> Sequence[Config]:
        """Those that are kept, the fastest first."""

    @property
    def hills(self) -> Sequence[Config]:
        """Those of them that are climbed alone, too."""

    def add(self, config: Config, values: Values) -> list[Config]:
        """Keep `config` if it is among the best; what is kept no longer."""


class Fastest:
    """The few of least time, and the fastest of each kind of cache.

    A row kept elsewhere is another hill: its top lies several choices away, the first of which
    cost time.
    """

    favour = 0.5

    def __init__(self) -> None:
        self._kept: list[tuple[float, int, Config]] = []
        self._by_cache: dict[str, tuple[float, int, Config]] = {}
        self._added = 0

    @property
    def configs(self) -> list[Config]:
        """The fastest first."""
        others = sorted(set(self._by_cache.values()) - set(self._kept))
        return [config for _, _, config in [*self._kept, *others]]

    @property
    def hills(self) -> list[Config]:
        """The fastest of each kind of cache."""
        return [config for _, _, config in sorted(self._by_cache.values())[:HILLS]]

    def add(self, config: Config, values: Values) -> list[Config]:
        """Keep `config` if it is among the fastest, or of its cache; what it drives out."""
        before = self.configs
        self._added += 1
        entry = (values[0], self._added, config)
        self._by_cache[config.cache] = min(entry, self._by_cache.get(config.cache, entry))
        insort(self._kept, entry)
        del self._kept[ELITE:]
        kept = set(self.configs)
        return [one for one in before if one not in kept]


class Front:
    """All that none is better than in one value and as good as in the others."""

    favour = 1.0

    def __init__(self) -> None:
        self._kept: list[tuple[Values, Config]] = []

    @property
    def configs(self) -> list[Config]:
        """The fastest first."""
        return [config for _, config in self._kept]

    @property
    def hills(self) -> list[Config]:
        """All of them."""
        return self.configs

    def add(self, config: Config, values: Values) -> list[Config]:
        """Keep `config` unless one that is kept is better; what it is better than."""
        if any(dominates(kept, values) for kept, _ in self._kept):
            return []
        fallen = [one for kept, one in self._kept if dominates(values, kept)]
        rest = [entry for entry in self._kept if not dominates(values, entry[0])]
        self._kept = sorted([*rest, (values, config)], key=lambda entry: entry[0])
        return fallen
