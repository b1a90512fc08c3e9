"""AITemplate's kernels: which one runs depends on cols alone. Uncached: `fast-softmax-4`."""

from explorer.config import Config
from explorer.gpu_spec import GpuSpec
from explorer.presets.block_size import WARP, lanes_for, largest_as_resident
from explorer.presets.designs import FIRST_WARP, holds, packed_bytes, scalar
from explorer.presets.preset import Preset, Source, most_cols
from explorer.problem import Problem

FILE = "python/aitemplate/backend/cuda/softmax/softmax.cuh"
MOST_ELEMENTS = 8
"""Of one access, where cols are a multiple of it."""

MOST_COLS_OF_A_WARP = 3840


def _kernel(name: str) -> Source:
    return Source("AITemplate", f"{FILE}, {name}")


def _warp(problem: Problem, _: GpuSpec) -> Config:
    pack = packed_bytes(problem, MOST_ELEMENTS)
    return scalar(
        problem,
        128,
        lanes_for(-(-problem.row_bytes // pack)),
        vector_bytes=pack,
        cache="registers",
        cache_holds=holds(problem),
        static_cols=True,
    )


def _block(problem: Problem, gpu: GpuSpec) -> Config:
    threads = largest_as_resident(problem.cols * 4 + 2 * 4 * WARP, gpu)
    return scalar(
        problem,
        threads,
        threads,
        vector_bytes=packed_bytes(problem, MOST_ELEMENTS),
        reduction=FIRST_WARP,
        cache="shared",
        cache_holds=holds(problem),
    )


PRESETS = (
    Preset(
        "aitemplate-warp",
        "Up to 32 lanes for each row, as many as have a vector of it; the row stays in registers.",
        _kernel("softmax_stored_locally_multi_dim"),
        _warp,
        limit=most_cols(MOST_COLS_OF_A_WARP),
    ),
    Preset(
        "aitemplate-block",
        "A block for each row, by accesses of up to eight elements; its exponentials stay in "
        "shared memory, in fp32. As many threads as cost no resident block.",
        _kernel("softmax_block_smem"),
        _block,
    ),
)
