"""`explorer benchmark` and `explorer recordings`: how good searches are, and the data for it."""

import json as json_text
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from explorer.cli import completions
from explorer.cli.options import JsonOption, RowsOptions, argument, option, with_options
from explorer.cli.output import say, show_result, stopped
from explorer.model.errors import InvalidInput
from explorer.model.query import whole_number
from explorer.system.user_files import T4_RESULTS, check_replaceable

if TYPE_CHECKING:
    from explorer.tuning.benchmark import Score

Names = Annotated[
    list[str] | None,
    option(
        "--recording NAME",
        "A recording to search; may be repeated; default: all that hold a whole sub-space.",
        complete=completions.recordings,
    ),
]
Strategies = Annotated[
    list[str] | None,
    option(
        "--strategy NAME",
        "A strategy to compare; may be repeated; default: all.",
        complete=completions.strategies,
    ),
]
Seeds = Annotated[
    int,
    option("--seeds N", "Searches of each recording by each strategy.", whole_number("seeds", 1)),
]


@with_options
def benchmark(
    out: JsonOption, recording: Names = None, strategy: Strategies = None, seeds: Seeds = 10
) -> None:
    """Compare search strategies on recordings in which every kernel was measured."""
    from explorer.devices.recording import list_recordings, load_recording
    from explorer.report.recordings import SCORE, print_scores
    from explorer.report.table import data_of
    from explorer.tuning.benchmark import STRATEGIES, MeasuredSpace, score

    unknown = [name for name in strategy or () if name not in STRATEGIES]
    if unknown:
        raise InvalidInput(
            f"strategy is '{unknown[0]}'; choose {', '.join(STRATEGIES)}, or leave it out for all"
        )
    whole = (f.name for f in list_recordings() if f.header is not None and f.header.sub_space)
    truths = [MeasuredSpace.of(load_recording(name)) for name in recording or whole]
    if not truths:
        raise InvalidInput(
            "no recording holds a whole sub-space: make one on a GPU by explorer record --where"
        )
    scores: list[Score] = []
    with stopped(""):
        for truth in truths:
            for name in strategy or STRATEGIES:
                say(f"{truth.name}: {name}")
                scores.append(score(truth, name, range(seeds)))
    show_result(
        out.form,
        partial(print_scores, scores),
        lambda: [data_of(SCORE, score) for score in scores],
    )


_T4_REMEDY = "name another --t4"

T4 = Annotated[
    Path | None,
    option(
        "--t4 FILE.json", "Write the kernels of NAME as T4, the format that Kernel Tuner reads."
    ),
]
Name = Annotated[
    str | None, argument("NAME", "A recording, to write with --t4.", completions.recordings)
]


@with_options
def recordings(out: RowsOptions, name: Name = None, t4: T4 = None) -> None:
    """List the recordings that a search can replay, or write one as T4, for Kernel Tuner."""
    from explorer.devices.recording import list_recordings, load_recording
    from explorer.report.recordings import RECORDING, t4_data
    from explorer.report.table import data_of, print_table, table_of
    from explorer.system.user_files import write_file

    if (name is None) != (t4 is None):
        raise InvalidInput("give a recording's name and --t4 FILE.json together, or neither")
    if name is not None and t4 is not None:
        check_replaceable(t4, T4_RESULTS, _T4_REMEDY)
        text = json_text.dumps(t4_data(load_recording(name)), separators=(",", ":"))
        write_file(t4, f"{text}\n".encode(), _T4_REMEDY)
        say(f"{t4}: recording {name} as T4")
        return
    files = list_recordings()
    rows = [data_of(RECORDING, file) for file in files]
    show_result(
        out.form,
        lambda console: print_table(table_of(RECORDING, files), console),
        lambda: {"recordings": rows},
        rows=lambda: rows,
    )
