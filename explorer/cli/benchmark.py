"""`explorer benchmark` and `explorer recordings`: how good searches are, and the data for it."""

import json as json_text
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from explorer.cli import completions
from explorer.cli.help import RESULTS
from explorer.cli.options import Csv, Json, check_one_format
from explorer.cli.output import INTERRUPTED, say
from explorer.model.asked import whole_number
from explorer.model.errors import InvalidInput

if TYPE_CHECKING:
    from explorer.tuning.benchmark import Score

Names = Annotated[
    list[str] | None,
    typer.Option(
        "--recording",
        metavar="NAME",
        help="A recording to search; may be repeated; default: all that hold a whole sub-space.",
        show_default=False,
        autocompletion=completions.recordings,
    ),
]
Strategies = Annotated[
    list[str] | None,
    typer.Option(
        "--strategy",
        metavar="NAME",
        help="A strategy to compare; may be repeated; default: all.",
        show_default=False,
        autocompletion=completions.strategies,
    ),
]
Seeds = Annotated[
    int,
    typer.Option(
        "--seeds",
        metavar="N",
        parser=whole_number("seeds", 1),
        help="Searches of each recording by each strategy.",
    ),
]


def benchmark(
    recording: Names = None, strategy: Strategies = None, seeds: Seeds = 10, json: Json = False
) -> None:
    """Compare search strategies on recordings in which every kernel was measured."""
    from explorer.devices.recorded import list_recordings, load_recording
    from explorer.report.benchmark import print_scores, scores_data
    from explorer.report.table import results
    from explorer.report.text import as_json
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
    try:
        for truth in truths:
            for name in strategy or STRATEGIES:
                say(f"{truth.name}: {name}")
                scores.append(score(truth, name, range(seeds)))
    except KeyboardInterrupt:
        say("stopped")
        raise typer.Exit(INTERRUPTED) from None
    if json:
        print(as_json(scores_data(scores)))
    else:
        print_scores(scores, results())


_T4_REMEDY = "name another --t4"

T4 = Annotated[
    Path | None,
    typer.Option(
        "--t4",
        metavar="FILE.json",
        help="Write the kernels of NAME as T4, the format that Kernel Tuner reads.",
        show_default=False,
        rich_help_panel=RESULTS,
    ),
]
Name = Annotated[
    str | None,
    typer.Argument(
        metavar="NAME",
        help="A recording, to write with --t4.",
        show_default=False,
        autocompletion=completions.recordings,
    ),
]


def recordings(name: Name = None, t4: T4 = None, json: Json = False, csv: Csv = False) -> None:
    """List the recordings that a search can replay, or write one as T4, for Kernel Tuner."""
    from explorer.devices.recorded import list_recordings, load_recording
    from explorer.report.benchmark import t4_data
    from explorer.report.csv_data import as_csv, recording_rows
    from explorer.report.own_files import T4_RESULTS, check_replaceable
    from explorer.report.space import print_recordings, recordings_data
    from explorer.report.table import results
    from explorer.report.text import as_json
    from explorer.system.user_files import check_writable, write_file

    check_one_format(json=json, csv=csv)
    if (name is None) != (t4 is None):
        raise InvalidInput("give a recording's name and --t4 FILE.json together, or neither")
    if name is not None and t4 is not None:
        check_writable(t4, _T4_REMEDY)
        check_replaceable(t4, T4_RESULTS, _T4_REMEDY)
        text = json_text.dumps(t4_data(load_recording(name)), separators=(",", ":"))
        write_file(t4, f"{text}\n".encode(), _T4_REMEDY)
        say(f"{t4}: recording {name} as T4")
        return
    files = list_recordings()
    if json:
        print(as_json({"recordings": recordings_data(files)}))
    elif csv:
        print(as_csv(recording_rows(files)), end="")
    else:
        print_recordings(files, results())
