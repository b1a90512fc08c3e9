"""Commands of the parameter space, and of the published kernels that are configs in it."""

from functools import partial
from typing import Annotated, Any

import typer

from explorer.cli import completions
from explorer.cli.options import Gpu, RowsOptions, Where, argument, option
from explorer.cli.output import is_given, show_result
from explorer.cli.problem import with_any_problem, with_problem
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
    from explorer import api
    from explorer.report.space import print_space

    view = api.describe_space(needed(query), parameters=parameter or (), where=where, gpu=gpu)
    show_result(out.form, partial(print_space, view), view.to_dict, rows=view.records)


# ------------------------------------------------------------------ explorer presets


Text = Annotated[
    str | None,
    argument(
        "TEXT",
        "Only presets with these words in a name, in what they do or in what they are from.",
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
    from explorer import api
    from explorer.report.space import PresetFilter, print_presets

    kind = {name: context.params[name] for name in ("op", "dtype") if is_given(context, name)}
    only: Any = kind if query is None else {}
    found = api.find_presets(query, text=text or "", legal=legal, where=where, gpu=gpu, **only)
    problem = None if query is None else query.problem()
    wanted = PresetFilter(text or "", **only)
    show_result(
        out.form,
        lambda console: print_presets(found, problem, console, wanted),
        found.to_dict,
        rows=found.records,
    )
