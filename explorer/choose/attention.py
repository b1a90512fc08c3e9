"""Attention of one query a head: how many blocks share a head's keys, and how their parts meet.

Memory is busy while each SM has some eight warps that load keys, and all blocks are resident
together: then they end together, too. Of 60 problems that were tuned on an H200, the fastest
kernels are of this kind. Two parts meet in a cluster, more by a second launch: clusters of 16 take
1.1 to 1.3 times as long there. So do clusters of two large blocks, for which two SMs must be free
at once: parts that are staged meet by a second launch alone.

Keys that are staged take 0.91 to 0.98 of the time of keys straight from memory at 30 of 60
problems there: copies are of whole lines, where fragments are halves of them, and a step is on its
way while another is computed. Blocks are large then, and an SM has one: it begins anew for each
head, which takes longer than staging gains where heads are many and their keys few.
"""

import math
from dataclasses import replace

from explorer.model.config import Config, parameters
from explorer.model.gpu_spec import WARP, GpuSpec
from explorer.model.key_split import KeySplit
from explorer.model.problem import Mask, Problem
from explorer.space.candidates import BUSY_WARPS
from explorer.space.space import Space

RESIDENT_WARPS = {64: (16, 20, 20), 128: (8, 12, 12), 256: (8, 8, 8)}
"""Warps that an SM's registers hold in blocks of 256, 128 and 64 threads, by the head dimension."""

THREADS = (256, 128, 64)

ENOUGH = 0.7
"""Share of the busy warps below which the keys of a head are divided, though it has a block."""

LONG = 512
"""Keys from which that gains more than a second launch takes."""

MOST_PARTS = 32
"""Parts above which that launch takes longer than more blocks gain."""

MOST_STEPS = 16
"""Parts of one step of a narrow block, at most: of more keys, a wide block has fewer parts."""

STAGES = 2
"""Steps of a warp on their way at once, where keys are staged."""

STAGED_PART_KEYS = 256
"""Keys of a part that is staged, at least: two steps of a block."""

LONG_OF_A_BLOCK = 1536
"""Keys of a block from which staging gains more than an SM's blocks lose one after the other."""

KEYS_OF_LENGTHS = 4096
"""Keys of a part where sequences have lengths of their own, so that a long one has many blocks."""

FULL = 0.9
"""Share of the SMs that have a block in each wave, at least, where keys are divided for that."""

INVARIANT_KEYS = 512
"""Keys of a part where bits may not depend on the number of sequences."""


def attention(problem: Problem, gpu: GpuSpec, *, batch_invariant: bool = False) -> Config:
    """Return a kernel for the heads and keys of a problem."""
    space, ideas = Space(problem, gpu), [_of_heads(problem, gpu, threads) for threads in THREADS]
    wide = next(filter(space.is_legal, ideas), ideas[-1])
    if batch_invariant:
        return _divided(wide, problem, gpu, problem.cols // INVARIANT_KEYS, INVARIANT_KEYS)
    if staged := _staged(problem, gpu):
        return staged
    if wide.core == "fma":
        heads = KeySplit(problem, wide).blocks
        return _divided(wide, problem, gpu, 2 * gpu.sm_count // heads, 0)
    heads = problem.rows // problem.of_group
    busy = gpu.sm_count * BUSY_WARPS * (2 if problem.of_head == 64 else 1)
    warps = wide.threads // WARP
    if heads > gpu.sm_count:
        return _of_many_heads(problem, gpu, busy)
    parts = min(MOST_PARTS, busy // (heads * warps))
    if parts == 1 and heads * warps < ENOUGH * busy and problem.cols >= LONG:
        narrow = _of_heads(problem, gpu, 128)
        return _divided(narrow, problem, gpu, round(busy / (4 * heads)), 0)
    if problem.cols < parts * KeySplit(problem, wide).block_keys:
        return _of_steps(problem, gpu, wide)
    return _divided(wide, problem, gpu, parts, 0)


def _staged(problem: Problem, gpu: GpuSpec) -> Config | None:
    """Return a kernel of large blocks that stage keys, a block an SM; None where it is slower.

    Heads of 256 take so many registers that keys straight from memory are as fast.
    """
    plain = _of_heads(problem, gpu, 256)
    idea = replace(plain, staging="async", stages=STAGES, load_hint="default", min_blocks=1)
    if problem.of_head > 128 or not Space(problem, gpu).is_legal(idea):
        return None
    heads, keys = problem.rows // problem.of_group, problem.cols
    if heads > gpu.sm_count and keys < LONG_OF_A_BLOCK:
        return None
    wanted = gpu.sm_count // heads
    if problem.mask is Mask.LENGTHS and keys > wanted * KEYS_OF_LENGTHS:
        return _divided(idea, problem, gpu, math.ceil(keys / KEYS_OF_LENGTHS), KEYS_OF_LENGTHS)
    if wanted == 2 and problem.of_head == 128:
        return idea  # half of the SMs read as fast as all of them, and nothing is to be merged
    parts = _whole_waves(problem, gpu) or max(1, min(wanted, keys // STAGED_PART_KEYS))
    too_short = problem.of_head == 64 and wanted > 1 and keys < LONG_OF_A_BLOCK
    return None if too_short or 2 * parts < wanted else _divided(idea, problem, gpu, parts, 0)


def _whole_waves(problem: Problem, gpu: GpuSpec) -> int:
    """Return the fewest parts of which most SMs have a block in each wave; 0 if there are none.

    Two SMs share a path to memory: of 88 blocks for 132 SMs, those that share one end last. In
    several waves, blocks must be long, since each begins anew.
    """
    heads, values = problem.rows // problem.of_group, parameters(problem.dtype, problem.operator)
    for parts in map(int, values["splits"]):
        blocks = heads * parts
        waves = math.ceil(blocks / gpu.sm_count)
        least = STAGED_PART_KEYS if waves == 1 else LONG_OF_A_BLOCK
        if blocks >= FULL * waves * gpu.sm_count and problem.cols // parts >= least:
            return parts
    return 0


def _of_many_heads(problem: Problem, gpu: GpuSpec, busy: int) -> Config:
    """Return a kernel for more heads than wide blocks of an SM: all of them resident, if may be."""
    heads = problem.rows // problem.of_group
    held = [gpu.sm_count * warps for warps in RESIDENT_WARPS[problem.of_head]]
    for threads, most in zip(THREADS, held, strict=True):
        idea, warps = _of_heads(problem, gpu, threads), heads * threads // WARP
        too_few = warps < ENOUGH * busy and problem.cols >= LONG
        parts = most // warps if too_few else 1
        if warps <= most and not (too_few and parts == 1 and threads > 64):
            return _divided(idea, problem, gpu, parts, 0)
    return _of_heads(problem, gpu, 128)


def _of_steps(problem: Problem, gpu: GpuSpec, wide: Config) -> Config:
    """Return a kernel for few keys, of which a block takes one step or hardly more."""
    values = parameters(problem.dtype, problem.operator)["splits"]
    narrow = replace(wide, threads=min(128, wide.threads))
    steps = -(-problem.cols // KeySplit(problem, narrow).block_keys)
    idea = narrow if steps <= MOST_STEPS else wide
    steps = -(-problem.cols // KeySplit(problem, idea).block_keys)
    number = min((n for n in map(int, values) if n >= steps), default=MOST_PARTS)
    return _divided(idea, problem, gpu, number, 1)


def _of_heads(problem: Problem, gpu: GpuSpec, threads: int) -> Config:
    """Return a kernel of one block for each head."""
    plain = Config(
        exp="ex2.approx",
        static_cols=False,
        threads=threads,
        load_hint="no-allocate",
        heads_per_thread=problem.of_group,
    )
    if problem.dtype.is_half and gpu.multiplies_tiles:
        return replace(plain, core="mma")
    heads = min(4, problem.of_group)
    lanes = min(16, KeySplit(problem, plain).head_words)
    return replace(
        plain, core="fma", lanes_per_key=lanes, heads_per_thread=heads, unroll=2, min_blocks=2
    )


def _divided(idea: Config, problem: Problem, gpu: GpuSpec, wanted: int, keys: int) -> Config:
    """Return the kernel with its keys in so many parts at most as there are values for.

    A part has as many keys as a block of 128 threads takes at once, at least, or `keys` where that
    is not 0.
    """
    values = parameters(problem.dtype, problem.operator)
    least = keys or KeySplit(problem, replace(idea, threads=128)).block_keys
    most = max(1, min(wanted, problem.cols // least))
    number = max(n for n in map(int, values["splits"]) if n <= most and n // 2 * 64 < problem.cols)
    if number == 1:
        return idea
    part_keys = max([64, *(n for n in map(int, values["part_keys"]) if n <= keys)])
    divided = replace(idea, splits=number, part_keys=part_keys)
    if number == 2 and gpu.cluster_blocks > 1 and idea.staging == "direct":
        return replace(divided, cluster=number)
    launches = "two-overlapped" if gpu.overlaps_launches else "two"
    return replace(divided, launches=launches)
