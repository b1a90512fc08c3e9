"""QuACK's softmax, in the CuTe DSL."""

from importlib.metadata import version

from quack.cute_dsl_utils import torch2cute_dtype_map
from quack.softmax import Softmax, softmax_fwd
from torch import Tensor

from explorer.gpu_spec import GpuSpec
from explorer.peer import Contender, PeerBuffers, PeerRefuses
from explorer.peers.registry import check_scope
from explorer.peers.torch_softmax import TORCH_TYPES, TorchContender
from explorer.problem import Op, Problem


def prepare(problem: Problem, buffers: PeerBuffers, stream: int) -> Contender:
    """Its forward function, which returns tensors of its own."""
    _check_scope(problem)

    def call(x: Tensor, _: Tensor) -> Tensor:
        result: Tensor = softmax_fwd(x)
        return result

    contender = TorchContender(problem, buffers, stream, call)
    contender.version = f"quack-kernels {version('quack-kernels')}"
    return contender


def ahead(problem: Problem, gpu: GpuSpec) -> None:
    """Compile the kernel that its forward function will look for in its cache on disk."""
    _check_scope(problem)
    element = torch2cute_dtype_map[TORCH_TYPES[problem.dtype]]
    Softmax.compile(element, element, problem.cols)


def _check_scope(problem: Problem) -> None:
    """Raises PeerRefuses."""
    check_scope("quack", problem, ops=(Op.SOFTMAX,))
    vector = 16 // problem.dtype.itemsize
    if problem.cols % vector:
        raise PeerRefuses(f"quack needs cols that {vector} divides; {problem.cols} is not")
