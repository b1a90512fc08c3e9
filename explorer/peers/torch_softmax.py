"""PyTorch's softmax, eager and compiled, and the base of all contenders on PyTorch's tensors."""

import os
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import torch
from torch import Tensor

from explorer.model.element import DType, ElementType, IndexType
from explorer.model.peer import PeerBuffers, PeerRefuses, ReadyPeer
from explorer.model.problem import Problem, inputs, results
from explorer.ops import Extent, Op
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

Results: TypeAlias = Tensor | tuple[Tensor, ...]

Call = Callable[..., Results]
"""Takes the operands, then the tensors that the results may be written to; returns the results.

The operands of a backward op are the forward's output and its gradient.
"""

TORCH_TYPES = {dtype: getattr(torch, dtype.array_name) for dtype in (*DType, *IndexType)}

_SAME_WIDTH = {2: "<i2", 4: "<i4", 8: "<i8"}
"""Integer types of the same width: the CUDA array interface has no bf16, so matrices are wrapped as
integers and then viewed."""


class Array(NamedTuple):
    """An operand or a result as PyTorch describes it."""

    name: str
    shape: tuple[int, ...]
    dtype: ElementType

    def empty(self, device: str = "cpu") -> Tensor:
        """Return a tensor for it."""
        return torch.empty(self.shape, dtype=TORCH_TYPES[self.dtype], device=device)


def read_by(problem: Problem) -> list[Array]:
    """Return the operands, in the order in which a call takes them."""
    return [
        Array(one.name, (1 + (one.count - one.cols) // one.stride, one.cols), one.dtype)
        for one in inputs(problem)
    ]


def written_by(problem: Problem) -> list[Array]:
    """Return the results, in their order; one number a row has no second axis."""
    shapes = {Extent.ROW: (problem.rows,)}
    return [
        Array(one.name, shapes.get(kind.extent, (problem.rows, one.cols)), one.dtype)
        for kind, one in zip(problem.results, results(problem), strict=True)
    ]


class TorchContender:
    """A contender that calls `call` on the arrays of each set, on the given stream.

    The results of a peer that returns tensors of its own are kept alive, one for each set, so that
    its launches rotate over as much memory as those of a peer that writes our outputs.
    """

    def __init__(self, problem: Problem, buffers: PeerBuffers, stream: int, call: Call) -> None:
        self.version = f"torch {torch.__version__}"
        self.note = ""
        self._due = {array.name: array for array in written_by(problem)}
        given = {"input": buffers.inputs, "grad": buffers.grads, "ids": buffers.ids}
        given |= {"output": buffers.outputs, **buffers.others}
        each = [*read_by(problem), *self._due.values()]
        wrapped = ([_wrapped(array, address) for address in given[array.name]] for array in each)
        self.arrays = list(zip(*wrapped, strict=True))
        """The arguments of `call` for each set."""
        self.results: dict[int, tuple[Tensor, ...]] = {}
        """What the last call on each set returned."""
        self._call = call
        self._graph: Any = None
        device = self.arrays[0][0].device
        torch.set_grad_enabled(False)
        torch.cuda.set_device(device)
        self._stream = torch.cuda.ExternalStream(stream, device=device)
        torch.cuda.set_stream(self._stream)

    def launch(self, index: int) -> None:
        """Put one launch on the stream."""
        place = index % len(self.arrays)
        made = self._call(*self.arrays[place])
        self.results[place] = made if isinstance(made, tuple) else (made,)

    def output(self, index: int, name: str = "output") -> int:
        """Return a result's address; raises PeerRefuses if it is not dense or of another type."""
        result = self.results[index % len(self.arrays)][list(self._due).index(name)]
        due = self._due[name]
        if result.dtype != TORCH_TYPES[due.dtype] or result.shape != due.shape:
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
        self.results.clear()
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


def _wrapped(array: Array, address: int) -> Tensor:
    memory: Any = _Memory(array.shape, array.dtype.itemsize, address)
    wrapped = torch.as_tensor(memory, device="cuda").view(TORCH_TYPES[array.dtype])
    if wrapped.data_ptr() != address:
        raise PeerRefuses("torch copies the memory that it is given instead of wrapping it")
    return wrapped


# ------------------------------------------------------------------ what people write


def _wide(x: Tensor) -> Tensor:
    """Return elements of the arithmetic's type, which PyTorch's result then has too."""
    return x if x.dtype is torch.float64 else x.float()


ALSO = ("loss", "lse", "entropy", "rank", "argmax")
"""The results on request that are computed with PyTorch and with Triton."""


def _log_prob(x: Tensor, ids: Tensor, *, also: Sequence[str] = (), **given: Tensor) -> Results:
    logs, columns = torch.log_softmax(_wide(x), -1), ids.long()
    too: dict[str, Callable[[], Tensor]] = {
        "lse": lambda: torch.logsumexp(_wide(x), -1),
        "entropy": lambda: -(logs.exp() * logs).sum(-1),
        "rank": lambda: (x > torch.gather(x, -1, columns[:, :1])).sum(-1).to(ids.dtype),
        "argmax": lambda: x.argmax(-1).to(ids.dtype),
    }
    chosen = torch.gather(logs, -1, columns, **given)
    return (chosen, *(too[name]() for name in also)) if also else chosen


def _loss(x: Tensor, ids: Tensor, *, also: Sequence[str] = (), **_: Tensor) -> Results:
    loss = torch.nn.functional.cross_entropy(_wide(x), ids[:, 0].long(), reduction="none")
    return (loss, torch.logsumexp(_wide(x), -1)) if also else loss


def _loss_gradient(
    x: Tensor, ids: Tensor, maximum: Tensor, log_sum: Tensor, loss_grad: Tensor, **_: Tensor
) -> Tensor:
    """Return the gradient from what a kernel of ours keeps: PyTorch keeps a matrix instead."""
    shares = (_wide(x) - (maximum + log_sum)).exp()
    shares.scatter_add_(-1, ids.long(), shares.new_full((), -1.0).expand_as(ids))
    return (shares * loss_grad).to(x.dtype)


def _loss_with_gradient(
    x: Tensor, ids: Tensor, loss_grad: Tensor, *, also: Sequence[str] = (), **_: Tensor
) -> Results:
    """Call what autograd calls for `cross_entropy(x.float(), target, reduction="none")`."""
    ops: Any = torch.ops.aten
    logs, target = torch.log_softmax(_wide(x), -1), ids[:, 0].long()
    of_target = (target, None, 0, -100)  # no weights, no reduction
    loss, total = ops.nll_loss_forward(logs, *of_target)
    less = ops.nll_loss_backward(loss_grad[:, 0], logs, *of_target, total)
    gradient = ops._log_softmax_backward_data(less, logs, -1, logs.dtype).to(x.dtype)
    too = {"loss": lambda: loss, "lse": lambda: torch.logsumexp(_wide(x), -1)}
    return (gradient, *(too[name]() for name in also)) if also else gradient


FORWARD: dict[Op, Call] = {
    Op.SOFTMAX: lambda x, **given: torch.softmax(x, -1, **given),
    Op.LOG_SOFTMAX: lambda x, **given: torch.log_softmax(x, -1, **given),
    Op.LOGSUMEXP: lambda x, **given: torch.logsumexp(_wide(x), -1, **given),
    Op.LOG_PROB: _log_prob,
    Op.CROSS_ENTROPY: _loss,
    Op.CROSS_ENTROPY_BACKWARD: _loss_gradient,
    Op.CROSS_ENTROPY_WITH_GRADIENT: _loss_with_gradient,
    Op.MULTIPLY_ROWS: lambda x, loss_grad, **_: (_wide(x) * loss_grad).to(x.dtype),
}
"""By the op, the function of its operands; `out=` may give it the output."""


def forward_of(problem: Problem) -> Call:
    """Return the function of a forward op's operands, which may be given an output."""
    function = FORWARD[problem.op]
    return partial(function, also=problem.also.split(",")) if problem.also else function


# ------------------------------------------------------------------ eager


def prepare_eager(problem: Problem, buffers: PeerBuffers, stream: int) -> ReadyPeer:
    """Prepare the eager op with a given output, so that it allocates nothing."""
    check_scope("torch", problem, ops=EVERY, dtypes=FOUR, also=ALSO)
    if problem.operator.is_gradient:
        return TorchContender(problem, buffers, stream, partial(_gradient_into, problem))
    op, count = forward_of(problem), len(read_by(problem))

    def call(*arrays: Tensor) -> Results:
        return op(*arrays[:count], out=arrays[count])

    return TorchContender(problem, buffers, stream, call)


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
    check_scope("torch.compile", problem, ops=EVERY, dtypes=FOUR, also=ALSO)
    call, count = compiled(problem), len(read_by(problem))
    contender = TorchContender(problem, buffers, stream, lambda *arrays: call(*arrays[:count]))
    contender.note = MODE
    return contender


def compiled(problem: Problem) -> Call:
    """Return the op wrapped by torch.compile, which compiles at the first call.

    It takes the op's operands, such as the forward's output and its gradient.
    """
    torch._dynamo.reset()  # shapes of other problems count against its limit of recompilations

    def gradient(y: Tensor, dy: Tensor) -> Tensor:
        backward: Any = getattr(torch.ops.aten, problem.operator.torch)
        return backward(dy, y, -1, y.dtype)  # type: ignore[no-any-return, unused-ignore]

    function = gradient if problem.operator.is_gradient else forward_of(problem)
    call: Call = torch.compile(function, mode=MODE, dynamic=False, fullgraph=True)
    return call
