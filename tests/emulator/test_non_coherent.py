"""ld.global.nc of memory that the same launch writes, in either order and by any thread."""

import numpy as np
import pytest

X = np.arange(64, dtype=np.float32)
HEAD = """
__device__ __forceinline__ float nc(const float* p) {
  float v; asm volatile("ld.global.nc.f32 %0, [%1];" : "=f"(v) : "l"(p) : "memory"); return v; }
extern "C" __global__ void k(const float* x, float* y, float* z) { int t = threadIdx.x; """


def ran(run, out, body, block=64, grid=1, once=False):
    given = out(64, initial=X, once=once)
    return run(HEAD + body + "}", X, given, out(64 * grid), block=block, grid=grid)


def line_of(result):
    (finding,) = result.findings
    assert finding.source.line and finding.other.line, str(finding)
    return finding


def test_a_load_of_what_the_thread_has_written(run, out):
    result = ran(run, out, "y[t] = 2.f;\n z[t] = nc(y + t);")
    finding = line_of(result)
    assert result.kinds == {"non-coherent"} and finding.count == 64
    assert finding.source.inlined_at == finding.other.line + 1
    assert "ld.global.nc" in finding.message


def test_a_write_of_what_the_thread_has_loaded(run, out):
    result = ran(run, out, "z[t] = nc(y + t);\n y[t] = 2.f;")
    finding = line_of(result)
    assert result.kinds == {"non-coherent"} and finding.count == 64
    assert finding.other.line == finding.source.inlined_at + 1


@pytest.mark.parametrize("write", ["y[63 - t] = 2.f;", "atomicAdd(y + 63 - t, 2.f);"])
def test_other_threads_and_atomics(run, out, write):
    result = ran(run, out, f"z[t] = nc(y + t); __syncthreads(); {write}")
    assert "non-coherent" in result.kinds, result.text


def test_blocks_of_another_batch(run, out):
    body = "if (blockIdx.x == 1) y[t] = 1.f; z[blockIdx.x * 64 + t] = nc(y + t);"
    result = run(
        HEAD + body + "}", X, out(64, initial=X), out(128), block=64, grid=2, batch_lanes=64
    )
    assert "non-coherent" in result.kinds, result.text


def test_plain_loads_in_place_and_other_words_are_clean(run, out):
    result = ran(run, out, "float v = y[t]; y[t] = v * 2.f; z[t] = nc(x + t);", once=True)
    assert not result.findings, result.text
    apart = ran(run, out, "if (t < 32) y[t] = 1.f; z[t] = t < 32 ? 0.f : nc(y + t);")
    assert apart.kinds == {"never-written"}, apart.text  # the half that is only loaded


def test_a_weak_write_races_with_a_strong_load(run, out):
    body = """if (blockIdx.x == 0 && t == 0) {
        float v; asm volatile("ld.relaxed.gpu.f32 %0, [%1];" : "=f"(v) : "l"(y)); z[0] = v; }
      if (blockIdx.x == 1 && t == 0) WRITE"""
    source = HEAD + body + "}"
    weak = run(source.replace("WRITE", "y[0] = 1.f;"), X, out(1, initial=[0]), out(1), grid=2)
    assert weak.kinds == {"global-race"}, weak.text
    strong = 'asm volatile("st.relaxed.gpu.f32 [%0], %1;" :: "l"(y), "f"(1.f));'
    clean = run(source.replace("WRITE", strong), X, out(1, initial=[0]), out(1), grid=2)
    assert not clean.findings, clean.text
