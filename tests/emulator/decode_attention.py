# ruff: noqa: E501 - lines of CUDA
"""One query a head over many keys, on tensor cores: kernels to try the emulator on, and their truth.

A group of heads shares keys and values. Blocks take spans of the keys, and a second launch, or the
last block, merges what they found. The heads of a group are the rows of a product with eight keys;
what it gives is then, as it lies, an operand of the product with the values.
"""

import ml_dtypes
import numpy as np
from run_kernel import PRELUDE, compile_ptx

from explorer.ptx_emulator.launches import launch
from explorer.ptx_emulator.memory import GlobalMemory, check_output, poisoned
from explorer.ptx_emulator.parser import parse

BF16, F16 = np.dtype(ml_dtypes.bfloat16), np.dtype(np.float16)

SOURCE = """
#define LOAD(v, p) asm volatile("ld.global.nc.L1::no_allocate.v4.u32 {%0,%1,%2,%3},[%4];" \\
  : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "l"(p))
constexpr int kWords = D / 8;  // of 16 bytes in a row

__device__ float exp2_of(float x) {
  float y; asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x)); return y;
}
__device__ unsigned pair(float low, float high) {
  unsigned r; asm("cvt.rn.TYPEx2.f32 %0, %1, %2;" : "=r"(r) : "f"(high), "f"(low)); return r;
}
__device__ float2 floats(unsigned pair) {
  float2 r; asm("{.reg .b16 l, h; mov.b32 {l, h}, %2; cvt.f32.TYPE %0, l; cvt.f32.TYPE %1, h;}"
    : "=f"(r.x), "=f"(r.y) : "r"(pair)); return r;
}
__device__ void add_product(float (&d)[4], const unsigned (&a)[4], unsigned b0, unsigned b1) {
  asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.TYPE.TYPE.f32 "
    "{%0,%1,%2,%3},{%4,%5,%6,%7},{%8,%9},{%0,%1,%2,%3};"
    : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
    : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
__device__ void write_merged(const float* sums, const float2* states, unsigned short* out, int row,
                             int column, int parts) {
  float maximum = NEG_INF, total = 0, weight = 0;
  for (int i = 0; i < parts; ++i) maximum = fmaxf(maximum, states[row * parts + i].x);
  for (int i = 0; i < parts; ++i) {
    const float2 state = states[row * parts + i];
    const float factor = exp2_of(state.x - maximum);
    total += factor * sums[(row * parts + i) * D + column];
    weight += factor * state.y;
  }
  out[row * D + column] = pair(total / weight, 0.f);
}

extern "C" __global__ void __launch_bounds__(128) decode(
    const uint4* query, const uint4* keys, const uint4* values, unsigned short* out, float* sums,
    float2* states, unsigned* arrived, int count, int span, float scale) {
  __shared__ float2 warp_state[4][8];
  __shared__ float warp_sum[4][8][D + 4];
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, g = lane / 4, t = lane % 4;
  query += (long long)blockIdx.y * G * kWords;
  keys += (long long)blockIdx.y * count * kWords;
  values += (long long)blockIdx.y * count * kWords;
  uint4 q[D / 32];
  for (int j = 0; j < D / 32; ++j) q[j] = g < G ? query[g * kWords + 4 * j + t] : uint4{};
  float o[D / 16][4] = {}, maximum = NEG_INF, sum = 0;
  const int first = blockIdx.x * span, end = min(first + span, count);
  for (int key = first + 16 * warp; key < end; key += 64) {
    float s[2][4] = {};
    #pragma unroll
    for (int n = 0; n < 2; ++n) {
      const uint4* row = keys + (long long)min(key + 8 * n + g, count - 1) * kWords;
      #pragma unroll
      for (int j = 0; j < D / 32; ++j) {
        uint4 k; LOAD(k, row + 4 * j + t);
        add_product(s[n], {q[j].x, 0, q[j].y, 0}, k.x, k.y);
        add_product(s[n], {q[j].z, 0, q[j].w, 0}, k.z, k.w);
      }
    }
    float p[4]; int of[4];
    #pragma unroll
    for (int i = 0; i < 4; ++i) {
      of[i] = key + 2 * t + i % 2 + 8 * (i / 2);
      p[i] = of[i] < end ? s[i / 2][i % 2] * scale : NEG_INF;
    }
    float largest = fmaxf(fmaxf(p[0], p[1]), fmaxf(p[2], p[3]));
    largest = fmaxf(largest, __shfl_xor_sync(FULL, largest, 1));
    largest = fmaxf(largest, __shfl_xor_sync(FULL, largest, 2));
    if (__any_sync(FULL, largest > maximum)) {
      const float next = fmaxf(maximum, largest), factor = exp2_of(maximum - next);
      const float even = __shfl_sync(FULL, factor, 8 * t), odd = __shfl_sync(FULL, factor, 8 * t + 4);
      maximum = next; sum *= factor;
      #pragma unroll
      for (int i = 0; i < D / 16; ++i) { o[i][0] *= even; o[i][1] *= odd; o[i][2] *= even; o[i][3] *= odd; }
    }
    #pragma unroll
    for (int i = 0; i < 4; ++i) { p[i] = exp2_of(p[i] - maximum); sum += p[i]; }
    unsigned high[2], low[2];  // a weight is the sum of two numbers of 16 bits
    #pragma unroll
    for (int i = 0; i < 2; ++i) {
      high[i] = pair(p[2 * i], p[2 * i + 1]);
      const float2 rounded = floats(high[i]);
      low[i] = pair(p[2 * i] - rounded.x, p[2 * i + 1] - rounded.y);
    }
    #pragma unroll
    for (int c = 0; c < D / 64; ++c) {
      union { uint4 word; unsigned pairs[4]; } v[4];
      #pragma unroll
      for (int i = 0; i < 4; ++i)
        LOAD(v[i].word, values + (long long)min(of[i], count - 1) * kWords + 8 * c + g);
      #pragma unroll
      for (int i = 0; i < 4; ++i) {
        const unsigned a[4] = {__byte_perm(v[0].pairs[i], v[1].pairs[i], 0x5410),
                               __byte_perm(v[0].pairs[i], v[1].pairs[i], 0x7632),
                               __byte_perm(v[2].pairs[i], v[3].pairs[i], 0x5410),
                               __byte_perm(v[2].pairs[i], v[3].pairs[i], 0x7632)};
        add_product(o[4 * c + i], a, high[0], high[1]);
        add_product(o[4 * c + i], a, low[0], low[1]);
      }
    }
  }
  sum += __shfl_xor_sync(FULL, sum, 1);
  sum += __shfl_xor_sync(FULL, sum, 2);
  if (t == 0) warp_state[warp][g] = make_float2(maximum, sum);
  #pragma unroll
  for (int i = 0; i < D / 16; ++i)
    for (int h = 0; h < 2; ++h)
      *(float2*)&warp_sum[warp][2 * t + h][i / 4 * 64 + 8 * g + i % 4 * 2] = make_float2(o[i][h], o[i][2 + h]);
  __syncthreads();
  for (int i = threadIdx.x; i < G * D; i += 128) {
    const int h = i / D, part = (blockIdx.y * G + h) * gridDim.x + blockIdx.x;
    float top = NEG_INF, total = 0, weight = 0;
    for (int w = 0; w < 4; ++w) top = fmaxf(top, warp_state[w][h].x);
    for (int w = 0; w < 4; ++w) {
      const float factor = exp2_of(warp_state[w][h].x - top);
      total += factor * warp_sum[w][h][i % D];
      weight += factor * warp_state[w][h].y;
    }
    sums[part * D + i % D] = total;
    if (i % D == 0) states[part] = make_float2(top, weight);
  }
#ifdef LAST_BLOCK_MERGES
  __shared__ bool is_last;
  __threadfence();
  __syncthreads();
  if (threadIdx.x == 0) is_last = atomicAdd(arrived + blockIdx.y, 1u) == gridDim.x - 1;
  __syncthreads();
  if (!is_last) return;
  __threadfence();
  for (int i = threadIdx.x; i < G * D; i += 128)
    write_merged(sums, states, out, blockIdx.y * G + i / D, i % D, gridDim.x);
#else
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

extern "C" __global__ void merge(const float* sums, const float2* states, unsigned short* out, int parts) {
  asm volatile("griddepcontrol.wait;" ::: "memory");
  write_merged(sums, states, out, blockIdx.x, threadIdx.x, parts);
}
"""

LAST_BLOCK = "#define LAST_BLOCK_MERGES\n"


def source_of(dtype, width, group, *, last_block=False):
    """The source for heads of `width` numbers, `group` of which share keys."""
    sizes = f"constexpr int D = {width}, G = {group};\n"
    name = "bf16" if dtype == BF16 else "f16"
    return (LAST_BLOCK if last_block else "") + sizes + SOURCE.replace("TYPE", name)


def inputs(dtype, width, group, heads, count, seed=0):
    """Queries (heads, group, width), keys and values (heads, count, width)."""
    rng = np.random.default_rng(seed)
    shapes = (heads, group, width), (heads, count, width), (heads, count, width)
    return [rng.normal(size=shape).astype(dtype) for shape in shapes]


def truth(query, keys, values):
    """The result in float64."""
    query, keys, values = (x.astype(np.float64) for x in (query, keys, values))
    scores = query @ keys.transpose(0, 2, 1) / np.sqrt(query.shape[-1])
    weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
    return weights / weights.sum(axis=-1, keepdims=True) @ values


def decode(source, query, keys, values, splits, **options):
    """The output of a source, what was found, and the counters of the first launch."""
    heads, group, width = query.shape
    count = keys.shape[1]
    last_block = source.startswith(LAST_BLOCK)
    module, memory = parse(compile_ptx(PRELUDE + source)), GlobalMemory()
    names = {"query": query, "keys": keys, "values": values}
    given = [memory.allocate(x, name=name, writable=False) for name, x in names.items()]
    parts = heads * group * splits

    def room(name, shape, dtype=np.float32):
        return memory.allocate(poisoned(shape, dtype), name=name, initialised=False)

    out = room("output", query.shape, query.dtype)
    sums, states = room("sums", (parts, width)), room("states", (parts, 2))
    arrived = memory.allocate(np.zeros(heads, np.uint32), name="arrived")
    span = -(-count // splits)
    scale = np.float32(np.log2(np.e) / np.sqrt(width))
    where = {"memory": memory, **options}
    numbers = [np.int32(count), np.int32(span), scale]
    first = launch(
        module,
        "decode",
        grid=(splits, heads, 1),
        block=(128, 1, 1),
        args=[*given, out, sums, states, arrived, *numbers],
        **where,
    )
    found = [*first.findings]
    if not last_block:
        arguments = [sums, states, out, np.int32(splits)]
        shape = {"grid": (heads * group, 1, 1), "block": (width, 1, 1)}
        found += launch(module, "merge", **shape, args=arguments, overlaps=True, **where).findings
    found += check_output(memory, out)
    return memory.read(out), found, first.counters
