"""`explorer tune`, which makes a table of best kernels, and `explorer table` for what it made."""

from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from explorer.cli import completions
from explorer.cli.help import HELP_NAMES, Command, Group
from explorer.cli.options import (
    AllLines,
    Json,
    JsonOption,
    MeasureOptions,
    Plot,
    RowsOptions,
    SpreadOptions,
    TableOptions,
    Where,
    argument,
    option,
    with_options,
    words,
)
from explorer.cli.output import say, show_result, stopped
from explorer.cli.problem import (
    MOST_PROBLEMS,
    Draw,
    Dtypes,
    ListedOptions,
    Shapes,
    drawn,
    listed,
    numbers_of,
    of_file,
)
from explorer.model.element import USUAL_TYPE, DType
from explorer.model.errors import InvalidInput, NotFound
from explorer.model.problem import MAX_COLS, MAX_ROWS, Problem
from explorer.model.query import whole_number
from explorer.ops import DEFAULT_OP, Op
from explorer.system.user_files import shipped_folder
from explorer.tuning.objective import Effort

if TYPE_CHECKING:
    from explorer.model.tuned_table import TunedTable

Cols = Annotated[
    str | None,
    option(
        "--cols N,N or A:B:log[:N]",
        "Columns: numbers, or a range of powers of two, or of N steps of equal ratio "
        "(needed, unless --shapes names a file).",
    ),
]
Rows = Annotated[
    str | None,
    option(
        "--rows N,N or A:B:log[:N]",
        "Rows, each with all of --cols; default: as many as make 256 MiB of traffic.",
    ),
]
Ops = Annotated[
    str, option("--op OP,...", f"Some of {', '.join(Op)}.", complete=completions.several(*Op))
]
EffortOf = Annotated[
    Effort,
    option(
        "--effort EFFORT",
        "quick: the candidates that all problems share; default: small changes to the best "
        "three as well; full: repeats the small changes while they help, six times at most.",
        choices=Effort,
    ),
]
NoTorch = Annotated[
    bool, option("--no-torch", "Do not time torch beside the best, even if it is installed.")
]
Missing = Annotated[
    bool,
    option(
        "--missing",
        "Tune only the problems that the table does not have, as this version measures them.",
    ),
]
Output = Annotated[
    Path | None,
    option(
        "--output FILE.json",
        "The table to write, or to add to; default: tuned/<gpu>.json among the studies.",
    ),
]


@with_options
def tune(
    of: MeasureOptions,
    each: ListedOptions,
    many: SpreadOptions,
    out: JsonOption,
    cols: Cols = None,
    rows: Rows = None,
    dtype: Dtypes = USUAL_TYPE.value,
    op: Ops = DEFAULT_OP,
    shapes: Shapes = None,
    draw: Draw = None,
    effort: EffortOf = Effort.DEFAULT,
    where: Where = None,
    no_torch: NoTorch = False,
    missing: Missing = False,
    output: Output = None,
) -> None:
    """Find the best kernel of each of a list of problems, and keep them as a table."""
    from explorer import api
    from explorer.report.progress import RunLine
    from explorer.report.table import notices
    from explorer.report.tune import print_tuned, tuned_data

    problems = _problems(cols, rows, dtype, op, shapes, draw, of.seed, each)
    kept = "; the problems that were finished are kept, and the same command goes on"
    with stopped(kept), RunLine(notices()) as line:
        tuned = api.tune(
            problems,
            effort=effort,
            where=where,
            torch=not no_torch,
            missing=missing,
            output=output,
            **asdict(of),
            **asdict(many),
            progress=line,
            notice=say,
        )
    if not tuned.run.table.problems:
        raise NotFound("nothing was tuned: the lines above say why")
    made = tuned.run, tuned.path
    show_result(out.form, partial(print_tuned, *made), partial(tuned_data, *made))


# ------------------------------------------------------------------ the list of problems


def _problems(
    cols: str | None,
    rows: str | None,
    dtype: str,
    ops: str,
    shapes: Path | None,
    draw: int | None,
    seed: int,
    each: ListedOptions,
) -> list[Problem]:
    """Read the list of problems, or the file of them. Raises InvalidInput."""
    if shapes is not None:
        return of_file(shapes, each, cols=cols, rows=rows, draw=draw)
    if cols is None:
        raise InvalidInput(
            "--cols is missing; give the numbers of columns, for example --cols 64:131072:log, or "
            "--shapes FILE.csv"
        )
    widths = numbers_of("cols", cols, MAX_COLS)
    heights: list[int | None] = [*numbers_of("rows", rows, MAX_ROWS)] if rows else [None]
    sizes = [(width, height) for width in widths for height in heights]
    if draw is not None:
        sizes = drawn(widths, [height for height in heights if height], draw, seed)
    kinds = [Op.parse(name) for name in words("op", ops)]
    problems = listed(sizes, dtype, kinds, each)
    if len(problems) > MOST_PROBLEMS:
        raise InvalidInput(
            f"these are {len(problems)} problems; one command takes {MOST_PROBLEMS} at most: give "
            "fewer --cols or --rows"
        )
    return problems


# ------------------------------------------------------------------ explorer table


File = Annotated[
    Path,
    argument(
        "FILE",
        "A table that explorer tune wrote, or the name of one that explorer table list shows.",
    ),
]
One = Annotated[Path, argument("A", "A table, as FILE of table show.")]
Other = Annotated[Path, argument("B", "Another table, of another GPU or an earlier version.")]
Wanted = Annotated[
    Path | None,
    option(
        "--problems FILE.csv",
        "The problems that it must have; default: those of the table's own list if it comes "
        "with the package, else those of a contributed table, studies/tuned/problems.csv.",
    ),
]

OnlyOps = Annotated[
    str | None,
    option("--op OP,...", "Only problems of these ops.", complete=completions.several(*Op)),
]
OnlyDtypes = Annotated[
    str | None,
    option("--dtype DTYPE,...", "Only of these types.", complete=completions.several(*DType)),
]
OnlyCols = Annotated[
    str | None, option("--cols N,N or A:B", "Only of these columns: numbers, or from A to B.")
]
OnlyRows = Annotated[str | None, option("--rows N,N or A:B", "Only of these rows.")]


@dataclass(frozen=True, slots=True)
class FilterOptions:
    """Which problems of a table are wanted."""

    op: OnlyOps = None
    dtype: OnlyDtypes = None
    cols: OnlyCols = None
    rows: OnlyRows = None

    def read(self, file: Path) -> "TunedTable":
        """Read the wanted problems of a table. Raises InvalidInput where there are none."""
        from explorer.model.tuned_table import read_table

        table = read_table(file)
        readers: dict[str, Callable[[str], Callable[[Any], bool]]] = {
            "op": lambda text: [Op.parse(word) for word in words("op", text)].__contains__,
            "dtype": lambda text: [DType.parse(word) for word in words("dtype", text)].__contains__,
            "cols": partial(_among, "cols", MAX_COLS),
            "rows": partial(_among, "rows", MAX_ROWS),
        }
        given = {name: text for name, text in asdict(self).items() if text is not None}
        tests = {name: readers[name](text) for name, text in given.items()}
        kept = [
            one
            for one in table.problems
            if all(fits(getattr(one.problem, name)) for name, fits in tests.items())
        ]
        if given and not kept:
            asked = " and ".join(f"{name} {text}" for name, text in given.items())
            raise InvalidInput(f"{file} has no problem of {asked}; leave one of them out")
        return replace(table, problems=tuple(kept))


def _among(name: str, most: int, text: str) -> Callable[[int], bool]:
    """Return whether a number is among `8,64` or `100:200`. Raises InvalidInput for other text."""
    whole = whole_number(name, 1, most)
    ranges = []
    for part in words(name, text):
        ends = [whole(end) for end in part.split(":")]
        if len(ends) > 2 or ends[0] > ends[-1]:
            raise InvalidInput(f"{name} is {part!r}; write a number, or from A to B as 64:4096")
        ranges.append(range(ends[0], ends[-1] + 1))
    return lambda number: any(number in one for one in ranges)


NOT_WHOLE = 1
"""The exit code of a table that has faults."""

table = typer.Typer(cls=Group, context_settings=HELP_NAMES, rich_markup_mode=None)


@table.callback(invoke_without_command=True)
def tables(context: typer.Context) -> None:
    """List, show, compare or check tables that explorer tune wrote."""
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())


@table.command("list", cls=Command, epilog="explorer table list")
@with_options
def list_(out: RowsOptions) -> None:
    """List the tables that come with the package."""
    from explorer.model.tuned_table import read_table, shipped_tables
    from explorer.report.table import data_of, print_table, table_of
    from explorer.report.tune import SHIPPED

    tables = [(name, path, read_table(path)) for name, path in shipped_tables().items()]
    rows = [data_of(SHIPPED, one) for one in tables]
    show_result(
        out.form,
        lambda console: print_table(table_of(SHIPPED, tables), console),
        lambda: {"tables": rows},
        rows=lambda: rows,
    )


@table.command(cls=Command, epilog="explorer table show held-out/nvidia-h200")
@with_options
def show(file: File, only: FilterOptions, out: RowsOptions) -> None:
    """Print the best config of each problem of a table."""
    from explorer.report.tune import print_tuned, tuned_data, tuned_rows
    from explorer.tuning.tune import TuneRun

    run = TuneRun(only.read(file), (), 0)
    show_result(
        out.form,
        partial(print_tuned, run, file),
        partial(tuned_data, run, file),
        rows=partial(tuned_rows, run),
    )


@table.command(
    cls=Command, epilog="explorer table diff nvidia-h200 nvidia-h100-80gb-hbm3 --dtype bf16"
)
@with_options
def diff(
    a: One,
    b: Other,
    only: FilterOptions,
    out: TableOptions,
    plot: Plot = None,
    all_: AllLines = False,
) -> None:
    """Put two tables side by side: each kernel's share of the limit of its own GPU."""
    from explorer.cli.compare import show_side_by_side
    from explorer.report.charts import check_plot
    from explorer.report.side_by_side import SideBySide

    check_plot(plot)
    both = SideBySide.of([(str(file), only.read(file)) for file in (a, b)])
    show_side_by_side(both, out.form, plot, whole=all_)


@table.command(cls=Command, epilog="explorer table check studies/tuned/nvidia-rtx-9999.json")
def check(file: File, problems: Wanted = None, json: Json = False) -> None:
    """List what must be mended before a table can be contributed.

    The exit code is 1 if there is anything to mend. A table must have every problem, each timed
    with every candidate of this version, cold, at the default accuracy, on a GPU that was not
    throttled, and no candidate may be wrong.
    """
    from explorer.model.tuned_table import read_table, table_file
    from explorer.report.text import as_json
    from explorer.report.tune import check_data, print_check
    from explorer.runtime.shapes import read_shapes
    from explorer.tuning.tune import table_faults

    path = table_file(file).resolve()
    read = read_table(path)
    shipped = shipped_folder("tuned", "studies/tuned").resolve()
    of_its_own = path.parent if path.is_relative_to(shipped) else shipped
    faults = table_faults(read, read_shapes(problems or of_its_own / "problems.csv"))
    if json:
        print(as_json(check_data(read, faults)))
    else:
        print_check(read, faults)
    if faults:
        raise typer.Exit(NOT_WHOLE)
