"""Attention of one query a head: how many blocks share a head's keys, and how their parts meet.

A block has eight warps, whose loads keep an SM's share of memory's bandwidth busy, and every SM has
one: of 16 problems that were swept on an H200, the fastest kernels of 15 were of this kind, at 94
to 97 % of reading from 256 MB on. Two parts meet in a cluster, more by a second launch: clusters
of 16 take 1.1 to 1.3 times as long there.
"""

from dataclasses import replace

from explorer.model.config import Config, parameters
from explorer.model.gpu_spec import GpuSpec
from explorer.model.key_split import KeySplit
from explorer.model.problem import Problem
from explorer.space.space import Space

WIDE_BLOCK, NARROW_BLOCK = 256, 128
"""Threads of a block with which an SM has one block, and two."""

INVARIANT_KEYS = 512
"""Keys of a part where bits may not depend on the number of sequences."""


def attention(problem: Problem, gpu: GpuSpec, *, batch_invariant: bool = False) -> Config:
    """Return a kernel for the heads and keys of a problem."""
    wide = _of_heads(problem, gpu, WIDE_BLOCK)
    narrow = _of_heads(problem, gpu, NARROW_BLOCK)
    idea = wide if Space(problem, gpu).is_legal(wide) else narrow
    if batch_invariant:
        return _divided(idea, problem, gpu, problem.cols // INVARIANT_KEYS, INVARIANT_KEYS)
    heads = KeySplit(problem, idea).blocks
    if idea.core == "mma" and heads > gpu.sm_count and problem.of_head > 64:
        return narrow  # three of its blocks are resident, where one wide one is
    blocks = gpu.sm_count * (1 if idea == wide and idea.core == "mma" else 2)
    divided = _divided(idea, problem, gpu, blocks // heads, 0)
    keys = KeySplit(problem, divided)
    short = problem.cols < divided.splits * keys.block_keys
    return replace(divided, threads=NARROW_BLOCK) if short else divided


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
    return replace(
        plain, core="fma", lanes_per_key=16, heads_per_thread=heads, unroll=2, min_blocks=2
    )


def _divided(idea: Config, problem: Problem, gpu: GpuSpec, wanted: int, keys: int) -> Config:
    """Return the kernel with its keys in so many parts at most as there are values for.

    A part has as many keys as a narrow block takes at once, at least, or `keys` where that is not
    0.
    """
    values = parameters(problem.dtype, problem.operator)
    least = keys or KeySplit(problem, replace(idea, threads=NARROW_BLOCK)).block_keys
    most = max(1, min(wanted, problem.cols // least))
    number = max(n for n in map(int, values["splits"]) if n <= most)
    if number == 1:
        return idea
    part_keys = max([64, *(n for n in map(int, values["part_keys"]) if n <= keys)])
    divided = replace(idea, splits=number, part_keys=part_keys)
    if number == 2 and gpu.cluster_blocks > 1:
        return replace(divided, cluster=number)
    launches = "two-overlapped" if gpu.overlaps_launches else "two"
    return replace(divided, launches=launches)
