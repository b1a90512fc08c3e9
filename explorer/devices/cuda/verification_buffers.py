"""Operands of one verification problem on the GPU, each between guards, gaps poisoned."""

from dataclasses import replace
from typing import Any

import numpy as np
from cuda.bindings import driver
from numpy.typing import NDArray

from explorer.devices.cuda.buffers import NAN_BYTE, GuardedMatrix, RotatingBuffers
from explorer.devices.cuda.device_check import DeviceCheck
from explorer.devices.cuda.driver import checked
from explorer.devices.cuda.tools import Tools
from explorer.op import Mask
from explorer.operands import inputs, output
from explorer.problem import Problem
from explorer.reference import Case, in_memory, laid_out, pattern_count

Array = NDArray[Any]

_GUARD = 0xA5

ODD_PLACES = {"input": 1, "grad": 2, "output": 3}
"""Elements by which matrices are moved to try a kernel of any alignment."""


LAST_ELEMENTS = 2**20
"""Elements at most of the last rows that hold patterns: they are copied twice for each kernel."""


class LastRows:
    """Patterns of verification in the last rows of a problem's own matrix, for one launch.

    There the indices are largest that the kernel will meet. They take the place of what is timed,
    in set 0, and are taken out again.
    """

    def __init__(self, problem: Problem, sets: RotatingBuffers, seed: int, stream: Any) -> None:
        self._problem, self._sets, self._stream = problem, sets, stream
        unit = problem.inner
        rows = min(problem.rows, pattern_count(problem), LAST_ELEMENTS // problem.cols)
        self._first = problem.rows - max(1, rows // unit) * unit
        rows = problem.rows - self._first
        self._part = replace(problem, rows=rows, mask=Mask.NONE, mask_rows=0)
        arrays = Case(self._part).arrays(seed)
        self._copies: dict[str, tuple[int, int, int]] = {}
        """By operand: addresses of the patterns and of what they displace, and their bytes."""
        for operand in inputs(self._part):
            data = in_memory(self._part, operand, *_with_gap(arrays, operand)).tobytes()
            patterns, displaced = (int(checked(driver.cuMemAlloc(len(data)))) for _ in range(2))
            checked(driver.cuMemcpyHtoD(patterns, data, len(data)))
            self._copies[operand.name] = (patterns, displaced, len(data))

    def put(self) -> None:
        """Put the patterns into set 0, and prepare its output for a launch."""
        for name, (patterns, displaced, size) in self._copies.items():
            checked(driver.cuMemcpyDtoDAsync(displaced, self._place(name), size, self._stream))
            checked(driver.cuMemcpyDtoDAsync(self._place(name), patterns, size, self._stream))
        self._sets.prepare(0, self._stream)

    def restore(self) -> None:
        """Put back what the patterns displaced."""
        for name, (_, displaced, size) in self._copies.items():
            checked(driver.cuMemcpyDtoDAsync(self._place(name), displaced, size, self._stream))

    def check(self, tools: Tools) -> DeviceCheck:
        """Compare what a launch made of the patterns with the truth: under a mask, of all rows."""
        at = self._sets.checked_at(0)
        if self._problem.mask is not Mask.NONE:
            return tools.check_rows(self._problem, at)
        output_bytes = self._problem.output_dtype.itemsize
        start = self._problem.output_place(self._first, 0) * output_bytes
        moved = {name: self._place(name) for name in self._copies}
        return tools.check_rows(self._part, {**moved, "output": at["output"] + start})

    def free(self) -> None:
        """Give the memory back."""
        for patterns, displaced, _ in self._copies.values():
            checked(driver.cuMemFree(patterns))
            checked(driver.cuMemFree(displaced))

    def _place(self, name: str) -> int:
        """Where a matrix's last rows lie in set 0; in place, where the input is kept."""
        stride = self._problem.input_stride if self._problem.inner == 1 else self._problem.cols
        start = self._first * stride * self._problem.dtype.itemsize
        return self._sets.checked_at(0)[name] + start


class VerificationBuffers:
    """What a kernel is given: inputs beside which all is NaN, an output that nobody wrote.

    In place there is one matrix, whose input is restored before each launch.
    """

    def __init__(
        self,
        problem: Problem,
        arrays: dict[str, Array],
        scratch_bytes: int = 0,
        *,
        odd_elements: bool,
    ) -> None:
        self._problem = problem
        self._offsets: dict[str, int] = {}
        self._matrices: dict[str, GuardedMatrix] = {}
        self._input = b""
        places = ODD_PLACES if odd_elements else {}
        for operand in inputs(problem):
            data = self._data(
                operand.name, in_memory(problem, operand, *_with_gap(arrays, operand))
            )
            self._place(operand.name, len(data), places.get(operand.name, 0) * operand.itemsize)
            self._upload(operand.name, data)
        target = output(problem)
        if not problem.in_place:
            place = places.get("output", 0) * target.itemsize
            self._place("output", target.bytes, place, guard=_GUARD)
        self._kept_input = self._copy_of_input() if problem.in_place else 0
        self._scratch = int(checked(driver.cuMemAlloc(scratch_bytes))) if scratch_bytes else 0
        self.size = scratch_bytes + sum(m.data_bytes for m in self._matrices.values())
        """Bytes of device memory, guards aside."""

    @property
    def addresses(self) -> dict[str, int]:
        """Where operands lie, as launches name them."""
        at = {name: m.address(self._offsets[name]) for name, m in self._matrices.items()}
        if self._problem.in_place:
            at["output"] = at["input"]
        return {**at, **({"scratch": self._scratch} if self._scratch else {})}

    @property
    def checked_addresses(self) -> dict[str, int]:
        """As `addresses`, with the input as it was before the launch."""
        at = self.addresses
        return {**at, "input": self._kept_input} if self._problem.in_place else at

    def prepare(self, stream: Any) -> None:
        """Poison the output, or restore the input in place."""
        checked(driver.cuStreamSynchronize(stream))
        if self._problem.in_place:
            self._upload("input", self._input)
        else:
            self._matrices["output"].poison(NAN_BYTE, stream)

    def touched_beside(self) -> str | None:
        """What was written beside the output's rows, or None."""
        name = "input" if self._problem.in_place else "output"
        matrix, offset = self._matrices[name], self._offsets[name]
        used = output(self._problem).bytes
        beside = matrix.touched_beside(used, offset, NAN_BYTE)
        if beside or self._problem.output_stride == self._problem.cols:
            return beside
        octets = np.empty(used, np.uint8)
        checked(driver.cuMemcpyDtoH(octets, matrix.address(offset), used))
        strays = int((octets[self._gaps()] != NAN_BYTE).sum())
        return f"{strays} bytes between the output's rows" if strays else None

    def free(self) -> None:
        """Give all memory back."""
        for matrix in self._matrices.values():
            matrix.free()
        for address in (self._kept_input, self._scratch):
            if address:
                checked(driver.cuMemFree(address))

    def _place(self, name: str, size: int, offset: int, guard: int = NAN_BYTE) -> None:
        self._offsets[name] = offset
        self._matrices[name] = GuardedMatrix(size + offset, guard)

    def _data(self, name: str, array: Array) -> bytes:
        data = array.tobytes()
        if name == "input":
            self._input = data
        return data

    def _upload(self, name: str, data: bytes) -> None:
        """What lies beside an input is NaN: a kernel that uses it shows."""
        matrix = self._matrices[name]
        matrix.poison(NAN_BYTE, 0)
        checked(driver.cuCtxSynchronize())
        matrix.upload(data, self._offsets[name])

    def _copy_of_input(self) -> int:
        copy = int(checked(driver.cuMemAlloc(len(self._input))))
        checked(driver.cuMemcpyHtoD(copy, self._input, len(self._input)))
        return copy

    def _gaps(self) -> NDArray[np.bool_]:
        problem = self._problem
        inside = np.ones((problem.rows, problem.cols), np.bool_)
        flat = laid_out(problem, inside, problem.output_stride, gap=False)
        return np.repeat(~flat, problem.output_dtype.itemsize)


def _with_gap(arrays: dict[str, Array], operand: Any) -> tuple[Array, Any]:
    """An operand's array, and what its gaps between rows hold: bytes of ones, a NaN."""
    array = arrays[operand.name]
    return array, np.frombuffer(bytes([NAN_BYTE]) * array.dtype.itemsize, array.dtype)[0]
