"""torch.compile: what Inductor makes of the op, for exactly this shape."""

import torch
from torch import Tensor

from explorer.op import Op
from explorer.peer import Contender, PeerBuffers
from explorer.peers.on_torch import TorchContender
from explorer.peers.registry import FOUR, check_scope
from explorer.problem import Problem

MODE = "max-autotune-no-cudagraphs"
"""Its tuning, without its graphs: all launches here are in ours."""


def prepare(problem: Problem, buffers: PeerBuffers, stream: int) -> Contender:
    """Compiled with static shapes; it returns tensors of its own."""
    check_scope("torch.compile", problem, dtypes=FOUR)
    torch._dynamo.reset()  # shapes of other problems count against its limit of recompilations
    op = torch.log_softmax if problem.op is Op.LOG_SOFTMAX else torch.softmax

    def forward(x: Tensor) -> Tensor:
        return op(x, -1)

    compiled = torch.compile(forward, mode=MODE, dynamic=False, fullgraph=True)
    contender = TorchContender(problem, buffers, stream, lambda x, _: compiled(x))
    contender.note = MODE
    return contender
