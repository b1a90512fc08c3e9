"""`explorer compare`: our best, copy, and every peer that is installed, in one run."""

import os
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from explorer.accuracy import Accuracy
from explorer.asked import AskedProblem
from explorer.cli.options import (
    AccuracyLevel,
    Json,
    Plot,
    RecordedDevice,
    Seed,
    Storage,
    Timing,
    duration,
    extents,
    words,
)
from explorer.cli.output import INTERRUPTED, say
from explorer.dtype import DType
from explorer.errors import InvalidInput, NotFound
from explorer.problem import MAX_COLS, MAX_ROWS, Op, Problem
from explorer.user_files import check_writable, write_file

if TYPE_CHECKING:
    from explorer.peer import Entered, NotEntered
    from explorer.tuning.peer_comparison import PeerRun

Cols = Annotated[
    str | None,
    typer.Option("--cols", metavar="C,C", help="Columns, one or several.", show_default=False),
]
Rows = Annotated[
    str | None,
    typer.Option(
        "--rows",
        metavar="R,R",
        help="Rows of all of them, or of each; left out: as many as make 256 MiB of traffic.",
        show_default=False,
    ),
]
Dtypes = Annotated[
    str, typer.Option("--dtype", metavar="D,D", help=f"Element types: {', '.join(DType)}.")
]
Operation = Annotated[
    Op, typer.Option("--op", metavar="OP", help=f"{', '.join(Op)}.", parser=Op.parse)
]
Peers = Annotated[
    str | None,
    typer.Option(
        "--peers",
        metavar="P,P",
        help="Their names, or module:attribute; left out: all that are known.",
        show_default=False,
    ),
]
Limit = Annotated[
    float,
    typer.Option(
        "--peer-limit",
        metavar="TIME",
        parser=duration("peer-limit"),
        help="For a peer to compile, tune and verify, such as 90s.",
    ),
]
Heuristic = Annotated[
    bool, typer.Option("--heuristic", help="Take our config without a search, whatever is stored.")
]
Save = Annotated[
    Path | None,
    typer.Option("--save", metavar="FILE", help="Keep it as JSON.", show_default=False),
]
Kept = Annotated[
    Path | None,
    typer.Option(
        "--from",
        metavar="FILE",
        help="Show what --save kept, instead of measuring.",
        show_default=False,
    ),
]
Against = Annotated[
    Path | None,
    typer.Option(
        "--against",
        metavar="FILE",
        help="A run that --save kept, on such a GPU: exit code 1 if ours is slower now beyond "
        "noise, for continuous integration.",
        show_default=False,
    ),
]
Markdown = Annotated[bool, typer.Option("--markdown", help="Print Markdown, for documents.")]
Verbose = Annotated[
    bool, typer.Option("--verbose", help="Print the tracebacks of peers that fail, on stderr.")
]


SLOWER = 1
"""The exit code where ours is slower than in the run that it is held against."""


def compare(
    cols: Cols = None,
    rows: Rows = None,
    dtype: Dtypes = "f32",
    op: Operation = Op.SOFTMAX,
    peers: Peers = None,
    peer_limit: Limit = "180s",  # type: ignore[assignment]
    heuristic: Heuristic = False,
    device: RecordedDevice = "auto",
    timing: Timing = "cold",
    accuracy: AccuracyLevel = Accuracy.DEFAULT,
    seed: Seed = 0,
    storage: Storage = None,
    save: Save = None,
    kept: Kept = None,
    against: Against = None,
    plot: Plot = None,
    json: Json = False,
    markdown: Markdown = False,
    verbose: Verbose = False,
) -> None:
    """Time our best beside copy and every installed peer, all verified, in one run."""
    from explorer import api
    from explorer.report.charts import check_plot
    from explorer.report.compare import read_compared

    if json and markdown:
        raise InvalidInput("--json and --markdown both want stdout; drop one of them")
    check_plot(plot)
    before = read_compared(against) if against is not None else None
    if kept is not None:
        _check_nothing_is_measured(cols, save)
        again = read_compared(kept)
        _print(again, json=json, markdown=markdown, kept=True)
        _draw(again, plot)
        raise typer.Exit(_held_against(again, before))
    problems = _problems(cols, rows, words("dtype", dtype), op)
    chosen = words("peers", peers) if peers is not None else None
    if save is not None:
        check_writable(save, "name another --save")
    measured = partial(
        api.compare,
        problems,
        peers=chosen,
        peer_limit_s=peer_limit,
        heuristic=heuristic,
        device=device,
        timing=timing,
        accuracy=accuracy,
        seed=seed,
        storage=storage,
        on_peer=_teller(verbose),
        notice=say,
    )
    run, code = _until_stopped(measured, save)
    if run is not None and run.comparisons:
        _print(run, json=json, markdown=markdown, kept=False)
        _draw(run, plot)
        code = code or _held_against(run, before)
    elif not code:
        raise NotFound("nothing was compared: the lines above say why")
    raise typer.Exit(code)


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


def _until_stopped(
    measured: "Callable[..., PeerRun]", save: Path | None
) -> "tuple[PeerRun | None, int]":
    """What was compared, which is kept at once; the exit code says of Ctrl-C."""
    runs: list[PeerRun] = []

    def keep(so_far: "PeerRun") -> None:
        runs.append(so_far)
        _keep(so_far, save)

    try:
        return measured(progress=keep), 0
    except KeyboardInterrupt:
        say("stopped; what was compared before is kept")
        return runs[-1] if runs else None, INTERRUPTED


def _check_nothing_is_measured(cols: str | None, save: Path | None) -> None:
    if cols is not None or save is not None:
        raise InvalidInput("--from shows a file and measures nothing; drop --cols and --save")


def _problems(cols: str | None, rows: str | None, dtypes: list[str], op: Op) -> list[Problem]:
    """Every shape in every dtype. Raises InvalidInput."""
    if cols is None:
        raise InvalidInput("cols is not said: give --cols 4096,50257")
    widths = extents("cols", MAX_COLS)(cols)
    heights: list[int | None] = [*extents("rows", MAX_ROWS)(rows)] if rows else [None]
    if len(heights) == 1:
        heights *= len(widths)
    if len(heights) != len(widths):
        raise InvalidInput(
            f"rows are {len(heights)} and cols {len(widths)}; give one for all, or as many"
        )
    return [
        AskedProblem(width, DType.parse(name), height, op=op).problem()
        for name in dtypes
        for height, width in zip(heights, widths, strict=True)
    ]


def _teller(verbose: bool) -> "Callable[[Entered | NotEntered], None]":
    """Says what became of each peer; of failures also the traceback, where that is wanted."""
    from explorer.peer import Entered

    traces = verbose or bool(os.environ.get("EXPLORER_DEBUG"))

    def tell(reply: "Entered | NotEntered") -> None:
        if isinstance(reply, Entered):
            noted = f", {reply.note}" if reply.note else ""
            say(f"  {reply.name}: verified ({reply.version}{noted})")
            return
        say(f"  {reply.name}: {reply.stage}: {reply.reason}")
        if traces and reply.trace:
            print(reply.trace, file=sys.stderr)

    return tell


def _keep(run: "PeerRun", save: Path | None) -> None:
    from explorer.report.json_data import as_text

    if save is not None:
        write_file(save, as_text(run.as_dict()) + "\n", "name another --save")
        say(f"{save}: {len(run.comparisons)} written")


def _draw(run: "PeerRun", plot: Path | None) -> None:
    if plot is None:
        return
    from explorer.report.charts import write_chart
    from explorer.report.kept_pages import comparison_chart

    write_chart(comparison_chart(run), plot)
    say(f"{plot}: drawn")


def _print(run: "PeerRun", *, json: bool, markdown: bool, kept: bool) -> None:
    from explorer.report.compare import compare_data, compared_markdown, print_compared
    from explorer.report.json_data import as_text
    from explorer.report.table import results

    if json:
        print(as_text(compare_data(run)))
    elif markdown:
        print(compared_markdown(run), end="")
    else:
        print_compared(run, results(), kept=kept)
