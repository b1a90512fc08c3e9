"""The problems that verify a kernel of attention, whose columns are the keys of a sequence.

Keys, key heads, strides and lengths are run-time arguments of each kernel, so that small problems
show what large ones need: every part of the keys filled or empty, whole and partial steps of its
loops, both layouts.
"""

from collections.abc import Sequence
from dataclasses import replace
from itertools import count

import numpy as np

from explorer.devices.program_under_test import ProgramUnderTest
from explorer.model.key_split import KeySplit
from explorer.model.problem import Layout, Problem
from explorer.reference.attention import KINDS
from explorer.reference.inputs import Case

MOST_ELEMENTS = 2**19
"""Most elements of the keys of a run: a part of a second of emulation."""

FEW_COLS = (1, 2, 15, 16, 17)
"""Keys of short sequences: less than a tile of the tensor cores, and next to one."""

HEADS = (2, 1, 3)
"""Key heads of a sequence, in turn."""

DRAWN = 2
"""Seams that a check tries that is not thorough, of each kind."""

SCALES = (0.0, -0.7, 1.3)
"""Scales that a kernel which takes one is tried at."""


def attention_cases(program: ProgramUnderTest, rows: int | None = None) -> list[Case]:
    """Return the problems to try a kernel of attention on; the first has groups of all kinds.

    `rows` replaces our choice of rows in the first, which then has the kernel's own columns.
    """
    keys, own = KeySplit(program.problem, program.config), program.problem
    part = keys.least_part_keys
    all_parts = (keys.parts - 1) * part + 1
    rng = np.random.default_rng([program.seed, program.cols])
    if rows is not None:
        first = own.resized(rows, program.cols)
    else:
        usual = min(program.cols, 2 * max(keys.block_keys, part) + 5)
        first = _sized(own, usual, 0, len(KINDS))
    problems = [first]
    numbers = count(1)
    block = keys.block_keys
    steps = [block, 2 * block] if keys.parts == 1 else [block, part, 2 * part]
    near = [end + more for end in steps for more in (-1, 0, 1) if end + more > 0]
    whole = [all_parts, keys.parts * part, keys.parts * part + 1, all_parts + 2 * part]
    for cols in (
        *_drawn(program, FEW_COLS, rng),
        *_drawn(program, near, rng),
        *(_drawn(program, whole, rng) if keys.parts > 1 else ()),
        *_drawn(program, [keys.parts * part + block * keys.parts * 2 - 3], rng),
        program.cols,
    ):
        if cols * own.of_head <= MOST_ELEMENTS:
            problems.append(_sized(own, cols, next(numbers), 6))
    if own.scale is not None:
        problems += [replace(_sized(own, 2 * block + 1, next(numbers), 6), scale=s) for s in SCALES]
    seams = tuple(dict.fromkeys((16, block, part, all_parts - 1, keys.parts * part)))
    return [
        Case(problem, program.seed % 1009 + 5 * number, seams=seams)
        for number, problem in enumerate(problems)
    ]


def _drawn(
    program: ProgramUnderTest, of: Sequence[int], rng: np.random.Generator
) -> list[int]:
    """Return all of some columns if the check is thorough, else DRAWN of them."""
    if program.is_thorough or len(of) <= DRAWN:
        return list(of)
    return sorted(rng.choice(of, DRAWN, replace=False).tolist())


def _sized(problem: Problem, cols: int, number: int, groups: int) -> Problem:
    """Return the problem at `cols` keys, with about `groups` groups or as many as memory holds.

    Another `number` gives other key heads, and another layout.
    """
    groups = max(1, min(groups, MOST_ELEMENTS // (cols * problem.of_head)))
    heads = min(HEADS[number % len(HEADS)], groups)
    rows = -(-groups // heads) * heads * problem.of_group
    layout = list(Layout)[number % len(Layout)]
    other = replace(problem, rows=rows, key_heads=heads, layout=layout)
    return other.resized(cols=cols)
