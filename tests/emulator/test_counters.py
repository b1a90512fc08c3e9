# ruff: noqa: E501 - lines of CUDA and PTX
"""Exact counts of traffic, bank conflicts and instructions."""

import numpy as np
import pytest

from explorer.ptx_emulator.counters import wavefronts

X = np.zeros(1 << 16, np.float32)

READ = """extern "C" __global__ void k(const float* x, float* y) {
  int t = blockIdx.x * 64 + threadIdx.x; y[t] = x[%s]; }"""


@pytest.mark.parametrize(
    ("index", "sectors_a_warp"),
    [("t", 4), ("t * 2", 8), ("t * 8", 32), ("t * 32", 32), ("0", 1), ("t + 1", 5), ("t / 8", 1), ("t ^ 5", 4)],
)  # fmt: skip
def test_sectors_of_global_loads(run, out, index, sectors_a_warp):
    result = run(READ % index, X, out(256), grid=4, block=64)
    loads = result.counters.global_loads
    assert loads.requests == 8 and loads.sectors == 8 * sectors_a_warp
    assert loads.sector_bytes == 256 * sectors_a_warp
    assert loads.bytes == 256 * 4 and loads.widths == {4: 8}
    assert result.counters.global_stores.sectors == 32


def test_sectors_of_vectors(run, out):
    source = 'extern "C" __global__ void k(const float4* x, float4* y) { y[threadIdx.x] = x[threadIdx.x]; }'
    counters = run(source, X, out(256), block=64).counters
    assert counters.global_loads.sectors == 2 * 16 and counters.global_loads.widths == {16: 2}


def test_sectors_of_a_part_of_a_warp(run, out):
    source = """extern "C" __global__ void k(const float* x, float* y) {
      int t = threadIdx.x; if (t % 3 == 0) y[t] = x[t * 4]; }"""
    loads = run(source, X, out(64, once=False), block=64).counters.global_loads
    lanes = np.arange(0, 64, 3)
    want = sum(len(np.unique(lanes[lanes // 32 == w] * 16 // 32)) for w in range(2))
    assert loads.sectors == want and loads.bytes == 4 * len(lanes) and loads.requests == 2


@pytest.mark.parametrize(
    ("stride", "size", "needed"),
    [
        (1, 4, 1),
        (2, 4, 2),
        (4, 4, 4),
        (32, 4, 32),
        (33, 4, 1),
        (0, 4, 1),
        (2, 8, 2),
        (4, 16, 4),
        (1, 2, 1),
    ],
)
def test_wavefronts_of_strides(stride, size, needed):
    unit = 2 if size == 2 else 4
    assert wavefronts(np.arange(32) * stride * unit, size)[0] == needed


def test_bank_conflicts_of_a_transpose(run, out):
    source = """extern "C" __global__ void k(const float* x, float* y) {
      __shared__ float s[32][%d]; int a = threadIdx.x, b = threadIdx.y;
      s[b][a] = x[b * 32 + a]; __syncthreads(); y[b * 32 + a] = s[a][b]; }"""
    conflicts = run(source % 32, X, out(1024), block=(32, 32, 1)).counters.shared_loads
    assert conflicts.wavefronts == 32 * 32 and conflicts.bank_conflicts == 32 * 31
    padded = run(source % 33, X, out(1024), block=(32, 32, 1)).counters.shared_loads
    assert padded.wavefronts == 32 and padded.bank_conflicts == 0


def test_instructions_and_barriers(run, out):
    source = """extern "C" __global__ void k(const float* x, float* y) {
      int t = threadIdx.x; float v = x[t]; for (int i = 0; i < 3; i++) {
      v += __shfl_xor_sync(FULL, v, 1 << i); __syncthreads(); } y[blockIdx.x * 96 + t] = v; }"""
    counters = run(source, X, out(480), grid=5, block=96).counters
    assert counters.instructions["shfl"] == 15 * 3 and counters.barriers == 15
    assert counters.instructions["ld.global"] == 15 == counters.instructions["st.global"]
    assert counters.thread_instructions == 32 * counters.warp_instructions


def test_batches_do_not_change_the_counts(run, out):
    small = run(READ % "t * 3", X, out(4096), grid=64, block=64, batch_lanes=128)
    large = run(READ % "t * 3", X, out(4096), grid=64, block=64)
    assert small.counters == large.counters and not small.findings
