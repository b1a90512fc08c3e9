"""Kernels whose result depends on the order in which threads run, and twins that do not."""

from dataclasses import replace

import numpy as np
import pytest
from virtual_arch import ARCH

from explorer.codegen.variant import Launch
from explorer.compile.compiler import Compiler
from explorer.devices.emulated import device, emulator
from explorer.devices.emulated.device import EmulatedKernel, emulate
from explorer.devices.emulated.emulator import EVERY_ORDER, Emulator
from explorer.devices.program_under_test import ProgramUnderTest
from explorer.devices.verdict import Status
from explorer.model.config import Config
from explorer.model.element import DType
from explorer.model.problem import Problem
from explorer.ptx_emulator import Kind, LaunchLimits, Schedule
from explorer.reference.inputs import verification_inputs

PROBLEM = Problem(16, 512)

SOFTMAX = """
__device__ float larger(float a, float b) { return a > b || a != a ? a : b; }
extern "C" __global__ void __launch_bounds__(256) k(const float* x, float* y, long long rows) {
  __shared__ float total, largest[8], parts[8];
  __shared__ unsigned count;
  const int t = threadIdx.x, warp = t / 32;
  x += blockIdx.x * 512; y += blockIdx.x * 512;
  float a = x[t], b = x[t + 256];
  float maximum = a != a || b != b ? 0.f / 0.f : fmaxf(a, b);
  for (int i = 16; i; i /= 2) maximum = larger(maximum, __shfl_xor_sync(0xffffffffu, maximum, i));
  if (t % 32 == 0) largest[warp] = maximum;
  if (t == 0) { total = 0.f; count = 0; }
  __syncthreads();
  for (int i = 0; i < 8; ++i) maximum = larger(maximum, largest[i]);
  a = exp2f((a - maximum) * 1.44269504f); b = exp2f((b - maximum) * 1.44269504f);
  float sum = a + b;
  for (int i = 16; i; i /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, i);
  SUM
  __syncthreads();
  y[t] = a / total; y[t + 256] = b / total;
}"""
FIXED = """
  if (t % 32 == 0) parts[warp] = sum;
  __syncthreads();
  if (t == 0) { float s = 0.f; for (int i = 0; i < 8; ++i) s += parts[i]; total = s; }"""
BY_ATOMICS = "if (t % 32 == 0) atomicAdd(&total, sum);"
BY_EXCHANGE = """
  if (t % 32 == 0) {
    unsigned* word = reinterpret_cast<unsigned*>(&total);
    unsigned seen = atomicOr(word, 0u), before;
    do {
      before = seen;
      seen = atomicCAS(word, before, __float_as_uint(__uint_as_float(before) + sum));
    } while (seen != before);
  }"""
BY_ARRIVAL = """
  if (t % 32 == 0) parts[atomicAdd(&count, 1u)] = sum;
  __syncthreads();
  if (t == 0) { float s = 0.f; for (int i = 0; i < 8; ++i) s += parts[i]; total = s; }"""
LAST_ONE_SUMS = """
  if (t % 32 == 0) {
    parts[warp] = sum;
    __threadfence_block();
    asm volatile("fence.acq_rel.gpu;" ::: "memory");
    unsigned seen;
    asm volatile("atom.acq_rel.gpu.shared.add.u32 %0, [%1], 1;"
                 : "=r"(seen) : "r"((unsigned)__cvta_generic_to_shared(&count)) : "memory");
    if (seen == 7) { float s = 0.f; for (int i = 0; i < 8; ++i) s += parts[i]; total = s; }
  }"""


def kernel_of(way, limits=None):
    ptx = Compiler(ARCH, line_info=True).compile(SOFTMAX.replace("SUM", way)).ptx
    launch = Launch("k", PROBLEM.rows, 256, 0, ("input", "output", "rows"))
    return replace(EmulatedKernel.of(ptx, [launch]), limits=limits)


def ran(way, schedules=EVERY_ORDER, **options):
    arrays = verification_inputs(PROBLEM)
    return emulate(kernel_of(way, **options), PROBLEM, arrays, rounding=1e-4, schedules=schedules)


@pytest.mark.parametrize("way", [FIXED, LAST_ONE_SUMS])
def test_a_sum_in_a_fixed_order_is_verified_in_every_order(way):
    made = ran(way)
    assert made.status is Status.VERIFIED, made.findings
    assert made.schedules == EVERY_ORDER and not made.left_out


def test_a_sum_by_float_atomics_is_found_at_once():
    made = ran(BY_ATOMICS, schedules=[Schedule.LOCKSTEP])
    (finding,) = made.findings
    assert finding.kind is Kind.SCHEDULE and "not associative" in finding.message
    assert "several threads add floating-point numbers" in finding.message
    assert made.check.deviation < 1e-5  # its numbers are right


@pytest.mark.parametrize("way", [BY_EXCHANGE, BY_ARRIVAL])
def test_a_sum_in_the_order_of_arrival_differs_in_its_bits(way):
    alone = ran(way, schedules=[Schedule.LOCKSTEP])
    assert not alone.findings
    made = ran(way)
    (finding,) = made.findings
    assert made.status is Status.WRONG and finding.kind is Kind.SCHEDULE
    assert "depends on the order" in finding.message
    assert finding.message.count("row ") == 1 and finding.count > 1


def test_the_line_of_a_float_atomic_is_named(monkeypatch):
    """Where the bits differ, and the emulator did not object to the atomic itself."""
    kernel = kernel_of(BY_ATOMICS)
    lines = {i.source for i in kernel.module.entries["k"].instructions if i.root == "atom"}
    output = np.zeros((3, 512), np.float32)
    runs = [device._Run(s, [], None, 1, (output + n,), ()) for n, s in enumerate(EVERY_ORDER[:2])]
    (finding,) = device._differences(kernel, PROBLEM, *runs)
    assert finding.source in lines and "row 0, column 0 is 0.0 in lockstep" in finding.message


def test_nan_is_nan_whatever_its_payload():
    kernel = kernel_of(FIXED)
    words = np.full((3, 512), 0x7FC00000, np.uint32)
    outputs = [(words + n).view(np.float32) for n in range(2)]
    runs = [device._Run(EVERY_ORDER[n], [], None, 1, (outputs[n],), ()) for n in range(2)]
    assert not list(device._differences(kernel, PROBLEM, *runs))


def test_what_costs_too_much_is_left_out_with_its_reason(monkeypatch):
    monkeypatch.setattr(device, "SCHEDULE_STEPS", 100)
    made = ran(BY_ARRIVAL)
    assert made.status is Status.VERIFIED and made.schedules == (Schedule.LOCKSTEP,)
    assert "the permuted schedule" in made.left_out and "more than 100" in made.left_out


def test_limits_of_the_gpu_are_findings():
    made = ran(FIXED, limits=LaunchLimits(registers_per_block=65536, registers_per_thread=257))
    (finding,) = made.findings
    assert made.status is Status.WRONG and finding.kind is Kind.LAUNCH
    enough = LaunchLimits(registers_per_block=65536, registers_per_thread=255)
    assert ran(FIXED, limits=enough).status is Status.VERIFIED


# ------------------------------------------------------------------ as a user's file is judged


def program(**changes):
    problem = Problem(64, 1000, changes.pop("dtype", DType.F32))
    config = Config(**{"threads_per_row": 256, "cache_holds": "input", **changes})
    return ProgramUnderTest.of_config(problem, config)


def test_a_verified_program_was_run_in_every_order():
    verdict = Emulator("sm_90").verify(program())
    assert verdict.status is Status.VERIFIED
    assert verdict.runs[0].schedules == EVERY_ORDER


def test_launch_bounds_of_half_the_threads_are_wrong():
    tested = program()
    assert "__launch_bounds__(kThreads" in tested.source
    bound = tested.source.replace("__launch_bounds__(kThreads", "__launch_bounds__(kThreads / 2")
    verdict = Emulator("sm_90").verify(replace(tested, source=bound))
    assert verdict.status is Status.WRONG
    assert "256 threads exceeds the kernel's .maxntid 128" in verdict.sentence


def test_an_output_that_is_read_back_by_nc_is_wrong():
    tested = program(cache="output", cache_holds="exp")
    assert Emulator("sm_90").verify(tested).status is Status.VERIFIED
    plain = "as_word(vector) = reinterpret_cast<const Word*>(row.output)[k];"
    cached = "as_word(vector) = __ldg(reinterpret_cast<const Word*>(row.output) + k);"
    assert tested.source.count(plain) == 1
    wrong = replace(tested, source=tested.source.replace(plain, cached))
    verdict = Emulator("sm_90").verify(wrong)
    assert (
        verdict.status is Status.WRONG
        and verdict.deciding_run.findings[0].kind is Kind.NON_COHERENT
    )


# ------------------------------------------------------------------ who comes first

TICKETS = """
  __shared__ unsigned ticket;
  for (;;) {
    __syncthreads();
    if (threadIdx.x == 0) ticket = atomicAdd(&next_row, 1u);
    __syncthreads();
    if (ticket >= rows) break;
    softmax_rows(input, output, ticket);
  }
  if (threadIdx.x == 0 && atomicAdd(&blocks_done, 1u) == gridDim.x - 1) {
    atomicExch(&next_row, 0u);
    atomicExch(&blocks_done, 0u);
  }"""


def test_blocks_that_take_rows_as_they_come_are_unverified():
    """They are right. Which rows a far block would work on is not known, and so not said."""
    tested = program(persistent=2)
    start = tested.source.index("  for (; first_row < rows;")
    end = tested.source.index("\n}", start)
    source = tested.source[:start] + TICKETS + tested.source[end:]
    kernel = "SOFTMAX_API __global__"
    source = source.replace(kernel, f"__device__ unsigned next_row, blocks_done;\n{kernel}")
    verdict = Emulator("sm_90").verify(replace(tested, source=source))
    assert verdict.status is Status.UNVERIFIED
    assert "another order of threads gives its rows to other blocks" in verdict.sentence


def test_an_address_by_way_of_memory_from_an_atomic_is_unverified():
    """A maximum is the same in any order, but that is not what is known of it."""
    tested = program()
    count = "__shared__ unsigned come; if (threadIdx.x == 0) come = 0; __syncthreads();"
    slot = f"if (Combine::identity() == 0.0f) scratch[warp] = value; else {{ {count} if (lane == 0)"
    put = "if (lane == 0) scratch[warp] = value;"
    assert tested.source.count(put) == 1
    source = tested.source.replace(put, f"{slot} scratch[atomicAdd(&come, 1u)] = value; }}")
    verdict = Emulator("sm_90").verify(replace(tested, source=source))
    assert verdict.status is Status.UNVERIFIED
    assert "what an atomic returns decides the address" in verdict.sentence


@pytest.mark.parametrize("seed", [1, 2])
def test_a_random_order_is_that_of_its_seed(seed):
    verdict = Emulator("sm_90").verify(replace(program(), seed=seed))
    assert verdict.status is Status.VERIFIED, verdict.sentence
    arrays = verification_inputs(PROBLEM)
    random = Schedule.LOCKSTEP, Schedule.RANDOM
    made = [
        emulate(kernel_of(BY_ARRIVAL), PROBLEM, arrays, rounding=1e-4, schedules=random, seed=seed)
        for _ in range(2)
    ]
    assert made[0].findings == made[1].findings


def test_a_kernel_that_spins_is_given_up_in_time(monkeypatch):
    monkeypatch.setattr(emulator, "MOST_WORK_OF_SPINNING", 10_000_000)
    tested = program()
    wait = """  if (threadIdx.x == 0) {
    atomicAdd(&here, 1u);
    while (atomicAdd(&here, 0u) <= gridDim.x) {}
  }
  __syncthreads();
  // Maximum."""
    kernel = "SOFTMAX_API __global__"
    source = tested.source.replace(kernel, f"__device__ unsigned here;\n{kernel}")
    verdict = Emulator("sm_90").verify(
        replace(tested, source=source.replace("  // Maximum.", wait))
    )
    assert verdict.status in (Status.UNVERIFIED, Status.WRONG)
    assert verdict.findings[0].kind in (Kind.LIMIT, Kind.DEADLOCK)
