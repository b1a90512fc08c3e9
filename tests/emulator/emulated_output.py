"""What a kernel writes on the emulator, whatever is to be said of it."""

from explorer.devices.emulated.device import EmulatedKernel, launched
from explorer.devices.emulated.placement import Placement
from explorer.model.problem import Problem
from explorer.reference.layout import Array


def output_of(kernel: EmulatedKernel, problem: Problem, arrays: dict[str, Array]) -> Array:
    """A kernel's output for its inputs, even if it has defects."""
    return results_of(kernel, problem, arrays)[0]


def results_of(
    kernel: EmulatedKernel, problem: Problem, arrays: dict[str, Array]
) -> tuple[Array, ...]:
    """Each result of a kernel for its inputs, as rows, even if it has defects."""
    placed = Placement.of(problem, arrays, kernel.scratch_bytes)
    launched(kernel, placed.values, placed.memory, counting=False)
    return placed.results()
