"""Liger's softmax, in Triton."""

from importlib.metadata import version

from liger_kernel.ops.softmax import LigerSoftmaxFunction
from torch import Tensor

from explorer.model.gpu_spec import GpuSpec
from explorer.model.peer import PeerBuffers, ReadyPeer
from explorer.model.problem import Problem
from explorer.peers.registry import check_scope
from explorer.peers.torch_softmax import TorchContender
from explorer.peers.triton_softmax import compiling_alone


def prepare(problem: Problem, buffers: PeerBuffers, stream: int) -> ReadyPeer:
    """Prepare its function, which returns its own tensors, for at most 65536 columns."""
    check_scope("liger", problem, ops=("softmax",))

    def call(x: Tensor, _: Tensor) -> Tensor:
        result: Tensor = LigerSoftmaxFunction.apply(x)
        return result

    contender = TorchContender(problem, buffers, stream, call)
    contender.version = f"liger-kernel {version('liger-kernel')}"
    return contender


def ahead(problem: Problem, gpu: GpuSpec) -> None:
    """Compile the kernel that `prepare` will launch."""
    check_scope("liger", problem, ops=("softmax",))
    with compiling_alone(gpu, problem) as (x, _):
        LigerSoftmaxFunction.apply(x)
