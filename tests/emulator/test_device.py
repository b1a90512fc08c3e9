"""The emulated device: variants in guarded memory, at aligned and at odd elements."""

from dataclasses import replace

import numpy as np
import pytest
from emulated_output import output_of
from virtual_arch import ARCH

from explorer.codegen.units import emit
from explorer.compile.compiler import Compiler
from explorer.devices.emulated import device
from explorer.devices.emulated.device import EmulatedKernel, LaunchRefused, emulate
from explorer.devices.verdict import Status
from explorer.model.config import Config
from explorer.model.element import DType
from explorer.model.problem import Problem
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
