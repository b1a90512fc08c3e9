"""PyTorch's own kernels: torch.softmax and torch.log_softmax."""

import torch
from torch import Tensor

from explorer.op import Op
from explorer.peer import Contender, PeerBuffers
from explorer.peers.on_torch import TorchContender
from explorer.peers.registry import FOUR, check_scope
from explorer.problem import Problem


def prepare(problem: Problem, buffers: PeerBuffers, stream: int) -> Contender:
    """The op written to a given tensor: no allocation takes part."""
    check_scope("torch", problem, dtypes=FOUR)
    op = torch.log_softmax if problem.op is Op.LOG_SOFTMAX else torch.softmax

    def call(x: Tensor, out: Tensor) -> Tensor:
        return op(x, -1, out=out)  # type: ignore[call-overload, no-any-return, unused-ignore]

    return TorchContender(problem, buffers, stream, call)
