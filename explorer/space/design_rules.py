"""What rules out designs: staging, copies, arrangements, clusters and split rows."""

import math

from explorer.model.config import Config
from explorer.model.gpu_spec import WARP
from explorer.model.problem import Mask, Problem
from explorer.space.rules import Point, rule

STATIC_SHARED_BYTES = 48 * 1024
"""Shared memory that a block can have without asking for more at its launch."""

MOST_STAGED = 64
"""Elements of one matrix and thread that pass through shared memory in a span, at most: each has
code of its own."""


def widest_vector(problem: Problem) -> int:
    """Bytes of the widest word, up to 16, at whose multiples all rows start."""
    return math.gcd(problem.row_bytes, problem.input_stride * problem.dtype.itemsize, 16)


def has_plain_rows(problem: Problem) -> bool:
    """Return whether each row becomes another row of its type: whole, along memory, elsewhere.

    Threads that work on several rows take the last row in place of rows past it: in place they
    would read what others have stored. They also hide nothing of a row. Exponentials cannot wait in
    an output of another type. What else would serve under a mask or in place was never tried.
    """
    of_each = problem.fills_rows and tuple(problem.operator.operands) == ("input",)
    whole = problem.inner == 1 and problem.mask is Mask.NONE
    return of_each and whole and problem.output_dtype is problem.dtype and not problem.in_place


def has_spans(problem: Problem) -> bool:
    """Whether the results of whole rows can take their place in the words that a block loads."""
    whole = problem.mask is Mask.NONE and problem.is_dense
    staged = problem.operator.allows("staging", "span") and len(problem.results) == 1
    fits = problem.output_dtype is problem.dtype or not problem.fills_rows
    return whole and problem.inner == 1 and fits and staged


def _is_usual(config: Config) -> bool:
    """Whether it makes none of the choices that are for plain rows alone."""
    return (
        config.rows_per_thread == 1
        and config.cache != "output"
        and config.launches == "one"
        and config.persistent == 0
        and config.sum == "plain"
    )


@rule(
    "rows_per_thread",
    "cache",
    "launches",
    "persistent",
    "sum",
    says="this choice is for softmax and log_softmax of whole rows along memory: no mask or second "
    "type, not in place",
)
def plain_rows_alone(p: Point) -> bool:
    return _is_usual(p.config) or has_plain_rows(p.problem)


@rule(
    "rows_per_thread",
    "cache",
    says="threads work on several rows at once only where they keep them in registers",
)
def several_rows_in_registers(p: Point) -> bool:
    return p.config.rows_per_thread == 1 or p.config.cache == "registers"


@rule(
    "rows_per_thread",
    "reduction",
    says="several rows at once are combined by shuffles of all warps",
)
def several_rows_shuffle(p: Point) -> bool:
    return p.config.rows_per_thread == 1 or p.config.reduction == "shuffle"


@rule(
    "cache",
    says="exponentials that wait in an output of 16 bits are rounded twice: it takes f32 or f64",
)
def output_holds_all_digits(p: Point) -> bool:
    return p.config.cache != "output" or p.problem.output_dtype.itemsize >= 4


@rule(
    "algorithm",
    "cache",
    "cache_holds",
    says="in the output wait the exponentials of three passes: algorithm is three-pass, "
    "cache_holds exp",
)
def output_holds_exponentials(p: Point) -> bool:
    if p.config.cache != "output":
        return True
    return p.config.algorithm == "three-pass" and p.config.cache_holds == "exp"


@rule(
    "cache", "store_hint", says="an output that is read back is not stored as if it were not: no cs"
)
def output_is_read_back(p: Point) -> bool:
    return p.config.cache != "output" or p.config.store_hint != "cs"


@rule(
    "launches",
    "cache",
    says="of several launches each reads what the last one left in global memory: cache is none",
)
def launches_keep_nothing(p: Point) -> bool:
    return p.config.launches == "one" or p.config.cache == "none"


@rule(
    "launches",
    "algorithm",
    says="three launches are three passes: algorithm is three-pass",
)
def launches_are_passes(p: Point) -> bool:
    return p.config.launches != "three" or p.config.algorithm == "three-pass"


@rule(
    "launches",
    "persistent",
    says="blocks that stride over the rows are those of one launch",
)
def one_launch_persists(p: Point) -> bool:
    return p.config.launches == "one" or p.config.persistent == 0


@rule(
    "threads",
    "persistent",
    says="blocks that stride over the rows are on their SM together: their threads fit it",
)
def persistent_blocks_fit(p: Point) -> bool:
    return p.config.threads * p.config.persistent <= p.gpu.threads_per_sm


@rule(
    "staging",
    says="a span is of whole, dense rows, whose results take their place: no mask, stride or "
    "second type",
)
def span_of_whole_rows(p: Point) -> bool:
    return p.config.staging != "span" or has_spans(p.problem)


@rule(
    "staging",
    "cache",
    says="what came by way of shared memory as a span is kept in registers: cache is registers",
)
def span_to_registers(p: Point) -> bool:
    return p.config.staging != "span" or p.config.cache == "registers"


@rule(
    "cluster",
    "staging",
    "threads_per_row",
    "rows_per_thread",
    "vector_bytes",
    says="a span is staged for short rows: of one warp's threads, at most 64 elements of a matrix "
    "a thread",
)
def span_of_short_rows(p: Point) -> bool:
    if p.config.staging != "span":
        return True
    elements = p.split.slots * p.split.width * p.config.rows_per_thread
    return p.config.threads_per_row <= WARP and elements <= MOST_STAGED


@rule(
    "cluster",
    "threads",
    "threads_per_row",
    "vector_bytes",
    "reduction",
    "rows_per_thread",
    "staging",
    "sum",
    "cache",
    "arrangement",
    says="the span of a block's rows, or both spans of a gradient, fit the 48 KiB of shared memory "
    "that every launch may have",
)
def span_fits(p: Point) -> bool:
    return p.config.staging != "span" or p.split.static_bytes <= STATIC_SHARED_BYTES


@rule(
    "sum",
    "cache",
    says="what a thread keeps in registers are few numbers: their sum needs no compensation",
)
def registers_sum_plainly(p: Point) -> bool:
    return p.config.sum == "plain" or p.config.cache != "registers"


# ------------------------------------------------------------------ arrangement


@rule(
    "arrangement",
    "threads_per_row",
    says="a row of one thread is not divided: arrangement is striped",
)
def arrangement_of_several(p: Point) -> bool:
    return p.config.arrangement == "striped" or p.config.threads_per_row > 1


@rule(
    "arrangement",
    "algorithm",
    "cache",
    "unroll",
    says="threads that do not stripe a row pass over it three times, vector by vector: algorithm "
    "is three-pass, cache none, unroll 1",
)
def arranged_three_passes(p: Point) -> bool:
    if p.config.arrangement == "striped":
        return True
    plain = p.config.algorithm == "three-pass" and p.config.unroll == 1
    return plain and p.config.cache == "none"


@rule(
    "arrangement",
    "launches",
    "persistent",
    "cluster",
    says="rows that are not striped have a block for each tile of them, in one launch and no "
    "cluster",
)
def arranged_in_one_block(p: Point) -> bool:
    if p.config.arrangement == "striped":
        return True
    return p.config.launches == "one" and p.config.persistent == 0 and p.config.cluster == 1


@rule(
    "arrangement",
    says="only unmasked rows that lie along memory are arranged otherwise, none of a gradient and "
    "none in place, where a thread could store what another has still to read",
)
def arranged_plain_rows(p: Point) -> bool:
    if p.config.arrangement == "striped":
        return True
    along = p.problem.inner == 1 and not p.problem.operator.is_gradient
    return along and p.problem.mask is Mask.NONE and not p.problem.in_place


@rule(
    "arrangement",
    "reduction",
    says="threads that each fold the whole row combine nothing: reduction is left at shuffle",
)
def replicated_combine_nothing(p: Point) -> bool:
    return p.config.arrangement != "replicated" or p.config.reduction == "shuffle"


# ------------------------------------------------------------------ asynchronous copies


LEAST_COPY_BYTES = 4
"""What a thread copies asynchronously at a time, at least (PTX ISA, "cp.async")."""


BULK_BYTES = 16
"""A bulk copy is of multiples of so many bytes, from and to multiples of them (PTX ISA,
"cp.async.bulk")."""

COPIED = ("async", "bulk")


@rule("staging", says="asynchronous copies are of sm_80 and later, bulk copies of sm_90")
def asynchronous_since(p: Point) -> bool:
    if p.config.staging == "bulk":
        return p.gpu.copies_in_bulk
    return p.config.staging != "async" or p.gpu.copies_asynchronously


@rule("staging", says="asynchronous copies are of rows without a mask, and of no gradient's")
def asynchronous_rows(p: Point) -> bool:
    if p.config.staging not in COPIED:
        return True
    problem = p.problem
    plain = problem.inner == 1 and problem.mask is Mask.NONE
    return plain and not problem.operator.is_gradient


@rule(
    "cache",
    "cache_holds",
    "staging",
    says="asynchronous copies are of the input as it is, into shared memory that keeps it: cache "
    "is shared, cache_holds input",
)
def asynchronous_to_shared(p: Point) -> bool:
    if p.config.staging not in COPIED:
        return True
    return p.config.cache == "shared" and p.config.cache_holds == "input"


@rule(
    "vector_bytes",
    "load_hint",
    "staging",
    says="asynchronous copies are of 4, 8 or 16 bytes, without a load hint",
)
def asynchronous_vectors(p: Point) -> bool:
    if p.config.staging not in COPIED:
        return True
    return p.config.vector_bytes >= LEAST_COPY_BYTES and p.config.load_hint == "default"


@rule(
    "threads",
    "threads_per_row",
    "vector_bytes",
    "cluster",
    "staging",
    says="a bulk copy brings the one row of a block, whole vectors of 16 bytes that start at such",
)
def bulk_of_whole_rows(p: Point) -> bool:
    if p.config.staging != "bulk":
        return True
    one_row = p.config.threads == p.config.threads_per_row and p.config.cluster == 1
    return one_row and p.config.vector_bytes == BULK_BYTES and p.split.aligned


@rule(
    "persistent",
    "staging",
    "stages",
    says="rows are on their way while another is worked on where blocks stride over rows that bulk "
    "copies bring",
)
def stages_of_a_ring(p: Point) -> bool:
    return p.config.stages == 1 or (p.config.staging == "bulk" and p.config.persistent > 0)


# ------------------------------------------------------------------ split rows


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


# ------------------------------------------------------------------ clusters


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


@rule("cluster", says="the blocks of a cluster share no masked rows")
def clusters_of_whole_rows(p: Point) -> bool:
    return p.config.cluster == 1 or p.split.across_rows or p.problem.mask is Mask.NONE


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
