"""Reductions with a step that is missing, lost or in the wrong place: what they look like."""

import pytest

from explorer.devices.device import Setting
from explorer.devices.emulated.emulator import Emulator
from explorer.devices.own_kernel import OwnLaunch, read_own
from explorer.devices.verdict import Status
from explorer.model.query import ProblemQuery
from explorer.report.verification import hint_lines

A_WARP = """
__global__ void softmax(const TYPE* in, TYPE* out, int rows, int cols) {
  const int lane = threadIdx.x % 32, row = blockIdx.x * 4 + threadIdx.x / 32;
  if (row >= rows) return;
  in += (size_t)row * cols, out += (size_t)row * cols;
  float m = -INFINITY, s = 0;
  for (int i = lane; i < cols; i += 32) m = fmaxf(m, (float)in[i]);
  for (int o = 16; o > 0; o /= 2) m = fmaxf(m, __shfl_xor_sync(~0u, m, o));
  for (int i = lane; i < cols; i += 32) s += expf((float)in[i] - m);
  for (int o = 16; o > 0; o /= 2) s += __shfl_xor_sync(~0u, s, o);
  for (int i = lane; i < cols; i += 32) out[i] = (TYPE)(expf((float)in[i] - m) / s);
}
void launch(const TYPE* in, TYPE* out, int rows, int cols) {
  softmax<<<(rows + 3) / 4, 128>>>(in, out, rows, cols);
}
"""

A_BLOCK = """
__global__ void softmax(const TYPE* in, TYPE* out, int rows, int cols) {
  __shared__ float held[THREADS];
  __shared__ int bits;
  in += (size_t)blockIdx.x * cols, out += (size_t)blockIdx.x * cols;
  float m = -INFINITY, s = 0;
  if (threadIdx.x == 0) bits = __float_as_int(m);
  for (int i = threadIdx.x; i < cols; i += THREADS) m = fmaxf(m, in[i]);
  held[threadIdx.x] = m;
  __syncthreads();
  for (int i = 0; i < THREADS; ++i) m = fmaxf(m, held[i]);
  __syncthreads();
  for (int i = threadIdx.x; i < cols; i += THREADS) s += expf(in[i] - m);
  held[threadIdx.x] = s;
  __syncthreads();
  for (int n = THREADS / 2; n > 0; n /= 2) {
    if (threadIdx.x < n) held[threadIdx.x] += held[threadIdx.x + n];
    __syncthreads();
  }
  for (int i = threadIdx.x; i < cols; i += THREADS) out[i] = expf(in[i] - m) / held[0];
}
void launch(const TYPE* in, TYPE* out, int rows, int cols) {
  softmax<<<rows, THREADS>>>(in, out, rows, cols);
}
"""

OF_SUM = "for (int o = 16; o > 0; o /= 2) s +="
OF_MAXIMUM = OF_SUM.replace("s +=", "m =")
NEVER = ("o > 0; o /= 2", "false;")
SHARED = "for (int i = 0; i < 64; ++i) m = fmaxf(m, held[i]);"
ATOMIC = "atomicMax(&bits, __float_as_int(m)); __syncthreads(); m = __int_as_float(bits);"
ADDED = "s += expf((float)in[i] - m)"
IN_HALF = "s = __half2float(__float2half(s + expf(in[i] - m)))"
B64, B96 = (A_BLOCK.replace("THREADS", number) for number in ("64", "96"))

MISTAKES = [
    (A_WARP, OF_SUM, OF_SUM.replace("16", "8"), "threads 16 apart were not joined", "s +="),
    (A_WARP, OF_SUM, OF_SUM.replace("> 0", "> 1"), "threads 1 apart were not joined", "s +="),
    (A_WARP, OF_SUM, OF_SUM.replace(*NEVER), "used a sum of its own columns", "expf"),
    (A_WARP, OF_MAXIMUM, OF_MAXIMUM.replace(*NEVER), "a maximum of its own columns", "max"),
    (A_WARP, "xor_sync(~0u, s", "down_sync(~0u, s", "the sum looks as if only the first", "s +="),
    (A_WARP, "xor_sync(~0u, m", "down_sync(~0u, m", "maximum looks as if only the first", "m ="),
    (A_WARP, "/ s)", "/ (s + 1e-5f))", "as if about 1e-05 were added to it", "/ (s + 1e-5f)"),
    (A_WARP, ADDED, IN_HALF, "their sums have lost digits", "s ="),
    (B96, "", "", "96 threads were halved until one is left", "n /= 2"),
    (B64, SHARED, ATOMIC, "the maximum of negative numbers looks like the least", "atomicMax"),
]


def verdict_of(text, path, cols):
    file = path / "mine.cu"
    file.write_text(f"#include <cuda_fp16.h>\n{text.replace('TYPE', 'float')}")
    launch = OwnLaunch(args="input,output,rows,cols")
    program = read_own(file, launch, ProblemQuery(cols))
    emulator = Emulator("sm_90")
    emulator.open(Setting(program.problem))
    return emulator.verify(program)


@pytest.mark.sampled(6)
@pytest.mark.parametrize("text", [A_WARP, B64], ids=["warp", "block"])
def test_what_they_are_made_of_is_right(text, tmp_path):
    assert verdict_of(text, tmp_path, 333).status is Status.VERIFIED


@pytest.mark.sampled(6)
@pytest.mark.parametrize(("text", "right", "wrong", "says", "line"), MISTAKES)
def test_a_reduction_says_what_is_wrong_with_it(text, right, wrong, says, line, tmp_path):
    assert text.count(right) == 1 or not right
    verdict = verdict_of(text.replace(right, wrong) if right else text, tmp_path, 333)
    assert verdict.status is Status.WRONG and says in verdict.hint, (verdict.sentence, verdict.hint)
    assert any(line in told for told in hint_lines(verdict)[1:]), hint_lines(verdict)
