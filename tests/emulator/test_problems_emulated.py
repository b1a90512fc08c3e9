"""Problems of every op, mask, type and layout, on the emulator: verified, and faults seen."""

from dataclasses import replace

import numpy as np
import pytest
from verified import verify
from virtual_arch import ARCH

from explorer.codegen.units import emit
from explorer.compile.compiler import Compiler
from explorer.devices.emulated.device import EmulatedKernel, emulate
from explorer.devices.program_under_test import ProgramUnderTest
from explorer.devices.verdict import Status
from explorer.model.config import Config
from explorer.model.element import DType
from explorer.model.gpu_spec import known_gpu
from explorer.model.problem import Mask, Problem
from explorer.ops import Op
from explorer.ptx_emulator.findings import Kind
from explorer.reference.inputs import verification_inputs
from explorer.space import Space
from explorer.space.candidates import adapted
from explorer.space.space import sampled

H200 = known_gpu("NVIDIA H200")

FEW = {"threads": (32, 64, 96, 128), "threads_per_row": (1, 4, 16, 32, 64, 96, 128)}
"""Blocks that an emulator steps through quickly, of all kinds: lanes, warps and both."""

LOG = {"op": Op.LOG_SOFTMAX}
CAUSAL = {"mask": Mask.CAUSAL}
LENGTHS = {"mask": Mask.LENGTHS}
ADDITIVE = {"mask": Mask.ADDITIVE}

KINDS = {
    "log": LOG,
    "log, bf16": {**LOG, "dtype": DType.BF16},
    "log, f64": {**LOG, "dtype": DType.F64},
    "scale": {"scale": 0.3},
    "scale 0, f16": {"scale": 0.0, "dtype": DType.F16},
    "scale below 0, f64": {"scale": -2.5, "dtype": DType.F64},
    "causal": CAUSAL,
    "causal, repeated": {**CAUSAL, "mask_rows": 16},
    "causal, f16 to f32": {**CAUSAL, "dtype": DType.F16, "out_dtype": DType.F32},
    "causal in place": {**CAUSAL, "in_place": True},
    "lengths, bf16": {**LENGTHS, "dtype": DType.BF16},
    "lengths, gaps": {**LENGTHS, "gaps": (16, 4)},
    "additive": ADDITIVE,
    "additive, repeated, bf16": {**ADDITIVE, "mask_rows": 8, "dtype": DType.BF16},
    "additive in place": {**ADDITIVE, "in_place": True},
    "scale and additive": {**ADDITIVE, "scale": 0.125},
    "scale and additive, huge": {**ADDITIVE, "scale": -3.0},
    "scale and additive, f64, huge": {**ADDITIVE, "scale": 3.0, "dtype": DType.F64},
    "scale and additive, f64": {**ADDITIVE, "scale": 0.3, "dtype": DType.F64},
    "scale and causal, bf16": {**CAUSAL, "scale": 0.125, "dtype": DType.BF16},
    "log and lengths": {**LOG, **LENGTHS},
    "log, scale and causal, f16": {**LOG, **CAUSAL, "scale": -1.5, "dtype": DType.F16},
    "log, scale and additive, bf16": {**LOG, **ADDITIVE, "scale": 0.5, "dtype": DType.BF16},
    "f64": {"dtype": DType.F64},
    "bf16 to f32": {"dtype": DType.BF16, "out_dtype": DType.F32},
    "f16 to f32": {"dtype": DType.F16, "out_dtype": DType.F32},
    "f32 to bf16": {"out_dtype": DType.BF16},
    "f32 to f16": {"out_dtype": DType.F16},
    "f16 to bf16": {"dtype": DType.F16, "out_dtype": DType.BF16},
    "bf16 to f16": {"dtype": DType.BF16, "out_dtype": DType.F16},
    "log, scale and gaps": {**LOG, "scale": -0.5, "gaps": (8, 3)},
    "bf16, scale and gaps": {"scale": 0.3, "gaps": (16, 8), "dtype": DType.BF16},
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
    "lengths, f64 in place": {"dtype": DType.F64, "mask": Mask.LENGTHS, "in_place": True},
    "losses with gradients in place": {"op": Op.CROSS_ENTROPY_WITH_GRADIENT, "in_place": True},
}


def problem_of(kind: str, cols: int) -> Problem:
    """64 rows of a kind; `gaps` are elements between rows of input and output."""
    fields = dict(KINDS[kind])
    gaps = fields.pop("gaps", (0, 0))
    return Problem(64, cols, input_stride=cols + gaps[0], output_stride=cols + gaps[1], **fields)


@pytest.mark.sampled(20)
@pytest.mark.parametrize("kind", KINDS)
def test_a_kind_is_verified(emulator, kind):
    """37 columns, by turns, are ragged, and fewer than a causal mask has rows: some see nothing.

    What either width changes is the same for every kind, and so are the choices, of which each
    kind meets a different one.
    """
    number = list(KINDS).index(kind)
    is_slow = KINDS[kind].get("dtype") is DType.F64
    problem = problem_of(kind, 37 if is_slow else (37, 128)[number % 2])
    (config,) = sampled(Space(problem, H200, FEW), 1, seed=number)
    verify(emulator, problem, config)


TWO_ROWS = Config(threads=64, threads_per_row=32, vector_bytes=16)
SHARED = replace(TWO_ROWS, cache="shared", static_cols=False)
DESCENDING = replace(TWO_ROWS, row_order="descending")
NO_CACHE = replace(TWO_ROWS, cache="none", cache_holds="input", static_cols=False)
HOLDS_INPUT = replace(TWO_ROWS, cache_holds="input")
SEVERAL_ROWS = Config(threads=64, threads_per_row=8, vector_bytes=8)
SCALAR = replace(SEVERAL_ROWS, vector_bytes=4, threads_per_row=16)

TILE = replace(SEVERAL_ROWS, rows_per_thread=2)
THREE = replace(NO_CACHE, launches="three")
TWO = Config(
    algorithm="online-block-max",
    threads=32,
    threads_per_row=32,
    vector_bytes=4,
    cache="none",
    cache_holds="input",
    launches="two-overlapped",
)

OF_WIDE_ROWS = {"two-launches-of-wide-rows", "whole-block-of-a-part"}
"""Rules that such small kernels as TWO break, which are right all the same."""

OF_PLAIN_ROWS = {
    "two rows a thread": TILE,
    "four rows a thread, online, striding": replace(
        TILE, rows_per_thread=4, algorithm="online", cache_holds="input", persistent=1
    ),
    "two rows a thread, their input": replace(TILE, cache_holds="input"),
    "three launches": THREE,
    "three launches, compensated": replace(THREE, sum="compensated", threads_per_row=16),
    "two launches": replace(TWO, launches="two"),
    "two overlapped launches": replace(TWO, unroll=2),
    "striding": replace(HOLDS_INPUT, persistent=2),
    "striding, compensated": replace(NO_CACHE, persistent=2, sum="compensated"),
    "compensated online": replace(NO_CACHE, algorithm="online-branchy", sum="compensated"),
    "exponentials in the output": replace(NO_CACHE, cache="output", cache_holds="exp"),
}
"""Choices that are for plain rows alone."""


PLAIN_KINDS = (
    *("log", "log, bf16", "scale"),
    *("a ragged gap", "log, scale and gaps", "bf16, scale and gaps"),
)
"""Kinds of plain rows, of which each choice meets two, and each kind three or four choices."""


@pytest.mark.sampled(4)
@pytest.mark.parametrize(
    ("choice", "kind"),
    [
        (choice, PLAIN_KINDS[(number + 3 * step) % len(PLAIN_KINDS)])
        for number, choice in enumerate(OF_PLAIN_ROWS)
        for step in range(2)
    ],
)
def test_choices_of_plain_rows_serve_each_kind(emulator, choice, kind):
    problem = problem_of(kind, 131)
    config = adapted(OF_PLAIN_ROWS[choice], problem)
    broken = {rule.name for rule in Space(problem, H200).broken_rules(config)}
    if config.cache == "output" and (problem.operator.is_log or problem.dtype.is_half):
        assert broken & {"output-holds-exponentials", "output-holds-all-digits"}
        return
    assert broken <= OF_WIDE_ROWS
    verdict = emulator.verify(ProgramUnderTest.of_config(problem, config), rows=9)
    assert verdict.status is Status.VERIFIED, verdict.sentence


FAULTS = {
    "-inf is scaled": ("scale 0, f16", TWO_ROWS, "x[i] == -infinity() ? x[i] : ", ""),
    "no scale, two rows a thread": ("scale", TILE, "__fmul_rn(scale, x[i])", "x[i]"),
    "scaled twice, two rows a thread": (
        "scale",
        replace(TILE, cache_holds="input"),
        "y[i] = exponential(y[i], row_reference)",
        "y[i] = exponential(scale * y[i], row_reference)",
    ),
    "the output's stride for the input, two rows a thread": (
        "aligned gaps",
        TILE,
        "input + index * input_stride",
        "input + index * output_stride",
    ),
    "the output's stride for the input, in the second launch": (
        "aligned gaps",
        TWO,
        "index, input_stride, output_stride);\n  // This thread's share",
        "index, output_stride, output_stride);\n  // This thread's share",
    ),
    "no logarithm, of three launches": ("log", THREE, "log_sum = logf(", "log_sum = ("),
    "exponentials left of a logarithm": (
        "log",
        THREE,
        "differences[k].elements[i] = x[i] - reference",
        "differences[k].elements[i] = exponential(x[i], reference)",
    ),
    "scaled in the first of three launches alone": (
        "scale",
        THREE,
        "exponential(x[i], reference)",
        "exponential(x[i] / scale, reference)",
    ),
    "no scale": ("scale", SHARED, "__fmul_rn(scale, x[i])", "x[i]"),
    "a -inf loses its mask": ("scale and additive", TWO_ROWS, "x[i] + added[i] : fmaf", "0 : fmaf"),
    "one column more": ("causal", TWO_ROWS, "mask_row + 1 +", "mask_row + 2 +"),
    "rows begin at another": ("causal", DESCENDING, "gridDim.x - 1 - ", "gridDim.x - "),
    "no repetition": ("causal, repeated", SHARED, "index % mask_rows", "mask_rows - 1"),
    "nothing is hidden": ("causal", NO_CACHE, "+ i >= row.visible)", "+ i > row.visible + 3)"),
    "hidden as 1": ("causal", SHARED, "x[i] = 0.0f;  // hidden", "x[i] = 1.0f;"),
    "the length of another": ("lengths, bf16", SHARED, "lengths[index]", "lengths[0]"),
    "another row's mask": ("additive, repeated, bf16", TWO_ROWS, "index % mask_rows", "0"),
    "no logarithm": ("log", HOLDS_INPUT, "logf(reduce_row(sum, Sum{}))", "reduce_row(sum, Sum{})"),
    "log of what is not shifted": ("log", NO_CACHE, "x[i] - reference - log_sum", "x[i] - log_sum"),
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
    "a target that is read while its thread stores": (
        "losses with gradients in place",
        replace(SEVERAL_ROWS, algorithm="online-block-max", cache_holds="input"),
        "__syncwarp();  // all lanes have read the target",
        "// all lanes have read the target",
        Kind.GLOBAL_RACE,
    ),
    "a target that threads of no row read": (
        "losses with gradients in place",
        replace(SEVERAL_ROWS, algorithm="online-block-max", cache_holds="input", threads=96),
        "is_row ? ids[own_row] : -1",
        "ids[own_row]",
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
"""Kinds, configs, what is changed into what, and findings that must be among those reported."""


@pytest.mark.sampled(3)
@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_is_seen(emulator, fault):
    kind, config, old, new, *shown = FAULTS[fault]
    variant = emit(problem_of(kind, 128), config)
    assert old in variant.code
    faulty = replace(variant, source=variant.source.replace(old, new))
    verdict = emulator.verify(ProgramUnderTest.of(faulty))
    assert verdict.status is Status.WRONG
    assert {*shown} <= {finding.kind for run in verdict.runs for finding in run.findings}


def test_rows_are_checked_all_over_a_wide_causal_mask(emulator):
    """Of 19 rows the last of their own mask see nearly everything: short ones are wrong here."""
    program = ProgramUnderTest.of_config(Problem(1024, 1024, mask=Mask.CAUSAL), TWO_ROWS)
    right = "(limit > 0 ? limit : 0)"
    assert program.source.count(right) == 1
    for wrong in ("(limit > 0 ? limit : 1)", "(limit > 0 ? (limit < 900 ? limit + 1 : limit) : 0)"):
        faulty = replace(program, source=program.source.replace(right, wrong))
        assert emulator.verify(faulty).status is Status.WRONG


def emulated(problem: Problem, config: Config, arrays):
    """One run on inputs of one's own."""
    variant = emit(problem, config)
    ptx = Compiler(ARCH).compile(variant.source).ptx
    return emulate(EmulatedKernel.of(ptx, variant.launches), problem, arrays)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("config", [TWO_ROWS, HOLDS_INPUT, SHARED, NO_CACHE])
@pytest.mark.parametrize("mask", [Mask.CAUSAL, Mask.LENGTHS])
def test_vectors_past_the_limit_are_not_loaded(config, mask):
    """Each pass asks for the vectors that hold what counts, and for a length by each thread."""
    problem = Problem(20, 512, mask=mask)
    arrays = verification_inputs(problem)
    ran = emulated(problem, config, arrays)
    assert ran.status is Status.VERIFIED
    limits = np.clip(arrays.get("lengths", np.arange(20) + 512 - 19), 0, 512)
    passes = 3 if config.cache == "none" else 1
    vectors = int(np.ceil(limits / 4).sum())
    lengths = 20 * 32 * 4 if mask is Mask.LENGTHS else 0
    assert ran.counters.global_loads.bytes == passes * 16 * vectors + lengths


@pytest.mark.sampled(3)
@pytest.mark.parametrize("config", [TWO_ROWS, SHARED, NO_CACHE])
@pytest.mark.parametrize("op", [Op.SOFTMAX, Op.LOG_SOFTMAX])
def test_lengths_may_lie_outside_a_row(config, op):
    """Less than nothing is nothing, and gives NaN; more than the row is the row."""
    if op is Op.LOG_SOFTMAX:
        config = replace(config, cache_holds="input")
    problem = Problem(20, 64, op=op, mask=Mask.LENGTHS)
    lengths = np.array([-1, -(2**31), 0, 1, 64, 65, 2**31 - 1] * 3, np.int32)[:20]
    ran = emulated(problem, config, {**verification_inputs(problem), "lengths": lengths})
    assert ran.status is Status.VERIFIED


def test_a_mask_is_loaded_by_vectors_where_it_lies_as_the_input_does():
    """Rows of 37: of the mask's 8 each lies as every eighth of the input."""
    problem = Problem(16, 37, mask=Mask.ADDITIVE, mask_rows=8)
    variant = emit(problem, replace(TWO_ROWS, threads_per_row=4, threads=32))
    compiled = Compiler(ARCH).compile(variant.source)
    kernel = EmulatedKernel.of(compiled.ptx, variant.launches)
    ran = emulate(kernel, problem, verification_inputs(problem))
    assert ran.status is Status.VERIFIED
    widths = ran.counters.global_loads.widths
    odd = emulate(kernel, problem, verification_inputs(problem), misaligned_by=2)
    assert widths[16] > odd.counters.global_loads.widths[16]
