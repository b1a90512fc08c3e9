# ruff: noqa: E501 - lines of CUDA and PTX
"""Bytes that blocks of a cluster send to an mbarrier of several phases."""

import numpy as np
import pytest
from test_clusters import DEVICE, MEET

X = np.arange(128, dtype=np.float32)

ROUNDS = (
    DEVICE
    + """extern "C" __global__ void k(const float* x, float* y) {
  __shared__ float s[ROUNDS][32]; __shared__ __align__(8) unsigned long long bars[2];
  const int t = threadIdx.x; float sum = 0.f;
  if (t < 2) asm volatile("mbarrier.init.shared.b64 [%0], 1;" :: "r"(at(&bars[t])));
  MEET
  for (int r = 0; r < ROUNDS; ++r) {
    unsigned long long* const bar = &bars[BARRIER];
    const unsigned next = (rank() + 1) % CLUSTER, parity = PARITY;
    if (t == 0) asm volatile("mbarrier.arrive.expect_tx.shared.b64 _, [%0], 128;" :: "r"(at(bar)));
    asm volatile("st.async.shared::cluster.mbarrier::complete_tx::bytes.f32 [%0], %1, [%2];"
      :: "r"(map(&s[r][t], next)), "f"(x[blockIdx.x * 32 + t]), "r"(map(bar, next)) : "memory");
    WAIT
    sum += s[r][t];
    BETWEEN
  }
  MEET
  y[blockIdx.x * 32 + t] = sum; }"""
).replace("MEET", MEET)
POLL = """unsigned done; do asm volatile("{.reg .pred p; mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 p, [%1], %2;"
  "selp.u32 %0, 1, 0, p;}" : "=r"(done) : "r"(at(bar)), "r"(parity) : "memory"); while (!done);"""
ONE = {"BARRIER": "0", "PARITY": "r & 1"}
TWO = {"BARRIER": "r & 1", "PARITY": "r >> 1 & 1"}
ONE_THREAD = f"if (t == 0) {{ {POLL} }} __syncwarp();"
RELAXED = MEET.replace("arrive.aligned", "arrive.relaxed.aligned")


def ran(run, out, texts, between="", *, cluster=2, wait=POLL, rounds=4):
    source = ROUNDS
    given = {"ROUNDS": str(rounds), "CLUSTER": str(cluster), "WAIT": wait, "BETWEEN": between}
    for name, text in {**given, **texts}.items():
        source = source.replace(name, text)
    return run(source, X, out(128), grid=4, block=32, cluster=(cluster, 1, 1))


@pytest.mark.parametrize(
    ("texts", "options"),
    [
        (ONE, {"between": MEET}),
        (ONE, {"between": MEET, "cluster": 4}),
        (ONE, {"between": MEET, "wait": ONE_THREAD}),
        (ONE, {"rounds": 1}),
        (TWO, {}),  # The other block has waited for the phase before it sends for the next barrier.
        (TWO, {"wait": ONE_THREAD}),
        (TWO, {"cluster": 4, "rounds": 2}),
    ],
)
def test_senders_that_know_that_the_phase_before_is_over_are_clean(run, out, texts, options):
    result = ran(run, out, texts, **options)
    assert not result.findings, result.text
    rounds, cluster = options.get("rounds", 4), options.get("cluster", 2)
    expected = rounds * np.roll(X.reshape(-1, cluster, 32), 1, axis=1).reshape(-1)
    assert np.array_equal(result["out0"], expected)


@pytest.mark.parametrize(
    ("texts", "options"),
    [
        (ONE, {}),
        (ONE, {"cluster": 4}),
        (ONE, {"between": "__syncthreads();"}),
        (ONE, {"between": RELAXED}),
        (ONE, {"wait": ONE_THREAD}),
        (TWO, {"cluster": 4}),  # In a ring, nobody hears from the block that it sends to.
    ],
)
def test_bytes_that_may_be_counted_in_the_phase_before_are_found(run, out, texts, options):
    result = ran(run, out, texts, **options)
    found = [f for f in result.findings if f.kind == "mbarrier"]
    assert found and all("phase before is over" in f.message and f.source.line for f in found)
