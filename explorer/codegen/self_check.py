"""What a program that checks its kernel on an example makes that of, and which errors it allows.

A cap shows where logits come near it. But these differ by so much that some exponentials are no
normal numbers, and capped logits are rounded as numbers of the cap's size are.
"""

from explorer.model.problem import Problem
from explorer.ops.cross_entropy import CAPPED_PER_ERROR

BELOW_NORMAL = 2.0**46
"""How many normal numbers of the smallest size a lost exponential may come to, times the factors of
a gradient, in errors that are allowed."""


def reach(problem: Problem) -> float:
    """Return the size of logits that come near the cap once they are scaled; 0 without a cap."""
    return (problem.softcap or 0.0) / (abs(problem.scale or 0.0) or 1.0)


def smallest(problem: Problem) -> float:
    """Return the number to which errors of smaller results are relative."""
    normal = problem.output_dtype.smallest_normal
    is_wide = normal <= problem.dtype.arithmetic.smallest_normal
    return normal * BELOW_NORMAL if problem.softcap and is_wide else normal


def allowed(problem: Problem, error: float) -> float:
    """Return the error that is allowed where one of uncapped logits may be so large.

    Two capped numbers are subtracted, and an exponential of the logit is in the cap's derivative.
    """
    if not problem.softcap:
        return error
    rounding = 2 * problem.softcap / CAPPED_PER_ERROR + 1
    return error + problem.dtype.errors.arithmetic * rounding
