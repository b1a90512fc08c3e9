"""The float64 truth, inputs that tell a right kernel from a wrong one, and the error allowed."""

from explorer.reference.check import FLUSHED_BELOW, Check, check
from explorer.reference.inputs import (
    Case,
    arithmetic_pattern_count,
    base_rows,
    normal_inputs,
    pattern_count,
    rows_that_repeat,
    verification_inputs,
    verification_problem,
    verification_rows,
    with_other_arguments,
)
from explorer.reference.layout import (
    NUMPY_DTYPES,
    as_rows,
    first_elements,
    in_memory,
    laid_out,
    misalignment,
)
from explorer.reference.patterns import LEADING_COUNT, TELLING_COUNT, patterns_for
from explorer.reference.rows import Shares
from explorer.reference.truth import Truth, counted, softmax, truth_of

__all__ = [
    "FLUSHED_BELOW",
    "LEADING_COUNT",
    "NUMPY_DTYPES",
    "TELLING_COUNT",
    "Case",
    "Check",
    "Shares",
    "Truth",
    "arithmetic_pattern_count",
    "as_rows",
    "base_rows",
    "check",
    "counted",
    "first_elements",
    "in_memory",
    "laid_out",
    "misalignment",
    "normal_inputs",
    "pattern_count",
    "patterns_for",
    "rows_that_repeat",
    "softmax",
    "truth_of",
    "verification_inputs",
    "verification_problem",
    "verification_rows",
    "with_other_arguments",
]
