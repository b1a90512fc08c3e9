"""cuDNN's softmax, called in its own library: cudnnSoftmaxForward, ACCURATE or LOG, INSTANCE."""

import ctypes
import importlib.util
from pathlib import Path
from typing import Any

from explorer.model.element import DType
from explorer.model.peer import PeerBuffers, PeerRefuses, ReadyPeer
from explorer.model.problem import Problem
from explorer.peers.registry import FOUR, check_scope

LIBRARY = "libcudnn.so.9"

_NCHW = 0
_INSTANCE = 0  # over all but the first axis
_TYPES = {DType.F32: 0, DType.F64: 1, DType.F16: 2, DType.BF16: 9}
_ALGORITHMS = {"softmax": 1, "log_softmax": 2}  # with the maximum subtracted; its logarithm


def prepare(problem: Problem, buffers: PeerBuffers, stream: int) -> ReadyPeer:
    """Prepare cudnnSoftmaxForward for `rows` images of `cols` channels; it writes our outputs."""
    check_scope("cudnn", problem, dtypes=FOUR)
    return _CudnnContender(problem, buffers, stream)


class _CudnnContender:
    def __init__(self, problem: Problem, buffers: PeerBuffers, stream: int) -> None:
        self._library = _loaded()
        self._buffers = buffers
        self._algorithm = _ALGORITHMS[problem.op]
        scale = ctypes.c_double if problem.dtype.in_double else ctypes.c_float
        self._one, self._zero = scale(1), scale(0)
        self._handle, self._matrix = ctypes.c_void_p(), ctypes.c_void_p()
        self._call("cudnnCreate", ctypes.byref(self._handle))
        self._call("cudnnSetStream", self._handle, ctypes.c_void_p(stream))
        self._call("cudnnCreateTensorDescriptor", ctypes.byref(self._matrix))
        extents = (problem.rows, problem.cols, 1, 1)
        kind = _TYPES[problem.dtype]
        self._call("cudnnSetTensor4dDescriptor", self._matrix, _NCHW, kind, *extents)
        number = int(self._library.cudnnGetVersion())
        self.version = f"cudnn {number // 10000}.{number // 100 % 100}.{number % 100}"
        self.note = ""

    def launch(self, index: int) -> None:
        """Put one call on the stream."""
        source = self._buffers.inputs[index % len(self._buffers.inputs)]
        one, zero = ctypes.byref(self._one), ctypes.byref(self._zero)
        self._call(
            "cudnnSoftmaxForward",
            self._handle,
            self._algorithm,
            _INSTANCE,
            *(one, self._matrix, ctypes.c_void_p(source)),
            *(zero, self._matrix, ctypes.c_void_p(self.output(index))),
        )

    def output(self, index: int, name: str = "output") -> int:
        """Return the address of a set's output."""
        return self._buffers.outputs[index % len(self._buffers.outputs)]

    def capture(self, count: int) -> None:
        """Return None: the bench can capture calls, which allocate nothing."""

    def close(self) -> None:
        """Destroy the descriptor and the handle."""
        self._call("cudnnDestroyTensorDescriptor", self._matrix)
        self._call("cudnnDestroy", self._handle)

    def _call(self, name: str, *arguments: Any) -> None:
        status = getattr(self._library, name)(*arguments)
        if status != 0:
            self._library.cudnnGetErrorString.restype = ctypes.c_char_p
            text = self._library.cudnnGetErrorString(status).decode()
            raise PeerRefuses(f"cudnn: {name} returned {text}")


def _loaded() -> Any:
    """Return the library of NVIDIA's package, or the system's; raises ImportError."""
    spec = importlib.util.find_spec("nvidia")
    folders = spec.submodule_search_locations if spec else None
    packaged = [Path(folder) / "cudnn" / "lib" / LIBRARY for folder in folders or ()]
    path = next((str(path) for path in packaged if path.exists()), LIBRARY)
    try:
        library = ctypes.CDLL(path)
    except OSError as error:
        raise ImportError(str(error)) from None
    library.cudnnGetVersion.restype = ctypes.c_size_t
    return library
