"""Verify a kernel on the GPU: poisoned output, guards, adversarial rows, float64 truth."""

from typing import Any

import numpy as np
from cuda.bindings import driver

from explorer.devices.cuda.buffers import GuardedMatrix
from explorer.devices.cuda.driver import checked
from explorer.devices.cuda.messages import Job
from explorer.devices.cuda.program import Program
from explorer.devices.cuda.tools import DeviceCheck, Tools
from explorer.dtype import DType
from explorer.errors import ExplorerError
from explorer.problem import Problem
from explorer.reference import (
    RELATIVE_TOLERANCE_F32,
    base_rows,
    softmax,
    verification_input,
)

NAN_BYTE = 0xFF  # bytes of ones are a NaN in fp32, fp16 and bf16
_GUARD = 0xA5

INEXACT = 1e-3
"""Errors below this come from rounding, as of long serial sums; those of wrong code are larger."""

CHECK_COLS = 4096
"""Columns on which the GPU's own float64 reference is compared with NumPy's."""

PATTERN_COLS = 2**20
"""Wider rows repeat their pattern, which the host could not hold otherwise."""


class Verifier:
    """The small problem that every kernel must get right before it is timed."""

    def __init__(self, problem: Problem, tools: Tools, stream: Any, seed: int) -> None:
        self._problem = problem
        self._tools = tools
        self._stream = stream
        cols = min(problem.cols, PATTERN_COLS)
        self._patterns = verification_input(base_rows(problem.cols), cols, problem.dtype, seed)
        self._rows = 0
        self._inputs: dict[int, GuardedMatrix] = {}
        self._outputs: list[GuardedMatrix] = []

    def check_the_check(self) -> None:
        """Compare the GPU's float64 truth with NumPy's; raises ExplorerError if they differ."""
        cols = min(self._problem.cols, CHECK_COLS)
        matrix = verification_input(base_rows(cols), cols, self._problem.dtype)
        source = checked(driver.cuMemAlloc(matrix.nbytes))
        truths = checked(driver.cuMemAlloc(8 * matrix.size))
        checked(driver.cuMemcpyHtoD(source, matrix.tobytes(), matrix.nbytes))
        problem = Problem(len(matrix), cols, self._problem.dtype)
        self._tools.check_rows(problem, int(source), int(source), int(truths))
        got = np.empty(matrix.shape)
        checked(driver.cuMemcpyDtoH(got, truths, got.nbytes))
        for memory in (source, truths):
            checked(driver.cuMemFree(memory))
        if not np.allclose(got, softmax(matrix), rtol=1e-12, atol=1e-300, equal_nan=True):
            raise ExplorerError("the GPU's float64 reference differs from NumPy's: do not trust it")

    def fault(self, program: Program, job: Job) -> tuple[str | None, float]:
        """What is wrong with a kernel's output, or None, and its largest relative error.

        A kernel for any alignment is run once more with input and output at odd elements.
        """
        size = self._problem.dtype.itemsize
        offsets = [(0, 0), (size, 3 * size)] if job.any_alignment else [(0, 0)]
        worst = 0.0
        for input_offset, output_offset in offsets:
            reason, error = self._run(program, job, input_offset, output_offset)
            if reason is not None:
                return reason, error
            worst = max(worst, error)
        return None, worst

    def _run(
        self, program: Program, job: Job, input_offset: int, output_offset: int
    ) -> tuple[str | None, float]:
        problem = self._problem.resized(rows=job.verify_rows)
        source, output = self._buffers(job.verify_rows, input_offset)
        output.poison(NAN_BYTE, self._stream)
        values = {
            "input": source.address(input_offset),
            "output": output.address(output_offset),
            "rows": problem.rows,
            "cols": problem.cols,
        }
        for launch in job.verify_launches:
            program.launch(launch, values, self._stream)
        found = self._tools.check_rows(problem, values["input"], values["output"])
        if found.wrong:
            return sentence(found, problem, values["output"]), found.error
        used = problem.rows * problem.row_bytes
        beside = output.touched_beside(used, output_offset, NAN_BYTE)
        return (f"wrote {beside}" if beside else None), found.error

    def _buffers(self, rows: int, offset: int) -> tuple[GuardedMatrix, GuardedMatrix]:
        """An input of `rows` rows, `offset` bytes into its place, and an output as large."""
        if rows > self._rows:
            for old in (*self._inputs.values(), *self._outputs):
                old.free()
            self._inputs.clear()
            self._rows = rows
            self._outputs = [GuardedMatrix(self._size(), _GUARD)]
        if offset not in self._inputs:
            self._inputs[offset] = self._loaded_input(offset)
        return self._inputs[offset], self._outputs[0]

    def _loaded_input(self, offset: int) -> GuardedMatrix:
        """The base rows, repeated; what lies beside is NaN: a kernel that uses it shows."""
        loaded = GuardedMatrix(self._size(), NAN_BYTE)
        loaded.poison(NAN_BYTE, self._stream)
        checked(driver.cuStreamSynchronize(self._stream))
        for row in range(self._rows):
            pattern = self._patterns[row % len(self._patterns)]
            data = np.resize(pattern, self._problem.cols).tobytes()
            loaded.upload(data, offset + row * self._problem.row_bytes)
        return loaded

    def _size(self) -> int:
        """Bytes of the largest verification matrix, with room for odd starts."""
        return self._rows * self._problem.row_bytes + 4 * self._problem.dtype.itemsize


def sentence(found: DeviceCheck, problem: Problem, output: int) -> str:
    """What a check found wrong with the matrix at address `output`."""
    total = problem.rows * problem.cols
    if not found.nan and found.error < INEXACT:
        limit = "1 ulp" if problem.dtype is not DType.F32 else f"{RELATIVE_TOLERANCE_F32:.0e}"
        return (
            f"too inexact: the largest relative error is {found.error:.1e}, the limit {limit} "
            f"({found.wrong} of {total} elements)"
        )
    element = np.empty(problem.dtype.itemsize, np.uint8)
    index = found.row * problem.cols + found.col
    checked(driver.cuMemcpyDtoH(element, output + index * len(element), len(element)))
    unwritten = " (never written)" if (element == NAN_BYTE).all() else ""
    return (
        f"{found.wrong} of {total} elements are wrong, the first in row {found.row}, "
        f"column {found.col}{unwritten}; largest relative error {found.error:.1e}"
    )
