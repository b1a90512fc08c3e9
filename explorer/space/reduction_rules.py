"""What rules out ways in which the threads of a row combine what they found."""

from explorer.dtype import DType
from explorer.space.rules import Point, rule
from explorer.work_split import WARP


@rule("threads_per_row", "reduction", says="a row of one thread has nothing to reduce: use shuffle")
def lone_thread(p: Point) -> bool:
    return p.config.threads_per_row > 1 or p.config.reduction == "shuffle"


@rule(
    "threads_per_row",
    "reduction",
    says="a row of one warp or less leaves its first warp nothing to fold: use shuffle",
)
def warps_to_fold(p: Point) -> bool:
    return p.config.threads_per_row > WARP or not p.config.first_warp_folds


@rule("reduction", says="redux.sync is of sm_80 and later")
def redux_exists(p: Point) -> bool:
    return p.gpu.reduces_warps or not p.config.uses_redux


@rule(
    "threads_per_row",
    "reduction",
    says="redux.sync finds fp32 maxima of whole warps, along rows: others shuffle",
)
def redux_of_warps(p: Point) -> bool:
    if not p.config.uses_redux:
        return True
    single = p.problem.dtype is not DType.F64
    maxima = not p.problem.op.is_backward and not p.split.across_rows
    return single and maxima and p.config.threads_per_row % WARP == 0
