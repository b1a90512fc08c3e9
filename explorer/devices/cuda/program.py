"""The CUDA driver: errors, the limits of a GPU, and launches of a loaded cubin."""

import ctypes
from collections.abc import Mapping
from functools import cache
from typing import Any

from cuda.bindings import driver

from explorer.codegen.variant import Launch
from explorer.model.gpu_spec import GpuSpec, peak_gbps
from explorer.model.problem import Problem, scalars

# ------------------------------------------------------------------ driver


@cache
def driver_problem() -> str | None:
    """Return why there is no usable GPU, or None if there is one.

    It calls libcuda directly, because calls through cuda.core can hang without a driver.
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
    """Return whether a driver answers and knows a GPU."""
    return driver_problem() is None


def driver_version() -> str:
    """Return the driver's version by NVML, such as 580.95.05; empty where that does not answer."""
    try:
        from cuda.bindings import nvml

        nvml.init_v2()
        return str(nvml.system_get_driver_version())
    except Exception:  # NVML is optional, and containers lack it in many ways
        return ""


class CudaError(Exception):
    """A driver call failed; `name` is the error's, such as CUDA_ERROR_ILLEGAL_ADDRESS."""

    def __init__(self, name: str) -> None:
        self.name = name
        super().__init__(name)


def checked(result: tuple[Any, ...]) -> Any:
    """Return the values of a driver call's result; raises CudaError."""
    status, *values = result
    if status != 0:
        raise CudaError(status.name)
    return values[0] if len(values) == 1 else tuple(values)


# ------------------------------------------------------------------ specification


_ATTRIBUTE = driver.CUdevice_attribute


def gpu_spec(device: Any) -> GpuSpec:
    """Return name, architecture and limits of a device."""

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
    """Return the limits of GPU `index`, read in this process; raises CudaError."""
    checked(driver.cuInit(0))
    return gpu_spec(checked(driver.cuDeviceGet(index)))


def current_gpu() -> GpuSpec:
    """Return the limits of the current context's device; raises CudaError."""
    return gpu_spec(checked(driver.cuCtxGetDevice()))


# ------------------------------------------------------------------ program


PORTABLE_CLUSTER = 8
"""Blocks of the largest cluster that every GPU with clusters has; a kernel opts in to larger
ones."""

Bound = Mapping[str, tuple[Any, Any]]
"""Arguments by name: a C type, and a value of it."""


def bound(problem: Problem, addresses: Mapping[str, int]) -> Bound:
    """Return the arguments that launches of a problem can name: its numbers, and the addresses."""
    numbers = {
        name: (getattr(ctypes, number.dtype.c_type), number.value)
        for name, number in scalars(problem).items()
    }
    return {**numbers, **{name: (ctypes.c_void_p, at) for name, at in addresses.items()}}


class Program:
    """A loaded module. Use as a context manager: unloading frees its code on the GPU."""

    def __init__(self, cubin: bytes) -> None:
        self._module = checked(driver.cuModuleLoadData(cubin))
        self._functions: dict[str, Any] = {}

    def launch(self, launch: Launch, values: Bound, stream: Any) -> None:
        """Launch one entry; raises CudaError if the launch cannot start."""
        types = tuple(values[name][0] for name in launch.arguments)
        arguments = tuple(values[name][1] for name in launch.arguments)
        grid = launch.grid_on(sm_count()) if launch.blocks_per_sm else launch.grid
        shared, function = launch.shared_bytes, self.function(launch)
        if launch.overlaps:
            config = overlapping(grid, launch.block, shared, stream)
            checked(driver.cuLaunchKernelEx(config, function, (arguments, types), 0))
        else:
            self.launch_raw(launch.entry, grid, launch.block, shared, arguments, types, stream)

    def has(self, entry: str) -> bool:
        """Return whether the module has an entry of this name."""
        status, _ = driver.cuModuleGetFunction(self._module, entry.encode())
        return int(status) == 0

    def function(self, launch: Launch) -> Any:
        """Return the entry of a launch, opted in to its shared memory and cluster size."""
        if launch.cluster > PORTABLE_CLUSTER:
            self._allow_large_clusters(launch.entry)
        return self._function(launch.entry, launch.shared_bytes)

    def launch_raw(
        self,
        entry: str,
        grid: int,
        block: int,
        shared_bytes: int,
        arguments: tuple[Any, ...],
        types: tuple[Any, ...],
        stream: Any,
    ) -> None:
        """Launch an entry with a grid and arguments given as plain numbers."""
        function = self._function(entry, shared_bytes)
        checked(
            driver.cuLaunchKernel(
                function, grid, 1, 1, block, 1, 1, shared_bytes, stream, (arguments, types), 0
            )
        )

    def _function(self, entry: str, shared_bytes: int) -> Any:
        if entry not in self._functions:
            self._functions[entry] = checked(
                driver.cuModuleGetFunction(self._module, entry.encode())
            )
        function = self._functions[entry]
        if shared_bytes > 0:  # a kernel must opt in to more than 48 KiB, static and dynamic
            attribute = driver.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
            checked(driver.cuFuncSetAttribute(function, attribute, shared_bytes))
        return function

    def _allow_large_clusters(self, entry: str) -> None:
        attribute = driver.CUfunction_attribute.CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED
        checked(driver.cuFuncSetAttribute(self._function(entry, 0), attribute, 1))

    def __enter__(self) -> "Program":
        return self

    def __exit__(self, *_: object) -> None:
        driver.cuModuleUnload(self._module)  # unchecked: after a fault the context is gone


def sm_count() -> int:
    """Return the number of SMs of the current context's device."""
    attribute = driver.CUdevice_attribute.CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT
    device = checked(driver.cuCtxGetDevice())
    return int(checked(driver.cuDeviceGetAttribute(attribute, device)))


def overlapping(grid: int, block: int, shared_bytes: int, stream: Any) -> Any:
    """Return a launch that may begin before the previous one on the stream has ended."""
    overlap = driver.CUlaunchAttribute()
    ids = driver.CUlaunchAttributeID
    overlap.id = ids.CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION
    overlap.value.programmaticStreamSerializationAllowed = 1
    config = driver.CUlaunchConfig()
    config.gridDimX, config.gridDimY, config.gridDimZ = grid, 1, 1
    config.blockDimX, config.blockDimY, config.blockDimZ = block, 1, 1
    config.sharedMemBytes = shared_bytes
    config.hStream = stream
    config.attrs, config.numAttrs = [overlap], 1
    return config
