"""One list of candidates for every problem: the kinds of kernel that win somewhere, all legal here.

A table of tuned configs is made by timing all of them, so that each problem's time of each is known
and not of the winner alone. Numbers are relative to the row (accesses of a thread) or are all that
the space has; nothing in the list was chosen for one GPU.
"""

import math
from collections.abc import Iterator
from dataclasses import replace
from itertools import product
from typing import Any

from explorer.model.config import ROW_THREADS, WARPS, Config, parameters
from explorer.model.gpu_spec import WARP, GpuSpec, other_residencies
from explorer.model.key_split import KeySplit
from explorer.model.outcome import Resources
from explorer.model.problem import Problem
from explorer.space.design_rules import WIDE_ROW, has_plain_rows, widest_vector
from explorer.space.rules import Point, has_working_registers
from explorer.space.space import Space

LONGEST_STAGED_ROW = 512
"""Elements of the longest row that a span is tried for: a thread stages 64 elements at most."""

LONGEST_WITHIN_A_WARP = 1280
"""Elements of the longest row that less than a warp is tried for."""

MOST_KEPT = 128
"""Registers of a thread that hold its share of a row, at most: 255 is all that it can have."""

MOST_ACCESSES = 16
"""Accesses of a thread to its share of a row, at most, where fewer are possible."""

MOST_ELEMENTS_OF_AN_SM = 64 * 1024
"""Elements of the rows of an SM up to which a gradient is tried by a block and narrow vectors: with
more, there are enough loads at a time for vectors of 16 bytes."""

BUSY_WARPS = 8
"""Warps of an SM whose loads of keys and values keep memory busy; the choice without a search takes
twice as many of heads of 64 elements."""

FEW_ROWS = 256
"""Rows up to which two launches are tried: more rows fill every GPU by a block each."""


def candidates(problem: Problem, gpu: GpuSpec, first: Config) -> list[Config]:
    """Return different legal configs, the one that is taken without a search first.

    The cache policy is that of the first; `variations` has the others. In attention it follows from
    how keys come, so that each idea has its own.
    """
    space = Space(problem, gpu)
    shared = () if problem.attends else ("load_hint", "store_hint", "row_order")
    policy = {name: getattr(first, name) for name in shared}
    ideas = (replace(idea, **policy) for idea in listed(problem, gpu))
    return [idea for idea in dict.fromkeys([first, *ideas]) if space.is_legal(idea)]


def listed(problem: Problem, gpu: GpuSpec) -> list[Config]:
    """Return the candidates that do not depend on the heuristic, without hints and row order.

    A table that has timed these stays whole when a rule of the heuristic changes.
    """
    space = Space(problem, gpu)
    ideas = dict.fromkeys(adapted(idea, problem) for idea in _ideas(problem, gpu))
    return [idea for idea in ideas if space.is_legal(idea)]


def adapted(idea: Config, problem: Problem) -> Config:
    """Return the idea as a gradient, a logarithm or f64 allows it: none has every choice of f32."""
    if problem.operator.is_gradient:
        idea = replace(idea, exp=Config().exp)
    idea = as_taken(idea, problem)
    if problem.dtype.in_double:
        idea = replace(idea, exp="exp2f")
    if problem.operator.is_gradient or problem.dtype.in_double:
        return replace(idea, reduction=idea.reduction.replace("-redux", ""))
    return idea


def as_taken(config: Config, problem: Problem) -> Config:
    """Return the config with a value that makes sense for the operator in place of each other."""
    takes, allows = problem.operator.takes, problem.operator.allows
    own = {n: one.values[0] for n, one in takes.items() if not allows(n, getattr(config, n))}
    return replace(config, **own)


def variations(idea: Config, problem: Problem, gpu: GpuSpec) -> list[Config]:
    """Return legal configs that differ from one in a choice that shifts its time by little.

    The other cache hints come first: on an H200 they are 2 to 10 % either way.
    """
    space = Space(problem, gpu)
    other = "default" if idea.load_hint == "cs" else "cs"
    algorithm = "online-block-max" if idea.algorithm == "three-pass" else "three-pass"
    holds = "exp" if idea.cache_holds == "input" else "input"
    ideas = [
        replace(idea, load_hint=other, store_hint=other),
        replace(idea, algorithm=algorithm),
        replace(idea, cache_holds=holds),
        replace(idea, reduction="shuffle" if idea.uses_redux else "shuffle-redux"),
        replace(idea, reduction="shuffle-first-warp"),
        replace(idea, store_hint="cs" if idea.store_hint == "default" else "default"),
    ]
    return [one for one in dict.fromkeys(ideas) if one != idea and space.is_legal(one)]


def residencies(
    measured: Config, resources: Resources, problem: Problem, gpu: GpuSpec
) -> list[Config]:
    """Return legal configs with launch bounds for the residency that was measured and those nearby.

    First comes the one that states what the compiler gave by itself, so that another compiler keeps
    it; then the next fewer and the next more blocks an SM that other registers would give. There is
    none where eight registers a thread make no difference. Of 567 kernels that rules chose, on an
    H200, the best of the three takes 0.9 % less time in the mean, 36 % at best.
    """
    if not resources.rests_on_registers:
        return []
    blocks = [resources.resident_blocks, *other_residencies(resources, measured.threads, gpu)]
    ideas = [replace(measured, min_blocks=number) for number in blocks]
    space = Space(problem, gpu)
    return [one for one in ideas if one != measured and space.is_legal(one)]


def _ideas(problem: Problem, gpu: GpuSpec) -> Iterator[Config]:
    """Every kind of kernel for the problem's rows, legal or not."""
    if problem.attends:
        yield from _of_attention(problem, gpu)
        return
    if problem.inner > 1:
        yield from _across_rows(problem, gpu)
    elif not problem.operator.reduces:
        yield from _by_elements(problem, gpu)
        return
    elif problem.cols <= LONGEST_WITHIN_A_WARP:
        yield from _short_rows(problem)
    if not problem.fills_rows and problem.inner == 1:
        yield from _read_once(problem, gpu)
        return
    if problem.inner == 1:
        yield from _by_blocks(problem, gpu)
    if problem.cols >= WIDE_ROW and problem.inner == 1:
        yield from _by_clusters(problem, gpu)
        yield from _read_twice(problem, gpu)


def _of_attention(problem: Problem, gpu: GpuSpec) -> Iterator[Config]:
    """Yield kernels of attention whose blocks come to half an SM's warps and up to four times that.

    By the tensor cores with a block of two to eight warps. Where elements have 32 bits, by
    multiply-adds with four or eight: two took 3 and 15 % longer at two problems on an H200. Keys
    and values come straight from memory, or two steps of them are staged by the larger blocks; not
    by those of four warps where heads have 256 elements, which took 9 to 34 % longer at five
    problems.
    """
    plain = Config(
        exp="ex2.approx",
        static_cols=False,
        load_hint="no-allocate",
        heads_per_thread=problem.of_group,
    )
    cores, sizes = [replace(plain, core="mma")], [64, 128, 256]
    if not problem.dtype.is_half:
        by_lanes = replace(plain, core="fma", heads_per_thread=min(4, problem.of_group))
        cores, sizes = [replace(by_lanes, lanes_per_key=lanes) for lanes in (8, 16)], [128, 256]
    launches = "two-overlapped" if gpu.overlaps_launches else "two"
    splits = [n for n in map(int, parameters(problem.dtype, problem.operator)["splits"]) if n > 1]
    ideas = [
        *(
            replace(core, threads=threads, unroll=unroll)
            for core, threads, unroll in product(cores, sizes, (1, 2))
        ),
        *(
            replace(cores[-1], threads=threads, staging="async", stages=2, load_hint="default")
            for threads in (sizes[-2:] if problem.of_head <= 128 else sizes[-1:])
        ),
    ]
    for idea in ideas:
        one, wave = KeySplit(problem, idea).blocks * idea.threads, BUSY_WARPS * WARP * gpu.sm_count
        yield from (replace(idea, min_blocks=blocks) for blocks in (1, 2, 3))
        for number in splits:
            if 2 * wave <= 3 * number * one <= 12 * wave and number * 64 <= problem.cols:
                divided = replace(idea, splits=number)
                yield replace(divided, launches=launches)
                if number <= min(8, gpu.cluster_blocks):
                    yield replace(divided, cluster=number)


def may_split(problem: Problem) -> bool:
    """Whether two launches were ever timed for such rows: dense, unscaled ones of softmax alone."""
    plain = has_plain_rows(problem) and not problem.operator.is_log
    return plain and problem.scale is None and problem.is_dense


def _widths(problem: Problem) -> list[int]:
    """Bytes of an access: the widest at which all rows start, and what is half as wide or less."""
    least = problem.dtype.itemsize
    widest = max(widest_vector(problem), least)
    return [width for width in (16, 8, 4, 2) if least <= width <= widest]


def _registers(problem: Problem) -> int:
    """Return the registers that a row takes once it is computed with, or a gradient's two rows."""
    per_element = max(1, problem.dtype.arithmetic.itemsize // 4)
    return problem.cols * per_element * (2 if problem.operator.is_gradient else 1)


def _short_rows(problem: Problem) -> Iterator[Config]:
    """Spans by one to four warps, a row by a thread or more; and rows straight to their threads.

    Threads for a row are those that leave each 2 to 32 elements. A gradient has spans only where
    vectors of 16 bytes do not divide its rows, because its two tiles take twice the shared memory.
    """
    plain = Config(exp="ex2.approx")
    shares = [t for t in ROW_THREADS if t <= WARP and 2 * t <= max(2, problem.cols) <= 64 * t]
    staged = not problem.operator.is_gradient or widest_vector(problem) < 16
    if staged and problem.cols <= LONGEST_STAGED_ROW:
        for threads in (32, 64, 128):
            for each in shares:
                yield replace(plain, threads=threads, threads_per_row=each, staging="span")
    for width in _widths(problem):
        for each in shares:
            if each * width <= 2 * problem.row_bytes:
                yield replace(plain, threads=128, threads_per_row=each, vector_bytes=width)


def _by_blocks(problem: Problem, gpu: GpuSpec) -> Iterator[Config]:
    """Yield rows by a warp or a block, of every size with 1 to 16 accesses a thread.

    Accesses are of 16 bytes and of 8; rows are in registers, online, packed, or in shared memory.
    """
    plain = Config(exp="ex2.approx")
    for size in WARPS:
        accesses = problem.row_bytes / (16 * size)
        if accesses > MOST_ACCESSES or (accesses < 0.5 and size > WARP):
            continue
        idea = replace(plain, threads=max(size, 4 * WARP), threads_per_row=size)
        if idea.threads % size:
            idea = replace(idea, threads=size)
        if _registers(problem) <= MOST_KEPT * size:
            yield idea
            if problem.cols >= LONGEST_WITHIN_A_WARP:
                yield replace(idea, algorithm="online-block-max")
            yield replace(idea, vector_bytes=8)
        if problem.dtype.is_half and accesses >= 2:
            yield replace(idea, cache_holds="input")
        if problem.cols >= WIDE_ROW // 2:
            yield replace(idea, cache="shared", cache_holds="input", unroll=4)
    if problem.operator.is_gradient and _elements_of_an_sm(problem, gpu) <= MOST_ELEMENTS_OF_AN_SM:
        yield from _by_narrow_vectors(problem)
    if problem.row_bytes > gpu.shared_per_block_bytes:
        block = replace(plain, threads=1024, threads_per_row=1024)
        yield replace(block, algorithm="online-block-max", cache="none", unroll=4)


def _elements_of_an_sm(problem: Problem, gpu: GpuSpec) -> int:
    """Return the elements of the rows that the busiest SM has."""
    return problem.cols * math.ceil(problem.rows / gpu.sm_count)


def _by_narrow_vectors(problem: Problem) -> Iterator[Config]:
    """Yield rows by a block, in accesses of 2 or 4 bytes where no wider ones divide all rows.

    Each thread has one to MOST_ACCESSES of them; `_short_rows` has those of a warp or less.
    """
    width = max(widest_vector(problem), problem.dtype.itemsize)
    for size in WARPS if width < 8 else ():
        if size > WARP and size <= problem.row_bytes / width <= MOST_ACCESSES * size:
            plain = Config(threads=size, threads_per_row=size, exp="ex2.approx")
            yield replace(plain, vector_bytes=width)


def _by_clusters(problem: Problem, gpu: GpuSpec) -> Iterator[Config]:
    """Yield rows by a cluster, of every size, whose threads keep 8 to 128 registers of it.

    Where vectors of 8 bytes divide all rows, and of 16 do not, by both. Gradients, whose two rows
    take twice the registers, also from shared memory, and read twice by large blocks.
    """
    plain = Config(exp="ex2.approx", algorithm="online-block-max", exchange="mbarrier")
    widths = (16, 8) if widest_vector(problem) == 8 else (16,)
    blocks = 2
    while blocks <= gpu.cluster_blocks:
        for threads in (128, 192, 256, 384, 512):
            each = _registers(problem) / (blocks * threads)
            idea = replace(plain, cluster=blocks, threads=threads, threads_per_row=threads)
            if 8 <= each <= MOST_KEPT:
                yield from (replace(idea, vector_bytes=width) for width in widths)
            if problem.dtype.is_half and 16 <= each <= 2 * MOST_KEPT:
                packed = replace(idea, cache_holds="input")
                for resident in (2, 4) if threads <= WARP * 8 else (2,):
                    if has_working_registers(Point(problem, gpu, packed), resident):
                        yield replace(packed, min_blocks=resident)
            if problem.operator.is_gradient and threads >= 256:
                yield replace(idea, cache="shared", unroll=4)
        if problem.operator.is_gradient:
            large = replace(plain, cluster=blocks, threads=1024, threads_per_row=1024)
            yield replace(large, cache="none", unroll=4)
        blocks *= 2


def _read_twice(problem: Problem, gpu: GpuSpec) -> Iterator[Config]:
    """Rows that nothing keeps: few of them over all SMs in two launches, others by a block."""
    looped = Config(
        exp="ex2.approx", algorithm="online-block-max", cache="none", cache_holds="input"
    )
    # Of rows that are not plain `adapted` makes these ideas of one launch.
    untimed = has_plain_rows(problem) and not may_split(problem)
    if problem.rows <= FEW_ROWS and not untimed:
        overlapped = "two-overlapped" if gpu.overlaps_launches else "two"
        for unroll in (2, 4, 8):
            yield replace(looped, launches=overlapped, unroll=unroll)


def _read_once(problem: Problem, gpu: GpuSpec) -> Iterator[Config]:
    """Yield rows of which nothing is kept, because nothing of them is stored.

    By warps and blocks of every size, with 1 to 8 accesses of a thread in flight, which come to the
    whole row or are repeated; and by clusters, where rows are so few that blocks alone leave SMs
    without work.
    """
    kept = Config(exp="ex2.approx", algorithm="online-block-max", cache_holds="input")
    looped = replace(kept, cache="none")
    for size in (2, 4, 8, 16, *WARPS):
        threads = 4 * WARP if 4 * WARP % size == 0 else size
        for width in dict.fromkeys((_widths(problem)[0], 16, 8)):
            accesses = problem.row_bytes / (width * size)
            of_size: dict[str, Any] = {
                "threads": threads,
                "threads_per_row": size,
                "vector_bytes": width,
            }
            if 1.5 < accesses <= (32 if width < 8 else MOST_ACCESSES):
                yield replace(kept, **of_size)
                if size <= WARP:  # by shuffles, two numbers one by one cost less than a pair
                    yield replace(kept, algorithm="three-pass", **of_size)
            for unroll in (2, 4, 8):
                if unroll * 2 <= accesses <= 16 * unroll and size >= WARP:
                    yield replace(looped, unroll=unroll, **of_size)
    blocks = 2
    while blocks <= gpu.cluster_blocks and problem.cols >= WIDE_ROW:
        for threads in (64, 128, 192, 256, 512):
            each = problem.row_bytes / (16 * blocks * threads)
            of_size = {"threads": threads, "threads_per_row": threads, "cluster": blocks}
            if 1.5 < each <= MOST_ACCESSES:
                yield replace(kept, exchange="mbarrier", **of_size)
            elif each > MOST_ACCESSES:
                yield replace(looped, exchange="mbarrier", unroll=4, **of_size)
        blocks *= 2


def _by_elements(problem: Problem, gpu: GpuSpec) -> Iterator[Config]:
    """Yield elements that stand alone, with 1 to 8 accesses of a thread in flight.

    Rows are shared by a part of a warp to a block, or by blocks that form a cluster only to share
    them.
    """
    plain = Config(exp="ex2.approx", cache="none", cache_holds="input")
    for size in (2, 4, 8, 16, 32, 64, 128, 256, 512):
        for width in dict.fromkeys((16, _widths(problem)[0], 8)):
            accesses = problem.row_bytes / (width * size)
            idea = replace(plain, threads=max(128, size), threads_per_row=size, vector_bytes=width)
            for unroll in (1, 2, 4, 8):
                if unroll <= 2 * accesses <= 128 * unroll:
                    yield replace(idea, unroll=unroll)
    blocks = 2
    while blocks <= gpu.cluster_blocks and problem.cols >= WIDE_ROW:
        for unroll in (2, 4):
            yield replace(plain, cluster=blocks, unroll=unroll)
        blocks *= 2


def _across_rows(problem: Problem, gpu: GpuSpec) -> Iterator[Config]:
    """Tiles of rows side by side, by a block or a cluster, kept or read twice.

    Rows of 32 elements or less are also kept by one to 16 threads each.
    """
    widest = math.gcd(16, problem.inner * problem.dtype.itemsize)
    plain = Config(exp="ex2.approx", algorithm="online-block-max", vector_bytes=widest)
    if problem.cols <= WARP:
        for each in (each for each in ROW_THREADS if 2 * each <= max(2, problem.cols)):
            yield replace(plain, algorithm="three-pass", threads=128, threads_per_row=each)
    if problem.has_target:
        looped = replace(plain, threads=128, cache="none", cache_holds="input")
        for width in (width for width in (16, 8, 4) if problem.dtype.itemsize <= width <= widest):
            for each, unroll in product((1, 2, 4, 8, 16), (4, 8)):
                idea = replace(looped, threads_per_row=each, unroll=unroll)
                yield replace(idea, vector_bytes=width)
    for threads in (256, 512):
        for each in (each for each in ROW_THREADS if 4 <= each <= threads):
            idea = replace(plain, threads=threads, threads_per_row=each)
            yield replace(idea, cache="none", cache_holds="input", unroll=4)
            blocks = 1
            while blocks <= gpu.cluster_blocks:
                share = _registers(problem) * widest // problem.dtype.itemsize / (each * blocks)
                if 16 <= share <= MOST_KEPT:
                    tile = replace(idea, min_blocks=2 if threads == 256 else 1)
                    exchange = "mbarrier" if blocks > 1 else "barrier"
                    yield replace(tile, cluster=blocks, exchange=exchange)
                blocks *= 2
