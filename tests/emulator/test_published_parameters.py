"""What few published kernels are made of, and no search proposes: verified by emulation."""

import pytest
from verified import find_out, verify

from explorer.model.config import Config
from explorer.model.dtype import DType
from explorer.model.problem import Problem


@pytest.mark.sampled(6)
@pytest.mark.parametrize(
    ("cols", "dtype", "choices"),
    [
        (1024, DType.F32, {"threads": 64, "threads_per_row": 64, "unroll": 2}),
        (1001, DType.F32, {"threads": 128, "threads_per_row": 32, "static_cols": False}),
        (503, DType.F32, {"threads": 96, "threads_per_row": 96, "reduction": "shared-tree"}),
        (130, DType.F64, {"threads": 64, "threads_per_row": 1, "exp": "exp2f"}),
    ],
)
def test_exponentials_wait_in_the_output(emulator, cols, dtype, choices):
    verify(emulator, Problem(64, cols, dtype), Config(cache="output", **choices))


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    ("cols", "dtype", "choices"),
    [
        (96, DType.F16, {"threads": 32, "threads_per_row": 1, "vector_bytes": 2}),
        (1000, DType.F16, {"threads": 128, "threads_per_row": 128, "vector_bytes": 8}),
        (1001, DType.F32, {"threads": 128, "threads_per_row": 32, "static_cols": False}),
        (503, DType.BF16, {"threads": 96, "threads_per_row": 96, "reduction": "shared-serial"}),
        (130, DType.F64, {"threads": 64, "threads_per_row": 1, "exp": "exp2f"}),
    ],
)
def test_three_launches_share_scratch(emulator, cols, dtype, choices):
    usual = {"cache": "none", "cache_holds": "input", "vector_bytes": 8}
    verify(emulator, Problem(64, cols, dtype), Config(launches="three", **{**usual, **choices}))


def test_a_missing_barrier_between_rows_is_found(emulator):
    """Without it the next rows' reduction overwrites what threads still read."""
    config = Config(threads=128, threads_per_row=128, algorithm="online-block-max", persistent=1)
    barrier = "    __syncthreads();  // the next rows"
    find_out(emulator, Problem(64, 512), config, [(barrier, "    // the next rows")])
