"""QuACK's softmax, in the CuTe DSL."""

from importlib.metadata import version

from quack.softmax import softmax_fwd
from torch import Tensor

from explorer.peer import Contender, PeerBuffers, PeerRefuses
from explorer.peers.registry import check_scope
from explorer.peers.torch_softmax import TorchContender
from explorer.problem import Op, Problem


def prepare(problem: Problem, buffers: PeerBuffers, stream: int) -> Contender:
    """Its forward function, which returns tensors of its own."""
    check_scope("quack", problem, ops=(Op.SOFTMAX,))
    vector = 16 // problem.dtype.itemsize
    if problem.cols % vector:
        raise PeerRefuses(f"quack needs cols that {vector} divides; {problem.cols} is not")

    def call(x: Tensor, _: Tensor) -> Tensor:
        result: Tensor = softmax_fwd(x)
        return result

    contender = TorchContender(problem, buffers, stream, call)
    contender.version = f"quack-kernels {version('quack-kernels')}"
    return contender
