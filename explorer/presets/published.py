"""Every published kernel that the space holds, the simplest first, and what was reported of some.

All are right here for all rows. Kernels of a thread a row are corrected in f32: a plain sum of
thousands of terms is not accurate enough, so it is compensated. FastSoftmax's kernels were
published with 0 as the identity of max, which is wrong for negative rows, and for cols that are
multiples of 4.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from difflib import get_close_matches
from typing import Any

from explorer.model.config import Config, parameters
from explorer.model.element import DType
from explorer.model.errors import InvalidInput
from explorer.model.gpu_spec import WARP, GpuSpec, occupancy
from explorer.model.outcome import Resources
from explorer.model.problem import Problem, power_of_two
from explorer.model.work_split import WorkSplit
from explorer.ops import Op
from explorer.presets.preset import (
    CAREFUL,
    FIRST_WARP,
    IN_OUTPUT,
    IN_REGISTERS,
    IN_SHARED,
    MOST_THREADS,
    VECTOR_BYTES,
    WIDE,
    WIDE_FAST,
    Design,
    Preset,
    Source,
    fitted,
    lanes_for,
    largest_as_resident,
    most_cols,
    packed,
    row_vectors,
    several_rows,
    warps_for,
)
from explorer.space.attention_rules import heads_fit
from explorer.space.rules import Point

ONE_WARP: Design = {"threads": WARP, "threads_per_row": 1}
"""A thread a row; blocks of a warp spread few rows over many SMs."""

F32_SOFTMAX: dict[str, Any] = {"ops": ("softmax",), "dtypes": (DType.F32,)}
"""For a design that stores exponentials in the output: 16 bits would round them twice."""

# ------------------------------------------------------------------ series, a thread a row


FAMILY = Source("an article on three f16 kernels", "one thread a row, measured on a Tesla T4")
THREE = "Darshan Baslani, Softmax Optimization Journey, github.com/Darshan-Baslani/cuda_practice"
TILES = "NVIDIA cuTile Rust, nvlabs.github.io/cutile-rs/tutorials/05-fused-softmax.html"
STEPS = "Saman, Fused Softmax::P3::Cuda Kernel, github.com/samanamp/fusedkernels-blog"

_THREAD_A_ROW = (
    Preset(
        "one-thread-block",
        "A block of one thread for each row: three passes, 3 reads and 1 write. Corrected: sums of "
        "f32 are compensated.",
        Source(STEPS, "its first step, f32", "4042516"),
        {"threads": 1, **CAREFUL},
    ),
    Preset(
        "unfused",
        "A thread for each row, three launches: maxima; exponentials, to a scratch matrix; sums "
        "and quotients. Published with arithmetic and scratch in half precision, here in fp32, and "
        "sums of f32 are compensated.",
        FAMILY,
        {**ONE_WARP, "launches": "three", "exp": "__expf", "normalise": "reciprocal", **CAREFUL},
        reported="32x4096 f16: 1.063 ms on a Tesla T4",
    ),
    Preset(
        "thread-per-row",
        "A thread for each row, all in one launch: three passes, 3 reads and 1 write. Corrected: "
        "sums of f32 are compensated.",
        FAMILY,
        {**ONE_WARP, **CAREFUL},
        reported="32x4096 f16: 0.672 ms on a Tesla T4",
    ),
    Preset(
        "thread-per-row-online",
        "A thread for each row; maximum and sum in one pass, without a branch: two exponentials "
        "an element, 2 reads and 1 write. Corrected: sums of f32 are compensated.",
        FAMILY,
        {**ONE_WARP, "algorithm": "online", **CAREFUL},
        reported="32x4096 f16: 0.567 ms on a Tesla T4",
    ),
    Preset(
        "thread-per-row-online-branchy",
        "A thread for each row; maximum and sum in one pass, the sum rescaled only when the "
        "maximum moves. Corrected: sums of f32 are compensated (llm.c has them in double).",
        Source(THREE, "kernel 2, online, f32, f16 and bf16", "7d3b37b"),
        {**ONE_WARP, "algorithm": "online-branchy", **CAREFUL},
        other_names=("llm.c-5",),
    ),
)

# ------------------------------------------------------------------ series, a block a row


WORKLOG = Source(STEPS, "its steps in shared memory, f32", "4042516")
LAUNCH_RULE = Source(STEPS, "its steps with float4, whose threads depend on cols, f32", "4042516")

BY_COLS: Design = {"threads": lambda problem, _: 512 if problem.cols <= 14080 else 1024}

VECTORS_OF_A_TILE = 4
"""Of a row, a thread: the source leaves them, and two rows of a tile, to its compiler."""

ROW_A_VECTOR_EACH: Design = {"threads": lambda problem, _: warps_for(row_vectors(problem))}
"""As many threads as a row has vectors of 16 bytes."""

_BLOCK_A_ROW = (
    Preset(
        "shared-serial",
        "A block of 256 threads for each row; thread 0 folds what they leave in shared memory.",
        WORKLOG,
        {"threads": 256, "reduction": "shared-serial"},
    ),
    Preset(
        "shared-tree",
        "A block of 256 threads for each row; a tree in shared memory folds what they found.",
        WORKLOG,
        {"threads": 256, "reduction": "shared-tree"},
        other_names=("fast-softmax-3",),
    ),
    Preset(
        "shared-tree-float4",
        "A block for each row, of 512 threads up to 14080 columns and of 1024 above; 16-byte "
        "accesses; exponentials are stored to the output and divided there: 3 reads and 2 writes.",
        LAUNCH_RULE,
        {**BY_COLS, **WIDE, "reduction": "shared-tree", **IN_OUTPUT},
        **F32_SOFTMAX,
        reported="beats Triton above 14080 columns, on a GPU not named",
    ),
    Preset(
        "warp-reduce-float4",
        "shared-tree-float4, but warps reduce by shuffles and the first warp folds what they "
        "found.",
        LAUNCH_RULE,
        {**BY_COLS, **WIDE, "reduction": FIRST_WARP, **IN_OUTPUT},
        **F32_SOFTMAX,
    ),
    Preset(
        "tile",
        "A block for a tile of two whole rows, read once by 16-byte accesses and kept in "
        "registers: 1 read and 1 write.",
        Source(TILES, "a tile of rows and all cols, f32", "027cf85"),
        {
            "threads": lambda problem, _: warps_for(row_vectors(problem), VECTORS_OF_A_TILE),
            **WIDE,
            **IN_REGISTERS,
            "rows_per_thread": 2,
        },
    ),
    Preset(
        "register-float4",
        "A block for each row, which is read once by 16-byte accesses and kept in registers: "
        "1 read and 1 write. Published with 0 as the identity of max, here -inf.",
        Source("an article on float4 and registers", "cols known at compile time, f32"),
        {**ROW_A_VECTOR_EACH, **WIDE_FAST, "reduction": FIRST_WARP, **IN_REGISTERS},
        other_names=("fast-softmax-10",),
    ),
    Preset(
        "online-warp-state",
        "A block of 1024 threads for each row; (maximum, sum) pairs, found in one pass, are merged "
        "by shuffles, one pair a warp, then by the first warp.",
        Source(THREE, "kernel 3, online, measured at 1024x32768, f32", "7d3b37b"),
        {
            "threads": 1024,
            "algorithm": "online-branchy",
            "reduction": FIRST_WARP,
            "exp": "__expf",
        },
    ),
)

# ------------------------------------------------------------------ llm.c
# Blocks of eight warps, of which each has a row; the originals take any multiple of 32.


def _llm_c(number: int, revision: str = "f1e2ace") -> Source:
    return Source("llm.c", f"dev/cuda/softmax_forward.cu, kernel {number}", revision)


def _loads_in_flight(problem: Problem, _: GpuSpec) -> int:
    slots = -(-problem.cols // 256)
    return min(8, power_of_two(slots + 1) // 2)


_LLM_C = (
    Preset(
        "llm.c-1",
        "A thread for each row; exponentials are stored to the output and divided there: 3 reads "
        "and 2 writes. Corrected: the sum is compensated.",
        _llm_c(1),
        {**ONE_WARP, **IN_OUTPUT, **CAREFUL},
        **F32_SOFTMAX,
    ),
    Preset(
        "llm.c-2",
        "A block of 256 threads for each row, a tree in shared memory; exponentials are stored to "
        "the output, summed on the way (the original reads them once more), and divided there.",
        _llm_c(2),
        {"threads": 256, "reduction": "shared-tree", **IN_OUTPUT},
        **F32_SOFTMAX,
    ),
    Preset(
        "llm.c-3",
        "A block of one warp for each row, which reduces by shuffles; exponentials as in llm.c-2.",
        _llm_c(3),
        {"threads": WARP, **IN_OUTPUT},
        **F32_SOFTMAX,
    ),
    Preset(
        "llm.c-4",
        "A block of 256 threads for each row; shuffles, then the first warp (in the original, the "
        "first thread); exponentials as in llm.c-2.",
        _llm_c(4),
        {"threads": 256, "reduction": FIRST_WARP, **IN_OUTPUT},
        **F32_SOFTMAX,
    ),
    Preset(
        "llm.c-6",
        "A warp for each row; lanes keep (maximum, sum) pairs, merged by shuffles; stores stream "
        "past the cache.",
        _llm_c(6),
        {
            "threads": 256,
            "threads_per_row": WARP,
            "algorithm": "online-branchy",
            "store_hint": "cs",
        },
    ),
    Preset(
        "llm.c-7",
        "llm.c-4 with up to eight loads in flight, for wide rows.",
        _llm_c(7),
        {"threads": 256, "reduction": FIRST_WARP, "unroll": _loads_in_flight, **IN_OUTPUT},
        **F32_SOFTMAX,
    ),
    Preset(
        "llm.c-8",
        "A warp for each row; maximum and sum in one pass without a branch, merged by shuffles.",
        _llm_c(8),
        {"threads": 256, "threads_per_row": WARP, "algorithm": "online"},
        reported="84 % of the DRAM bandwidth of an RTX 4060 Laptop",
    ),
    Preset(
        "llm.c-9",
        "llm.c-8 with four loads in flight and a reciprocal for the division.",
        _llm_c(9, "pull request 841"),
        {
            "threads": 256,
            "threads_per_row": WARP,
            "algorithm": "online",
            "unroll": lambda problem, _: 4 if problem.cols >= 128 else 1,
            "normalise": "reciprocal",
        },
        reported="93 % of the DRAM bandwidth of an RTX 4060 Laptop",
    ),
)

# ------------------------------------------------------------------ FastSoftmax


MOST_UNROLLED = 8


def _fast(number: int) -> Source:
    return Source("FastSoftmax", f"kernels.cu, softmax_kernel{number}", "5fb0d4a")


def _fewer_threads(problem: Problem, _: GpuSpec) -> int:
    return max(128, warps_for(row_vectors(problem), MOST_UNROLLED))


def _as_many_in_flight(problem: Problem, gpu: GpuSpec) -> int:
    slots = -(-row_vectors(problem) // _fewer_threads(problem, gpu))
    return min(MOST_UNROLLED, power_of_two(slots + 1) // 2)


UNROLLED: Design = {"threads": _fewer_threads, "unroll": _as_many_in_flight, **WIDE_FAST}
"""The published tuning trades threads for vectors in flight: here as many as there are."""

_FAST_SOFTMAX = (
    # Published with 32 columns and rows a block: a row's other columns are other blocks'.
    Preset(
        "fast-softmax-1",
        "A thread for each column, up to 1024; each folds the whole row, twice, by itself.",
        _fast(1),
        {
            "threads": lambda problem, _: warps_for(problem.cols),
            "arrangement": "replicated",
            "exp": "__expf",
            **CAREFUL,
        },
    ),
    # Published for shares of as many elements as there are threads.
    Preset(
        "fast-softmax-2",
        "A block for each row, as many threads as a thread has elements, which lie side by side; a "
        "tree in shared memory.",
        _fast(2),
        {
            "threads": lambda problem, _: warps_for(math.isqrt(problem.cols - 1) + 1),
            "arrangement": "blocked",
            "reduction": "shared-tree",
            "exp": "__expf",
        },
    ),
    Preset(
        "fast-softmax-4",
        "A block of 1024 threads for each row; warps reduce by shuffles, the first warp folds what "
        "they found; one element an access.",
        _fast(4),
        {"threads": 1024, "reduction": FIRST_WARP},
        other_names=("aitemplate-block-uncached",),
    ),
    Preset(
        "fast-softmax-5",
        "A block for each row, 16-byte accesses, a tree in shared memory; 3 reads and 1 write.",
        _fast(5),
        {**ROW_A_VECTOR_EACH, **WIDE_FAST, "reduction": "shared-tree"},
    ),
    Preset(
        "fast-softmax-6",
        "A block for each row, 16-byte accesses; shuffles, then the first warp.",
        _fast(6),
        {**ROW_A_VECTOR_EACH, **WIDE_FAST, "reduction": FIRST_WARP},
    ),
    Preset(
        "fast-softmax-7",
        "fast-softmax-6 with fewer threads and up to eight loads in flight.",
        _fast(7),
        {**UNROLLED, "reduction": FIRST_WARP, "algorithm": "three-pass"},
    ),
    Preset(
        "fast-softmax-8",
        "A block for each row; one maximum for all vectors in flight, then one rescaling of the "
        "sum; pairs are merged by shuffles, then by the first warp.",
        _fast(8),
        {**UNROLLED, "reduction": FIRST_WARP, "algorithm": "online-block-max"},
    ),
    Preset(
        "fast-softmax-9",
        "fast-softmax-5 with fewer threads and up to eight loads in flight.",
        _fast(9),
        {**UNROLLED, "reduction": "shared-tree", "algorithm": "three-pass"},
    ),
)

# ------------------------------------------------------------------ AITemplate
# Which of its kernels runs depends on cols alone. Uncached: `fast-softmax-4`.


def _aitemplate(name: str) -> Source:
    return Source("AITemplate", f"python/aitemplate/backend/cuda/softmax/softmax.cuh, {name}")


PACK_OF_8 = packed(8)
"""Of an access, where cols are a multiple of it."""


def _few_cols(problem: Problem) -> str:
    if problem.cols <= 8 or (problem.cols <= 32 and problem.cols % 4 == 0):
        return ""
    return "it is for rows of at most 8 columns, or of 12, 16, ... 32"


def _lanes_of_packs(problem: Problem, gpu: GpuSpec) -> int:
    return lanes_for(-(-problem.row_bytes // PACK_OF_8(problem, gpu)))


_AITEMPLATE = (
    Preset(
        "aitemplate-small-cols",
        "A thread for each row of few columns; rows come as one contiguous span of 16-byte "
        "accesses, and leave as one.",
        _aitemplate("softmax_small_k"),
        {
            "threads": 128,
            "threads_per_row": 1,
            **WIDE_FAST,
            **IN_REGISTERS,
            "normalise": "reciprocal",
            "staging": "span",
        },
        ops=("softmax",),
        limit=_few_cols,
    ),
    Preset(
        "aitemplate-warp",
        "Up to 32 lanes for each row, as many as have a vector of it; the row stays in registers.",
        _aitemplate("softmax_stored_locally_multi_dim"),
        {
            "threads": 128,
            "threads_per_row": _lanes_of_packs,
            "vector_bytes": PACK_OF_8,
            **IN_REGISTERS,
        },
        limit=most_cols(3840),
    ),
    Preset(
        "aitemplate-block",
        "A block for each row, by accesses of up to eight elements; its exponentials stay in "
        "shared memory, in fp32. As many threads as cost no resident block.",
        _aitemplate("softmax_block_smem"),
        {
            "threads": largest_as_resident,
            "vector_bytes": PACK_OF_8,
            "reduction": FIRST_WARP,
            **IN_SHARED,
        },
    ),
)

# ------------------------------------------------------------------ OneFlow
# A warp a row, a block with the row in shared memory, a block without.


def _oneflow(name: str) -> Source:
    return Source("OneFlow", f"oneflow/core/cuda/softmax.cuh, {name}")


PACK_OF_2 = packed(2)
"""Of an access, where cols are even."""


def _packs(problem: Problem, gpu: GpuSpec) -> int:
    return problem.row_bytes // PACK_OF_2(problem, gpu)


def _two_of_one_access(problem: Problem, gpu: GpuSpec) -> int:
    has_two = _packs(problem, gpu) <= WARP and problem.rows % 2 == 0
    return several_rows(problem, 2 if has_two else 1)


_ONEFLOW = (
    Preset(
        "oneflow-warp",
        "Up to 32 lanes for each row, two elements an access; the row stays in registers. "
        "Lanes with one access a row work on two rows at once.",
        _oneflow("SoftmaxWarpImpl"),
        {
            "threads": 128,
            "threads_per_row": lambda problem, gpu: lanes_for(_packs(problem, gpu)),
            "vector_bytes": PACK_OF_2,
            **IN_REGISTERS,
            "rows_per_thread": _two_of_one_access,
        },
        limit=most_cols(1024),
        reported="f16, 49152 rows of 512 to 1024 columns: 768 GiB/s on a GPU not named",
    ),
    Preset(
        "oneflow-block-shared",
        "A block for each row, two elements an access; its exponentials stay in shared memory, in "
        "fp32. As many threads as cost no resident block.",
        _oneflow("SoftmaxBlockSMemImpl"),
        {
            "threads": largest_as_resident,
            "vector_bytes": PACK_OF_2,
            "reduction": FIRST_WARP,
            **IN_SHARED,
        },
        reported="f16, 49152 rows of 4096 columns: 778 GiB/s on a GPU not named",
    ),
    Preset(
        "oneflow-block-uncached",
        "A block of 1024 threads for each row, two elements an access: 3 reads and 1 write.",
        _oneflow("SoftmaxBlockUncachedImpl"),
        {"threads": 1024, "vector_bytes": PACK_OF_2, "reduction": FIRST_WARP},
    ),
)

# ------------------------------------------------------------------ PyTorch
# `torch.softmax` takes the warp up to 2048 columns and 8 KiB a row, registers up to nine elements a
# thread, shared memory where the row fits in 48 KiB, and else three reads.


def _pytorch(place: str) -> Source:
    return Source("PyTorch", f"aten/src/ATen/native/cuda/{place}", "2.10")


PYTORCH_BLOCK: Design = {"threads": 1024, "reduction": FIRST_WARP}


def _warp_limit(problem: Problem) -> str:
    too_wide = problem.row_bytes > 8192
    return most_cols(2048)(problem) or ("it is for rows of at most 8 KiB" if too_wide else "")


def _shared_limit(problem: Problem) -> str:
    if problem.row_bytes % VECTOR_BYTES:
        return "it is for rows of whole 16-byte vectors"
    if problem.row_bytes >= 48 * 1024:  # what a block has without asking for more
        return "it is for rows of less than 48 KiB"
    return ""


def _along(problem: Problem, _: GpuSpec) -> int:
    across = min(1024, power_of_two(problem.inner))
    if across > 64 or problem.cols < 64:
        return 1
    return min(1024 // across, power_of_two(problem.cols + 1) // 2)


def _spatial_threads(problem: Problem, gpu: GpuSpec) -> int:
    """Threads lie along the inner axis first; where that is short, several share a row."""
    return max(WARP, min(1024, power_of_two(problem.inner)) * _along(problem, gpu))


_PYTORCH = (
    Preset(
        "pytorch-warp",
        "Up to 32 lanes for each row, one element an access; the row stays in registers. Of rows "
        "of at most 128 columns, two at once.",
        _pytorch("PersistentSoftmax.cuh, softmax_warp_forward"),
        {
            "threads": 128,
            "threads_per_row": lambda problem, _: lanes_for(problem.cols),
            **IN_REGISTERS,
            "rows_per_thread": lambda p, _: several_rows(p, 2 if p.cols <= 128 else 1),
        },
        limit=_warp_limit,
    ),
    Preset(
        "pytorch-block-registers",
        "A block of 1024 threads for each row, one element an access, up to nine of them kept in "
        "registers by each thread.",
        _pytorch("SoftMax.cu, cunn_SoftMaxForwardReg"),
        {**PYTORCH_BLOCK, **IN_REGISTERS, "cache_holds": "input"},
        limit=most_cols(9 * 1024),
    ),
    Preset(
        "pytorch-block-shared",
        "A block of 1024 threads for each row, 16-byte accesses; the inputs stay in shared memory.",
        _pytorch("SoftMax.cu, cunn_SoftMaxForwardSmem"),
        {**PYTORCH_BLOCK, **WIDE, "cache": "shared"},
        limit=_shared_limit,
    ),
    Preset(
        "pytorch-block-uncached",
        "A block of 1024 threads for each row, 16-byte accesses: 3 reads and 1 write.",
        _pytorch("SoftMax.cu, cunn_SoftMaxForward"),
        {**PYTORCH_BLOCK, **WIDE},
    ),
    Preset(
        "pytorch-spatial",
        "For a middle axis: neighbouring threads have neighbouring rows, and share them where the "
        "inner axis is short; a tree in shared memory; 3 reads and 1 write.",
        _pytorch("SoftMax.cu, cunn_SpatialSoftMaxForward"),
        {
            "threads": _spatial_threads,
            "threads_per_row": _along,
            "reduction": lambda p, gpu: "shared-tree" if _along(p, gpu) > 1 else "shuffle",
        },
        other_names=("aitemplate-general",),
        across_rows=True,
    ),
)

# ------------------------------------------------------------------ Triton
# The fused softmax of its tutorial, which later publications compare themselves with. Triton
# divides a row, rounded up to a power of two, evenly. Each thread of a short row has less than 16
# bytes, which it loads in one access.


TRITON: Design = {
    "threads": 256,
    **WIDE_FAST,
    "vector_bytes": lambda p, _: max(
        p.dtype.itemsize, min(VECTOR_BYTES, power_of_two(p.cols) // 256 * p.dtype.itemsize)
    ),
    **IN_REGISTERS,
}
WORKING_REGISTERS = 24
"""Of a thread, beside its share of the row."""


def _resident_blocks(problem: Problem, gpu: GpuSpec) -> int:
    """Return how many blocks an SM's registers hold: a power of two, 8 at most."""
    one = fitted({**TRITON, "persistent": 1}, problem, gpu)
    registers = WorkSplit(problem, one).cached_registers + WORKING_REGISTERS
    blocks = occupancy(Resources(registers=registers), one.threads, 1, gpu).blocks_per_sm
    return 1 << max(0, min(8, blocks).bit_length() - 1)


_TRITON = (
    Preset(
        "triton-tutorial",
        "Blocks of eight warps, as many as the SMs hold, stride over the rows, each of which is "
        "read once and kept in registers: 1 read and 1 write.",
        Source("Triton", "tutorial 02-fused-softmax, num_warps=8", "2024"),
        {**TRITON, "persistent": _resident_blocks},
    ),
)

# ------------------------------------------------------------------ losses with their gradients
# All add the target apart, and write no gradient where a row has none; the originals do neither.


LOSSES_WITH_GRADIENTS: dict[str, Any] = {"ops": (Op.CROSS_ENTROPY_WITH_GRADIENT,)}

READ_TWICE: Design = {
    **WIDE,
    "threads": MOST_THREADS,
    "algorithm": "online-block-max",
    "reduction": FIRST_WARP,
    "normalise": "reciprocal",
}
"""A block a row, whose second pass finds in the caches what is still there of the row."""


def _of_32768_elements(problem: Problem, _: GpuSpec) -> int:
    """Return a thread's vectors of so many elements of a block, or of a row that has fewer."""
    own = -(-row_vectors(problem) // MOST_THREADS)
    return min(2 * problem.dtype.itemsize, power_of_two(own))


_LOSSES = (
    Preset(
        "llm.c-fused-classifier",
        "A block of 1024 threads for each row (in the original the last rows first); maximum and "
        "sum in one pass, vector after vector, then the gradient, whose stores stream past the "
        "cache.",
        Source("llm.c", "llmc/fused_classifier.cuh, fused_classifier_kernel5", "0c4b1e1"),
        {**READ_TWICE, "store_hint": "cs"},
        **LOSSES_WITH_GRADIENTS,
    ),
    Preset(
        "liger-cross-entropy",
        "A block of 1024 threads for each row; maximum and sum of 32768 elements at a time, then "
        "the gradient. The original, in Triton, always writes over the logits.",
        Source("Liger-Kernel", "src/liger_kernel/ops/cross_entropy.py", "02e90db"),
        {
            **READ_TWICE,
            "exp": "ex2.approx",
            "unroll": _of_32768_elements,
        },
        **LOSSES_WITH_GRADIENTS,
    ),
)

# ------------------------------------------------------------------ attention to a cache
# In the order of ideas: scores are kept, then taken online; heads read the keys alone, then share
# them, then divide them among blocks. None has a mask of positions or pages of keys here, which the
# originals have.


ATTENTION: dict[str, Any] = {"ops": (Op.DECODE_ATTENTION,)}

SHARED_KEYS: Design = {
    "heads_per_thread": lambda problem, _: problem.of_group,
    "unroll": lambda problem, _: 2 if problem.of_group <= 2 else 1,
}
"""The query heads that share a key head take each key at once."""


def _needs_few_heads(problem: Problem) -> str:
    few = problem.of_group <= 4
    return "" if few else f"group is {problem.of_group}; 4 heads fit a thread"


def _parts(problem: Problem, gpu: GpuSpec) -> int:
    """Return the fewest parts of the keys whose blocks come to two for each SM, or two parts."""
    heads = problem.rows // problem.of_group
    most = max(2, problem.cols // 128)
    values = [n for n in _splits(problem) if 1 < n <= most]
    return next((n for n in values if n * heads >= 2 * gpu.sm_count), values[-1])


def _splits(problem: Problem) -> list[int]:
    """Return the numbers of parts that the space has, the fewest first."""
    return list(map(int, parameters(problem.dtype, problem.operator)["splits"]))


def _needs_parts(problem: Problem) -> str:
    return (
        "" if problem.cols >= 256 else f"cols is {problem.cols}; its parts have 128 keys: take 256"
    )


def _fewest_lanes(**design: Any) -> Callable[[Problem, GpuSpec], int]:
    """Return what gives the fewest lanes of a key whose registers hold a design's sums."""

    def lanes(problem: Problem, gpu: GpuSpec) -> int:
        plain = Config(core="fma", **design)
        ideas = (Point(problem, gpu, replace(plain, lanes_per_key=n)) for n in (1, 2, 4))
        return next((idea.config.lanes_per_key for idea in ideas if heads_fit(idea)), 8)

    return lanes


A_LAUNCH_EACH: dict[str, Any] = {"launches": "three", "threads": 256}
"""Scores, their softmax, and values."""

A_WARP_A_HEAD: dict[str, Any] = {"threads": WARP}

IN_SCORES: Design = {"cache": "shared", "lanes_per_key": 2}
"""A block of 128 threads keeps the scores of its keys; two lanes share one, as for pages of 16."""

PARTITION = 512
"""Keys of a part, in vLLM."""


def _partitions(problem: Problem, _: GpuSpec) -> int:
    """Return the fewest parts, as the space has them, that are no longer than a partition.

    Where even the most of them are longer, it is these.
    """
    values = _splits(problem)
    return next((n for n in values if n * PARTITION >= problem.cols), values[-1])


def _needs_partitions(problem: Problem) -> str:
    few = f"cols is {problem.cols}; one part has {PARTITION} keys: take vllm-paged-v1"
    return few if problem.cols <= PARTITION else ""


_ATTENTION = (
    Preset(
        "llm.c-attention-1",
        "Three launches: the scores of all keys, to a scratch matrix; the softmax of its rows; the "
        "values, each times its probability. A thread has a key, or half of one of 256 elements. "
        "The original, for a prompt, has a thread for each row in the last two launches: here a "
        "block.",
        Source("llm.c", "dev/cuda/attention_forward.cu, kernel 1", "03f37cf"),
        {**A_LAUNCH_EACH, "lanes_per_key": _fewest_lanes(**A_LAUNCH_EACH)},
        **ATTENTION,
    ),
    Preset(
        "vllm-paged-v1",
        "A block for each query head, in one launch. The scores of all keys lie in shared memory: "
        "their maximum, exponentials and sum are found there, then values are added. The original "
        "adds 1e-6 to the sum, and reads 16 keys of a page side by side.",
        Source("vLLM", "csrc/attention/attention_kernels.cuh, paged_attention_v1", "04d1abd"),
        IN_SCORES,
        **ATTENTION,
    ),
    Preset(
        "flash-attention-minimal",
        "Online: maximum, sum and values in one pass over the keys, of which nothing is kept. A "
        "warp has a query head, and as few lanes share a key as registers allow: one, where a head "
        "has 64 elements of 16 bits, and two of 128. In the original, for a prompt, a thread has a "
        "query and all keys; tiles of 32 keys lie in shared memory, and its sums in the output.",
        Source("flash-attention-minimal", "flash.cu, forward_kernel", "05b0309"),
        {**A_WARP_A_HEAD, "lanes_per_key": _fewest_lanes(**A_WARP_A_HEAD)},
        **ATTENTION,
    ),
    Preset(
        "llama.cpp-vec",
        "A block for each query head; some lanes share a key, and maximum, sum and values are "
        "taken online. The heads of a group read the same keys again.",
        Source("llama.cpp", "ggml/src/ggml-cuda/fattn-vec.cuh"),
        {},
        **ATTENTION,
    ),
    Preset(
        "flashinfer-decode",
        "The same, but a block has all query heads of a group, which share each key that it "
        "loads. The original also copies keys to shared memory ahead, as the next one does.",
        Source("FlashInfer", "include/flashinfer/attention/decode.cuh", "fb28d72"),
        SHARED_KEYS,
        limit=_needs_few_heads,
        **ATTENTION,
    ),
    Preset(
        "flashinfer-pipelined",
        "flashinfer-decode with keys and values copied ahead to shared memory: two steps are on "
        "their way. Here a warp copies what it reads; the original's blocks copy tiles for all.",
        Source("FlashInfer", "include/flashinfer/attention/decode.cuh", "fb28d72"),
        {**SHARED_KEYS, "staging": "async", "stages": 2},
        limit=_needs_few_heads,
        **ATTENTION,
    ),
    Preset(
        "vllm-paged-v2",
        "vllm-paged-v1, but parts of 512 keys have blocks of their own, whose results a second "
        "launch combines. So the scores of caches that are 128 times as long fit shared memory.",
        Source("vLLM", "csrc/attention/attention_kernels.cuh, paged_attention_v2", "04d1abd"),
        {**IN_SCORES, "launches": "two", "splits": _partitions, "part_keys": PARTITION},
        limit=_needs_partitions,
        **ATTENTION,
    ),
    Preset(
        "flash-decoding",
        "The keys of a head are divided among blocks, whose results a second launch combines: so "
        "few heads fill all SMs. Products are the tensor cores'.",
        Source("FlashAttention", "csrc/flash_attn/src/flash_fwd_kernel.h, splitkv", "0251105"),
        {
            "core": "mma",
            "lanes_per_key": 4,
            "heads_per_thread": lambda problem, _: problem.of_group,
            "launches": "two",
            "splits": _parts,
        },
        dtypes=(DType.F16, DType.BF16),
        limit=_needs_parts,
        **ATTENTION,
    ),
)

# ------------------------------------------------------------------ all of them


PRESETS: tuple[Preset, ...] = (
    *_THREAD_A_ROW,
    *_BLOCK_A_ROW,
    *_LLM_C,
    *_FAST_SOFTMAX,
    *_AITEMPLATE,
    *_ONEFLOW,
    *_PYTORCH,
    *_TRITON,
    *_LOSSES,
    *_ATTENTION,
)

_BY_NAME = {name: preset for preset in PRESETS for name in (preset.name, *preset.other_names)}

PRESET_NAMES = tuple(_BY_NAME)
"""Their names, and the other names by which some of them are known."""


def unpublished(op: Op) -> str:
    """Return a sentence that says so if no published kernel computes an operator; else ""."""
    done = dict.fromkeys(op for preset in PRESETS for op in preset.ops)
    if op in done:
        return ""
    return f"no published kernel computes {op}; explorer presets lists those of {', '.join(done)}"


def find_preset(name: str) -> Preset:
    """Return the preset of that name, or of that other name; raises InvalidInput."""
    if name in _BY_NAME:
        return _BY_NAME[name]
    near = get_close_matches(name, _BY_NAME, n=3)
    but = f", but {', '.join(near)} {'is' if len(near) == 1 else 'are'}" if near else ""
    raise InvalidInput(f"preset '{name}' is not known{but}; explorer presets lists them all")


def _between(of: str, what: str, **design: Any) -> Preset:
    """Return a published kernel with other values of some parameters."""
    one, source = find_preset(of), Source("explorer journey --ladder", f"beside {of}")
    name, said, own = f"{of}-{what}", f"A variation of {of}.", {**one.design, **design}
    return Preset(name, said, source, own, ops=one.ops, dtypes=one.dtypes)


BETWEEN = (
    _between("shared-tree-float4", "256", threads=256),
    _between("warp-reduce-float4", "uncached", cache="none", cache_holds="input"),
    _between("fast-softmax-4", "fast-exp", exp="__expf"),
    _between("register-float4", "256", threads=find_preset("tile").design["threads"]),
)
"""Unpublished steps of the ladder: one idea each, where published kernels differ by several."""

_BY_NAME |= {preset.name: preset for preset in BETWEEN}


@dataclass(frozen=True, slots=True)
class ReportedRatio:
    """How many times as fast one preset was as another, where it was published."""

    slower: str
    faster: str
    low: float
    high: float
    """Greater than `low` where several shapes were measured."""
    where: str
    """Shapes, dtype and GPU."""
    publication: str


_T4 = "f16 kernels of one thread a row"
_SHAPE = "f16 32x4096, Tesla T4"
_SHAPES = "f16, 32 and 64 rows x 512 to 8192, Tesla T4"

REPORTED = (
    ReportedRatio("unfused", "thread-per-row", 1.58, 1.58, _SHAPE, _T4),
    ReportedRatio("unfused", "thread-per-row-online", 1.86, 1.97, _SHAPES, _T4),
    ReportedRatio("thread-per-row", "thread-per-row-online", 1.19, 1.19, _SHAPE, _T4),
    ReportedRatio(
        *("llm.c-8", "llm.c-9", 1.10, 1.10),
        "f32 8192x50257, RTX 4060 Laptop",
        "llm.c pull request 841",
    ),
)
"""Computed from the published times: 1.063, 0.672 and 0.567 ms; 22.82 and 20.76 ms."""
