"""An NVIDIA GPU: a worker process owns it, verifies kernels on it, then times them."""

from explorer.devices.cuda.device import CudaDevice
from explorer.devices.cuda.messages import Job, SessionFacts, SmallRun
from explorer.devices.cuda.program import device_index, driver_problem, has_driver

__all__ = [
    "CudaDevice",
    "Job",
    "SessionFacts",
    "SmallRun",
    "device_index",
    "driver_problem",
    "has_driver",
]
