"""The problem or problems that a command is about, and the variant of one that WHAT names."""

import inspect
import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from functools import partial
from pathlib import Path
from typing import Annotated, Any

from explorer.cli import completions
from explorer.cli.options import Command, option, with_options, with_signature, words
from explorer.model.element import DType, IndexType
from explorer.model.errors import InvalidInput
from explorer.model.problem import NAMED_FIELDS, USUAL, Mask, Problem
from explorer.model.query import (
    from_text,
    needed,
    option_of,
    query_from_keywords,
    whole_number,
)
from explorer.ops import Op

# ------------------------------------------------------------------ problem


_HELP = {
    "cols": ("C", "Columns of the matrix: elements of a row."),
    "rows": ("R", "Rows of the matrix; default: as many as make 256 MiB of traffic."),
    "dtype": ("DTYPE", f"Element type: {', '.join(DType)}; also float32, fp16, half."),
    "op": ("OP", f"{', '.join(Op)}."),
    "out_dtype": (
        "DTYPE",
        "Element type of the output; default: the input's, but f32 (of f64 f64) where a "
        "row has fewer results than columns.",
    ),
    "scale": ("S", "Multiply x with S, 1 / temperature; kernels take it at run time."),
    "mask": ("MASK", f"{', '.join(Mask)}."),
    "mask_rows": (
        "R",
        "Rows after which a causal or additive mask repeats; default: cols (causal, where they "
        "divide rows), 1 (additive).",
    ),
    "inner": ("N", "Elements between neighbours of a row: the array is (rows / N, cols, N)."),
    "input_stride": ("N", "Elements from the start of an input row to the next; default: cols."),
    "output_stride": (
        "N",
        "Elements from the start of an output row to the next; default: those of one.",
    ),
    "in_place": ("", "The output is written over the input."),
    "shape": ("N,N,N", "Instead of --cols and --rows: the shape of an array, as 8,3,224,224."),
    "axis": ("A", "With --shape: the axis that the op runs over; negative counts from the last."),
    "ids_per_row": ("K", "Ids of each row, for an op that reads columns of it; default: 1."),
    "ids_dtype": ("DTYPE", f"Type of the ids: {', '.join(IndexType)}; default: int64."),
    "ids_stride": ("N", "Ids from the first of a row to the first of the next; default: K."),
    "also": (
        "NAME,...",
        "Results beside the output, for an op that has some, such as lse,entropy.",
    ),
    "ignore_index": ("I", "The id of rows that do not count, of cross_entropy; default: -100."),
    "label_smoothing": ("E", "The part of a target spread over all columns, in a loss's gradient."),
    "z_loss": ("Z", "The factor of the squared log-sum-exp of a row, in a loss's gradient."),
    "softcap": ("C", "Logits x of a loss count as C tanh(x / C), once scaled; 0 is no cap."),
    "head_dim": ("D", "Elements of a query, a key and a value, of attention; default: 128."),
    "group": ("G", "Query heads (rows) that share a key head; default: 1."),
    "key_heads": ("H", "Key heads of a sequence; default: 1."),
    "layout": ("LAYOUT", "The order of a cache's axes: HND or NHD; default: HND."),
}
"""The options of a problem in the order of help, with what stands for the value, and their help."""

_COMPLETED: dict[str, completions.Completion] = {"also": completions.results}
"""How the values of options are completed that are no single names."""

_USUAL = {
    **USUAL,
    **dict.fromkeys(("mask_rows", "input_stride", "output_stride", "ids_per_row", "ids_stride")),
    "also": None,
    "shape": None,
    "axis": -1,
}
"""The values where an option is left out."""


def _declared(name: str, remark: str = "") -> Any:
    """Return what a field of a problem is on the command line, as `option` does."""
    metavar, help_text = _HELP[name]
    if remark:
        help_text = f"{help_text.removesuffix('.')} ({remark})."
    names = NAMED_FIELDS.get(name)
    return option(
        f"{option_of(name)} {metavar}".rstrip(),
        help_text,
        partial(from_text, name) if metavar else None,
        complete=completions.among(*names) if names else _COMPLETED.get(name),
    )


def _option(name: str, remark: str = "") -> inspect.Parameter:
    """Return an option as a parameter of a command; a default that says nothing is not shown."""
    is_flag = name == "in_place"
    kind: Any = bool if is_flag else str if _USUAL[name] is not None else str | None
    annotation = Annotated[kind, _declared(name, remark)]
    place = inspect.Parameter.KEYWORD_ONLY
    return inspect.Parameter(name, place, default=_USUAL[name], annotation=annotation)


def with_problem(command: Command) -> Command:
    """As `with_options`, with the options of a problem in the place of the parameter `query`.

    A command with a parameter `rows` gets what was given for it, also where cols were not.
    """
    return _with_problem(command, "needed, unless --shape says it")


def with_problem_unless(other: str) -> Callable[[Command], Command]:
    """As `with_problem`, for a command that needs no columns where `other` is so."""
    return partial(_with_problem, needed_when=f"needed, unless --shape says it or {other}")


def with_any_problem(command: Command) -> Command:
    """As `with_problem`, for a command that may do without columns."""
    return _with_problem(command, "")


def _with_problem(command: Command, needed_when: str) -> Command:
    command = with_options(command)
    own = inspect.signature(command).parameters

    def run(**values: Any) -> None:
        chosen = {name: values.pop(name) for name in _HELP}
        if "rows" in own:
            values["rows"] = chosen["rows"]
        given = {name: value for name, value in chosen.items() if value != _USUAL[name]}
        command(query=query_from_keywords(given), **values)

    parameters = [_option(name, needed_when * (name == "cols")) for name in _HELP]
    parameters += [one for name, one in own.items() if name not in ("query", *_HELP)]
    return with_signature(command, run, parameters)


# ------------------------------------------------------------------ lists of problems


MOST_PROBLEMS = 10_000
"""Of one command: at three seconds each it takes eight hours."""

MOST_DRAWN_ELEMENTS = 2**28
"""Of a matrix that is drawn: 1 GiB in f32. More rows are not drawn, so that what launches rotate
over fits a GPU of 80 GB."""

Dtypes = Annotated[
    str,
    option(
        "--dtype DTYPE,...", f"Some of {', '.join(DType)}.", complete=completions.several(*DType)
    ),
]
Draw = Annotated[
    int | None,
    option(
        "--draw N",
        "Instead of the sizes named, N drawn by --seed between the least and the greatest of "
        "--cols and of --rows, log-uniformly.",
        whole_number("draw", 1, MOST_PROBLEMS),
    ),
]


@dataclass(frozen=True, slots=True)
class ListedOptions:
    """What all problems of a list share, beside their sizes, types and operators."""

    also: Annotated[str | None, _declared("also")] = None
    ids_per_row: Annotated[int | None, _declared("ids_per_row")] = None
    head_dim: Annotated[int | None, _declared("head_dim")] = None
    group: Annotated[int | None, _declared("group")] = None
    key_heads: Annotated[int | None, _declared("key_heads")] = None
    layout: Annotated[str | None, _declared("layout")] = None

    @property
    def given(self) -> dict[str, Any]:
        """The fields of a problem that were given."""
        values = {one.name: getattr(self, one.name) for one in fields(self)}
        return {name: value for name, value in values.items() if value is not None}


Shapes = Annotated[
    Path | None,
    option(
        "--shapes FILE.csv",
        "A file of problems, such as explorer.log_shapes writes, instead of --cols.",
    ),
]


def listed(
    sizes: Sequence[tuple[int, int | None]], dtypes: str, ops: Sequence[Op], of: ListedOptions
) -> list[Problem]:
    """Return the problems of (cols, rows) in each op and each type. Raises InvalidInput."""
    types = [DType.parse(name) for name in words("dtype", dtypes)]
    return [
        needed(
            query_from_keywords({"cols": c, "rows": r, "dtype": t, "op": op, **of.given})
        ).problem()
        for op in ops
        for t in types
        for c, r in sizes
    ]


def of_file(shapes: Path, of: ListedOptions, **others: object) -> list[Problem]:
    """Return the problems of a file. Raises InvalidInput, also for options that say others."""
    given = [name for name, value in {**others, **of.given}.items() if value is not None]
    if given:
        drop = " and ".join(map(option_of, given))
        raise InvalidInput(f"--shapes names whole problems; drop {drop}")
    from explorer.runtime.shapes import read_shapes

    return read_shapes(shapes)


def numbers_of(name: str, text: str, most: int) -> list[int]:
    """Return the numbers of `8,64,100`, `64:4096:log` or `64:4096:log:20`, each once.

    Raises InvalidInput, which calls them `name`, for other text and for a number above `most`.
    """
    whole = whole_number(name, 1, most)
    found: list[int] = []
    for part in words(name, text):
        first, *rest = part.split(":")
        if not rest:
            found.append(whole(first))
            continue
        if len(rest) not in (2, 3) or rest[1] != "log":
            raise InvalidInput(
                f"{name} is {part!r}; write a range as 64:4096:log or 64:4096:log:20"
            )
        low, high = whole(first), whole(rest[0])
        if low > high:
            raise InvalidInput(f"{name} is {part!r}; the first number of a range is its least")
        doublings = math.log2(high / low)
        steps = (
            whole_number(f"steps of {name}", 2, MOST_PROBLEMS)(rest[2]) - 1
            if rest[2:]
            else int(doublings)
        )
        ratio = doublings / steps if rest[2:] else 1.0
        found += [round(low * 2 ** (ratio * step)) for step in range(steps + 1)]
    return list(dict.fromkeys(found))


def drawn(
    cols: Sequence[int], rows: Sequence[int], number: int, seed: int
) -> list[tuple[int, int | None]]:
    """Return (cols, rows) drawn between the least and the greatest of both, log-uniformly.

    Without any `rows` each is None. Rows are at most what makes MOST_DRAWN_ELEMENTS.
    """
    rng = random.Random(seed)

    def between(low: int, high: int) -> int:
        return round(math.exp(rng.uniform(math.log(low), math.log(high))))

    found: list[tuple[int, int | None]] = []
    for _ in range(number):
        width = between(min(cols), max(cols))
        if not rows:
            found.append((width, None))
            continue
        most = max(min(rows), min(max(rows), MOST_DRAWN_ELEMENTS // width))
        found.append((width, between(min(rows), most)))
    return found
