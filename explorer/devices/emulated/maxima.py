"""Which elements of a row a kernel's maximum may omit, by launches in which floats are sets.

A row of numbers shows whether the maximum takes one element, so that a row of 131072 columns would
need as many rows. A row of sets shows it for as many elements as a float has bits below its sign,
less some for the row's number (`ptx_emulator.element_sets`). Elements for which no row shows it
are suspected, and rows of peaks try them.
"""

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from explorer.devices.emulated.device import EmulatedKernel, launched
from explorer.devices.emulated.placement import Placement
from explorer.devices.program_under_test import ProgramUnderTest
from explorer.devices.runs import MOST_ELEMENTS, shares_of, that_fit
from explorer.model.problem import Mask, Problem
from explorer.ptx_emulator import MaximaSeen
from explorer.reference.influence import fewer_of_long_loops
from explorer.reference.inputs import normal_inputs, verification_problem
from explorer.reference.layout import Array
from explorer.reference.rows import places_of

ALL_OF_SETS = 2**23
"""Most elements of all rows of sets together if each tests other elements of a row, or vectors:
some two seconds of emulation."""

THREADS_OF_SETS = 2**24
"""The same if each tests other threads, of which rows of 131072 f32 have 4096."""

PART_OF_SETS = 8
"""A check that is not thorough has one in so many of these elements."""

NUMBERED = {2: 7, 4: 9, 8: 10}
"""Most bits of a row's number, by the bytes of a float. More bits would number rows that a launch
of `MOST_ELEMENTS` has not, and leave fewer for elements."""


def suspected(
    program: ProgramUnderTest, launches: Callable[[Problem], EmulatedKernel], step_limit: int
) -> list[int]:
    """Return the elements of a row that its maximum may omit, in a random order.

    `launches` gives the kernel with its launches for a problem. Gradients have no maximum. All
    elements are suspected under a causal mask, which shows other ones to each row, and where the
    first rows show nothing, since a kernel chooses its maxima by comparisons. Raises NotEmulated
    and LaunchRefused.
    """
    problem = program.problem.resized(cols=program.cols)
    operator = problem.operator
    if operator.is_gradient or problem.attends or not operator.reduces:
        return []
    most = max(1, MOST_ELEMENTS // problem.cols)
    numbered = min(NUMBERED[problem.dtype.itemsize], most.bit_length())
    of_row = min(problem.cols, 8 * problem.dtype.itemsize - 1 - numbered)
    places = _tested(program, of_row)
    again = places[: -len(places) % of_row]  # fills the last row
    left = np.concatenate([places, again]).reshape(-1, of_row)
    found: list[int] = []
    while len(left) and problem.mask is not Mask.CAUSAL:
        part = _of_rows(program, problem, min(most, len(left)), most)
        tested, left = np.split(left, [min(part.rows, 2**numbered - 1)])
        seen = MaximaSeen(of_row, numbered)
        _launch(launches(part), part, _arrays(part, tested, seen), seen, step_limit)
        found += tested[~seen.rows[1 : len(tested) + 1]].reshape(-1).tolist()
        if not seen.rows.any():
            break
    return list(dict.fromkeys([*found, *left.reshape(-1).tolist()]))


def _tested(program: ProgramUnderTest, of_row: int) -> NDArray[np.int64]:
    """Return the elements to test: all, one of each vector, or one of as many threads as can be.

    The order is random, so that the elements of a row of sets are of any threads.
    """
    cols, shares = program.cols, shares_of(program)
    rng = np.random.default_rng([program.seed, cols])
    part = 1 if program.is_thorough else PART_OF_SETS
    most, of_threads = (
        max(1, fewer_of_long_loops(elements // part, cols, shares) // cols) * of_row
        for elements in (ALL_OF_SETS, THREADS_OF_SETS)
    )
    of_each = np.arange(0, cols, shares.width)
    if cols <= most:
        places = np.arange(cols)
    elif len(of_each) <= most:
        places = np.minimum(of_each + rng.integers(0, shares.width, len(of_each)), cols - 1)
    else:
        count = max(most, min(shares.workers(cols), of_threads))
        places = np.array(places_of(cols, count, shares))
    return rng.permutation(places)


def _of_rows(program: ProgramUnderTest, problem: Problem, wanted: int, most: int) -> Problem:
    """Return the problem with about `wanted` rows."""
    split = program.split
    if split.across_rows:
        return verification_problem(problem, split.block_rows, split.rows_together, wanted)
    return that_fit(program, problem, wanted, most)


def _arrays(problem: Problem, tested: NDArray[np.int64], seen: MaximaSeen) -> dict[str, Array]:
    """Return a problem's arrays, with a set of each tested element and empty ones beside them.

    Every row is read to its end, so no element is masked, and no row ignored.
    """
    arrays = normal_inputs(problem)
    for name in {"mask", "ids"} & set(arrays):
        arrays[name] = np.zeros_like(arrays[name])
    if "lengths" in arrays:
        arrays["lengths"] = np.full_like(arrays["lengths"], problem.cols)
    arrays["input"] = np.zeros_like(arrays["input"])
    for row, places in enumerate(tested):
        arrays["input"][row, places] = seen.codes(row + 1, arrays["input"].dtype)
    return arrays


def _launch(
    kernel: EmulatedKernel,
    problem: Problem,
    arrays: dict[str, Array],
    seen: MaximaSeen,
    step_limit: int,
) -> None:
    placed = Placement.of(problem, arrays, kernel.scratch_bytes, promise=kernel.promise)
    values, memory = placed.values, placed.memory
    launched(kernel, values, memory, step_limit=step_limit, counting=False, maxima=seen)
