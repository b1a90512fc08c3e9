"""Lists of problems to tune, as files of studies/tuned say them.

`python -m tests.tuned_problems` writes two of them anew: studies/tuned/held-out/problems.csv, of
problems that no rule of the chooser is fitted on, and studies/tuned/losses.csv. The third,
studies/tuned/problems.csv, is itself what tables are made of: problems are added at its end.
"""

import csv
import io
from pathlib import Path

from explorer.model.problem import Problem
from explorer.ops import Op
from tests.chooser_contest import drawn

FOLDER = Path(__file__).resolve().parents[1] / "studies" / "tuned"
HELD_OUT = FOLDER / "held-out" / "problems.csv"
LOSSES = FOLDER / "losses.csv"
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


LOSS, GRADIENT, BOTH = (
    {"op": Op.CROSS_ENTROPY},
    {"op": Op.CROSS_ENTROPY_BACKWARD},
    {"op": Op.CROSS_ENTROPY_WITH_GRADIENT, "also": "loss"},
)
ALL_THREE = (LOSS, GRADIENT, BOTH)

OF_LOSSES = [
    ((131072, 1000, "bf16"), ALL_THREE),
    ((32768, 4096, "bf16"), ALL_THREE),
    ((8192, 50257, "bf16"), ALL_THREE),
    ((16, 151936, "bf16"), ALL_THREE),
    ((4096, 151936, "bf16"), ALL_THREE),
    ((8 * 2**21, 19, "bf16", 2**21), (LOSS, BOTH)),
    ((262144, 257, "f16"), ALL_THREE),
    ((2048, 128256, "f32"), ALL_THREE),
    ((262144, 256, "f32"), ALL_THREE),
    ((8192, 32000, "f32"), ALL_THREE),
    ((4096, 128256, "bf16"), ALL_THREE),
    ((16384, 32000, "bf16", 1, "int32"), ALL_THREE),
    ((4096, 50257, "f32"), ALL_THREE),
    ((1, 151936, "bf16"), ALL_THREE),
    ((64, 128256, "bf16", 1, "int32"), ALL_THREE),
    ((2048, 262144, "bf16"), ALL_THREE),
    ((16384, 4097, "f16"), ALL_THREE),
    ((4 * 2**18, 150, "bf16", 2**18), ALL_THREE),
    ((16, 50257, "f32"), ALL_THREE),
    ((131072, 1000, "f32"), (LOSS, BOTH)),
    ((8 * 2**18, 21, "f32", 2**18, "int32"), (LOSS, BOTH)),
]
"""Rows, columns, type, `inner` and the targets' type of losses, with the operators: vocabularies of
language models, few rows of them, classes of images, and pixels along a middle axis."""


def losses() -> list[Problem]:
    """Return sixty problems of losses and their gradients."""
    names = ("rows", "cols", "dtype", "inner", "ids_dtype")
    return [
        Problem(**dict(zip(names, sizes, strict=False)), **of)
        for sizes, operators in OF_LOSSES
        for of in operators
    ]


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
    LOSSES.write_text(text_of(losses()))
