"""The emulated device: variants in guarded memory, at aligned and at odd elements."""

from dataclasses import replace

import numpy as np
import pytest
from emulated_output import output_of
from kinds import EVERY
from virtual_arch import ARCH

from explorer.codegen.units import emit
from explorer.codegen.variant import Launch
from explorer.compile.compiler import Compiler
from explorer.devices.emulated import device
from explorer.devices.emulated.device import EmulatedKernel, LaunchRefused, Variables, emulate
from explorer.devices.verdict import Status
from explorer.model.config import Config
from explorer.model.element import DType, IndexType
from explorer.model.problem import Problem, inputs, results
from explorer.ops import Op
from explorer.ptx_emulator import GlobalMemory
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

BY_THREADS = """
#include <cuda_bf16.h>
__device__ float element_of(Id id, const Element* x) {
  if (id < 0 || id >= kCols) return nanf("");
  return x[id];
}
extern "C" __global__ void k(const Element* input, const Id* ids, Element* output, float* lse,
                             float* entropy, Id* rank, Id* argmax, float* maximum, float* log_sum,
                             long long rows, long long input_stride, long long ids_stride,
                             long long output_stride) {
  const long long row = blockIdx.x * 4 + threadIdx.x;
  if (row >= rows) return;
  const Element* x = input + row * input_stride;
  const Id* own = ids + row * ids_stride;
  float greatest = -1.0f / 0.0f;
  for (int i = 0; i < kCols; ++i) greatest = fmaxf(greatest, static_cast<float>(x[i]));
  const double reference = fminf(fmaxf(greatest, -kLargest), kLargest);
  const float first = element_of(own[0], x);
  double sum = 0.0, weighted = 0.0;
  Id above = 0, place = -1;
  for (int i = kCols - 1; i >= 0; --i) {
    const double gap = static_cast<float>(x[i]) - reference, term = exp(gap);
    sum += term;
    if (term != 0.0) weighted += term * gap;
    above += static_cast<float>(x[i]) > first;
    if (static_cast<float>(x[i]) == greatest) place = i;
  }
  const double log_of_sum = log(sum);
  for (int i = 0; i < kIds; ++i) {
    output[row * output_stride + i] = Element(element_of(own[i], x) - reference - log_of_sum);
  }
  lse[row] = reference + log_of_sum;
  entropy[row] = log_of_sum - weighted / sum;
  rank[row] = isnan(first) ? Id(-1) : above;
  argmax[row] = place;
  maximum[row] = reference;
  log_sum[row] = log_of_sum;
}
"""
"""A thread works on a row, in double precision."""


def several(right="", wrong="", problem=SEVERAL, **options):
    """What comes of a kernel of several results, one text of which is another."""
    assert right in BY_THREADS
    numbers = {
        "kCols": problem.cols,
        "kIds": problem.ids_per_row,
        "kLargest": "3.40282347e38f",
    }
    source = "\n".join(
        [
            "#include <cuda_bf16.h>",
            *(f"#define {name} {value}" for name, value in numbers.items()),
            f"using Element = {problem.dtype.cuda.name};",
            f"using Id = {problem.ids_dtype.cuda.name};",
            BY_THREADS.replace(right, wrong) if right else BY_THREADS,
        ]
    )
    names = [one.name for one in (*inputs(problem), *results(problem))]
    names += ["rows", "input_stride", "ids_stride", "output_stride"]
    launch = Launch("k", -(-problem.rows // 4), 4, 0, tuple(names))
    kernel = EmulatedKernel.of(Compiler(ARCH, line_info=True).compile(source).ptx, (launch,))
    return emulate(kernel, problem, verification_inputs(problem), rounding=1e-4, **options)


@pytest.mark.parametrize("odd", [0, 2])
def test_every_result_is_checked(odd):
    made = several(misaligned_by=odd)
    assert made.status is Status.VERIFIED, (made.sentence, made.findings)
    assert len(made.checks) == len(results(SEVERAL)) == 7


WRONG = {
    "an error of 0.01": ("lse", "lse[row] =", "lse[row] = 0.01 +"),
    "no rescaling": ("entropy", "weighted / sum", "weighted"),
    "the greater of two equal ranks": ("rank", "> first", ">= first"),
    "a rank of what is no column": ("rank", "isnan(first) ? Id(-1) : above", "above"),
    "the last of equal elements": (
        "argmax",
        "== greatest) p",
        "== greatest && place < 0) p",
    ),
    "more than 32 bits": ("argmax", "= place;", "= place + (1ll << 32);"),
    "an infinite reference": ("maximum", "= reference;", "= greatest;"),
    "a difference of one bit": ("maximum", "= reference;", "= nextafterf(reference, 9.0f);"),
    "a logarithm to base 2": ("log_sum", "= log_of_sum;", "= log2(sum);"),
}


@pytest.mark.sampled(3)
@pytest.mark.parametrize("what", WRONG)
def test_a_result_that_is_wrong_is_named(what):
    name, right, wrong = WRONG[what]
    made = several(right, wrong, Problem(99, 129, op=Op.LOG_PROB, also=EVERY))
    assert made.status is Status.WRONG and not made.findings
    assert f"of 99 elements of {name} are wrong, the first, in row " in made.sentence
    assert made.check is made.checks[[result.name for result in results(SEVERAL)].index(name)]


def test_whole_numbers_are_told_in_full():
    made = several("= place;", "= 123456789 + place;")
    got, due = made.check.got, made.check.due
    assert isinstance(got, int) and got - due == 123456789
    assert f"is {got}, and should be " in made.sentence


def test_a_result_that_is_inexact_is_told_from_one_that_is_wrong():
    made = several("entropy[row] =", "entropy[row] = 1.00001 *")
    assert made.status is Status.INACCURATE
    assert "of 9 elements of entropy are inaccurate under default" in made.sentence
    halves = replace(SEVERAL, dtype=DType.BF16, out_dtype=DType.BF16)
    assert several("entropy[row] =", "entropy[row] = 1.00001 *", halves).status is made.status
    off = several("- log_of_sum);", "- log_of_sum * 1.1);", halves)
    assert off.status is Status.WRONG and "of 18 elements are wrong" in off.sentence


@pytest.mark.sampled(5)
@pytest.mark.parametrize("name", [result.name for result in results(SEVERAL)][1:])
@pytest.mark.parametrize("odd", [0, 2])
def test_a_result_that_is_not_written_or_written_beside_is_found(name, odd):
    to = f"{name}[row] ="
    lost = several(to, "if (row != 5) " + to, misaligned_by=odd)
    assert kinds(lost) == {Kind.NEVER_WRITTEN} and f"{name}[" in lost.findings[0].message
    beside = several(to, f"if (row == 0) {name}[rows] = 0; {to}", misaligned_by=odd)
    assert kinds(beside) == {Kind.OUT_OF_BOUNDS} and name in beside.findings[0].message
    before = several(to, f"if (row == 0) {name}[-1] = 0; {to}", misaligned_by=odd)
    assert kinds(before) == {Kind.OUT_OF_BOUNDS}


@pytest.mark.sampled(2)
@pytest.mark.parametrize("dtype", IndexType)
@pytest.mark.parametrize("half", ["id < 0", "id >= kCols", "int(id) < 0 || int(id) >= kCols"])
def test_an_id_that_is_no_column_gives_no_number(dtype, half):
    problem = replace(SEVERAL, ids_dtype=dtype)
    assert several(problem=problem).status is Status.VERIFIED
    made = several("id < 0 || id >= kCols", half, problem)
    if dtype is IndexType.INT32 and "int" in half:
        assert made.status is Status.VERIFIED
    else:
        assert made.status is Status.WRONG and "should be NaN" in made.sentence


def test_ids_are_at_their_stride_and_gaps_between_them_are_not_read():
    problem = replace(SEVERAL, ids_stride=5, input_stride=132, output_stride=3)
    assert several(problem=problem).status is Status.VERIFIED
    made = several("element_of(own[0]", "element_of(own[row < 8 ? kIds : 0]", problem)
    assert kinds(made) == {Kind.OUT_OF_BOUNDS} and "between rows" in made.findings[0].message


def test_a_large_problem_of_several_results_is_compared_in_parts(monkeypatch):
    spoil = ("= place;", "= place + (row == 7);")
    whole = several(*spoil)
    monkeypatch.setattr(device, "CHECKED_ELEMENTS", 3 * 129)
    parts = several(*spoil)
    assert parts.sentence == whole.sentence and "in row 7, column 0" in parts.sentence


def test_variables_hold_what_launches_have_left():
    """In one launch after the other, each with memory of its own for the rest."""
    variables = Variables()
    for held in (0, 5):
        memory = GlobalMemory()
        memory.allocate(np.zeros(4, np.float32), name="input")
        variables.put(memory)
        found = [one for one in memory.allocations[1:] if one.name == "kept"]
        assert [int(memory.read(one).view(np.int32)[0]) for one in found] == [held] * bool(held)
        if not found:
            memory.allocate(np.array([5], np.int32).view(np.uint8), name="kept")
        variables.keep(memory, 1)
    assert variables.are_used
