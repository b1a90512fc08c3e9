"""A problem's arrays and numbers, by the names of launches' arguments, in emulated memory."""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain

import numpy as np
from numpy.typing import NDArray

from explorer.model.problem import Operand, Problem, inputs, results, scalars
from explorer.ptx_emulator import (
    Allocation,
    Argument,
    Finding,
    GlobalMemory,
    Kind,
    check_output,
    poisoned,
)
from explorer.reference.layout import (
    Array,
    Promise,
    as_rows,
    between_rows,
    called,
    first_elements,
    in_memory,
)


def numbers_of(problem: Problem) -> dict[str, np.generic]:
    """Return the numbers that a launch can name, in the types in which they are passed."""
    return {
        name: number.dtype.numpy.type(number.value) for name, number in scalars(problem).items()
    }


@dataclass(slots=True)
class Placement:
    """Memory with a problem's operands, and a value for each argument of a launch."""

    problem: Problem
    memory: GlobalMemory
    targets: tuple[Allocation, ...]
    """The memory of each result; the first has the input's if the problem is in place."""
    values: dict[str, Argument]

    @classmethod
    def of(
        cls,
        problem: Problem,
        arrays: dict[str, Array],
        scratch_bytes: int = 0,
        *,
        misaligned_by: int = 0,
        promise: Promise | None = None,
    ) -> "Placement":
        """Place inputs named as in `operands.inputs`, their matrices (rows, cols).

        Gaps between rows hold what unwritten memory holds, and reading them is a finding.
        """
        memory = GlobalMemory()
        values: dict[str, Argument] = dict(numbers_of(problem))
        places = first_elements(problem, misaligned_by, promise)
        placed: dict[str, Allocation] = {}
        for operand in inputs(problem):
            array, name = arrays[operand.name], operand.name
            data = in_memory(problem, operand, array, poisoned((), array.dtype)[()])
            over = problem.in_place and name == "input"
            placed[name] = _placed(memory, name, data, places.get(name, 0), written=over)
            if operand.stride > operand.cols:
                before = np.zeros(placed[name].lead, np.bool_)
                placed[name].gaps = np.concatenate([before, between_rows(problem, operand)])
        for result in results(problem):
            name = result.name
            if problem.in_place and name == "output":
                placed[name] = placed["input"]
                continue
            empty, lead = _empty(problem, result), places.get(name, 0)
            placed[name] = _placed(memory, name, empty, lead, written=True, initialised=False)
        values.update(placed)
        if scratch_bytes:
            values["scratch"] = memory.allocate(
                poisoned((-(-scratch_bytes // 4),), np.float32), name="scratch", initialised=False
            )
        return cls(problem, memory, tuple(placed[r.name] for r in results(problem)), values)

    @property
    def first_elements(self) -> NDArray[np.int64]:
        """The number of the output's first element of each row, counted from its memory's start."""
        problem, target, first = self.problem, self.targets[0], results(self.problem)[0]
        lead = target.lead // target.dtype.itemsize
        return lead + np.array([problem.place(first, r, 0) for r in range(problem.rows)], np.int64)

    def results(self) -> tuple[Array, ...]:
        """Return each result as rows."""
        return tuple(map(self._rows_of, results(self.problem), self.targets))

    def findings(self) -> list[Finding]:
        """Return findings of unwritten elements of any result, and of writes between its rows."""
        found = map(self._findings_of, results(self.problem), self.targets)
        return list(chain.from_iterable(found))

    def _rows_of(self, result: Operand, target: Allocation) -> Array:
        flat = self.memory.read(target).reshape(-1)
        flat = flat[target.lead // flat.dtype.itemsize :]
        return as_rows(self.problem, flat, result.cols, result.stride)

    def _findings_of(self, result: Operand, target: Allocation) -> Iterator[Finding]:
        lead, start, strays = target.lead, target.offset, 0
        written = target.written
        written[:lead] = True
        if result.stride > result.cols:
            gaps = between_rows(self.problem, result)
            strays = int(np.count_nonzero(written[lead:][gaps]))
            written[lead:][gaps] = True
            self.memory.arena[start + lead : start + target.size][gaps] = 0  # no more poison
        yield from check_output(self.memory, target, may_stay=self.problem.may_stay)
        if strays:
            stray = (
                f"{result.name}: {strays} bytes written between its rows, which are not "
                f"{called(result.name)}'s"
            )
            yield Finding(Kind.OUT_OF_BOUNDS, stray, count=strays)


def _empty(problem: Problem, result: Operand) -> Array:
    dense = result.stride == result.cols and problem.inner == 1
    shape = (problem.rows, result.cols) if dense else (result.count,)
    return poisoned(shape, result.dtype.numpy)


def _placed(
    memory: GlobalMemory,
    name: str,
    data: Array,
    lead: int,
    *,
    written: bool = False,
    initialised: bool = True,
) -> Allocation:
    """Place an array `lead` elements past an aligned address; a written one may be written once."""
    octets = lead * data.dtype.itemsize
    if lead:
        data = np.concatenate([np.zeros(lead, data.dtype), data.reshape(-1)])
    placed = memory.allocate(
        data, name=name, writable=written, initialised=initialised, written_once=written
    )
    placed.lead = octets
    return placed
