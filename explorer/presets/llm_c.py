"""llm.c's teaching kernels, softmax_forward 1 to 9. Number 5 is `thread-per-row-online-branchy`."""

from explorer.model.config import Config
from explorer.model.gpu_spec import WARP, GpuSpec
from explorer.model.problem import Problem, power_of_two
from explorer.presets.preset import (
    EXPONENTIALS_STORED,
    FIRST_WARP,
    Preset,
    Source,
    careful_sum,
    scalar,
    stored,
)

FILE = "dev/cuda/softmax_forward.cu"
COMMIT = "f1e2ace"
THREADS = 256
"""A block of eight warps, of which each has a row; the originals take any multiple of 32."""


def _kernel(number: int) -> Source:
    return Source("llm.c", f"{FILE}, kernel {number}", COMMIT)


def _thread_per_row(problem: Problem, _: GpuSpec) -> Config:
    return stored(problem, WARP, 1, **careful_sum(problem))


def _block_tree(problem: Problem, _: GpuSpec) -> Config:
    return stored(problem, THREADS, THREADS, reduction="shared-tree")


def _warp_per_row(problem: Problem, _: GpuSpec) -> Config:
    return stored(problem, WARP, WARP)


def _block_shuffle(problem: Problem, _: GpuSpec) -> Config:
    return stored(problem, THREADS, THREADS, reduction=FIRST_WARP)


def _block_unrolled(problem: Problem, _: GpuSpec) -> Config:
    slots = -(-problem.cols // THREADS)
    unroll = min(8, power_of_two(slots + 1) // 2)
    return stored(problem, THREADS, THREADS, reduction=FIRST_WARP, unroll=unroll)


def _warp_online(problem: Problem, _: GpuSpec) -> Config:
    return scalar(problem, THREADS, WARP, algorithm="online-branchy", store_hint="cs")


def _warp_online_branch_free(problem: Problem, _: GpuSpec) -> Config:
    return scalar(problem, THREADS, WARP, algorithm="online")


def _warp_online_unrolled(problem: Problem, _: GpuSpec) -> Config:
    unroll = 4 if problem.cols >= 128 else 1
    return scalar(problem, THREADS, WARP, algorithm="online", unroll=unroll, normalise="reciprocal")


PRESETS = (
    Preset(
        "llm.c-1",
        "A thread for each row; exponentials are stored to the output and divided there: 3 reads "
        "and 2 writes. Corrected: the sum is compensated.",
        _kernel(1),
        _thread_per_row,
        **EXPONENTIALS_STORED,
    ),
    Preset(
        "llm.c-2",
        "A block of 256 threads for each row, a tree in shared memory; exponentials are stored to "
        "the output, summed on the way (the original reads them once more), and divided there.",
        _kernel(2),
        _block_tree,
        **EXPONENTIALS_STORED,
    ),
    Preset(
        "llm.c-3",
        "A block of one warp for each row, which reduces by shuffles; exponentials as in llm.c-2.",
        _kernel(3),
        _warp_per_row,
        **EXPONENTIALS_STORED,
    ),
    Preset(
        "llm.c-4",
        "A block of 256 threads for each row; shuffles, then the first warp (in the original, the "
        "first thread); exponentials as in llm.c-2.",
        _kernel(4),
        _block_shuffle,
        **EXPONENTIALS_STORED,
    ),
    Preset(
        "llm.c-6",
        "A warp for each row; lanes keep (maximum, sum) pairs, merged by shuffles; stores stream "
        "past the cache.",
        _kernel(6),
        _warp_online,
    ),
    Preset(
        "llm.c-7",
        "llm.c-4 with up to eight loads in flight, for wide rows.",
        _kernel(7),
        _block_unrolled,
        **EXPONENTIALS_STORED,
    ),
    Preset(
        "llm.c-8",
        "A warp for each row; maximum and sum in one pass without a branch, merged by shuffles.",
        _kernel(8),
        _warp_online_branch_free,
        reported="84 % of the DRAM bandwidth of an RTX 4060 Laptop",
    ),
    Preset(
        "llm.c-9",
        "llm.c-8 with four loads in flight and a reciprocal for the division.",
        Source("llm.c", f"{FILE}, kernel 9", "pull request 841"),
        _warp_online_unrolled,
        reported="93 % of the DRAM bandwidth of an RTX 4060 Laptop",
    ),
)
