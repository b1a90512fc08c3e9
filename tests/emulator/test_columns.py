"""Rows that run over a middle axis: each op, dtype and way to work verified by emulation."""

import pytest
from verified import find_out, verify

from explorer.model.config import Config
from explorer.model.element import DType, IndexType
from explorer.model.gpu_spec import known_gpu
from explorer.model.problem import Problem
from explorer.ops import OPERATORS, Op
from explorer.space import Space
from explorer.space.space import sampled

H200 = known_gpu("NVIDIA H200")

FEW = {"threads": (32, 64, 96, 128, 256), "threads_per_row": (1, 2, 4, 16, 32, 96, 128)}
"""Blocks that an emulator steps through quickly, of all kinds: lanes, warps and both."""


ALONG_MEMORY = (Op.LOG_PROB, Op.MULTIPLY_ROWS, Op.DECODE_ATTENTION)
"""The operators whose rows are contiguous."""

LOSSES = [op for op in Op if "ignore_index" in OPERATORS[op].options]
"""The operators whose rows have targets."""


@pytest.mark.exhaustive
@pytest.mark.parametrize("op", [op for op in Op if op not in ALONG_MEMORY])
def test_each_op(emulator, op):
    """Types by turns: what a type changes is the same for every operator."""
    dtype = [*DType][[*Op].index(op) % len(DType)]
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


# ------------------------------------------------------------------ targets


def of_losses(problem, **choices):
    """A config that makes sense for losses, or for their gradient alone."""
    reduces = problem.operator.reduces
    usual = {"algorithm": "online-block-max"} if reduces else {"cache": "none"}
    tile = {"threads": 64, "threads_per_row": 16, "cache_holds": "input"}
    return Config(**{**tile, **choices, **usual} if not reduces else {**tile, **usual, **choices})


@pytest.mark.sampled(6)
@pytest.mark.parametrize("op", LOSSES)
@pytest.mark.parametrize(
    ("dtype", "inner", "vector_bytes"),
    [
        (DType.F32, 48, 16),
        (DType.F32, 7, 4),
        (DType.F64, 6, 16),
        (DType.BF16, 48, 16),
        (DType.BF16, 7, 2),
        (DType.F16, 10, 4),
    ],
)
def test_losses_of_each_width_of_an_access(emulator, op, dtype, inner, vector_bytes):
    ids = list(IndexType)[inner % 2]
    problem = Problem(5 * inner, 61, dtype, op, inner=inner, ids_dtype=ids, ignore_index=3)
    verify(emulator, problem, of_losses(problem, vector_bytes=vector_bytes, exp="expf"))


WAYS = (
    {"cache": "none", "static_cols": False, "unroll": 2},
    {"threads_per_row": 1, "vector_bytes": 4},
    {"threads_per_row": 64},
    {"threads": 96, "threads_per_row": 32, "reduction": "shared-tree"},
    {"reduction": "shared-serial"},
    {"cluster": 4, "exchange": "barrier"},
    {"cluster": 2, "exchange": "mbarrier", "cache": "none", "static_cols": False},
)
"""Ways to work, of which each kind of loss meets three, and each way three or four kinds."""

KINDS_OF_LOSS = (
    {"op": Op.CROSS_ENTROPY, "also": "lse,maximum,log_sum", "scale": -0.7},
    {"op": Op.CROSS_ENTROPY, "dtype": DType.F16},
    {"op": Op.CROSS_ENTROPY, "dtype": DType.F16, "also": "mean_gap"},
    {"op": Op.CROSS_ENTROPY, "dtype": DType.F16, "softcap": 5.0, "scale": 0.5},
    {"op": Op.CROSS_ENTROPY_WITH_GRADIENT, "in_place": True, "also": "loss", "softcap": 30.0},
    {"op": Op.CROSS_ENTROPY_WITH_GRADIENT, "also": "loss,mean_gap", "label_smoothing": 0.1},
    {"op": Op.CROSS_ENTROPY_WITH_GRADIENT, "in_place": True, "also": "loss", "z_loss": 0.01},
    {"op": Op.CROSS_ENTROPY_WITH_GRADIENT, "dtype": DType.BF16, "label_smoothing": 0.1},
)


@pytest.mark.sampled(12)
@pytest.mark.parametrize(
    ("kind", "way"),
    [
        (kind, (kind + 2 * step) % len(WAYS))
        for kind in range(len(KINDS_OF_LOSS))
        for step in range(3)
    ],
)
def test_losses_by_each_way_to_work(emulator, kind, way):
    problem = Problem(96, 61, inner=48, **KINDS_OF_LOSS[kind])
    verify(emulator, problem, of_losses(problem, **WAYS[way]))


@pytest.mark.sampled(4)
@pytest.mark.parametrize(
    "options", [{}, {"label_smoothing": 0.2, "scale": 0.5}, {"z_loss": 0.1, "softcap": 5.0}]
)
@pytest.mark.parametrize(
    "choices", [{}, {"unroll": 4, "static_cols": False}, {"threads_per_row": 1}, {"cluster": 4}]
)
def test_gradients_of_losses_in_place(emulator, choices, options):
    op = Op.CROSS_ENTROPY_BACKWARD
    problem = Problem(96, 61, op=op, inner=48, in_place=True, **options)
    verify(emulator, problem, of_losses(problem, **choices))


def test_a_target_that_is_read_where_another_thread_stores_over_it_is_found_out(emulator):
    problem = Problem(96, 61, op=Op.CROSS_ENTROPY_WITH_GRADIENT, inner=48, in_place=True)
    place = "(row < rows && targets[i].place > 0 ? group.first + targets[i].place * group.step : 0)"
    gathered = f"targets[i].is_class, input[{place} + i])"
    changes = [("targets[i].is_class, states[i].target)", gathered)]
    verdict = find_out(emulator, problem, of_losses(problem), changes)
    assert "race" in verdict.sentence
