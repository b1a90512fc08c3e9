"""NVRTC: CUDA C++ in, PTX and cubin out."""

from dataclasses import dataclass
from functools import cache
from typing import Any

from explorer.errors import ExplorerError

SOURCE_NAME = "softmax.cu"
"""What NVRTC is told that its input is called."""


@dataclass(frozen=True, slots=True)
class Compilation:
    """What one run of NVRTC gave; `cubin` and `ptx` are empty where it failed."""

    succeeded: bool
    log: str
    cubin: bytes = b""
    ptx: str = ""


@cache
def nvrtc_version() -> str:
    """NVRTC's version, such as 13.0; raises ExplorerError where it cannot be loaded."""
    nvrtc = _load()
    major, minor = _checked(nvrtc.nvrtcVersion())
    return f"{major}.{minor}"


def compile_source(source: str, options: tuple[str, ...]) -> Compilation:
    """Compile CUDA C++ for the one architecture that `options` name; errors are in the log."""
    nvrtc = _load()
    program = _checked(nvrtc.nvrtcCreateProgram(source.encode(), SOURCE_NAME.encode(), 0, [], []))
    try:
        encoded = [option.encode() for option in options]
        (status,) = nvrtc.nvrtcCompileProgram(program, len(encoded), encoded)
        log = _text(nvrtc.nvrtcGetProgramLogSize, nvrtc.nvrtcGetProgramLog, program).decode()
        if status != nvrtc.nvrtcResult.NVRTC_SUCCESS:
            return Compilation(False, log.strip() or str(status))
        cubin = _text(nvrtc.nvrtcGetCUBINSize, nvrtc.nvrtcGetCUBIN, program)
        ptx = _text(nvrtc.nvrtcGetPTXSize, nvrtc.nvrtcGetPTX, program)
        return Compilation(True, log.strip("\0\n "), cubin, ptx.rstrip(b"\0").decode())
    finally:
        nvrtc.nvrtcDestroyProgram(program)


def _load() -> Any:
    try:
        from cuda.bindings import nvrtc

        nvrtc.nvrtcVersion()
    except Exception as error:  # the loader raises whatever its platform does
        raise ExplorerError(
            f"NVRTC cannot be loaded ({error}); install it: pip install nvidia-cuda-nvrtc"
        ) from error
    return nvrtc


def _checked(result: tuple[Any, ...]) -> Any:
    status, *values = result
    if status != 0:
        raise ExplorerError(f"NVRTC failed: {status}")
    return values[0] if len(values) == 1 else values


def _text(size_of: Any, read: Any, program: Any) -> bytes:
    buffer: bytes = b"\0" * _checked(size_of(program))
    _checked(read(program, buffer))
    return buffer.rstrip(b"\0") if read.__name__.endswith("Log") else buffer
