"""What a thread folds of a row: every so manieth vector, vectors side by side, or all of them."""

from dataclasses import replace

import pytest
from covering import covering
from verified import find_out, some, verify

from explorer.model.config import Config
from explorer.model.element import DType
from explorer.model.gpu_spec import known_gpu
from explorer.model.problem import Mask, Problem
from explorer.ops import Op
from explorer.space import Space

H200 = known_gpu("NVIDIA H200")

BLOCKED = Config(
    threads=64, threads_per_row=64, cache="none", cache_holds="input", arrangement="blocked"
)
REPLICATED = replace(BLOCKED, arrangement="replicated")


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    ("arrangement", "rows", "cols", "dtype"),
    [
        ("blocked", 40, 130, DType.F32),
        ("blocked", 9, 131, DType.BF16),
        ("blocked", 5, 97, DType.F64),
        ("replicated", 9, 131, DType.F32),
        ("replicated", 40, 130, DType.F16),
    ],
)
def test_every_choice(emulator, arrangement, rows, cols, dtype):
    """Both arrangements are of published kernels alone: a search proposes neither."""
    problem = Problem(rows, cols, dtype)
    fixed = {"arrangement": (arrangement,), "threads": (32, 64)}
    if arrangement == "replicated":  # each thread folds the whole row: 64 of them take minutes
        fixed |= {"threads": (32,), "threads_per_row": (2, 8), "static_cols": (True,)}
    for config in some(covering(Space(problem, H200, fixed)), dtype):
        verify(emulator, problem, config)


@pytest.mark.sampled(5)
@pytest.mark.parametrize("config", [BLOCKED, REPLICATED], ids=lambda c: c.arrangement)
@pytest.mark.parametrize(
    "changes",
    [
        {"op": Op.LOG_SOFTMAX, "scale": -0.5},
        {"dtype": DType.BF16, "out_dtype": DType.F32, "input_stride": 1016},
        {"dtype": DType.F16},
    ],
)
def test_rows_of_every_kind(emulator, config, changes):
    verify(emulator, Problem(5, 1003, **changes), config)


def test_what_excludes_them():
    def broken(problem, config):
        rule = Space(problem, H200).broken_rule(config)
        return rule.name if rule else None

    plain = Problem(8, 4096)
    for config in (BLOCKED, REPLICATED):
        assert broken(plain, config) is None
        assert broken(plain, replace(config, threads_per_row=1)) == "arrangement-of-several"
        assert broken(plain, replace(config, cache="shared")) == "arranged-three-passes"
        assert broken(plain, replace(config, unroll=2)) == "arranged-three-passes"
        assert broken(plain, replace(config, persistent=2)) == "arranged-in-one-block"
        assert broken(Problem(8, 4096, mask=Mask.CAUSAL), config) == "arranged-plain-rows"
        assert broken(Problem(8, 4096, in_place=True), config) == "arranged-plain-rows"
    assert broken(plain, replace(BLOCKED, reduction="shared-tree")) is None
    tree = replace(REPLICATED, reduction="shared-tree")
    assert broken(plain, tree) == "replicated-combine-nothing"


PASS_1 = "  for (int first = 0; first < vectors; ++first) {\n    Vector loaded[kUnroll];\n"
MAXIMUM = "  float maximum = -infinity();\n"
SUM = "  float sum = 0.0f;\n"

DEFECTS = {
    "a share ends before its last vector": (
        BLOCKED,
        [("min(begin + share, vectors)", "min(begin + share - 1, vectors)")],
    ),
    "shares overlap": (
        BLOCKED,
        [("min(begin + share, vectors)", "min(begin + share + 1, vectors)")],
    ),
    "the maximum is of one vector": (
        REPLICATED,
        [(MAXIMUM + PASS_1, MAXIMUM + PASS_1.replace("vectors;", "1;"))],
    ),
    "the first term is left out": (
        REPLICATED,
        [(SUM + PASS_1, SUM + PASS_1.replace("first = 0", "first = 1"))],
    ),
}


@pytest.mark.sampled(4)
@pytest.mark.parametrize("defect", DEFECTS)
def test_defects_are_found_out(emulator, defect):
    config, edits = DEFECTS[defect]
    find_out(emulator, Problem(7, 1003), config, edits)
