"""What rules out choices where rows run over a middle axis and vectors lie across them."""

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
    if not p.split.across_rows:
        return True
    if p.config.reduction != "shuffle":
        return not p.config.first_warp_folds
    groups = p.config.threads // p.config.threads_per_row
    return p.config.threads_per_row == 1 or groups % WARP == 0 or WARP % max(1, groups) == 0


@rule(
    "threads",
    "threads_per_row",
    "vector_bytes",
    "reduction",
    "cluster",
    "cache",
    says="what reductions across rows leave in shared memory is at most 48 KiB",
)
def scratch_across_rows(p: Point) -> bool:
    return not p.split.across_rows or p.split.scratch_bytes <= STATIC_SHARED_BYTES
