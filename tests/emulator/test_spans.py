"""Rows that pass through shared memory as one span, verified by emulation."""

from dataclasses import replace

import pytest
from verified import find_out, verify

from explorer.model.config import Config
from explorer.model.element import DType
from explorer.model.gpu_spec import known_gpu
from explorer.model.problem import Problem
from explorer.ops import Op
from explorer.space import Space

H200 = known_gpu("NVIDIA H200")

SPAN = Config(threads=64, threads_per_row=1, staging="span")

INPUT = {"cache_holds": "input"}


ALGORITHMS = ("three-pass", "online-block-max", "online")
GRADIENTS = (Op.SOFTMAX_BACKWARD, Op.LOG_SOFTMAX_BACKWARD)


@pytest.mark.sampled(10)
@pytest.mark.parametrize(
    ("cols", "dtype", "choices"),
    [
        (5, DType.F32, {}),
        (33, DType.F32, {"threads": 96, "threads_per_row": 2, "rows_per_thread": 2}),
        (64, DType.BF16, {"threads_per_row": 16, "load_hint": "no-allocate"}),
        (37, DType.F16, {"threads": 32, "threads_per_row": 4, "rows_per_thread": 4}),
        (130, DType.F32, {"threads": 32, "threads_per_row": 32, "vector_bytes": 8}),
        (63, DType.F32, {"threads_per_row": 8, "reduction": "shared-tree"}),
        (17, DType.F64, {"threads": 32, "threads_per_row": 4, "exp": "exp2f"}),
        (9, DType.F32, {"threads": 32, "threads_per_row": 2, "persistent": 2}),
        (1, DType.BF16, {}),
        (2, DType.F16, {"vector_bytes": 4}),
        (33, DType.BF16, {"threads": 32, **INPUT}),
        (33, DType.F16, {"threads_per_row": 2, "exp": "ex2.approx-folded"}),
        (62, DType.BF16, {"vector_bytes": 2}),
        (101, DType.BF16, {"threads_per_row": 32, "persistent": 1}),
    ],
)
def test_rows_of_every_kind(emulator, cols, dtype, choices):
    """By one algorithm each, by turns: what brings and stores a span is the same text for all."""
    config = replace(SPAN, algorithm=ALGORITHMS[cols % 3], **choices)
    if config.algorithm == "online":
        config = replace(config, **INPUT)
    verify(emulator, Problem(64, cols, dtype), config)


@pytest.mark.sampled(5)
@pytest.mark.parametrize("dtype", [DType.F32, DType.BF16])
@pytest.mark.parametrize("threads_per_row", [1, 4])
@pytest.mark.parametrize("rows", [1, 63, 130])
def test_blocks_that_are_not_full(emulator, rows, threads_per_row, dtype):
    config = replace(SPAN, threads_per_row=threads_per_row)
    verify(emulator, Problem(rows, 19, dtype), config)


@pytest.mark.sampled(8)
@pytest.mark.parametrize("dtype", [DType.F32, DType.F16])
@pytest.mark.parametrize("threads_per_row", [1, 2])
@pytest.mark.parametrize(
    "kind",
    [
        {"op": Op.LOG_SOFTMAX},
        {"scale": -1.5},
        {"in_place": True},
        {"op": Op.LOG_SOFTMAX, "scale": 0.5, "in_place": True},
    ],
    ids=str,
)
def test_other_ops(emulator, kind, threads_per_row, dtype):
    config = replace(SPAN, threads_per_row=threads_per_row)
    if "op" in kind:
        config = replace(config, **INPUT)
    verify(emulator, Problem(100, 33, dtype, **kind), config)


@pytest.mark.parametrize(
    "kind",
    [
        {"out_dtype": DType.F32},
        {"input_stride": 40},
        {"op": Op.SOFTMAX_BACKWARD, "out_dtype": DType.F32},
        {"op": Op.LOG_SOFTMAX_BACKWARD, "output_stride": 40},
    ],
    ids=str,
)
def test_what_a_span_is_not_of(kind):
    space = Space(Problem(100, 33, DType.BF16, **kind), H200)
    config = replace(SPAN, **INPUT) if "op" in kind else SPAN
    broken = space.broken_rule(config)
    assert broken is not None and "a span is of whole, dense rows" in broken.reason(config)


@pytest.mark.sampled(14)
@pytest.mark.parametrize(
    ("cols", "dtype", "choices"),
    [
        (1, DType.BF16, {}),
        (1, DType.F32, {"vector_bytes": 4}),
        (3, DType.F16, {"threads_per_row": 2}),
        (3, DType.F32, {"threads": 32, "vector_bytes": 8}),
        (8, DType.BF16, {"threads_per_row": 4}),
        (16, DType.F32, {"threads_per_row": 4, "store_hint": "cg"}),
        (17, DType.BF16, {}),
        (17, DType.F32, {}),
        (17, DType.F64, {"threads": 32, "threads_per_row": 4}),
        (33, DType.F16, {"threads": 32, "load_hint": "no-allocate", "store_hint": "cs"}),
        (33, DType.BF16, {"threads_per_row": 4, "vector_bytes": 2}),
        (33, DType.BF16, {"threads": 96, "threads_per_row": 8, "reduction": "shared-serial"}),
        (33, DType.F32, {"threads_per_row": 2, "reduction": "shared-tree", "load_hint": "cs"}),
        (100, DType.F16, {"threads_per_row": 8, "vector_bytes": 4}),
        (100, DType.BF16, {"threads": 32, "threads_per_row": 32}),
        (100, DType.F32, {"threads": 32, "threads_per_row": 32}),
        (64, DType.F32, {"threads": 32}),
    ],
)
def test_gradients_of_every_kind(emulator, cols, dtype, choices):
    """Of both ops by turns, whose spans are the same text."""
    op = GRADIENTS[len(choices) % 2]
    verify(emulator, Problem(64, cols, dtype, op), replace(SPAN, **INPUT, **choices))


@pytest.mark.sampled(6)
@pytest.mark.parametrize("op", GRADIENTS)
@pytest.mark.parametrize("dtype", [DType.F32, DType.BF16])
@pytest.mark.parametrize("threads_per_row", [1, 4])
@pytest.mark.parametrize(("rows", "scale"), [(1, None), (63, -1.5), (130, None)])
def test_gradients_by_blocks_that_are_not_full(emulator, rows, scale, threads_per_row, dtype, op):
    config = replace(SPAN, threads_per_row=threads_per_row, **INPUT)
    verify(emulator, Problem(rows, 19, dtype, op, scale=scale), config)


def test_both_spans_of_a_gradient_fit_in_shared_memory():
    config = replace(SPAN, threads=256, threads_per_row=4, **INPUT)
    space = Space(Problem(64, 100, op=Op.SOFTMAX_BACKWARD), H200)
    broken = space.broken_rule(config)
    assert broken is not None and broken.name == "span-fits"
    assert Space(Problem(64, 100), H200).is_legal(config)
    assert space.is_legal(replace(config, threads=192))


DEFECTS = {
    "a neighbour's element counts": (
        "in_row ? row.elements[place] : __float2bfloat16_rn(-infinity())",
        "row.elements[place]",
    ),
    "a pair is stored over a neighbour's element": (
        "if (place >= row.begin && place < row.end) row.elements[place]",
        "row.elements[place]",
    ),
    "pairs read where neighbours store": (
        "load_vector(row, k, always_inside(slot) || inside(row, k))",
        "load_vector(row, k, true)",
    ),
    "rows start at whole pairs": (
        "{first - begin, begin, begin + kCols}",
        "{first - begin, 0, kCols}",
    ),
    "ends forgotten": ("fills_words(span)) {\n    load_words", "true) {\n    load_words"),
    "whole blocks stored by words wherever the output lies": (
        "if (place_in_word(first) != span.begin)",
        "if (!fills_words(span) && place_in_word(first) != span.begin)",
    ),
    "the last words forgotten": (
        "k < kBlockElements / kSpanWidth",
        "k < kBlockElements / kSpanWidth - 1",
    ),
    "results stored before all are there": ("  __syncthreads();\n  store_span", "  store_span"),
    "rows worked on before all are there": ("  __syncthreads();\n  softmax_rows", "  softmax_rows"),
}


DEFECTS_OF_GRADIENTS = {
    "a neighbour's gradient counts": (
        "in_row ? matrix[place] : __float2bfloat16_rn(0.0f)",
        "matrix[place]",
    ),
    "a gradient's pair is stored over a neighbour's element": (
        "if (place >= row.begin && place < row.end) row.input[place]",
        "row.input[place]",
    ),
    "the gradient's pairs lie where the output's do": ("whole && row.grad_in_step", "whole"),
    "the gradient's span lies as the output's does": (
        "span_at(grad + first_row * kCols, block_rows * kCols)",
        "{grad + first_row * kCols - span.begin, span.begin, span.end}",
    ),
    "one matrix alone fills its words": (
        "fills_words(span) && fills_words(grad_span)",
        "fills_words(span)",
    ),
    "the other matrix alone fills its words": (
        "fills_words(span) && fills_words(grad_span)",
        "fills_words(grad_span)",
    ),
    "the gradient's ends forgotten": ("  load_ends(grad_span, grad_words);\n", ""),
    "the results wait where the gradients did": (
        "store_span(span, words",
        "store_span(span, grad_words",
    ),
    "rows worked on before all are there": (
        "  __syncthreads();\n  auto* const outputs",
        "  auto* const outputs",
    ),
    "results stored before all are there": ("  __syncthreads();\n  store_span", "  store_span"),
}


PLANTED = [
    *((Op.SOFTMAX, SPAN, defect) for defect in DEFECTS.values()),
    *((GRADIENTS[0], replace(SPAN, **INPUT), defect) for defect in DEFECTS_OF_GRADIENTS.values()),
]


@pytest.mark.sampled(5)
@pytest.mark.parametrize(("op", "config", "defect"), PLANTED, ids=[*DEFECTS, *DEFECTS_OF_GRADIENTS])
def test_defects_are_found_out(emulator, op, config, defect):
    find_out(emulator, Problem(100, 33, DType.BF16, op), config, [defect])
