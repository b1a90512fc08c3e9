# ruff: noqa: E501 - lines of CUDA and PTX
"""Thread-block clusters: distributed shared memory, cluster barriers, st.async."""

import numpy as np
import pytest

X = np.random.default_rng(10).normal(size=1024).astype(np.float32)
ARRIVE = 'asm volatile("barrier.cluster.arrive.aligned;" ::: "memory");'
WAIT = 'asm volatile("barrier.cluster.wait.aligned;" ::: "memory");'
MEET = ARRIVE + WAIT

DEVICE = """
__device__ __forceinline__ unsigned at(const void* p) { return (unsigned)__cvta_generic_to_shared(p); }
__device__ __forceinline__ unsigned rank() { unsigned r; asm("mov.u32 %0, %cluster_ctarank;" : "=r"(r)); return r; }
__device__ __forceinline__ unsigned map(const void* p, unsigned r) { unsigned a;
  asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(a) : "r"(at(p)), "r"(r)); return a; }
__device__ __forceinline__ float peer(const float* p, unsigned r) { float v;
  asm volatile("ld.shared::cluster.f32 %0, [%1];" : "=f"(v) : "r"(map(p, r)) : "memory"); return v; }
"""

SUM = (
    DEVICE
    + """extern "C" __global__ void k(const float* x, float* y) {
  __shared__ float s[32]; int t = threadIdx.x, i = blockIdx.x * 32 + t; s[t] = x[i];
  BEGIN
  float v = 0; for (unsigned r = 0; r < 4; r++) v += peer(s + t, r);
  y[i] = v; END }"""
)


def between(source, begin, end):
    return source.replace("BEGIN", begin).replace("END", end)


def test_sum_over_a_cluster(run, out):
    result = run(between(SUM, MEET, MEET), X, out(512), grid=16, cluster=(4, 1, 1))
    assert not result.findings, result.text
    want = np.repeat(X[:512].reshape(4, 4, 32).sum(1, keepdims=True), 4, axis=1)
    np.testing.assert_allclose(result["out0"].reshape(4, 4, 32), want, rtol=1e-5)
    assert result.counters.cluster_barriers == 8


@pytest.mark.parametrize(
    ("parts", "kind"),
    [
        (("", MEET), "cluster"),
        (("__syncthreads();", MEET), "shared-race"),
        ((MEET, ""), "cluster"),
        ((ARRIVE, WAIT), "shared-race"),
        ((WAIT, MEET), "barrier"),
    ],
)
def test_cluster_barrier_missing(run, out, parts, kind):
    result = run(between(SUM, *parts), X, out(512), grid=16, cluster=(4, 1, 1))
    assert kind in result.kinds, result.text


def test_remote_write_and_generic_addresses(run, out):
    source = (
        DEVICE
        + """extern "C" __global__ void __cluster_dims__(2, 1, 1) k(const float* x, float* y) {
      __shared__ float s[32]; int t = threadIdx.x, i = blockIdx.x * 32 + t; BEGIN
      float* p = s + t; asm("mapa.u64 %0, %1, %2;" : "=l"(p) : "l"(p), "r"(rank() ^ 1));
      *p = x[i]; END y[i] = s[31 - t]; }"""
    )
    clean = run(between(source, MEET, MEET), X, out(256), grid=8)
    assert not clean.findings, clean.text
    want = X[:256].reshape(4, 2, 32)[:, ::-1, ::-1]
    assert np.array_equal(clean["out0"].reshape(4, 2, 32), want)
    racy = run(between(source, MEET, "__syncthreads();"), X, out(256), grid=8)
    assert "shared-race" in racy.kinds
    early = run(between(source, "", MEET), X, out(256), grid=8)
    assert "cluster" in early.kinds


def test_rank_beyond_the_cluster(run, out):
    source = (
        DEVICE
        + """extern "C" __global__ void k(float* y) { __shared__ float s[32];
      s[threadIdx.x] = 1; BEGIN y[blockIdx.x * 32 + threadIdx.x] = peer(s + threadIdx.x, 2); END }"""
    )
    result = run(between(source, MEET, MEET), out(64), grid=2, cluster=(2, 1, 1))
    assert "out-of-bounds" in result.kinds


def test_cluster_registers(run, out):
    names = [
        "cluster_ctarank",
        "cluster_nctarank",
        "clusterid.x",
        "cluster_ctaid.x",
        "cluster_nctaid.x",
    ]
    reads = "".join(
        f'asm("mov.u32 %0, %{name};" : "=r"(v)); y[blockIdx.x * 5 + {n}] = v;'
        for n, name in enumerate(names)
    )
    source = f'extern "C" __global__ void k(unsigned* y) {{ unsigned v; {reads} }}'
    got = run(source, out((8, 5), np.uint32), grid=8, block=1, cluster=(4, 1, 1))["out0"]
    b = np.arange(8)
    assert np.array_equal(got, np.stack([b % 4, b * 0 + 4, b // 4, b % 4, b * 0 + 4], 1))


ST_ASYNC = (
    DEVICE
    + """extern "C" __global__ void k(const float* x, float* y) {
  __shared__ float s[32]; __shared__ __align__(8) unsigned long long bar; int t = threadIdx.x;
  if (t == 0) asm volatile("mbarrier.init.shared.b64 [%0], 1;" :: "r"(at(&bar)));
  BEGIN
  if (t == 0) asm volatile("mbarrier.arrive.expect_tx.shared.b64 _, [%0], 128;" :: "r"(at(&bar)));
  asm volatile("st.async.shared::cluster.mbarrier::complete_tx::bytes.f32 [%0], %1, [%2];"
    :: "r"(map(s + t, rank() ^ 1)), "f"(x[blockIdx.x * 32 + t]), "r"(map(&bar, rank() ^ 1)) : "memory");
  WAIT
  y[blockIdx.x * 32 + t] = s[31 - t]; END }"""
)
POLL = """unsigned done; do asm volatile("{.reg .pred p; mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 p, [%1], 0;"
  "selp.u32 %0, 1, 0, p;}" : "=r"(done) : "r"(at(&bar)) : "memory"); while (!done);"""


def test_st_async(run, out):
    def with_wait(wait):
        source = between(ST_ASYNC, MEET, MEET).replace("WAIT", wait)
        return run(source, X, out(128), grid=4, cluster=(2, 1, 1))

    clean = with_wait(POLL)
    assert not clean.findings, clean.text
    assert np.array_equal(clean["out0"].reshape(2, 2, 32), X[:128].reshape(2, 2, 32)[:, ::-1, ::-1])
    relaxed = POLL.replace("acquire", "relaxed")
    # What another block stored is beyond the scope of a block, which a wait has that names none.
    near = POLL.replace("acquire.cluster", "acquire.cta"), POLL.replace(".acquire.cluster", "")
    for wait in (relaxed, *near):
        fenced = with_wait(wait + "__threadfence();")
        assert not fenced.findings, fenced.text
    for wait in ("", "__syncthreads();", MEET, relaxed, *near):
        racy = with_wait(wait)
        assert "async-wait" in racy.kinds, racy.text


def test_multicast(run, out):
    source = (
        DEVICE
        + """extern "C" __global__ void k(const float* x, float* y) {
      __shared__ __align__(16) float s[32]; __shared__ __align__(8) unsigned long long bar; int t = threadIdx.x;
      if (t == 0) { asm volatile("mbarrier.init.shared.b64 [%0], 1;" :: "r"(at(&bar)));
        asm volatile("fence.mbarrier_init.release.cluster;");
        asm volatile("mbarrier.arrive.expect_tx.shared.b64 _, [%0], 128;" :: "r"(at(&bar))); }
      MEET
      if (rank() == 0 && t == 0) asm volatile(
        "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster [%0], [%1], 128, [%2], %3;"
        :: "r"(at(s)), "l"(x + blockIdx.x * 32), "r"(at(&bar)), "h"((short)3) : "memory");
      POLL y[blockIdx.x * 32 + t] = s[t]; MEET }"""
    )
    text = source.replace("MEET", MEET).replace("POLL", POLL)
    result = run(text, X, out(128), grid=4, cluster=(2, 1, 1))
    assert not result.findings, result.text
    want = np.repeat(X[:128].reshape(2, 2, 32)[:, :1], 2, axis=1)
    assert np.array_equal(result["out0"].reshape(2, 2, 32), want)


def test_a_relaxed_arrival_meets_but_orders_nothing(run, out):
    relaxed = MEET.replace("arrive.aligned", "arrive.relaxed.aligned")
    clean = run(between(SUM, MEET, relaxed), X, out(512), grid=16, cluster=(4, 1, 1))
    assert not clean.findings, clean.text
    racy = run(between(SUM, relaxed, MEET), X, out(512), grid=16, cluster=(4, 1, 1))
    assert racy.kinds == {"shared-race"}
