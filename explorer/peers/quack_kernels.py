"""QuACK's softmax and cross entropy, in the CuTe DSL."""

from importlib.metadata import version

from quack.cross_entropy import CrossEntropy, cross_entropy_fwd
from quack.cute_dsl_utils import torch2cute_dtype_map
from quack.softmax import Softmax, SoftmaxBackward, softmax_bwd, softmax_fwd
from torch import Tensor

from explorer.model.gpu_spec import GpuSpec
from explorer.model.peer import PeerBuffers, PeerRefuses, ReadyPeer
from explorer.model.problem import Problem
from explorer.ops import Op
from explorer.peers.registry import check_scope
from explorer.peers.torch_softmax import TORCH_TYPES, Call, Results, TorchContender


class _OfLosses(TorchContender):
    """Its launches leave losses, which are log-probabilities negated: what is checked has the sign
    turned, by a kernel that is not timed.
    """

    def output(self, index: int, name: str = "output") -> int:
        """Return the address of a result."""
        address = super().output(index, name)
        if name != "output":
            return address
        place = index % len(self.arrays)
        _, _, out, *_ = self.arrays[place]
        return int(out.copy_(-self.results[place][0]).data_ptr())


def _softmax(x: Tensor, _: Tensor) -> Results:
    return softmax_fwd(x)  # type: ignore[no-any-return, unused-ignore]


def _softmax_backward(y: Tensor, dy: Tensor, _: Tensor) -> Results:
    return softmax_bwd(dy, y)  # type: ignore[no-any-return, unused-ignore]


def _losses(x: Tensor, ids: Tensor, _: Tensor, *others: Tensor) -> Results:
    if not others:
        return cross_entropy_fwd(x, ids[:, 0])[:, None]  # type: ignore[no-any-return, unused-ignore]
    losses, lse = cross_entropy_fwd(x, ids[:, 0], return_lse=True)
    return losses[:, None], lse


CALLS: dict[Op, Call] = {
    Op.SOFTMAX: _softmax,
    Op.SOFTMAX_BACKWARD: _softmax_backward,
    Op.LOG_PROB: _losses,
}
"""By the op, its function, which returns tensors of its own."""


def prepare(problem: Problem, buffers: PeerBuffers, stream: int) -> ReadyPeer:
    """Prepare its function; of log-probabilities that of the losses."""
    _check_scope(problem)
    kind = _OfLosses if problem.ids_per_row else TorchContender
    contender = kind(problem, buffers, stream, CALLS[problem.op])
    contender.version = f"quack-kernels {version('quack-kernels')}"
    contender.note = "losses" if problem.ids_per_row else ""
    return contender


def ahead(problem: Problem, gpu: GpuSpec) -> None:
    """Compile the kernel that its function will find in its cache on disk."""
    _check_scope(problem)
    element = torch2cute_dtype_map[TORCH_TYPES[problem.dtype]]
    if problem.ids_dtype:
        target = torch2cute_dtype_map[TORCH_TYPES[problem.ids_dtype]]
        has_lse, has_gradient = bool(problem.also), False
        CrossEntropy.compile(element, target, None, problem.cols, has_lse, has_gradient, None, None)
    elif problem.operator.is_gradient:
        SoftmaxBackward.compile(element, element, element, problem.cols)
    else:
        Softmax.compile(element, element, problem.cols)


def _check_scope(problem: Problem) -> None:
    """Raise PeerRefuses for a problem that QuACK cannot compute."""
    check_scope("quack", problem, ops=tuple(CALLS), also=("lse",))
    if problem.ids_per_row > 1:
        raise PeerRefuses(f"quack takes one id of a row; here are {problem.ids_per_row}")
    vector = 16 // problem.dtype.itemsize
    if problem.cols % vector and not problem.ids_per_row:
        raise PeerRefuses(f"quack needs cols that {vector} divides; {problem.cols} is not")
