"""A config in words short enough for a table cell."""

from collections.abc import Callable, Iterable
from typing import Any

from explorer.config import Config

_WORDS: dict[str, Callable[[Any], str]] = {
    "algorithm": str,
    "threads": "{} threads".format,
    "threads_per_row": "{} a row".format,
    "vector_bytes": "{} B".format,
    "reduction": str,
    "cache": lambda value: "no cache" if value == "none" else str(value),
    "cache_holds": "holds {}".format,
    "exp": str,
    "normalise": str,
    "unroll": "unroll {}".format,
    "load_hint": "load {}".format,
    "store_hint": "store {}".format,
    "min_blocks": "min_blocks {}".format,
    "static_cols": lambda value: "static cols" if value else "run-time cols",
}

_STRUCTURE = ("algorithm", "threads", "threads_per_row", "vector_bytes", "reduction", "cache")
"""What tells kernels apart at a glance; the rest is said where it is no default."""


def words(config: Config, names: Iterable[str]) -> str:
    """The values that `config` has for the named parameters, separated by commas."""
    return ", ".join(_WORDS[name](getattr(config, name)) for name in names)


def brief_words(config: Config) -> str:
    """The structure of the kernel, and every other parameter that is not at its default."""
    default = Config()
    values = config.as_dict()
    telling = (n for n in values if n in _STRUCTURE or values[n] != getattr(default, n))
    return words(config, telling)


def difference_words(config: Config, best: Config) -> str:
    """What `config` has that `best` has not."""
    return words(config, config.differences(best))
