"""An NVIDIA GPU: a worker process owns it, verifies kernels on it, then times them."""

from typing import TYPE_CHECKING

from explorer.devices.cuda.program import device_index, driver_problem, has_driver
from explorer.system.lazy import lazy_names

if TYPE_CHECKING:
    from explorer.devices.cuda.device import CudaDevice
    from explorer.devices.cuda.messages import Job, SessionFacts, SmallRun

__all__ = [
    "CudaDevice",
    "Job",
    "SessionFacts",
    "SmallRun",
    "device_index",
    "driver_problem",
    "has_driver",
]

__getattr__ = lazy_names(
    __name__,
    {
        "CudaDevice": "explorer.devices.cuda.device",
        "Job": "explorer.devices.cuda.messages",
        "SessionFacts": "explorer.devices.cuda.messages",
        "SmallRun": "explorer.devices.cuda.messages",
    },
)
