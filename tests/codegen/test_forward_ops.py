"""What a kernel takes and says beyond a plain softmax: its problem's, and nothing else."""

import pytest

from explorer.codegen.units import emit
from explorer.model.config import Config
from explorer.model.element import DType
from explorer.model.problem import Mask, Problem
from explorer.ops import Op

CONFIG = Config(cache_holds="input")

ARGUMENTS = {
    (): ("input", "output"),
    ("scale",): ("input", "output", "scale"),
    (Mask.CAUSAL,): ("input", "output", "mask_rows"),
    (Mask.LENGTHS,): ("input", "lengths", "output"),
    (Mask.ADDITIVE, "scale"): ("input", "mask", "output", "mask_rows", "scale"),
}


@pytest.mark.parametrize("kind", ARGUMENTS)
def test_a_kernel_takes_what_its_problem_needs(kind):
    mask = next((k for k in kind if isinstance(k, Mask)), Mask.NONE)
    problem = Problem(64, 4096, mask=mask, scale=0.5 if "scale" in kind else None)
    variant = emit(problem, CONFIG)
    assert variant.launches[0].arguments == ARGUMENTS[kind]
    assert ("visible" in variant.code) == (mask in (Mask.CAUSAL, Mask.LENGTHS))
    counts = mask is Mask.ADDITIVE or problem.scale is not None
    assert ("to_counted" in variant.code) == counts


def test_the_value_of_a_scale_is_not_in_the_code():
    problems = [Problem(64, 4096, scale=scale) for scale in (0.125, 3.0)]
    one, other = (emit(problem, CONFIG, main=True) for problem in problems)
    assert one.digest == other.digest
    assert "const float scale = 0.125f;" in one.source


def test_rows_of_a_mask_are_not_in_the_code():
    problems = [Problem(64, 4096, mask=Mask.CAUSAL, mask_rows=rows) for rows in (64, 16)]
    one, other = (emit(problem, CONFIG, main=True) for problem in problems)
    assert one.code == other.code
    assert "mask_rows = rows;" in one.source
    assert "mask_rows = 16;" in other.source


def test_log_softmax_takes_one_logarithm_a_row():
    code = emit(Problem(64, 4096, op=Op.LOG_SOFTMAX), CONFIG).code
    assert code.count("logf(") == 1
    assert "const float log_sum = logf(" in code


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"op": Op.LOG_SOFTMAX}, "// Log-softmax over the rows"),
        ({"scale": 2.0}, "// An element x counts as scale * x, rounded"),
        ({"mask": Mask.CAUSAL}, "// Causal: row r sees the columns before r % mask_rows + 1"),
        ({"mask": Mask.LENGTHS}, "// Row r is its first lengths[r] elements."),
        ({"mask": Mask.ADDITIVE}, "// An element x counts as x + mask."),
        ({"mask": Mask.ADDITIVE, "scale": 2.0}, "// An element x counts as scale * x + mask"),
    ],
)
def test_the_header_says_what_is_computed(fields, said):
    source = emit(Problem(64, 4096, DType.BF16, **fields), CONFIG).source
    assert said in source.split("#ifndef")[0]
