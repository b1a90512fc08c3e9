"""Attention of one query a head: how many blocks share the keys of a head, and how their parts meet.

A block reads keys and values as fast as memory brings them while every SM has as many blocks as
its registers allow. With fewer heads than that, the keys of each are divided over several blocks.
"""

import math
from dataclasses import replace

from explorer.model.config import Config, parameters
from explorer.model.gpu_spec import GpuSpec
from explorer.model.key_split import KeySplit
from explorer.model.problem import Problem

RESIDENT = {64: 4, 128: 3, 256: 2}
"""Blocks of 128 threads that an SM holds by their registers, by the head dimension."""

INVARIANT_KEYS = 512
"""Keys of a part where bits may not depend on the number of sequences."""


def attention(problem: Problem, gpu: GpuSpec, *, batch_invariant: bool = False) -> Config:
    """Return a kernel for the heads and keys of a problem."""
    idea = _of_heads(problem, gpu)
    if batch_invariant:
        splits = math.ceil(problem.cols / INVARIANT_KEYS)
        return _divided(idea, problem, gpu, splits, INVARIANT_KEYS)
    blocks = RESIDENT[problem.of_head] * gpu.sm_count
    heads = KeySplit(problem, idea).blocks
    return _divided(idea, problem, gpu, max(1, blocks // heads), 0)


def _of_heads(problem: Problem, gpu: GpuSpec) -> Config:
    """Return a kernel of one block for each head."""
    tensor_cores = problem.dtype.is_half and gpu.multiplies_tiles
    plain = Config(
        exp="ex2.approx",
        static_cols=False,
        threads=128,
        load_hint="no-allocate",
        min_blocks=RESIDENT[problem.of_head],
        heads_per_thread=problem.of_group,
    )
    if tensor_cores:
        return replace(plain, core="mma")
    return replace(plain, core="fma", lanes_per_key=16, heads_per_thread=min(4, problem.of_group))


def _divided(idea: Config, problem: Problem, gpu: GpuSpec, splits: int, keys: int) -> Config:
    """Return the kernel with its keys divided into so many parts at most, as there are values."""
    values = parameters(problem.dtype, problem.operator)
    most = math.ceil(problem.cols / max(keys, 64))
    number = max(int(n) for n in values["splits"] if int(n) <= max(1, min(splits, most)))
    if number == 1:
        return idea
    part_keys = max([64, *(int(n) for n in values["part_keys"] if int(n) <= keys)])
    if number <= gpu.cluster_blocks:
        blocks = max(int(n) for n in values["cluster"] if int(n) <= number)
        return replace(idea, splits=blocks, cluster=blocks, part_keys=part_keys)
    launches = "two-overlapped" if gpu.overlaps_launches else "two"
    return replace(idea, splits=number, launches=launches, part_keys=part_keys)
