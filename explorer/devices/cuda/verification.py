"""Verify a kernel on the GPU: poisoned output, guards, adversarial rows, float64 truth."""

from dataclasses import replace
from typing import Any

import numpy as np
from cuda.bindings import driver
from numpy.typing import NDArray

from explorer.devices.cuda.buffers import NAN_BYTE, GuardedMatrix, RotatingBuffers
from explorer.devices.cuda.program import Program, bound, checked
from explorer.devices.cuda.tools import DeviceCheck, Tools
from explorer.devices.device import Job, SmallRun
from explorer.model.accuracy import Accuracy
from explorer.model.errors import ExplorerError
from explorer.model.problem import Mask, Problem, inputs, output
from explorer.reference.inputs import Case, pattern_count, verification_inputs, verification_problem
from explorer.reference.layout import Array, between_rows, first_elements, in_memory, misalignment
from explorer.reference.truth import truth_of

# ------------------------------------------------------------------ buffers

_GUARD = 0xA5

LAST_ELEMENTS = 2**20
"""Most elements of the last rows that hold patterns, which are copied twice for each kernel."""


class LastRows:
    """Patterns of verification in the last rows of a problem's own matrix, for one launch.

    Those rows have the largest indices of the problem. The patterns temporarily replace the timed
    inputs of set 0.
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
        """By operand: the addresses of the patterns and of the rows they replace, and their
        bytes."""
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
        """Put back the rows that the patterns replaced."""
        for name, (_, displaced, size) in self._copies.items():
            checked(driver.cuMemcpyDtoDAsync(self._place(name), displaced, size, self._stream))

    def check(self, tools: Tools) -> DeviceCheck:
        """Compare a launch's output for the patterns with the truth; with a mask, for all rows."""
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
        """Return the address of the last rows of a matrix, in place of its original input."""
        stride = self._problem.input_stride if self._problem.inner == 1 else self._problem.cols
        start = self._first * stride * self._problem.dtype.itemsize
        return self._sets.checked_at(0)[name] + start


class VerificationBuffers:
    """A kernel's operands in a verification: inputs surrounded by NaN, and a poisoned output.

    In place there is one matrix, whose input is restored before each launch.
    """

    def __init__(
        self,
        problem: Problem,
        arrays: dict[str, Array],
        scratch_bytes: int = 0,
        *,
        misaligned_by: int = 0,
    ) -> None:
        self._problem = problem
        self._offsets: dict[str, int] = {}
        self._matrices: dict[str, GuardedMatrix] = {}
        self._input: Array = np.empty(0)
        """The original input of a problem in place."""
        places = first_elements(problem, misaligned_by)
        for operand in inputs(problem):
            data = in_memory(problem, operand, *_with_gap(arrays, operand))
            self._place(
                operand.name, data.nbytes, places.get(operand.name, 0) * operand.dtype.itemsize
            )
            self._upload(operand.name, data)
            if problem.in_place and operand.name == "input":
                self._input = data.copy()  # the memory of `arrays` may be used again
        target = output(problem)
        if not problem.in_place:
            place = places.get("output", 0) * target.dtype.itemsize
            self._place("output", target.bytes, place, guard=_GUARD)
        self._original_input = self._copy_of_input() if problem.in_place else 0
        self._scratch = int(checked(driver.cuMemAlloc(scratch_bytes))) if scratch_bytes else 0
        self.size = scratch_bytes + sum(m.data_bytes for m in self._matrices.values())
        """Bytes of device memory, guards aside."""

    @property
    def addresses(self) -> dict[str, int]:
        """Addresses of the operands, by the names in launches."""
        at = {name: m.address(self._offsets[name]) for name, m in self._matrices.items()}
        if self._problem.in_place:
            at["output"] = at["input"]
        return {**at, **({"scratch": self._scratch} if self._scratch else {})}

    @property
    def checked_addresses(self) -> dict[str, int]:
        """Addresses for a check: in place, `input` is the original input's."""
        at = self.addresses
        return {**at, "input": self._original_input} if self._problem.in_place else at

    def prepare(self, stream: Any) -> None:
        """Poison the output, or restore the input in place."""
        checked(driver.cuStreamSynchronize(stream))
        if self._problem.in_place:
            self._upload("input", self._input)
        else:
            self._matrices["output"].poison(NAN_BYTE, stream)

    def touched_beside(self) -> str | None:
        """Describe writes outside of the output's rows; None if there are none."""
        name = "input" if self._problem.in_place else "output"
        matrix, offset = self._matrices[name], self._offsets[name]
        used = output(self._problem).bytes
        beside = matrix.touched_beside(used, offset, NAN_BYTE)
        if beside or self._problem.output_stride == self._problem.result_cols:
            return beside
        octets = np.empty(used, np.uint8)
        checked(driver.cuMemcpyDtoH(octets, matrix.address(offset), used))
        strays = int((octets[self._gaps()] != NAN_BYTE).sum())
        return f"{strays} bytes between the output's rows" if strays else None

    def free(self) -> None:
        """Give all memory back."""
        for matrix in self._matrices.values():
            matrix.free()
        for address in (self._original_input, self._scratch):
            if address:
                checked(driver.cuMemFree(address))

    def _place(self, name: str, size: int, offset: int, guard: int = NAN_BYTE) -> None:
        self._offsets[name] = offset
        self._matrices[name] = GuardedMatrix(size + offset, guard)

    def _upload(self, name: str, data: Array) -> None:
        """Copy an input to the GPU, with NaN around it, which reveals a kernel that reads there."""
        matrix = self._matrices[name]
        matrix.poison(NAN_BYTE, 0)
        checked(driver.cuCtxSynchronize())
        matrix.upload(data, self._offsets[name])

    def _copy_of_input(self) -> int:
        copy = int(checked(driver.cuMemAlloc(self._input.nbytes)))
        checked(driver.cuMemcpyHtoD(copy, self._input.ctypes.data, self._input.nbytes))
        return copy

    def _gaps(self) -> NDArray[np.bool_]:
        return between_rows(self._problem, output(self._problem))


def _with_gap(arrays: dict[str, Array], operand: Any) -> tuple[Array, Any]:
    """Return an operand's array, and a NaN, of bytes of ones, for the gaps between its rows."""
    array = arrays[operand.name]
    return array, np.frombuffer(bytes([NAN_BYTE]) * array.dtype.itemsize, array.dtype)[0]


# ------------------------------------------------------------------ verification


INEXACT = 1e-3
"""Rounding, as of long serial sums, explains errors below this; those of wrong code are larger."""

CHECK_COLS = 4096
"""Most columns on which the GPU's own float64 reference is compared with NumPy's."""

AGREEMENT = 1e-14
"""Largest difference of the two references, relative to an element's magnitude: some roundings."""

SETTLING_ROWS = 64
SETTLING_CHECKS = 8
"""Checks of so many rows after which the time of a launch no longer changes."""

CACHED_BYTES = 2**30
"""Device memory of verification problems that stay on the GPU for the following kernels."""


def _narrow(problem: Problem, rows_per_block: int) -> Problem:
    """Return a verification problem of few columns, for checks without a kernel."""
    cols = min(problem.cols, CHECK_COLS)
    return verification_problem(problem.resized(cols=cols), rows_per_block)


class Verifier:
    """Runs every kernel on the small problems of its job before it is timed."""

    def __init__(self, problem: Problem, tools: Tools, stream: Any, seed: int) -> None:
        self._problem = problem
        self._tools = tools
        self._stream = stream
        self._seed = seed
        self._cached: dict[tuple[Case, int, int], VerificationBuffers] = {}

    def check_the_reference(self) -> None:
        """Compare the GPU's float64 truth with NumPy's; raises ExplorerError if the two differ."""
        problem = _narrow(self._problem, rows_per_block=1)
        arrays = verification_inputs(problem)
        truth = truth_of(problem, arrays)
        got = self._truths(problem, arrays)
        with np.errstate(invalid="ignore"):
            close = np.abs(got - truth.values) <= np.maximum(AGREEMENT * truth.magnitude, 1e-300)
            close &= np.isfinite(truth.values)
            same = (got == truth.values) | (np.isnan(got) & np.isnan(truth.values))
        if not (close | same).all():
            raise ExplorerError("the GPU's float64 reference differs from NumPy's: do not trust it")

    def _truths(self, problem: Problem, arrays: dict[str, Array]) -> Array:
        """Return the truth by the GPU's own float64 reference, of shape (rows, result_cols)."""
        buffers = VerificationBuffers(problem, arrays)
        got = np.empty((problem.rows, problem.result_cols))
        truths = int(checked(driver.cuMemAlloc(got.nbytes)))
        self._tools.write_truths(problem, buffers.addresses, truths)
        checked(driver.cuStreamSynchronize(self._stream))
        checked(driver.cuMemcpyDtoH(got, truths, got.nbytes))
        checked(driver.cuMemFree(truths))
        buffers.free()
        return got

    def settle(self) -> None:
        """Check small problems, as verifications do, until this no longer changes launch times.

        In a process that has copied little to the GPU and back, an H200 takes 0.35 us less for each
        launch, but after some such checks it does not. Anything timed before that, copies included,
        would look faster than the same thing timed later.
        """
        problem = _narrow(self._problem, rows_per_block=SETTLING_ROWS)
        arrays = verification_inputs(problem)
        for _ in range(SETTLING_CHECKS):
            buffers = VerificationBuffers(problem, arrays)
            buffers.prepare(self._stream)
            self._tools.check_rows(problem, buffers.checked_addresses)
            buffers.free()

    def fault(self, program: Program, job: Job) -> tuple[str | None, DeviceCheck | None]:
        """Return the fault of a kernel's output, or None, and its errors.

        The errors do not include those of runs with an accuracy of their own.
        """
        total = None
        for small in job.small_runs:
            reason, check = self._run(program, small)
            if reason is not None:
                return f"{_prefix(small, job)}{reason}", check
            if small.accuracy is None:
                total = check if total is None else total.combined(check)
        return None, total

    def free(self) -> None:
        """Give the buffers back."""
        while self._cached:
            self._cached.popitem()[1].free()

    def _run(self, program: Program, small: SmallRun) -> tuple[str | None, DeviceCheck]:
        problem = small.case.problem
        buffers = self._buffers(small)
        buffers.prepare(self._stream)
        values = bound(problem, buffers.addresses)
        for launch in small.launches:
            program.launch(launch, values, self._stream)
        check = self._tools.check_rows(problem, buffers.checked_addresses, small.accuracy)
        if check.wrong:
            output, accuracy = buffers.addresses["output"], small.accuracy or self._tools.accuracy
            return sentence(check, problem, output, accuracy), check
        beside = buffers.touched_beside()
        return (f"wrote {beside}" if beside else None), check

    def _buffers(self, small: SmallRun) -> VerificationBuffers:
        key = (small.case, small.misaligned_by, small.scratch_bytes)
        if key not in self._cached:
            self._cached[key] = VerificationBuffers(
                small.case.problem,
                small.case.arrays(self._seed),
                small.scratch_bytes,
                misaligned_by=small.misaligned_by,
            )
            while sum(buffers.size for buffers in self._cached.values()) > CACHED_BYTES:
                if len(self._cached) == 1:
                    break
                self._cached.pop(next(iter(self._cached))).free()
        return self._cached[key]


def _prefix(small: SmallRun, job: Job) -> str:
    """Return a prefix that names the run of a fault; empty for the job's first run."""
    if small is job.small_runs[0]:
        return ""
    return f"on {small.case.problem}{misalignment(small.misaligned_by)}, "


def sentence(check: DeviceCheck, problem: Problem, output: int, accuracy: Accuracy) -> str:
    """Describe the wrong elements of the matrix at address `output`."""
    total, dtype = problem.rows * problem.result_cols, problem.output_dtype
    if not check.infinite and not check.certain and check.error < INEXACT:
        error, limit = accuracy.tolerance(dtype).error_and_limit(check.error, check.max_ulp)
        return (
            f"too inexact: {error}, the limit under {accuracy} is {limit} "
            f"({check.wrong} of {total} elements)"
        )
    element = np.empty(dtype.itemsize, np.uint8)
    place = problem.output_place(check.row, check.col) * dtype.itemsize
    checked(driver.cuMemcpyDtoH(element, output + place, len(element)))
    unwritten = " (never written)" if (element == NAN_BYTE).all() else ""
    where = (
        f"{check.wrong} of {total} elements are wrong, the first in row {check.row}, "
        f"column {check.col}{unwritten}"
    )
    if check.infinite == check.wrong:
        return f"{where}; all of them are NaN or infinite, or should be"
    return f"{where}; largest relative error {check.error:.1e}, {check.max_ulp:.3g} ulp"
