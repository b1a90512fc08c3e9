"""The device `emulated`: runs a kernel's launches in guarded, poisoned memory and checks them."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from explorer.codegen import Launch
from explorer.devices.emulated.counters import Counters
from explorer.devices.emulated.emulation import Emulation
from explorer.devices.emulated.findings import Finding, LaunchError, UnsupportedPtx
from explorer.devices.emulated.launch import Argument, launch
from explorer.devices.emulated.memory import Allocation, GlobalMemory, check_output, poisoned
from explorer.devices.emulated.parse import parse
from explorer.devices.emulated.program import Module
from explorer.problem import Problem
from explorer.reference import FLUSHED, check, truth_of

Array = NDArray[Any]

STEP_LIMIT = 3_000_000
"""Instructions of one batch of blocks: some half a minute."""

SM_COUNT = 2
"""SMs of the emulated device: few, so that blocks that stride over the rows do so."""

ODD_INPUT, ODD_OUTPUT = 1, 3
"""Elements by which input and output are moved to try a kernel of any alignment."""


@dataclass(frozen=True, slots=True)
class EmulatedKernel:
    """PTX, and the launches that make it a program; `parse` is done once for many runs."""

    module: Module
    launches: tuple[Launch, ...]

    @classmethod
    def of(cls, ptx: str, launches: Sequence[Launch]) -> "EmulatedKernel":
        """Raises UnsupportedPtx for a construct that is not known."""
        return cls(parse(ptx), tuple(launches))


def emulate(
    kernel: EmulatedKernel,
    problem: Problem,
    matrix: Array,
    *,
    odd_elements: bool = False,
    rounding: float = 0.0,
    step_limit: int = STEP_LIMIT,
) -> Emulation:
    """Run a kernel on `matrix`, of the problem's rows, cols and dtype, and check all it does.

    With `odd_elements`, input and output begin 1 and 3 elements past an aligned address; relative
    errors up to `rounding` are inaccurate, not wrong. Raises LaunchError for launches that cannot
    be made; opcodes that are not known are in the result.
    """
    memory, target, values = _prepared(problem, matrix, odd_elements=odd_elements)
    ran = _launched(kernel, values, memory, step_limit)
    if isinstance(ran, UnsupportedPtx):
        return Emulation(problem, odd_elements, unsupported=ran.opcodes)
    findings, counters, complete = ran
    if not complete:
        return Emulation(problem, odd_elements, tuple(findings), counters=counters)
    target.written[: target.lead] = True
    findings += _with_store(check_output(memory, target), kernel)
    output = _read(memory, target, matrix)
    truth = truth_of(problem, {"input": matrix})
    return Emulation(
        problem,
        odd_elements,
        tuple(findings),
        check(output, truth, problem.dtype),
        counters,
        deviation=_deviation(output.astype(np.float64), truth.values),
        rounding=rounding,
    )


def output_of(kernel: EmulatedKernel, problem: Problem, matrix: Array) -> Array:
    """What a kernel writes for `matrix`, whatever is wrong with it; raises UnsupportedPtx."""
    memory, target, values = _prepared(problem, matrix)
    ran = _launched(kernel, values, memory, STEP_LIMIT)
    if isinstance(ran, UnsupportedPtx):
        raise ran
    return _read(memory, target, matrix)


def _prepared(
    problem: Problem, matrix: Array, *, odd_elements: bool = False
) -> tuple[GlobalMemory, Allocation, dict[str, Argument]]:
    """Memory with input and output, the output, and a value for each argument of a launch."""
    memory = GlobalMemory()
    leads = (ODD_INPUT, ODD_OUTPUT) if odd_elements else (0, 0)
    source = _placed(memory, matrix, "input", leads[0])
    target = _placed(memory, poisoned(matrix.shape, matrix.dtype), "output", leads[1])
    values: dict[str, Argument] = {
        "input": source,
        "output": target,
        "rows": np.int64(problem.rows),
        "cols": np.int32(problem.cols),
    }
    return memory, target, values


def _read(memory: GlobalMemory, target: Allocation, matrix: Array) -> Array:
    """The output, in the shape of the input."""
    lead = target.lead // matrix.dtype.itemsize
    return memory.read(target).reshape(-1)[lead:].reshape(matrix.shape)


def _launched(
    kernel: EmulatedKernel, values: dict[str, Argument], memory: GlobalMemory, step_limit: int
) -> tuple[list[Finding], Counters, bool] | UnsupportedPtx:
    """All launches in order: findings, what they did, and whether each came to its end."""
    findings: list[Finding] = []
    total = Counters()
    for step in kernel.launches:
        try:
            result = launch(
                kernel.module,
                step.entry,
                grid=(step.grid_on(SM_COUNT), 1, 1),
                block=(step.block, 1, 1),
                args=_arguments(step, values),
                memory=memory,
                shared_bytes=step.shared_bytes,
                step_limit=step_limit,
            )
        except UnsupportedPtx as error:
            return error
        findings += result.findings
        total = total.plus(result.counters)
        if not result.complete:
            return findings, total, False
    return findings, total, True


def _deviation(values: Array, truth: Array) -> float:
    """The largest relative error, beyond what may be flushed to zero; infinite for a stray NaN."""
    if (np.isnan(values) != np.isnan(truth)).any():
        return float("inf")
    with np.errstate(invalid="ignore", divide="ignore"):
        off = np.maximum(np.abs(values - truth) - FLUSHED, 0.0)
        relative = np.where(off > 0, off / truth, 0.0)
    return float(np.nanmax(relative, initial=0.0))


def _placed(memory: GlobalMemory, matrix: Array, name: str, lead: int) -> Allocation:
    """The matrix, `lead` elements past an aligned address; an output is written, each once."""
    writable = name == "output"
    data = matrix
    if lead:
        data = np.concatenate([np.zeros(lead, matrix.dtype), matrix.reshape(-1)])
    placed = memory.allocate(
        data, name=name, writable=writable, initialised=not writable, written_once=writable
    )
    placed.lead = lead * matrix.dtype.itemsize
    return placed


def _arguments(step: Launch, values: dict[str, Argument]) -> list[Argument]:
    unknown = [name for name in step.arguments if name not in values]
    if unknown:
        raise LaunchError(
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
