"""QuACK's softmax and cross entropy, in the CuTe DSL."""

from functools import partial
from importlib.metadata import version
from typing import Any, NamedTuple

from quack.cross_entropy import (
    CrossEntropy,
    CrossEntropyBackward,
    cross_entropy_bwd,
    cross_entropy_fwd,
)
from quack.cute_dsl_utils import torch2cute_dtype_map
from quack.softmax import Softmax, SoftmaxBackward, softmax_bwd, softmax_fwd
from torch import Tensor

from explorer.model.gpu_spec import GpuSpec
from explorer.model.peer import PeerBuffers, PeerRefuses, ReadyPeer
from explorer.model.problem import Problem
from explorer.ops import Op
from explorer.peers.registry import check_scope
from explorer.peers.torch_softmax import TORCH_TYPES, Call, Results, TorchContender

UNCHECKED = "targets unchecked"
"""What its function reads of a target that is no class is beyond the row: ours looks first."""

VECTOR, LEAST_COPIED = 16, 4
"""Bytes of a copy to shared memory: for softmax these alone, of losses what the columns allow, of
which the GPU takes 4 at least."""


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


class _WithGradient(TorchContender):
    """Its gradients are of losses whose own gradient is 1, which is so where they are checked.

    Its function multiplies by others in a pass of its own.
    """

    def renew(self) -> None:
        """Make the gradient of each loss 1."""
        for _, _, loss_grad, *_ in self.arrays:
            loss_grad.fill_(1)


class _Backward(TorchContender):
    """It takes the log-sum-exp of each row, which its forward keeps, where we keep two numbers."""

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self._given = self.arrays
        self.arrays = [
            (x, ids[:, 0], maximum[:, 0] + log_sum[:, 0], loss_grad[:, 0])
            for x, ids, maximum, log_sum, loss_grad, _ in self._given
        ]

    def renew(self) -> None:
        """Add both numbers of each row anew."""
        for (_, _, lse, _), given in zip(self.arrays, self._given, strict=True):
            lse.copy_((given[2] + given[3])[:, 0])


def _softmax(x: Tensor, _: Tensor) -> Results:
    return softmax_fwd(x)  # type: ignore[no-any-return, unused-ignore]


def _softmax_backward(y: Tensor, dy: Tensor, _: Tensor) -> Results:
    return softmax_bwd(dy, y)  # type: ignore[no-any-return, unused-ignore]


def _negated(x: Tensor, ids: Tensor, _: Tensor, *others: Tensor) -> Results:
    """Return losses of columns, whose log-probabilities are asked for."""
    if not others:
        return cross_entropy_fwd(x, ids[:, 0])[:, None]  # type: ignore[no-any-return, unused-ignore]
    losses, lse = cross_entropy_fwd(x, ids[:, 0], return_lse=True)
    return losses[:, None], lse


def _losses(x: Tensor, ids: Tensor, _: Tensor, *others: Tensor) -> Results:
    return cross_entropy_fwd(x, ids[:, 0], return_lse=bool(others))  # type: ignore[no-any-return, unused-ignore]


def _with_gradient(also: str, x: Tensor, ids: Tensor, *_: Tensor) -> Results:
    loss, *lse, gradient = cross_entropy_fwd(x, ids[:, 0], return_lse="lse" in also, return_dx=True)
    made = {"loss": loss, "lse": lse[0] if lse else None}
    return (gradient, *(made[name] for name in also.split(",") if name))


def _loss_gradient(x: Tensor, target: Tensor, lse: Tensor, loss_grad: Tensor) -> Results:
    return cross_entropy_bwd(x, target, loss_grad, lse)  # type: ignore[no-any-return, unused-ignore]


class _Adapted(NamedTuple):
    """How an op is computed: by which kind of contender, and by which function, in which words."""

    kind: type[TorchContender]
    call: Call
    note: str = ""


ADAPTED = {
    Op.SOFTMAX: _Adapted(TorchContender, _softmax),
    Op.SOFTMAX_BACKWARD: _Adapted(TorchContender, _softmax_backward),
    Op.LOG_PROB: _Adapted(_OfLosses, _negated, "losses"),
    Op.CROSS_ENTROPY: _Adapted(TorchContender, _losses, UNCHECKED),
    Op.CROSS_ENTROPY_BACKWARD: _Adapted(_Backward, _loss_gradient, f"{UNCHECKED}, lse given"),
    Op.CROSS_ENTROPY_WITH_GRADIENT: _Adapted(
        _WithGradient, _with_gradient, f"{UNCHECKED}, gradients of 1"
    ),
}
"""By the op, its function, which returns tensors of its own."""


def prepare(problem: Problem, buffers: PeerBuffers, stream: int) -> ReadyPeer:
    """Prepare its function; of log-probabilities that of the losses."""
    _check_scope(problem)
    kind, call, note = ADAPTED[problem.op]
    if problem.op is Op.CROSS_ENTROPY_WITH_GRADIENT:
        call = partial(call, problem.also)
    contender = kind(problem, buffers, stream, call)
    contender.version = f"quack-kernels {version('quack-kernels')}"
    contender.note = note
    return contender


def ahead(problem: Problem, gpu: GpuSpec) -> None:
    """Compile the kernel that its function will find in its cache on disk."""
    _check_scope(problem)
    element = torch2cute_dtype_map[TORCH_TYPES[problem.dtype]]
    target = torch2cute_dtype_map[TORCH_TYPES[problem.ids_dtype]] if problem.ids_dtype else None
    if problem.op is Op.CROSS_ENTROPY_BACKWARD:
        CrossEntropyBackward.compile(element, target, problem.cols, None)
    elif target:
        has_lse, has_gradient = "lse" in problem.also, problem.fills_rows
        CrossEntropy.compile(element, target, None, problem.cols, has_lse, has_gradient, None, None)
    elif problem.operator.is_gradient:
        SoftmaxBackward.compile(element, element, element, problem.cols)
    else:
        Softmax.compile(element, element, problem.cols)


def _check_scope(problem: Problem) -> None:
    """Raise PeerRefuses for a problem that QuACK cannot compute."""
    check_scope("quack", problem, ops=tuple(ADAPTED), also=("loss", "lse"))
    if problem.ids_per_row > 1:
        raise PeerRefuses(f"quack takes one id of a row; here are {problem.ids_per_row}")
    itemsize, cols = problem.dtype.itemsize, problem.cols
    vector = (LEAST_COPIED if problem.ids_per_row else VECTOR) // itemsize
    if cols % vector:
        raise PeerRefuses(f"quack needs cols that {vector} divides; {cols} is not")
