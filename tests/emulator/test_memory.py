# ruff: noqa: E501 - lines of CUDA and PTX
"""Bounds, alignment, global races, outputs: each bug beside the kernel without it."""

import numpy as np
import pytest

X = np.arange(1024, dtype=np.float32)

COPY = """extern "C" __global__ void k(const float* x, float* y) {
  int t = blockIdx.x * 64 + threadIdx.x; y[%s] = x[%s]; }"""


def test_copy_is_clean(run, out):
    result = run(COPY % ("t", "t"), X, out(256), grid=4, block=64)
    assert not result.findings and np.array_equal(result["out0"], X[:256])


@pytest.mark.parametrize(
    ("to", "of", "kind"),
    [
        ("t + 1", "t", "out-of-bounds"),
        ("t - 1", "t", "out-of-bounds"),
        ("t", "t + 1000", "out-of-bounds"),
        ("t", "t - 1", "out-of-bounds"),
        ("t", "t + (1LL << 33)", "out-of-bounds"),
        ("t / 2", "t", "global-race"),
        ("t < 255 ? t : 254", "t", "global-race"),
        ("t & 127", "t", "written-twice"),
        ("t | 1", "t", "never-written"),
    ],
)
def test_wrong_index(run, out, to, of, kind):
    result = run(COPY % (to, of), X, out(256), grid=4, block=64)
    assert kind in result.kinds, result.text


def test_finding_names_the_line_and_the_thread(run, out):
    source = """extern "C" __global__ void k(const float* x, float* y) {
      int t = threadIdx.x;
      y[t] = x[t];
      if (t == 5) y[t + 60] = 1.f;
    }"""
    (finding,) = run(source, X, out(64, once=False), block=64).findings
    assert finding.kind == "out-of-bounds"
    assert finding.source.line == 7 and finding.thread == (5, 0, 0) and finding.block == (0, 0, 0)
    assert "out0+260" in finding.message


def test_misaligned_vectors(run, out):
    source = """extern "C" __global__ void k(const float* x, float4* y) {
      int t = threadIdx.x; y[t] = *(const float4*)(x + 4 * t + %d); }"""
    assert not run(source % 4, X, out(128)).findings
    result = run(source % 1, X, out(128))
    assert "misaligned" in result.kinds and "16 bytes" in result.text


def test_read_only_input(run, out):
    source = 'extern "C" __global__ void k(float* x, float* y) { x[threadIdx.x] = 0; y[threadIdx.x] = 1; }'
    assert run(source, X, out(32)).kinds == {"read-only"}


def test_poison_that_reaches_the_output(run, out):
    source = """extern "C" __global__ void k(float* s, float* y) {
      int t = threadIdx.x; if (t != 3) s[t] = t; y[t] = s[t]; }"""
    result = run(source, out(32), out(32))
    assert {"uninitialised-global", "poison", "never-written"} <= result.kinds


def test_elements_between_launch_batches(run, out):
    source = (
        'extern "C" __global__ void k(float* y) { y[(blockIdx.x / 2) * 32 + threadIdx.x] = 1; }'
    )
    result = run(source, out(16 * 32), grid=32, batch_lanes=64)
    assert {"global-race", "written-twice"} <= result.kinds


def test_data_between_blocks_races_without_synchronisation(run, out):
    source = """extern "C" __global__ void k(float* s, float* y) {
      int t = threadIdx.x; s[blockIdx.x * 32 + t] = t; __syncthreads();
      y[blockIdx.x * 32 + t] = s[(blockIdx.x ^ %d) * 32 + t]; }"""
    assert not run(source % 0, out(64), out(64), grid=2).findings
    assert "global-race" in run(source % 1, out(64), out(64), grid=2).kinds


def test_local_arrays(run, out):
    source = """extern "C" __global__ void k(const float* x, float* y, int n) {
      float v[8]; int t = threadIdx.x; for (int i = 0; i < 8; i++) v[(i * n) & 7] = x[t * 8 + i];
      float s = 0; for (int i = 0; i < n; i++) s += v[(i + t) & 7] * i; y[t] = s + v[n]; }"""
    result = run(source, X, out(32), np.int32(5))
    v = X[:256].reshape(32, 8)[:, [(i * 5) & 7 for i in range(8)]]
    v = np.stack(
        [X[:256].reshape(32, 8)[:, list((np.arange(8) * 5) & 7).index(j)] for j in range(8)], 1
    )
    want = [sum(v[t][(i + t) & 7] * i for i in range(5)) + v[t][5] for t in range(32)]
    assert not result.findings and np.allclose(result["out0"], want)
    beyond = run(source, X, out(32), np.int32(9))
    assert beyond.kinds == {"out-of-bounds"} and "local" in beyond.text


def test_constant_and_global_variables(run, out):
    source = """__constant__ float table[4] = {1.f, 2.f, 3.f, -4.f};
      __device__ int counter = 7;
      extern "C" __global__ void k(float* y) { y[threadIdx.x] = table[threadIdx.x & 3] + counter; }"""
    result = run(source, out(32))
    assert not result.findings, result.text
    assert list(result["out0"][:4]) == [8, 9, 10, 3]


def test_generic_addresses(run, out):
    source = """extern "C" __global__ void k(const float* x, float* y, int n) {
      __shared__ float s[32]; int t = threadIdx.x; s[t] = 100 + t; __syncthreads();
      const float* p = (t + n) % 2 ? s + (31 - t) : x + t; y[t] = *(volatile const float*)p; }"""
    result = run(source, X, out(32), np.int32(0))
    assert not result.findings, result.text
    t = np.arange(32)
    assert np.array_equal(result["out0"], np.where(t % 2, 131 - t, t))


@pytest.mark.parametrize("hint", ["nc.L1::no_allocate.L2::128B", "cs", "L1::evict_last", "nc"])
def test_inline_ptx_loads_with_hints(run, out, hint):
    source = f"""extern "C" __global__ void k(const float* x, float4* y) {{
      unsigned a, b, c, d; int t = threadIdx.x;
      asm volatile("ld.global.{hint}.v4.u32 {{%0,%1,%2,%3}}, [%4];"
        : "=r"(a), "=r"(b), "=r"(c), "=r"(d) : "l"(x + 4 * t));
      __stcs(y + t, make_float4(__uint_as_float(a), __uint_as_float(b), __uint_as_float(c),
        __uint_as_float(d))); }}"""
    result = run(source, X, out(128))
    assert not result.findings and np.array_equal(result["out0"], X[:128])


def test_struct_parameters_and_three_dimensions(run, out):
    source = """struct P { float a; int b[3]; double c; };
      extern "C" __global__ void k(P p, float* y) {
      int t = threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z);
      int b = blockIdx.x + gridDim.x * (blockIdx.y + gridDim.y * blockIdx.z);
      y[b * 24 + t] = p.a + p.b[threadIdx.z] + (float)p.c * blockIdx.y; }"""
    struct = np.zeros(1, np.dtype([("a", "f4"), ("b", "i4", 3), ("c", "f8")]))
    struct["a"], struct["b"], struct["c"] = 0.5, (10, 20, 30), 100.0
    result = run(source, struct.tobytes(), out((2, 3, 2, 3, 2, 4)), grid=(2, 3, 2), block=(4, 2, 3))
    assert not result.findings, result.text
    got = result["out0"]
    assert got[1, 2, 0, 1, 0, 0] == 0.5 + 20 + 200


def test_launches_are_ordered_and_keep_what_was_written():
    from run_kernel import compile_ptx

    from explorer.ptx_emulator import GlobalMemory, check_output, launch, parse, poisoned

    module = parse(
        compile_ptx("""
      extern "C" __global__ void first(float* s, int n) { if (threadIdx.x < n) s[threadIdx.x] = threadIdx.x; }
      extern "C" __global__ void second(const float* s, float* y) { y[threadIdx.x] = s[63 - threadIdx.x]; }
    """)
    )
    for count in (64, 63):
        memory = GlobalMemory()
        s = memory.allocate(poisoned((64,), np.float32), name="scratch", initialised=False)
        y = memory.allocate(poisoned((64,), np.float32), name="out", initialised=False)
        shape = {"grid": (1, 1, 1), "block": (64, 1, 1), "memory": memory}
        assert launch(module, "first", args=[s, count], **shape).clean
        kinds = {f.kind for f in launch(module, "second", args=[s, y], **shape).findings}
        assert kinds == (set() if count == 64 else {"uninitialised-global"})
        assert bool(check_output(memory, y)) == (count == 63)
