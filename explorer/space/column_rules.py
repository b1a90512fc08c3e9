"""What rules out choices where rows run over a middle axis and vectors lie across them."""

from explorer.op import Op
from explorer.space.rules import Point, rule
from explorer.work_split import WARP

STATIC_SHARED_BYTES = 48 * 1024
"""The most shared memory that a kernel can declare; only what a launch asks for may be more."""


@rule(
    "vector_bytes",
    says="vectors lie along the inner axis: it is a whole number of them",
)
def inner_vectors(p: Point) -> bool:
    return not p.split.across_rows or p.split.aligned


@rule("threads", says="across rows, a block is at least a warp")
def warps_across_rows(p: Point) -> bool:
    return not p.split.across_rows or p.config.threads >= WARP


@rule(
    "threads",
    "threads_per_row",
    "reduction",
    says="across rows, shuffles combine lanes that lie 2, 4, 8 or 16 apart, or next to each other, "
    "or threads of different warps",
)
def shuffles_across_rows(p: Point) -> bool:
    if not p.split.across_rows or p.config.reduction != "shuffle":
        return p.config.reduction != "shuffle-first-warp" or not p.split.across_rows
    groups = p.config.threads // p.config.threads_per_row
    return p.config.threads_per_row == 1 or groups % WARP == 0 or WARP % max(1, groups) == 0


@rule(
    "threads",
    "threads_per_row",
    "vector_bytes",
    "reduction",
    says="what reductions across rows leave in shared memory is at most 48 KiB",
)
def scratch_across_rows(p: Point) -> bool:
    return not p.split.across_rows or p.split.scratch_bytes <= STATIC_SHARED_BYTES


@rule(
    "algorithm",
    "cache_holds",
    says="a gradient needs no maximum and exponentiates nothing that is kept: algorithm is "
    "three-pass, cache_holds input",
)
def gradient_across_rows(p: Point) -> bool:
    if not (p.split.across_rows and p.problem.op.is_backward):
        return True
    return p.config.algorithm == "three-pass" and p.config.cache_holds == "input"


@rule("cache_holds", says="a logarithm of softmax is made of the input: cache_holds is input")
def logarithm_across_rows(p: Point) -> bool:
    if not (p.split.across_rows and p.problem.op.is_log):
        return True
    return p.config.cache_holds == "input"


@rule(
    "exp",
    says="a folded exponent needs x far below 2^26 and gives no maximum: it takes softmax without "
    "a scale",
)
def folded_across_rows(p: Point) -> bool:
    if not (p.split.across_rows and p.config.exp.endswith("-folded")):
        return True
    return p.problem.scale is None and not p.problem.op.is_log


@rule("exp", says="the gradient of softmax exponentiates nothing: exp is exp2f")
def nothing_to_exponentiate_across_rows(p: Point) -> bool:
    exponentiates = p.problem.op is not Op.SOFTMAX_BACKWARD
    return exponentiates or not p.split.across_rows or p.config.exp == "exp2f"


@rule(
    "normalise",
    says="a logarithm or a gradient divides by nothing: normalise is reciprocal",
)
def nothing_to_divide_across_rows(p: Point) -> bool:
    divides = not p.problem.op.is_log and not p.problem.op.is_backward
    return divides or not p.split.across_rows or p.config.normalise == "reciprocal"
