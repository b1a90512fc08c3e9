"""AITemplate's kernels: which one runs depends on cols alone. Uncached: `fast-softmax-4`."""

from explorer.model.config import Config
from explorer.model.gpu_spec import WARP, GpuSpec
from explorer.model.problem import Op, Problem
from explorer.presets.preset import (
    FIRST_WARP,
    VECTOR_BYTES,
    Preset,
    Source,
    holds,
    lanes_for,
    largest_as_resident,
    most_cols,
    packed_bytes,
    scalar,
)

FILE = "python/aitemplate/backend/cuda/softmax/softmax.cuh"
MOST_ELEMENTS = 8
"""Of one access, where cols are a multiple of it."""

MOST_COLS_OF_A_WARP = 3840


def _kernel(name: str) -> Source:
    return Source("AITemplate", f"{FILE}, {name}")


def _small_cols(problem: Problem, _: GpuSpec) -> Config:
    return scalar(
        problem,
        128,
        1,
        vector_bytes=VECTOR_BYTES,
        cache="registers",
        cache_holds=holds(problem),
        exp="__expf",
        normalise="reciprocal",
        static_cols=True,
        staging="span",
    )


def _few_cols(problem: Problem) -> str:
    if problem.cols <= 8 or (problem.cols <= 32 and problem.cols % 4 == 0):
        return ""
    return "it is for rows of at most 8 columns, or of 12, 16, ... 32"


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
        "aitemplate-small-cols",
        "A thread for each row of few columns; rows come as one contiguous span of 16-byte "
        "accesses, and leave as one.",
        _kernel("softmax_small_k"),
        _small_cols,
        ops=(Op.SOFTMAX,),
        limit=_few_cols,
    ),
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
