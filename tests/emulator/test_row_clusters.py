"""Rows over the blocks of a cluster, verified by emulation; what breaks them is found out."""

from dataclasses import replace

import pytest
from covering import covering
from verified import find_out, verify

from explorer.model.config import Config
from explorer.model.element import DType
from explorer.model.gpu_spec import known_gpu
from explorer.model.problem import Problem
from explorer.ops import Op
from explorer.space import Space
from explorer.space.space import sampled

H200 = known_gpu("NVIDIA H200")

CLUSTERS = {"cluster": (2, 4, 8, 16)}


def verify_all(emulator, problem, configs):
    assert configs
    for config in configs:
        verify(emulator, problem, config)


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    ("cols", "dtype"),
    [(8200, DType.F32), (33301, DType.BF16)],
)
def test_every_choice_at_ragged_and_whole_rows(emulator, cols, dtype):
    """Every second config: choices that clusters do not change are in other arrays."""
    problem = Problem(3, cols, dtype)
    configs = covering(Space(problem, H200, CLUSTERS))
    verify_all(emulator, problem, configs[cols % 2 :: 2])


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    "changes",
    [
        {"op": Op.LOG_SOFTMAX, "dtype": DType.F16, "scale": -0.5},
        {"dtype": DType.BF16, "out_dtype": DType.F32, "input_stride": 8300},
        {"dtype": DType.F32, "out_dtype": DType.F16, "output_stride": 8301},
        {"in_place": True},
    ],
)
def test_rows_of_every_kind(emulator, changes):
    problem = Problem(3, 8291, **changes)
    verify_all(emulator, problem, sampled(Space(problem, H200, CLUSTERS), 2))


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    ("op", "cols", "changes"),
    [
        (Op.SOFTMAX_BACKWARD, 8192, {}),
        (Op.LOG_SOFTMAX_BACKWARD, 8193, {}),
        (Op.LOG_SOFTMAX_BACKWARD, 16392, {"dtype": DType.BF16}),
        (Op.SOFTMAX_BACKWARD, 16391, {"dtype": DType.F16, "out_dtype": DType.F32}),
        (Op.LOG_SOFTMAX_BACKWARD, 8195, {"dtype": DType.F64, "scale": 0.5}),
        (Op.SOFTMAX_BACKWARD, 8200, {"input_stride": 8300, "output_stride": 8208}),
        (Op.LOG_SOFTMAX_BACKWARD, 8200, {"input_stride": 8301, "output_stride": 8203}),
    ],
)
def test_gradients_by_clusters(emulator, op, cols, changes):
    """Of both gradients by turns: what clusters exchange is one sum of either."""
    problem = Problem(3, cols, op=op, **changes)
    configs = covering(Space(problem, H200, CLUSTERS))
    assert {config.cache for config in configs} == {"registers", "shared", "none"}
    verify_all(emulator, problem, configs[cols % 4 :: 4])


GRADIENT = Config(exp="exp2f", cache_holds="input", cluster=4, exchange="mbarrier")


@pytest.mark.sampled(4)
@pytest.mark.parametrize(
    ("problem", "config"),
    [
        (Problem(3, 8192, op=Op.SOFTMAX_BACKWARD), GRADIENT),
        (Problem(3, 9001, DType.BF16, Op.SOFTMAX_BACKWARD), GRADIENT),
        (Problem(3, 8193, op=Op.LOG_SOFTMAX_BACKWARD), replace(GRADIENT, cache="shared")),
        (Problem(3, 8193, op=Op.SOFTMAX_BACKWARD), replace(GRADIENT, cache="none", unroll=2)),
        (Problem(3, 8200, op=Op.SOFTMAX_BACKWARD), replace(GRADIENT, exchange="barrier")),
        (
            Problem(3, 12304, DType.F16, Op.SOFTMAX_BACKWARD),
            replace(GRADIENT, cache="shared", static_cols=False),
        ),
        (
            Problem(3, 12305, op=Op.SOFTMAX_BACKWARD),
            replace(GRADIENT, cache="none", static_cols=False),
        ),
    ],
    ids=str,
)
def test_a_gradient_of_each_kind_by_clusters(emulator, problem, config):
    verify_all(emulator, problem, [config])


@pytest.mark.sampled(8)
@pytest.mark.parametrize("rows", [1, 5])
def test_several_rows_are_exchanged_at_once(emulator, rows):
    """The last rows of a cluster's share may be past the end."""
    config = Config(algorithm="online-block-max", cluster=4, rows_per_thread=2)
    verify_all(emulator, Problem(rows, 8193), [config])


PACKED = Config(algorithm="online-block-max", cluster=4, reduction="shuffle-redux")


@pytest.mark.sampled(7)
@pytest.mark.parametrize(
    ("problem", "config"),
    [
        (Problem(3, 8193), Config(cluster=4, rows_per_thread=2)),
        (Problem(2, 8192, DType.F64), Config(algorithm="online", cache_holds="input", cluster=2)),
        (Problem(2, 8199, DType.F64), Config(cluster=8, reduction="shuffle-first-warp")),
        (Problem(3, 9001, DType.BF16, Op.LOG_SOFTMAX), Config(cluster=4, cache_holds="input")),
        (Problem(4, 9001, DType.BF16), replace(PACKED, cache_holds="input")),
        (Problem(4, 9001, DType.BF16), PACKED),
        (Problem(3, 8193), Config(cluster=4, reduction="shuffle-redux")),
    ],
    ids=str,
)
def test_stores_that_mbarriers_count(emulator, problem, config):
    verify_all(emulator, problem, [replace(config, exchange="mbarrier")])


OVER_THE_LOGITS = {
    "the gradient of losses": (
        Op.CROSS_ENTROPY_BACKWARD,
        replace(GRADIENT, cache="none", exchange="barrier"),
    ),
    "losses with their gradient": (
        Op.CROSS_ENTROPY_WITH_GRADIENT,
        replace(GRADIENT, algorithm="online-block-max", exp="ex2.approx"),
    ),
    "losses with their gradient, by barriers": (
        Op.CROSS_ENTROPY_WITH_GRADIENT,
        replace(GRADIENT, algorithm="online-block-max", exp="ex2.approx", exchange="barrier"),
    ),
}


@pytest.mark.sampled(2)
@pytest.mark.parametrize("case", OVER_THE_LOGITS)
@pytest.mark.parametrize(("cols", "dtype"), [(8193, DType.F32), (8200, DType.BF16)])
def test_a_gradient_of_losses_is_written_over_the_logits(emulator, case, cols, dtype):
    """One block stores over the target's logit, which others have read or do not read."""
    op, config = OVER_THE_LOGITS[case]
    verify_all(emulator, Problem(3, cols, dtype, op, in_place=True), [config])


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    ("case", "defect"),
    [
        ("the gradient of losses", ("if (is_here && ", "if (")),
        (
            "losses with their gradient",
            ("wait_for_cluster();  // all blocks have read", "// all blocks have read"),
        ),
    ],
)
def test_blocks_that_read_a_target_which_another_stores_over(emulator, case, defect):
    op, config = OVER_THE_LOGITS[case]
    problem = Problem(3, 8200, DType.BF16, op, in_place=True)
    verdict = find_out(emulator, problem, config, [defect])
    assert "race" in verdict.sentence or "barrier" in verdict.sentence


ARRIVE = "row_at(input, output, index);\n  arrive_at_cluster();\n"
BEGUN = "  wait_for_cluster();  // its blocks have begun: their shared memory can be written\n"
EXCHANGED = "  arrive_at_cluster();\n  wait_for_cluster();\n"
RANK = "blockIdx.x % kCluster"

DEFECTS = {
    "blocks that may not have begun are written to": [
        (ARRIVE, ARRIVE.replace("  arrive_at_cluster();\n", "")),
        (BEGUN, ""),
    ],
    "the exchange is not waited for": [(EXCHANGED, "")],
    "a block ends while others write to it": [(BEGUN, f"{BEGUN}  if ({RANK} == 1) return;\n")],
    "every block takes the first one's place": [(f"{RANK} * kWarpsPerRow + ", "")],
    "the last block is left out": [("if (lane < kCluster)", "if (lane < kCluster - 1)")],
    "blocks write to themselves alone": [('"r"(own), "r"(rank)', f'"r"(own), "r"({RANK})')],
    "parts overlap": [("% kCluster * kBlockVectors", "% kCluster * (kBlockVectors - 1)")],
    "parts begin within each other's": [("begin - first, end", "begin - first - 1, end")],
}


CLUSTER_OF_8 = Config(algorithm="online-block-max", cluster=8, threads=128, threads_per_row=128)


@pytest.mark.sampled(8)
@pytest.mark.parametrize("defect", DEFECTS)
def test_defects_are_found_out(emulator, defect):
    find_out(emulator, Problem(3, 8193), CLUSTER_OF_8, DEFECTS[defect])


OPENED = "row_at(input, grad, output, index);\n  expect_values();\n  arrive_at_cluster();\n"

GRADIENT_DEFECTS = {
    "blocks that may not have begun are written to": [
        (OPENED, OPENED.replace("  arrive_at_cluster();\n", "")),
        (BEGUN, ""),
    ],
    "the sum is of one block's part": [("  sum = reduce_row(sum);\n", "")],
    "the exchange is not waited for": [("  wait_for_values();\n", "")],
    "parts overlap": [("% kCluster * kBlockVectors", "% kCluster * (kBlockVectors - 1)")],
    "parts begin within each other's": [("begin - first, end", "begin - first - 1, end")],
    "parts of the gradient are all the first one's": [("grad + first", "grad")],
}


@pytest.mark.exhaustive
@pytest.mark.parametrize("defect", GRADIENT_DEFECTS)
def test_defects_of_a_gradient_are_found_out(emulator, defect):
    problem = Problem(3, 8193, op=Op.SOFTMAX_BACKWARD)
    find_out(emulator, problem, GRADIENT, GRADIENT_DEFECTS[defect])


AWAITED = "  wait_for_values();\n"
FENCE = '    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");\n'
BYTES = "kCluster * kWarpsPerRow * sizeof(State)"

FEW_ROWS = 3
"""Threads of a wrong kernel may wait without end, up to the limit on steps."""

DEFECTS_OF_MBARRIERS = {
    "values are not waited for": (AWAITED, ""),
    "threads wait for each other instead": (AWAITED, "  __syncthreads();\n"),
    "one thread alone waits": (AWAITED, f"  if (lane == 0) {{ {AWAITED.strip()} }}\n"),
    "fewer bytes are expected": (BYTES, f"{BYTES} / 2"),
    "more bytes are expected": (BYTES, f"{BYTES} + 8"),
    "mbarriers are not known to be initialised": (FENCE, ""),
    "blocks may not have begun": (BEGUN, ""),
    "the wrong phase is waited for": ("complete, [%1], 0", "complete, [%1], 1"),
    "a block counts what it sends itself": (
        "remote_address(mbarrier_of(), rank)",
        f"remote_address(mbarrier_of(), {RANK})",
    ),
}


@pytest.mark.sampled(5)
@pytest.mark.parametrize("defect", DEFECTS_OF_MBARRIERS)
def test_defects_of_mbarriers_are_found_out(emulator, defect):
    config = replace(CLUSTER_OF_8, cluster=2, exchange="mbarrier")
    find_out(emulator, Problem(3, 8193), config, [DEFECTS_OF_MBARRIERS[defect]], FEW_ROWS)
