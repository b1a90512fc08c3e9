"""What a device's name stands for: auto, cuda:N, recorded:NAME or emulated, and who takes which.

A GPU measures kernels and checks them, a recording has measured them, and the emulator checks them
alone. What is to be said of a name that does not serve is said here.
"""

from explorer.devices.cuda import device_index, driver_problem
from explorer.model.errors import InvalidInput

EMULATED = "emulated"


def gpu_or_recording(device: str) -> int | str:
    """Return what has times: the index of a GPU, or a recording's name, empty where none is named.

    `auto` is cuda:0 where a driver answers, else any recording. Raises InvalidInput for another
    device. Whether the GPU or the recording is there, is not asked.
    """
    if device == "auto":
        return 0 if driver_problem() is None else ""
    index = device_index(device)
    kind, _, name = device.partition(":")
    if index is not None:
        return index
    if kind == "recorded":
        return name
    if kind == EMULATED:
        raise InvalidInput(
            "device 'emulated' checks kernels and times none: check them with explorer verify, or "
            "search on cuda:N or a recording"
        )
    raise InvalidInput(
        f"device '{device}' is not known; it is auto, cuda:N such as cuda:0, or recorded:NAME"
    )


def gpu_or_emulator(device: str) -> int | None:
    """Return what can check a kernel: the index of a GPU, or None for the emulator.

    `auto` is cuda:0 where a driver answers, else the emulator. Raises InvalidInput for another
    device, and for a GPU where no driver answers.
    """
    if device == EMULATED:
        return None
    problem = driver_problem()
    if device == "auto":
        return 0 if problem is None else None
    index = device_index(device)
    if index is None:
        raise InvalidInput(
            f"device '{device}' is not known; it is emulated, cuda:N such as cuda:0, or auto"
        )
    if problem is not None:
        raise InvalidInput(f"device {device} cannot be used: {problem}")
    return index


def gpu_alone(device: str, wanted: str, instead: str) -> int:
    """Return the index of the GPU that `auto`, which is cuda:0, or `cuda:N` names.

    Raises InvalidInput for what is no GPU, and where no driver answers: `wanted` needs it, and
    `instead` says what can be done without one.
    """
    index = 0 if device == "auto" else device_index(device)
    if index is None:
        raise InvalidInput(
            f"device is '{device}'; {wanted} needs a GPU: take auto or cuda:N such as cuda:0"
        )
    problem = driver_problem()
    if problem is not None:
        raise InvalidInput(f"{wanted} needs a GPU, and there is none: {problem}; {instead}")
    return index
