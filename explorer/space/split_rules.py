"""What rules out two launches, between which blocks leave each other what their parts came to."""

from explorer.space.cluster_rules import LEAST_THREADS, WIDE_ROW
from explorer.space.rules import Point, rule


@rule(
    "launches",
    says="rows of fewer than 8192 elements are work for one block: two launches cost more than "
    "several blocks save",
)
def two_launches_of_wide_rows(p: Point) -> bool:
    return not p.config.splits_launches or p.problem.cols >= WIDE_ROW


@rule("launches", says="launches overlap on sm_90 and later")
def launches_overlap(p: Point) -> bool:
    return p.config.launches != "two-overlapped" or p.gpu.overlaps_launches


@rule(
    "algorithm",
    "reduction",
    "launches",
    "static_cols",
    "sum",
    says="parts of rows in two launches are of static cols, their pairs found by online-block-max, "
    "by shuffle or shuffle-redux, and summed plainly",
)
def two_launches_exchange_pairs(p: Point) -> bool:
    if not p.config.splits_launches:
        return True
    return (
        p.config.algorithm == "online-block-max"
        and p.config.reduction in ("shuffle", "shuffle-redux")
        and p.config.static_cols
        and p.config.sum == "plain"
    )


@rule(
    "threads",
    "threads_per_row",
    "launches",
    says="all threads of a block work on its part of a row: threads_per_row is threads, 128 at "
    "least, where launches are two",
)
def whole_block_of_a_part(p: Point) -> bool:
    if not p.config.splits_launches:
        return True
    return p.config.threads_per_row == p.config.threads >= LEAST_THREADS


@rule(
    "threads",
    "vector_bytes",
    "unroll",
    "launches",
    "staging",
    "cluster",
    says="two launches are for rows of two parts at least, of threads * unroll vectors each",
)
def a_row_of_parts(p: Point) -> bool:
    return not p.config.splits_launches or p.split.parts > 1
