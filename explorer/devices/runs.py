"""The runs that verify a kernel: their rows, columns, run-time arguments and alignment.

The first runs are at the kernel's own columns, on rows of every pattern. Others vary the run-time
arguments: each gets a value at its edge and one elsewhere. If columns are such an argument, there
are runs for every remainder of the width of an access, and for columns well below and above its
own. At more columns than its own a kernel must meet `fast`: it must be right there, but its longer
sums need not be as exact as those that it was chosen for. Compensated sums must meet `default`,
because they are equally exact at any length.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import cycle
from typing import TypeVar

import numpy as np

from explorer.devices.attention_runs import attention_cases, in_few_steps
from explorer.devices.program_under_test import MOST_SHARED_BYTES, ProgramUnderTest
from explorer.model.accuracy import Accuracy
from explorer.model.gpu_spec import WARP
from explorer.model.problem import Mask, Problem
from explorer.reference.inputs import (
    Case,
    Held,
    arithmetic_pattern_count,
    count_of,
    pattern_count,
    rows_that_repeat,
    special_count,
    verification_problem,
    with_other_arguments,
)
from explorer.reference.patterns import LEADING_COUNT, TELLING_COUNT
from explorer.reference.rows import Shares

FEW_ELEMENTS = 2**17
"""Elements of a problem that is checked in a small part of a second."""

MOST_ELEMENTS = 2**22
"""Most elements of a run: some seconds of emulation, and a gigabyte of memory."""

ALL_ELEMENTS = 10 * 2**23
"""Most elements of all patterns together; wider rows have only the most revealing patterns."""

FEW_ROWS = LEADING_COUNT + TELLING_COUNT + 4
"""Rows of a run at other columns or arguments than the kernel's own."""

FEWEST_ROWS = 4
"""Fewest rows of such a run, however wide they are: the first of the leading patterns."""

FEW_ROWS_A_BLOCK = 8
"""Most rows of a block for which a second block is tried with every smaller number of rows."""

MOST_PARTS = 64
"""Most numbers of rows that are tried as what is left for a larger block."""

PLAIN_SCALES = (1.0, -1.0, 2.0, 0.5)
"""Scales that a kernel may treat by themselves, tried on rows of special values."""

MOST_SEAMS = 160
"""Most columns next to the seams of a kernel's loops."""

WHOLE_ROUNDS = (1, 2, 3, 4, 5, 8)
"""Rounds of a kernel's loops that rows fill to the end."""

NAMED_NUMBER = re.compile(r"(?<![\w.])\d{2,9}(?![\w.])")
"""A whole number in a kernel's text."""

SEAM_ROWS = 6
"""Rows of a run at such columns: leading patterns."""

LADDER_STEP = 1.5
"""Factor from one step of a ladder of columns to the next."""

LADDER_ELEMENTS = 2**15
"""Most columns of the steps of which a check that is not thorough draws."""

SLICES = 24
"""Other widths of an inner axis: of every remainder of so many."""

MOST_SLICES = 3 * SLICES
"""Most accesses along an inner axis there."""

DRAWN = 1
"""How many of each kind of size a check draws that is not thorough."""

MOST_TERMS = 2**10
"""Most terms of a thread's sum that is known to keep small ones. Added one after another in fp32,
rows of such terms are off by 7e-7 at so many, 2e-6 at twice and 3e-5 at four times as many terms;
the limit is 4e-6."""

RAGGED_COLS = 37

ROUNDS = 8
"""Rounds of a kernel's loops at the columns next to its own."""

LONG_COLS = 2**13
"""Columns above which every remainder is tried: rows this long are common in every type."""

LONG_ROUNDS = 32
"""Most rounds of a kernel's loops there: with few threads a row, fewer columns are tried."""

FAR_COLS = 2**17 + 5001
"""Columns beyond 17 bits, at which a kernel of run-time columns is tried."""

FAR_VECTORS = 2**16
"""A row has more vectors than this there, if a block has a single row."""

FAR_ELEMENTS = 2**20
"""Most elements of a block and a part of one there, if a block has several rows."""

FAR_ROUNDS = 544
"""Most rounds of a kernel's loops there: with few threads a row, fewer columns are tried."""

FAR_COLS_OF_AN_EDIT = 2**20 + 2**12 + 5
"""Columns beyond 20 bits, at which an edited kernel of run-time columns is tried, for some
seconds."""

BEYOND_SHORT = 2**16 + 77
"""Columns beyond 16 bits, at which such a kernel is tried, if need be in fewer rows than a
block."""

WIDEST_COLS = 2**22 + 77
"""Columns beyond 22 bits, at which such a kernel is tried in a single row, or at as many as its
loops take FAR_ROUNDS_OF_AN_EDIT rounds for."""

FAR_ROUNDS_OF_AN_EDIT = 16 * FAR_ROUNDS
"""Most rounds of an edited kernel's loops."""

FEWEST_FAR_COLS = 2**11 + 77
"""Fewest such columns, for a thread that has a row, or a large part of it, to itself."""

FEWEST_FAR_COLS_OF_A_WARP = 2**15 + 77
"""Fewest such columns if a round of a kernel's loops takes at least a warp's worth of elements."""

LONG_MASK_ROWS = 2**32 + 1
"""Rows after which a causal mask repeats: cut to 32 bits, it is a mask that hides nothing."""

MOST_STRIDES = 136
"""Rounds of a persistent block over the rows, which overflow a counter of 7 bits."""

MOST_STRIDES_OF_AN_EDIT = 300
"""Rounds that overflow a counter of 8 bits."""

MANY_ROWS = 2**20
"""More rows than an SM has blocks."""

FEW_STRIDES = 32
"""Rounds that persistent blocks make in other runs, or nearly."""


@dataclass(frozen=True, slots=True)
class Run:
    """One run of a program, to be checked."""

    case: Case
    misaligned_by: int = 0
    """Misalignment of the matrices (`first_elements`)."""

    @property
    def problem(self) -> Problem:
        """The problem of the run."""
        return self.case.problem

    @property
    def accuracy(self) -> Accuracy | None:
        """The accuracy that it must meet; None for the one that the user chose."""
        return self.case.longer


def emulated_runs(
    program: ProgramUnderTest, rows: int | None = None, suspects: Sequence[int] = ()
) -> tuple[Run, ...]:
    """Return the runs to emulate, in each of which the last block is partial.

    `rows` replaces our choice of rows in all of them. Of the elements that a row's maximum is
    suspected of omitting, as many are tried as take some seconds. Raises InvalidInput for cols that
    do not suit the kernel.
    """
    if program.problem.attends:
        return tuple(map(Run, attention_cases(program, rows)))
    own = _own_cases(program, rows, tuple(suspects))
    whole = own[0].problem
    runs = (*map(Run, own), *_more_runs(program, _of_rows(program, whole, rows), rows))
    return _judged_by(program, runs)


def gpu_runs(program: ProgramUnderTest) -> tuple[Run, ...]:
    """Return the runs on a GPU: the emulated ones, with more rows at the kernel's own columns."""
    if program.problem.attends:
        return emulated_runs(program)
    split = program.split
    problem = program.problem.resized(cols=program.cols)
    own = verification_problem(problem, split.block_rows, split.rows_together)
    runs = (
        Run(_suited(program, Case(own))),
        *_more_runs(program, _of_rows(program, own, None), None),
    )
    return _judged_by(program, runs)


def _judged_by(program: ProgramUnderTest, runs: tuple[Run, ...]) -> tuple[Run, ...]:
    """Return the runs that a program is judged by: with rows that hold what it is judged on."""
    only = program.judged_on
    if only is None:
        return runs
    return tuple(replace(run, case=replace(run.case, only=only)) for run in runs)


def odd_runs(program: ProgramUnderTest) -> Iterator[tuple[Held, Run]]:
    """Yield a run for each kind of row that a program is not judged on, but is said to be wrong on.

    These are rows with infinities and NaN, at the kernel's own columns.
    """
    problem = program.problem.resized(cols=program.cols)
    for kind in (Held.MASKED, Held.OTHER) if program.judged_on is Held.FINITE else ():
        count = count_of(problem, kind)
        if count:
            most = max(1, MOST_ELEMENTS // problem.cols)
            few = that_fit(program, problem, min(count, most), most)
            yield kind, Run(Case(few, only=kind))


def striding_run(program: ProgramUnderTest, most_strides: int) -> Run | None:
    """Return a run in which persistent blocks on one SM make MOST_STRIDES rounds over the rows.

    They make fewer if `most_strides` or the memory limits them. None if that is no more than in
    other runs, or if blocks are not persistent.
    """
    if program.split.across_rows or program.problem.attends:
        return None
    problem = program.problem.resized(cols=program.cols)
    if program.is_thorough:  # narrow rows take fewer steps
        problem = _narrow(program, problem.resized(FEW_ELEMENTS))
    launches = program.launches(problem.resized(MANY_ROWS))
    blocks = max(step.grid_on(1) if step.blocks_per_sm else 0 for step in launches)
    if not blocks:
        return None
    per_block = program.config.rows_per_block
    each = blocks * per_block // program.config.cluster
    most, most_strides = MOST_STRIDES, most_strides
    if program.is_thorough:
        most, most_strides = MOST_STRIDES_OF_AN_EDIT, 2 * most_strides
    strides = min(most, most_strides, MOST_ELEMENTS // (each * problem.cols) - 1)
    if strides <= FEW_STRIDES:
        return None
    rows = strides * each + (per_block + 1) // 2
    return Run(Case(problem.resized(rows_that_repeat(problem, rows, per_block))))


def run_beyond_short(program: ProgramUnderTest) -> Run | None:
    """Return a run of a few rows of more than 2^16 columns, or of one row of more than 2^22.

    It is for sources that a person has edited. None for others, and if other runs have such rows or
    shared memory cannot hold them.
    """
    if not program.is_thorough or program.config.static_cols or program.split.across_rows:
        return None
    if program.is_own:
        return None
    if program.problem.attends:  # keys as wide as rows would be too many
        return None
    unit, most = program.cols_unit, _most_of_an_edit(program)
    tried = max(_other_cols(program), default=0)
    for wanted, rows in ((min(WIDEST_COLS, most), 1), (BEYOND_SHORT, FEWEST_ROWS)):
        cols = wanted // unit * unit
        if cols > tried and program.planned_shared_bytes(cols) <= MOST_SHARED_BYTES:
            problem = program.problem.resized(cols=cols)
            return _few(program, problem.resized(rows_that_repeat(problem, rows, 1)))
    return None


def few_blocks(program: ProgramUnderTest, run: Run) -> Run:
    """Return a run cut to two blocks and a part of one, or of attention to one sequence.

    A run over a middle axis is unchanged.
    """
    problem, block = run.problem, program.config.rows_per_block
    if problem.attends:
        return replace(run, case=replace(run.case, problem=in_few_steps(program, problem)))
    rows = 2 * block + (block + 1) // 2
    if program.split.across_rows or rows >= problem.rows:
        return run
    return replace(run, case=replace(run.case, problem=problem.resized(rows)))


def too_large(problem: Problem) -> str:
    """Return why a problem is too large to be emulated, or an empty string."""
    elements = problem.rows * problem.cols
    if problem.attends:
        elements = elements // problem.of_group * problem.of_head
    if problem.cols > MOST_ELEMENTS:
        return (
            f"a row has {problem.cols} elements, more than the {MOST_ELEMENTS} that are emulated: "
            "verify it on a GPU"
        )
    if elements <= MOST_ELEMENTS:
        return ""
    return (
        f"the rows to try, {problem.rows} of {problem.cols} columns, have {elements} elements, "
        f"more than the {MOST_ELEMENTS} that are emulated: verify it on a GPU, or with fewer --rows"
    )


# ------------------------------------------------------------------ at a kernel's own columns


def _own_cases(
    program: ProgramUnderTest, rows: int | None, suspects: tuple[int, ...]
) -> list[Case]:
    """Return rows of every pattern; wide rows are split into parts that each fit the memory."""
    problem, split = program.problem.resized(cols=program.cols), program.split
    cols, per_block = program.cols, program.config.rows_per_block
    shares = replace(shares_of(program), suspects=suspects)
    each = max(1, MOST_ELEMENTS // cols)
    if rows is not None:
        rows = rows_that_repeat(problem, rows, per_block, each)
        return [_suited(program, Case(problem.resized(rows), shares=shares))]
    count = max(1, min(pattern_count(problem, shares), ALL_ELEMENTS // cols))
    if split.across_rows:
        block, together = split.block_rows, split.rows_together
        part = verification_problem(problem, block, together, each, shares)
        cases = [Case(part, first, shares) for first in range(0, count, part.rows)]
    elif count + 2 <= each:  # another seed puts another pattern into the first row
        whole = that_fit(program, problem, count + 2, each)
        cases = [Case(whole, program.seed % count, shares)]
    else:
        cases = [
            Case(that_fit(program, problem, min(each, count - first), each), first, shares)
            for first in range(0, count, max(1, each - 1 if per_block > 1 else each))
        ]
    return [_suited(program, case, leads=case is cases[0]) for case in cases]


def _suited(program: ProgramUnderTest, case: Case, *, leads: bool = True) -> Case:
    """Return a case with the rows that the kernel's kind of sum must compute exactly.

    `leads` says whether it is the first one, which has the row that compensated sums lose nothing
    of.
    """
    compensated = _is_compensated(program) and leads
    return replace(case, compensated=compensated, keeps_small=_keeps_small(program))


def that_fit(program: ProgramUnderTest, problem: Problem, wanted: int, most: int) -> Problem:
    """Return a problem of about `wanted` rows: more than a block, if those are at most `most`.

    If a block has too many rows, kernels of run-time columns have whole blocks at fewer columns.
    """
    per_block = program.config.rows_per_block
    if program.config.static_cols or per_block < most:
        return _with_rows(problem, wanted, per_block, most)
    return problem.resized(rows_that_repeat(problem, min(wanted, most), per_block, most))


def shares_of(program: ProgramUnderTest) -> Shares:
    """Return how a kernel divides a row among its threads."""
    split, config = program.split, program.config
    vectors = split.row_vectors
    if config.splits_launches:
        vectors = config.threads * config.unroll
    return Shares(
        split.row_width,
        config.threads_per_row,
        vectors,
        thorough=program.is_thorough,
    )


def _keeps_small(program: ProgramUnderTest) -> bool:
    """Return whether small terms are never lost in a thread's sum.

    They are if a thread adds up more than a thousand terms, or the sums of all other threads.
    """
    terms = program.cols / shares_of(program).workers(program.cols)
    return terms <= MOST_TERMS and program.config.reduction != "shared-serial"


def _with_rows(problem: Problem, wanted: int, per_block: int, most: int) -> Problem:
    """Return a problem of about `wanted` rows: more than a block, and the last block partial."""
    and_half = min(per_block + (per_block + 1) // 2, max(most, per_block + 1))
    rows = max(min(wanted, most), and_half)
    if per_block > 1 and rows % per_block == 0:
        rows += 1 if rows < most else -1
    least = per_block + 1 if per_block > 1 else 1
    return problem.resized(rows_that_repeat(problem, max(least, rows), per_block, most))


# ------------------------------------------------------------------ at other run-time arguments


def _more_runs(program: ProgramUnderTest, few: Problem, rows: int | None) -> list[Run]:
    """Return the runs at other columns and arguments than the kernel's own.

    If the matrices may be unaligned, every second run misaligns its output by another number of
    elements, up to the width of an access. The numbers that no run of more than a block has get
    runs of their own, of at most two blocks: a part of a block may take another path. A gradient is
    also misaligned by the width itself, for which the output is aligned as the input is, and the
    gradient is not.
    """
    runs = list(_aligned_runs(program, few, rows))
    if program.any_alignment:
        backward = program.problem.operator.is_gradient
        numbers = range(1, max(2, _access_width(program) + backward))
        remaining = set(numbers)
        for number, misaligned_by in zip(range(0, len(runs), 2), cycle(numbers), strict=False):
            runs[number] = replace(runs[number], misaligned_by=misaligned_by)
            if runs[number].problem.rows > program.config.rows_per_block:
                remaining.discard(misaligned_by)
        smallest = few
        if not program.split.across_rows:
            smallest = _with_rows(few, 2, program.config.rows_per_block, few.rows)
        runs += [Run(Case(smallest, number), misaligned_by=number) for number in sorted(remaining)]
    return runs


def _aligned_runs(program: ProgramUnderTest, few: Problem, rows: int | None) -> Iterator[Run]:
    """Yield aligned runs of few rows, at other arguments and other columns."""
    if program.any_alignment or program.is_thorough:
        yield _few(program, few)
    for problem in _triangles(few):
        yield _few(program, problem)
    for problem in with_other_arguments(few, program.split.rows_together):
        yield _few(program, _of_more_rows(program, problem, rows))
    if rows is None:
        yield from _at_plain_scales(program, few)
        yield from _of_other_slices(program, few)
        narrow = _narrow(program, few)
        numbers = (n for n in _fewest_rows(program) if n * narrow.cols <= MOST_ELEMENTS)
        yield from (Run(Case(narrow.resized(number))) for number in numbers)
    if not program.config.static_cols:
        for number, cols in enumerate(_other_cols(program)):
            other = _of_rows(program, few.resized(cols=cols), rows)
            yield _few(program, other, number)
        if rows is None:
            for number, cols in enumerate(_at_seams(program)):
                most = max(1, MOST_ELEMENTS // cols)
                other = that_fit(program, few.resized(cols=cols), SEAM_ROWS, most)
                yield _few(program, other, number)


Item = TypeVar("Item")


def _drawn(program: ProgramUnderTest, of: Sequence[Item], count: int = DRAWN) -> list[Item]:
    """Return all of some things to try if the check is thorough, else `count` that are drawn."""
    if program.is_thorough or len(of) <= count:
        return list(of)
    chosen = np.random.default_rng([program.seed, len(of)]).choice(len(of), count, replace=False)
    return [of[number] for number in sorted(chosen.tolist())]


def _at_plain_scales(program: ProgramUnderTest, few: Problem) -> Iterator[Run]:
    """Yield runs at scales that need no multiplication, on rows of special values."""
    if few.scale is None or program.split.across_rows or program.judged_on is not None:
        return
    for scale in _drawn(program, PLAIN_SCALES):
        problem = replace(few, scale=scale)
        count = min(special_count(problem), FEW_ELEMENTS // few.cols)
        wanted = max(count, few.rows)
        most = max(1, MOST_ELEMENTS // few.cols)
        case = Case(that_fit(program, problem, wanted, most), program.seed, specials=True)
        yield Run(case)


def _of_other_slices(program: ProgramUnderTest, few: Problem) -> Iterator[Run]:
    """Yield runs with other widths of an inner axis: every remainder of SLICES accesses."""
    if not program.split.across_rows:
        return
    together, rng = program.split.rows_together, np.random.default_rng(program.seed)
    most = max(1, MOST_ELEMENTS // 16 // (few.cols * together * 2))
    for remainder in _drawn(program, range(1, SLICES + 1)):
        groups = min(remainder + SLICES * int(rng.integers(0, MOST_SLICES // SLICES)), most)
        inner = groups * together
        yield _few(program, replace(few, rows=2 * inner, inner=inner), remainder)


def _narrow(program: ProgramUnderTest, few: Problem) -> Problem:
    """Return the problem with few columns, if blocks are large and columns a run-time argument."""
    if program.config.static_cols or program.config.rows_per_block * few.cols <= FEW_ELEMENTS:
        return few
    return few.resized(cols=_ragged_cols(program))


def _ragged_cols(program: ProgramUnderTest) -> int:
    """Return a few columns, in whole vectors if the kernel needs these."""
    unit = program.cols_unit
    return max(1, RAGGED_COLS // unit) * unit


def _few(program: ProgramUnderTest, problem: Problem, first: int = 0) -> Run:
    """Return a run of few rows, which begin with the leading patterns."""
    width = program.split.row_width if program.any_alignment else 1
    compensated = _is_compensated(program)
    longer = None
    if problem.cols > program.cols:
        longer = Accuracy.DEFAULT if compensated else Accuracy.FAST
    case = Case(problem, first, leading_width=width, longer=longer, compensated=compensated)
    return Run(case)


def _is_compensated(program: ProgramUnderTest) -> bool:
    """Return whether a kernel's sums are compensated, and so exact at any length."""
    return program.config.sum == "compensated"


def _of_more_rows(program: ProgramUnderTest, problem: Problem, rows: int | None) -> Problem:
    """Return a problem of another scale with rows of all arithmetic patterns, if they are few.

    The scale enters the arithmetic of each element.
    """
    across = program.split.across_rows
    if rows is not None or across or problem.scale == program.problem.scale:
        return problem
    count = arithmetic_pattern_count(problem) + LEADING_COUNT
    wanted = min(count, FEW_ELEMENTS // problem.cols)
    if wanted <= problem.rows:
        return problem
    return _with_rows(problem, wanted, program.config.rows_per_block, wanted)


def _access_width(program: ProgramUnderTest) -> int:
    """Return the elements of an access to global memory.

    For staged tiles `WorkSplit.width` differs: there it is the width of accesses to shared memory.
    """
    return program.config.vector_bytes // program.problem.dtype.itemsize


def _of_rows(program: ProgramUnderTest, problem: Problem, rows: int | None) -> Problem:
    """Return the problem with few rows, unless `rows` were given.

    Over a middle axis it has few already, unless it has more columns than its kernel's own.
    """
    if rows is not None:
        return problem
    split = program.split
    if split.across_rows:
        if problem.rows * problem.cols <= MOST_ELEMENTS:
            return problem
        most = MOST_ELEMENTS // problem.cols
        return verification_problem(problem, split.block_rows, split.rows_together, most)
    fewest = FEWEST_ROWS + _is_compensated(program)
    wanted = max(min(FEW_ROWS, FEW_ELEMENTS // problem.cols), fewest)
    return that_fit(program, problem, wanted, max(1, MOST_ELEMENTS // problem.cols))


def _fewest_rows(program: ProgramUnderTest) -> list[int]:
    """Return numbers of rows: 1, 2, one and two whole blocks, and one block with a part of another.

    The part has every number of rows if a block has few of them, else 2, 3, 5, half of them, or all
    but one, and some or many others.
    """
    if program.split.across_rows:
        return []
    block = program.config.rows_per_block
    parts: Sequence[int] = range(1, block)
    if block > FEW_ROWS_A_BLOCK:
        parts = [2, 3, 5, block // 2, block - 1]
    whole = {block, 2 * block, *_parts_left(program)}
    return [1, 2, *sorted(whole.union(block + part for part in parts) - {1, 2})]


def _parts_left(program: ProgramUnderTest) -> list[int]:
    """Return numbers of rows that are left for a block: of large blocks all, or many, or a few."""
    block = program.config.rows_per_block
    if block <= FEW_ROWS_A_BLOCK:
        return []
    parts = np.random.default_rng(program.seed).permutation(np.arange(1, block))
    return _drawn(program, parts.tolist()[:MOST_PARTS], 2 * DRAWN)


def _triangles(problem: Problem) -> list[Problem]:
    """Return problems with other causal masks, in which the rows see half, few or no columns.

    In one the mask has more than 2^32 rows, and the rows see nothing; if the kernel cuts that
    number to 32 bits, they see everything. Rows that see nearly all columns are in all other runs.
    """
    rows, cols = problem.rows, problem.cols
    if problem.mask is not Mask.CAUSAL:
        return []
    masks = {cols // 2 + rows, max(rows, cols) + rows // 3, LONG_MASK_ROWS} - {problem.mask_rows}
    return [replace(problem, mask_rows=mask_rows) for mask_rows in sorted(masks)]


def _other_cols(program: ProgramUnderTest) -> list[int]:
    """Return other columns for a kernel that takes them at run time, in whole vectors if needed.

    They are next to some rounds of its loops, whole rounds, a few columns, every remainder of the
    width of an access at three sizes, one and two, twice its own, and more than 17 bits hold, as
    far as shared memory allows.
    """
    own, unit, config = program.cols, program.cols_unit, program.config
    if program.is_own:
        return _fewer_cols(program)
    width = program.split.row_width
    a_round = config.threads_per_row * width * config.unroll
    middle = min(own, ROUNDS * a_round // unit * unit)
    ragged = _ragged_cols(program)
    most = _most_cols(program)
    fewest = FEWEST_FAR_COLS_OF_A_WARP if a_round >= WARP else FEWEST_FAR_COLS
    most_far = _most_of_an_edit(program) if program.is_thorough else FAR_ROUNDS * a_round
    far = max(2 * own + unit, min(_far_cols(program), max(most_far, fewest)))
    above = [min(cols // unit * unit, most) for cols in (2 * own + unit, far)]
    whole = max(1, round(own / a_round)) * a_round // unit * unit
    remainders = _remainders(own, a_round, width) if unit < width else []
    beside = [middle - unit, middle + unit, whole, ragged, *remainders, unit, 2 * unit, *above]
    return [cols for cols in dict.fromkeys(beside) if 1 <= cols <= most and cols != own]


def _fewer_cols(program: ProgramUnderTest) -> list[int]:
    """Return fewer columns than its own for a kernel that a person wrote, in whole units.

    They leave every remainder of a vector of four, of a warp and of a block, where its loops end.
    More columns than were asked for may be more than the kernel is for.
    """
    own, unit, threads = program.cols, program.cols_unit, program.config.threads_per_row
    near = [own - number * unit for number in (1, 2, 3)]
    seams = [threads - unit, threads, threads + unit, WARP + unit, RAGGED_COLS, 2 * unit, unit]
    whole = dict.fromkeys(cols // unit * unit for cols in (*near, *seams))
    return [cols for cols in whole if 1 <= cols < own]


def _most_of_an_edit(program: ProgramUnderTest) -> int:
    """Return the columns for which an edited kernel's loops take FAR_ROUNDS_OF_AN_EDIT rounds."""
    config = program.config
    threads = 1 if config.arrangement == "replicated" else config.threads_per_row
    return FAR_ROUNDS_OF_AN_EDIT * threads * program.split.row_width * config.unroll


def _remainders(own: int, a_round: int, width: int) -> list[int]:
    """Return columns with every remainder of the width of an access, at three sizes.

    These are less than half a round of a kernel's loops, a round and some vectors, and many more
    columns than its own. At each size, columns with another remainder have another number of
    vectors, too.
    """
    above = max(own + own // 4, min(LONG_COLS, LONG_ROUNDS * a_round))
    about = (min(own, a_round) // 4, min(own, a_round + 3 * width), above)
    vectors = ((cols // width, max(1, cols // (16 * width))) for cols in about)
    return [
        (first + remainder * apart) * width + remainder
        for first, apart in vectors
        for remainder in range(width)
    ]


def _at_seams(program: ProgramUnderTest) -> list[int]:
    """Return columns at the seams of a kernel's loops, and on a ladder of widths, or some of them.

    They have every number of vectors modulo a round of the threads, or modulo a warp and some
    others, whole rounds, and one vector more and less than some. Powers of two are among them, and
    numbers that the text names. Those of the ladder are drawn within each of its steps.
    """
    unit, width, config = program.cols_unit, program.split.row_width, program.config
    if program.split.across_rows or program.is_own:
        return []
    most, threads = max(_other_cols(program), default=1), config.threads_per_row
    rng = np.random.default_rng([program.seed, program.cols])
    left = np.arange(max(WARP, threads))
    if len(left) > MOST_SEAMS - WARP:
        left = np.concatenate([np.arange(WARP), rng.choice(len(left), MOST_SEAMS - 2 * WARP)])
        left[:WARP] += WARP * rng.integers(0, threads // WARP, WARP)
    rounds = threads * config.unroll * config.cluster
    vectors = left + rounds * rng.integers(0, 3, len(left))
    whole = rounds * np.array([1, 2, 3, 5])
    seams = np.concatenate([vectors, whole - 1, whole + 1]) * width
    seams += rng.integers(0, width, len(seams))
    even = [*rounds * width * np.array(WHOLE_ROUNDS), *2 ** np.arange(1, int(most).bit_length())]
    named = [int(number) for number in NAMED_NUMBER.findall(program.source)]
    near = _usable([*map(int, [*even, *named, *seams])], unit, most, program.cols)
    ladder = _usable(_ladder(most, rng), unit, most, program.cols)
    short = [cols for cols in ladder if program.is_thorough or cols <= LADDER_ELEMENTS]
    return [*_drawn(program, near, 2 * DRAWN), *_drawn(program, short)]


def _usable(columns: Sequence[int], unit: int, most: int, own: int) -> list[int]:
    """Return the columns in whole units, each once, that can be tried and are not the kernel's."""
    whole = dict.fromkeys(cols // unit * unit for cols in columns)
    return [cols for cols in whole if 1 <= cols <= most and cols != own]


def _ladder(most: int, rng: np.random.Generator) -> list[int]:
    """Return columns drawn within each step of a ladder from 1 to `most`."""
    steps = int(np.log(most) / np.log(LADDER_STEP)) + 1
    return [int(LADDER_STEP ** (step + rng.random())) for step in range(steps)]


def _far_cols(program: ProgramUnderTest) -> int:
    """Return columns beyond 17 bits, whose vectors are beyond 16 bits."""
    rows = program.config.rows_per_block
    if rows > 1:
        return min(FAR_COLS, FAR_ELEMENTS // (rows + 1))
    vectors = FAR_VECTORS * program.split.row_width + FAR_COLS % 2**17
    return max(FAR_COLS, vectors, FAR_COLS_OF_AN_EDIT if program.is_thorough else 0)


def _most_cols(program: ProgramUnderTest) -> int:
    """Return the most columns that are tried: those whose rows fit shared memory."""
    unit = program.cols_unit
    most = max(unit, _far_cols(program) // unit * unit)
    while most > unit and program.planned_shared_bytes(most) > MOST_SHARED_BYTES:
        most = most // 2 // unit * unit
    return most
