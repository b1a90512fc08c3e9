"""Liger's softmax and cross entropy, in Triton."""

from functools import partial
from importlib.metadata import version
from typing import Any

import triton
from liger_kernel.ops.cross_entropy import MAX_FUSED_SIZE, liger_cross_entropy_kernel
from liger_kernel.ops.softmax import LigerSoftmaxFunction
from torch import Tensor, float32

from explorer.model.gpu_spec import GpuSpec
from explorer.model.peer import PeerBuffers, ReadyPeer
from explorer.model.problem import Problem
from explorer.ops import Op
from explorer.peers.registry import check_scope
from explorer.peers.torch_softmax import Results, TorchContender
from explorer.peers.triton_softmax import compiling_alone

OPS = (Op.SOFTMAX, Op.CROSS_ENTROPY, Op.CROSS_ENTROPY_WITH_GRADIENT)
"""Its cross entropy has no backward of its own: the gradient is formed with the loss."""

BLACKWELL = 100
"""The first GPU's number, as of sm_100, on which it launches fewer warps for 16-bit logits."""


def prepare(problem: Problem, buffers: PeerBuffers, stream: int) -> ReadyPeer:
    """Prepare its function for softmax, of at most 65536 columns, and for losses its kernel."""
    _check_scope(problem)
    with_gradient = problem.op is Op.CROSS_ENTROPY_WITH_GRADIENT
    kind = _OverLogits if with_gradient else TorchContender
    contender = kind(problem, buffers, stream, partial(_call, problem))
    contender.version = f"liger-kernel {version('liger-kernel')}"
    if problem.has_target:
        contender.note = "its kernel alone, losses in f32"
        contender.note += ", gradients of 1, over the logits" if with_gradient else ""
    return contender


def _call(problem: Problem, x: Tensor, *others: Tensor) -> Results:
    if problem.has_target:
        return launch_losses(problem, x, others[0])
    result: Tensor = LigerSoftmaxFunction.apply(x)
    return result


class _OverLogits(TorchContender):
    """It writes gradients over the logits, so that each launch of a graph has logits of its own.

    What is timed computes from what the last replay has written, as a kernel in place does. The
    logits are copied before a replay whose results are checked. These are of losses whose gradient
    is 1: Liger multiplies by others in a pass of its own, after its backward has waited for the
    GPU.
    """

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self._given = self.arrays
        self.arrays = [(x.clone(), *others) for x, *others in self._given]

    def capture(self, count: int) -> int:
        """Return a graph; a second launch on the same logits would take those of a gradient."""
        for index in range(len(self.arrays), count):
            x, *others = self._given[index % len(self._given)]
            self.arrays.append((x.clone(), *others))
        return super().capture(count)

    def renew(self) -> None:
        """Copy the logits, and make the gradient of each loss 1."""
        for index, (own, *_) in enumerate(self.arrays):
            x, _, loss_grad, *_ = self._given[index % len(self._given)]
            own.copy_(x)
            loss_grad.fill_(1)


def launch_losses(problem: Problem, x: Tensor, ids: Tensor) -> Results:
    """Launch the kernel that `LigerCrossEntropyFunction` launches, which looks at no target first.

    The function itself checks and counts the targets before, and waits for the GPU three times,
    which cannot be captured. It returns losses of the logits' type, which here have f32. As there,
    they are zeros first: rows that are ignored are left out.
    """
    loss = x.new_zeros(x.shape[0], dtype=float32)
    with_gradient = problem.op is Op.CROSS_ENTROPY_WITH_GRADIENT
    arch = triton.runtime.driver.active.get_current_target().arch
    liger_cross_entropy_kernel[(x.shape[0],)](
        X_ptr=x,
        X_stride=x.stride(0),
        Y_ptr=ids,
        Y_stride=1,
        weight_ptr=None,
        loss_ptr=loss,
        z_loss_ptr=None,
        loss_stride=1,
        token_accuracy_ptr=None,
        token_accuracy_stride=0,
        predicted_tokens_ptr=None,
        predicted_tokens_stride=0,
        n_cols=problem.cols,
        n_non_ignore=problem.rows,
        sum_non_ignore_weight=problem.rows,
        weight_sum=0.0,
        ignore_index=problem.ignore_index,
        lse_square_scale=0.0,
        label_smoothing=0.0,
        reduction="none",
        softcap=None,
        RETURN_Z_LOSS=False,
        RETURN_TOKEN_ACCURACY=False,
        RETURN_PREDICTED_TOKENS=False,
        BLOCK_SIZE=min(MAX_FUSED_SIZE, triton.next_power_of_2(problem.cols)),
        HAS_WEIGHT=False,
        HAS_SOFTCAPPING=False,
        HAS_GRADIENTS=with_gradient,
        num_warps=8 if x.element_size() == 2 and arch >= BLACKWELL else 32,
    )
    if not with_gradient:
        return loss
    return (x, loss) if problem.also else x


def ahead(problem: Problem, gpu: GpuSpec) -> None:
    """Compile the kernel that `prepare` will launch."""
    _check_scope(problem)
    with compiling_alone(gpu, problem) as (x, *others):
        _call(problem, x, *others)


def _check_scope(problem: Problem) -> None:
    """Raise PeerRefuses for a problem that Liger cannot compute."""
    with_gradient = problem.op is Op.CROSS_ENTROPY_WITH_GRADIENT
    check_scope("liger", problem, ops=OPS, also=("loss",) if with_gradient else ())
