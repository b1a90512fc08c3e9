"""Emitted kernels, kept whole: a change of a template shows as a change of these files.

EXPLORER_UPDATE_GOLDEN=1 writes them anew; the difference is then for a person to read.
"""

import os
from pathlib import Path

import pytest

from explorer.codegen.units import emit
from explorer.model.config import Config
from explorer.model.element import DType
from explorer.model.problem import Problem

GOLDEN = Path(__file__).parents[1] / "golden"

CASES = {
    # The default: one row a block, kept in registers, whole vectors.
    "registers_f32_4096": (Problem(8192, 4096), Config()),
    # One exchange for maximum and sum, misaligned rows, 16-bit elements.
    "online_bf16_4097": (
        Problem(8192, 4097, DType.BF16),
        Config(algorithm="online-block-max", exp="ex2.approx", store_hint="cs"),
    ),
    # Several rows a block, run-time columns, cache and reduction in shared memory.
    "shared_f16_1000": (
        Problem(65536, 1000, DType.F16),
        Config(
            threads=256,
            threads_per_row=64,
            cache="shared",
            reduction="shared-tree",
            unroll=2,
            static_cols=False,
        ),
    ),
    # The textbook kernel: a thread a row, online, nothing cached.
    "thread_per_row_f32_64": (
        Problem(131072, 64),
        Config(
            algorithm="online-branchy",
            threads=128,
            threads_per_row=1,
            vector_bytes=4,
            cache="none",
            cache_holds="input",
            exp="expf",
            normalise="divide",
        ),
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_golden(name):
    problem, config = CASES[name]
    source = emit(problem, config, main=True).source
    path = GOLDEN / f"{name}.cu"
    if os.environ.get("EXPLORER_UPDATE_GOLDEN"):
        path.write_text(source)
    assert path.read_text() == source
