"""Races and uninitialised reads in shared memory: each bug beside the kernel without it."""

import numpy as np
import pytest

X = np.random.default_rng(0).normal(size=(4, 256)).astype(np.float32)

TREE = """extern "C" __global__ void k(const float* x, float* y) {
  __shared__ float s[256]; int t = threadIdx.x; s[t] = x[blockIdx.x * 256 + t]; %s
  for (int o = 128; o; o >>= 1) { if (t < o) s[t] += s[t + o]; %s }
  if (t == 0) y[blockIdx.x] = s[0]; }"""
BARRIER = "__syncthreads();"


def test_tree_with_all_barriers_is_clean(run, out):
    result = run(TREE % (BARRIER, BARRIER), X, out(4), grid=4, block=256)
    assert not result.findings, result.text
    np.testing.assert_allclose(result["out0"], X.sum(1), rtol=1e-5)
    assert result.counters.barriers == 4 * 9


@pytest.mark.parametrize("barriers", [("", BARRIER), (BARRIER, ""), (BARRIER, "__syncwarp();")])
def test_tree_without_a_barrier_races(run, out, barriers):
    result = run(TREE % barriers, X, out(4), grid=4, block=256)
    assert result.kinds == {"shared-race"}
    finding = result.findings[0]
    assert finding.source.line in (5, 6, 7) and finding.ptx_line > 0 and finding.other is not None


def test_tree_within_a_warp_needs_only_warp_barriers(run, out):
    source = """extern "C" __global__ void k(const float* x, float* y) {
      __shared__ float s[256]; int t = threadIdx.x, l = t & 31; s[t] = x[blockIdx.x * 256 + t];
      __syncwarp();
      for (int o = 16; o; o >>= 1) { float v = l < o ? s[t + o] : 0.f; SYNC
        if (l < o) s[t] += v; __syncwarp(); }
      if (l == 0) y[blockIdx.x * 8 + t / 32] = s[t]; }"""
    clean = run(source.replace("SYNC", "__syncwarp();"), X, out(32), grid=4, block=256)
    assert not clean.findings, clean.text
    np.testing.assert_allclose(clean["out0"], X.reshape(-1, 32).sum(1), rtol=1e-4)
    without = source.replace("__syncwarp(); }", "}").replace("SYNC", "")
    assert "shared-race" in run(without, X, out(32), grid=4, block=256).kinds


MAX_THEN_SUM = """extern "C" __global__ void k(const float* x, float* y) {
  __shared__ float part[8]; int t = threadIdx.x, w = t / 32, l = t %% 32; float v = x[t];
  for (int o = 16; o; o >>= 1) v = fmaxf(v, __shfl_xor_sync(FULL, v, o));
  if (l == 0) part[w] = v; __syncthreads();
  float m = part[0]; for (int i = 1; i < 8; i++) m = fmaxf(m, part[i]); %s
  float s = x[t] - m; for (int o = 16; o; o >>= 1) s += __shfl_xor_sync(FULL, s, o);
  if (l == 0) part[w] = s; __syncthreads();
  s = 0; for (int i = 0; i < 8; i++) s += part[i];
  y[t] = s; }"""


def test_reuse_of_scratch_needs_a_barrier(run, out):
    clean = run(MAX_THEN_SUM % BARRIER, X, out(256), block=256)
    assert not clean.findings, clean.text
    racy = run(MAX_THEN_SUM % "", X, out(256), block=256)
    assert racy.kinds == {"shared-race"}
    assert any("read" in f.message for f in racy.findings), racy.text


def test_a_reader_that_writes_itself_does_not_hide_the_others(run, out):
    source = """extern "C" __global__ void k(const float* x, float* y) {
      __shared__ float s[1]; int t = threadIdx.x; if (t == 255) s[0] = x[0]; __syncthreads();
      float v = s[0]; SYNC if (t == 255) s[0] = v + 1; __syncthreads(); y[t] = v + s[0]; }"""
    assert not run(source.replace("SYNC", BARRIER), X, out(256), block=256).findings
    assert "shared-race" in run(source.replace("SYNC", ""), X, out(256), block=256).kinds


PARTIAL = """extern "C" __global__ void k(const float* x, float* y) {
  __shared__ float s[32]; int t = threadIdx.x; s[t] = x[t];
  if (t < 16) __syncwarp(0x0000ffff); else __syncwarp(0xffff0000);
  y[t] = s[t ^ %d]; }"""


def test_partial_warp_barrier_orders_its_own_lanes_only(run, out):
    assert not run(PARTIAL % 15, X, out(32)).findings
    assert run(PARTIAL % 31, X, out(32)).kinds == {"shared-race"}


def test_named_barrier_orders_its_own_warps_only(run, out):
    source = """extern "C" __global__ void k(const float* x, float* y) {
      __shared__ float s[128]; int t = threadIdx.x; s[t] = x[t];
      if (t < 64) asm volatile("bar.sync 1, 64;" ::: "memory");
      else asm volatile("bar.sync 2, 64;" ::: "memory");
      y[t] = s[t ^ %d]; }"""
    clean = run(source % 63, X, out(128), block=128)
    assert not clean.findings, clean.text
    assert run(source % 127, X, out(128), block=128).kinds == {"shared-race"}


@pytest.mark.parametrize("number", ["1", "1 + t / 128", "1 + (t / 64 & 1)"])
def test_named_barrier_that_more_warps_use_than_it_waits_for(run, out, number):
    """Warps that come in pairs may meet the other pair's, whatever order they are run in."""
    source = """extern "C" __global__ void k(const float* x, float* y) {
      __shared__ float s[256]; int t = threadIdx.x; s[t] = x[t];
      asm volatile("bar.sync %%0, 64;" :: "r"(%s) : "memory"); y[t] = s[t ^ 63]; }"""
    right = run(source % "1 + t / 64", X, out(256), block=256)
    assert not right.findings, right.text
    assert "barrier" in run(source % number, X, out(256), block=256).kinds


def test_named_barrier_that_others_use_once_all_have_met(run, out):
    source = """extern "C" __global__ void k(const float* x, float* y) {
      __shared__ float s[128]; int t = threadIdx.x; s[t] = x[t];
      if (t < 64) asm volatile("bar.sync 1, 64;" ::: "memory");
      %s
      if (t >= 64) asm volatile("bar.sync 1, 64;" ::: "memory");
      y[t] = s[t ^ 63]; }"""
    assert not run(source % "__syncthreads();", X, out(128), block=128).findings
    assert run(source % "", X, out(128), block=128).kinds == {"barrier"}


def test_arrive_and_sync_hand_data_to_another_warp(run, out):
    source = """extern "C" __global__ void k(const float* x, float* y) {
      __shared__ float s[32]; int t = threadIdx.x;
      if (t < 32) { s[t] = x[t]; asm volatile("bar.arrive 1, 64;" ::: "memory"); y[t] = 1; }
      else { SYNC y[t] = s[63 - t]; } }"""
    with_sync = source.replace("SYNC", 'asm volatile("bar.sync 1, 64;" ::: "memory");')
    clean = run(with_sync, X, out(64), block=64)
    assert not clean.findings, clean.text
    assert np.array_equal(clean["out0"][32:], X[0, :32][::-1])
    assert "shared-race" in run(source.replace("SYNC", ""), X, out(64), block=64).kinds


def test_two_lanes_that_write_one_word(run, out):
    source = """extern "C" __global__ void k(const float* x, float* y) {
      __shared__ float s[4]; int t = threadIdx.x; s[%s] = x[%s]; __syncthreads(); y[t] = s[0]; }"""
    assert run(source % ("t / 32", "t"), X, out(64), block=64).kinds == {"shared-race"}
    assert run(source % ("0", "0"), X, out(64), block=64).kinds == {"shared-race"}
    same_value = run(source % ("t / 32", "t / 32"), X, out(64), block=64)
    assert not same_value.findings, same_value.text


def test_read_of_what_nothing_wrote(run, out):
    source = """extern "C" __global__ void k(const float* x, float* y) {
      __shared__ float s[256]; int t = threadIdx.x; if (t < %d) s[t] = x[t]; __syncthreads();
      y[t] = fmaxf(s[t], 0.f); }"""
    assert not run(source % 256, X, out(256), block=256).findings
    result = run(source % 255, X, out(256), block=256)
    assert result.kinds == {"uninitialised-shared"}
    assert result.findings[0].thread == (255, 0, 0)


def test_accesses_of_different_widths_overlap(run, out):
    source = """extern "C" __global__ void k(const float* x, float* y) {
      __shared__ float4 s[32]; int t = threadIdx.x; float* f = (float*)s;
      for (int i = 0; i < 4; i++) f[t + 32 * i] = x[t + 32 * i]; SYNC
      float4 v = s[t]; y[t] = v.x + v.y + v.z + v.w; }"""
    clean = run(source.replace("SYNC", "__syncwarp();"), X, out(32))
    assert not clean.findings
    np.testing.assert_allclose(clean["out0"], X[0, :128].reshape(32, 4).sum(1), rtol=1e-5)
    assert run(source.replace("SYNC", ""), X, out(32)).kinds == {"shared-race"}


def test_sixteen_bit_neighbours_do_not_collide(run, out):
    source = """#include <cuda_fp16.h>
      extern "C" __global__ void k(const float* x, float* y) {
      __shared__ __half s[64]; int t = threadIdx.x; s[t] = __float2half(x[t]); SYNC
      y[t] = __half2float(s[t ^ 1]); }"""
    clean = run(source.replace("SYNC", BARRIER), X, out(64), block=64)
    assert not clean.findings, clean.text
    assert np.array_equal(clean["out0"].reshape(-1, 2)[:, ::-1].ravel(),
                          X[0, :64].astype(np.float16).astype(np.float32))  # fmt: skip
    assert run(source.replace("SYNC", ""), X, out(64), block=64).kinds == {"shared-race"}


def test_blocks_do_not_share(run, out):
    source = """extern "C" __global__ void k(const float* x, float* y) {
      extern __shared__ float d[]; int t = threadIdx.x; d[t] = x[blockIdx.x * 64 + t];
      __syncthreads(); y[blockIdx.x * 64 + t] = d[63 - t]; }"""
    result = run(source, X, out(1024), grid=16, block=64, shared_bytes=256)
    assert not result.findings, result.text
    assert np.array_equal(result["out0"].reshape(16, 64), X.reshape(16, 64)[:, ::-1])
    assert "out-of-bounds" in run(source, X, out(1024), grid=16, block=64, shared_bytes=252).kinds
