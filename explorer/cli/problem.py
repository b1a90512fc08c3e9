"""The problem that a command is about, and the variant of it that WHAT names."""

import inspect
import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import wraps
from typing import TYPE_CHECKING, Annotated, Any

import typer

from explorer.asked import AskedProblem, option_of
from explorer.cli.options import extents, gpu_limits, number, whole_number
from explorer.cli.output import say
from explorer.errors import InvalidInput
from explorer.gpu_spec import GpuSpec, is_known_gpu, known_gpu
from explorer.problem import MAX_ROWS, OPTIONS, USUAL, Problem
from explorer.tuning.objective import Goal, Objectives

# ------------------------------------------------------------------ problem


Options = dict[str, tuple[Any, Any]]
"""Parameter names to (annotation, default)."""

_MOST_AXES = 64
"""As NumPy and PyTorch allow."""


def _option(name: str, kind: Any, default: Any, help_text: str, **more: Any) -> tuple[Any, Any]:
    """The annotation and the default of an option; a default that says nothing is not shown."""
    more |= {} if default is not None or kind is bool else {"show_default": False}
    return Annotated[kind, typer.Option(option_of(name), help=help_text, **more)], default


def _of_field(name: str) -> tuple[Any, Any]:
    """The option of a field; a stride or a number of mask rows that is 0 counts as left out."""
    option, usual = OPTIONS[name], USUAL[name] or None
    if option.kind is bool:
        return _option(name, bool, False, option.help)
    parser: Any = getattr(option.kind, "parse", None)
    if option.kind is int:
        parser = whole_number(name, 1, option.most)
    elif option.kind is float:
        parser = number(name)
    kind = option.kind if usual is not None else option.kind | None
    return _option(name, kind, usual, option.help, metavar=option.metavar, parser=parser)


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
    parser=whole_number("axis", -_MOST_AXES, _MOST_AXES - 1),
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
    asked = AskedProblem(**chosen)
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


# ------------------------------------------------------------------ config


if TYPE_CHECKING:
    from explorer.codegen import Variant
    from explorer.export import Choice


@dataclass(frozen=True, slots=True)
class Chosen:
    """A variant and where it runs."""

    variant: "Variant"
    arch: str
    """Of the GPU that it was measured on, or is to run on."""
    gpu: GpuSpec | None
    """That GPU's limits, where they are known."""


def chosen_variant(
    what: str,
    asked: AskedProblem,
    gpu: str | None,
    storage: str | None,
    goal: Goal,
    *,
    batch_invariant: bool = False,
) -> Chosen:
    """What WHAT names, with the GPU that it was measured on unless another one is named.

    The best and trials are of the study with that goal. Of the heuristic a `batch_invariant`
    config is the same for all numbers of rows. Raises InvalidInput for what is none of these or no
    legal config, NotFound for a trial that is not there.
    """
    from explorer.export import HEURISTIC, is_of_study, parse_choice

    choice = parse_choice(what)
    if batch_invariant and choice != HEURISTIC:
        raise InvalidInput(
            f"--batch-invariant makes the heuristic take one config for all rows; {what} is one "
            "config whatever the rows: leave it out"
        )
    if is_of_study(choice):
        return _of_study(choice, asked, gpu, storage, goal)
    if goal.objectives is Objectives.TIME_ERROR:
        raise InvalidInput(
            f"--objectives says in which study a trial is; {what} is none: leave it out"
        )
    return _of_config(choice, asked, gpu, goal, batch_invariant=batch_invariant)


def _of_config(
    choice: "Choice", asked: AskedProblem, gpu: str | None, goal: Goal, *, batch_invariant: bool
) -> Chosen:
    """A config that is written out, a preset's, or the heuristic's."""
    from explorer.codegen import emit
    from explorer.config import Config
    from explorer.export import checked_config
    from explorer.space import config_for

    limits = gpu_limits(gpu)
    problem = asked.problem()
    if isinstance(choice, str | int):
        config = config_for(
            problem, limits, batch_invariant=batch_invariant, accuracy=goal.accuracy
        )
    elif isinstance(choice, Config):
        config = checked_config(choice, problem, limits)
    else:
        config = choice.config(problem, limits)
    variant = emit(problem, config)
    for notice in rows_notice(problem, asked.rows):
        say(notice)
    return Chosen(variant, limits.arch, limits)


def _of_study(
    which: str | int, asked: AskedProblem, gpu: str | None, storage: str | None, goal: Goal
) -> Chosen:
    """The best trial of a study, or one by its number."""
    from explorer.export import age_of, variant_of
    from explorer.tuning import load_trial, open_storage

    opened = open_storage(storage, read_only=True)
    study, trial = load_trial(opened, asked, which, goal)
    if study.passed_over:
        say(study.passed_over)
    problem = study.summary.problem
    variant = variant_of(trial, problem, replayed=study.summary.replayed)
    age = age_of(variant, trial, study.circumstances)
    if age:
        say(age)
    name = gpu or study.circumstances.gpu
    measured_on = known_gpu(name) if gpu or is_known_gpu(name) else None
    arch = measured_on.arch if measured_on else study.circumstances.arch
    return Chosen(variant, arch, measured_on)
