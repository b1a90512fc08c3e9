"""A point of the parameter space as plain data; the parameters, their meanings, and their words."""

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, fields
from typing import Any

from explorer.model.element import DType
from explorer.model.errors import InvalidInput
from explorer.model.problem import MOST_GROUP
from explorer.ops import DEFAULT_OP, OPERATORS, Extent, Operator
from explorer.system.plain_data import parse_json, read_object, shown

# ------------------------------------------------------------------ parameters


Value = str | int | bool
Values = dict[str, tuple[Value, ...]]
"""Values of parameters, by their names."""

CHOICES: dict[str, tuple[str, ...]] = {
    "algorithm": ("three-pass", "online", "online-branchy", "online-block-max"),
    "reduction": (
        "shuffle",
        "shared-tree",
        "shared-serial",
        "shuffle-first-warp",
        "shuffle-redux",
        "shuffle-redux-first-warp",
    ),
    "cache": ("registers", "shared", "none", "output"),
    "cache_holds": ("exp", "input"),
    "exp": ("expf", "__expf", "exp2f", "ex2.approx", "exp2f-folded", "ex2.approx-folded"),
    "normalise": ("divide", "reciprocal"),
    "load_hint": ("default", "nc", "cs", "no-allocate"),
    "store_hint": ("default", "cs", "cg"),
    "launches": ("one", "three", "two", "two-overlapped"),
    "staging": ("direct", "span", "async", "bulk"),
    "sum": ("plain", "compensated"),
    "exchange": ("barrier", "mbarrier"),
    "row_order": ("ascending", "descending"),
    "arrangement": ("striped", "blocked", "replicated"),
    "core": ("none", "mma", "fma"),
    "probabilities": ("two", "one"),
}
"""The values of each parameter that is a word. The templates know these and no others."""

COHERENT_HINTS = ("default", "cs")
"""Values of load_hint whose loads see the writes of others while the kernel runs."""

WIDEST_ACCESS = 16
"""Most bytes of one global access."""

MOST_SPLITS = 256
"""Most parts that the keys of a sequence are divided into."""

RANGES: dict[str, tuple[int, int]] = {
    "threads": (1, 1024),
    "threads_per_row": (1, 1024),
    "vector_bytes": (min(dtype.itemsize for dtype in DType), WIDEST_ACCESS),
    "unroll": (1, 64),
    "min_blocks": (1, 32),
    "rows_per_thread": (1, 32),
    "persistent": (0, 32),
    "cluster": (1, 16),
    "stages": (1, 16),
    "lanes_per_key": (1, 32),
    "heads_per_thread": (1, MOST_GROUP),
    "splits": (1, MOST_SPLITS),
    "part_keys": (16, 2**20),
}
"""The least and the greatest value of each parameter that is a number. The space has fewer."""

POWERS_OF_TWO = ("vector_bytes", "cluster", "lanes_per_key", "part_keys")
"""Numbers that must be powers of two."""

WARPS = (32, 64, 96, 128, 160, 192, 224, 256, 320, 384, 512, 640, 768, 1024)
"""Threads of a block, in whole warps: up to four sizes from each power of two to the next.

With fewer sizes, the best one would leave many threads idle at the last access to a row.
"""

ROW_THREADS = (1, 2, 4, 8, 16, *WARPS)
"""Threads that may share a row."""

MEANING = {
    "algorithm": "three-pass has one pass for the maximum, one for the sum, and one for "
    "results as many as the elements; online finds maximum and sum in one pass",
    "threads": "threads a block",
    "threads_per_row": "threads that share a row; a block works on threads / "
    "threads_per_row * rows_per_thread rows",
    "vector_bytes": "bytes of one global access; the element's own size is scalar",
    "reduction": "how the threads of a row combine: warp shuffles (then every warp folds what the "
    "warps found, or the first alone does; redux: their maxima in one instruction), or a "
    "shared-memory tree or fold",
    "cache": "where a thread keeps its share of the row between passes: none reads it again; "
    "in the output its exponentials wait to be normalised. In attention a head's scores are the "
    "row: those on their way are in registers (online), or all of a block's keys in shared memory",
    "cache_holds": "what is kept: the exponentials (in fp32 or fp64) or the input as it came",
    "exp": "the exponential: accurate, fast, of base 2, or the bare instruction; folded: x and the "
    "maximum are scaled by log2(e) in one multiply-add",
    "normalise": "where exponentials are divided by their sum: an IEEE division an element, or one "
    "reciprocal a row and a multiplication",
    "unroll": "vectors a thread loads before it uses the first, where it loops",
    "load_hint": "cache hint of global loads",
    "store_hint": "cache hint of global stores",
    "min_blocks": "blocks an SM that __launch_bounds__ asks for; 1 leaves the registers to the "
    "compiler. A search draws 1, 2, 3, 4, 6 or 8. The best kernel is also tried with as many "
    "blocks as the compiler gave it, and with the next fewer and the next more",
    "static_cols": "cols known at compile time, or a run-time argument",
    "rows_per_thread": "rows that the same threads work on at once, all their loads in flight",
    "launches": "one kernel; or two, of which the first combines parts of rows, and the second all "
    "parts, begun before the first has ended where they overlap; or three, for maxima, "
    "exponentials, and sums and quotients, with a scratch matrix of fp32 or fp64. In attention the "
    "three are for scores, their softmax, and values, with a scratch matrix of scores",
    "persistent": "blocks an SM that are launched and stride over the rows; 0: a block for every "
    "tile of them",
    "staging": "rows straight to their threads; or the span of all a block's rows by way of shared "
    "memory, so that accesses are of full width wherever rows start; or async copies of a row, all "
    "in flight at once, into the shared memory that keeps it; or one bulk copy of it, which an "
    "mbarrier counts. Keys and values of attention straight to their threads, or by async copies",
    "sum": "how a thread adds: plain, rounded at each step; or compensated, which keeps beside the "
    "sum what rounding took",
    "cluster": "blocks of a thread-block cluster that share rows, each a part of their elements",
    "exchange": "how a cluster's blocks know that what they found has come: by a barrier of all, "
    "or by an mbarrier in each that counts the bytes of asynchronous stores",
    "row_order": "the rows that the first blocks to run work on: the first, or the last",
    "stages": "rows of a block that strides over them which are in shared memory at once: one is "
    "worked on while bulk copies bring the others; or steps of a warp's keys, which async copies "
    "bring",
    "arrangement": "which vectors of a row that nothing keeps are a thread's: striped, one in "
    "threads_per_row; blocked, vectors side by side; replicated, all of them, for every thread",
    "core": "what multiplies queries with keys and probabilities with values in attention: the "
    "tensor cores (mma) or multiply-adds (fma)",
    "lanes_per_key": "threads of a warp that share a key: by multiply-adds each has a part of the "
    "head dimension; fragments of the tensor cores always have 4",
    "heads_per_thread": "query heads that a block takes at once of those that share a key head; "
    "other blocks read the same keys for the others",
    "splits": "most parts that the keys of a sequence are divided into, each for a block",
    "part_keys": "fewest keys of such a part: of shorter sequences there are fewer parts",
    "probabilities": "16-bit parts that a probability is multiplied as by the tensor cores: two "
    "keep the digits of fp32, one rounds them",
}
"""A sentence for each parameter of Config, in the order of its fields."""


REFUTED: dict[str, tuple[Value, ...]] = {
    "launches": ("three",),
    "persistent": (1, 2, 4, 8),
    "staging": ("bulk",),
    "stages": (2, 3, 4),
    "arrangement": ("blocked", "replicated"),
}
"""Values that a config or a preset may name and a search does not propose: they were never best.

At 256 MiB on an H200 no block that strides over rows came to more than 93.1 % of copy, with bulk
copies or without, beside 97 to 98 % for blocks of one row (studies/DECISIONS.md); three launches
took 1.47 times as long as one (studies/results/journey.md). The arrangements other than
striped read far apart, or the whole row in each thread. A config with such a value is still
emitted, verified and timed like any other.
"""

REFUTED_OF_ATTENTION: dict[str, tuple[Value, ...]] = {
    "launches": REFUTED["launches"],
    "cache": ("shared",),
    "lanes_per_key": (1, 2),
}
"""The same of attention: the first published forms have them, which a search would draw in vain.

Where scores are kept, each query head of a group reads all keys again, and all are read before the
first value. A lane that has a key, or half of one, to itself reads 16 bytes of another row than its
neighbours, and needs registers for so much of the head dimension that few warps are resident.
"""


DRAWN_MIN_BLOCKS = (1, 2, 3, 4, 6, 8)
"""What a search draws and steps to. It tries others next to what the compiler gives by itself
(`explorer.space.candidates.residencies`): most of the 32 ask for what no kernel has."""


def refuted(operator: Operator) -> Values:
    """Return the values of parameters that a search for an operator does not propose."""
    return REFUTED_OF_ATTENTION if operator.over is Extent.CACHE else REFUTED


def searched(dtype: DType, operator: Operator = OPERATORS[DEFAULT_OP]) -> Values:
    """Return the values of each parameter that a search draws for an operator on a type."""
    alone = refuted(operator)
    values = {
        name: tuple(value for value in values if value not in alone.get(name, ())) or values
        for name, values in parameters(dtype, operator).items()
    }
    return {**values, "min_blocks": DRAWN_MIN_BLOCKS}


def parameters(dtype: DType, operator: Operator = OPERATORS[DEFAULT_OP]) -> Values:
    """Return the values of each parameter for an operator on a type, in Config's order.

    Rows of a matrix and caches of keys have different parameters: the others have one value.
    """
    default = Config()
    values = _of_attention(dtype) if operator.over is Extent.CACHE else _of_rows(dtype)
    return {name: values.get(name, (getattr(default, name),)) for name in MEANING}


def _of_attention(dtype: DType) -> Values:
    return {
        "threads": (32, 64, 128, 256),
        "exp": ("exp2f", "ex2.approx"),
        "unroll": (1, 2, 4),
        "load_hint": CHOICES["load_hint"],
        "min_blocks": tuple(range(1, 33)),
        "static_cols": (False,),
        "cache": ("registers", "shared"),
        "launches": CHOICES["launches"],
        "staging": ("direct", "async"),
        "cluster": (1, 2, 4, 8, 16),
        "stages": (1, 2, 3, 4),
        "core": ("mma", "fma") if dtype.is_half else ("fma",),
        "lanes_per_key": (1, 2, 4, 8, 16, 32),
        "heads_per_thread": tuple(range(1, MOST_GROUP + 1)),
        "splits": (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128),
        "part_keys": (64, 128, 256, 512, 1024, 2048, 4096),
        "probabilities": CHOICES["probabilities"],
    }


def _of_rows(dtype: DType) -> Values:
    return {
        "algorithm": CHOICES["algorithm"],
        "threads": (1, *WARPS),
        "threads_per_row": ROW_THREADS,
        "vector_bytes": tuple(b for b in (1, 2, 4, 8, WIDEST_ACCESS) if b >= dtype.itemsize),
        "reduction": CHOICES["reduction"],
        "cache": CHOICES["cache"],
        "cache_holds": CHOICES["cache_holds"],
        "exp": CHOICES["exp"],
        "normalise": CHOICES["normalise"],
        "unroll": (1, 2, 4, 8),
        "load_hint": CHOICES["load_hint"],
        "store_hint": CHOICES["store_hint"],
        "min_blocks": tuple(range(1, 33)),
        "static_cols": (True, False),
        "rows_per_thread": (1, 2, 4, 8),
        "launches": CHOICES["launches"],
        "persistent": (0, 1, 2, 4, 8),
        "staging": CHOICES["staging"],
        "sum": CHOICES["sum"],
        "cluster": (1, 2, 4, 8, 16),
        "exchange": CHOICES["exchange"],
        "row_order": CHOICES["row_order"],
        "stages": (1, 2, 3, 4),
        "arrangement": CHOICES["arrangement"],
    }


# ------------------------------------------------------------------ config


@dataclass(frozen=True, slots=True)
class Config:
    """The parameters of a kernel. `explorer space` prints their values and rules.

    The defaults are a reasonable kernel for rows of a few thousand elements.
    """

    algorithm: str = "three-pass"
    threads: int = 256
    threads_per_row: int = 256
    vector_bytes: int = 16
    reduction: str = "shuffle"
    cache: str = "registers"
    cache_holds: str = "exp"
    exp: str = "exp2f"
    normalise: str = "reciprocal"
    unroll: int = 1
    load_hint: str = "default"
    store_hint: str = "default"
    min_blocks: int = 1
    static_cols: bool = True
    rows_per_thread: int = 1
    launches: str = "one"
    persistent: int = 0
    staging: str = "direct"
    sum: str = "plain"
    cluster: int = 1
    exchange: str = "barrier"
    row_order: str = "ascending"
    stages: int = 1
    arrangement: str = "striped"
    core: str = "none"
    lanes_per_key: int = 4
    heads_per_thread: int = 1
    splits: int = 1
    part_keys: int = 64
    probabilities: str = "two"

    @property
    def rows_per_block(self) -> int:
        """Rows that one block works on at a time."""
        return self.threads // self.threads_per_row * self.rows_per_thread

    @property
    def splits_launches(self) -> bool:
        """Whether two launches each read a row's parts, which are combined in between."""
        return self.launches in ("two", "two-overlapped")

    @property
    def uses_redux(self) -> bool:
        """Whether one instruction reduces the maximum of a warp."""
        return "redux" in self.reduction

    @property
    def first_warp_folds(self) -> bool:
        """Whether only the first warp, of a row or of a cluster's block, combines all values."""
        return self.reduction.endswith("first-warp")

    @property
    def rewrites(self) -> bool:
        """Whether the output is written twice, first with exponentials."""
        return self.cache == "output"

    def as_dict(self) -> dict[str, Any]:
        """Return parameter names to values, in the order of the fields."""
        return {name: getattr(self, name) for name in self.__slots__}  # asdict takes 50 us

    def to_json(self, *, brief: bool = False) -> str:
        """Return one line of JSON; `brief` leaves out the parameters at their defaults."""
        values = self.as_dict()
        if brief:
            default = Config()
            values = {k: v for k, v in values.items() if v != getattr(default, k)}
        return json.dumps(values, separators=(",", ":"))

    def check_known(self) -> None:
        """Raise InvalidInput for a value with which no kernel of any problem can be emitted."""
        for name, value in self.as_dict().items():
            fault = _unknown(name, value)
            if fault:
                raise InvalidInput(f"config parameter '{name}' is {value!r}; it must be {fault}")
        if self.threads > 1 and self.threads % 32:
            raise InvalidInput(
                f"config parameter 'threads' is {self.threads}; it must be 1 or a multiple of 32"
            )
        if self.core == "none" and self.threads % self.threads_per_row:
            raise InvalidInput(
                f"config parameter 'threads_per_row' is {self.threads_per_row}; it must divide "
                f"threads, which is {self.threads}"
            )

    @classmethod
    def from_dict(cls, values: Any) -> "Config":
        """Read what `as_dict` wrote; parameters left out take their default.

        Raises InvalidInput for a parameter, or a value of one, that is not known.
        """
        known = {field.name: type(field.default) for field in fields(cls)}
        for name, value in read_object(values, "config").items():
            if name not in known:
                raise InvalidInput(
                    f"config parameter {shown(name)} is not known; there are {', '.join(known)}"
                )
            if type(value) is not known[name]:
                raise InvalidInput(
                    f"config parameter '{name}' is {shown(value)}; it must be of type "
                    f"{known[name].__name__}"
                )
            fault = _unknown(name, value)
            if fault:
                raise InvalidInput(
                    f"config parameter '{name}' is {shown(value)}; it must be {fault}"
                )
        return cls(**values)

    @classmethod
    def from_json(cls, text: str) -> "Config":
        """Read a config as `to_json` writes it; raises InvalidInput."""
        return cls.from_dict(config_values(text))

    def differences(self, other: "Config") -> dict[str, tuple[Any, Any]]:
        """Return the parameters in which two configs differ: name to (own value, other's)."""
        mine, theirs = self.as_dict(), other.as_dict()
        return {k: (mine[k], theirs[k]) for k in mine if mine[k] != theirs[k]}


def config_values(text: str) -> dict[str, Any]:
    """Read the JSON of a config, unchecked; raises InvalidInput where it is no object."""
    try:
        return read_object(parse_json(text, "config"), "config")
    except InvalidInput as error:
        raise InvalidInput(f'{error}; write it as {{"threads":256}}') from None


def _unknown(name: str, value: Any) -> str:
    """Return what an invalid parameter must be, in words; empty if the value is valid."""
    if name in CHOICES:
        return "" if value in CHOICES[name] else f"one of {', '.join(CHOICES[name])}"
    if name not in RANGES:
        return ""
    least, greatest = RANGES[name]
    power = name in POWERS_OF_TWO
    if least <= value <= greatest and not (power and value & (value - 1)):
        return ""
    return f"{'a power of two ' if power else ''}from {least} to {greatest}"


# ------------------------------------------------------------------ words


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
    "core": {"none": "no products", "mma": "tensor cores", "fma": "multiply-adds"}.__getitem__,
    "lanes_per_key": lambda value: f"{value} lane{'' if value == 1 else 's'} a key",
    "heads_per_thread": lambda value: f"{value} head{'' if value == 1 else 's'} at once",
    "splits": lambda value: f"{value} part{'' if value == 1 else 's'} of the keys",
    "part_keys": "at least {} keys a part".format,
    "probabilities": lambda value: f"probabilities in {value} part{'' if value == 'one' else 's'}",
    "rows_per_thread": lambda value: f"{value} row{'' if value == 1 else 's'} a thread",
}

_STRUCTURE = ("algorithm", "threads", "threads_per_row", "vector_bytes", "reduction", "cache")
"""The parameters that distinguish kernels at a glance; others are named if not at their default."""

_STRUCTURE_OF_ATTENTION = ("threads", "core")
"""The same of kernels of attention, which have no rows to reduce."""


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
    structure = _STRUCTURE if config.core == "none" else _STRUCTURE_OF_ATTENTION
    names = (n for n in values if n in structure or values[n] != getattr(default, n))
    return words(config, names)


def difference_words(config: Config, best: Config, width: int) -> str:
    """Return the values of `config` that differ from those of `best`, in two lines of `width`.

    The parameters come in their order, which begins with the structure. `+3` at the end counts
    those for which there is no room.
    """
    names = list(config.differences(best))
    values = [{**_WORDS, **_SHORT}[name](getattr(config, name)) for name in names]
    for kept in range(len(values), 0, -1):
        left_out = [f"+{len(values) - kept}"] if kept < len(values) else []
        lines = _lines([*values[:kept], *left_out], width)
        if len(lines) <= CELL_LINES:
            return "\n".join(lines)
    return f"+{len(values)}" if values else ""


def change_words(before: Config, after: Config) -> str:
    """Return the changes from one config to the next: `no cache → registers, expf → __expf`."""
    names = list(after.differences(before))
    changes = []
    if before.core == "none" and not _SPLIT.isdisjoint(names):
        names = [name for name in names if name not in _SPLIT]
        changes.append(f"{_split_words(before)} → {_split_words(after)}")
    changes += [f"{words(before, [name])} → {words(after, [name])}" for name in names]
    return ", ".join(changes)


_SPLIT = {"threads", "threads_per_row"}


def _split_words(config: Config) -> str:
    """Return the threads of a block and of a row, as one number if they are equal."""
    each, threads = config.threads_per_row, config.threads
    told = f"{each} thread{'' if each == 1 else 's'} a row"
    return told if threads == each else f"{told} in blocks of {threads}"


def _lines(values: Sequence[str], width: int) -> list[str]:
    """Return values joined by commas, in lines that break only after commas."""
    lines: list[str] = []
    for word, end in zip(values, [","] * (len(values) - 1) + [""], strict=True):
        if lines and len(f"{lines[-1]} {word}{end}") <= width:
            lines[-1] += f" {word}{end}"
        else:
            lines.append(f"{word}{end}")
    return lines
