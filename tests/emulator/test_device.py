"""The emulated device: variants in guarded memory, at aligned and at odd elements."""

from dataclasses import replace

import numpy as np
import pytest
from emulated_output import output_of
from kinds import EVERY, held
from virtual_arch import ARCH

from explorer.codegen.units import emit
from explorer.compile.compiler import Compiler
from explorer.devices.emulated import device
from explorer.devices.emulated.device import EmulatedKernel, LaunchRefused, emulate
from explorer.devices.verdict import Status
from explorer.model.config import Config
from explorer.model.element import DType, IndexType
from explorer.model.problem import Problem, results
from explorer.ops import Op
from explorer.ptx_emulator.findings import Kind
from explorer.reference.check import check
from explorer.reference.inputs import verification_inputs
from explorer.reference.truth import truth_of

ANY_ALIGNMENT = Problem(5, 129)
CONFIG = Config(threads_per_row=32)
SHARE = "x[slot * kWidth + i] * inverse_sum"
FIRST = "  const int thread_in_row = threadIdx.x % kThreadsPerRow;"


def kernel_of(problem, config=CONFIG, spoil=lambda source: source):
    variant = emit(problem, config)
    source = spoil(variant.source)
    ptx = Compiler(ARCH, line_info=True).compile(source).ptx
    return EmulatedKernel.of(ptx, variant.launches)


def ran(problem, spoil=lambda source: source, **options):
    matrix = verification_inputs(problem)["input"]
    return emulate(kernel_of(problem, spoil=spoil), problem, {"input": matrix}, **options)


def kinds(emulation):
    return {finding.kind for finding in emulation.findings}


@pytest.mark.parametrize("dtype", list(DType))
@pytest.mark.parametrize("odd", [False, True])
def test_a_right_kernel_is_verified(dtype, odd):
    made = ran(Problem(ANY_ALIGNMENT.rows, ANY_ALIGNMENT.cols, dtype), misaligned_by=odd)
    assert made.status is Status.VERIFIED, made.findings
    assert made.counters.global_stores.bytes == 5 * 129 * dtype.itemsize
    assert made.misaligned_by == odd


def test_vectors_at_odd_elements_are_misaligned():
    made = ran(Problem(5, 128), misaligned_by=2)
    assert made.status is Status.WRONG and Kind.MISALIGNED in kinds(made)


@pytest.mark.parametrize("odd", [False, True])
@pytest.mark.parametrize("at", ["-1", "rows * kCols"])
def test_one_element_beside_the_output_is_out_of_bounds(odd, at):
    touch = f"  if (threadIdx.x == 0) output[{at}] = 1.0f;\n"
    made = ran(ANY_ALIGNMENT, lambda s: s.replace(FIRST, touch + FIRST), misaligned_by=odd)
    assert made.status is Status.WRONG and kinds(made) == {Kind.OUT_OF_BOUNDS}
    assert made.check.wrong == 0


def test_what_is_not_written_or_written_twice_is_found():
    gap = ran(ANY_ALIGNMENT, lambda s: s.replace("index < rows;", "index < rows - 1;"))
    assert Kind.NEVER_WRITTEN in kinds(gap) and gap.check.wrong >= 129
    again = "  if (threadIdx.x == 0) output[0] = 0.0f;\n"
    assert Kind.WRITTEN_TWICE in kinds(
        ran(ANY_ALIGNMENT, lambda s: s.replace(FIRST, again + FIRST))
    )


def test_rounding_is_told_from_wrong_numbers():
    def off(by):
        return lambda s: s.replace(SHARE, f"{SHARE} * {by}f")

    assert ran(ANY_ALIGNMENT, off(1.00001), rounding=1e-4).status is Status.INACCURATE
    assert ran(ANY_ALIGNMENT, off(1.00001)).status is Status.WRONG
    assert ran(ANY_ALIGNMENT, off(1.01), rounding=1e-4).status is Status.WRONG
    nan = f'x[slot * kWidth + i] > 0.5f ? nanf("") : {SHARE}'
    lost = ran(ANY_ALIGNMENT, lambda s: s.replace(SHARE, nan), rounding=1e-4)
    assert lost.status is Status.WRONG and lost.check.deviation == float("inf")


def test_an_endless_kernel_is_not_verified():
    made = ran(ANY_ALIGNMENT, step_limit=50)
    assert made.status is Status.UNVERIFIED and kinds(made) == {Kind.LIMIT}


def test_unknown_arguments_are_refused():
    kernel = kernel_of(ANY_ALIGNMENT)
    (step,) = kernel.launches
    odd = replace(kernel, launches=(replace(step, arguments=("input", "mask", "rows")),))
    with pytest.raises(LaunchRefused, match="mask"):
        emulate(odd, ANY_ALIGNMENT, {"input": np.zeros((5, 129), np.float32)})


def test_outputs_can_be_had():
    problem = Problem(5, 129, DType.BF16)
    matrix = verification_inputs(problem)["input"]
    output = output_of(kernel_of(problem), problem, {"input": matrix})
    assert output.shape == (5, 129) and output.dtype == DType.BF16.numpy
    assert check(output, truth_of(problem, {"input": matrix}), problem.dtype).wrong == 0


@pytest.mark.parametrize("broken", ["x[slot * kWidth + i] * 2.0f", SHARE])
def test_a_large_output_is_compared_in_parts_as_it_is_as_a_whole(monkeypatch, broken):
    problem = Problem(13, 129)
    whole = ran(problem, lambda source: source.replace(SHARE, broken))
    monkeypatch.setattr(device, "CHECKED_ELEMENTS", 3 * 129)
    parts = ran(problem, lambda source: source.replace(SHARE, broken))
    assert parts.check.mean_ulp == pytest.approx(whole.check.mean_ulp, rel=1e-12)
    assert replace(parts.check, mean_ulp=whole.check.mean_ulp) == whole.check
    assert (whole.check.wrong > 0) == (broken != SHARE)


# ------------------------------------------------------------------ several results

SEVERAL = Problem(9, 129, op=Op.LOG_PROB, also=EVERY, ids_per_row=2)


def several(right="", wrong="", problem=SEVERAL, **options):
    """What comes of a kernel of several results, one text of which is another."""

    def spoil(source):
        assert right in source
        return source.replace(right, wrong) if right else source

    kernel = kernel_of(problem, held(problem), spoil)
    return emulate(kernel, problem, verification_inputs(problem), rounding=1e-4, **options)


@pytest.mark.parametrize("odd", [0, 2])
def test_every_result_is_checked(odd):
    made = several(misaligned_by=odd)
    assert made.status is Status.VERIFIED, (made.sentence, made.findings)
    assert len(made.checks) == len(results(SEVERAL)) == 7


WRONG = {
    "rank": ("rank_of_rows[index] =", "rank_of_rows[index] = 1 +"),
    "argmax": ("-1 : state.first;", "-1 : (1ll << 32) + state.first;"),
    "entropy": ("entropy_of_rows[index] =", "entropy_of_rows[index] = 0.01f +"),
    "lse": ("lse_of_rows[index] =", "lse_of_rows[index] = 0.01f +"),
    "maximum": ("maximum_of_rows[index] =", "maximum_of_rows[index] = 1e-3f +"),
    "log_sum": ("log_sum_of_rows[index] =", "log_sum_of_rows[index] = 0.01f +"),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_result_that_is_wrong_is_named(name):
    made = several(*WRONG[name])
    assert made.status is Status.WRONG and not made.findings
    assert f"of 9 elements of {name} are wrong, the first, in row " in made.sentence
    assert made.check is made.checks[[result.name for result in results(SEVERAL)].index(name)]


def test_whole_numbers_are_told_in_full():
    made = several("-1 : state.first;", "-1 : 123456789 + state.first;")
    got, due = made.check.got, made.check.due
    assert isinstance(got, int) and got - due == 123456789
    assert f"is {got}, and should be " in made.sentence


def test_a_result_that_is_inexact_is_told_from_one_that_is_wrong():
    made = several("entropy_of_rows[index] =", "entropy_of_rows[index] = 1.00001f *")
    assert made.status is Status.INACCURATE
    assert "of 9 elements of entropy are inaccurate under default" in made.sentence
    halves = replace(SEVERAL, dtype=DType.BF16, out_dtype=DType.BF16)
    spoil = ("entropy_of_rows[index] =", "entropy_of_rows[index] = 1.00001f *")
    assert several(*spoil, problem=halves).status is Status.INACCURATE
    off = several("- log_sum);", "- log_sum * 1.1f);", halves)
    assert off.status is Status.WRONG and "of 18 elements are wrong" in off.sentence


@pytest.mark.parametrize("name", [result.name for result in results(SEVERAL)][1:])
@pytest.mark.parametrize("odd", [0, 2])
def test_a_result_that_is_not_written_or_written_beside_is_found(name, odd):
    to = f"{name}_of_rows[index] ="
    lost = several(to, "if (index != 5) " + to, misaligned_by=odd)
    assert kinds(lost) == {Kind.NEVER_WRITTEN} and f"{name}[" in lost.findings[0].message
    beside = several(to, f"if (index == 0) {name}_of_rows[rows] = 0; {to}", misaligned_by=odd)
    assert kinds(beside) == {Kind.OUT_OF_BOUNDS} and name in beside.findings[0].message
    before = several(to, f"if (index == 0) {name}_of_rows[-1] = 0; {to}", misaligned_by=odd)
    assert kinds(before) == {Kind.OUT_OF_BOUNDS}


@pytest.mark.parametrize("dtype", IndexType)
@pytest.mark.parametrize("half", ["id < 0", "id >= kCols"])
def test_an_id_that_is_no_column_gives_no_number(dtype, half):
    problem = replace(SEVERAL, ids_dtype=dtype)
    assert several(problem=problem).status is Status.VERIFIED
    made = several("if (id < 0 || id >= kCols)", f"if ({half})", problem)
    assert made.status is Status.WRONG and "should be NaN" in made.sentence


def test_ids_are_at_their_stride_and_gaps_between_them_are_not_read():
    problem = replace(SEVERAL, ids_stride=5, input_stride=132, output_stride=3)
    assert several(problem=problem).status is Status.VERIFIED
    beside = "element_of(row_ids[index < 8 ? kIds : 0]"
    made = several("element_of(row_ids[0]", beside, problem)
    assert kinds(made) == {Kind.OUT_OF_BOUNDS} and "between rows" in made.findings[0].message


def test_a_large_problem_of_several_results_is_compared_in_parts(monkeypatch):
    spoil = ("-1 : state.first;", "-1 : state.first + (index == 7);")
    whole = several(*spoil)
    monkeypatch.setattr(device, "CHECKED_ELEMENTS", 3 * 129)
    parts = several(*spoil)
    assert parts.sentence == whole.sentence and "in row 7, column 0" in parts.sentence
