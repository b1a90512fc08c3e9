# ruff: noqa: E501 - lines of CUDA and PTX
"""Atomics, flags in global memory and blocks that wait for one another."""

import numpy as np
import pytest

X = np.random.default_rng(8).normal(size=1024).astype(np.float32)


def counter(out, count=1, value=0):
    return out(count, np.int32, once=False, initial=[value] * count)


def test_atomics_take_turns(run, out):
    source = """extern "C" __global__ void k(const float* x, float* y, int* n) {
      int t = blockIdx.x * 64 + threadIdx.x; y[atomicAdd(n, 1)] = x[t]; }"""
    result = run(source, X, out(256), counter(out), grid=4, block=64)
    assert not result.findings, result.text
    assert result["out1"][0] == 256 and np.array_equal(np.sort(result["out0"]), np.sort(X[:256]))
    assert result.counters.atomics == 256


@pytest.mark.parametrize(
    ("call", "start", "want"),
    [
        ("atomicMax(n, t)", 5, 63),
        ("atomicMin(n, -t)", 5, -63),
        ("atomicAnd(n, ~(1 << (t & 7)))", 0xFFF, 0xF00),
        ("atomicOr(n, 1 << (t & 7))", 0x100, 0x1FF),
        ("atomicXor(n, t)", 0, 0),
        ("atomicExch(n, 77)", 0, 77),
        ("atomicCAS(n, t, t + 1)", 0, 64),
        ("atomicInc((unsigned*)n, 9)", 0, 4),
        ("atomicSub(n, 2)", 0, -128),
    ],
)
@pytest.mark.parametrize("space", ["global", "shared"])
def test_atomic_operations(run, out, call, start, want, space):
    body = f"{call};" if space == "global" else (
        f"__shared__ int s; if (t == 0) s = {start}; __syncthreads(); "
        f"{call.replace('n,', '&s,').replace('(unsigned*)n', '(unsigned*)&s').replace('(unsigned*)&s', '(unsigned*)&s')};"
        " __syncthreads(); if (t == 0) n[0] = s;"
    )  # fmt: skip
    source = f'extern "C" __global__ void k(int* n) {{ int t = threadIdx.x; {body} }}'
    result = run(source, counter(out, value=start), block=64)
    assert result["out0"][0] == want and not result.findings, result.text


def test_float_atomics(run, out):
    source = """extern "C" __global__ void k(const float* x, float* y) {
      atomicAdd(y + (threadIdx.x & 1), x[threadIdx.x]); }"""
    result = run(source, X, out(2, once=False, initial=[0, 0]), block=64)
    np.testing.assert_allclose(result["out0"], X[:64].reshape(32, 2).sum(0), rtol=1e-4)
    assert not result.findings, result.text


def test_plain_access_beside_an_atomic_races(run, out):
    source = """extern "C" __global__ void k(float* y, int* n) {
      __shared__ int s; if (threadIdx.x == 0) s = 0; __syncthreads();
      atomicAdd(&s, 1); SYNC y[threadIdx.x] = s; }"""
    clean = run(source.replace("SYNC", "__syncthreads();"), out(64), counter(out), block=64)
    assert not [f for f in clean.findings if f.kind != "never-written"], clean.text
    racy = run(source.replace("SYNC", ""), out(64), counter(out), block=64)
    assert "shared-race" in racy.kinds


GRID = """extern "C" __global__ void k(const float* x, float* y, float* part, int* n) {
  int t = threadIdx.x, b = blockIdx.x; part[b * 32 + t] = x[b * 32 + t]; %s
  if (t == 0) { %s atomicAdd(n, 1); while (%s < (int)gridDim.x); %s } %s
  float s = 0; for (int i = 0; i < gridDim.x; i++) s += part[i * 32 + t];
  y[b * 32 + t] = s; }"""
FENCE, BARRIER, POLL = "__threadfence();", "__syncthreads();", "atomicAdd(n, 0)"


def cooperate(run, out, *parts, blocks=8, **options):
    args = X, out(blocks * 32), out(blocks * 32), counter(out)
    return run(GRID % parts, *args, grid=blocks, **options)


def test_grid_barrier(run, out):
    result = cooperate(run, out, BARRIER, FENCE, POLL, FENCE, BARRIER)
    assert not result.findings, result.text
    want = np.tile(X[:256].reshape(8, 32).sum(0), 8)
    np.testing.assert_allclose(result["out0"], want, rtol=1e-5)


def test_grid_barrier_with_a_volatile_poll(run, out):
    result = cooperate(run, out, BARRIER, FENCE, "*(volatile int*)n", FENCE, BARRIER)
    assert not result.findings, result.text


@pytest.mark.parametrize(
    "parts",
    [
        ("", FENCE, POLL, FENCE, BARRIER),
        (BARRIER, "", POLL, FENCE, BARRIER),
        (BARRIER, FENCE, POLL, "", BARRIER),
        (BARRIER, FENCE, POLL, FENCE, ""),
    ],
)
def test_grid_barrier_with_a_part_missing(run, out, parts):
    assert "global-race" in cooperate(run, out, *parts).kinds


def test_more_blocks_than_are_resident_never_meet(run, out):
    parts = BARRIER, FENCE, POLL, FENCE, BARRIER
    result = cooperate(run, out, *parts, resident_blocks=4)
    assert "deadlock" in result.kinds and not result.result.complete
    assert not cooperate(run, out, *parts, resident_blocks=8).findings


def test_release_and_acquire(run, out):
    source = """extern "C" __global__ void k(float* d, float* y, int* n) {
      int t = threadIdx.x; if (blockIdx.x == 0) { d[t] = t; __syncwarp();
        if (t == 0) asm volatile("st.global.%s.gpu.u32 [%%0], 1;" :: "l"(n) : "memory"); y[t] = 0; }
      else { int f; do asm volatile("ld.global.%s.gpu.u32 %%0, [%%1];" : "=r"(f) : "l"(n) : "memory");
        while (!f); y[32 + t] = d[t]; } }"""
    flag = lambda: out(1, np.int32, once=False, initial=[0])  # noqa: E731
    clean = run(source % ("release", "acquire"), out(32), out(64), flag(), grid=2)
    assert not clean.findings, clean.text
    assert np.array_equal(clean["out1"][32:], np.arange(32))
    for orders in (("relaxed", "acquire"), ("release", "relaxed")):
        assert "global-race" in run(source % orders, out(32), out(64), flag(), grid=2).kinds


def test_last_block_finishes_the_work(run, out):
    source = """extern "C" __global__ void k(const float* x, float* part, float* y, unsigned* n) {
      __shared__ bool last; int t = threadIdx.x; float v = x[blockIdx.x * 32 + t];
      for (int o = 16; o; o >>= 1) v += __shfl_xor_sync(FULL, v, o);
      if (t == 0) { part[blockIdx.x] = v; FENCE last = atomicInc(n, gridDim.x - 1) == gridDim.x - 1; }
      __syncthreads();
      if (last) { __threadfence(); float s = t < gridDim.x ? part[t] : 0.f;
        for (int o = 16; o; o >>= 1) s += __shfl_xor_sync(FULL, s, o); if (t == 0) y[0] = s; } }"""
    args = lambda: (X, out(16), out(1), out(1, np.uint32, once=False, initial=[0]))  # noqa: E731
    clean = run(source.replace("FENCE", "__threadfence();"), *args(), grid=16)
    assert not clean.findings, clean.text
    np.testing.assert_allclose(clean["out1"][0], X[:512].sum(), rtol=1e-4)
    assert "global-race" in run(source.replace("FENCE", ""), *args(), grid=16).kinds
    batched = run(source.replace("FENCE", "__threadfence();"), *args(), grid=16, batch_lanes=128)
    assert not batched.findings, batched.text


def test_flag_that_nobody_sets(run, out):
    source = """extern "C" __global__ void k(float* y, volatile int* n) {
      while (*n == 0); y[threadIdx.x] = 1; }"""
    result = run(source, out(32), counter(out))
    assert "deadlock" in result.kinds and not result.result.complete


def test_lanes_of_one_warp_can_wait_for_each_other(run, out):
    source = """extern "C" __global__ void k(float* y, int* n) {
      int t = threadIdx.x; if (t == 31) atomicExch(n, 1); else while (atomicAdd(n, 0) == 0);
      y[t] = 1; }"""
    result = run(source, out(32), counter(out))
    assert not result.findings, result.text
