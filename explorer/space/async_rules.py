"""What rules out asynchronous and bulk copies of rows into shared memory."""

from explorer.op import Mask
from explorer.space.rules import Point, rule

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
    return plain and not problem.op.is_backward


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
