"""Devices by their names: auto, cuda:N, recorded:NAME and emulated, and which command takes which.

A GPU measures and checks kernels, a recording replays measurements, and the emulator only checks.
What a name stands for is a name as well, of one device. Here alone it is asked of which kind that
is, and a kind's modules are imported when one is opened.
"""

import re
from itertools import count, takewhile
from typing import TYPE_CHECKING

from explorer.devices.cuda.program import (
    CudaError,
    device_spec,
    driver_problem,
    driver_version,
    has_driver,
)
from explorer.model.errors import InvalidInput
from explorer.model.gpu_spec import DEFAULT_GPU, GpuSpec, known_gpu
from explorer.model.problem import Problem

if TYPE_CHECKING:  # whoever asks of names alone need not wait for NumPy
    from explorer.devices.device import Device

EMULATED = "emulated"
RECORDED = "recorded:"
FIRST_GPU = "cuda:0"


def open_device(name: str, arch: str = "", **limits: int) -> "Device":
    """Open the device of a name that a function below returned; it is to be closed.

    The emulator compiles for `arch`, such as sm_90, and `limits` are its `step_limit`. Raises
    InvalidInput for a GPU that cannot be used, and DeviceLost.
    """
    if name == EMULATED:
        from explorer.devices.emulated.emulator import Emulator

        return Emulator(arch, **limits)
    if name.startswith(RECORDED):
        from explorer.devices.recorded import RecordedDevice

        return RecordedDevice(name.removeprefix(RECORDED))
    from explorer.devices.cuda.device import CudaDevice

    index = device_index(name)
    assert index is not None, name
    return CudaDevice(index)


def gpu_or_recording(device: str) -> str:
    """Return the name of the GPU, or of the recording, that has a search's times.

    `auto` is cuda:0 if a driver answers, else any recording of the problem. Raises InvalidInput for
    another device. Whether the GPU or the recording exists is not checked.
    """
    if device == "auto":
        return FIRST_GPU if driver_problem() is None else RECORDED
    if device_index(device) is not None:
        return device
    kind, _, name = device.partition(":")
    if kind == "recorded":
        return RECORDED + name
    if kind == EMULATED:
        raise InvalidInput(
            "device 'emulated' checks kernels and times none: check them with explorer verify, or "
            "search on cuda:N or a recording"
        )
    raise InvalidInput(
        f"device '{device}' is not known; it is auto, cuda:N such as cuda:0, or recorded:NAME"
    )


def gpu_or_emulator(device: str) -> str:
    """Return the name of the GPU that checks a kernel, or of the emulator.

    `auto` is cuda:0 if a driver answers, else the emulator. Raises InvalidInput for another device,
    and for a GPU without a driver that answers.
    """
    if device == EMULATED:
        return EMULATED
    problem = driver_problem()
    if device == "auto":
        return FIRST_GPU if problem is None else EMULATED
    if device_index(device) is None:
        raise InvalidInput(
            f"device '{device}' is not known; it is emulated, cuda:N such as cuda:0, or auto"
        )
    if problem is not None:
        raise InvalidInput(f"device {device} cannot be used: {problem}")
    return device


def gpu_alone(device: str, wanted: str, instead: str) -> str:
    """Return the name of the GPU that `auto`, which is cuda:0, or `cuda:N` names.

    Raises InvalidInput for a name of no GPU, and if no driver answers: the message says that
    `wanted` needs a GPU, and `instead` what can be done without one.
    """
    name = FIRST_GPU if device == "auto" else device
    if device_index(name) is None:
        raise InvalidInput(
            f"device is '{device}'; {wanted} needs a GPU: take auto or cuda:N such as cuda:0"
        )
    problem = driver_problem()
    if problem is not None:
        raise InvalidInput(f"{wanted} needs a GPU, and there is none: {problem}; {instead}")
    return name


def device_index(device: str) -> int | None:
    """Return the number N of a device `cuda:N`; None for another name."""
    match = re.fullmatch("cuda:([0-9]{1,3})", device)
    return int(match[1]) if match else None


# ------------------------------------------------------------------ before a device is open


def takes_code(name: str) -> bool:
    """Return whether kernels are compiled for a device that has times."""
    return device_index(name) is not None


def limits_of(name: str) -> GpuSpec | None:
    """Ask the driver for a GPU's limits in this process; None where no GPU can be used."""
    index = device_index(name)
    try:
        return device_spec(index) if index is not None and has_driver() else None
    except CudaError:
        return None


def gpus_here() -> int:
    """Return how many GPUs of this machine this process can use."""
    return sum(1 for _ in takewhile(limits_of, (f"cuda:{index}" for index in count())))


def driver_here() -> str:
    """Return the version of this machine's driver; empty where it is not told."""
    return driver_version()


def own_sources(problem: Problem) -> tuple[str, ...]:
    """Return the CUDA C++ that a GPU's device needs compiled to prepare a problem."""
    from explorer.devices.cuda.limits import tools_sources

    return tools_sources(problem)


# ------------------------------------------------------------------ the GPU whose limits count


def why_no_gpu(device: str) -> str | None:
    """Return why there is no GPU, if one was to be found."""
    return driver_problem() if device == "auto" else None


def assumes_gpu(name: str | None) -> bool:
    """Return whether the limits are those of the default GPU: none is named and none is here."""
    return name is None and not has_driver()


def gpu_limits(name: str | None) -> GpuSpec:
    """Return the limits of the named GPU, else of the one here, else of the default one.

    Raises InvalidInput for a name that is not known.
    """
    if name is not None:
        return known_gpu(name)
    if assumes_gpu(name):
        return known_gpu(DEFAULT_GPU)
    with open_device(FIRST_GPU) as device:
        return device.gpu


def gpu_words(gpu: GpuSpec, named: str | None, *, with_arch: bool = False) -> str:
    """Return words for a GPU whose limits count and that runs nothing: `for NVIDIA H200`."""
    is_stand_in = assumes_gpu(named)
    facts = [gpu.arch] if with_arch else []
    facts += ["no GPU here; --gpu names another"] if is_stand_in else []
    more = f" ({'; '.join(facts)})" if facts else ""
    return f"{'on' if named is None and not is_stand_in else 'for'} {gpu.name}{more}"
