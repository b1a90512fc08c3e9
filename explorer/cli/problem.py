"""The options that name a problem, which several commands share."""

import inspect
import math
from collections.abc import Callable
from dataclasses import fields
from functools import wraps
from typing import Annotated, Any

import typer

from explorer.asked import AskedProblem
from explorer.cli.options import extents, number, whole_number
from explorer.dtype import DType
from explorer.errors import InvalidInput
from explorer.extents import MAX_COLS, MAX_ROWS
from explorer.op import Mask, Op
from explorer.problem import Problem

Options = dict[str, tuple[Any, Any]]
"""Parameter names to (annotation, default)."""


def _option(kind: Any, name: str, metavar: str | None, help_text: str, **more: Any) -> Any:
    more |= {"metavar": metavar} if metavar else {}
    return Annotated[kind, typer.Option(name, help=help_text, **more)]


_MOST_STRIDE = 2**40
_MOST_AXES = 64
"""As NumPy and PyTorch allow."""
_HIDDEN_DEFAULT = {"show_default": False}

_OPTIONS: Options = {
    "cols": (
        _option(
            int | None,
            "--cols",
            "C",
            "Columns of the matrix: elements of a row.",
            parser=whole_number("cols", 1, MAX_COLS),
            **_HIDDEN_DEFAULT,
        ),
        None,
    ),
    "rows": (
        _option(
            int | None,
            "--rows",
            "R",
            "Rows of the matrix; left out: as many as make 256 MiB of traffic.",
            parser=whole_number("rows", 1, MAX_ROWS),
            **_HIDDEN_DEFAULT,
        ),
        None,
    ),
    "dtype": (
        _option(
            DType, "--dtype", "DTYPE", f"Element type: {', '.join(DType)}.", parser=DType.parse
        ),
        DType.F32,
    ),
    "op": (_option(Op, "--op", "OP", f"{', '.join(Op)}.", parser=Op.parse), Op.SOFTMAX),
    "out_dtype": (
        _option(
            DType | None,
            "--out-dtype",
            "DTYPE",
            "Element type of the output; left out: the input's.",
            parser=DType.parse,
            **_HIDDEN_DEFAULT,
        ),
        None,
    ),
    "scale": (
        _option(
            float | None,
            "--scale",
            "S",
            "Kernels take a scale that x is multiplied with, here S: 1 / temperature.",
            parser=number("scale"),
            **_HIDDEN_DEFAULT,
        ),
        None,
    ),
    "mask": (
        _option(Mask, "--mask", "MASK", f"{', '.join(Mask)}.", parser=Mask.parse),
        Mask.NONE,
    ),
    "mask_rows": (
        _option(
            int | None,
            "--mask-rows",
            "R",
            "Rows after which a causal or additive mask repeats; left out: cols (causal, where "
            "they divide rows), 1 (additive).",
            parser=whole_number("mask_rows", 1, MAX_ROWS),
            **_HIDDEN_DEFAULT,
        ),
        None,
    ),
    "shape": (
        _option(
            str | None,
            "--shape",
            "N,N,N",
            "Instead of --cols and --rows: the shape of an array, as 8,3,224,224.",
            **_HIDDEN_DEFAULT,
        ),
        None,
    ),
    "axis": (
        _option(
            int,
            "--axis",
            "A",
            "With --shape: the axis that the op runs over; negative counts from the last.",
            parser=whole_number("axis", -_MOST_AXES, _MOST_AXES - 1),
        ),
        -1,
    ),
    "inner": (
        _option(
            int,
            "--inner",
            "N",
            "Elements between neighbours of a row: the array is (rows / N, cols, N).",
            parser=whole_number("inner", 1, MAX_ROWS),
        ),
        1,
    ),
    "input_stride": (
        _option(
            int | None,
            "--input-stride",
            "N",
            "Elements from the start of an input row to the next; left out: cols.",
            parser=whole_number("input_stride", 1, _MOST_STRIDE),
            **_HIDDEN_DEFAULT,
        ),
        None,
    ),
    "output_stride": (
        _option(
            int | None,
            "--output-stride",
            "N",
            "Elements from the start of an output row to the next; left out: cols.",
            parser=whole_number("output_stride", 1, _MOST_STRIDE),
            **_HIDDEN_DEFAULT,
        ),
        None,
    ),
    "in_place": (
        _option(bool, "--in-place", None, "The output is written over the input."),
        False,
    ),
}

Command = Callable[..., None]


def with_problem(command: Command) -> Command:
    """Give a command the options of a problem, in the place of its parameter `asked`.

    A command with a parameter `rows` gets what was given for it, also where cols were not.
    """
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
            parameters += [_keyword(name, *option) for name, option in _OPTIONS.items()]
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
        chosen |= _extents_of(extents("shape", MAX_ROWS)(shape), axis)
    if chosen["cols"] is None:
        return None
    for name in ("mask_rows", "input_stride", "output_stride"):
        chosen[name] = chosen[name] or 0
    asked = AskedProblem(**{f.name: chosen[f.name] for f in fields(AskedProblem)})
    asked.problem()  # what does not go together is said before anything else
    return asked


def _extents_of(shape: list[int], axis: int) -> dict[str, int]:
    """An N-d array seen as (outer, axis, inner)."""
    if len(shape) > _MOST_AXES:
        raise InvalidInput(f"shape has {len(shape)} axes; it may have {_MOST_AXES} at most")
    if not -len(shape) <= axis < len(shape):
        raise InvalidInput(
            f"axis is {axis}; an array of {len(shape)} axes has {-len(shape)} to {len(shape) - 1}"
        )
    axis %= len(shape)
    inner = math.prod(shape[axis + 1 :])
    return {"cols": shape[axis], "rows": math.prod(shape[:axis]) * inner, "inner": inner}


def needed(asked: AskedProblem | None) -> AskedProblem:
    """The problem asked for; raises InvalidInput where none is."""
    if asked is None:
        raise InvalidInput("cols is not said: give --cols 4096")
    return asked


def rows_notice(problem: Problem, rows: int | None) -> list[str]:
    """What to tell a user who left rows out."""
    if rows is not None:
        return []
    traffic = problem.bytes / 2**20
    shown = f"{traffic:.0f}" if traffic >= 10 else f"{traffic:.3g}"
    return [f"rows left out: {problem.rows}, which makes {shown} MiB of traffic"]
