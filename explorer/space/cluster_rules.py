"""What rules out thread-block clusters, whose blocks share rows."""

from explorer.op import Mask
from explorer.space.rules import Point, rule

WIDE_ROW = 8192
"""Elements of the narrowest row whose parts are work enough for blocks of a cluster."""

LEAST_THREADS = 128
"""Threads of a block that a part of a wide row is worth."""


@rule(
    "cluster",
    says="clusters are of sm_90 and later: of 16 blocks at most on sm_90 and sm_100, of 8 "
    "elsewhere",
)
def largest_cluster(p: Point) -> bool:
    return p.config.cluster <= p.gpu.cluster_blocks


@rule(
    "cluster",
    says="rows of fewer than 8192 elements are work for one block: waiting for others costs more "
    "than they save",
)
def clusters_of_wide_rows(p: Point) -> bool:
    return p.config.cluster == 1 or p.split.across_rows or p.problem.cols >= WIDE_ROW


@rule("cluster", says="the blocks of a cluster share no masked rows, and no rows of a gradient")
def clusters_of_whole_rows(p: Point) -> bool:
    if p.config.cluster == 1 or p.split.across_rows:
        return True
    return not p.problem.op.is_backward and p.problem.mask is Mask.NONE


@rule(
    "threads",
    "threads_per_row",
    "cluster",
    says="all threads of a cluster's block work on its part of a row: threads_per_row is threads, "
    "128 at least",
)
def whole_block_of_a_cluster(p: Point) -> bool:
    if p.config.cluster == 1 or p.split.across_rows:
        return True
    return p.config.threads_per_row == p.config.threads >= LEAST_THREADS


@rule("cluster", "exchange", says="an mbarrier counts what the blocks of a cluster exchange")
def exchange_of_a_cluster(p: Point) -> bool:
    return p.config.cluster > 1 or p.config.exchange == "barrier"


@rule(
    "reduction",
    "cluster",
    says="the blocks of a cluster exchange what shuffles found: reduction is shuffle, "
    "shuffle-first-warp, shuffle-redux or shuffle-redux-first-warp",
)
def clusters_shuffle(p: Point) -> bool:
    return p.config.cluster == 1 or p.config.reduction.startswith("shuffle")


@rule(
    "cache",
    "launches",
    "persistent",
    "staging",
    "sum",
    "cluster",
    says="clusters keep no exponentials in the output, are launched once, for all rows, load "
    "directly and sum plainly",
)
def clusters_do_the_usual(p: Point) -> bool:
    if p.config.cluster == 1 or p.split.across_rows:
        return True
    return (
        p.config.cache != "output"
        and p.config.launches == "one"
        and p.config.persistent == 0
        and p.config.staging != "span"
        and p.config.sum == "plain"
    )


@rule(
    "vector_bytes",
    "staging",
    "cluster",
    says="every block of a cluster has a part of each row, wherever rows start",
)
def a_part_for_each_block(p: Point) -> bool:
    if p.config.cluster == 1 or p.split.across_rows:
        return True
    before_the_last = (p.config.cluster - 1) * p.split.row_vectors
    return before_the_last * p.split.width < p.problem.cols
