# ruff: noqa: E501 - lines of CUDA and PTX
"""Whole softmax kernels of every family against float64, without a false alarm."""

import itertools

import ml_dtypes
import numpy as np
import pytest

COMMON = """
#include <cuda_fp16.h>
#include <cuda_bf16.h>
__device__ __forceinline__ float load(const float* p) { return *p; }
__device__ __forceinline__ float load(const __half* p) { return __half2float(*p); }
__device__ __forceinline__ float load(const __nv_bfloat16* p) { return __bfloat162float(*p); }
__device__ __forceinline__ void store(float* p, float v) { *p = v; }
__device__ __forceinline__ void store(__half* p, float v) { *p = __float2half(v); }
__device__ __forceinline__ void store(__nv_bfloat16* p, float v) { *p = __float2bfloat16(v); }
struct Max { __device__ static float of(float a, float b) { return fmaxf(a, b); } };
struct Sum { __device__ static float of(float a, float b) { return a + b; } };
template <class F> __device__ __forceinline__ float lanes(float v, int width = 32) {
  for (int o = width / 2; o; o >>= 1) v = F::of(v, __shfl_xor_sync(FULL, v, o));
  return v; }
"""

REDUCTIONS = {
    "slots": """template <class F> __device__ float reduce(float v) {
      __shared__ float slot[THREADS / 32]; v = lanes<F>(v);
      if (threadIdx.x % 32 == 0) slot[threadIdx.x / 32] = v; __syncthreads();
      v = slot[0]; for (int i = 1; i < THREADS / 32; i++) v = F::of(v, slot[i]); return v; }""",
    "tree": """template <class F> __device__ float reduce(float v) {
      __shared__ float s[THREADS]; int t = threadIdx.x; s[t] = v; __syncthreads();
      for (int o = THREADS / 2; o; o >>= 1) { if (t < o) s[t] = F::of(s[t], s[t + o]); __syncthreads(); }
      return s[0]; }""",
    "serial": """template <class F> __device__ float reduce(float v) {
      __shared__ float s[THREADS]; __shared__ float r; s[threadIdx.x] = v; __syncthreads();
      if (threadIdx.x == 0) { for (int i = 1; i < THREADS; i++) v = F::of(v, s[i]); r = v; }
      __syncthreads(); return r; }""",
    "atomic": """template <class F> __device__ float reduce(float v) {
      __shared__ float s[2]; int t = threadIdx.x; if (t < 2) s[t] = t ? 0.f : NEG_INF; __syncthreads();
      if (F::of(1, 2) == 3) atomicAdd(&s[1], v);
      else { int* p = (int*)&s[0]; int old = *(volatile int*)p; (void)old;
        for (;;) { int seen = atomicAdd(p, 0); if (__int_as_float(seen) >= v) break;
          if (atomicCAS(p, seen, __float_as_int(v)) == seen) break; } }
      __syncthreads(); return F::of(1, 2) == 3 ? s[1] : s[0]; }""",
}

CACHES = {
    "registers": """float v[(COLS + THREADS - 1) / THREADS]; int t = threadIdx.x, n = 0; float m = NEG_INF, s = 0;
      _Pragma("unroll") for (int i = 0; i < (COLS + THREADS - 1) / THREADS; i++) {
        v[i] = i * THREADS + t < cols ? load(x + i * THREADS + t) : NEG_INF; m = fmaxf(m, v[i]); }
      m = reduce<Max>(m);
      _Pragma("unroll") for (int i = 0; i < (COLS + THREADS - 1) / THREADS; i++) { v[i] = EXP(v[i] - m); s += v[i]; }
      s = reduce<Sum>(s);
      _Pragma("unroll") for (int i = 0; i < (COLS + THREADS - 1) / THREADS; i++)
        if (i * THREADS + t < cols) store(y + i * THREADS + t, DIV(v[i], s));""",
    "shared": """extern __shared__ float row[]; int t = threadIdx.x; float m = NEG_INF, s = 0;
      for (int i = t; i < cols; i += THREADS) { row[i] = load(x + i); m = fmaxf(m, row[i]); }
      m = reduce<Max>(m);
      for (int i = t; i < cols; i += THREADS) { row[i] = EXP(row[i] - m); s += row[i]; }
      s = reduce<Sum>(s);
      for (int i = t; i < cols; i += THREADS) store(y + i, DIV(row[i], s));""",
    "read again": """int t = threadIdx.x; float m = NEG_INF, s = 0;
      for (int i = t; i < cols; i += THREADS) m = fmaxf(m, load(x + i));
      m = reduce<Max>(m);
      for (int i = t; i < cols; i += THREADS) s += EXP(load(x + i) - m);
      s = reduce<Sum>(s);
      for (int i = t; i < cols; i += THREADS) store(y + i, DIV(EXP(load(x + i) - m), s));""",
    "online": """int t = threadIdx.x; float m = NEG_INF, s = 0;
      for (int i = t; i < cols; i += THREADS) { float v = load(x + i);
        if (v > m) { s *= EXP(m - v); m = v; } if (v > NEG_INF) s += EXP(v - m); }
      float all = reduce<Max>(m); s = reduce<Sum>(m == NEG_INF ? 0.f : s * EXP(m - all));
      for (int i = t; i < cols; i += THREADS) store(y + i, DIV(EXP(load(x + i) - all), s));""",
}

EXPONENTIALS = {"expf": "expf", "__expf": "__expf", "exp2f": "exp2f(1.4426950408889634f * ({}))"}
DIVISIONS = {
    "divide": "((a) / (s))",
    "reciprocal": "((a) * __frcp_rn(s))",
    "fast": "__fdividef(a, s)",
}
TYPES = {
    "float": np.dtype(np.float32),
    "__half": np.dtype(np.float16),
    "__nv_bfloat16": np.dtype(ml_dtypes.bfloat16),
}


def softmax(x):
    wide = x.astype(np.float64)
    e = np.exp(wide - wide.max(1, keepdims=True))
    return e / e.sum(1, keepdims=True)


def source_of(cache, reduction, exp, division, ctype, threads, cols):
    exp_text = (
        EXPONENTIALS[exp].format("a") if "{" in EXPONENTIALS[exp] else f"{EXPONENTIALS[exp]}(a)"
    )
    defines = f"#define THREADS {threads}\n#define COLS {cols}\n#define EXP(a) {exp_text}\n"
    defines += f"#define DIV(a, s) {DIVISIONS[division]}\n"
    return f"""{defines}{COMMON}{REDUCTIONS[reduction]}
      extern "C" __global__ void __launch_bounds__(THREADS) k(const {ctype}* input, {ctype}* output,
        long long rows, int cols) {{
      const {ctype}* x = input + (long long)blockIdx.x * cols;
      {ctype}* y = output + (long long)blockIdx.x * cols; {CACHES[cache]} }}"""


CASES = [
    (cache, reduction, exp, division, ctype)
    for number, (cache, reduction) in enumerate(itertools.product(CACHES, REDUCTIONS))
    for exp, division, ctype in [
        (
            list(EXPONENTIALS)[number % 3],
            list(DIVISIONS)[number // 3 % 3],
            list(TYPES)[number // 2 % 3],
        )
    ]
]


@pytest.mark.sampled(3)
@pytest.mark.parametrize(("cache", "reduction", "exp", "division", "ctype"), CASES)
def test_softmax(run, out, cache, reduction, exp, division, ctype):
    rows, cols, threads = 5, 301, 128
    dtype = TYPES[ctype]
    x = (np.random.default_rng(0).normal(size=(rows, cols)) * 4).astype(dtype)
    x[1] += dtype.type(100)
    x[2, : cols // 2] = -np.inf
    text = source_of(cache, reduction, exp, division, ctype, threads, cols)
    if reduction == "atomic":
        text = text.replace("int old = *(volatile int*)p; (void)old;", "")
    shared = 4 * cols if cache == "shared" else 0
    result = run(
        text, x, out(x.shape, dtype), np.int64(rows), np.int32(cols),
        grid=rows, block=threads, shared_bytes=shared,
    )  # fmt: skip
    assert not result.findings, result.text
    got, want = result["out0"].astype(np.float64), softmax(x)
    rtol, atol = {"float": (1e-5, 0), "__half": (2e-3, 3e-7), "__nv_bfloat16": (1e-2, 0)}[ctype]
    np.testing.assert_allclose(got, want, rtol=rtol, atol=atol)


@pytest.mark.parametrize("lanes", [1, 4, 16, 32])
def test_rows_within_a_warp(run, out, lanes):
    source = f"""{COMMON}extern "C" __global__ void k(const float* x, float* y, int rows, int cols) {{
      int row = blockIdx.x * (blockDim.x / {lanes}) + threadIdx.x / {lanes}, l = threadIdx.x % {lanes};
      bool real = row < rows; x += (long long)row * cols; y += (long long)row * cols;
      float m = NEG_INF, s = 0;
      if (real) for (int i = l; i < cols; i += {lanes}) m = fmaxf(m, __ldg(x + i));
      m = lanes<Max>(m, {lanes});
      if (real) for (int i = l; i < cols; i += {lanes}) s += __expf(x[i] - m);
      s = lanes<Sum>(s, {lanes});
      if (real) for (int i = l; i < cols; i += {lanes}) __stcs(y + i, __expf(x[i] - m) / s); }}"""
    x = np.random.default_rng(1).normal(size=(13, 77)).astype(np.float32)
    grid = -(-13 // (64 // lanes))
    result = run(source, x, out(x.shape), np.int32(13), np.int32(77), grid=grid, block=64)
    assert not result.findings, result.text
    np.testing.assert_allclose(result["out0"], softmax(x), rtol=1e-5)


@pytest.mark.parametrize("ctype", ["__half", "__nv_bfloat16"])
def test_sixteen_byte_vectors_of_16_bit_floats(run, out, ctype):
    pair = {"__half": "__half2", "__nv_bfloat16": "__nv_bfloat162"}[ctype]
    to, of = ("__half22float2", "__floats2half2_rn")
    if ctype != "__half":
        to, of = ("__bfloat1622float2", "__floats2bfloat162_rn")
    source = f"""{COMMON}extern "C" __global__ void k(const uint4* x, uint4* y) {{
      union {{ uint4 all; {pair} h[4]; }} u; u.all = x[blockIdx.x * 32 + threadIdx.x]; float v[8];
      for (int i = 0; i < 4; i++) {{ float2 f = {to}(u.h[i]); v[2 * i] = f.x; v[2 * i + 1] = f.y; }}
      float m = v[0], s = 0; for (int i = 1; i < 8; i++) m = fmaxf(m, v[i]); m = lanes<Max>(m);
      for (int i = 0; i < 8; i++) {{ v[i] = exp2f((v[i] - m) * 1.4426950408889634f); s += v[i]; }}
      s = 1 / lanes<Sum>(s);
      for (int i = 0; i < 4; i++) u.h[i] = {of}(v[2 * i] * s, v[2 * i + 1] * s);
      y[blockIdx.x * 32 + threadIdx.x] = u.all; }}"""
    dtype = TYPES[ctype]
    x = np.random.default_rng(2).normal(size=(6, 256)).astype(dtype)
    result = run(source, x, out(x.shape, dtype), grid=6)
    assert not result.findings, result.text
    rtol = 1e-3 if ctype == "__half" else 8e-3
    np.testing.assert_allclose(result["out0"].astype(np.float64), softmax(x), rtol=rtol)
    assert result.counters.global_loads.widths == {16: 6}


def test_fast_math_of_the_compiler_is_known(run, out):
    source = """extern "C" __global__ void k(const float* x, float* y) { int t = threadIdx.x;
      float v = x[t]; y[t] = logf(v) + sqrtf(v) + rsqrtf(v) + powf(v, 1.5f) + tanhf(v) + erff(v)
      + sinf(v) + log1pf(v) + expm1f(v) + cbrtf(v) + fmodf(v, .7f) + rintf(v) + (float)(int)v; }"""
    x = np.linspace(0.1, 9, 32).astype(np.float32)
    result = run(source, x, out(32))
    from math import erf

    d = x.astype(np.float64)
    want = np.log(d) + np.sqrt(d) + 1 / np.sqrt(d) + d**1.5 + np.tanh(d) + [erf(v) for v in d]
    want += np.sin(d) + np.log1p(d) + np.expm1(d) + np.cbrt(d) + np.fmod(d, np.float32(0.7))
    want += np.rint(d) + np.trunc(d)
    assert not result.findings, result.text
    np.testing.assert_allclose(result["out0"], want, rtol=2e-6)
