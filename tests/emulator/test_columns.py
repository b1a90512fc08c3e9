"""Rows that run over a middle axis: each op, dtype and way to work verified by emulation."""

import pytest
from verified import find_out, verify

from explorer.model.config import Config
from explorer.model.element import DType
from explorer.model.gpu_spec import known_gpu
from explorer.model.problem import Problem
from explorer.ops import OPERATORS, Op
from explorer.space import Space
from explorer.space.space import sampled

H200 = known_gpu("NVIDIA H200")

FEW = {"threads": (32, 64, 96, 128, 256), "threads_per_row": (1, 2, 4, 16, 32, 96, 128)}
"""Blocks that an emulator steps through quickly, of all kinds: lanes, warps and both."""


@pytest.mark.exhaustive
@pytest.mark.parametrize("op", [op for op in Op if "ids" not in OPERATORS[op].operands])
@pytest.mark.parametrize("dtype", list(DType))
def test_each_op_of_each_dtype(emulator, op, dtype):
    problem = Problem(96, 61, dtype, op, inner=48)
    (config,) = sampled(Space(problem, H200, FEW), 1, seed=len(op))
    verify(emulator, problem, config)


@pytest.mark.sampled(10)
@pytest.mark.parametrize(
    "choices",
    [
        {},
        {"cache_holds": "input"},
        {"threads": 1024, "threads_per_row": 512},
        {"threads": 128, "threads_per_row": 4, "vector_bytes": 4},
        {"threads": 96, "threads_per_row": 32, "reduction": "shared-tree"},
        {"threads": 64, "threads_per_row": 16, "reduction": "shared-serial"},
        {"threads": 64, "threads_per_row": 1, "vector_bytes": 4},
        {"cache": "shared"},
        {"cache": "shared", "cache_holds": "input", "unroll": 2, "static_cols": False},
        {"cache": "none", "cache_holds": "input", "static_cols": False},
        {"algorithm": "online-block-max", "threads": 64, "threads_per_row": 16},
        {"algorithm": "online-block-max", "cache_holds": "input"},
        {"algorithm": "online-branchy", "cache_holds": "input", "threads_per_row": 64},
        {"algorithm": "online", "cache": "none", "cache_holds": "input", "unroll": 2},
        {"algorithm": "online-block-max", "cache": "shared", "cache_holds": "input", "unroll": 2},
    ],
)
def test_each_way_to_work(emulator, choices):
    cols = 61 if choices.get("threads_per_row") == 1 else 509
    verify(emulator, Problem(72, cols, inner=36), Config(**choices))


@pytest.mark.sampled(10)
@pytest.mark.parametrize(
    "changes",
    [
        {"scale": -0.5},
        {"scale": 0.0, "op": Op.LOG_SOFTMAX},
        {"scale": 3.0, "op": Op.SOFTMAX_BACKWARD},
        {"in_place": True},
        {"dtype": DType.BF16, "out_dtype": DType.F32},
        {"dtype": DType.F32, "out_dtype": DType.F16},
    ],
)
@pytest.mark.parametrize("cache", ["registers", "none"])
def test_problems_of_all_kinds(emulator, changes, cache):
    problem = Problem(96, 61, inner=48, **changes)
    verify(emulator, problem, Config(threads_per_row=64, cache=cache, cache_holds="input"))


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    ("changes", "choices"),
    [
        ({"dtype": DType.F16}, {"threads_per_row": 4, "cluster": 2}),  # fewer threads than rows
        ({}, {"threads": 128, "threads_per_row": 32, "cluster": 4}),
        (
            {"op": Op.LOG_SOFTMAX, "dtype": DType.BF16},
            {"algorithm": "online", "cache": "none", "static_cols": False, "cluster": 8},
        ),
        ({}, {"algorithm": "online-block-max", "cache": "shared", "cluster": 2}),
        ({}, {"threads": 256, "threads_per_row": 16, "cluster": 16}),
        (
            {"op": Op.SOFTMAX_BACKWARD, "dtype": DType.F64},
            {"cache": "shared", "static_cols": False, "cluster": 4},
        ),
        (
            {},
            {"threads": 128, "threads_per_row": 8, "cluster": 16},
        ),  # fewer threads a row than blocks
        ({}, {"threads_per_row": 1, "vector_bytes": 4, "cluster": 8}),
        ({"in_place": True}, {"algorithm": "online-block-max", "cluster": 8}),
    ],
)
def test_clusters_share_rows(emulator, changes, choices):
    usual = {"threads": 64, "threads_per_row": 16, "cache_holds": "input", **choices}
    problem = Problem(96, 301, inner=48, **changes)
    exchange = ("barrier", "mbarrier")[choices["cluster"].bit_length() % 2]  # by turns
    verify(emulator, problem, Config(**usual, exchange=exchange))


def test_a_cluster_that_does_not_wait_is_found_out(emulator):
    """Blocks write to each other's shared memory: each must have begun, and all have written."""
    config = Config(threads=64, threads_per_row=16, cluster=4)
    barrier = "  arrive_at_cluster();\n  wait_for_cluster();\n"
    find_out(emulator, Problem(96, 61, inner=48), config, [(barrier, "")])


@pytest.mark.parametrize(("dtype", "inner"), [(DType.F32, 7), (DType.BF16, 7), (DType.F16, 2)])
def test_an_inner_axis_that_ends_within_a_vector_takes_narrower_ones(emulator, dtype, inner):
    problem = Problem(5 * inner, 61, dtype, inner=inner)
    widest = Config(threads=64, threads_per_row=16)
    assert Space(problem, H200).broken_rule(widest).name == "inner-vectors"
    fitting = max(b for b in (2, 4, 8) if b >= dtype.itemsize and inner * dtype.itemsize % b == 0)
    verify(emulator, problem, Config(threads=64, threads_per_row=16, vector_bytes=fitting))
