"""A thread a row: the simplest kernels, and what fusing and the online sum gain.

In f32 they are corrected: a plain sum of thousands of terms is not accurate enough, so what its
rounding takes is kept beside it (llm.c's fifth kernel sums in double).
"""

from explorer.config import Config
from explorer.gpu_spec import GpuSpec
from explorer.op import Op
from explorer.presets.designs import careful_sum, scalar
from explorer.presets.preset import Preset, Source
from explorer.problem import Problem

THREADS = 32
"""Threads a block: blocks of a warp spread few rows over many SMs."""

SURVEY = "a survey of published kernels"
FAMILY = Source(SURVEY, "f16 kernels of one thread a row, measured on a Tesla T4")


def _one_thread_block(problem: Problem, _: GpuSpec) -> Config:
    return scalar(problem, 1, 1, **careful_sum(problem))


def _unfused(problem: Problem, _: GpuSpec) -> Config:
    return scalar(
        problem,
        THREADS,
        1,
        launches="three",
        exp="__expf",
        normalise="reciprocal",
        **careful_sum(problem),
    )


def _thread_per_row(problem: Problem, _: GpuSpec) -> Config:
    return scalar(problem, THREADS, 1, **careful_sum(problem))


def _online(problem: Problem, _: GpuSpec) -> Config:
    return scalar(problem, THREADS, 1, algorithm="online", **careful_sum(problem))


def _branchy(problem: Problem, _: GpuSpec) -> Config:
    return scalar(problem, THREADS, 1, algorithm="online-branchy", **careful_sum(problem))


PRESETS = (
    Preset(
        "one-thread-block",
        "A block of one thread for each row: three passes, 3 reads and 1 write. Corrected: sums of "
        "f32 are compensated.",
        Source(SURVEY, "the starting point of a worklog, f32"),
        _one_thread_block,
    ),
    Preset(
        "unfused",
        "A thread for each row, three launches: maxima; exponentials, to a scratch matrix; sums "
        "and quotients. Published with arithmetic and scratch in half precision, here in fp32, and "
        "sums of f32 are compensated.",
        FAMILY,
        _unfused,
        ops=(Op.SOFTMAX,),
        reported="32x4096 f16: 1.063 ms on a Tesla T4",
    ),
    Preset(
        "thread-per-row",
        "A thread for each row, all in one launch: three passes, 3 reads and 1 write. Corrected: "
        "sums of f32 are compensated.",
        FAMILY,
        _thread_per_row,
        reported="32x4096 f16: 0.672 ms on a Tesla T4",
    ),
    Preset(
        "thread-per-row-online",
        "A thread for each row; maximum and sum in one pass, without a branch: two exponentials "
        "an element, 2 reads and 1 write. Corrected: sums of f32 are compensated.",
        FAMILY,
        _online,
        reported="32x4096 f16: 0.567 ms on a Tesla T4",
    ),
    Preset(
        "thread-per-row-online-branchy",
        "A thread for each row; maximum and sum in one pass, the sum rescaled only when the "
        "maximum moves. Corrected: sums of f32 are compensated (llm.c has them in double).",
        FAMILY,
        _branchy,
        other_names=("llm.c-5",),
    ),
)
