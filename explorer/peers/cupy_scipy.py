"""CuPy's softmax, from its counterpart of SciPy: a few kernels a call.

Its log_softmax reads its maxima on the host, which a graph cannot capture. The same expression
without that read replaces it.
"""

from typing import Any

import cupy
from cupyx.scipy import special

from explorer.model.element import DType
from explorer.model.peer import PeerBuffers, ReadyPeer
from explorer.model.problem import Problem
from explorer.peers.registry import check_scope

_TYPES = tuple(dtype for dtype in DType if dtype.in_numpy)


def prepare(problem: Problem, buffers: PeerBuffers, stream: int) -> ReadyPeer:
    """Prepare CuPy's function, whose results lie in a pool filled before the capture."""
    check_scope("cupy", problem, dtypes=_TYPES)
    return _CupyContender(problem, buffers, stream)


class _CupyContender:
    def __init__(self, problem: Problem, buffers: PeerBuffers, stream: int) -> None:
        self.version = f"cupy {cupy.__version__}"
        self.note = ""
        self._op = _log_softmax if problem.operator.is_log else special.softmax
        self._stream = cupy.cuda.ExternalStream(stream)
        self._pool = cupy.cuda.MemoryPool()
        self._inputs = [_wrapped(problem, address) for address in buffers.inputs]
        self._results: dict[int, Any] = {}

    def launch(self, index: int) -> None:
        """Put the kernels of one call on the stream."""
        place = index % len(self._inputs)
        with self._stream, cupy.cuda.using_allocator(self._pool.malloc):
            self._results[place] = self._op(self._inputs[place], axis=-1)

    def output(self, index: int, name: str = "output") -> int:
        """Return the address of the result, which is dense and of the input's type."""
        return int(self._results[index % len(self._inputs)].data.ptr)

    def capture(self, count: int) -> None:
        """Fill the memory pool, because nothing can be allocated while the bench captures.

        In the second round each set has a result already, as in the capture.
        """
        for index in range(max(count, 2 * len(self._inputs))):
            self.launch(index)
        self._stream.synchronize()

    def close(self) -> None:
        """Free the memory."""
        self._results.clear()
        self._pool.free_all_blocks()


def _log_softmax(x: Any, axis: int) -> Any:
    shifted = x - x.max(axis=axis, keepdims=True)
    return shifted - cupy.log(cupy.exp(shifted).sum(axis=axis, keepdims=True))


def _wrapped(problem: Problem, address: int) -> Any:
    shape, size = (problem.rows, problem.cols), problem.rows * problem.row_bytes
    memory = cupy.cuda.UnownedMemory(address, size, owner=None)
    return cupy.ndarray(shape, problem.dtype.array_name, cupy.cuda.MemoryPointer(memory, 0))
