"""The truth, inputs that can tell right from wrong, and how far off is wrong."""

from explorer.reference.check import (
    FLUSHED,
    Check,
    check,
)
from explorer.reference.inputs import (
    base_rows,
    normal_input,
    normal_inputs,
    rows_that_repeat,
    verification_input,
    verification_inputs,
    verification_problem,
    verification_rows,
)
from explorer.reference.layout import as_rows, in_memory, laid_out
from explorer.reference.number_types import NUMPY_DTYPES, SMALLEST_NORMAL
from explorer.reference.patterns import PATTERN_COUNT, TELLING_COUNT, pattern_name
from explorer.reference.truth import Truth, counted, softmax, truth_of

__all__ = [
    "FLUSHED",
    "NUMPY_DTYPES",
    "PATTERN_COUNT",
    "SMALLEST_NORMAL",
    "TELLING_COUNT",
    "Check",
    "Truth",
    "as_rows",
    "base_rows",
    "check",
    "counted",
    "in_memory",
    "laid_out",
    "normal_input",
    "normal_inputs",
    "pattern_name",
    "rows_that_repeat",
    "softmax",
    "truth_of",
    "verification_input",
    "verification_inputs",
    "verification_problem",
    "verification_rows",
]
