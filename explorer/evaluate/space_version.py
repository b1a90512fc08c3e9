"""Digests of the templates and of the space: whether two measurements speak of the same kernels."""

import hashlib
from functools import cache

from explorer.codegen.units import template_digest
from explorer.model.config import REFUTED, REFUTED_OF_ATTENTION
from explorer.model.element import DType
from explorer.model.outcome import Environment
from explorer.model.problem import Mask, Problem
from explorer.ops import OPERATORS
from explorer.space import ATTENTION_RULES, RULES, parameters

SAME_CODE = {
    "dfdca01dd039": ("40eea7c8412b", "e839c20ae339", "550279875e27", "5e1aa3a4f101", "dfdca01dd039")
}
"""By the digest of today's templates, those of the first ones that emit the same kernels.

They stand in the order of `code_change`. What was measured with them is of today's kernels. An edit
may only be put here where the machine code of emitted kernels was compared; a test does that with
kernels of the recordings. The templates of today say the same in other words, and have a wait
besides, which none but overlapped launches take, gradients whose rows are shared by a cluster,
gradients whose rows are staged as spans, the losses of class indices with their gradients, and
keys of attention that are staged.
"""

GROWN = {"fedcb788": ("d2aa9526", "7130a09f", "24191b83", "e0ccbefc", "fedcb788")}
"""The same by the digest of today's space: those of spaces all configs of which it has.

What was measured in the earlier ones holds in today's, whose parameters have the same values and
more of min_blocks: rules were relaxed besides. Since then clusters share rows of gradients, spans
bring them, too, the operators of cross-entropy have rules of their own, keys are staged, and rows
that are scaled, not dense or for a logarithm have what was for others of softmax alone.
"""


def code_change(problem: Problem) -> int:
    """Return the number of the last change that gave the problem other code; 0 where none did.

    The first is of gradients of 16-bit rows that are not aligned to an access: a row's first and
    last vector are loaded at once, with what they hold of its neighbours, not by single elements.
    The second is of gradients of log_softmax along memory: where a block has several rows of 2 to
    32 threads, both matrices are loaded before the rows are summed. The third is of what stores a
    few numbers a row: shifts mask the ends of 16-bit rows, and bf16 becomes f32 by its bits. The
    fourth is of attention to sequences of some lengths: parts without keys end at once.
    """
    if problem.attends and problem.mask is Mask.LENGTHS:
        return 4
    if not problem.fills_rows:
        return 3
    if not problem.operator.is_gradient or problem.inner > 1:
        return 0
    if problem.operator.is_log:
        return 2
    return 1 if problem.dtype.is_half and problem.row_bytes % 16 > 0 else 0


def template_version(problem: Problem) -> str:
    """Return the digest of the templates, or of the first ones that emit the problem's code."""
    digest = template_digest()
    return SAME_CODE[digest][code_change(problem)] if digest in SAME_CODE else digest


def space_version(problem: Problem) -> str:
    """Return the digest of the space, or of an earlier one whose results hold for the problem."""
    digest = space_digest()
    return GROWN[digest][code_change(problem)] if digest in GROWN else digest


def is_of_today(made: Environment, problem: Problem) -> bool:
    """Whether what was measured of a problem is of the kernels and the space of this version."""
    of_today = space_version(problem), template_version(problem)
    return (made.space_version, made.template_digest) == of_today


@cache
def space_digest() -> str:
    """Eight hexadecimal digits over parameters, their values, the rules and the templates."""
    kinds = {operator.over: operator for operator in OPERATORS.values()}.values()
    lines = [f"{dtype} {parameters(dtype, one)}" for one in kinds for dtype in DType]
    lines.append(f"not searched: {REFUTED} {REFUTED_OF_ATTENTION}")
    lines += [f"{rule.name}: {rule.sentence}" for rule in (*RULES, *ATTENTION_RULES)]
    lines.append(template_digest())
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()[:8]
