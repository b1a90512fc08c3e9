"""A GPU's limits, as its driver reports them."""

from typing import Any

from cuda.bindings import driver

from explorer.devices.cuda.driver import checked
from explorer.gpu_spec import GpuSpec, peak_gbps

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
