"""FastSoftmax's kernels; 3 is `shared-tree`, 10 is `register-float4`.

All were published with 0 as the identity of max, which is wrong for negative rows, and for cols
that are multiples of 4; here they are right for all.
"""

import math

from explorer.model.config import Config
from explorer.model.gpu_spec import GpuSpec
from explorer.model.problem import Problem, power_of_two
from explorer.presets.preset import (
    FIRST_WARP,
    Preset,
    Source,
    careful_sum,
    row_vectors,
    scalar,
    vectors,
    warps_for,
)

MOST_UNROLLED = 8


def _kernel(number: int) -> Source:
    return Source("FastSoftmax", f"kernels.cu, softmax_kernel{number}", "5fb0d4a")


def _whole_row(problem: Problem, _: GpuSpec) -> Config:
    """Published with 32 columns and rows a block: a row's other columns are other blocks'."""
    threads = warps_for(problem.cols)
    careful = {"arrangement": "replicated", "exp": "__expf", **careful_sum(problem)}
    return scalar(problem, threads, threads, **careful)


def _side_by_side(problem: Problem, _: GpuSpec) -> Config:
    """Published for shares of as many elements as there are threads."""
    threads = warps_for(math.isqrt(problem.cols - 1) + 1)
    arranged = {"arrangement": "blocked", "reduction": "shared-tree", "exp": "__expf"}
    return scalar(problem, threads, threads, **arranged)


def _warp_scalar(problem: Problem, _: GpuSpec) -> Config:
    return scalar(problem, 1024, 1024, reduction=FIRST_WARP)


def _tree(problem: Problem, _: GpuSpec) -> Config:
    return vectors(problem, warps_for(row_vectors(problem)), reduction="shared-tree")


def _warp(problem: Problem, _: GpuSpec) -> Config:
    return vectors(problem, warps_for(row_vectors(problem)), reduction=FIRST_WARP)


def _unrolled(problem: Problem, reduction: str, algorithm: str = "three-pass") -> Config:
    """The published tuning trades threads for vectors in flight: here as many as there are."""
    threads = max(128, warps_for(row_vectors(problem), MOST_UNROLLED))
    slots = -(-row_vectors(problem) // threads)
    unroll = min(MOST_UNROLLED, power_of_two(slots + 1) // 2)
    return vectors(problem, threads, reduction=reduction, unroll=unroll, algorithm=algorithm)


def _warp_unrolled(problem: Problem, _: GpuSpec) -> Config:
    return _unrolled(problem, FIRST_WARP)


def _online(problem: Problem, _: GpuSpec) -> Config:
    return _unrolled(problem, FIRST_WARP, "online-block-max")


def _tree_unrolled(problem: Problem, _: GpuSpec) -> Config:
    return _unrolled(problem, "shared-tree")


PRESETS = (
    Preset(
        "fast-softmax-1",
        "A thread for each column, up to 1024; each folds the whole row, twice, by itself.",
        _kernel(1),
        _whole_row,
    ),
    Preset(
        "fast-softmax-2",
        "A block for each row, as many threads as a thread has elements, which lie side by side; a "
        "tree in shared memory.",
        _kernel(2),
        _side_by_side,
    ),
    Preset(
        "fast-softmax-4",
        "A block of 1024 threads for each row; warps reduce by shuffles, the first warp folds what "
        "they found; one element an access.",
        _kernel(4),
        _warp_scalar,
        other_names=("aitemplate-block-uncached",),
    ),
    Preset(
        "fast-softmax-5",
        "A block for each row, 16-byte accesses, a tree in shared memory; 3 reads and 1 write.",
        _kernel(5),
        _tree,
    ),
    Preset(
        "fast-softmax-6",
        "A block for each row, 16-byte accesses; shuffles, then the first warp.",
        _kernel(6),
        _warp,
    ),
    Preset(
        "fast-softmax-7",
        "fast-softmax-6 with fewer threads and up to eight loads in flight.",
        _kernel(7),
        _warp_unrolled,
    ),
    Preset(
        "fast-softmax-8",
        "A block for each row; one maximum for all vectors in flight, then one rescaling of the "
        "sum; pairs are merged by shuffles, then by the first warp.",
        _kernel(8),
        _online,
    ),
    Preset(
        "fast-softmax-9",
        "fast-softmax-5 with fewer threads and up to eight loads in flight.",
        _kernel(9),
        _tree_unrolled,
    ),
)
