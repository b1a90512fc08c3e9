"""PyTorch's softmax, eager and compiled, and the base of all contenders on PyTorch's tensors."""

import os
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from explorer.model.element import DType
from explorer.model.peer import PeerBuffers, PeerRefuses, ReadyPeer
from explorer.model.problem import Problem
from explorer.ops import Op
from explorer.peers.registry import EVERY, FOUR, check_scope

# ------------------------------------------------------------------ contenders on tensors


def _settle_triton() -> None:
    """Set the cache folder and the assembler of Triton before it compiles anything.

    torch.compile sets both for the rest of its process when it first compiles: a folder of its own,
    and PyTorch's assembler (CUDA 13.0's in PyTorch 2.11, while Triton 3.6 has 12.8's). A kernel
    would then depend on what was compiled before it, and kernels that another process compiled
    ahead would not be found.
    """
    home = Path(os.environ.get("TRITON_HOME", Path.home()))
    os.environ.setdefault("TRITON_CACHE_DIR", str(home / ".triton" / "cache"))
    assembler = Path(torch.__file__).parent / "bin" / "ptxas"
    if os.access(assembler, os.X_OK):
        os.environ.setdefault("TRITON_PTXAS_PATH", str(assembler))


_settle_triton()

Call = Callable[..., Tensor]
"""Takes the input and an output that it may write, and returns the tensor with the result.

For a backward op it takes the forward's output, its gradient, and an output that it may write.
"""

TORCH_TYPES = {dtype: getattr(torch, dtype.array_name) for dtype in DType}

_SAME_WIDTH = {2: "<i2", 4: "<i4", 8: "<i8"}
"""Integer types of the same width: the CUDA array interface has no bf16, so matrices are wrapped as
integers and then viewed."""


def result_shape(problem: Problem) -> tuple[int, ...]:
    """Return the shape of an op's result."""
    return (problem.rows, problem.cols) if problem.fills_rows else (problem.rows,)


class TorchContender:
    """A contender that calls `call` on the matrices of each set, on the given stream.

    The results of a peer that returns tensors of its own are kept alive, one for each set, so that
    its launches rotate over as much memory as those of a peer that writes our outputs.
    """

    def __init__(self, problem: Problem, buffers: PeerBuffers, stream: int, call: Call) -> None:
        self.version = f"torch {torch.__version__}"
        self.note = ""
        self._problem = problem
        shape, result = (problem.rows, problem.cols), result_shape(problem)
        self.inputs = [_wrapped(shape, problem.dtype, address) for address in buffers.inputs]
        self.outputs = [_wrapped(result, problem.output_dtype, one) for one in buffers.outputs]
        grads = [_wrapped(shape, problem.dtype, address) for address in buffers.grads]
        read = [self.inputs, grads] if grads else [self.inputs]
        self.matrices = list(zip(*read, self.outputs, strict=True))
        """The arguments of `call` for each set."""
        self._results: dict[int, Tensor] = {}
        self._call = call
        self._graph: Any = None
        torch.set_grad_enabled(False)
        torch.cuda.set_device(self.inputs[0].device)
        self._stream = torch.cuda.ExternalStream(stream, device=self.inputs[0].device)
        torch.cuda.set_stream(self._stream)

    def launch(self, index: int) -> None:
        """Put one launch on the stream."""
        place = index % len(self.inputs)
        self._results[place] = self._call(*self.matrices[place])

    def output(self, index: int) -> int:
        """Return the result's address; raises PeerRefuses if it is not dense or of another type."""
        result = self._results[index % len(self.inputs)]
        due = self.outputs[0]
        if result.dtype != due.dtype or result.shape != due.shape:
            raise PeerRefuses(f"it returns {result.dtype} of shape {tuple(result.shape)}")
        if not result.is_contiguous():
            raise PeerRefuses("it returns a matrix that is not dense")
        return int(result.data_ptr())

    def capture(self, count: int) -> int:
        """Return a graph with a memory pool of its own, which later launches do not use."""
        if not hasattr(torch.cuda.CUDAGraph, "raw_cuda_graph"):
            raise PeerRefuses(f"its graphs cannot be had of torch {torch.__version__}: needs 2.8")
        graph = torch.cuda.CUDAGraph(keep_graph=True)
        with torch.cuda.graph(graph, stream=self._stream, capture_error_mode="thread_local"):
            for index in range(count):
                self.launch(index)
        self._graph = graph
        return int(graph.raw_cuda_graph())

    def close(self) -> None:
        """Free the graph, the results and the allocator's cache."""
        self._results.clear()
        self._graph = None
        torch.cuda.synchronize()
        torch.cuda.empty_cache()


class _Memory:
    """Device memory as the CUDA array interface describes it."""

    def __init__(self, shape: tuple[int, ...], itemsize: int, address: int) -> None:
        self.__cuda_array_interface__ = {
            "shape": shape,
            "typestr": _SAME_WIDTH[itemsize],
            "data": (address, False),
            "version": 2,
        }


def _wrapped(shape: tuple[int, ...], dtype: DType, address: int) -> Tensor:
    memory: Any = _Memory(shape, dtype.itemsize, address)
    wrapped = torch.as_tensor(memory, device="cuda").view(TORCH_TYPES[dtype])
    if wrapped.data_ptr() != address:
        raise PeerRefuses("torch copies the memory that it is given instead of wrapping it")
    return wrapped


# ------------------------------------------------------------------ eager


def prepare_eager(problem: Problem, buffers: PeerBuffers, stream: int) -> ReadyPeer:
    """Prepare the eager op with a given output, so that it allocates nothing."""
    check_scope("torch", problem, ops=EVERY, dtypes=FOUR)
    op = forward_of(problem)

    def call(x: Tensor, out: Tensor) -> Tensor:
        return op(x, -1, out=out)

    gradient = partial(_gradient_into, problem)
    function = gradient if problem.operator.is_gradient else call
    return TorchContender(problem, buffers, stream, function)


def forward_of(problem: Problem) -> Callable[..., Tensor]:
    """Return PyTorch's function of a matrix and its axis, which may be given an output."""
    kind = TORCH_TYPES[problem.output_dtype]

    def logsumexp(x: Tensor, axis: int, **given: Tensor) -> Tensor:
        # PyTorch's result is of the type of what it is given.
        return torch.logsumexp(x.to(kind), axis, **given)

    if problem.op is Op.LOGSUMEXP:
        return logsumexp
    op: Callable[..., Tensor] = torch.log_softmax if problem.operator.is_log else torch.softmax
    return op


def _gradient_into(problem: Problem, y: Tensor, dy: Tensor, out: Tensor) -> Tensor:
    """Compute autograd's gradient into `out`: `y` is the forward's output."""
    ops: Any = torch.ops.aten
    if problem.operator.is_log:
        result = ops._log_softmax_backward_data.out(dy, y, -1, y.dtype, out=out)
    else:
        result = ops._softmax_backward_data.out(dy, y, -1, y.dtype, grad_input=out)
    return result  # type: ignore[no-any-return, unused-ignore]


# ------------------------------------------------------------------ compiled


MODE = "max-autotune-no-cudagraphs"
"""The mode of torch.compile that tunes, but makes no CUDA graphs, since the bench makes its own."""


def prepare_compiled(problem: Problem, buffers: PeerBuffers, stream: int) -> ReadyPeer:
    """Prepare the op compiled with static shapes, which returns tensors of its own."""
    check_scope("torch.compile", problem, ops=EVERY, dtypes=FOUR)
    call = compiled(problem)
    contender = TorchContender(problem, buffers, stream, lambda *matrices: call(*matrices[:-1]))
    contender.note = MODE
    return contender


def compiled(problem: Problem) -> Callable[..., Tensor]:
    """Return the op wrapped by torch.compile, which compiles at the first call.

    It takes the op's inputs: a matrix, or the forward's output and its gradient.
    """
    torch._dynamo.reset()  # shapes of other problems count against its limit of recompilations
    op = forward_of(problem)
    backward: Any = getattr(torch.ops.aten, problem.operator.torch)

    def forward(x: Tensor) -> Tensor:
        return op(x, -1)

    def gradient(y: Tensor, dy: Tensor) -> Tensor:
        return backward(dy, y, -1, y.dtype)  # type: ignore[no-any-return, unused-ignore]

    function = gradient if problem.operator.is_gradient else forward
    call: Callable[..., Tensor] = torch.compile(function, mode=MODE, dynamic=False, fullgraph=True)
    return call
