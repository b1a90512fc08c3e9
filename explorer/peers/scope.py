"""What a peer is asked: an op over contiguous rows, no more; or it refuses in a sentence."""

from collections.abc import Sequence

from explorer.dtype import DType
from explorer.op import Op
from explorer.peer import PeerRefuses
from explorer.problem import Problem

THREE = (DType.F32, DType.F16, DType.BF16)
FOUR = (*THREE, DType.F64)
FORWARD = (Op.SOFTMAX, Op.LOG_SOFTMAX)


def check_scope(
    peer: str,
    problem: Problem,
    ops: Sequence[Op] = FORWARD,
    dtypes: Sequence[DType] = THREE,
) -> None:
    """Raises PeerRefuses for another op or dtype, and for what is more than a plain op."""
    plain = Problem(problem.rows, problem.cols, problem.dtype, problem.op)
    if problem.op not in ops:
        raise PeerRefuses(f"{peer} is adapted for {' and '.join(ops)}, not for {problem.op}")
    if problem.dtype not in dtypes:
        raise PeerRefuses(f"{peer} computes in {', '.join(dtypes)}, not in {problem.dtype}")
    if problem != plain:
        raise PeerRefuses(f"{peer} is adapted for dense rows and one dtype, not for {problem}")
