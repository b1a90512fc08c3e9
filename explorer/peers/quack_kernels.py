"""QuACK's softmax, in the CuTe DSL."""

from importlib.metadata import version

from quack.cute_dsl_utils import torch2cute_dtype_map
from quack.softmax import Softmax, SoftmaxBackward, softmax_bwd, softmax_fwd
from torch import Tensor

from explorer.model.gpu_spec import GpuSpec
from explorer.model.peer import PeerBuffers, PeerRefuses, ReadyPeer
from explorer.model.problem import Problem
from explorer.peers.registry import check_scope
from explorer.peers.torch_softmax import TORCH_TYPES, TorchContender


def prepare(problem: Problem, buffers: PeerBuffers, stream: int) -> ReadyPeer:
    """Prepare its forward or backward function, which returns tensors of its own."""
    _check_scope(problem)

    def call(x: Tensor, _: Tensor) -> Tensor:
        result: Tensor = softmax_fwd(x)
        return result

    def gradient(y: Tensor, dy: Tensor, _: Tensor) -> Tensor:
        result: Tensor = softmax_bwd(dy, y)
        return result

    backward = problem.operator.is_gradient
    contender = TorchContender(problem, buffers, stream, gradient if backward else call)
    contender.version = f"quack-kernels {version('quack-kernels')}"
    return contender


def ahead(problem: Problem, gpu: GpuSpec) -> None:
    """Compile the kernel that its function will find in its cache on disk."""
    _check_scope(problem)
    element = torch2cute_dtype_map[TORCH_TYPES[problem.dtype]]
    if problem.operator.is_gradient:
        SoftmaxBackward.compile(element, element, element, problem.cols)
    else:
        Softmax.compile(element, element, problem.cols)


def _check_scope(problem: Problem) -> None:
    """Raise PeerRefuses for a problem that QuACK cannot compute."""
    check_scope("quack", problem, ops=("softmax", "softmax_backward"))
    vector = 16 // problem.dtype.itemsize
    if problem.cols % vector:
        raise PeerRefuses(f"quack needs cols that {vector} divides; {problem.cols} is not")
