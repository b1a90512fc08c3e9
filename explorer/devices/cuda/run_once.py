"""Run a kernel once, in this process: for a profiler, or to compare its output."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from cuda.bindings import driver
from numpy.typing import NDArray

from explorer.codegen import Launch
from explorer.devices.cuda.driver import checked, driver_problem
from explorer.devices.cuda.program import Program
from explorer.errors import InvalidInput

Array = NDArray[Any]

_NAN = 0xFF  # bytes of ones are a NaN in fp32, fp16 and bf16


def run_once(cubin: bytes, launches: Sequence[Launch], matrix: Array, index: int = 0) -> Array:
    """The output of `launches` for a (rows, cols) matrix, on GPU `index`.

    Raises InvalidInput without a driver, CudaError where a call fails; a kernel that hangs hangs
    the caller. The GPU's context is left as it was.
    """
    problem = driver_problem()
    if problem is not None:
        raise InvalidInput(f"device cuda:{index} cannot be used: {problem}")
    checked(driver.cuInit(0))
    device = checked(driver.cuDeviceGet(index))
    checked(driver.cuCtxSetCurrent(checked(driver.cuDevicePrimaryCtxRetain(device))))
    try:
        return _run(cubin, launches, np.ascontiguousarray(matrix))
    finally:
        driver.cuDevicePrimaryCtxRelease(device)


def _run(cubin: bytes, launches: Sequence[Launch], matrix: Array) -> Array:
    source = checked(driver.cuMemAlloc(matrix.nbytes))
    target = checked(driver.cuMemAlloc(matrix.nbytes))
    stream = checked(driver.cuStreamCreate(0))
    checked(driver.cuMemcpyHtoD(source, matrix.tobytes(), matrix.nbytes))
    checked(driver.cuMemsetD8(target, _NAN, matrix.nbytes))
    values = {
        "input": int(source),
        "output": int(target),
        "rows": matrix.shape[0],
        "cols": matrix.shape[1],
    }
    octets = np.empty(matrix.nbytes, np.uint8)
    with Program(cubin) as program:
        checked(driver.cuCtxSynchronize())
        for launch in launches:
            program.launch(launch, values, stream)
        checked(driver.cuStreamSynchronize(stream))
        checked(driver.cuMemcpyDtoH(octets, target, matrix.nbytes))
    for buffer in (source, target):
        checked(driver.cuMemFree(buffer))
    checked(driver.cuStreamDestroy(stream))
    return octets.view(matrix.dtype).reshape(matrix.shape)
