"""16-bit rows at any element: ends loaded with their neighbours, elements kept two a register."""

from dataclasses import replace

import pytest
from verified import find_out, verify

from explorer.model.config import Config
from explorer.model.element import DType
from explorer.model.problem import Problem
from explorer.ops import Op

ONE_WARP = Config(threads=64, threads_per_row=32)


@pytest.mark.sampled(10)
@pytest.mark.parametrize(
    ("algorithm", "holds"),
    [
        ("three-pass", "exp"),
        ("three-pass", "input"),
        ("online", "input"),
        ("online-block-max", "exp"),
        ("online-block-max", "input"),
    ],
)
@pytest.mark.parametrize(
    ("rows", "cols", "vector_bytes"),
    [(1, 521, 16), (2, 521, 16), (9, 515, 8), (7, 255, 4), (5, 512, 16)],
)
def test_rows_that_start_anywhere(emulator, algorithm, holds, rows, cols, vector_bytes):
    config = replace(ONE_WARP, algorithm=algorithm, cache_holds=holds, vector_bytes=vector_bytes)
    verify(emulator, Problem(rows, cols, DType.BF16), config)


@pytest.mark.sampled(5)
@pytest.mark.parametrize("reduction", ["shuffle", "shuffle-redux"])
@pytest.mark.parametrize(
    "changes",
    [
        {"op": Op.LOG_SOFTMAX},
        {"scale": -1.5},
        {"out_dtype": DType.F32},
        {"in_place": True},
        {"input_stride": 530, "output_stride": 531},
    ],
    ids=str,
)
def test_rows_of_every_kind(emulator, reduction, changes):
    problem = Problem(5, 523, **{"dtype": DType.F16, **changes})
    choices = {"algorithm": "online-block-max", "cache_holds": "input", "reduction": reduction}
    verify(emulator, problem, replace(ONE_WARP, **choices))


DEFECTS = {
    "what lies before the matrix is read": ("index > 0 && ", ""),
    "what lies after the matrix is read": (" && index + 1 < rows", ""),
    "neighbours are not hidden": ("hide_others(row, k, loaded[slot]);", "{}"),
    "the next row is not hidden": (
        "place >= row.begin && place < row.end ? 0x0000",
        "true ? 0x0000",
    ),
}


@pytest.mark.sampled(3)
@pytest.mark.parametrize("defect", DEFECTS)
def test_defects_are_found_out(emulator, defect):
    find_out(emulator, Problem(5, 523, DType.BF16), ONE_WARP, [DEFECTS[defect]])
