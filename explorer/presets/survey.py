"""A survey's kernels, from a thread a row to a block that reads a row once.

Those of a thread a row are corrected in f32: a plain sum of thousands of terms is not accurate
enough, so what its rounding takes is kept beside it (llm.c's fifth kernel sums in double).
"""

from explorer.model.config import Config
from explorer.model.gpu_spec import GpuSpec
from explorer.model.problem import Op, Problem
from explorer.presets.preset import (
    EXPONENTIALS_STORED,
    FIRST_WARP,
    VECTOR_BYTES,
    Preset,
    Source,
    careful_sum,
    holds,
    row_vectors,
    scalar,
    stored,
    vectors,
    warps_for,
)

# ------------------------------------------------------------------ a thread a row


BLOCK_OF_A_WARP = 32
"""Threads a block: blocks of a warp spread few rows over many SMs."""

SURVEY = "a survey of published kernels"
FAMILY = Source(SURVEY, "f16 kernels of one thread a row, measured on a Tesla T4")


def _one_thread_block(problem: Problem, _: GpuSpec) -> Config:
    return scalar(problem, 1, 1, **careful_sum(problem))


def _unfused(problem: Problem, _: GpuSpec) -> Config:
    return scalar(
        problem,
        BLOCK_OF_A_WARP,
        1,
        launches="three",
        exp="__expf",
        normalise="reciprocal",
        **careful_sum(problem),
    )


def _thread_per_row(problem: Problem, _: GpuSpec) -> Config:
    return scalar(problem, BLOCK_OF_A_WARP, 1, **careful_sum(problem))


def _online(problem: Problem, _: GpuSpec) -> Config:
    return scalar(problem, BLOCK_OF_A_WARP, 1, algorithm="online", **careful_sum(problem))


def _branchy(problem: Problem, _: GpuSpec) -> Config:
    return scalar(problem, BLOCK_OF_A_WARP, 1, algorithm="online-branchy", **careful_sum(problem))


PRESETS: tuple[Preset, ...] = (
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


# ------------------------------------------------------------------ a block a row


THREADS = 256
WORKLOG = Source(SURVEY, "a worklog over shared-memory reductions, f32")
LAUNCH_RULE = Source(SURVEY, "float4 kernels whose threads depend on cols, f32")
WIDE_ROW = 14080
"""Columns above which the published launch takes 1024 threads instead of 512."""

ROWS_OF_A_TILE = 2
VECTORS_OF_A_TILE = 4
"""Of a row, a thread: the source leaves them to its compiler."""


def _shared_serial(problem: Problem, _: GpuSpec) -> Config:
    return scalar(problem, THREADS, THREADS, reduction="shared-serial")


def _shared_tree(problem: Problem, _: GpuSpec) -> Config:
    return scalar(problem, THREADS, THREADS, reduction="shared-tree")


def _by_cols(problem: Problem) -> int:
    return 512 if problem.cols <= WIDE_ROW else 1024


def _shared_tree_float4(problem: Problem, _: GpuSpec) -> Config:
    threads = _by_cols(problem)
    return stored(problem, threads, threads, vector_bytes=VECTOR_BYTES, reduction="shared-tree")


def _warp_reduce_float4(problem: Problem, _: GpuSpec) -> Config:
    threads = _by_cols(problem)
    return stored(problem, threads, threads, vector_bytes=VECTOR_BYTES, reduction=FIRST_WARP)


def _tile(problem: Problem, _: GpuSpec) -> Config:
    return vectors(
        problem,
        warps_for(row_vectors(problem), VECTORS_OF_A_TILE),
        cache="registers",
        cache_holds=holds(problem),
        exp="expf",
        static_cols=True,
        rows_per_thread=ROWS_OF_A_TILE,
    )


def _register_float4(problem: Problem, _: GpuSpec) -> Config:
    return vectors(
        problem,
        warps_for(row_vectors(problem)),
        reduction=FIRST_WARP,
        cache="registers",
        cache_holds=holds(problem),
        static_cols=True,
    )


def _online_warp_state(problem: Problem, _: GpuSpec) -> Config:
    return scalar(
        problem, 1024, 1024, algorithm="online-branchy", reduction=FIRST_WARP, exp="__expf"
    )


PRESETS += (
    Preset(
        "shared-serial",
        "A block of 256 threads for each row; thread 0 folds what they leave in shared memory.",
        WORKLOG,
        _shared_serial,
    ),
    Preset(
        "shared-tree",
        "A block of 256 threads for each row; a tree in shared memory folds what they found.",
        WORKLOG,
        _shared_tree,
        other_names=("fast-softmax-3",),
    ),
    Preset(
        "shared-tree-float4",
        "A block for each row, of 512 threads up to 14080 columns and of 1024 above; 16-byte "
        "accesses; exponentials are stored to the output and divided there: 3 reads and 2 writes.",
        LAUNCH_RULE,
        _shared_tree_float4,
        **EXPONENTIALS_STORED,
        reported="beats Triton above 14080 columns, on a GPU not named",
    ),
    Preset(
        "warp-reduce-float4",
        "shared-tree-float4, but warps reduce by shuffles and the first warp folds what they "
        "found.",
        LAUNCH_RULE,
        _warp_reduce_float4,
        **EXPONENTIALS_STORED,
    ),
    Preset(
        "tile",
        "A block for a tile of two whole rows, read once by 16-byte accesses and kept in "
        "registers: 1 read and 1 write.",
        Source(SURVEY, "a kernel over tiles of rows x all cols, f32"),
        _tile,
        ops=(Op.SOFTMAX,),
    ),
    Preset(
        "register-float4",
        "A block for each row, which is read once by 16-byte accesses and kept in registers: "
        "1 read and 1 write. Published with 0 as the identity of max, here -inf.",
        Source(SURVEY, "a float4 kernel for cols known at compile time, f32"),
        _register_float4,
        other_names=("fast-softmax-10",),
    ),
    Preset(
        "online-warp-state",
        "A block of 1024 threads for each row; (maximum, sum) pairs, found in one pass, are merged "
        "by shuffles, one pair a warp, then by the first warp.",
        Source(SURVEY, "an online kernel measured at 1024x32768, f32"),
        _online_warp_state,
    ),
)
