"""Lists of problems to tune, as files of studies/tuned say them.

`python -m tests.tuned_problems` writes three of them anew: studies/tuned/held-out/problems.csv, of
problems that no rule of the chooser is fitted on, studies/tuned/losses.csv and
studies/tuned/attention.csv. The fourth, studies/tuned/problems.csv, is itself what tables are made
of: problems are added at its end.
"""

import csv
import io
import random
from pathlib import Path

from explorer.model.problem import Problem
from explorer.ops import Op
from tests.chooser_contest import drawn

FOLDER = Path(__file__).resolve().parents[1] / "studies" / "tuned"
HELD_OUT = FOLDER / "held-out" / "problems.csv"
LOSSES = FOLDER / "losses.csv"
ATTENTION = FOLDER / "attention.csv"
COLUMNS = ("rows", "cols", "dtype", "op", "mask", "mask_rows", "inner")
MORE_COLUMNS = (
    "out_dtype",
    "input_stride",
    "output_stride",
    "ids_per_row",
    "ids_dtype",
    "also",
    "ignore_index",
    "head_dim",
    "group",
    "key_heads",
    "layout",
)
"""Of a list in which a problem has two types, strides, ids, further results or heads."""


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


OF_CACHES = [
    # sequences, key heads, group, keys, head dimension, type
    (1, 8, 4, 1024, 128, "bf16"),
    (1, 8, 4, 4096, 128, "bf16"),
    (1, 8, 4, 32768, 128, "bf16"),
    (1, 8, 4, 131072, 128, "bf16"),
    (32, 8, 4, 4096, 128, "bf16"),
    (16, 8, 1, 8192, 128, "bf16"),
    (16, 8, 8, 8192, 128, "f16"),
    (16, 8, 8, 4096, 256, "bf16"),
    (64, 8, 8, 4096, 64, "bf16"),
    (64, 8, 1, 4096, 64, "f16"),
    (8, 8, 4, 4096, 128, "bf16"),
    (1, 4, 8, 4096, 128, "bf16"),
    (1, 32, 1, 2048, 128, "f16"),
    (4, 8, 5, 8192, 128, "bf16"),
    (4, 4, 7, 16384, 128, "bf16"),
    (16, 8, 4, 8192, 128, "f32"),
    (1, 8, 4, 16384, 128, "f32"),
    (128, 8, 4, 512, 128, "bf16"),
    (8, 8, 2, 1024, 64, "bf16"),
    (2, 16, 1, 4096, 256, "bf16"),
]
"""Caches of language models: a conversation, batches of them, long contexts, all groups."""

CHOSEN_CACHES = len(OF_CACHES)

MOST_CACHE_BYTES = 2**30


def drawn_caches(number: int, seed: int) -> list[Problem]:
    """Return problems of attention, 1 to 128 sequences of 128 to 131072 keys, log-uniformly.

    Those of more than MOST_CACHE_BYTES are drawn anew. At least half have less than 64 MB.
    """
    rng = random.Random(seed)
    found: list[Problem] = []
    while len(found) < number:
        sequences, keys = (round(2 ** rng.uniform(0, 7)), round(2 ** rng.uniform(7, 17)))
        group, heads = rng.randint(1, 8), rng.choice((4, 8, 8, 16))
        problem = Problem(
            sequences * heads * group,
            keys,
            rng.choice(("bf16", "bf16", "f16")),
            Op.DECODE_ATTENTION,
            head_dim=rng.choice((64, 128, 128, 256)),
            group=group,
            key_heads=heads,
            layout=rng.choice(("HND", "NHD")),
        )
        few = 2 * sum(one.bytes < 64e6 for one in found) >= len(found)
        if problem.bytes <= MOST_CACHE_BYTES and (few or problem.bytes < 64e6):
            found.append(problem)
    return found


def caches(seed: int = 640) -> list[Problem]:
    """Return sixty problems of attention: twenty that were chosen, and forty drawn at random."""
    chosen = [
        Problem(
            *(sequences * heads * group, keys, dtype, Op.DECODE_ATTENTION),
            head_dim=dim,
            group=group,
            key_heads=heads,
        )
        for sequences, heads, group, keys, dim, dtype in OF_CACHES
    ]
    return [*chosen, *drawn_caches(40, seed)]


FRESH_SEED = 641
"""Of forty other problems of attention, on which the choice without a search is compared."""


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
    ATTENTION.write_text(text_of(caches()))
