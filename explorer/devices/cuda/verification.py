"""Verify a kernel on the GPU: poisoned results, guards, adversarial rows, float64 truth."""

from dataclasses import replace
from typing import Any

import numpy as np
from cuda.bindings import driver

from explorer.devices.cuda.buffers import NAN_BYTE, GuardedMatrix, RotatingBuffers, poison_of
from explorer.devices.cuda.program import Program, bound, checked
from explorer.devices.cuda.tools import Addresses, Checks, DeviceCheck, Tools, combined
from explorer.devices.device import Job, SmallRun
from explorer.model.accuracy import Accuracy
from explorer.model.element import DType
from explorer.model.errors import ExplorerError
from explorer.model.problem import Mask, Operand, Problem, inputs, results
from explorer.reference.inputs import Case, pattern_count, verification_inputs, verification_problem
from explorer.reference.layout import (
    Array,
    Promise,
    between_rows,
    called,
    first_elements,
    in_memory,
    misalignment,
    of_result,
)
from explorer.reference.truth import truths_of

# ------------------------------------------------------------------ buffers

_GUARD = 0xA5

LAST_ELEMENTS = 2**20
"""Most elements of the last rows that hold patterns, which are copied twice for each kernel."""


def last_part(problem: Problem) -> Problem | None:
    """Return the last rows of a problem that hold patterns, as a problem; None if it has none.

    Of attention these are the last whole sequences, whose keys are LAST_ELEMENTS at most.
    """
    if problem.attends:
        of_sequence = problem.heads // problem.of_group * problem.cols * problem.of_head
        sequences = min(problem.rows // problem.heads, LAST_ELEMENTS // of_sequence)
        return replace(problem, rows=sequences * problem.heads) if sequences else None
    unit = problem.inner
    rows = min(problem.rows, pattern_count(problem), LAST_ELEMENTS // problem.cols)
    rows = max(1, rows // unit) * unit
    return replace(problem, rows=rows, mask=Mask.NONE, mask_rows=0)


class LastRows:
    """Patterns of verification in the last rows of a problem's own arrays, for one launch.

    Those rows have the largest indices of the problem. The patterns temporarily replace the timed
    inputs of set 0.
    """

    def __init__(
        self, problem: Problem, case: Case, sets: RotatingBuffers, seed: int, stream: Any
    ) -> None:
        self._problem, self._sets, self._stream = problem, sets, stream
        self._part = case.problem
        self._whole = {one.name: one for one in (*inputs(problem), *results(problem))}
        arrays = case.arrays(seed)
        self._copies: list[tuple[Operand, int, int, int]] = []
        """Operands, with the addresses of the patterns and of the rows they replace, and their
        bytes."""
        for operand in inputs(self._part):
            data = in_memory(self._part, operand, *_with_gap(arrays, operand)).tobytes()
            patterns, displaced = (int(checked(driver.cuMemAlloc(len(data)))) for _ in range(2))
            checked(driver.cuMemcpyHtoD(patterns, data, len(data)))
            self._copies.append((operand, patterns, displaced, len(data)))

    def put(self) -> None:
        """Put the patterns into set 0, and prepare its results for a launch."""
        for operand, patterns, displaced, size in self._copies:
            place = self._place(operand)
            checked(driver.cuMemcpyDtoDAsync(displaced, place, size, self._stream))
            checked(driver.cuMemcpyDtoDAsync(place, patterns, size, self._stream))
        self._sets.prepare(0, self._stream)

    def restore(self) -> None:
        """Put back the rows that the patterns replaced."""
        for operand, _, displaced, size in self._copies:
            checked(driver.cuMemcpyDtoDAsync(self._place(operand), displaced, size, self._stream))

    def check(self, tools: Tools) -> tuple[str | None, Checks]:
        """Compare a launch's results for the patterns with the truth; of a masked matrix, all rows.

        Return the fault, or None, and the errors of each result.
        """
        problem, at = self._problem, self._sets.checked_at(0)
        if problem.mask is self._part.mask:
            problem = self._part
            at = {one.name: self._place(one) for one in (*inputs(problem), *results(problem))}
        checks = tools.check_rows(problem, at)
        return first_wrong(checks, problem, at, tools.accuracy), checks

    def free(self) -> None:
        """Give the memory back."""
        for _, patterns, displaced, _ in self._copies:
            checked(driver.cuMemFree(patterns))
            checked(driver.cuMemFree(displaced))

    def _place(self, operand: Operand) -> int:
        """Return the address of the last rows of an array, in place of its original input."""
        start = self._whole[operand.name].count - operand.count
        return self._sets.checked_at(0)[operand.name] + start * operand.dtype.itemsize


class VerificationBuffers:
    """A kernel's operands in a verification: inputs surrounded by NaN, and poisoned results.

    In place the output has the input's matrix, which is restored before each launch.
    """

    def __init__(
        self,
        problem: Problem,
        arrays: dict[str, Array],
        scratch_bytes: int = 0,
        *,
        misaligned_by: int = 0,
        promise: Promise | None = None,
    ) -> None:
        self._problem = problem
        self._offsets: dict[str, int] = {}
        self._matrices: dict[str, GuardedMatrix] = {}
        self._input: Array = np.empty(0)
        """The original input of a problem in place."""
        places = first_elements(problem, misaligned_by, promise)
        for operand in inputs(problem):
            data = in_memory(problem, operand, *_with_gap(arrays, operand))
            self._place(
                operand.name, data.nbytes, places.get(operand.name, 0) * operand.dtype.itemsize
            )
            self._upload(operand.name, data)
            if problem.in_place and operand.name == "input":
                self._input = data.copy()  # the memory of `arrays` may be used again
        for result in results(problem):
            if not self._is_in_place(result):
                place = places.get(result.name, 0) * result.dtype.itemsize
                self._place(result.name, result.bytes, place, guard=_GUARD)
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
        """Poison the results; in place, restore the input."""
        checked(driver.cuStreamSynchronize(stream))
        for result in results(self._problem):
            if self._is_in_place(result):
                self._upload("input", self._input)
            else:
                self._matrices[result.name].poison(poison_of(result.dtype), stream)

    def touched_beside(self) -> str | None:
        """Describe writes outside of the rows of a result; None if there are none."""
        return next(filter(None, map(self._touched_beside, results(self._problem))), None)

    def _touched_beside(self, result: Operand) -> str | None:
        name = "input" if self._is_in_place(result) else result.name
        matrix, offset, poison = self._matrices[name], self._offsets[name], poison_of(result.dtype)
        beside = matrix.touched_beside(result.bytes, offset, poison)
        if beside:
            return f"{beside} {called(result.name)}"
        if result.stride == result.cols:
            return None
        octets = np.empty(result.bytes, np.uint8)
        checked(driver.cuMemcpyDtoH(octets, matrix.address(offset), result.bytes))
        strays = int((octets[between_rows(self._problem, result)] != poison).sum())
        return f"{strays} bytes between {called(result.name)}'s rows" if strays else None

    def _is_in_place(self, result: Operand) -> bool:
        return self._problem.in_place and result.name == "output"

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


def _with_gap(arrays: dict[str, Array], operand: Any) -> tuple[Array, Any]:
    """Return an operand's array, and a NaN, of bytes of ones, for the gaps between its rows."""
    array = arrays[operand.name]
    return array, np.frombuffer(bytes([NAN_BYTE]) * array.dtype.itemsize, array.dtype)[0]


# ------------------------------------------------------------------ verification


INEXACT = 1e-3
"""Rounding, as of long serial sums, explains errors below this; those of wrong code are larger."""

CHECK_COLS = 4096
"""Most columns on which the GPU's own float64 reference is compared with NumPy's."""

CHECK_KEYS, CHECK_GROUPS = 512, 64
"""Of attention, most keys of a sequence there, and the groups of heads at least."""

AGREEMENT = 1e-14
"""Largest difference of the two references, relative to an element's magnitude: some roundings."""

SETTLING_ROWS = 64
SETTLING_CHECKS = 8
"""Checks of so many rows after which the time of a launch no longer changes."""

CACHED_BYTES = 2**30
"""Device memory of verification problems that stay on the GPU for the following kernels."""


def _narrow(problem: Problem, rows_per_block: int) -> Problem:
    """Return a verification problem of few columns, for checks without a kernel."""
    if problem.attends:
        sequences = -(-CHECK_GROUPS * problem.of_group // problem.heads)
        return problem.resized(sequences * problem.heads, min(problem.cols, CHECK_KEYS))
    cols = min(problem.cols, CHECK_COLS)
    return verification_problem(problem.resized(cols=cols), rows_per_block)


class Verifier:
    """Runs every kernel on the small problems of its job before it is timed."""

    def __init__(self, problem: Problem, tools: Tools, stream: Any, seed: int) -> None:
        self._problem = problem
        self._tools = tools
        self._stream = stream
        self._seed = seed
        self._cached: dict[tuple[Case, int, int, Promise | None], VerificationBuffers] = {}

    def check_the_reference(self) -> None:
        """Compare the GPU's float64 truths with NumPy's; raises ExplorerError if they differ."""
        problem = _narrow(self._problem, rows_per_block=1)
        arrays = verification_inputs(problem)
        truths, buffers = truths_of(problem, arrays), VerificationBuffers(problem, arrays)
        for result in results(problem):
            truth, got = truths[result.name], self._truth(problem, result, buffers.addresses)
            allowed = np.maximum(AGREEMENT * truth.magnitude, 1e-300)
            with np.errstate(invalid="ignore"):
                close = np.abs(got - truth.values) <= allowed
                close &= np.isfinite(truth.values)
                same = (got == truth.values) | (np.isnan(got) & np.isnan(truth.values))
            if not (close | same).all():
                raise ExplorerError(
                    f"the GPU's float64 reference{of_result(result.name)} differs from NumPy's: do "
                    "not trust it"
                )
        buffers.free()

    def _truth(self, problem: Problem, result: Operand, addresses: Addresses) -> Array:
        """Return the truth of a result by the GPU's own float64 reference, as rows."""
        got = np.empty((problem.rows, result.cols))
        truths = int(checked(driver.cuMemAlloc(got.nbytes)))
        self._tools.write_truths(problem, result, addresses, truths)
        checked(driver.cuStreamSynchronize(self._stream))
        checked(driver.cuMemcpyDtoH(got, truths, got.nbytes))
        checked(driver.cuMemFree(truths))
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

    def fault(self, program: Program, job: Job) -> tuple[str | None, Checks]:
        """Return the fault of a kernel's results, or None, and their errors.

        The errors do not include those of runs with an accuracy of their own.
        """
        every = []
        for small in job.small_runs:
            reason, checks = self._run(program, small)
            if reason is not None:
                return f"{_prefix(small, job)}{reason}", checks
            if small.accuracy is None:
                every.append(checks)
        return None, combined(every)

    def free(self) -> None:
        """Give the buffers back."""
        while self._cached:
            self._cached.popitem()[1].free()

    def _run(self, program: Program, small: SmallRun) -> tuple[str | None, Checks]:
        problem = small.case.problem
        buffers = self._buffers(small)
        buffers.prepare(self._stream)
        values = bound(problem, buffers.addresses)
        for launch in small.launches:
            program.launch(launch, values, self._stream)
        checks = self._tools.check_rows(problem, buffers.checked_addresses, small.accuracy)
        accuracy = small.accuracy or self._tools.accuracy
        wrong = first_wrong(checks, problem, buffers.addresses, accuracy)
        beside = None if wrong else buffers.touched_beside()
        return wrong or (f"wrote {beside}" if beside else None), checks

    def _buffers(self, small: SmallRun) -> VerificationBuffers:
        key = (small.case, small.misaligned_by, small.scratch_bytes, small.promise)
        if key not in self._cached:
            self._cached[key] = VerificationBuffers(
                small.case.problem,
                small.case.arrays(self._seed),
                small.scratch_bytes,
                misaligned_by=small.misaligned_by,
                promise=small.promise,
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


def first_wrong(
    checks: Checks, problem: Problem, addresses: Addresses, accuracy: Accuracy
) -> str | None:
    """Describe the wrong elements of the first result that has any; None if all are right."""
    for check, result in zip(checks, results(problem), strict=True):
        if check.wrong:
            return sentence(check, problem, result, addresses[result.name], accuracy)
    return None


def sentence(
    check: DeviceCheck, problem: Problem, result: Operand, address: int, accuracy: Accuracy
) -> str:
    """Describe the wrong elements of a result, which lies at an address."""
    total, dtype, of = problem.rows * result.cols, result.dtype, of_result(result.name)
    is_number = isinstance(dtype, DType)
    if is_number and not check.infinite and not check.certain and check.error < INEXACT:
        error, limit = accuracy.tolerance(dtype).error_and_limit(check.error, check.max_ulp)
        return (
            f"too inexact: {error}, the limit under {accuracy} is {limit} "
            f"({check.wrong} of {total} elements{of})"
        )
    element = np.empty(dtype.itemsize, np.uint8)
    place = problem.place(result, check.row, check.col) * dtype.itemsize
    checked(driver.cuMemcpyDtoH(element, address + place, len(element)))
    unwritten = " (never written)" if (element == poison_of(dtype)).all() else ""
    where = (
        f"{check.wrong} of {total} elements{of} are wrong, the first in row {check.row}, "
        f"column {check.col}{unwritten}"
    )
    if not is_number:
        return where
    if check.infinite == check.wrong:
        return f"{where}; all of them are NaN or infinite, or should be"
    return f"{where}; largest relative error {check.error:.1e}, {check.max_ulp:.3g} ulp"
