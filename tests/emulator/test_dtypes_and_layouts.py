"""Kernels of every dtype and layout: emulated without a fault, and faults of theirs are seen."""

from dataclasses import replace

import pytest
from covering import covering
from virtual_arch import ARCH

from explorer.codegen import emit
from explorer.devices.emulated.result import Status
from explorer.evaluate.emulation import Emulator
from explorer.evaluate.program_under_test import ProgramUnderTest
from explorer.model.config import Config
from explorer.model.dtype import DType
from explorer.model.gpu_spec import known_gpu
from explorer.model.problem import Mask, Op, Problem
from explorer.ptx_emulator.findings import Kind
from explorer.space import Space

H200 = known_gpu("NVIDIA H200")
EMULATOR = Emulator(ARCH)

FAULTLESS = (Status.VERIFIED, Status.INACCURATE)
"""A row summed by one thread in fp32 may miss the tolerance by rounding alone."""

KINDS = {
    "f64": {"dtype": DType.F64},
    "bf16 to f32": {"dtype": DType.BF16, "out_dtype": DType.F32},
    "f16 to f32": {"dtype": DType.F16, "out_dtype": DType.F32},
    "f32 to bf16": {"out_dtype": DType.BF16},
    "f32 to f16": {"out_dtype": DType.F16},
    "f16 to bf16": {"dtype": DType.F16, "out_dtype": DType.BF16},
    "bf16 to f16": {"dtype": DType.BF16, "out_dtype": DType.F16},
    "aligned gaps": {"gaps": (16, 4)},
    "a ragged gap": {"gaps": (16, 3)},
    "f64, a gap": {"dtype": DType.F64, "gaps": (0, 7)},
    "bf16 to f32, a gap": {"dtype": DType.BF16, "out_dtype": DType.F32, "gaps": (8, 0)},
    "in place": {"in_place": True},
    "bf16 in place, gaps": {"dtype": DType.BF16, "in_place": True, "gaps": (24, 24)},
    "f64 in place": {"dtype": DType.F64, "in_place": True},
    "log_softmax of bf16 to f32, scaled, gaps": {
        "op": Op.LOG_SOFTMAX,
        "dtype": DType.BF16,
        "out_dtype": DType.F32,
        "scale": -0.5,
        "gaps": (8, 3),
    },
    "causal in place": {"mask": Mask.CAUSAL, "mask_rows": 32, "in_place": True},
    "lengths, f64 in place": {"dtype": DType.F64, "mask": Mask.LENGTHS, "in_place": True},
}


def problem_of(kind: str, cols: int) -> Problem:
    """64 rows of a kind; `gaps` are elements between rows of input and output."""
    fields = dict(KINDS[kind])
    gaps = fields.pop("gaps", (0, 0))
    return Problem(64, cols, input_stride=cols + gaps[0], output_stride=cols + gaps[1], **fields)


@pytest.mark.exhaustive
@pytest.mark.parametrize("kind", KINDS)
def test_a_kind_is_verified(kind):
    """37 columns are ragged for every vector; of 128, rows start aligned where gaps let them."""
    number = list(KINDS).index(kind)
    problem = problem_of(kind, (37, 128)[number % 2])
    configs = covering(Space(problem, H200))
    config = configs[number % len(configs)]  # another one of each kind: all have the same choices
    verdict = EMULATOR.verify(ProgramUnderTest.of_config(problem, config))
    assert verdict.status in FAULTLESS, f"{config.to_json()}: {verdict.sentence}"


SEVERAL_ROWS = Config(threads=64, threads_per_row=8, vector_bytes=8)
SCALAR = replace(SEVERAL_ROWS, vector_bytes=4, threads_per_row=16)

FAULTS = {
    # Of the threads past the last row, some read what that row's threads have written.
    "in place, a row read twice": (
        "in place",
        SEVERAL_ROWS,
        "is_row ? row_at(input, output, index) : Row{}",
        "row_at(input, output, is_row ? index : rows - 1)",
        Kind.GLOBAL_RACE,
    ),
    "in place, a neighbour's vector": (
        "in place",
        replace(SEVERAL_ROWS, cache="none", cache_holds="input"),
        "k < row.vectors) {\n    Vector",
        "(k ^= 1) < row.vectors) {\n    Vector",
        Kind.GLOBAL_RACE,
    ),
    "a dense output of gaps": (
        "aligned gaps",
        SCALAR,
        "output += loaded_row * output_stride",
        "output += loaded_row * kCols",
        Kind.NEVER_WRITTEN,
    ),
    "a vector into the gap": (
        "aligned gaps",
        SEVERAL_ROWS,
        "reinterpret_cast<Word*>(output)[k]",
        "reinterpret_cast<Word*>(output)[k + 1]",
        Kind.OUT_OF_BOUNDS,
    ),
    "half of the output": (
        "bf16 to f32",
        replace(SEVERAL_ROWS, vector_bytes=16),
        "i < kOutputWords; ++i",
        "i < kOutputWords / 2; ++i",
        Kind.NEVER_WRITTEN,
    ),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_is_seen(fault):
    kind, config, old, new, shown = FAULTS[fault]
    variant = emit(problem_of(kind, 128), config)
    assert old in variant.source
    faulty = replace(variant, source=variant.source.replace(old, new))
    verdict = EMULATOR.verify(ProgramUnderTest.of(faulty))
    assert verdict.status is Status.WRONG
    assert shown in {finding.kind for run in verdict.runs for finding in run.findings}
