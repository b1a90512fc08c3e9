"""The problems that tables are made of, and those that nothing is fitted on, as the files say them.

`python -m tests.tuned_problems` writes studies/tuned/problems.csv and held-out/problems.csv anew. A
table is measured with `explorer tune --shapes studies/tuned/problems.csv`. The order is random, so
that a run that was stopped has problems of every kind.
"""

import csv
import io
import random
from collections.abc import Iterator
from pathlib import Path

from explorer.model.dtype import DType
from explorer.model.problem import Mask, Op, Problem
from tests.chooser_contest import drawn

FOLDER = Path(__file__).resolve().parents[1] / "studies" / "tuned"
COLUMNS = ("rows", "cols", "dtype", "op", "mask", "mask_rows", "inner")
MORE_COLUMNS = ("out_dtype", "input_stride", "output_stride")
"""Of a list in which a problem has two types or strides."""

SHORT = """2 3 5 8 13 17 24 32 33 48 63 64 96 100 127 128 177 255 256 297 384 400 500 512 513 640
777 1000 1001 1023"""
ABOUT_A_WAVE = "1296 1344 1501 2048 2999 4096 5000 6301 7900 8191"
MANY_WAVES = """1024 1280 1500 1536 1999 2000 2560 3000 3072 3333 4097 4608 5120 6144 7168 7999 8192
8200 9001 10240 11008 12288 13333 14336 16384 18432 20001 24576 28672 32000 32768 36000 40961 50257
50304 65536 65537 80000 100277 128256 131072 151936 200001 262144"""
FEW_ROWS = """1000 1500 4096 12288 28000 32000 45001 50257 65536 80000 100277 128256 151936 202048
262144 524288 1048576"""
FEW_ROWS_16_BIT = """1x2501 4x2501 2x2999 1x3333 8x3333 1x4095 3x4099 1x5555 1x9004 2x9004 4x9004
8x9004 2x9208 2x10508 3x12300 4x14000 1x14004 4x14004 2x16404 2x18400 1x18404 4x18404 2x20004"""
SHORT_ROWS_16_BIT = """16000x21 24000x21 32000x21 40000x21 16000x29 24000x29 32000x29 40000x29
24000x45 32000x45"""
SHORT_ROWS_F32 = "32000x21 24000x29"
OTHER_OPS = "17 33 100 300 512 1000 1501 2048 4096 5001 8192 10000 16384 20000 32768 50257 128256"

ADDED_LATER = (
    (
        Op.SOFTMAX_BACKWARD,
        DType.F32,
        """1x8192 8x8192 100x8192 1024x8192 1x16384 100x16384 8x32768 32x32768 8x50257 32x50257
100x50257 8x65536 32x65536 400x65536 1024x65536 32x100001 256x100001 1x131072 100x131072 1x262144
8x262144 100x262144 256x262144 8x524288""",
    ),
    (
        Op.SOFTMAX_BACKWARD,
        DType.BF16,
        """20000x777 528x1501 16384x2047 132x3001 400x5001 1x8192 256x8192 8x16384 100x16384
256x16384 400x16384 1024x16384 100x32768 256x32768 100x50257 400x50257 1x65536 8x100001
100x100001 256x100001 400x100001 8x131072 256x131072 400x131072 8x262144 32x262144 32x524288
100x524288""",
    ),
    (Op.SOFTMAX_BACKWARD, DType.F16, "33000x1001 8192x4095"),
    (Op.LOG_SOFTMAX_BACKWARD, DType.F32, "1024x65536 400x100001 32x131072"),
    (Op.LOG_SOFTMAX_BACKWARD, DType.BF16, "256x16384 400x16384 100x50257 100x131072"),
    (Op.SOFTMAX, DType.BF16, "16x10004 2x16004 40x20004 1x30004"),
    (Op.SOFTMAX, DType.F32, "1x9002 8x12010"),
    (
        Op.SOFTMAX_BACKWARD,
        DType.F32,
        """6452x2600 5592x3000 4934x3400 4369x3840 200000x21 20000x45 200000x22 500000x34
300000x65""",
    ),
    (
        Op.SOFTMAX_BACKWARD,
        DType.BF16,
        """7626x4400 6452x5200 5592x6000 4934x6800 4369x7680 9068x3700 1000000x5 300000x21 24000x21
60000x45 500000x65 100000x129 1000000x6 500000x12 300000x22 800000x34 20000x50 500000x66
400000x45""",
    ),
    (Op.LOG_SOFTMAX_BACKWARD, DType.F32, "5592x3000"),
    (Op.LOG_SOFTMAX_BACKWARD, DType.BF16, "5592x6000 300000x21"),
    (
        Op.SOFTMAX_BACKWARD,
        DType.BF16,
        """1x1502 1x1683 1x3001 3x2942 60x7001 100x601 100x1001 100x2501 141x2363 300x3002 300x5001
434x8170 500x6002 700x1121 700x2501 1000x1501 1000x3002 1731x1121 2000x1001""",
    ),
    (
        Op.SOFTMAX_BACKWARD,
        DType.F32,
        """1x1683 60x2201 100x1001 100x4097 150x10001 300x2201 300x5001 300x7001 374x10715 500x10001
700x1683 700x5001 1000x1121 1000x1502 1731x1121 2000x901 3000x1501""",
    ),
    (
        Op.LOG_SOFTMAX_BACKWARD,
        DType.BF16,
        "1x1502 100x1001 300x3002 434x8170 700x1121 700x2501 1000x3002",
    ),
    (
        Op.LOG_SOFTMAX_BACKWARD,
        DType.F32,
        "60x2201 100x1001 300x5001 374x10715 700x1683 1000x1502 1731x1121",
    ),
)
"""What rules were made by for gradients, and for few rows of whole words of 8 bytes. The four
entries from 6452x2600 on are of rows that a block of hundreds of threads has, and of short rows as
spans; the last four of few rows that start anywhere."""

MATRIX_BYTES = 2**27
"""Of a matrix of many waves: with its output, 256 MiB of traffic."""

WAVE_THREADS = 132 * 2048
"""Threads that an H100 or an H200 holds at once; elements of a wave are 8 of fp32 for each."""


def sizes(text: str) -> list[int]:
    return [int(word) for word in text.split()]


def softmax_of(dtype: DType) -> Iterator[Problem]:
    """Short rows, rows at the edge of one wave, of many waves, and few rows."""
    for cols in sizes(SHORT):
        for rows in (10_000, 200_000) if cols % 2 else (2_000, 50_000):
            yield Problem(rows, cols, dtype)
    for cols in sizes(ABOUT_A_WAVE):
        for waves in (0.5, 0.8, 0.95, 1.1, 1.4, 2.0):
            elements = WAVE_THREADS * (8 if dtype is DType.F32 else 16)
            yield Problem(round(elements / cols * waves), cols, dtype)
    for cols in sizes(MANY_WAVES):
        yield Problem(round(MATRIX_BYTES / dtype.itemsize / cols), cols, dtype)
    for cols in sizes(FEW_ROWS):
        for rows in (1, 4, 16, 40, 100, 300):
            if rows * cols * dtype.itemsize <= 2 * MATRIX_BYTES:
                yield Problem(rows, cols, dtype)


def other_ops() -> Iterator[Problem]:
    for op in (Op.LOG_SOFTMAX, Op.SOFTMAX_BACKWARD, Op.LOG_SOFTMAX_BACKWARD):
        for dtype in (DType.F32, DType.BF16):
            for cols in sizes(OTHER_OPS):
                yield Problem(round(MATRIX_BYTES / 2 / dtype.itemsize / cols), cols, dtype, op)
            for rows, cols in ((512, 1024), (64, 32000), (8, 151936)):
                yield Problem(rows, cols, dtype, op)


def masks_and_axes() -> Iterator[Problem]:
    elements = 2**24
    for dtype in (DType.F32, DType.BF16):
        for cols in (128, 512, 1024, 2048, 4096, 8192):
            rows = cols * max(1, elements // cols // cols)
            yield Problem(rows, cols, dtype, mask=Mask.CAUSAL, mask_rows=cols)
        for cols in (300, 1024, 4096):
            rows = elements // cols
            yield Problem(rows, cols, dtype, mask=Mask.LENGTHS)
            yield Problem(rows // 64 * 64, cols, dtype, mask=Mask.ADDITIVE, mask_rows=64)
        for outer, cols, inner in (
            (32, 64, 4096),
            (1, 1024, 16384),
            (1, 4096, 4096),
            (64, 256, 512),
            (1, 8192, 2048),
            (4096, 3, 4096),
        ):
            yield Problem(outer * inner, cols, dtype, inner=inner)


def named(text: str, dtype: DType, op: Op = Op.SOFTMAX) -> Iterator[Problem]:
    """Problems of shapes such as 8x4096."""
    for shape in text.split():
        rows, cols = map(int, shape.split("x"))
        yield Problem(rows, cols, dtype, op)


def added_later() -> Iterator[Problem]:
    for op, dtype, shapes in ADDED_LATER:
        yield from named(shapes, dtype, op)
    yield Problem(23051, 89, DType.BF16, mask=Mask.CAUSAL, mask_rows=89)
    yield Problem(150474, 62, DType.F16, mask=Mask.ADDITIVE, mask_rows=62)
    yield Problem(61835, 149, DType.F16, mask=Mask.ADDITIVE, mask_rows=149)
    yield Problem(100000, 45, DType.BF16, mask=Mask.LENGTHS)
    yield Problem(104104, 12, DType.F32, inner=11)
    yield Problem(752282, 18, DType.BF16, inner=106)
    yield Problem(251314, 21, DType.F32, inner=406)
    yield Problem(300200, 8, DType.BF16, Op.SOFTMAX_BACKWARD, inner=1501)


def of_tables() -> list[Problem]:
    """What every table has, shuffled; what was added later comes last."""
    found = [*softmax_of(DType.F32), *softmax_of(DType.BF16)]
    for step in range(10):
        cols = round(64 * 2048 ** (step / 9))
        found.append(Problem(round(MATRIX_BYTES / 2 / cols), cols, DType.F16))
    for cols in (100, 1000, 1501, 3000, 4097, 8191, 16384, 32000, 50257, 100000):
        found.append(Problem(round(MATRIX_BYTES / 2 / cols), cols, DType.F16))
    found += [*other_ops(), *masks_and_axes(), *chosen_small_matrices(), *drawn_small_matrices()]
    found = list(dict.fromkeys(found))
    random.Random(7).shuffle(found)
    return [*found, *added_later()]


def held_out(seed: int = 60602) -> list[Problem]:
    """Return sixty problems of all kinds, drawn as the contest of choosers draws them.

    No rule may be made on them, or after a look at one. Where that has happened, another seed draws
    others, which are then measured.
    """
    return drawn(60, seed)


# Matrices that take two to five microseconds, of kinds of which the heuristic knew least.


def chosen_small_matrices() -> Iterator[Problem]:
    """Those that four rules of the heuristic were made by."""
    chosen = ((DType.BF16, FEW_ROWS_16_BIT + " " + SHORT_ROWS_16_BIT), (DType.F32, SHORT_ROWS_F32))
    for dtype, shapes in chosen:
        yield from named(shapes, dtype)


def drawn_small_matrices() -> Iterator[Problem]:
    """Those that were drawn to judge these rules."""
    rng = random.Random(20261125)
    dtypes = [DType.BF16, DType.BF16, DType.F16, DType.F32]
    for _ in range(22):
        rows, cols = rng.choice([1, 1, 2, 3, 4, 6, 8]), int(2000 * 15 ** rng.random())
        yield Problem(rows, cols, rng.choice(dtypes))
    for _ in range(14):
        rows, cols = int(12_000 * 5 ** rng.random()), rng.randrange(17, 64)
        yield Problem(rows, cols, rng.choice(dtypes))


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


FILES = {FOLDER / "problems.csv": of_tables, FOLDER / "held-out" / "problems.csv": held_out}


if __name__ == "__main__":
    for path, problems in FILES.items():
        path.write_text(text_of(problems()))
