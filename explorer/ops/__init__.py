"""The operators, a family in a file of its own, and their names."""

from enum import StrEnum

from explorer.ops import attention, cross_entropy, logsumexp, softmax
from explorer.ops.operator import Choice, Extent, Limit, Operator, Result
from explorer.system.plain_data import parse_name

__all__ = [
    "BACKWARD",
    "DEFAULT_OP",
    "FORWARD",
    "OPERATORS",
    "Choice",
    "Extent",
    "Limit",
    "Op",
    "Operator",
    "Result",
]


class Op(StrEnum):
    """The names of the operators, the usual one first."""

    SOFTMAX = "softmax"
    LOG_SOFTMAX = "log_softmax"
    SOFTMAX_BACKWARD = "softmax_backward"
    LOG_SOFTMAX_BACKWARD = "log_softmax_backward"
    LOGSUMEXP = "logsumexp"
    LOG_PROB = "log_prob"
    CROSS_ENTROPY = "cross_entropy"
    CROSS_ENTROPY_BACKWARD = "cross_entropy_backward"
    CROSS_ENTROPY_WITH_GRADIENT = "cross_entropy_with_gradient"
    MULTIPLY_ROWS = "multiply_rows"
    DECODE_ATTENTION = "decode_attention"

    @classmethod
    def parse(cls, text: str) -> "Op":
        """Read an operator's name; raises InvalidInput, which lists the known names."""
        return parse_name(cls, "op", text.lower(), text)


OPERATORS = {
    Op(operator.name): operator
    for operator in (
        softmax.SOFTMAX,
        softmax.LOG_SOFTMAX,
        softmax.SOFTMAX_BACKWARD,
        softmax.LOG_SOFTMAX_BACKWARD,
        logsumexp.LOGSUMEXP,
        logsumexp.LOG_PROB,
        cross_entropy.CROSS_ENTROPY,
        cross_entropy.CROSS_ENTROPY_BACKWARD,
        cross_entropy.CROSS_ENTROPY_WITH_GRADIENT,
        cross_entropy.MULTIPLY_ROWS,
        attention.DECODE_ATTENTION,
    )
}
"""Each operator by its name."""

DEFAULT_OP = Op.SOFTMAX
"""What is computed where nothing is said."""

FORWARD = (Op.SOFTMAX, Op.LOG_SOFTMAX)
"""Softmax and its logarithm, in the order of a flag that says whether to take the logarithm."""

BACKWARD = (Op.SOFTMAX_BACKWARD, Op.LOG_SOFTMAX_BACKWARD)
"""Their gradients, in the same order."""
