"""Whether an NVIDIA driver answers, and calls to it that raise where they fail."""

import ctypes
import re
from functools import cache
from typing import Any


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
