"""The problems that no rule of the chooser is fitted on, as a file of studies/tuned says them.

`python -m tests.tuned_problems` writes studies/tuned/held-out/problems.csv anew. The other list,
studies/tuned/problems.csv, is itself what tables are made of: problems are added at its end.
"""

import csv
import io
from pathlib import Path

from explorer.model.problem import Problem
from tests.chooser_contest import drawn

FOLDER = Path(__file__).resolve().parents[1] / "studies" / "tuned"
HELD_OUT = FOLDER / "held-out" / "problems.csv"
COLUMNS = ("rows", "cols", "dtype", "op", "mask", "mask_rows", "inner")
MORE_COLUMNS = (
    "out_dtype",
    "input_stride",
    "output_stride",
    "ids_per_row",
    "ids_dtype",
    "also",
    "ignore_index",
)
"""Of a list in which a problem has two types, strides, ids or further results."""


def held_out(seed: int = 60602) -> list[Problem]:
    """Return sixty problems of all kinds, drawn as the contest of choosers draws them.

    No rule may be made on them, or after a look at one. Where that has happened, another seed draws
    others, which are then measured.
    """
    return drawn(60, seed)


def text_of(problems: list[Problem]) -> str:
    some_have = {name for one in problems for name in one.as_dict()}
    columns = (*COLUMNS, *(name for name in MORE_COLUMNS if name in some_have))
    written = io.StringIO(newline="")
    writer = csv.DictWriter(written, columns, lineterminator="\n")
    writer.writeheader()
    for one in problems:
        values = one.as_dict()
        writer.writerow({name: values.get(name, "") for name in columns})
    return written.getvalue()


if __name__ == "__main__":
    HELD_OUT.write_text(text_of(held_out()))
