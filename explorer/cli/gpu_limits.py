"""The GPU whose limits a command goes by."""

from explorer.gpu_spec import DEFAULT_GPU, GpuSpec, known_gpu


def gpu_limits(name: str | None) -> GpuSpec:
    """Those of the named GPU, else of the one that is here, else of the default one."""
    if name is not None:
        return known_gpu(name)
    from explorer.devices.cuda import CudaDevice, has_driver

    if not has_driver():
        return known_gpu(DEFAULT_GPU)
    with CudaDevice(0) as device:
        return device.gpu
