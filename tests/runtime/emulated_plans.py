"""Plans that stand for those of a GPU: the heuristic's kernel, run by the emulator on host memory.

They read and write at addresses, as kernels do, so that a wrong stride, a wrong address or a freed
array shows as a wrong result.
"""

import ctypes
import functools
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
from emulated_output import output_of

from explorer.choose import config_for
from explorer.compile.compiler import Compiler
from explorer.devices.emulated.device import EmulatedKernel
from explorer.model.gpu_spec import known_gpu
from explorer.model.problem import Mask, Problem
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


def places(problem: Problem, stride: int, cols: int) -> np.ndarray:
    """Where each element of a problem's rows of `cols` lies, counted from the first."""
    index, columns = np.arange(problem.rows)[:, None], np.arange(cols)
    if problem.inner == 1:
        return index * stride + columns
    return (index // problem.inner * cols + columns) * problem.inner + index % problem.inner


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
        dtype = problem.dtype.numpy
        count = problem.input_elements if problem.inner == 1 else problem.rows * problem.cols
        found = places(problem, problem.input_stride, problem.cols)
        arrays = {"input": memory(input, dtype, count)[found]}
        if "grad" in others:
            arrays["grad"] = memory(others["grad"], dtype, count)[found]
        if problem.mask is Mask.ADDITIVE:
            shape = problem.mask_rows, problem.cols
            arrays["mask"] = memory(others["mask"], dtype, shape[0] * shape[1]).reshape(shape)
        if problem.mask is Mask.LENGTHS:
            arrays["lengths"] = memory(others["lengths"], np.dtype(np.int32), problem.rows)
        addresses = {"input": input, "output": output, **others}
        assert not any(addresses.get(name, 0) & self.mask for name in self.aligned)
        told = problem if self._scale is None else replace(problem, scale=self._scale)
        result = output_of(self._kernel, told, arrays)
        target = problem.output_dtype.numpy
        dense = problem.rows * problem.result_cols
        count = problem.output_elements if problem.inner == 1 else dense
        written = np.frombuffer(
            (ctypes.c_char * (count * target.itemsize)).from_address(output), target
        )
        written[places(problem, problem.output_stride, problem.result_cols)] = result
        self._launched.append(problem)
