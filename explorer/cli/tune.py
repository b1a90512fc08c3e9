"""`explorer tune`: find the best kernel of each of a list of problems, and keep them as a table."""

from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from explorer.cli import completions
from explorer.cli.options import AccuracyLevel, Json, RecordedDevice, Seed, Timing, option
from explorer.cli.options import words as separated
from explorer.cli.output import INTERRUPTED, say, show_result
from explorer.cli.problem import MOST_PROBLEMS, drawn, numbers_of
from explorer.model.accuracy import Accuracy
from explorer.model.asked import AskedProblem, whole_number
from explorer.model.dtype import DType
from explorer.model.errors import InvalidInput, NotFound
from explorer.model.problem import MAX_COLS, MAX_ROWS, Op, Problem
from explorer.tuning.objective import Effort

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
Dtypes = Annotated[
    str,
    option(
        "--dtype DTYPE,...", f"Some of {', '.join(DType)}.", complete=completions.several(*DType)
    ),
]
Ops = Annotated[
    str, option("--op OP,...", f"Some of {', '.join(Op)}.", complete=completions.several(*Op))
]
Shapes = Annotated[
    Path | None,
    option(
        "--shapes FILE.csv",
        "A file of problems, such as explorer.log_shapes writes, instead of --cols.",
    ),
]
Draw = Annotated[
    int | None,
    option(
        "--draw N",
        "Instead of each of --cols with each of --rows, N problems drawn by --seed between "
        "the least and the greatest of both, log-uniformly.",
        whole_number("draw", 1, MOST_PROBLEMS),
    ),
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


def tune(
    cols: Cols = None,
    rows: Rows = None,
    dtype: Dtypes = "f32",
    op: Ops = "softmax",
    shapes: Shapes = None,
    draw: Draw = None,
    effort: EffortOf = Effort.DEFAULT,
    no_torch: NoTorch = False,
    missing: Missing = False,
    output: Output = None,
    device: RecordedDevice = "auto",
    timing: Timing = "cold",
    accuracy: AccuracyLevel = Accuracy.DEFAULT,
    seed: Seed = 0,
    json: Json = False,
) -> None:
    """Find the best kernel of each of a list of problems, and keep them as a table."""
    from explorer import api
    from explorer.report.progress import RunLine
    from explorer.report.table import notices
    from explorer.report.tune import print_tuned, tuned_data

    problems = _problems(cols, rows, dtype, op, shapes, draw, seed)
    try:
        with RunLine(notices()) as line:
            tuned = api.tune(
                problems,
                effort=effort,
                torch=not no_torch,
                missing=missing,
                output=output,
                device=device,
                timing=timing,
                accuracy=accuracy,
                seed=seed,
                progress=line,
                notice=say,
            )
    except KeyboardInterrupt:
        say("stopped; the problems that were finished are kept, and the same command goes on")
        raise typer.Exit(INTERRUPTED) from None
    if not tuned.run.table.problems:
        raise NotFound("nothing was tuned: the lines above say why")
    of = tuned.run, tuned.path
    show_result("json" if json else "", partial(print_tuned, *of), partial(tuned_data, *of))


# ------------------------------------------------------------------ the list of problems


def _problems(
    cols: str | None,
    rows: str | None,
    dtype: str,
    ops: str,
    shapes: Path | None,
    draw: int | None,
    seed: int,
) -> list[Problem]:
    """Raises InvalidInput."""
    if shapes is not None:
        if cols is not None or rows is not None or draw is not None:
            raise InvalidInput("--shapes names whole problems; drop --cols, --rows and --draw")
        return _in_file(shapes)
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
    dtypes = [DType.parse(name) for name in separated("dtype", dtype)]
    kinds = [(one, Op.parse(name)) for name in separated("op", ops) for one in dtypes]
    if len(sizes) * len(kinds) > MOST_PROBLEMS:
        raise InvalidInput(
            f"these are {len(sizes) * len(kinds)} problems; one command takes {MOST_PROBLEMS} at "
            "most: give fewer --cols or --rows"
        )
    return [
        AskedProblem(width, kind, height, op=op).problem()
        for kind, op in kinds
        for width, height in sizes
    ]


def _in_file(path: Path) -> list[Problem]:
    from explorer.runtime.shapes import read_shapes

    return read_shapes(path)
