"""`explorer time`: verify an emitted file, which a person may have edited, then time it."""

from pathlib import Path
from typing import Annotated

import typer

from explorer.cli import completions
from explorer.cli.options import AccuracyLevel, Json, Timing, argument, option
from explorer.model.accuracy import Accuracy
from explorer.model.asked import whole_number
from explorer.model.problem import MAX_COLS, MAX_ROWS

File = Annotated[str, argument("FILE.cu", "A file that explorer emit wrote, edited or not.")]
Cols = Annotated[
    int | None,
    option(
        "--cols C",
        "Columns, where the kernel takes them at run time; default: the file's.",
        whole_number("cols", 1, MAX_COLS),
    ),
]
Rows = Annotated[
    int | None,
    option(
        "--rows R", "Rows of the matrix; default: the file's.", whole_number("rows", 1, MAX_ROWS)
    ),
]
GpuDevice = Annotated[
    str,
    option(
        "--device DEVICE",
        "The GPU to time on: cuda:N, or auto, which is cuda:0.",
        complete=completions.among("auto", "cuda:0"),
    ),
]


def time(
    file: File,
    cols: Cols = None,
    rows: Rows = None,
    device: GpuDevice = "auto",
    timing: Timing = "cold",
    accuracy: AccuracyLevel = Accuracy.DEFAULT,
    json: Json = False,
) -> None:
    """Verify an emitted file, then time it.

    Exit code 1: it is wrong. Exit code 2: it could not be verified.
    """
    from explorer.evaluate.program_under_test import read_emitted
    from explorer.evaluate.verify import time_file
    from explorer.report.table import results
    from explorer.report.text import as_json
    from explorer.report.verification import exit_code, print_timed_file, timed_file_data

    path = Path(file)
    program = read_emitted(path).at_cols(cols)
    timed = time_file(program, device, rows, timing, accuracy)
    if json:
        print(as_json(timed_file_data(timed, path)))
    else:
        print_timed_file(timed, path, results())
    raise typer.Exit(exit_code([timed.verdict]))
