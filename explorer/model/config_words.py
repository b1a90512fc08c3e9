"""Describe configs, and the differences between two, in words."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from explorer.model.config import Config

_LAUNCHES = {"one": "one launch", "two-overlapped": "two overlapped launches"}

_STAGING = {
    "direct": "not staged",
    "span": "staged as a span",
    "async": "asynchronous copies",
    "bulk": "bulk copies",
}

_ARRANGEMENT = {
    "replicated": "each thread reduces the whole row",
    "blocked": "adjacent vectors a thread",
}

_WORDS: dict[str, Callable[[Any], str]] = {
    "algorithm": str,
    "threads": lambda value: f"{value} thread{'' if value == 1 else 's'}",
    "threads_per_row": "{} a row".format,
    "vector_bytes": "{} B".format,
    "reduction": str,
    "cache": lambda value: {"none": "no cache", "output": "exponentials in the output"}.get(
        value, str(value)
    ),
    "cache_holds": "holds {}".format,
    "exp": str,
    "normalise": str,
    "unroll": "unroll {}".format,
    "load_hint": "load {}".format,
    "store_hint": "store {}".format,
    "min_blocks": "min_blocks {}".format,
    "static_cols": lambda value: "static cols" if value else "run-time cols",
    "launches": lambda value: _LAUNCHES.get(value, f"{value} launches"),
    "persistent": lambda value: (
        f"{value} block{'' if value == 1 else 's'} an SM" if value else "a block a tile"
    ),
    "staging": lambda value: _STAGING.get(value, str(value)),
    "sum": "{} sum".format,
    "cluster": lambda value: f"clusters of {value}" if value > 1 else "no clusters",
    "exchange": "exchange by {}".format,
    "row_order": "{} rows".format,
    "stages": lambda value: f"{value} stage{'' if value == 1 else 's'}",
    "arrangement": lambda value: _ARRANGEMENT.get(value, str(value)),
    "rows_per_thread": lambda value: f"{value} row{'' if value == 1 else 's'} a thread",
}

_STRUCTURE = ("algorithm", "threads", "threads_per_row", "vector_bytes", "reduction", "cache")
"""The parameters that distinguish kernels at a glance; others are named if not at their default."""


_SHORT: dict[str, Callable[[Any], str]] = {
    "threads": "{} thr".format,
    "threads_per_row": "{}/row".format,
    "cache_holds": "keep {}".format,
    "load_hint": "ld {}".format,
    "store_hint": "st {}".format,
    "min_blocks": "blocks {}".format,
}
"""Shorter words for table cells."""

CELL_LINES = 2


def words(config: Config, names: Iterable[str]) -> str:
    """Return the values of the named parameters of `config`, separated by commas."""
    return ", ".join(_WORDS[name](getattr(config, name)) for name in names)


def brief_words(config: Config) -> str:
    """Return the structure of the kernel, and every other parameter that is not at its default."""
    default = Config()
    values = config.as_dict()
    names = (n for n in values if n in _STRUCTURE or values[n] != getattr(default, n))
    return words(config, names)


def difference_words(config: Config, best: Config, width: int) -> str:
    """Return the values of `config` that differ from those of `best`, in two lines of `width`.

    The parameters come in their order, which begins with the structure. `+3` at the end counts
    those for which there is no room.
    """
    names = list(config.differences(best))
    values = [{**_WORDS, **_SHORT}[name](getattr(config, name)) for name in names]
    for shown in range(len(values), 0, -1):
        left_out = [f"+{len(values) - shown}"] if shown < len(values) else []
        lines = _lines([*values[:shown], *left_out], width)
        if len(lines) <= CELL_LINES:
            return "\n".join(lines)
    return f"+{len(values)}" if values else ""


def change_words(before: Config, after: Config) -> str:
    """Return the changes from one config to the next: `no cache → registers, expf → __expf`."""
    names = list(after.differences(before))
    changes = []
    if not _SPLIT.isdisjoint(names):
        names = [name for name in names if name not in _SPLIT]
        changes.append(f"{_split_words(before)} → {_split_words(after)}")
    changes += [f"{words(before, [name])} → {words(after, [name])}" for name in names]
    return ", ".join(changes)


_SPLIT = {"threads", "threads_per_row"}


def _split_words(config: Config) -> str:
    """Return the threads of a block and of a row, as one number if they are equal."""
    if config.threads == config.threads_per_row:
        return f"{config.threads} a row"
    return f"{config.threads_per_row} of {config.threads} a row"


def _lines(values: Sequence[str], width: int) -> list[str]:
    """Return values joined by commas, in lines that break only after commas."""
    lines: list[str] = []
    for word, end in zip(values, [","] * (len(values) - 1) + [""], strict=True):
        if lines and len(f"{lines[-1]} {word}{end}") <= width:
            lines[-1] += f" {word}{end}"
        else:
            lines.append(f"{word}{end}")
    return lines
