"""The device `emulated`: runs a kernel's launches in guarded, poisoned memory and checks them."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from numpy.typing import NDArray

from explorer.accuracy import Accuracy
from explorer.codegen import Launch
from explorer.devices.emulated.emulation import Emulation
from explorer.devices.emulated.errors import LaunchRefused, NotEmulated, refusals
from explorer.devices.emulated.placement import Placement
from explorer.problem import Problem
from explorer.ptx_emulator import (
    Argument,
    Counters,
    Finding,
    GlobalMemory,
    Module,
    launch,
    parse,
)
from explorer.reference import check, truth_of

Array = NDArray[Any]

STEP_LIMIT = 3_000_000
"""Instructions of one batch of blocks: some half a minute."""

SM_COUNT = 2
"""SMs of the emulated device: few, so that blocks that stride over the rows do so."""


@dataclass(frozen=True, slots=True)
class EmulatedKernel:
    """PTX, and the launches that make it a program; `parse` is done once for many runs."""

    module: Module
    launches: tuple[Launch, ...]
    scratch_bytes: int = 0
    """Global memory that the launches share."""
    rewrites: bool = False
    """Whether it stores to the output what it normalises there: else each element once."""

    @classmethod
    def of(
        cls, ptx: str, launches: Sequence[Launch], scratch_bytes: int = 0, *, rewrites: bool = False
    ) -> "EmulatedKernel":
        """Read a kernel's PTX. Raises NotEmulated for a construct that is not known."""
        with refusals():
            return cls(parse(ptx), tuple(launches), scratch_bytes, rewrites)


def emulate(
    kernel: EmulatedKernel,
    problem: Problem,
    arrays: dict[str, Array],
    *,
    odd_elements: bool = False,
    rounding: float = 0.0,
    step_limit: int = STEP_LIMIT,
    accuracy: Accuracy = Accuracy.DEFAULT,
) -> Emulation:
    """Run a kernel on a problem's inputs, matrices as (rows, cols), and check all it does.

    With `odd_elements`, matrices begin a few elements past an aligned address; relative errors up
    to `rounding` are inaccurate, not wrong. Raises LaunchRefused for launches that cannot be made.
    Opcodes that are not known are in the result.
    """
    placed = Placement.of(problem, arrays, kernel.scratch_bytes, odd_elements=odd_elements)
    placed.target.written_once = not kernel.rewrites
    try:
        findings, counters, complete = _launched(kernel, placed.values, placed.memory, step_limit)
    except NotEmulated as error:
        return Emulation(problem, odd_elements, unsupported=error.opcodes)
    if not complete:
        return Emulation(problem, odd_elements, tuple(findings), counters=counters)
    findings += _with_store(placed.findings(), kernel)
    truth = truth_of(problem, arrays)
    return Emulation(
        problem,
        odd_elements,
        tuple(findings),
        check(placed.output(), truth, problem.output_dtype, accuracy),
        counters,
        rounding=rounding,
        accuracy=accuracy,
    )


def output_of(kernel: EmulatedKernel, problem: Problem, arrays: dict[str, Array]) -> Array:
    """Return what a kernel writes for its inputs, whatever is wrong with it. Raises NotEmulated."""
    placed = Placement.of(problem, arrays, kernel.scratch_bytes)
    _launched(kernel, placed.values, placed.memory, STEP_LIMIT)
    return placed.output()


def _launched(
    kernel: EmulatedKernel, values: dict[str, Argument], memory: GlobalMemory, step_limit: int
) -> tuple[list[Finding], Counters, bool]:
    """Make all launches in order: findings, counts, and whether each came to its end."""
    findings: list[Finding] = []
    total = Counters()
    for step in kernel.launches:
        with refusals():
            result = launch(
                kernel.module,
                step.entry,
                grid=(step.grid_on(SM_COUNT), 1, 1),
                block=(step.block, 1, 1),
                args=_arguments(step, values),
                memory=memory,
                shared_bytes=step.shared_bytes,
                step_limit=step_limit,
                overlaps=step.overlaps,
            )
        findings += result.findings
        total = total.plus(result.counters)
        if not result.complete:
            return findings, total, False
    return findings, total, True


def _arguments(step: Launch, values: dict[str, Argument]) -> list[Argument]:
    unknown = [name for name in step.arguments if name not in values]
    if unknown:
        raise LaunchRefused(
            f"{step.entry} takes {unknown[0]}, which the emulator has no value for; it has "
            f"{', '.join(values)}"
        )
    return [values[name] for name in step.arguments]


def _with_store(findings: Sequence[Finding], kernel: EmulatedKernel) -> list[Finding]:
    """Findings on the output, each with the kernel's last global store, which is to write it."""
    stores = [
        instruction
        for launched in kernel.launches
        for instruction in kernel.module.entries[launched.entry].instructions
        if instruction.opcode.startswith(("st.global", "st.async", "red.global", "atom.global"))
    ]
    for finding in findings:
        if stores and finding.source is None:
            finding.ptx_line, finding.source = stores[-1].ptx_line, stores[-1].source
        elif not stores:
            finding.message += "; the kernel has no store to global memory"
    return list(findings)
