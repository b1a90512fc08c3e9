"""A problem as a user names it, by options or by keywords: rows may be left out."""

import re
import shlex
from collections.abc import Callable, Iterable, Mapping, Sequence
from difflib import get_close_matches
from itertools import product
from math import isfinite, lcm, nan, prod
from typing import Any, TypedDict

from explorer.model.element import USUAL_TYPE, DType
from explorer.model.errors import InvalidInput
from explorer.model.problem import (
    MAX_ROWS,
    OPTIONS,
    USUAL,
    WHOLE_FIELDS,
    Mask,
    Problem,
    check_extent,
    default_rows,
    read_field,
)
from explorer.ops import DEFAULT_OP, OPERATORS, Extent
from explorer.system.plain_data import shown, whole_of

# ------------------------------------------------------------------ the problem asked for


class ProblemQuery:
    """What is given of a `Problem`, with `rows` None for as many as make 256 MiB of traffic.

    `more` are other fields of it; a value that is the usual one says nothing. Under a causal mask
    without `mask_rows` the mask is square, as of attention's scores, where rows are whole squares.
    """

    def __init__(
        self, cols: int, dtype: DType = USUAL_TYPE, rows: int | None = None, **more: Any
    ) -> None:
        self.cols = cols
        self.dtype = dtype
        self.rows = rows
        given = {"dtype": dtype, **more}
        unknown = sorted(given.keys() - USUAL.keys())
        if unknown:
            raise TypeError(f"a problem has no field {unknown[0]}")
        self._said = {
            name: given[name]
            for name in USUAL
            if given.get(name) is not None and given[name] != USUAL[name]
        }

    @classmethod
    def of(cls, problem: Problem) -> "ProblemQuery":
        """Return what a user would ask for to get `problem`."""
        given = problem.as_dict().keys() - {"rows", "cols", "dtype"}
        more = {name: getattr(problem, name) for name in given}
        return cls(problem.cols, problem.dtype, problem.rows, **more)

    def problem(self) -> Problem:
        """Return the problem; raises InvalidInput where what was asked does not go together."""
        return self.of_rows(self._usual_rows() if self.rows is None else self.rows)

    def of_rows(self, rows: int) -> Problem:
        """Return the problem with so many rows, whatever was asked; raises InvalidInput."""
        square = self._is_square and self.cols > 0 and rows % self.cols == 0
        mask_rows = {"mask_rows": self.cols} if square else {}
        return Problem(rows, self.cols, **{**self._said, **mask_rows})

    def with_dtype(self, dtype: DType) -> "ProblemQuery":
        """Return the same problem in another element type."""
        more = {name: value for name, value in self._said.items() if name != "dtype"}
        return ProblemQuery(self.cols, dtype, self.rows, **more)

    def matches(self, problem: Problem) -> bool:
        """Whether `problem` is what was asked, or one such where rows were left out."""
        if self.cols != problem.cols:
            return False
        try:
            return self.of_rows(problem.rows if self.rows is None else self.rows) == problem
        except InvalidInput:
            return False

    def without_rows(self) -> "ProblemQuery":
        """Return the same problem, with rows left out."""
        return ProblemQuery(self.cols, **self._said)

    @property
    def options(self) -> list[str]:
        """The words of a command line that ask for it; what is as usual is left out."""
        words = ["--cols", str(self.cols)]
        words += [] if self.rows is None else ["--rows", str(self.rows)]
        for name, value in {"dtype": self.dtype, **self._said}.items():
            words.append(option_of(name))
            if not isinstance(value, bool):
                words.append(repr(value) if isinstance(value, float) else str(value))
        return words

    @property
    def without_search(self) -> str:
        """Return the command that writes a kernel where nothing was searched or recorded."""
        return command("emit", "heuristic", *self.options)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ProblemQuery) and self.options == other.options

    def __hash__(self) -> int:
        return hash(tuple(self.options))

    def __str__(self) -> str:
        problem = self.problem()
        if self.rows is not None:
            return str(problem)
        return str(problem).replace(f"{problem.rows}x{self.cols}", f"{self.cols} cols")

    @property
    def _is_square(self) -> bool:
        """Whether a causal mask is to be square where it can."""
        return self._said.get("mask") is Mask.CAUSAL and "mask_rows" not in self._said

    def _usual_rows(self) -> int:
        """Rows for 256 MiB of traffic, whole squares of a mask and whole inner axes."""
        period = self.cols if self._is_square else self._said.get("mask_rows", 1)
        op = self._said.get("op", DEFAULT_OP)
        dim, group, heads = (
            self._said.get(name, OPTIONS[name]) for name in ("head_dim", "group", "key_heads")
        )
        step = lcm(max(1, period), self._said.get("inner", 1))
        if OPERATORS[op].over is Extent.CACHE:
            step = group * heads
        rows = default_rows(self.cols, self.dtype, op, dim, group)
        return max(1, rows // step) * step


def rows_notice(problem: Problem, rows: int | None) -> list[str]:
    """Return what to tell a user who left rows out."""
    if rows is not None:
        return []
    traffic = problem.bytes / 2**20
    shown_mib = f"{traffic:.0f}" if traffic >= 10 else f"{traffic:.3g}"
    return [f"--rows not given: using {problem.rows} ({shown_mib} MiB of traffic)"]


# ------------------------------------------------------------------ words of a command line


def command(*words: str) -> str:
    """Return a command of `explorer` as a shell reads it."""
    return shlex.join(["explorer", *words])


def command_of(verb: str, what: str, problem: Problem, end: str = " ") -> str:
    """Return `explorer VERB WHAT` for a problem, with `end` before the problem's options."""
    return f"{command(verb, what)}{end}{shlex.join(ProblemQuery.of(problem).options)}"


def option_of(name: str) -> str:
    """Return the option by which a user says the field `name`."""
    return f"--{name.replace('_', '-')}"


# ------------------------------------------------------------------ numbers as people write them


_WHOLE = re.compile(r"[+-]?[0-9]{1,30}")
_NUMBER = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)(e[+-]?[0-9]+)?", re.IGNORECASE)


def whole_number(name: str, least: int, most: int = 2**31 - 1) -> Callable[[str | int], int]:
    """Return a reader of whole numbers from `least` to `most`.

    It raises InvalidInput, which calls the number `name`.
    """

    def read(text: str | int) -> int:
        text = str(text)
        number = int(text) if _WHOLE.fullmatch(text.strip()) else None
        if number is None or not least <= number <= most:
            raise InvalidInput(
                f"{name} is {text!r}; it must be a whole number from {least} to {most}"
            )
        return number

    return read


def whole(name: str, value: Any, least: int = -(2**31), most: int = 2**31 - 1) -> int:
    """Return a whole number of a program, also one of NumPy's. Raises InvalidInput."""
    number = whole_of(value)
    if number is None or not least <= number <= most:
        raise InvalidInput(
            f"{name} is {shown(value)}; it must be a whole number from {least} to {most}"
        )
    return number


def extents(name: str, most: int) -> Callable[[str], list[int]]:
    """Return a reader of extents such as 8,3,224,224, which raises InvalidInput naming `name`."""
    extent = whole_number(name, 1, most)

    def read(text: str) -> list[int]:
        parts = [part.strip() for part in text.split(",")]
        if len(parts) == 1:
            return [extent(text)]
        try:
            return [extent(part) for part in parts]
        except InvalidInput:
            are_whole = all(_WHOLE.fullmatch(part) for part in parts)
            limits = f"from 1 to {most} " if are_whole else ""
            raise InvalidInput(
                f"{name} is {text!r}; write whole numbers {limits}with commas, such as 8,3,4096"
            ) from None

    return read


MOST_AXES = 64
"""As NumPy and PyTorch allow."""


def from_text(name: str, text: str) -> Any:
    """Return the value that a word of a command line says. Raises InvalidInput.

    `name` is a field of a problem, or `shape` or `axis`. An empty word for a flag is True.
    """
    if name in WHOLE_FIELDS:
        return whole_number(name, 1, WHOLE_FIELDS[name])(text)
    if name == "shape":
        return extents(name, MAX_ROWS)(text)
    if name == "axis":
        return whole_number(name, -MOST_AXES, MOST_AXES - 1)(text)
    if name == "ignore_index":
        return whole_number(name, -(2**63), 2**63 - 1)(text)
    if name in ("scale", "label_smoothing", "z_loss", "softcap"):
        value = float(text) if _NUMBER.fullmatch(str(text).strip()) else nan
        if not isfinite(value):
            raise InvalidInput(f"{name} is {text!r}; it must be a finite number such as 0.125")
        return value
    if name == "in_place":
        return read_field(name, {"": True, "True": True, "False": False}.get(text, text))
    return read_field(name, text)


# ------------------------------------------------------------------ a problem by words or keywords


class ProblemKeywords(TypedDict, total=False):
    """The keywords that say a problem; those left out, and None, are as usual.

    They are the options of the command line, with underscores. `shape`, such as (8, 3, 224, 224),
    stands for rows, cols and inner, and `axis` (-1) is the axis of it that the op runs over.
    """

    cols: int
    """Elements of a row."""
    rows: int | None
    """Rows of the matrix; left out: as many as make 256 MiB of traffic. Where `best` or a trial is
    asked for, rows left out mean whichever were searched last with these columns."""
    dtype: Any
    """f32, f16, bf16 or f64; also float16, half and so on, torch.float16 and numpy.float16."""
    op: str
    """An operator's name, such as softmax or logsumexp."""
    out_dtype: Any
    """Element type of the output; left out: the input's."""
    scale: float | None
    """What kernels multiply an input with, at run time: 1 / temperature; left out: they do not."""
    mask: str
    """none, causal, lengths or additive."""
    mask_rows: int | None
    """Rows after which a causal or additive mask repeats."""
    inner: int
    """Elements between neighbours of a row: the array is (rows / inner, cols, inner)."""
    input_stride: int | None
    """Elements from the start of an input row to the next."""
    output_stride: int | None
    """Elements from the start of an output row to the next."""
    in_place: bool
    """Whether the output is written over the input."""
    shape: Sequence[int] | None
    """Of an array of any number of axes."""
    axis: int | None
    """Of that array; negative counts from the last."""
    ids_per_row: int | None
    """Ids of each row, for an operator that reads some; left out: one."""
    ids_dtype: Any
    """Their type, int64 or int32; results that are columns have it too."""
    ids_stride: int | None
    """Ids from the first of a row to the first of the next."""
    also: str | None
    """Results that are computed on request, such as lse,entropy."""
    ignore_index: int | None
    """The id of rows that do not count, for an operator that ignores some; left out: -100."""
    label_smoothing: float | None
    """The part of each target that is spread over all columns, for an operator that takes it."""
    z_loss: float | None
    """The factor of the squared log-sum-exp in a loss, for an operator whose gradient has it."""
    softcap: float | None
    """Logits count as softcap * tanh(scale * x / softcap), for an operator of losses."""
    head_dim: int | None
    """Elements of a query, a key and a value, of attention; left out: 128."""
    group: int | None
    """Query heads, which are rows, that share a key head; left out: 1."""
    key_heads: int | None
    """Key heads of a sequence; left out: 1."""
    layout: str | None
    """The order of a cache's axes, HND or NHD; left out: HND."""


def query_from_words(words: list[str]) -> ProblemQuery | None:
    """Read what `ProblemQuery.options` writes; None where it names no columns.

    Raises InvalidInput for a word that is none of its options, for one that stands twice, and for a
    value.
    """
    known = {option_of(name): name for name in ProblemKeywords.__annotations__}
    values: dict[str, Any] = {}
    rest = iter(words)
    for word in rest:
        name = known.get(word)
        if name is None:
            raise InvalidInput(f"{shown(word)} is no option of a problem: take it out")
        if name in values:
            raise InvalidInput(f"{word} stands twice: take one of them out")
        values[name] = from_text(name, "" if name == "in_place" else next(rest, ""))
    return query_from_keywords(values)


def query_from_keywords(keywords: Mapping[str, Any]) -> ProblemQuery | None:
    """Read a problem from the keywords of a call; None where they name no columns.

    They are those of `ProblemKeywords`; None says nothing. Raises InvalidInput for a value,
    TypeError for a name.
    """
    given = {name: value for name, value in keywords.items() if value is not None}
    unknown = sorted(given.keys() - ProblemKeywords.__annotations__.keys())
    if unknown:
        names = ", ".join(ProblemKeywords.__annotations__)
        raise TypeError(f"a problem has no keyword {unknown[0]!r}; it has {names}")
    shape, axis = given.pop("shape", None), given.pop("axis", None)
    fields = {name: read_field(name, value) for name, value in given.items()}
    for name in WHOLE_FIELDS.keys() & fields.keys():
        check_extent(name, fields[name], WHOLE_FIELDS[name])
    if shape is not None:
        if OPERATORS[op := fields.get("op", DEFAULT_OP)].over is Extent.CACHE:
            raise InvalidInput(
                f"shape is of an array, and {op} reads a cache: give cols, the keys of a sequence, "
                "and rows, group, key_heads and head_dim"
            )
        taken = [name for name in ("cols", "rows", "inner") if name in fields]
        if taken:
            raise InvalidInput(f"shape says rows, cols and inner; leave {taken[0]} out")
        fields |= _array_extents(shape, -1 if axis is None else whole("axis", axis))
    elif axis is not None:
        raise InvalidInput(f"axis is {shown(axis)}; it is an axis of an array: give its shape")
    if "cols" not in fields:
        return None
    query = ProblemQuery(**fields)
    query.problem()  # what does not go together is reported before anything else
    return query


def _array_extents(shape: Any, axis: int) -> dict[str, int]:
    """Return rows, cols and inner of an op over one axis of an array: (outer, axis, inner)."""
    if isinstance(shape, str) or not isinstance(shape, Sequence):
        raise InvalidInput(f"shape is {shown(shape)}; it must be a sequence such as (8, 3, 224)")
    extents = [whole("shape", extent, 1, MAX_ROWS) for extent in shape]
    axes = len(extents)
    if axes > MOST_AXES:
        raise InvalidInput(f"shape has {axes} axes; it may have {MOST_AXES} at most")
    if not -axes <= axis < axes:
        raise InvalidInput(f"axis is {axis}; an array of {axes} axes has {-axes} to {axes - 1}")
    axis %= axes
    inner = prod(extents[axis + 1 :])
    return {"cols": extents[axis], "rows": prod(extents[:axis]) * inner, "inner": inner}


def needed(query: ProblemQuery | None) -> ProblemQuery:
    """Return the problem asked for; raises InvalidInput where none is."""
    if query is None:
        raise InvalidInput(
            "cols is missing; give the number of columns, for example --cols 4096 (in a program "
            "cols=4096), or an explorer.Problem"
        )
    return query


# ------------------------------------------------------------------ the problem of a call


def query_of(
    function: Callable[..., Any],
    problem: Problem | ProblemQuery | None,
    keywords: Mapping[str, Any],
) -> ProblemQuery | None:
    """Read what a call of a function is about; None where it does not say.

    Raises InvalidInput, and TypeError for a keyword that is nearly one of the function's.
    """
    for name in keywords.keys() - ProblemKeywords.__annotations__.keys():
        own = function.__annotations__.keys() - {"return", "keywords"}
        near = get_close_matches(name, [*own, *ProblemKeywords.__annotations__], 1)
        if near:
            raise TypeError(f"{function.__name__} has no keyword {name!r}; did you mean {near[0]}?")
    if problem is None:
        return query_from_keywords(keywords)
    if not isinstance(problem, Problem | ProblemQuery):
        raise InvalidInput(f"problem is {shown(problem)}; give an explorer.Problem, or cols=4096")
    if keywords:
        raise InvalidInput(f"the problem is said twice: leave {next(iter(keywords))} out")
    return ProblemQuery.of(problem) if isinstance(problem, Problem) else problem


_LISTED = ("op", "dtype", "cols", "rows")
"""Keywords of which several may be given to what takes several problems."""


def several_of(
    function: Callable[..., Any], problems: Any, keywords: Mapping[str, Any]
) -> list[Problem]:
    """Read the problems that a call of a function is about: one, several, or those of keywords.

    Of `cols`, `rows`, `dtype` and `op` each may be a list: then all combinations are meant. Raises
    as `query_of`, and InvalidInput where there is none.
    """
    if problems is None:
        lists = {name: keywords[name] for name in _LISTED if isinstance(keywords.get(name), list)}
        combined = (dict(zip(lists, values, strict=True)) for values in product(*lists.values()))
        wanted = [needed(query_of(function, None, {**keywords, **one})) for one in combined]
        if not wanted:
            raise InvalidInput(f"{' or '.join(lists)} is empty; give one value at least")
        return [query.problem() for query in wanted]
    is_several = isinstance(problems, Iterable) and not isinstance(problems, str)
    wanted = list(problems) if is_several else [problems]
    if not wanted:
        raise InvalidInput("problems is empty; give one explorer.Problem at least")
    return [needed(query_of(function, problem, keywords)).problem() for problem in wanted]
