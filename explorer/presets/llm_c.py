"""llm.c's teaching kernels, softmax_forward 1 to 9. Number 5 is `thread-per-row-online-branchy`."""

from explorer.config import Config
from explorer.gpu_spec import GpuSpec
from explorer.presets.designs import scalar
from explorer.presets.preset import Preset, Source
from explorer.problem import Problem

FILE = "dev/cuda/softmax_forward.cu"
COMMIT = "f1e2ace"
THREADS = 256
"""A block of eight warps, of which each has a row; the originals take any multiple of 32."""


def _kernel(number: int) -> Source:
    return Source("llm.c", f"{FILE}, kernel {number}", COMMIT)


def _warp_online(problem: Problem, _: GpuSpec) -> Config:
    return scalar(problem, THREADS, 32, algorithm="online-branchy", store_hint="cs")


def _warp_online_branch_free(problem: Problem, _: GpuSpec) -> Config:
    return scalar(problem, THREADS, 32, algorithm="online")


def _warp_online_unrolled(problem: Problem, _: GpuSpec) -> Config:
    unroll = 4 if problem.cols >= 128 else 1
    return scalar(problem, THREADS, 32, algorithm="online", unroll=unroll, normalise="reciprocal")


PRESETS = (
    Preset(
        "llm.c-6",
        "A warp for each row; lanes keep (maximum, sum) pairs, merged by shuffles; stores stream "
        "past the cache.",
        _kernel(6),
        _warp_online,
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
