"""What rules out asynchronous copies of rows into shared memory."""

from explorer.op import Mask
from explorer.space.rules import Point, rule

LEAST_COPY_BYTES = 4
"""What a thread copies asynchronously at a time, at least (PTX ISA, "cp.async")."""


@rule("staging", says="asynchronous copies are of sm_80 and later")
def asynchronous_since(p: Point) -> bool:
    return p.config.staging != "async" or p.gpu.copies_asynchronously


@rule("staging", says="asynchronous copies are of rows without a mask, and of no gradient's")
def asynchronous_rows(p: Point) -> bool:
    if p.config.staging != "async":
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
    if p.config.staging != "async":
        return True
    return p.config.cache == "shared" and p.config.cache_holds == "input"


@rule(
    "vector_bytes",
    "load_hint",
    "staging",
    says="asynchronous copies are of 4, 8 or 16 bytes, without a load hint",
)
def asynchronous_vectors(p: Point) -> bool:
    if p.config.staging != "async":
        return True
    return p.config.vector_bytes >= LEAST_COPY_BYTES and p.config.load_hint == "default"
