"""Problems small enough to emulate that still make a kernel do everything it can do."""

from dataclasses import replace

from explorer.evaluate.program_under_test import ProgramUnderTest
from explorer.op import Mask
from explorer.problem import Problem
from explorer.reference import (
    PATTERN_COUNT,
    TELLING_COUNT,
    rows_that_repeat,
    verification_problem,
)

FEW_ELEMENTS = 2**17
"""Elements of a problem that is checked in a small part of a second."""

MOST_ELEMENTS = 2**22
"""Elements beyond which a check takes minutes, or more memory than a small machine has."""

RAGGED_COLS = 37

ROUNDS = 8
"""Rounds of a kernel's loops at the cols that are tried beside its own."""


def small_problems(program: ProgramUnderTest, rows: int | None = None) -> tuple[Problem, ...]:
    """The problems to check a program on: at the cols it was emitted for, then at others.

    Each has rows for more than one block, the last one in part; other cols are tried where a
    kernel takes them at run time: those beside its own, or beside a multiple of what one round of
    its loops covers, and a few. `rows` replaces our choice.
    """
    own = program.cols
    others = [] if program.config.static_cols else _other_cols(program)
    whole = tuple(_of_cols(program, cols, rows) for cols in (own, *others))
    return (*whole, *_rows_of_a_triangle(whole[0]))


def _rows_of_a_triangle(problem: Problem) -> tuple[Problem, ...]:
    """The same rows elsewhere under a causal mask: where about half is seen, and little or none.

    The last rows of the mask, which see nearly all, are what few rows of their own mask are.
    """
    rows, cols = problem.rows, problem.cols
    if problem.mask is not Mask.CAUSAL:
        return ()
    masks = {cols // 2 + rows, max(rows, cols) + rows // 3} - {problem.mask_rows}
    return tuple(replace(problem, mask_rows=mask_rows) for mask_rows in sorted(masks))


def _of_cols(program: ProgramUnderTest, cols: int, rows: int | None) -> Problem:
    """A problem of `cols` columns and, unless `rows` says how many, few rows."""
    problem, split = program.problem, program.split
    if split.across_rows and rows is None:
        wide = problem.resized(cols=cols)
        return verification_problem(wide, split.block_rows, split.rows_together)
    rows_per_block = program.config.rows_per_block
    few = rows or rows_that_repeat(problem, _rows(cols, rows_per_block), rows_per_block)
    return problem.resized(few, cols)


def too_large(problem: Problem) -> str:
    """Why a problem is not emulated, or nothing."""
    elements = problem.rows * problem.cols
    if elements <= MOST_ELEMENTS:
        return ""
    return (
        f"{problem.rows}x{problem.cols} has {elements} elements, more than the {MOST_ELEMENTS} "
        "that are emulated: verify it on a GPU, or with fewer --rows"
    )


def _rows(cols: int, rows_per_block: int) -> int:
    """Rows for every pattern of the input if they are few elements, for the most telling if not.

    A block and a part at least.
    """
    wanted = max(PATTERN_COUNT + 2, rows_per_block + (rows_per_block + 1) // 2)
    wanted += wanted % rows_per_block == 0 and rows_per_block > 1
    least = max(TELLING_COUNT, rows_per_block + 1)
    least += least % rows_per_block == 0 and rows_per_block > 1
    while least > 1 and least * cols > MOST_ELEMENTS:
        least -= 1
    return max(least, min(wanted, FEW_ELEMENTS // cols))


def _other_cols(program: ProgramUnderTest) -> list[int]:
    """Cols beside some rounds of the loops and a ragged few, in whole vectors where it must be."""
    own, unit, config = program.cols, program.cols_unit, program.config
    a_round = config.threads_per_row * program.split.row_width * config.unroll
    middle = min(own, ROUNDS * a_round // unit * unit)
    few = max(1, RAGGED_COLS // unit) * unit
    beside = [middle - unit, middle + unit, few]
    return [cols for cols in dict.fromkeys(beside) if 1 <= cols != own]
