"""The problems that verify a kernel of attention, whose columns are the keys of a sequence.

Keys, key heads, strides and lengths are run-time arguments of every such kernel. So small problems
show what large ones need: parts of the keys that are full, short or empty, whole steps of a loop
and a part of one, both layouts.
"""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from explorer.devices.program_under_test import ProgramUnderTest
from explorer.model.key_split import TILE_KEYS, KeySplit
from explorer.model.problem import Layout, Problem
from explorer.reference.attention import KINDS, TELLING_OF_STEPS
from explorer.reference.inputs import Case

MOST_PRODUCTS = 2**21
"""Most products of queries and keys of a run: a small part of a second of emulation."""

MOST_PRODUCTS_OF_PARTS = 2**23
"""The same of the runs in which all parts of the keys are full: a second. Of a kernel for more keys
there is one run of so many products."""

MOST_LANES = 2**16
"""Most threads of a run with several groups, which all share the time of one instruction."""

FEW_COLS = (1, 2, TILE_KEYS - 1, TILE_KEYS, TILE_KEYS + 1)
"""Keys of short sequences."""

FEW_STEPS = 8
"""Most steps of a part of the keys in the first run."""

GROUPS = 6
"""Groups of a run, but for the first, as far as these limits allow."""

HEADS = (2, 1, 3)
"""Key heads of a sequence, in turn."""

DRAWN = 2
"""Columns of each kind that a check draws that is not thorough."""

SCALES = (0.0, -0.7, 1.3)
"""Scales that a kernel which takes one is tried at."""


def attention_cases(program: ProgramUnderTest, rows: int | None = None) -> list[Case]:
    """Return the problems to try a kernel of attention on; the first has groups of all kinds.

    `rows` replaces our choice of rows in the first, which then has the kernel's own columns. Raises
    InvalidInput for rows that are no whole sequences.
    """
    own = program.problem.resized(cols=program.cols)
    keys = KeySplit(own, program.config)
    block, part = keys.block_keys, keys.least_part_keys
    if rows is not None:
        problems = [own.resized(rows)]
    else:
        a_part = min(part, FEW_STEPS * block) if keys.parts > 1 else block
        problems = [_sized(keys, min(own.cols, 2 * max(block, a_part) + 5), 0, len(KINDS))]
    rng = np.random.default_rng([program.seed, program.cols])
    full = _full_columns(program, keys, rng)
    longer = [cols for cols in full if cols > keys.parts * part]
    others = [cols for cols in full if cols not in longer]
    for number, cols in enumerate([*_short_columns(program, keys, rng), *others], 1):
        problems.append(_sized(keys, cols, number, GROUPS))
    if own.scale is not None:
        scaled = _sized(keys, 2 * block + 1, 1, GROUPS)
        problems += [replace(scaled, scale=scale) for scale in SCALES]
    drawn = program.seed % 1009
    firsts = [drawn + 5 * number for number in range(len(problems))]
    for number, cols in enumerate(longer):
        problems.append(_sized(keys, cols, len(HEADS) * (number + 1), GROUPS))
        kind = TELLING_OF_STEPS[number % len(TELLING_OF_STEPS)]
        firsts.append(drawn * len(KINDS) + KINDS.index(kind))
    seams = tuple(dict.fromkeys((TILE_KEYS, block, part, (keys.parts - 1) * part)))
    return [
        Case(problem, first, seams=seams) for problem, first in zip(problems, firsts, strict=True)
    ]


def in_few_steps(program: ProgramUnderTest, problem: Problem) -> Problem:
    """Return one sequence of a problem, of so few keys that each order of threads takes little."""
    keys = KeySplit(problem, program.config)
    return problem.resized(problem.heads, min(problem.cols, 2 * keys.block_keys + 5))


def _short_columns(
    program: ProgramUnderTest, keys: KeySplit, rng: np.random.Generator
) -> list[int]:
    """Return the columns of most runs: few, and next to the ends of steps and of parts."""
    block, part = keys.block_keys, keys.least_part_keys
    ends = [block, 2 * block, *([part, 2 * part] if keys.parts > 1 else [])]
    near = [end + more for end in ends for more in (-1, 0, 1) if end + more > 1]
    return _within_limit(keys, [*_drawn(program, FEW_COLS, rng), *_drawn(program, near, rng)])


def _full_columns(program: ProgramUnderTest, keys: KeySplit, rng: np.random.Generator) -> list[int]:
    """Return the columns of the runs in which no part is empty.

    Two numbers are in every check. One is the least at which parts are longer than they must be,
    where a warp may have its second step. The other is the kernel's own, or as many as fit: its
    loops take rounds that no other run has. The rest are drawn. At some of them no part is empty by
    one column, or parts are as long as they must be, or they have a step more.
    """
    block, part, parts = keys.block_keys, keys.least_part_keys, keys.parts
    longer = (block * parts // 2 + 1, block * parts - 1, 3 * block * parts // 2)
    full = [parts * part + more for more in longer]
    if parts > 1:
        full += [(parts - 1) * part + 1, parts * part]
    drawn = _drawn(program, full, rng, DRAWN - 1)
    own = min(program.cols, _most_columns(keys))
    return _within_limit(keys, [parts * part + 1, own, *drawn])


def _most_columns(keys: KeySplit) -> int:
    """Return how many columns a run with one group has at most."""
    return MOST_PRODUCTS_OF_PARTS // (keys.problem.of_group * keys.problem.of_head)


def _within_limit(keys: KeySplit, wanted: Sequence[int]) -> list[int]:
    most = _most_columns(keys)
    return [cols for cols in wanted if cols <= most]


def _drawn(
    program: ProgramUnderTest, of: Sequence[int], rng: np.random.Generator, count: int = DRAWN
) -> list[int]:
    """Return all of some columns if the check is thorough, else `count` of them."""
    distinct = list(dict.fromkeys(of))
    if program.is_thorough or len(distinct) <= count:
        return distinct
    return sorted(rng.choice(distinct, count, replace=False).tolist())


def _sized(keys: KeySplit, cols: int, number: int, groups: int) -> Problem:
    """Return the problem at `cols` keys, with some `groups` groups, or as many as limits allow.

    Another `number` gives other key heads, and another layout; 0 gives two groups at least.
    """
    problem = keys.problem
    products = cols * problem.of_group * problem.of_head
    lanes = keys.group_blocks * keys.config.threads
    fewest = 1 if number else 2
    groups = max(fewest, min(groups, MOST_PRODUCTS // products, MOST_LANES // lanes))
    heads = min(HEADS[number % len(HEADS)], groups)
    rows = groups // heads * heads * problem.of_group
    layout = list(Layout)[number % len(Layout)]
    return replace(problem, rows=rows, key_heads=heads, layout=layout).resized(cols=cols)
