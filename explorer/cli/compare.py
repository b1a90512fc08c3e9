"""`explorer compare`: our best, the limit, and every peer that is installed, in one run."""

import os
import sys
from collections.abc import Callable
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from explorer.cli.options import (
    AllLines,
    MeasureOptions,
    Plot,
    SpreadOptions,
    Storage,
    TableOptions,
    duration,
    option,
    with_options,
    words,
)
from explorer.cli.output import (
    INTERRUPTED,
    check_nothing_is_measured,
    keep_result,
    say,
    show_result,
)
from explorer.cli.own_kernel import OwnOptions, With
from explorer.cli.problem import (
    Draw,
    Dtypes,
    ListedOptions,
    Shapes,
    drawn,
    listed,
    numbers_of,
    of_file,
)
from explorer.model.element import USUAL_TYPE
from explorer.model.errors import InvalidInput, NotFound
from explorer.model.problem import MAX_COLS, MAX_ROWS, Problem
from explorer.model.query import extents
from explorer.ops import DEFAULT_OP, Op
from explorer.system.user_files import COMPARISON, check_replaceable

if TYPE_CHECKING:
    from explorer.model.peer import Entered, NotEntered
    from explorer.report.side_by_side import SideBySide
    from explorer.tuning.peer_comparison import PeerRun

DRAWN_COLS, DRAWN_ROWS = "16:200000:log", "1:400000:log"
"""Between which --draw draws where neither --cols nor --rows is given."""

Cols = Annotated[
    str | None,
    option(
        "--cols C,C",
        "Columns, one or several, or a range such as 64:131072:log; with --draw by default "
        f"{DRAWN_COLS} (needed, unless --draw, --shapes or --from is given).",
    ),
]
Rows = Annotated[
    str | None,
    option(
        "--rows R,R",
        "Rows of all of them, or of each; default: as many as make 256 MiB of traffic. With "
        f"--draw a range; without --cols, {DRAWN_ROWS} by default.",
    ),
]
Operation = Annotated[Op, option("--op OP", f"{', '.join(Op)}.", choices=Op)]
Peers = Annotated[
    str | None,
    option("--peers P,P", "Their names, or module:attribute; default: all that are known."),
]
Limit = Annotated[
    float,
    option(
        "--peer-limit TIME",
        "Time that a peer may take to compile, tune and verify, such as 90s.",
        duration("peer-limit"),
    ),
]
Heuristic = Annotated[
    bool, option("--heuristic", "Time the heuristic's kernel, not a search's best.")
]
Save = Annotated[
    Path | None,
    option(
        "--save FILE",
        "Keep the result as JSON. Until all is done, finished problems are kept beside it in "
        "a file that ends in .partial.jsonl, from which the same command goes on.",
    ),
]
Kept = Annotated[
    str | None,
    option(
        "--from NAME",
        "Show what --save kept, instead of measuring. With --against also a tuned table, or a "
        "study by its name.",
    ),
]
Against = Annotated[
    str | None,
    option(
        "--against NAME",
        "A run that --save kept, on such a GPU: exit code 1 if ours is slower now beyond "
        "noise, for continuous integration. With --from, both are shown side by side, also of "
        "two GPUs, tuned tables or studies.",
    ),
]
Verbose = Annotated[
    bool, option("--verbose", "Print the tracebacks of peers that fail, on stderr.")
]


_SAVE_REMEDY = "name another --save"

SLOWER = 1
"""The exit code where ours is slower than in the run that it is held against."""


@with_options
def compare(
    of: MeasureOptions,
    own: OwnOptions,
    each: ListedOptions,
    many: SpreadOptions,
    out: TableOptions,
    cols: Cols = None,
    rows: Rows = None,
    dtype: Dtypes = USUAL_TYPE.value,
    op: Operation = DEFAULT_OP,
    shapes: Shapes = None,
    draw: Draw = None,
    peers: Peers = None,
    with_: With = None,
    peer_limit: Limit = "180s",  # type: ignore[assignment]
    heuristic: Heuristic = False,
    storage: Storage = None,
    save: Save = None,
    kept: Kept = None,
    against: Against = None,
    plot: Plot = None,
    verbose: Verbose = False,
    all_: AllLines = False,
) -> None:
    """Verify our best kernel and every installed library, and time them beside copy."""
    from explorer import api
    from explorer.report.charts import check_plot
    from explorer.report.compare import read_compared

    check_plot(plot)
    if kept is not None:
        given = {"shapes": shapes, "draw": draw, "peers": peers, "with": with_, "save": save}
        check_nothing_is_measured(cols=cols, rows=rows, **each.given, **given, heuristic=heuristic)
        own.launch.check_none("--from measures nothing")
        raise typer.Exit(_show_kept(kept, against, storage, out.form, plot, whole=all_))
    if all_:
        raise InvalidInput(
            "--all belongs to --from and --against, which show two results; leave it out"
        )
    before = read_compared(Path(against)) if against is not None else None
    problems, how = _problems(cols, rows, dtype, op, shapes, draw, of.seed, each)
    if save is not None:
        check_replaceable(save, COMPARISON, _SAVE_REMEDY)
    measured = partial(
        api.compare,
        problems,
        **own.beside(with_),
        peers=words("peers", peers) if peers is not None else None,
        peer_limit_s=peer_limit,
        heuristic=heuristic,
        **asdict(of),
        **asdict(many),
        storage=storage,
        journal=_journal(save) if save is not None else None,
        on_peer=_teller(verbose),
        notice=say,
    )
    run, code = _until_stopped(measured)
    run = replace(run, drawn=how)
    _keep(run, save, was_stopped=bool(code))
    _show(run, out.form, plot, kept=False)
    raise typer.Exit(code or _held_against(run, before))


def _held_against(run: "PeerRun", before: "PeerRun | None") -> int:
    """Say what is slower than before; the exit code. Raises InvalidInput."""
    from explorer.tuning.peer_comparison import regressions

    if before is None:
        return 0
    held = {one.problem for one in run.comparisons} & {one.problem for one in before.comparisons}
    if not held:
        raise InvalidInput("the run to hold it against has none of these problems; name another")
    found = regressions(run, before)
    for regression in found:
        say(f"slower: {regression}")
    say(f"{len(held) - len(found)} of {len(held)} problems are no slower than before")
    return SLOWER if found else 0


def _show_kept(
    kept: str,
    against: str | None,
    storage: str | None,
    form: str,
    plot: Path | None,
    *,
    whole: bool,
) -> int:
    """Show what was kept, or two results side by side; return the exit code.

    That says whether the first is slower, which is known of comparisons on one GPU alone.
    """
    from explorer.model.tuned_table import table_file
    from explorer.report.compare import read_compared
    from explorer.report.side_by_side import SideBySide, read_result
    from explorer.tuning.peer_comparison import PeerRun

    if against is None:
        _show(read_compared(table_file(kept)), form, plot, kept=True)
        return 0
    run, before = (read_result(named, storage) for named in (kept, against))
    both = SideBySide.of([(kept, run), (against, before)])
    show_side_by_side(both, form, plot, whole=whole)
    if not (isinstance(run, PeerRun) and isinstance(before, PeerRun)):
        return 0
    if run.conditions != before.conditions:
        say("nothing is called slower: the two were not measured in the same way on one GPU")
        return 0
    return _held_against(run, before)


def _until_stopped(measured: "Callable[..., PeerRun]") -> "tuple[PeerRun, int]":
    """Return what was compared, with a line of progress meanwhile; the exit code says of Ctrl-C.

    Raises NotFound if nothing was, and Exit if nothing was before Ctrl-C.
    """
    from explorer.report.progress import RunLine
    from explorer.report.table import notices

    runs: list[PeerRun] = []
    code = 0
    try:
        with RunLine(notices()) as line:
            runs.append(measured(progress=runs.append, on_progress=line))
    except KeyboardInterrupt:
        say("stopped; what was compared before is kept")
        code = INTERRUPTED
    if runs and runs[-1].comparisons:
        return runs[-1], code
    if code:
        raise typer.Exit(code)
    raise NotFound("nothing was compared: the lines above say why")


def show_side_by_side(of: "SideBySide", form: str, plot: Path | None, *, whole: bool) -> None:
    """Print results side by side, `whole` or of many problems some alone, and draw them."""
    from explorer.report import side_by_side as report

    show_result(
        form,
        partial(report.print_side_by_side, of, whole=whole),
        partial(report.side_data, of),
        rows=partial(report.side_rows, of),
        markdown=partial(report.side_markdown, of),
        plot=plot,
        chart=partial(report.side_chart, of),
    )


# ------------------------------------------------------------------ the list of problems


Sizes = list[tuple[int, int | None]]
"""Columns and rows; rows are None where they are as many as make 256 MiB of traffic."""


def _problems(
    cols: str | None,
    rows: str | None,
    dtype: str,
    op: Op,
    shapes: Path | None,
    draw: int | None,
    seed: int,
    each: ListedOptions,
) -> tuple[list[Problem], str]:
    """Return the problems, and in words how they were drawn. Raises InvalidInput."""
    if shapes is not None:
        return of_file(shapes, each, cols=cols, rows=rows, draw=draw), ""
    sizes, how = (_named(cols, rows), "") if draw is None else _drawn(cols, rows, draw, seed)
    return listed(sizes, dtype, [op], each), how


def _named(cols: str | None, rows: str | None) -> Sizes:
    """Return each of --cols, with its own of --rows or the only one. Raises InvalidInput."""
    if cols is None:
        raise InvalidInput(
            "--cols is missing; give the numbers of columns, for example --cols 4096,50257, or "
            "--draw 40, or --shapes FILE.csv"
        )
    read = partial(numbers_of, "cols", most=MAX_COLS) if ":" in cols else extents("cols", MAX_COLS)
    widths = read(cols)
    heights: list[int | None] = [*extents("rows", MAX_ROWS)(rows)] if rows else [None]
    if len(heights) == 1:
        heights *= len(widths)
    if len(heights) != len(widths):
        raise InvalidInput(
            f"rows are {len(heights)} and cols {len(widths)}; give one for all, or as many"
        )
    return list(zip(widths, heights, strict=True))


def _drawn(cols: str | None, rows: str | None, number: int, seed: int) -> tuple[Sizes, str]:
    """Return so many sizes, and in words how they were drawn. Raises InvalidInput."""
    if cols is None and rows is None:
        rows = DRAWN_ROWS
    widths = numbers_of("cols", cols or DRAWN_COLS, MAX_COLS)
    heights = numbers_of("rows", rows, MAX_ROWS) if rows else []
    tall = f"{min(heights)} to {max(heights)} rows" if heights else "rows for 256 MiB of traffic"
    description = (
        f"{number} shapes by seed {seed}, log-uniformly of {min(widths)} to {max(widths)} columns "
        f"and {tall}"
    )
    return drawn(widths, heights, number, seed), description


# ------------------------------------------------------------------ what is shown and kept


def _teller(verbose: bool) -> "Callable[[Entered | NotEntered], None]":
    """Says what became of each peer; of failures also the traceback, where that is wanted."""
    from explorer.model.peer import Entered

    traces = verbose or bool(os.environ.get("EXPLORER_DEBUG"))

    def tell(reply: "Entered | NotEntered") -> None:
        if isinstance(reply, Entered):
            noted = f", {reply.note}" if reply.note else ""
            say(f"  {reply.name}: verified ({reply.version}{noted})")
            return
        say(f"  {reply.name}: {reply.why}")
        if traces and reply.trace:
            print(reply.trace, file=sys.stderr)

    return tell


def _keep(run: "PeerRun", save: Path | None, *, was_stopped: bool) -> None:
    """Write a run where --save asks for it, and drop its journal if nothing is left to measure."""
    if save is None:
        return
    keep_result(save, run.as_dict(), _SAVE_REMEDY, f"{len(run.comparisons)} written")
    if not was_stopped and not run.unmeasured:
        _journal(save).unlink(missing_ok=True)


def _journal(save: Path) -> Path:
    """Return the file beside `save` that has the finished problems of a run that is not done."""
    return save.with_suffix(".partial.jsonl")


def _show(run: "PeerRun", form: str, plot: Path | None, *, kept: bool) -> None:
    from explorer.report import compare as report

    show_result(
        form,
        partial(report.print_compared, run, kept=kept),
        partial(report.compare_data, run),
        rows=partial(report.compare_rows, run),
        markdown=partial(report.compared_markdown, run),
        plot=plot,
        chart=partial(report.comparison_chart, run),
    )
