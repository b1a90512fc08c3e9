"""Every reader of a word is remembered until it is ordered before a write, not two of them."""

import numpy as np
import pytest
from verified import find_out

from explorer.model.config import Config
from explorer.model.problem import Problem

X = np.arange(256, dtype=np.float32)

REUSE = """
#define MEET(n) asm volatile("bar.sync %0, 64;" :: "n"(n) : "memory");
extern "C" __global__ void k(const float* x, float* y) {
  __shared__ volatile float s[1];
  const int t = threadIdx.x, warp = t / 32;
  if (t == 0) s[0] = x[3];
  __syncthreads();
  float sum = 0.f;
  if (warp < 3) for (int i = 0; i < READS; ++i) sum += s[0];
  if (warp == 0) { FIRST }
  if (warp == 1) { SECOND }
  if (warp == 2) { THIRD }
  if (warp == 3) {
    FIRST SECOND THIRD
    if (t == 96) s[0] = 7.f;
    __syncwarp();
    sum = s[0];
  }
  y[t] = sum;
}"""
MEETINGS = {"FIRST": "MEET(1)", "SECOND": "MEET(2)", "THIRD": "MEET(3)"}


def reuse(left_out=None, reads=1):
    source = REUSE.replace("READS", str(reads))
    for name, meeting in MEETINGS.items():
        source = source.replace(name, "" if name == left_out else meeting)
    return source


@pytest.mark.parametrize("reads", [1, 400])
def test_scratch_is_reused_once_all_readers_are_done(run, out, reads):
    result = run(reuse(reads=reads), X, out(128), block=128)
    assert not result.findings, result.text
    assert (result["out0"] == np.repeat([3 * reads] * 3 + [7], 32)).all()


@pytest.mark.parametrize("reads", [1, 400])
@pytest.mark.parametrize("reader", MEETINGS)
def test_a_reader_that_is_not_waited_for_is_found(run, out, reader, reads):
    result = run(reuse(reader, reads), X, out(128), block=128)
    assert result.kinds == {"shared-race"}, result.text


def test_one_lane_that_is_not_waited_for_is_found(run, out):
    """31 of 32 readers meet the writer at a partial warp barrier."""
    source = """extern "C" __global__ void k(const float* x, float* y) {
      __shared__ volatile float s[1];
      const int t = threadIdx.x;
      if (t == 0) s[0] = x[3];
      __syncwarp();
      y[t] = s[0];
      if (t != 5 || ALL) __syncwarp(ALL ? 0xffffffffu : 0xffffffdfu);
      if (t == 9) s[0] = 1.f;
    }"""
    assert not run(source.replace("ALL", "1"), X, out(32)).findings
    assert run(source.replace("ALL", "0"), X, out(32)).kinds == {"shared-race"}


def test_readers_before_the_last_write_do_not_matter(run, out):
    """A ring of two warps: each value is read by all lanes of one, then replaced by the other."""
    source = """extern "C" __global__ void k(const float* x, float* y) {
      __shared__ volatile float s[2];
      const int t = threadIdx.x;
      float sum = 0.f;
      for (int i = 0; i < 64; ++i) {
        if (t == 0) s[i % 2] = x[i];
        asm volatile("bar.sync 1, 64;" ::: "memory");
        if (t >= 32) sum += s[i % 2];
        BACK
      }
      y[t] = sum;
    }"""
    meet = 'asm volatile("bar.sync 2, 64;" ::: "memory");'
    clean = run(source.replace("BACK", meet), X, out(64), block=64)
    assert not clean.findings, clean.text
    assert (clean["out0"][32:] == X[:64].sum()).all()
    # With two places, one meeting a turn is enough. With none at all, it is not.
    assert not run(source.replace("BACK", ""), X, out(64), block=64).findings
    one = source.replace("BACK", "").replace("i % 2", "0")
    assert run(one, X, out(64), block=64).kinds == {"shared-race"}


def test_a_missing_barrier_between_rows_is_found(emulator):
    """Without it the next rows' reduction overwrites what threads still read."""
    config = Config(threads=128, threads_per_row=128, algorithm="online-block-max", persistent=1)
    barrier = "    __syncthreads();  // the next rows"
    find_out(emulator, Problem(64, 512), config, [(barrier, "    // the next rows")])
