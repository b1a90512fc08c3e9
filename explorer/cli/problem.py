"""The problem or problems that a command is about, and the variant of one that WHAT names."""

import inspect
import math
import random
from collections.abc import Callable, Sequence
from enum import StrEnum
from functools import partial, wraps
from typing import TYPE_CHECKING, Annotated, Any

import typer

from explorer.cli import completions
from explorer.cli.help import DETAILS, PROBLEM
from explorer.cli.options import extents, number, whole_number, words
from explorer.cli.output import say
from explorer.model.asked import MOST_AXES, AskedProblem, array_extents, option_of
from explorer.model.errors import InvalidInput
from explorer.model.problem import MAX_ROWS, OPTIONS, USUAL
from explorer.tuning.objective import Goal

# ------------------------------------------------------------------ problem


Options = dict[str, tuple[Any, Any]]
"""Parameter names to (annotation, default)."""

_FIRST = ("cols", "rows", "dtype", "op")
"""The options of a problem that come first in help; the others come last."""


def _option(name: str, kind: Any, default: Any, help_text: str, **more: Any) -> tuple[Any, Any]:
    """The annotation and the default of an option; a default that says nothing is not shown."""
    more |= {} if default is not None or kind is bool else {"show_default": False}
    more |= {"rich_help_panel": PROBLEM if name in _FIRST else DETAILS}
    return Annotated[kind, typer.Option(option_of(name), help=help_text, **more)], default


def _of_field(name: str, remark: str = "") -> tuple[Any, Any]:
    """The option of a field; a stride or a number of mask rows that is 0 counts as left out."""
    option, usual = OPTIONS[name], USUAL[name] or None
    if option.kind is bool:
        return _option(name, bool, False, option.help)
    told = f"{option.help.removesuffix('.')} ({remark})." if remark else option.help
    parser: Any = getattr(option.kind, "parse", None)
    if option.kind is int:
        parser = whole_number(name, 1, option.most)
    elif option.kind is float:
        parser = number(name)
    kind = option.kind if usual is not None else option.kind | None
    more: dict[str, Any] = {"metavar": option.metavar, "parser": parser}
    if issubclass(option.kind, StrEnum):
        more["autocompletion"] = completions.among(*option.kind)
    return _option(name, kind, usual, told, **more)


_SHAPE = _option(
    "shape",
    str | None,
    None,
    "Instead of --cols and --rows: the shape of an array, as 8,3,224,224.",
    metavar="N,N,N",
)
_AXIS = _option(
    "axis",
    int,
    -1,
    "With --shape: the axis that the op runs over; negative counts from the last.",
    metavar="A",
    parser=whole_number("axis", -MOST_AXES, MOST_AXES - 1),
)

_OPTIONS: Options = {
    **{name: _of_field(name) for name in ("cols", "rows", *OPTIONS)},
    "shape": _SHAPE,
    "axis": _AXIS,
}

Command = Callable[..., None]


def with_problem(command: Command) -> Command:
    """Give a command the options of a problem, in the place of its parameter `asked`.

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
    own = inspect.signature(command, eval_str=True).parameters

    @wraps(command)
    def run(**values: Any) -> None:
        chosen = {name: values.pop(name) for name in _OPTIONS}
        if "rows" in own:
            values["rows"] = chosen["rows"]
        command(asked=_asked(chosen), **values)

    parameters = []
    for parameter in own.values():
        if parameter.name == "asked":
            options = _OPTIONS | {"cols": _of_field("cols", needed_when)}
            parameters += [_keyword(name, *option) for name, option in options.items()]
        elif parameter.name not in _OPTIONS:
            parameters.append(parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY))
    run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    run.__annotations__ = {p.name: p.annotation for p in parameters}
    return run


def _keyword(name: str, annotation: Any, default: Any) -> inspect.Parameter:
    kind = inspect.Parameter.KEYWORD_ONLY
    return inspect.Parameter(name, kind, default=default, annotation=annotation)


def _asked(chosen: dict[str, Any]) -> AskedProblem | None:
    """What the options ask for; None where they name no columns. Raises InvalidInput."""
    shape, axis = chosen.pop("shape"), chosen.pop("axis")
    if shape is None and axis != -1:
        raise InvalidInput(
            f"axis is {axis}; it is an axis of an array: give --shape, or --inner with --cols"
        )
    if shape is not None:
        if chosen["cols"] or chosen["rows"] or chosen["inner"] > 1:
            raise InvalidInput(
                "--shape says rows, cols and inner; leave --rows, --cols and --inner out"
            )
        chosen |= array_extents(extents("shape", MAX_ROWS)(shape), axis)
    if chosen["cols"] is None:
        return None
    asked = AskedProblem(**chosen)
    asked.problem()  # what does not go together is said before anything else
    return asked


def needed(asked: AskedProblem | None) -> AskedProblem:
    """The problem asked for; raises InvalidInput where none is."""
    if asked is None:
        raise InvalidInput("--cols is missing; give the number of columns, for example --cols 4096")
    return asked


# ------------------------------------------------------------------ lists of problems


MOST_PROBLEMS = 10_000
"""Of one command: at three seconds each it takes eight hours."""

MOST_DRAWN_ELEMENTS = 2**28
"""Of a matrix that is drawn: 1 GiB in f32. More rows are not drawn, so that what launches rotate
over fits a GPU of 80 GB."""


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


# ------------------------------------------------------------------ config


if TYPE_CHECKING:
    from explorer.api import Chosen


def chosen_variant(
    what: str,
    asked: AskedProblem | None,
    gpu: str | None,
    storage: str | None,
    goal: Goal,
    *,
    batch_invariant: bool = False,
) -> "Chosen":
    """What WHAT names, as `api.chosen_variant`, having said what there is to notice.

    A WHAT that names nothing is told before a problem that is missing. Raises InvalidInput.
    """
    from explorer import api
    from explorer.export import parse_choice

    parse_choice(what)
    problem = needed(asked)
    return api.chosen_variant(
        what, problem, gpu, storage, goal, say, batch_invariant=batch_invariant
    )
