"""The GPU's own check, executed: the emulator needs no GPU to run it."""

import ctypes
from functools import cache

import numpy as np
import pytest
from virtual_arch import ARCH

from explorer.compile.compiler import Compiler
from explorer.devices.cuda.tools import (
    NOTHING_FOUND,
    CacheQuestion,
    DeviceCheck,
    Question,
    check_entry,
    check_grid,
    check_sources,
    question_of,
)
from explorer.devices.emulated.placement import Placement
from explorer.model.accuracy import Accuracy
from explorer.model.element import DType, IndexType
from explorer.model.problem import Mask, Problem, inputs, results
from explorer.ops import OPERATORS, Extent, Op
from explorer.ptx_emulator.launches import launch
from explorer.ptx_emulator.memory import Allocation
from explorer.ptx_emulator.parser import parse
from explorer.reference.check import check
from explorer.reference.inputs import verification_inputs
from explorer.reference.layout import in_memory
from explorer.reference.truth import truths_of

AGREEMENT = 1e-14

KEPT = "lse,maximum,log_sum,mean_gap"

EVERY = "lse,entropy,rank,argmax,maximum,log_sum"

OF_ROWS = [op for op, operator in OPERATORS.items() if operator.over is Extent.MATRIX]

ATTENTION = [
    *(
        Problem(18, 37, dtype, Op.DECODE_ATTENTION, head_dim=64, group=3, key_heads=2, also="lse")
        for dtype in DType
        if not dtype.in_double
    ),
    Problem(12, 300, DType.BF16, Op.DECODE_ATTENTION, mask=Mask.LENGTHS, group=2),
    Problem(8, 37, DType.F16, Op.DECODE_ATTENTION, head_dim=256, scale=0.3, mask=Mask.LENGTHS),
    *(
        Problem(
            *(24, 37, DType.BF16, Op.DECODE_ATTENTION),
            **{"head_dim": 64, "scale": scale, "mask": Mask.LENGTHS, "also": "lse"},
            **{"group": 2, "key_heads": 4, "layout": "NHD"},
        )
        for scale in (-0.7, 0.0)
    ),
    Problem(1, 8200, DType.BF16, Op.DECODE_ATTENTION, head_dim=64),  # of 32 warps
]

KINDS = [
    *ATTENTION,
    *(Problem(19, 37, dtype, op) for dtype in DType for op in OF_ROWS),
    Problem(19, 37, DType.BF16, out_dtype=DType.F32),
    Problem(19, 37, DType.F32, Op.LOG_SOFTMAX, out_dtype=DType.F16),
    *(Problem(19, 37, scale=scale) for scale in (0.3, -2.0, 0.0)),
    Problem(19, 300, DType.F64, scale=128**-0.5),  # products near the middle of two numbers
    Problem(19, 37, op=Op.SOFTMAX_BACKWARD, scale=-0.3),
    Problem(20, 20, mask=Mask.CAUSAL),
    Problem(20, 37, op=Op.LOG_SOFTMAX, mask=Mask.CAUSAL, mask_rows=5),
    Problem(40, 7, mask=Mask.CAUSAL),  # rows that see nothing, and more of them than blocks
    Problem(20, 37, op=Op.LOG_SOFTMAX, mask=Mask.LENGTHS),
    Problem(20, 37, mask=Mask.ADDITIVE, mask_rows=4),
    Problem(20, 37, DType.F64, scale=0.7, mask=Mask.ADDITIVE),
    Problem(20, 37, scale=3.0, mask=Mask.ADDITIVE),
    Problem(20, 37, DType.F64, scale=3.0, mask=Mask.ADDITIVE),
    Problem(20, 37, inner=4),
    Problem(20, 37, DType.F16, Op.LOG_SOFTMAX_BACKWARD, inner=5),
    Problem(19, 37, input_stride=40, output_stride=64),
    Problem(5, 600),  # blocks of 8 warps
    Problem(2, 8200),  # of 32
    Problem(19, 37, op=Op.LOGSUMEXP, also="maximum,log_sum"),
    Problem(19, 37, DType.F64, Op.LOGSUMEXP, also="maximum,log_sum", mask=Mask.LENGTHS),
    *(Problem(130, 37, dtype, Op.LOG_PROB, also=EVERY) for dtype in DType),
    Problem(130, 37, op=Op.LOG_PROB, also=EVERY, ids_per_row=3, ids_stride=5, output_stride=4),
    Problem(130, 37, op=Op.LOG_PROB, also=EVERY, ids_dtype=IndexType.INT32, scale=-0.7),
    Problem(5, 600, op=Op.LOG_PROB, also=EVERY, ids_per_row=700),
    *(Problem(130, 37, dtype, Op.CROSS_ENTROPY, also=KEPT) for dtype in DType),
    Problem(130, 37, op=Op.CROSS_ENTROPY, ids_dtype=IndexType.INT32, ids_stride=3, output_stride=2),
    Problem(130, 37, op=Op.CROSS_ENTROPY_BACKWARD, scale=-0.7, ignore_index=36),
    Problem(130, 37, DType.BF16, Op.MULTIPLY_ROWS, scale=-0.7),
    *(Problem(130, 37, op=Op.CROSS_ENTROPY, also=KEPT, softcap=c) for c in (2.0, 30.0)),
    Problem(130, 37, DType.F64, Op.CROSS_ENTROPY_BACKWARD, softcap=5.0, label_smoothing=0.1),
    Problem(130, 37, op=Op.CROSS_ENTROPY_WITH_GRADIENT, softcap=30.0, scale=0.3, z_loss=1e-3),
    Problem(130, 37, op=Op.CROSS_ENTROPY_BACKWARD, label_smoothing=0.1, z_loss=1e-3),
    Problem(70, 33, DType.BF16, Op.CROSS_ENTROPY_WITH_GRADIENT, label_smoothing=0.2, z_loss=1e-3),
    Problem(130, 37, op=Op.CROSS_ENTROPY_WITH_GRADIENT, also=f"loss,{KEPT}", scale=0.3),
    *(Problem(132, 37, op=op, inner=12) for op in OF_ROWS if OPERATORS[op].options),
]


def inputs_of(problem):
    """Patterns; or of attention noise, with special values where a sequence has room for some."""
    if not problem.attends:
        return verification_inputs(problem)
    rng = np.random.default_rng(3)
    shapes = {one.name: (one.count // one.cols, one.cols) for one in inputs(problem)}
    arrays = {name: rng.standard_normal(shape) for name, shape in shapes.items()}
    query, key, value = (arrays[name] for name in ("query", "key", "value"))
    sequences, keys = problem.rows // problem.heads, problem.key_heads * problem.cols
    if sequences > 2:
        query[problem.heads] *= 100  # scores that differ by much
        key[2 * keys + 5, 7] = np.inf
        value[2 * keys + problem.cols - 1, 3] = -np.inf
        key[2 * keys + problem.cols : 3 * keys, :2] = np.nan
    if problem.mask is Mask.LENGTHS:
        lengths = rng.integers(1, problem.cols + 1, sequences)
        lengths[:3] = 0, problem.cols + 5, -3
        arrays["lengths"] = lengths
        hidden = np.arange(problem.cols) >= np.repeat(lengths, problem.key_heads)[:, None]
        key[hidden.reshape(-1)] = value[hidden.reshape(-1)] = np.nan
    held = {one.name: one.dtype.numpy for one in inputs(problem)}
    return {name: array.astype(held[name]) for name, array in arrays.items()}


@cache
def parsed(source):
    return parse(Compiler(ARCH).compile(source).ptx)


class Checked:
    """A problem's inputs in emulated memory, and what writes their truths or checks a result."""

    BLOCKS = 32
    """At most, that some work on several rows."""

    def __init__(self, problem: Problem, arrays=None):
        arrays = arrays or inputs_of(problem)
        self.problem = problem
        self.known = truths_of(problem, arrays)
        self.results = {result.name: result for result in results(problem)}
        self.placed = Placement.of(problem, arrays)
        self.modules = list(map(parsed, check_sources(problem)))

    @property
    def truth(self):
        return self.known["output"]

    def truths(self, name="output"):
        shape = self.known[name].values.shape
        return self._run("write_truths", name, np.full(shape, 7.5))

    def check(self, made, accuracy=Accuracy.DEFAULT, name="output") -> DeviceCheck:
        """What it says of a result, as rows; gaps between rows hold NaN."""
        result, target = self.results[name], self.placed.values[name]
        gap = np.nan if isinstance(result.dtype, DType) else 0
        self.placed.memory.write(target, in_memory(self.problem, result, made, gap))
        target.initialised = True
        entry = check_entry(result.dtype)
        report = self._run(entry, name, NOTHING_FOUND, accuracy)
        return DeviceCheck.of(report, result)

    def _run(self, entry, name, result, accuracy=Accuracy.DEFAULT):
        memory = self.placed.memory
        at = {n: v.start for n, v in self.placed.values.items() if isinstance(v, Allocation)}
        to = memory.allocate(result, name=entry)
        blocks, threads = check_grid(self.problem)
        ran = launch(
            next(module for module in self.modules if entry in module.entries),
            entry,
            grid=(min(blocks, self.BLOCKS), 1, 1),
            block=(threads, 1, 1),
            args=[bytes(question_of(self.problem, self.results[name], at, accuracy)), to],
            memory=memory,
        )
        assert ran.clean, ran.findings
        return memory.read(to)


@pytest.fixture(scope="module")
def checked():
    kept: dict[Problem, Checked] = {}
    return lambda problem: kept.setdefault(problem, Checked(problem))


@pytest.mark.sampled(36)
@pytest.mark.parametrize("problem", KINDS, ids=str)
def test_the_gpus_truth_is_the_references(checked, problem):
    for name, truth in checked(problem).known.items():
        got = checked(problem).truths(name)
        with np.errstate(invalid="ignore"):
            close = np.abs(got - truth.values) <= np.maximum(AGREEMENT * truth.magnitude, 1e-300)
        close &= np.isfinite(truth.values)
        same = (got == truth.values) | (np.isnan(got) & np.isnan(truth.values))
        assert (close | same).all(), name


def ruined(output):
    """Wrong in every way: elements are lost, moved, infinite or NaN; NaN and infinities are not."""
    wide = output.astype(np.float64)
    ways = [
        wide,
        np.zeros_like(wide),
        np.roll(wide, 1, axis=1),
        np.full_like(wide, np.inf),
        np.full_like(wide, np.nan),
        np.where(np.isfinite(wide), wide, 0.5),
        np.where(np.isfinite(wide), wide, -1e4),
        wide * (1 + 3e-5),
    ]
    return np.choose(np.random.default_rng(1).integers(0, len(ways), wide.shape), ways)


JUDGED = [
    *ATTENTION[:-1],
    *(Problem(19, 37, op=op) for op in OF_ROWS),
    *(Problem(19, 37, dtype) for dtype in DType if dtype is not DType.F32),
    Problem(19, 37, DType.F32, Op.LOG_SOFTMAX, out_dtype=DType.F16),
    Problem(20, 37, op=Op.LOG_SOFTMAX, mask=Mask.LENGTHS),
    Problem(20, 37, inner=4),
    Problem(19, 37, input_stride=40, output_stride=64),
    Problem(40, 3),
    Problem(5, 600),
    *(Problem(130, 37, dtype, Op.LOG_PROB, also=EVERY) for dtype in DType),
]
"""Every op, type and layout of results: truths were compared above."""

NUMBERS = [(problem, r) for problem in JUDGED for r in results(problem) if r.dtype in DType]


@pytest.mark.sampled(14)
@pytest.mark.parametrize(("problem", "result"), NUMBERS, ids=str)
def test_the_gpus_verdict_is_the_references(checked, problem, result):
    subject, dtype = checked(problem), result.dtype
    truth = subject.known[result.name].values
    blur = 4 if dtype is DType.F64 else 1e-3  # ulps that the GPU's truth is off itself

    def rounded(values):
        with np.errstate(over="ignore"):
            return values.astype(dtype.numpy)

    def judged(output, accuracy=Accuracy.DEFAULT):
        output = rounded(output)
        found = subject.check(output, accuracy, result.name)
        due = check(output, subject.known[result.name], dtype, accuracy)
        assert found.wrong == due.wrong
        assert (found.row, found.col) == (due.first or (0, 0))
        assert found.max_ulp == pytest.approx(due.max_ulp, rel=1e-6, abs=blur)
        assert found.mean_ulp == pytest.approx(due.mean_ulp, rel=1e-6, abs=blur)
        assert found.error == pytest.approx(due.error, rel=1e-6, abs=1e-14)
        finite = np.isfinite(output) & np.isfinite(truth)
        others = np.where(finite, rounded(truth), output)
        assert found.counted == finite.sum()
        assert found.infinite == check(others, subject.known[result.name], dtype, accuracy).wrong
        return found

    assert judged(truth).wrong == 0
    judged(np.where(truth == 0, -0.0, truth))
    if subject.known[result.name].flushed is not None:
        judged(subject.known[result.name].flushed)
    assert judged(ruined(truth)).wrong > truth.size / 8
    off = [judged(truth * (1 + 3e-5), accuracy).wrong for accuracy in reversed(Accuracy)]
    assert off == sorted(off)


COLUMNS = [
    (problem, result)
    for dtype in IndexType
    for problem in [Problem(130, 37, op=Op.LOG_PROB, also="rank,argmax", ids_dtype=dtype)]
    for result in results(problem)[1:]
]


@pytest.mark.parametrize(("problem", "result"), COLUMNS, ids=str)
def test_columns_are_right_only_if_they_are_equal(checked, problem, result):
    subject = checked(problem)
    right = subject.known[result.name].values.astype(result.dtype.numpy)
    assert (right == -1).any() and (right > 0).any()
    assert subject.check(right, name=result.name).wrong == 0
    row = np.arange(130)[:, None]
    for change in (row == 77, -(row % 2), row == 129, (row > 5) * np.int64(2**32)):
        made = (right + change).astype(right.dtype)
        found = subject.check(made, name=result.name)
        due = check(made, subject.known[result.name], result.dtype)
        assert found.wrong == found.certain == due.wrong == (made != right).sum()
        assert (found.row, found.col) == (due.first or (0, 0)) and found.infinite == 0


def test_a_question_is_small_enough_to_be_passed_in_registers():
    """NVRTC takes the address of a larger one, which the emulator does not know."""
    assert max(map(ctypes.sizeof, (Question, CacheQuestion))) <= 128


def test_results_may_be_flushed_to_zero():
    row = np.linspace(-110, 0, 37, dtype=np.float32)
    subject = Checked(Problem(1, 37), {"input": row[None]})
    right = subject.truth.values.astype(np.float32)
    subnormal = (right > 0) & (right < np.finfo(np.float32).smallest_normal)
    assert subnormal.any()
    found = subject.check(np.where(subnormal, np.float32(0), right))
    assert found.wrong == 0 and found.max_ulp < 0.51


LEAST = np.float64(5e-324)


@pytest.mark.parametrize("dtype", [DType.F32, DType.BF16])
def test_products_of_exponentials_that_are_no_normal_numbers_are_flushed_or_right(dtype):
    y = np.append(-np.linspace(80, 100, 37), 0.0)[None]
    arrays = {"input": y.astype(dtype.numpy), "grad": (y == 0).astype(dtype.numpy)}
    subject = Checked(Problem(1, 38, dtype, Op.LOG_SOFTMAX_BACKWARD), arrays)
    right, flushed = subject.truth.values, subject.truth.flushed
    assert 0 < (right != flushed).sum() < 37
    for made, wrong in ((right, 0), (flushed, 0), (2 * right - flushed, 1), (-right, 1)):
        made = np.append(made[:, :-1], right[:, -1:], axis=1).astype(dtype.numpy)
        assert subject.check(made).wrong == check(made, subject.truth, dtype).wrong
        assert (check(made, subject.truth, dtype).wrong > 5) == wrong


@pytest.mark.parametrize("op", [Op.SOFTMAX, Op.CROSS_ENTROPY, Op.CROSS_ENTROPY_BACKWARD])
def test_zeros_of_which_the_operator_knows_the_sign_are_told_apart(checked, op):
    subject = checked(Problem(19, 37, op=op))
    right = subject.truth.values.astype(np.float32)
    made = np.where(right == 0, np.float32(-0.0), right)
    known = (right == 0) & subject.truth.plus_zero[:, None]
    found = subject.check(made)
    assert found.wrong == found.certain == known.sum() > 0
    assert check(made, subject.truth, DType.F32).wrong == known.sum()


FAR = -np.linspace(744, 747, 37)
"""Distances below the maximum around which float64 has no number but 0 for e^x any more."""


def far_rows(op):
    """A row whose other results are about the smallest number that float64 has."""
    arrays = {"input": np.append(FAR, 0.0)[None]}
    if op is Op.LOG_SOFTMAX_BACKWARD:
        arrays["grad"] = np.append(np.zeros(37), 1.0)[None]
    elif op is Op.SOFTMAX_BACKWARD:
        arrays["input"] = np.append(np.full(37, LEAST), 1.0)[None]
        arrays["grad"] = np.append(np.zeros(37), 0.25)[None]
    return Checked(Problem(1, 38, DType.F64, op), arrays)


@pytest.mark.sampled(5)
@pytest.mark.parametrize("op", [Op.SOFTMAX, Op.SOFTMAX_BACKWARD, Op.LOG_SOFTMAX_BACKWARD])
def test_the_smallest_number_is_right_where_float64_comes_to_0(op):
    """The reference has more exponents than the GPU, and knows that the truth is not 0."""
    subject = far_rows(op)
    right = subject.truth.values.astype(np.float64)
    sign = np.where(np.signbit(right), -1.0, 1.0)
    output = np.where(np.abs(right) <= LEAST, sign * LEAST, right)
    assert (output != right).any()
    for judged in (output, right):
        assert check(judged, subject.truth, DType.F64).wrong == subject.check(judged).wrong == 0


@pytest.mark.exhaustive
def test_what_is_wrong_at_an_infinity_is_told_from_rounding(checked):
    """Zeros where -inf is due have no error in numbers, and are no rounding."""
    subject = checked(Problem(20, 37, op=Op.LOG_SOFTMAX, mask=Mask.LENGTHS))
    right = subject.truth.values.astype(np.float32)
    found = subject.check(np.where(np.isneginf(right), np.float32(0), right))
    assert found.wrong == found.infinite == np.isneginf(right).sum() > 0
    assert found.error < 1e-6
