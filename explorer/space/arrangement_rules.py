"""What rules out arrangements of a row other than stripes: those of some published kernels."""

from explorer.op import Mask
from explorer.space.rules import Point, rule


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
    along = p.problem.inner == 1 and not p.problem.op.is_backward
    return along and p.problem.mask is Mask.NONE and not p.problem.in_place


@rule(
    "arrangement",
    "reduction",
    says="threads that each fold the whole row combine nothing: reduction is left at shuffle",
)
def replicated_combine_nothing(p: Point) -> bool:
    return p.config.arrangement != "replicated" or p.config.reduction == "shuffle"
