"""OneFlow's three paths: a warp a row, a block with the row in shared memory, a block without."""

from explorer.model.config import Config
from explorer.model.gpu_spec import WARP, GpuSpec
from explorer.model.problem import Problem
from explorer.presets.preset import (
    FIRST_WARP,
    Preset,
    Source,
    holds,
    lanes_for,
    largest_as_resident,
    most_cols,
    packed_bytes,
    rows_at_once,
    scalar,
)

FILE = "oneflow/core/cuda/softmax.cuh"
PACK = 2
"""Elements of one access, where cols are even."""


def _kernel(name: str) -> Source:
    return Source("OneFlow", f"{FILE}, {name}")


def _warp(problem: Problem, _: GpuSpec) -> Config:
    pack = packed_bytes(problem, PACK)
    packs = problem.row_bytes // pack
    return scalar(
        problem,
        128,
        lanes_for(packs),
        vector_bytes=pack,
        cache="registers",
        cache_holds=holds(problem),
        static_cols=True,
        **rows_at_once(problem, 2 if packs <= WARP and problem.rows % 2 == 0 else 1),
    )


def _block_shared(problem: Problem, gpu: GpuSpec) -> Config:
    threads = largest_as_resident(problem.cols * 4 + 2 * 4 * WARP, gpu)
    return scalar(
        problem,
        threads,
        threads,
        vector_bytes=packed_bytes(problem, PACK),
        reduction=FIRST_WARP,
        cache="shared",
        cache_holds=holds(problem),
    )


def _block_uncached(problem: Problem, _: GpuSpec) -> Config:
    return scalar(
        problem, 1024, 1024, vector_bytes=packed_bytes(problem, PACK), reduction=FIRST_WARP
    )


PRESETS = (
    Preset(
        "oneflow-warp",
        "Up to 32 lanes for each row, two elements an access; the row stays in registers. "
        "Lanes with one access a row work on two rows at once.",
        _kernel("SoftmaxWarpImpl"),
        _warp,
        limit=most_cols(1024),
        reported="f16, 49152 rows of 512 to 1024 columns: 768 GiB/s on a GPU not named",
    ),
    Preset(
        "oneflow-block-shared",
        "A block for each row, two elements an access; its exponentials stay in shared memory, in "
        "fp32. As many threads as cost no resident block.",
        _kernel("SoftmaxBlockSMemImpl"),
        _block_shared,
        reported="f16, 49152 rows of 4096 columns: 778 GiB/s on a GPU not named",
    ),
    Preset(
        "oneflow-block-uncached",
        "A block of 1024 threads for each row, two elements an access: 3 reads and 1 write.",
        _kernel("SoftmaxBlockUncachedImpl"),
        _block_uncached,
    ),
)
