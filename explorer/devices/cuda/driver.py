"""The driver: whether there is a GPU, its context, and what it says of itself."""

import ctypes
import re
from functools import cache
from typing import Any

from cuda.bindings import driver

from explorer.gpu_spec import GpuSpec, peak_gbps


@cache
def driver_problem() -> str | None:
    """Why there is no usable GPU, or None if there is one.

    Asks libcuda itself: without a driver, calls through cuda.core can hang.
    """
    try:
        library = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return "no NVIDIA driver (libcuda.so.1 is not found)"
    status = library.cuInit(0)
    if status != 0:
        return f"the NVIDIA driver does not start (cuInit returned {status})"
    count = ctypes.c_int(0)
    if library.cuDeviceGetCount(ctypes.byref(count)) != 0 or count.value == 0:
        return "the NVIDIA driver knows no GPU"
    return None


def has_driver() -> bool:
    """Whether a driver answers and knows a GPU."""
    return driver_problem() is None


def device_index(device: str) -> int | None:
    """The number N of a device `cuda:N`; None for what is no such name."""
    found = re.fullmatch("cuda:([0-9]{1,3})", device)
    return int(found[1]) if found else None


class CudaError(Exception):
    """A driver call failed; `name` is the error's, such as CUDA_ERROR_ILLEGAL_ADDRESS."""

    def __init__(self, name: str) -> None:
        self.name = name
        super().__init__(name)


def checked(result: tuple[Any, ...]) -> Any:
    """The values of a driver call's result; raises CudaError."""
    status, *values = result
    if status != 0:
        raise CudaError(status.name)
    return values[0] if len(values) == 1 else tuple(values)


# ------------------------------------------------------------------ specification


_ATTRIBUTE = driver.CUdevice_attribute


def gpu_spec(device: Any) -> GpuSpec:
    """Name, architecture and limits of a device."""

    def read(name: str) -> int:
        attribute = getattr(_ATTRIBUTE, f"CU_DEVICE_ATTRIBUTE_{name}")
        return int(checked(driver.cuDeviceGetAttribute(attribute, device)))

    name = checked(driver.cuDeviceGetName(128, device)).split(b"\0")[0].decode()
    return GpuSpec(
        name=name,
        arch=f"sm_{read('COMPUTE_CAPABILITY_MAJOR')}{read('COMPUTE_CAPABILITY_MINOR')}",
        sm_count=read("MULTIPROCESSOR_COUNT"),
        memory_bytes=int(checked(driver.cuDeviceTotalMem(device))),
        l2_bytes=read("L2_CACHE_SIZE"),
        shared_per_block_bytes=read("MAX_SHARED_MEMORY_PER_BLOCK_OPTIN"),
        shared_per_sm_bytes=read("MAX_SHARED_MEMORY_PER_MULTIPROCESSOR"),
        threads_per_sm=read("MAX_THREADS_PER_MULTIPROCESSOR"),
        blocks_per_sm=read("MAX_BLOCKS_PER_MULTIPROCESSOR"),
        registers_per_sm=read("MAX_REGISTERS_PER_MULTIPROCESSOR"),
        peak_gbps=peak_gbps(name),
    )


def device_spec(index: int) -> GpuSpec:
    """The limits of GPU `index`, asked in this process; raises CudaError."""
    checked(driver.cuInit(0))
    return gpu_spec(checked(driver.cuDeviceGet(index)))
