# ruff: noqa: E501 - lines of CUDA and PTX
"""cp.async, mbarriers, bulk copies: each bug beside the kernel without it."""

import numpy as np
import pytest

X = np.random.default_rng(9).normal(size=4096).astype(np.float32)

CP_ASYNC = """extern "C" __global__ void k(const float* x, float* y) {
  __shared__ float4 s[2][64]; int t = threadIdx.x;
  for (int i = 0; i < 2; i++) {
    unsigned to = (unsigned)__cvta_generic_to_shared(&s[i][t]);
    asm volatile("cp.async.cg.shared.global [%%0], [%%1], 16;" :: "r"(to), "l"(x + 4 * (64 * i + t)));
    asm volatile("cp.async.commit_group;"); }
  %s
  float4 a = s[0][%s]; %s
  float4 b = s[1][%s];
  ((float4*)y)[t] = make_float4(a.x + b.x, a.y + b.y, a.z + b.z, a.w + b.w); }"""
WAIT = 'asm volatile("cp.async.wait_group %d;" ::: "memory"); '
SYNC = "__syncthreads();"


def test_cp_async_own_data(run, out):
    result = run(CP_ASYNC % (WAIT % 1, "t", WAIT % 0, "t"), X, out(256), block=64)
    assert not result.findings, result.text
    assert np.array_equal(result["out0"], X[:256] + X[256:512])
    assert result.counters.async_copy_bytes == 2048


def test_cp_async_other_threads_data(run, out):
    parts = WAIT % 0 + SYNC, "63 - t", "", "63 - t"
    result = run(CP_ASYNC % parts, X, out(256), block=64)
    assert not result.findings, result.text
    want = (X[:512].reshape(2, 64, 4)[:, ::-1]).sum(0).ravel()
    np.testing.assert_allclose(result["out0"], want, rtol=1e-6)


@pytest.mark.parametrize(
    ("parts", "kind"),
    [
        (("", "t", "", "t"), "async-wait"),
        ((WAIT % 1, "t", "", "t"), "async-wait"),
        ((WAIT % 2, "t", WAIT % 0, "t"), "async-wait"),
        ((SYNC, "63 - t", WAIT % 0, "t"), "async-wait"),
        ((WAIT % 0, "63 - t", "", "t"), "shared-race"),
        ((WAIT % 1 + SYNC, "63 - t", SYNC, "63 - t"), "async-wait"),
    ],
)
def test_cp_async_without_its_wait(run, out, parts, kind):
    assert kind in run(CP_ASYNC % parts, X, out(256), block=64).kinds


def test_cp_async_fills_with_zeros(run, out):
    source = """extern "C" __global__ void k(const float* x, float* y, int n) {
      __shared__ float4 s[32]; int t = threadIdx.x, left = max(0, min(16, (n - 4 * t) * 4));
      unsigned to = (unsigned)__cvta_generic_to_shared(s + t);
      asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" :: "r"(to),
        "l"(left ? x + 4 * t : x), "r"(left));
      asm volatile("cp.async.wait_all;" ::: "memory"); ((float4*)y)[t] = s[t]; }"""
    result = run(source, X[:100].copy(), out(128), np.int32(98))
    want = np.concatenate([X[:98], np.zeros(30, np.float32)])
    assert not result.findings, result.text
    assert np.array_equal(result["out0"], want)


def test_cp_async_overwriting_what_is_still_read(run, out):
    source = """extern "C" __global__ void k(const float* x, float* y) {
      __shared__ float s[64]; int t = threadIdx.x; float sum = 0;
      for (int i = 0; i < 3; i++) {
        unsigned to = (unsigned)__cvta_generic_to_shared(s + t);
        asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" :: "r"(to), "l"(x + 64 * i + t));
        asm volatile("cp.async.wait_all;" ::: "memory"); __syncthreads();
        sum += s[63 - t]; REUSE }
      y[t] = sum; }"""
    clean = run(source.replace("REUSE", SYNC), X, out(64), block=64)
    assert not clean.findings, clean.text
    assert "shared-race" in run(source.replace("REUSE", ""), X, out(64), block=64).kinds


BULK = """__device__ __forceinline__ unsigned at(const void* p) { return (unsigned)__cvta_generic_to_shared(p); }
extern "C" __global__ void k(const float* x, float* y) {
  __shared__ __align__(128) float s[512]; __shared__ __align__(8) unsigned long long bar;
  int t = threadIdx.x;
  if (t == 0) { asm volatile("mbarrier.init.shared.b64 [%%0], 1;" :: "r"(at(&bar)));
    asm volatile("fence.mbarrier_init.release.cluster;"); }
  %(ready)s
  if (t == 0) {
    asm volatile("mbarrier.arrive.expect_tx.shared.b64 _, [%%0], %%1;" :: "r"(at(&bar)), "r"(%(expect)s));
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%%0], [%%1], %%2, [%%3];"
      :: "r"(at(s)), "l"(x + blockIdx.x * 512), "r"(2048), "r"(at(&bar)) : "memory"); }
  %(wait)s
  for (int i = t; i < 512; i += 64) s[i] = s[i] * 2;
  %(proxy)s %(meet)s
  if (t == 0) {
    asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%%0], [%%1], %%2;"
      :: "l"(y + blockIdx.x * 512), "r"(at(s)), "r"(2048) : "memory");
    asm volatile("cp.async.bulk.commit_group;"); %(drain)s }
}"""
TRY = """unsigned done; do asm volatile("{.reg .pred p; mbarrier.try_wait.parity.shared.b64 p, [%1], %2;"
  "selp.u32 %0, 1, 0, p;}" : "=r"(done) : "r"(at(&bar)), "r"(0) : "memory"); while (!done);"""
PARTS = {
    "ready": SYNC,
    "expect": "2048",
    "wait": TRY,
    "proxy": 'asm volatile("fence.proxy.async.shared::cta;" ::: "memory");',
    "meet": SYNC,
    "drain": 'asm volatile("cp.async.bulk.wait_group 0;" ::: "memory");',
}


def bulk(run, out, **changed):
    return run(BULK % {**PARTS, **changed}, X, out(1024), grid=2, block=64)


def test_bulk_copies_in_and_out(run, out):
    result = bulk(run, out)
    assert not result.findings, result.text
    assert np.array_equal(result["out0"], X[:1024] * 2)


@pytest.mark.parametrize(
    ("changed", "kinds"),
    [
        ({"wait": ""}, {"async-wait"}),
        ({"wait": SYNC}, {"async-wait"}),
        ({"wait": f"if (t == 0) {{ {TRY} }}"}, {"async-wait"}),
        ({"ready": ""}, {"shared-race", "mbarrier"}),
        ({"expect": "4096"}, {"deadlock"}),
        ({"proxy": ""}, {"async-proxy"}),
        ({"meet": ""}, {"shared-race", "async-proxy"}),
        ({"drain": ""}, {"async-wait"}),
    ],
)
def test_bulk_copies_with_a_part_missing(run, out, changed, kinds):
    result = bulk(run, out, **changed)
    assert kinds & result.kinds, result.text


def test_waiting_in_one_thread_then_a_block_barrier_suffices(run, out):
    result = bulk(run, out, wait=f"if (t == 0) {{ {TRY} }} {SYNC}")
    assert not result.findings, result.text


def test_rewriting_the_source_of_a_bulk_store(run, out):
    late = PARTS["drain"] + "} __syncthreads(); s[t] = 0; if (t == 0) {"
    assert not bulk(run, out, drain=late).findings
    early = "} __syncthreads(); s[t] = 0; if (t == 0) {" + PARTS["drain"]
    assert "shared-race" in bulk(run, out, drain=early).kinds


def test_mbarrier_as_a_block_barrier(run, out):
    source = """__device__ __forceinline__ unsigned at(const void* p) { return (unsigned)__cvta_generic_to_shared(p); }
      extern "C" __global__ void k(const float* x, float* y) {
      __shared__ float s[64]; __shared__ __align__(8) unsigned long long bar; int t = threadIdx.x;
      if (t == 0) asm volatile("mbarrier.init.shared.b64 [%0], 64;" :: "r"(at(&bar)));
      __syncthreads(); float sum = 0;
      for (int i = 0; i < 3; i++) { s[t] = x[64 * i + t];
        for (int half = 0; half < 2; half++) { unsigned long long token; unsigned done;
          asm volatile("mbarrier.arrive.shared.b64 %0, [%1];" : "=l"(token) : "r"(at(&bar)) : "memory");
          do asm volatile("{.reg .pred p; mbarrier.test_wait.shared.b64 p, [%1], %2; selp.u32 %0, 1, 0, p;}"
            : "=r"(done) : "r"(at(&bar)), "l"(token) : "memory"); while (!done && WAIT);
          if (!half) sum += s[63 - t]; } }
      y[t] = sum; }"""
    clean = run(source.replace("WAIT", "true"), X, out(64), block=64)
    assert not clean.findings, clean.text
    want = X[:192].reshape(3, 64)[:, ::-1]
    np.testing.assert_allclose(clean["out0"], want[0] + want[1] + want[2], rtol=1e-6)
    # A relaxed arrival releases nothing and a relaxed wait acquires nothing, but for a fence.
    for name, behind in (("arrive", 'asm volatile("mbarrier.arrive'), ("test_wait", "if (!half)")):
        relaxed = source.replace("WAIT", "true").replace(name, f"{name}.relaxed.cta")
        racy = run(relaxed, X, out(64), block=64)
        assert "shared-race" in racy.kinds, racy.text
        fenced = run(
            relaxed.replace(behind, f"__threadfence_block(); {behind}"), X, out(64), block=64
        )
        assert not fenced.findings, fenced.text


def test_a_relaxed_wait_knows_nothing_of_the_copies(run, out):
    relaxed = TRY.replace("parity.shared", "parity.relaxed.cta.shared")
    assert "async-wait" in bulk(run, out, wait=relaxed).kinds
    fenced = bulk(run, out, wait=relaxed + "__threadfence_block();")
    assert not fenced.findings, fenced.text
    acquired = TRY.replace("parity.shared", "parity.acquire.cta.shared")
    assert not bulk(run, out, wait=acquired).findings


PIPELINE = """__device__ __forceinline__ unsigned at(const void* p) { return (unsigned)__cvta_generic_to_shared(p); }
__device__ __forceinline__ void wait(void* bar, unsigned parity) { unsigned done;
  do asm volatile("{.reg .pred p; mbarrier.try_wait.parity.shared.b64 p, [%1], %2; selp.u32 %0, 1, 0, p;}"
    : "=r"(done) : "r"(at(bar)), "r"(parity) : "memory"); while (!done); }
extern "C" __global__ void k(const float* x, float* y) {
  __shared__ __align__(128) float s[2][64]; __shared__ __align__(8) unsigned long long full[2], empty[2];
  int t = threadIdx.x; x += blockIdx.x * 512;
  if (t == 0) for (int i = 0; i < 2; i++) {
    asm volatile("mbarrier.init.shared.b64 [%0], 1;" :: "r"(at(full + i)));
    asm volatile("mbarrier.init.shared.b64 [%0], 64;" :: "r"(at(empty + i))); FENCE }
  __syncthreads();
  if (t >= 64) { if (t == 64) for (int n = 0; n < 8; n++) { int i = n % 2;
      if (n >= 2) PRODUCER
      asm volatile("mbarrier.arrive.expect_tx.shared.b64 _, [%0], 256;" :: "r"(at(full + i)));
      asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], 256, [%2];"
        :: "r"(at(s[i])), "l"(x + 64 * n), "r"(at(full + i)) : "memory"); } }
  else { float sum = 0; for (int n = 0; n < 8; n++) { int i = n % 2; CONSUMER
      sum += s[i][63 - t]; RELEASE }
    y[blockIdx.x * 64 + t] = sum; } }"""
STAGES = {
    "FENCE": 'asm volatile("fence.mbarrier_init.release.cluster;");',
    "PRODUCER": "wait(empty + i, (n / 2 - 1) & 1);",
    "CONSUMER": "wait(full + i, (n / 2) & 1);",
    "RELEASE": 'asm volatile("mbarrier.arrive.shared.b64 _, [%0];" :: "r"(at(empty + i)) : "memory");',
}


@pytest.mark.parametrize(
    ("part", "kind"),
    [
        (None, None),
        ("FENCE", "async-proxy"),
        ("PRODUCER", "async-wait"),
        ("CONSUMER", "async-wait"),
        ("RELEASE", "deadlock"),
    ],
)
def test_pipeline_of_bulk_copies(run, out, part, kind):
    source = PIPELINE
    for name, text in STAGES.items():
        source = source.replace(name, ";" if name == part else text)
    result = run(source, X, out((2, 64)), grid=2, block=96)
    if part is None:
        assert not result.findings, result.text
        want = X[:1024].reshape(2, 8, 64)[:, :, ::-1].sum(1)
        np.testing.assert_allclose(result["out0"], want, rtol=1e-5, atol=1e-5)
    else:
        assert kind in result.kinds, result.text
