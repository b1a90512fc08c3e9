"""Verify a kernel on the GPU: poisoned output, guards, adversarial rows, float64 truth."""

from typing import Any

import numpy as np
from cuda.bindings import driver

from explorer.accuracy import Accuracy
from explorer.devices.cuda.buffers import NAN_BYTE
from explorer.devices.cuda.device_check import DeviceCheck
from explorer.devices.cuda.driver import checked
from explorer.devices.cuda.messages import Job, SmallRun
from explorer.devices.cuda.program import Program, bound
from explorer.devices.cuda.tools import Tools
from explorer.devices.cuda.verification_buffers import VerificationBuffers
from explorer.errors import ExplorerError
from explorer.problem import Problem
from explorer.reference import Case, truth_of, verification_inputs, verification_problem

INEXACT = 1e-3
"""Errors below this come from rounding, as of long serial sums; those of wrong code are larger."""

CHECK_COLS = 4096
"""Columns on which the GPU's own float64 reference is compared with NumPy's."""

AGREEMENT = 1e-14
"""Largest difference of the two references, relative to an element's magnitude: some roundings."""

SETTLING_ROWS = 64
SETTLING_CHECKS = 8
"""Checks of so many rows after which launches take the time that they will keep."""

KEPT_BYTES = 2**30
"""Device memory of verification problems whose buffers are kept for the kernels that follow."""


class Verifier:
    """The small problem that every kernel must get right before it is timed."""

    def __init__(self, problem: Problem, tools: Tools, stream: Any, seed: int) -> None:
        self._problem = problem
        self._tools = tools
        self._stream = stream
        self._seed = seed
        self._kept: dict[tuple[Case, bool, int], VerificationBuffers] = {}

    def check_the_check(self) -> None:
        """Compare the GPU's float64 truth with NumPy's; raises ExplorerError if they differ."""
        problem = self._narrow(rows_per_block=1)
        arrays = verification_inputs(problem)
        buffers = VerificationBuffers(problem, arrays, odd_elements=False)
        got = np.empty((problem.rows, problem.cols))
        truths = int(checked(driver.cuMemAlloc(got.nbytes)))
        self._tools.write_truths(problem, buffers.addresses, truths)
        checked(driver.cuStreamSynchronize(self._stream))
        checked(driver.cuMemcpyDtoH(got, truths, got.nbytes))
        checked(driver.cuMemFree(truths))
        buffers.free()
        truth = truth_of(problem, arrays)
        with np.errstate(invalid="ignore"):
            close = np.abs(got - truth.values) <= np.maximum(AGREEMENT * truth.magnitude, 1e-300)
            close &= np.isfinite(truth.values)
            same = (got == truth.values) | (np.isnan(got) & np.isnan(truth.values))
        if not (close | same).all():
            raise ExplorerError("the GPU's float64 reference differs from NumPy's: do not trust it")

    def settle(self) -> None:
        """Check small problems, as verifications will, until that no longer changes launch times.

        In a process that has moved little to the GPU and back, an H200 takes 0.35 us less for each
        launch; from some such check on it does not. Whatever was timed before, copies too, would
        look faster than the same thing timed later.
        """
        problem = self._narrow(rows_per_block=SETTLING_ROWS)
        arrays = verification_inputs(problem)
        for _ in range(SETTLING_CHECKS):
            buffers = VerificationBuffers(problem, arrays, odd_elements=False)
            buffers.prepare(self._stream)
            self._tools.check_rows(problem, buffers.checked_addresses)
            buffers.free()

    def _narrow(self, rows_per_block: int) -> Problem:
        """A verification problem of few columns, for checks that are of no kernel."""
        cols = min(self._problem.cols, CHECK_COLS)
        return verification_problem(self._problem.resized(cols=cols), rows_per_block)

    def fault(self, program: Program, job: Job) -> tuple[str | None, DeviceCheck | None]:
        """What is wrong with a kernel's output, or None, and its errors.

        Runs that are held to other limits than the session's do not count in the errors.
        """
        all_found = None
        for small in job.small_runs:
            reason, found = self._run(program, small)
            if reason is not None:
                return f"{_named(small, job)}{reason}", found
            if small.accuracy is None:
                all_found = found if all_found is None else all_found.with_(found)
        return None, all_found

    def free(self) -> None:
        """Give the buffers back."""
        while self._kept:
            self._kept.popitem()[1].free()

    def _run(self, program: Program, small: SmallRun) -> tuple[str | None, DeviceCheck]:
        problem = small.case.problem
        buffers = self._buffers(small)
        buffers.prepare(self._stream)
        values = bound(problem, buffers.addresses)
        for launch in small.launches:
            program.launch(launch, values, self._stream)
        found = self._tools.check_rows(problem, buffers.checked_addresses, small.accuracy)
        if found.wrong:
            output, accuracy = buffers.addresses["output"], small.accuracy or self._tools.accuracy
            return sentence(found, problem, output, accuracy), found
        beside = buffers.touched_beside()
        return (f"wrote {beside}" if beside else None), found

    def _buffers(self, small: SmallRun) -> VerificationBuffers:
        key = (small.case, small.odd_elements, small.scratch_bytes)
        if key not in self._kept:
            arrays = small.case.arrays(self._seed)
            self._kept[key] = VerificationBuffers(
                small.case.problem, arrays, small.scratch_bytes, odd_elements=small.odd_elements
            )
            while sum(buffers.size for buffers in self._kept.values()) > KEPT_BYTES:
                if len(self._kept) == 1:
                    break
                self._kept.pop(next(iter(self._kept))).free()
        return self._kept[key]


def _named(small: SmallRun, job: Job) -> str:
    """Which run a fault is of, where it is not the first one."""
    if small is job.small_runs[0]:
        return ""
    return f"on {small.case.problem}{' at odd elements' if small.odd_elements else ''}, "


def sentence(found: DeviceCheck, problem: Problem, output: int, accuracy: Accuracy) -> str:
    """What a check found wrong with the matrix at address `output`."""
    total, dtype = problem.rows * problem.cols, problem.output_dtype
    if not found.infinite and not found.certain and found.error < INEXACT:
        return (
            f"too inexact: {found.max_ulp:.3g} ulp (relative error {found.error:.1e}), the limit "
            f"under {accuracy} is {accuracy.limits(dtype).of_an_element} "
            f"({found.wrong} of {total} elements)"
        )
    element = np.empty(dtype.itemsize, np.uint8)
    place = problem.output_place(found.row, found.col) * dtype.itemsize
    checked(driver.cuMemcpyDtoH(element, output + place, len(element)))
    unwritten = " (never written)" if (element == NAN_BYTE).all() else ""
    where = (
        f"{found.wrong} of {total} elements are wrong, the first in row {found.row}, "
        f"column {found.col}{unwritten}"
    )
    if found.infinite == found.wrong:
        return f"{where}; all of them are NaN or infinite, or should be"
    return f"{where}; largest relative error {found.error:.1e}, {found.max_ulp:.3g} ulp"
