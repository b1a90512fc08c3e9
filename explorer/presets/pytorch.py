"""PyTorch's paths: a warp a row, then a block with the row in registers, in shared memory, or not.

`torch.softmax` takes the warp up to 2048 columns and 8 KiB a row, registers up to nine elements a
thread, shared memory where the row fits in 48 KiB, and else three reads.
"""

from explorer.model.config import Config
from explorer.model.gpu_spec import WARP, GpuSpec
from explorer.model.problem import Problem, power_of_two
from explorer.presets.preset import (
    FIRST_WARP,
    VECTOR_BYTES,
    Preset,
    Source,
    holds,
    lanes_for,
    most_cols,
    row_vectors,
    rows_at_once,
    scalar,
)

FOLDER = "aten/src/ATen/native/cuda"
THREADS = 1024
MOST_COLS_OF_A_WARP = 2048
MOST_COLS_OF_TWO_ROWS = 128
MOST_COLS_IN_REGISTERS = 9 * THREADS
SHARED_BYTES = 48 * 1024
"""Shared memory that a block has without asking for more."""


def _kernel(file: str, name: str) -> Source:
    return Source("PyTorch", f"{FOLDER}/{file}, {name}", "2.10")


def _warp(problem: Problem, _: GpuSpec) -> Config:
    return scalar(
        problem,
        128,
        lanes_for(problem.cols),
        cache="registers",
        cache_holds=holds(problem),
        static_cols=True,
        **rows_at_once(problem, 2 if problem.cols <= MOST_COLS_OF_TWO_ROWS else 1),
    )


def _block_registers(problem: Problem, _: GpuSpec) -> Config:
    return scalar(
        problem, THREADS, THREADS, reduction=FIRST_WARP, cache="registers", static_cols=True
    )


def _block_shared(problem: Problem, _: GpuSpec) -> Config:
    return scalar(
        problem,
        THREADS,
        THREADS,
        vector_bytes=VECTOR_BYTES,
        reduction=FIRST_WARP,
        cache="shared",
    )


def _block_uncached(problem: Problem, _: GpuSpec) -> Config:
    return scalar(problem, THREADS, THREADS, vector_bytes=VECTOR_BYTES, reduction=FIRST_WARP)


def _spatial(problem: Problem, _: GpuSpec) -> Config:
    """Threads lie along the inner axis first; where that is short, several share a row."""
    across = min(THREADS, power_of_two(problem.inner))
    along = 1
    if across <= 64 and problem.cols >= 64:
        along = min(THREADS // across, power_of_two(problem.cols + 1) // 2)
    reduction = "shared-tree" if along > 1 else "shuffle"
    return scalar(problem, max(WARP, across * along), along, reduction=reduction)


def _warp_limit(problem: Problem) -> str:
    too_wide = problem.row_bytes > 8192
    limit = "it is for rows of at most 8 KiB"
    return most_cols(MOST_COLS_OF_A_WARP)(problem) or (limit if too_wide else "")


def _shared_limit(problem: Problem) -> str:
    if problem.row_bytes % VECTOR_BYTES:
        return "it is for rows of whole 16-byte vectors"
    if row_vectors(problem) * VECTOR_BYTES >= SHARED_BYTES:
        return "it is for rows of less than 48 KiB"
    return ""


PRESETS = (
    Preset(
        "pytorch-warp",
        "Up to 32 lanes for each row, one element an access; the row stays in registers. Of rows "
        "of at most 128 columns, two at once.",
        _kernel("PersistentSoftmax.cuh", "softmax_warp_forward"),
        _warp,
        limit=_warp_limit,
    ),
    Preset(
        "pytorch-block-registers",
        "A block of 1024 threads for each row, one element an access, up to nine of them kept in "
        "registers by each thread.",
        _kernel("SoftMax.cu", "cunn_SoftMaxForwardReg"),
        _block_registers,
        limit=most_cols(MOST_COLS_IN_REGISTERS),
    ),
    Preset(
        "pytorch-block-shared",
        "A block of 1024 threads for each row, 16-byte accesses; the inputs stay in shared memory.",
        _kernel("SoftMax.cu", "cunn_SoftMaxForwardSmem"),
        _block_shared,
        limit=_shared_limit,
    ),
    Preset(
        "pytorch-block-uncached",
        "A block of 1024 threads for each row, 16-byte accesses: 3 reads and 1 write.",
        _kernel("SoftMax.cu", "cunn_SoftMaxForward"),
        _block_uncached,
    ),
    Preset(
        "pytorch-spatial",
        "For a middle axis: neighbouring threads have neighbouring rows, and share them where the "
        "inner axis is short; a tree in shared memory; 3 reads and 1 write.",
        _kernel("SoftMax.cu", "cunn_SpatialSoftMaxForward"),
        _spatial,
        other_names=("aitemplate-general",),
        across_rows=True,
    ),
)
