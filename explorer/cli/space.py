"""Commands of the parameter space, and of the published kernels that are configs in it."""

from functools import partial
from typing import Annotated

import typer

from explorer.cli import completions
from explorer.cli.options import Gpu, RowsOptions, Where, argument, option
from explorer.cli.output import is_given, show_result
from explorer.cli.problem import with_any_problem, with_problem
from explorer.model.errors import InvalidInput
from explorer.model.query import ProblemQuery, needed

# ------------------------------------------------------------------ explorer space


Parameters = Annotated[
    list[str] | None,
    argument(
        "PARAMETER",
        "Only these parameters, and the rules that read one of them.",
        completions.parameters,
    ),
]


@with_problem
def space(
    query: ProblemQuery | None,
    out: RowsOptions,
    parameter: Parameters = None,
    where: Where = None,
    gpu: Gpu = None,
) -> None:
    """Print the parameters, their values and the rules.

    With --csv it prints a line for each value of each parameter.
    """
    from explorer.devices.names import gpu_limits, gpu_words
    from explorer.report.space import SpaceView, parameter_rows, print_space, space_data
    from explorer.space import Space, restriction

    problem = needed(query).problem()
    fixed = restriction(where, problem)
    limits = gpu_limits(gpu)
    words = gpu_words(limits, gpu, with_arch=True)
    view = SpaceView(Space(problem, limits, fixed), fixed, tuple(parameter or ()), words)
    rows = partial(parameter_rows, view.parameters)
    show_result(out.form, partial(print_space, view), partial(space_data, view), rows=rows)


# ------------------------------------------------------------------ explorer presets


Text = Annotated[
    str | None,
    argument(
        "TEXT",
        "Only presets with this text in a name or in what they are from.",
        completions.presets,
    ),
]
Legal = Annotated[bool, option("--legal", "With --cols: only those that can compute the problem.")]


@with_any_problem
def presets(
    context: typer.Context,
    query: ProblemQuery | None,
    out: RowsOptions,
    text: Text = None,
    legal: Legal = False,
    where: Where = None,
    gpu: Gpu = None,
) -> None:
    """List published kernels; with --cols, which of them can compute the problem.

    Without --cols, --op and --dtype list the presets that can compute that op and type.
    """
    from explorer.devices.names import gpu_limits
    from explorer.report.space import (
        PRESET,
        PresetFilter,
        preset_lines,
        preset_rows,
        print_presets,
    )
    from explorer.report.table import data_of
    from explorer.space import restriction

    problem = None if query is None else query.problem()
    if problem is None and (legal or where):
        raise InvalidInput("--legal and --where ask what a preset is for a problem: give --cols")
    op, dtype = (
        context.params[name] if problem is None and is_given(context, name) else None
        for name in ("op", "dtype")
    )
    fixed = {} if problem is None else restriction(where, problem)
    wanted = PresetFilter(text or "", op, dtype, fixed, only_legal=legal)
    every = preset_lines(problem, None if problem is None else gpu_limits(gpu))
    lines = [line for line in every if wanted.passes(line)]
    show_result(
        out.form,
        lambda console: print_presets(lines, problem, console, wanted),
        lambda: {"presets": [data_of(PRESET, line) for line in lines]},
        rows=partial(preset_rows, lines),
    )
