# ruff: noqa: E501 - lines of CUDA and PTX
"""Divergence, reconvergence, warp-wide instructions and block barriers."""

import numpy as np
import pytest

from explorer.ptx_emulator import scheduler

X = np.random.default_rng(5).normal(size=1024).astype(np.float32)


def test_loops_of_different_length_meet_again(run, out):
    source = """extern "C" __global__ void k(float* y) {
      int t = threadIdx.x, n = 0; for (int i = 0; i < t % 7; i++) { if (i % 2) n += 3; else n += 1; }
      for (int o = 16; o; o >>= 1) n += __shfl_xor_sync(FULL, n, o);
      y[blockIdx.x * 64 + t] = n; }"""
    result = run(source, out(256), grid=4, block=64)
    n = np.array([sum(3 if i % 2 else 1 for i in range(t % 7)) for t in range(64)])
    want = np.repeat(n.reshape(2, 32).sum(1), 32)
    assert not result.findings and np.array_equal(
        result["out0"].reshape(4, 64), np.tile(want, (4, 1))
    )


def test_nested_branches_and_switch(run, out):
    source = """extern "C" __global__ void k(float* y) {
      int t = threadIdx.x; float v = t;
      switch (t % 6) { case 0: v = sinf(0.f); break; case 1: v *= 2; break; case 2: v += 100;
        case 3: v -= 7; break; case 4: if (t > 40) v = -v; else v = v / 2; break; default: return; }
      y[t] = v; }"""
    result = run(source, out(64), block=64)
    for t in range(64):
        v = float(t)
        want = [0, 2 * v, v + 93, v - 7, -v if t > 40 else v / 2, None][t % 6]
        assert want is None or result["out0"][t] == want
    assert result.kinds == {"never-written"}


def test_early_exit_leaves_the_rest_running(run, out):
    source = """extern "C" __global__ void k(const float* x, float* y, int n) {
      int t = blockIdx.x * 48 + threadIdx.x; if (t >= n) return; y[t] = x[t] + 1; }"""
    result = run(source, X, out(100), np.int32(100), grid=3, block=48)
    assert not result.findings, result.text
    assert np.array_equal(result["out0"], X[:100] + 1)


@pytest.mark.parametrize(
    ("call", "want"),
    [
        ("__shfl_xor_sync(FULL, v, 5)", lambda v: v[np.arange(32) ^ 5]),
        ("__shfl_down_sync(FULL, v, 3)", lambda v: v[np.minimum(np.arange(32) + 3, 31)]),
        ("__shfl_up_sync(FULL, v, 1)", lambda v: v[np.maximum(np.arange(32) - 1, 0)]),
        ("__shfl_sync(FULL, v, 9)", lambda v: np.full(32, v[9])),
        ("__shfl_sync(FULL, v, t * 7)", lambda v: v[np.arange(32) * 7 % 32]),
        ("__shfl_sync(FULL, v, 2, 8)", lambda v: v[np.arange(32) // 8 * 8 + 2]),
        ("__shfl_xor_sync(FULL, v, 4, 8)", lambda v: v[np.arange(32) ^ 4]),
    ],
)
def test_shuffles(run, out, call, want):
    source = f"""extern "C" __global__ void k(const float* x, float* y) {{
      int t = threadIdx.x; float v = x[t]; y[t] = {call}; }}"""
    result = run(source, X, out(32))
    assert not result.findings, result.text
    v = X[:32]
    expected = want(v)
    if "down" in call:
        expected[29:] = v[29:]
    assert np.array_equal(result["out0"], expected)


def test_shuffle_predicate(run, out):
    source = """extern "C" __global__ void k(float* y) { int t = threadIdx.x, v = t, ok;
      asm volatile("{.reg .pred p; shfl.sync.down.b32 %0|p, %0, 4, 31, -1; selp.s32 %1, 1, 0, p;}"
        : "+r"(v), "=r"(ok)); y[t] = ok * 100 + v; }"""
    got = run(source, out(32))["out0"]
    assert list(got[:28]) == [100 + t + 4 for t in range(28)] and list(got[28:]) == [28, 29, 30, 31]


SHUFFLE = """extern "C" __global__ void k(const float* x, float* y) {
  int t = threadIdx.x; float v = x[t]; %s y[t] = v; }"""


@pytest.mark.parametrize(
    "body",
    [
        "if (t < 16) v = __shfl_xor_sync(0xffff, v, 1); else v = __shfl_xor_sync(0xffff0000u, v, 2);",
        "v = __shfl_xor_sync(0xffu << (t & 24), v, 4);",
        "if (t % 2) v = __shfl_xor_sync(0xaaaaaaaau, v, 2);",
        "unsigned m = __ballot_sync(FULL, v > 0); if (v > 0) v = __shfl_sync(m, v, __ffs(m) - 1);",
    ],
)
def test_correct_partial_masks(run, out, body):
    result = run(SHUFFLE % body, X, out(32))
    assert not result.findings, result.text


@pytest.mark.parametrize(
    "body",
    [
        "if (t < 20) v = __shfl_xor_sync(FULL, v, 1);",
        "if (t < 16) v = __shfl_xor_sync(FULL, v, 1); else v = __shfl_xor_sync(FULL, v, 2) + 1;",
        "v = __shfl_xor_sync(0xffff, v, 1);",
        "if (t < 16) v = __shfl_xor_sync(0xffff, v, 16);",
        "if (t >= 29) return; v = __shfl_xor_sync(FULL, v, 1);",
        "if (t < 31) __syncwarp();",
    ],
)
def test_wrong_masks(run, out, body):
    result = run(SHUFFLE % body, X, out(32))
    assert "warp-mask" in result.kinds, result.text
    assert "deadlock" not in result.kinds


def test_lanes_that_have_returned_need_not_come(run, out):
    body = "if (t >= 16) return; __syncwarp(); v += __shfl_xor_sync(FULL, v, 8);"
    result = run(SHUFFLE % body, X, out(16))
    assert not result.findings, result.text
    assert np.array_equal(result["out0"], X[:16] + X[np.arange(16) ^ 8])
    beyond = run(SHUFFLE % body.replace("v, 8", "v, 16"), X, out(16))
    assert beyond.kinds == {"warp-mask"}


def test_votes_matches_and_reductions(run, out):
    source = """extern "C" __global__ void k(const float* x, unsigned* y) {
      int t = threadIdx.x; float v = x[t]; unsigned r = 0;
      r |= __any_sync(FULL, v > 2.f) << 0; r |= __all_sync(FULL, v > -10.f) << 1;
      y[t] = r; y[32 + t] = __ballot_sync(FULL, v > 0); y[64 + t] = __match_any_sync(FULL, t % 3);
      y[96 + t] = __reduce_add_sync(FULL, t); y[128 + t] = __reduce_max_sync(0xffu << (t & 24), t);
      y[160 + t] = __activemask(); }"""
    result = run(source, X, out(192, np.uint32))
    got = result["out0"].reshape(6, 32)
    v = X[:32]
    bits = 1 << np.arange(32, dtype=np.uint64)
    assert np.all(got[0] == int((v > 2).any()) + 2)
    assert np.all(got[1] == bits[v > 0].sum())
    assert all(got[2][t] == bits[np.arange(32) % 3 == t % 3].sum() for t in range(32))
    assert np.all(got[3] == 496) and np.array_equal(got[4], np.arange(32) // 8 * 8 + 7)
    assert np.all(got[5] == 0xFFFFFFFF) and not result.findings


@pytest.mark.parametrize(
    "body",
    [
        "if (t < 40) __syncthreads();",
        "if (t < 64) __syncthreads();",
        "if (t >= 64) return; __syncthreads();",
        "if (t < 40) { __syncthreads(); v += 1; __syncthreads(); } else __syncthreads();",
    ],
)
def test_barrier_that_not_all_reach(run, out, body):
    result = run(SHUFFLE % body, X, out(128), block=128)
    assert "barrier" in result.kinds, result.text


def test_barrier_in_a_uniform_branch_is_clean(run, out):
    body = "if (blockIdx.x % 2) { __syncthreads(); v += 1; __syncthreads(); }"
    source = (SHUFFLE % body).replace("y[t]", "y[blockIdx.x * 128 + t]")
    result = run(source, X, out(512), grid=4, block=128)
    assert not result.findings, result.text
    assert result.counters.barriers == 4


def test_barrier_reductions(run, out):
    source = """extern "C" __global__ void k(const float* x, int* y) {
      int t = threadIdx.x; bool p = x[blockIdx.x * 96 + t] > 1.f;
      y[(blockIdx.x * 96 + t) * 3] = __syncthreads_count(p);
      y[(blockIdx.x * 96 + t) * 3 + 1] = __syncthreads_or(p);
      y[(blockIdx.x * 96 + t) * 3 + 2] = __syncthreads_and(p || t > 3); }"""
    result = run(source, X, out((4, 96, 3), np.int32), grid=4, block=96)
    p = X[:384].reshape(4, 96) > 1
    want = np.stack([p.sum(1), p.any(1), p[:, :4].all(1)], 1)
    assert not result.findings
    assert np.array_equal(result["out0"] != 0, np.repeat(want[:, None] != 0, 96, axis=1))
    assert np.array_equal(result["out0"][:, 0, 0], want[:, 0])


def test_endless_loop_is_given_up(run, out):
    source = """extern "C" __global__ void k(const float* x, float* y) {
      int i = 0; float s = 0; while (x[i & 7] < 1e30f) { s += x[i & 7]; i++; } y[threadIdx.x] = s; }"""
    result = run(source, X, out(32), step_limit=20_000)
    assert not result.result.complete and "limit" in result.kinds


def test_trap_is_reported(run, out):
    source = 'extern "C" __global__ void k(float* y) { if (threadIdx.x == 3) __trap(); y[threadIdx.x] = 1; }'
    assert {"trap", "never-written"} == run(source, out(32)).kinds


INIT = 'if (t == 0) asm volatile("mbarrier.init.shared.b64 [%0], 2;" :: "r"(at));'
TEST = (
    'asm volatile("{.reg .pred p; mbarrier.%s.parity.shared.b64 p, [%%1], 0;'
    ' selp.u32 %%0, 1, 0, p;}" : "=r"(done) : "r"(at) : "memory");'
)


@pytest.mark.parametrize(
    "spins",
    [
        "while (atomicAdd(y, 0) != 12345) {}",
        "while (atomicMax(y, -5) != 12345) {}",
        "while (atomicAdd((float*)y, __int_as_float(0x7fc00000)) != 1.f) {}",
        "while (*(volatile int*)y != 12345) {}",
        "while (atomicCAS(y, 0, 1) != 0) __nanosleep(100);",
        "while (atomicExch(y, 1) != 0) {}",
        f"{INIT} __syncthreads(); do {TEST % 'test_wait'} while (!done);",
        f"{INIT} __syncthreads(); do {TEST % 'try_wait'} while (!done);",
        "for (int i = t; i < 1000;) done = done * 3 + z[i] == 7;",  # the registers repeat
    ],
)
def test_threads_that_spin_for_what_never_comes_are_a_deadlock(run, out, spins):
    source = """extern "C" __global__ void k(int* z, int* y) { __shared__ unsigned long long bar;
      int t = threadIdx.x; unsigned done = 0, at = (unsigned)__cvta_generic_to_shared(&bar);
      %s z[blockIdx.x * 256 + t] = done + at; }"""
    sizes = {"grid": 8, "block": 256}
    result = run(source % spins, out(64 * 256, np.int32), out(4, np.int32), **sizes)
    assert not result.result.complete
    assert "deadlock" in result.kinds


def test_a_loop_of_many_turns_that_writes_nothing_is_no_deadlock(run, out, monkeypatch):
    monkeypatch.setattr(scheduler, "IDLE_ROUNDS", 3)
    source = """extern "C" __global__ void k(unsigned* z) { unsigned v = threadIdx.x;
      for (int i = 0; i < 40000; ++i) v = __umulhi(v, 2654435761u) ^ i; z[threadIdx.x] = v; }"""
    result = run(source, out(32, np.uint32))
    assert result.result.complete and not result.findings, result.text


@pytest.mark.parametrize(
    "goes_on",
    [
        "while (atomicAdd(y, 1) != -1) {}",
        "while (atomicAdd((float*)y, 1.f) != -1.f) {}",
        "for (int i = 0;; ++i) ((volatile int*)y)[blockIdx.x * 256 + t] = i;",
        "for (int i = 0;; ++i) { atomicExch(y + blockIdx.x * 256 + t, i); __syncthreads(); }",
    ],
)
def test_the_work_of_a_kernel_that_never_ends_is_bounded(run, out, monkeypatch, goes_on):
    monkeypatch.setattr("explorer.ptx_emulator.batch.WORK_LIMIT", 10_000_000)
    source = f"""extern "C" __global__ void k(int* z, int* y) {{
      int t = threadIdx.x; {goes_on} z[blockIdx.x * 256 + t] = t; }}"""
    sizes = {"grid": 64, "block": 256}
    result = run(source, out(64 * 256, np.int32), out(64 * 256, np.int32), **sizes)
    assert not result.result.complete
    assert "limit" in result.kinds
    assert result.result.steps < 10_000
