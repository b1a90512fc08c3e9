"""A problem's arrays and numbers, by the names of launches' arguments, in emulated memory."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from explorer.model.problem import Problem, inputs, output, scalars
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
    as_rows,
    between_rows,
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
    target: Allocation
    """The output's memory; the input's if the problem is in place."""
    values: dict[str, Argument]

    @classmethod
    def of(
        cls,
        problem: Problem,
        arrays: dict[str, Array],
        scratch_bytes: int = 0,
        *,
        misaligned_by: int = 0,
    ) -> "Placement":
        """Place inputs named as in `operands.inputs`, their matrices (rows, cols).

        Gaps between rows hold the NaN of unwritten memory, and reading them is a finding.
        """
        memory = GlobalMemory()
        values: dict[str, Argument] = dict(numbers_of(problem))
        places = first_elements(misaligned_by)
        for operand in inputs(problem):
            array = arrays[operand.name]
            gap = poisoned((), array.dtype)[()] if array.dtype.kind != "i" else 0
            data = in_memory(problem, operand, array, gap)
            over = problem.in_place and operand.name == "input"
            placed = _placed(memory, operand.name, data, places.get(operand.name, 0), written=over)
            if operand.name in ("input", "grad") and data.size > problem.rows * problem.cols:
                size = operand.dtype.itemsize
                between = between_rows(problem, problem.cols, problem.input_stride, size)
                placed.gaps = np.concatenate([np.zeros(placed.lead, np.bool_), between])
            values[operand.name] = placed
        if problem.in_place:
            target = values["input"]
        else:
            target = _placed(memory, "output", _empty(problem), places.get("output", 0))
        assert isinstance(target, Allocation)
        values["output"] = target
        if scratch_bytes:
            values["scratch"] = memory.allocate(
                poisoned((-(-scratch_bytes // 4),), np.float32), name="scratch", initialised=False
            )
        return cls(problem, memory, target, values)

    @property
    def first_elements(self) -> NDArray[np.int64]:
        """The number of the first element of each row, counted from the start of the target."""
        problem = self.problem
        lead = self.target.lead // self.target.dtype.itemsize
        return lead + np.array([problem.output_place(r, 0) for r in range(problem.rows)], np.int64)

    def output(self) -> Array:
        """Return the output, of shape (rows, result_cols)."""
        flat = self.memory.read(self.target).reshape(-1)
        flat = flat[self.target.lead // flat.dtype.itemsize :]
        return as_rows(self.problem, flat, self.problem.result_cols, self.problem.output_stride)

    def findings(self) -> list[Finding]:
        """Return findings of unwritten elements, and of writes between rows."""
        lead, start, problem = self.target.lead, self.target.offset, self.problem
        written, strays = self.target.written, 0
        written[:lead] = True
        cols, stride = problem.result_cols, problem.output_stride
        if problem.inner == 1 and stride > cols:
            gaps = between_rows(problem, cols, stride, problem.output_dtype.itemsize)
            strays = int(np.count_nonzero(written[lead:][gaps]))
            written[lead:][gaps] = True
            self.memory.arena[start + lead : start + self.target.size][gaps] = 0  # no more poison
        findings = list(check_output(self.memory, self.target))
        if strays:
            stray = f"output: {strays} bytes written between its rows, which are not the output's"
            findings.append(Finding(Kind.OUT_OF_BOUNDS, stray, count=strays))
        return findings


def _empty(problem: Problem) -> Array:
    dense = problem.is_dense and problem.inner == 1
    shape = (problem.rows, problem.result_cols) if dense else (output(problem).count,)
    return poisoned(shape, problem.output_dtype.numpy)


def _placed(
    memory: GlobalMemory, name: str, data: Array, lead: int, *, written: bool | None = None
) -> Allocation:
    """Place an array `lead` elements past an aligned address; a written one may be written once."""
    writable = name == "output" if written is None else written
    octets = lead * data.dtype.itemsize
    if lead:
        data = np.concatenate([np.zeros(lead, data.dtype), data.reshape(-1)])
    placed = memory.allocate(
        data,
        name=name,
        writable=writable or name == "output",
        initialised=name != "output",
        written_once=writable or name == "output",
    )
    placed.lead = octets
    return placed
