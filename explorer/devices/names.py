"""The names of devices: auto, cuda:N, recorded:NAME and emulated, and which command takes which.

A GPU measures and checks kernels, a recording replays measurements, and the emulator only checks.
Each function raises the error for a name that its caller cannot use.
"""

from explorer.devices.cuda.program import device_index, driver_problem, has_driver
from explorer.model.errors import InvalidInput
from explorer.model.gpu_spec import DEFAULT_GPU, GpuSpec, known_gpu

EMULATED = "emulated"


def gpu_or_recording(device: str) -> int | str:
    """Return the index of the GPU, or the name of the recording, that has a search's times.

    `auto` is cuda:0 if a driver answers, else any recording, whose name is then empty. Raises
    InvalidInput for another device. Whether the GPU or the recording exists is not checked.
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
    """Return the index of the GPU that checks a kernel, or None for the emulator.

    `auto` is cuda:0 if a driver answers, else the emulator. Raises InvalidInput for another device,
    and for a GPU without a driver that answers.
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

    Raises InvalidInput for a name of no GPU, and if no driver answers: the message says that
    `wanted` needs a GPU, and `instead` what can be done without one.
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
    from explorer.devices.cuda.device import CudaDevice

    with CudaDevice(0) as device:
        return device.gpu


def gpu_words(gpu: GpuSpec, named: str | None, *, with_arch: bool = False) -> str:
    """Return words for a GPU whose limits count and that runs nothing: `for NVIDIA H200`."""
    is_stand_in = assumes_gpu(named)
    facts = [gpu.arch] if with_arch else []
    facts += ["no GPU here; --gpu names another"] if is_stand_in else []
    more = f" ({'; '.join(facts)})" if facts else ""
    return f"{'on' if named is None and not is_stand_in else 'for'} {gpu.name}{more}"
