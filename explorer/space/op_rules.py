"""What rules out kernels of an op, a mask, a layout or a middle axis."""

from explorer.model.config import COHERENT_HINTS
from explorer.model.gpu_spec import WARP
from explorer.model.problem import Mask
from explorer.ops import OPERATORS, Choice, Operator
from explorer.space.design_rules import STATIC_SHARED_BYTES
from explorer.space.rules import RULES, Point, Rule, rule


@rule("exp", says="a scale can make elements larger than a folded multiply-add is safe for")
def folded_scale(p: Point) -> bool:
    return not p.config.exp.endswith("-folded") or p.problem.scale is None


def _rule_of(operator: Operator, parameter: str, choice: Choice) -> Rule:
    """Return the rule that a parameter has a value that makes sense for an operator."""

    def holds(p: Point) -> bool:
        value = getattr(p.config, parameter)
        return p.problem.operator is not operator or operator.allows(parameter, value)

    name = f"{operator}-{parameter}".replace("_", "-")
    return Rule(name, (parameter,), choice.says, holds)


RULES.extend(
    _rule_of(operator, parameter, choice)
    for operator in OPERATORS.values()
    for parameter, choice in operator.takes.items()
)


@rule(
    "row_order",
    says="only of rows under a causal mask do the last take longer: row_order is ascending",
)
def last_rows_take_longest(p: Point) -> bool:
    return p.config.row_order == "ascending" or p.problem.mask is Mask.CAUSAL


@rule(
    "load_hint",
    says="in place the input is written: loads cannot take the read-only path, as nc and "
    "no-allocate do",
)
def read_only_in_place(p: Point) -> bool:
    # Nothing else can go wrong in place. A thread reads only vectors that it alone writes, and
    # writes each after its last read of it; parts of vectors at a row's ends are read and written
    # element by element; and threads past the last row, which otherwise work on it too, read none.
    return not p.problem.in_place or p.config.load_hint in COHERENT_HINTS


# ------------------------------------------------------------------ rows over a middle axis


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
