"""What rules out the choices that some published designs make, beyond the rules of all kernels."""

from explorer.config import Config
from explorer.op import Mask, Op
from explorer.problem import Problem
from explorer.space.rules import Point, rule
from explorer.work_split import WARP

STATIC_SHARED_BYTES = 48 * 1024
"""Shared memory that a block can have without asking for more at its launch."""

MOST_STAGED = 64
"""Elements of a thread that pass through shared memory in a span: each has code of its own."""


def is_plain(problem: Problem) -> bool:
    """Whether it is a softmax of whole, unscaled rows, dense and of one type."""
    return (
        problem.op is Op.SOFTMAX
        and problem.scale is None
        and problem.mask is Mask.NONE
        and problem.inner == 1
        and problem.is_dense
        and problem.output_dtype is problem.dtype
        and not problem.in_place
    )


def has_spans(problem: Problem) -> bool:
    """Whether the results of whole rows can take their place in the words that a block loads."""
    whole = problem.mask is Mask.NONE and problem.is_dense and not problem.op.is_backward
    return whole and problem.inner == 1 and problem.output_dtype is problem.dtype


def _is_usual(config: Config) -> bool:
    """Whether it makes none of the choices that are for plain problems alone."""
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
    says="this choice is for a plain softmax alone: no scale, mask, stride or second type, not in "
    "place",
)
def plain_softmax_alone(p: Point) -> bool:
    return _is_usual(p.config) or is_plain(p.problem)


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
    says="a span is of one matrix of whole, dense rows, whose results take its place: no mask, "
    "stride, second type or gradient",
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
    says="a span is staged for short rows: of one warp's threads, at most 64 elements a thread",
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
    says="the span of a block's rows fits the 48 KiB of shared memory that every launch may have",
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
