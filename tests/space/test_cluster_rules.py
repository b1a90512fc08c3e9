"""Thread-block clusters: for what problems and choices they are, on what GPUs."""

from dataclasses import replace

import pytest

from explorer.model.config import Config
from explorer.model.element import DType
from explorer.model.gpu_spec import known_gpu_for
from explorer.model.problem import Mask, Problem
from explorer.model.work_split import WorkSplit
from explorer.ops import Op
from explorer.space import Space

WIDE = Problem(4, 131072)
GRADIENT = Problem(4, 131072, op=Op.SOFTMAX_BACKWARD)
OF_GRADIENTS = {"exp": "exp2f", "unroll": 4}
SHARED = Config(cluster=8, cache="shared", threads=512, threads_per_row=512)


def broken(problem, config, arch="sm_90"):
    rule = Space(problem, known_gpu_for(arch)).broken_rule(config)
    return rule.name if rule else None


@pytest.mark.parametrize(
    ("arch", "largest"),
    [("sm_75", 1), ("sm_80", 1), ("sm_89", 1), ("sm_90", 16), ("sm_100", 16), ("sm_120", 8)],
)
def test_each_gpu_has_clusters_up_to_its_own_size(arch, largest):
    for blocks in (2, 4, 8, 16):
        config = Config(algorithm="online", cache="none", cache_holds="input", cluster=blocks)
        expected = None if blocks <= largest else "largest-cluster"
        assert broken(Problem(4, 32768), config, arch) == expected
        assert broken(Problem(96, 9000, inner=48), config, arch) == expected


@pytest.mark.parametrize(
    ("problem", "choices", "rule"),
    [
        (Problem(4, 8191), {}, "clusters-of-wide-rows"),
        (Problem(4, 131072, mask=Mask.LENGTHS), {}, "clusters-of-whole-rows"),
        (Problem(4, 131072, mask=Mask.CAUSAL), {}, "clusters-of-whole-rows"),
        (GRADIENT, {**OF_GRADIENTS, "cluster": 4}, "shared-fits"),
        (GRADIENT, {**OF_GRADIENTS, "staging": "async"}, "asynchronous-rows"),
        (GRADIENT, OF_GRADIENTS, None),
        (WIDE, {"threads": 512, "threads_per_row": 256}, "whole-block-of-a-cluster"),
        (WIDE, {"reduction": "shared-tree"}, "clusters-shuffle"),
        (WIDE, {"sum": "compensated"}, "clusters-do-the-usual"),
        (WIDE, {"persistent": 1}, "clusters-do-the-usual"),
        (WIDE, {"cluster": 2}, "shared-fits"),
        (
            Problem(4, 8200, DType.BF16),
            {"cluster": 16, "threads": 128, "threads_per_row": 128},
            "a-part-for-each-block",
        ),
    ],
)
def test_what_excludes_clusters(problem, choices, rule):
    holds = "input" if problem.operator.is_gradient else "exp"
    assert broken(problem, replace(SHARED, cache_holds=holds, **choices)) == rule
    assert broken(WIDE, SHARED) is None


@pytest.mark.parametrize("cols", [8192, 8193, 50257, 151936, 1048575])
@pytest.mark.parametrize("dtype", list(DType))
@pytest.mark.parametrize("cluster", [2, 4, 8, 16])
def test_parts_cover_the_row_in_whole_lines(cols, dtype, cluster):
    """Every vector is some block's, and no two blocks touch a line but where rows start within."""
    whole = WorkSplit(Problem(4, cols, dtype), Config())
    parts = WorkSplit(Problem(4, cols, dtype), Config(cluster=cluster))
    assert parts.row_vectors * cluster >= whole.row_vectors
    assert parts.row_vectors * 16 % 128 == 0
    assert (parts.row_vectors - 128 // 16) * cluster < whole.row_vectors
