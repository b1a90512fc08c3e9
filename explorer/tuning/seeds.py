"""The configs that a search tries first, and their compilation before the search begins.

This module does not import Optuna, which takes half a second.
"""

import random
from collections.abc import Iterator
from dataclasses import replace
from itertools import chain, zip_longest

from explorer.choose import exact, promising
from explorer.codegen.units import emit
from explorer.compile.compiler import CompilePool
from explorer.model.accuracy import Accuracy
from explorer.model.config import Config
from explorer.model.gpu_spec import GpuSpec
from explorer.model.problem import Problem, power_of_two
from explorer.space import Space
from explorer.space.design_rules import WIDE_ROW
from explorer.tuning.objective import Goal, Where

REGISTERS_FOR_A_ROW = 32
"""Registers of cached row a thread: beyond this, occupancy falls faster than passes get shorter."""


def seeds(space: Space, rng: random.Random, accuracy: Accuracy = Accuracy.DEFAULT) -> list[Config]:
    """Return legal configs of an accuracy, the most promising first; illegal ideas are repaired."""
    ideas = (exact(idea, space.problem, accuracy) for idea in _ideas(space))
    repaired = [space.repair(into(space, idea), rng) for idea in ideas]
    return list(dict.fromkeys(repaired))


def seeds_of(goal: Goal, space: Space, rng: random.Random) -> list[Config]:
    """Return what a search tries first; for a front, fast and exact configs alternate."""
    first = seeds(space, rng, goal.accuracy)
    if not goal.objectives.is_front:
        return first
    most = _shaped(Config(exp="expf", normalise="divide", sum="compensated"), space.problem, 16)
    last = [space.repair(into(space, most), rng), *seeds(space, rng, Accuracy.STRICT)]
    by_turns = chain.from_iterable(zip_longest(first, last))
    return list(dict.fromkeys(config for config in by_turns if config))


def _ideas(space: Space) -> Iterator[Config]:
    """Yield the rules' choice; rows in registers, 8 to 32 elements a thread; other caches."""
    problem = space.problem
    best = promising(problem, space.gpu)
    yield best
    if problem.operator.is_gradient:
        yield _of_a_gradient(best, problem)
    if problem.cols >= WIDE_ROW and problem.inner == 1:
        yield from _of_wide_rows(best)
    plain = Config(exp="ex2.approx", load_hint=best.load_hint, store_hint=best.store_hint)
    other = "default" if best.load_hint == "cs" else "cs"
    shares = [_shaped(plain, problem, share) for share in (REGISTERS_FOR_A_ROW, 16, 8)]
    yield shares[0]
    yield replace(shares[1], load_hint="nc", store_hint="default")
    yield replace(shares[0], algorithm="online-block-max", exp="exp2f")
    yield shares[2]
    yield replace(
        shares[0],
        threads=max(shares[0].threads_per_row, 256),
        load_hint=other,
        store_hint=other,
    )
    yield replace(shares[1], cache="shared", cache_holds="input", unroll=8)
    yield replace(
        shares[0], algorithm="online-block-max", cache="none", cache_holds="input", unroll=4
    )
    yield replace(shares[0], vector_bytes=8, cache_holds="input")


def _of_a_gradient(best: Config, problem: Problem) -> Config:
    """Both rows read twice, with 8-byte vectors: the second time they are in a cache close by.

    On an H200, 8192 x 4096 f32 takes 0.8 % less time so than by the best other seed of a recorded
    sub-space, whose blocks have 512 threads at most. By larger blocks, registers are as fast at
    each of 15 gradients of 512 to 8000 columns.
    """
    twice = replace(best, cache="none", cache_holds="input", vector_bytes=8, unroll=4, min_blocks=1)
    return _shaped(twice, problem, 16)


def _of_wide_rows(idea: Config) -> Iterator[Config]:
    """Yield other contents of registers, fewer blocks, asynchronous copies and two launches.

    Registers hold elements, in 16 bits two in each, or exponentials. Which is better is no rule
    yet: exponentials take an H200 5 % less time at 100 x 65536 bf16, and 9 % more at 100 x 80000.
    """
    if idea.cache_holds == "input":
        yield replace(idea, cache_holds="exp", min_blocks=1)
    else:
        yield replace(idea, cache_holds="input", min_blocks=max(1, 1024 // idea.threads))
    if idea.cluster > 2:
        twice = 2 * idea.threads
        yield replace(idea, cluster=idea.cluster // 2)
        yield replace(
            idea,
            cluster=idea.cluster // 2,
            threads=twice,
            threads_per_row=twice,
            min_blocks=max(1, idea.min_blocks // 2),  # as many threads on an SM
        )
    copied = replace(
        idea, cache="shared", cache_holds="input", staging="async", unroll=4, min_blocks=1
    )
    yield copied
    shared = replace(copied, cluster=max(2, idea.cluster), exchange="barrier")
    yield replace(shared, threads=256, threads_per_row=256)
    yield replace(
        idea,
        algorithm="online-block-max",
        threads=256,
        threads_per_row=256,
        cache="none",
        cache_holds="input",
        unroll=4,
        min_blocks=1,
        launches="two-overlapped",
        cluster=1,
        exchange="barrier",
    )


def _shaped(config: Config, problem: Problem, share: int) -> Config:
    """Threads for about `share` elements of the row each, in blocks of 128 threads or more."""
    per_row = min(1024, power_of_two(problem.cols // share))
    return replace(config, threads=max(per_row, 128), threads_per_row=per_row)


def into(space: Space, config: Config) -> Config:
    """Return a config whose values that a narrowed space leaves out give way to its first."""
    changes = {
        name: values[0]
        for name, values in space.parameters.items()
        if getattr(config, name) not in values
    }
    return replace(config, **changes)  # type: ignore[arg-type]


def compile_first(
    problem: Problem, goal: Goal, seed: int, gpu: GpuSpec, where: Where, pool: CompilePool
) -> None:
    """Compile what a search tries first.

    The kernels lie on disk then, where the search finds them. To be called while a GPU is prepared,
    which takes its process a second.
    """
    space = Space.searched(problem, gpu, dict(where))
    for config in seeds_of(goal, space, random.Random(seed)):
        pool.submit(emit(problem, config).source)
