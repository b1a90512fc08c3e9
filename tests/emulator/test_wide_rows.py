# ruff: noqa: E501 - lines of CUDA and PTX
"""Softmax of rows that one block is too small for: clusters, split rows, cooperating blocks."""

import numpy as np
import pytest
from run_kernel import PRELUDE, compile_ptx

from explorer.ptx_emulator import GlobalMemory, check_output, launch, parse, poisoned

ROWS, COLS, PARTS = 3, 2048, 4
X = np.random.default_rng(3).normal(size=(ROWS, COLS)).astype(np.float32) * 3
X[1] -= 1000

COMMON = """
struct State { float m, s; };
__device__ __forceinline__ State merge(State a, State b) { float m = fmaxf(a.m, b.m);
  return {m, a.s * __expf(a.m - m) + b.s * __expf(b.m - m)}; }
__device__ __forceinline__ State warp_merge(State v) { for (int o = 16; o; o >>= 1)
  v = merge(v, {__shfl_xor_sync(FULL, v.m, o), __shfl_xor_sync(FULL, v.s, o)}); return v; }
__device__ __forceinline__ State block_merge(State v) { __shared__ State part[4]; v = warp_merge(v);
  if (threadIdx.x % 32 == 0) part[threadIdx.x / 32] = v; __syncthreads();
  v = part[0]; for (int i = 1; i < 4; i++) v = merge(v, part[i]); return v; }
__device__ __forceinline__ State of_share(const float4* x) { State v = {-3e38f, 0.f};
  float4 f = x[threadIdx.x]; for (float e : {f.x, f.y, f.z, f.w}) v = merge(v, {e, 1.f}); return v; }
__device__ __forceinline__ void normalise(const float4* x, float4* y, State v) { float4 f = x[threadIdx.x];
  y[threadIdx.x] = make_float4(__expf(f.x - v.m) / v.s, __expf(f.y - v.m) / v.s, __expf(f.z - v.m) / v.s, __expf(f.w - v.m) / v.s); }
"""

CLUSTER = (
    COMMON
    + """
__device__ __forceinline__ float peer(const float* p, unsigned r) { float v; unsigned a = (unsigned)__cvta_generic_to_shared(p);
  asm("mapa.shared::cluster.u32 %0, %0, %1;" : "+r"(a) : "r"(r));
  asm volatile("ld.shared::cluster.f32 %0, [%1];" : "=f"(v) : "r"(a) : "memory"); return v; }
extern "C" __global__ void __cluster_dims__(4, 1, 1) k(const float4* x, float4* y) {
  __shared__ State mine; x += blockIdx.x * 128; y += blockIdx.x * 128;
  State v = block_merge(of_share(x)); if (threadIdx.x == 0) mine = v;
  FIRST
  v = {-3e38f, 0.f}; for (unsigned r = 0; r < 4; r++) v = merge(v, {peer(&mine.m, r), peer(&mine.s, r)});
  normalise(x, y, v);
  LAST }"""
)
MEET = 'asm volatile("barrier.cluster.arrive.aligned; barrier.cluster.wait.aligned;" ::: "memory");'

SPLIT = (
    COMMON
    + """
extern "C" __global__ void part(const float4* x, State* parts) {
  State v = block_merge(of_share(x + blockIdx.x * 128)); if (threadIdx.x == 0) parts[blockIdx.x] = v; }
extern "C" __global__ void finish(const float4* x, const State* parts, float4* y) {
  State v = {-3e38f, 0.f}; for (int r = 0; r < 4; r++) v = merge(v, parts[blockIdx.x / 4 * 4 + r]);
  normalise(x + blockIdx.x * 128, y + blockIdx.x * 128, v); }"""
)

COOPERATIVE = (
    COMMON
    + """
extern "C" __global__ void k(const float4* x, float4* y, State* parts, unsigned* count) {
  x += blockIdx.x * 128; y += blockIdx.x * 128; unsigned* flag = count + blockIdx.x / 4;
  State v = block_merge(of_share(x));
  if (threadIdx.x == 0) { parts[blockIdx.x] = v; unsigned seen;
    asm volatile("red.release.gpu.global.add.u32 [%0], 1;" :: "l"(flag) : "memory");
    do asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(seen) : "l"(flag) : "memory"); while (seen < 4); }
  __syncthreads();
  v = {-3e38f, 0.f}; for (int r = 0; r < 4; r++) v = merge(v, parts[blockIdx.x / 4 * 4 + r]);
  normalise(x, y, v); }"""
)


def softmax():
    wide = X.astype(np.float64)
    e = np.exp(wide - wide.max(1, keepdims=True))
    return e / e.sum(1, keepdims=True)


def test_cluster(run, out):
    source = CLUSTER.replace("FIRST", MEET).replace("LAST", MEET)
    result = run(source, X, out(X.shape), grid=ROWS * PARTS, block=128)
    assert not result.findings, result.text
    np.testing.assert_allclose(result["out0"], softmax(), rtol=3e-6)


@pytest.mark.parametrize(("first", "last"), [("__syncthreads();", MEET), ("", MEET), (MEET, "")])
def test_cluster_without_a_barrier(run, out, first, last):
    source = CLUSTER.replace("FIRST", first).replace("LAST", last)
    result = run(source, X, out(X.shape), grid=ROWS * PARTS, block=128)
    assert result.kinds & {"shared-race", "cluster"}, result.text


def test_split_rows():
    module = parse(compile_ptx(PRELUDE + SPLIT))
    memory = GlobalMemory()
    x = memory.allocate(X, name="input", writable=False)
    parts = memory.allocate(
        poisoned((ROWS * PARTS, 2), np.float32), name="parts", initialised=False
    )
    y = memory.allocate(
        poisoned(X.shape, np.float32), name="output", initialised=False, written_once=True
    )
    shape = {"grid": (ROWS * PARTS, 1, 1), "block": (128, 1, 1), "memory": memory}
    assert launch(module, "part", args=[x, parts], **shape).clean
    assert launch(module, "finish", args=[x, parts, y], **shape).clean
    assert not check_output(memory, y) and not check_output(memory, parts)
    np.testing.assert_allclose(memory.read(y), softmax(), rtol=3e-6)


def cooperate(run, out, source, **options):
    counts = out(ROWS, np.uint32, once=False, initial=[0] * ROWS)
    parts = out(2 * ROWS * PARTS)
    return run(source, X, out(X.shape), parts, counts, grid=ROWS * PARTS, block=128, **options)


@pytest.mark.parametrize("schedule", ["lockstep", "staggered"])
def test_cooperating_blocks(run, out, schedule):
    result = cooperate(run, out, COOPERATIVE, schedule=schedule)
    assert not result.findings, result.text
    np.testing.assert_allclose(result["out0"], softmax(), rtol=3e-6)


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    ("sound", "broken", "kind"),
    [
        ("red.release", "red.relaxed", "global-race"),
        ("ld.acquire", "ld.relaxed", "global-race"),
        ("while (seen < 4); }\n  __syncthreads();", "while (seen < 4); }", "global-race"),
        ("while (seen < 4)", "while (seen < 3)", "uninitialised-global"),
        ("while (seen < 4)", "while (seen < 5)", "deadlock"),
    ],
)
def test_cooperating_blocks_with_a_bug(run, out, sound, broken, kind):
    assert sound in COOPERATIVE
    result = cooperate(run, out, COOPERATIVE.replace(sound, broken), schedule="staggered")
    assert kind in result.kinds, result.text
