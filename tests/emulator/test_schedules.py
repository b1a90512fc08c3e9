"""Schedules: another order of execution gives the same result, or the order is found to matter."""

import numpy as np
import pytest

SCHEDULES = ["lockstep", "staggered", "permuted", "random"]
X = np.random.default_rng(3).standard_normal((8, 256)).astype(np.float32)

REDUCE = """extern "C" __global__ void k(const float* x, float* y) {
  __shared__ float s[8];
  const int t = threadIdx.x;
  float v = x[blockIdx.x * 256 + t];
  for (int i = 16; i; i /= 2) v += __shfl_xor_sync(FULL, v, i);
  if (t % 32 == 0) s[t / 32] = v;
  __syncthreads();
  v = 0.f;
  for (int i = 0; i < 8; ++i) v += s[i];
  __syncthreads();
  if (t < 100) s[t % 8] = v;
  if (v > 0.f) v *= 2.f; else if (t & 1) v += 1.f;
  y[blockIdx.x * 256 + t] = v;
}"""


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_a_sound_kernel_does_the_same_in_every_order(run, out, schedule):
    source = REDUCE.replace("if (t < 100) s[t % 8] = v;", "if (t < 8) s[t] = v;")
    results = [run(source, X, out(X.shape), grid=8, block=256, schedule=s)
               for s in ("lockstep", schedule)]  # fmt: skip
    for result in results:
        assert not result.findings, result.text
    assert results[0]["out0"].tobytes() == results[1]["out0"].tobytes()
    assert results[0].counters == results[1].counters


def test_warps_run_from_the_last_to_the_first(run, out):
    source = """extern "C" __global__ void k(unsigned* count, unsigned* y) {
      const unsigned t = threadIdx.x;
      if (t % 32 == 0) y[t / 32] = atomicAdd(count, 1u);
      __syncthreads();
      if (t % 32 == 0) y[8 + t / 32] = atomicAdd(count, 1u); }"""
    count = out(1, np.uint32, initial=[0], once=False)
    lockstep = run(source, count, out(16, np.uint32), block=256)
    permuted = run(source, count, out(16, np.uint32), block=256, schedule="permuted")
    assert lockstep["out1"].tolist() == [*range(16)]
    assert permuted["out1"].tolist() == [*range(7, -1, -1), *range(15, 7, -1)]
    assert not lockstep.findings and not permuted.findings


def test_lanes_take_turns_from_the_last_to_the_first(run, out):
    source = """extern "C" __global__ void k(unsigned* count, unsigned* y) {
      unsigned old; asm volatile("atom.add.u32 %0, [%1], 1;" : "=r"(old) : "l"(count));
      y[threadIdx.x] = old; }"""
    count = out(1, np.uint32, initial=[0], once=False)
    result = run(source, count, out(64, np.uint32), block=64, schedule="permuted")
    assert result["out1"].tolist() == [*range(63, -1, -1)]


def test_blocks_that_communicate_go_backwards(run, out):
    source = """extern "C" __global__ void k(unsigned* count, unsigned* y) {
      if (threadIdx.x == 0) y[blockIdx.x] = atomicAdd(count, 1u); }"""
    count = out(1, np.uint32, initial=[0], once=False)
    result = run(source, count, out(5, np.uint32), grid=5, schedule="permuted")
    assert result["out1"].tolist() == [4, 3, 2, 1, 0]


def test_a_flag_that_is_waited_for_makes_progress(run, out):
    """Block 1 waits for block 0, which comes later."""
    source = """extern "C" __global__ void k(unsigned* flag, unsigned* y) {
      if (threadIdx.x == 0) {
        unsigned seen = blockIdx.x == 0;
        while (!seen)
          asm volatile("ld.acquire.gpu.u32 %0, [%1];" : "=r"(seen) : "l"(flag) : "memory");
        if (blockIdx.x == 0) {
          y[0] = 5;
          asm volatile("st.release.gpu.u32 [%0], 1;" :: "l"(flag) : "memory");
        } else y[1] = y[0] + 1;
      } }"""
    flag = out(1, np.uint32, initial=[0], once=False)
    for schedule in SCHEDULES:
        result = run(source, flag, out(2, np.uint32), grid=2, block=64, schedule=schedule)
        assert not result.findings, result.text
        assert result["out1"].tolist() == [5, 6]


SUM = """#include <cuda_fp16.h>
#include <cuda_bf16.h>
extern "C" __global__ void k(const float* x, TYPE* y) {
  const int t = threadIdx.x;
  BODY
}"""
ONE_SUM = "atomicAdd(y, (TYPE)x[blockIdx.x * 256 + t]);"
ZERO = {"float": np.float32, "double": np.float64, "__half": np.float16}


def added(run, out, body, type_="float", size=1, **options):
    source = SUM.replace("BODY", body).replace("TYPE", type_)
    total = out(size, ZERO[type_], initial=[0] * size, once=False)
    return run(source, X, total, reproducible=True, **options)


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("type_", ZERO)
@pytest.mark.parametrize(
    "options",
    [
        {"block": 32},
        {"block": 64, "grid": 4},
        {"block": 1, "grid": 4},
        {"block": 1, "grid": 4, "batch_lanes": 32},
    ],
)
def test_a_sum_of_floats_by_atomics_depends_on_the_order(run, out, type_, options, schedule):
    result = added(run, out, ONE_SUM, type_, schedule=schedule, **options)
    (finding,) = [f for f in result.findings if f.kind == "schedule"]
    assert "not associative" in finding.message and finding.source.line and finding.other.line


def test_a_kernel_that_need_not_be_reproducible_may_sum_by_atomics(run, out):
    source = SUM.replace("BODY", ONE_SUM).replace("TYPE", "float")
    total = out(1, initial=[0], once=False)
    assert not run(source, X, total, block=64, grid=4).findings


def test_the_bits_of_such_a_sum_differ(run, out):
    sums = [added(run, out, ONE_SUM, block=256, grid=8, schedule=s)["out0"] for s in SCHEDULES]
    assert sums[0].tobytes() != sums[2].tobytes()


@pytest.mark.parametrize(
    "body",
    [
        "atomicAdd(y + blockIdx.x * 64 + t, x[t]);",
        "for (int i = 0; i < 4; ++i) if (t == 0) atomicAdd(y + blockIdx.x, x[i]);",
        "if (t == 0) atomicAdd(y + blockIdx.x, x[0]); __syncthreads();"
        "if (t == 40) atomicAdd(y + blockIdx.x, x[1]);",
        "for (int i = 0; i < 32; ++i) { if (t == i) atomicAdd(y + blockIdx.x, x[i]);"
        "  __syncwarp(); }",
    ],
)
def test_additions_in_a_fixed_order_are_clean(run, out, body):
    for schedule in SCHEDULES:
        result = added(run, out, body, size=256, block=64, grid=4, schedule=schedule)
        assert "schedule" not in result.kinds, result.text


def test_integers_and_extremes_are_no_defect(run, out):
    source = """extern "C" __global__ void k(unsigned* y) {
      atomicAdd(y, threadIdx.x); atomicMax(y + 1, threadIdx.x); atomicAdd((int*)y + 2, -1);
      atomicAdd((unsigned long long*)y + 2, 1ull); }"""
    for schedule in SCHEDULES:
        total = out(6, np.uint32, initial=[0] * 6, once=False)
        result = run(source, total, block=64, grid=3, schedule=schedule, reproducible=True)
        assert result.kinds <= {"never-written"}, result.text
        assert result["out0"].tolist() == [3 * 2016, 63, 2**32 - 192, 0, 192, 0]


def test_clusters_take_turns_by_rank(run, out):
    source = """extern "C" __global__ void __cluster_dims__(2, 1, 1) k(const float* x, float* y) {
      __shared__ float s[64];
      const int t = threadIdx.x; unsigned there, rank;
      s[t] = x[blockIdx.x * 64 + t];
      MEET
      asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
      asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there)
          : "r"((unsigned)__cvta_generic_to_shared(s + 63 - t)), "r"(rank ^ 1));
      float v; asm volatile("ld.shared::cluster.f32 %0, [%1];" : "=f"(v) : "r"(there));
      MEET
      y[blockIdx.x * 64 + t] = v; }"""
    meet = """asm volatile("barrier.cluster.arrive.aligned;" ::: "memory");
      asm volatile("barrier.cluster.wait.aligned;" ::: "memory");"""
    for schedule in SCHEDULES:
        result = run(source.replace("MEET", meet), X, out(256), grid=4, block=64, schedule=schedule)
        assert not result.findings, result.text
        expected = X.reshape(-1)[:256].reshape(2, 2, 64)[:, ::-1, ::-1].reshape(-1)
        assert (result["out0"] == expected).all()
