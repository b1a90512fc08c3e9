"""Run a kernel once, in this process: for a profiler, or to compare its output."""

from collections.abc import Mapping, Sequence

import numpy as np
from cuda.bindings import driver

from explorer.codegen.variant import Launch
from explorer.devices.cuda.buffers import NAN_BYTE
from explorer.devices.cuda.program import Program, bound, checked, driver_problem
from explorer.model.errors import InvalidInput
from explorer.model.problem import Operand, Problem, inputs, results
from explorer.reference.layout import Array, as_rows, in_memory


def run_once(
    cubin: bytes,
    launches: Sequence[Launch],
    problem: Problem,
    arrays: Mapping[str, Array],
    index: int = 0,
    scratch_bytes: int = 0,
) -> tuple[Array, ...]:
    """Return each result of launches on GPU `index` as rows, for inputs named as in `operands`.

    Raises InvalidInput without a driver, and CudaError if a call fails; a kernel that hangs hangs
    the caller. The GPU's context is left as it was.
    """
    missing = driver_problem()
    if missing is not None:
        raise InvalidInput(f"device cuda:{index} cannot be used: {missing}")
    checked(driver.cuInit(0))
    device = checked(driver.cuDeviceGet(index))
    checked(driver.cuCtxSetCurrent(checked(driver.cuDevicePrimaryCtxRetain(device))))
    try:
        return _run(cubin, launches, problem, arrays, scratch_bytes)
    finally:
        driver.cuDevicePrimaryCtxRelease(device)


def _run(
    cubin: bytes,
    launches: Sequence[Launch],
    problem: Problem,
    arrays: Mapping[str, Array],
    scratch_bytes: int,
) -> tuple[Array, ...]:
    stream = checked(driver.cuStreamCreate(0))
    addresses = {operand.name: _uploaded(problem, operand, arrays) for operand in inputs(problem)}
    for result in results(problem):
        in_place = problem.in_place and result.name == "output"
        addresses[result.name] = addresses["input"] if in_place else _allocated(result.bytes)
    if scratch_bytes:
        addresses["scratch"] = _allocated(scratch_bytes)
    with Program(cubin) as program:
        checked(driver.cuCtxSynchronize())
        for launch in launches:
            program.launch(launch, bound(problem, addresses), stream)
        checked(driver.cuStreamSynchronize(stream))
        made = tuple(_downloaded(problem, r, addresses[r.name]) for r in results(problem))
    for address in set(addresses.values()):
        checked(driver.cuMemFree(address))
    checked(driver.cuStreamDestroy(stream))
    return made


def _allocated(size: int) -> int:
    address = int(checked(driver.cuMemAlloc(size)))
    checked(driver.cuMemsetD8(address, NAN_BYTE, size))
    return address


def _downloaded(problem: Problem, result: Operand, address: int) -> Array:
    flat = np.empty(result.count, result.dtype.numpy)
    checked(driver.cuMemcpyDtoH(flat.ctypes.data, address, result.bytes))
    return as_rows(problem, flat, result.cols, result.stride)


def _uploaded(problem: Problem, operand: Operand, arrays: Mapping[str, Array]) -> int:
    data = in_memory(problem, operand, arrays[operand.name])
    address = _allocated(data.nbytes)
    checked(driver.cuMemcpyHtoD(address, data.tobytes(), data.nbytes))
    return address
