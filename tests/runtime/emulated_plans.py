"""Plans that stand for those of a GPU: the heuristic's kernel, run by the emulator on host memory.

They read and write at addresses, as kernels do, so that a wrong stride, a wrong address or a freed
array shows as a wrong result.
"""

import ctypes
import functools
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
from emulated_output import results_of

from explorer.choose import config_for
from explorer.compile.compiler import Compiler
from explorer.devices.emulated.device import EmulatedKernel
from explorer.model.gpu_spec import known_gpu
from explorer.model.problem import Operand, Problem, inputs, results
from explorer.runtime.kernels import alignment, variant_on
from explorer.runtime.launcher import vectors_of

ARCH = "compute_90"
H200 = known_gpu("NVIDIA H200")


@functools.cache
def kernel(problem: Problem) -> tuple[EmulatedKernel, int]:
    """The heuristic's kernel, and the alignment that it asks for.

    Problems that differ in their rows alone often have the same code, which is compiled once.
    """
    config = config_for(problem, H200)
    variant = variant_on(H200, problem, config)
    ptx = Compiler(ARCH).compile(variant.code).ptx
    made = EmulatedKernel.of(ptx, variant.launches, variant.scratch_bytes)
    return made, alignment(problem, config)


def memory(address: int, dtype: np.dtype, count: int) -> np.ndarray:
    """Host memory as an array."""
    octets = (ctypes.c_char * (count * dtype.itemsize)).from_address(address)
    return np.frombuffer(octets, dtype)


def places(problem: Problem, operand: Operand) -> np.ndarray:
    """Where each element of an operand's rows lies, counted from the first."""
    if operand.name == "mask":
        return np.arange(operand.count).reshape(-1, operand.cols)
    index, columns = np.arange(problem.rows)[:, None], np.arange(operand.cols)
    if problem.inner == 1:
        return index * operand.stride + columns
    outer = index // problem.inner
    return (outer * operand.cols + columns) * problem.inner + index % problem.inner


class EmulatedPlan:
    """What `launcher.Plan` is, of host memory. `launched` has the problems of all launches."""

    def __init__(self, problem: Problem, launched: list[Problem]) -> None:
        self.problem = problem
        self._kernel, align = kernel(problem)
        self.mask, self.aligned = align - 1, vectors_of(problem)
        self.kernel = SimpleNamespace(scratch_bytes=0)
        self._scale = problem.scale
        self._launched = launched

    def scale(self, value: float) -> None:
        self._scale = float(np.float32(value)) if self.problem.dtype != "f64" else value

    def launch_pair(self, stream: int, input: int, output: int) -> None:
        self.launch(stream, input, output)

    def launch(self, stream: int, input: int, output: int, **others: int) -> None:
        problem = self.problem
        addresses = {"input": input, "output": output, **others}
        assert not any(addresses.get(name, 0) & self.mask for name in self.aligned)

        def of(operand: Operand) -> tuple[np.ndarray, np.ndarray]:
            found = places(problem, operand)
            return memory(addresses[operand.name], operand.dtype.numpy, found.max() + 1), found

        arrays = {}
        for operand in inputs(problem):
            read, found = of(operand)
            arrays[operand.name] = read[found]
        told = problem if self._scale is None else replace(problem, scale=self._scale)
        for operand, result in zip(
            results(problem), results_of(self._kernel, told, arrays), strict=True
        ):
            written, found = of(operand)
            written[found] = result
        self._launched.append(problem)
