// What the explorer itself runs on the GPU: inputs, the plain copy that is the limit, and the
// check of an output against float64. Compiled with one of DTYPE_F32, DTYPE_F16, DTYPE_BF16.

#if defined(DTYPE_F16)
#include <cuda_fp16.h>
using Element = __half;
__device__ double widen(Element x) { return static_cast<double>(__half2float(x)); }
__device__ Element narrow(float x) { return __float2half_rn(x); }
__device__ Element round_truth(double x) { return __double2half(x); }
constexpr double kSmallestNormal = 0x1p-14;
#elif defined(DTYPE_BF16)
#include <cuda_bf16.h>
using Element = __nv_bfloat16;
__device__ double widen(Element x) { return static_cast<double>(__bfloat162float(x)); }
__device__ Element narrow(float x) { return __float2bfloat16_rn(x); }
__device__ Element round_truth(double x) { return __double2bfloat16(x); }
constexpr double kSmallestNormal = 0x1p-126;
#else
using Element = float;
__device__ double widen(Element x) { return static_cast<double>(x); }
__device__ Element narrow(float x) { return x; }
constexpr double kSmallestNormal = 0x1p-126;
#endif

constexpr double kFlushed = 0x1p-126;
#define INFINITY_64 __longlong_as_double(0x7ff0000000000000ll)

// ------------------------------------------------------------------ input

// A 32-bit mixer: Wellons' "lowbias32", whose every output bit depends on every input bit.
__device__ unsigned mix(unsigned x) {
  x = (x ^ (x >> 16)) * 0x7feb352du;
  x = (x ^ (x >> 15)) * 0x846ca68bu;
  return x ^ (x >> 16);
}

// About normal, standard deviation 1; one element in 512 lifted by 8, so that maxima matter.
extern "C" __global__ void fill_input(Element* out, long long count, unsigned seed) {
  const long long stride = static_cast<long long>(gridDim.x) * blockDim.x;
  for (long long i = blockIdx.x * static_cast<long long>(blockDim.x) + threadIdx.x; i < count; i += stride) {
    const unsigned a = mix(static_cast<unsigned>(i) ^ mix(static_cast<unsigned>(i >> 32) ^ seed));
    const unsigned b = mix(a + 0x9e3779b9u);
    const float sum = static_cast<float>((a & 0xffffu) + (a >> 16) + (b & 0xffffu)) * (1.0f / 65536.0f);
    out[i] = narrow((sum - 1.5f) * 2.0f + (b >> 23 == 0 ? 8.0f : 0.0f));
  }
}

// ------------------------------------------------------------------ copy

// Each block copies one contiguous span, each thread `kUnroll` words of it, all loaded before the
// first is stored: the access pattern of a softmax that keeps its rows in registers. Cache hints
// are those that softmax variants have.
enum class Load { kPlain, kStreaming, kNoAllocate };
enum class Store { kPlain, kStreaming, kL2 };

__device__ uint2 load_no_allocate(const uint2* address) {
  uint2 w;
  asm volatile("ld.global.nc.L1::no_allocate.v2.u32 { %0, %1 }, [%2];" : "=r"(w.x), "=r"(w.y) : "l"(address));
  return w;
}

__device__ uint4 load_no_allocate(const uint4* address) {
  uint4 w;
  asm volatile("ld.global.nc.L1::no_allocate.v4.u32 { %0, %1, %2, %3 }, [%4];"
               : "=r"(w.x), "=r"(w.y), "=r"(w.z), "=r"(w.w)
               : "l"(address));
  return w;
}

template <typename Word, int kUnroll, Load kLoad, Store kStore>
__device__ void copy_words(const Word* __restrict__ in, Word* __restrict__ out, long long words) {
  const long long first = blockIdx.x * static_cast<long long>(blockDim.x) * kUnroll + threadIdx.x;
  Word held[kUnroll];
#pragma unroll
  for (int u = 0; u < kUnroll; ++u) {
    const long long i = first + u * blockDim.x;
    if (i >= words) continue;
    if (kLoad == Load::kStreaming) {
      held[u] = __ldcs(in + i);
    } else if (kLoad == Load::kNoAllocate) {
      held[u] = load_no_allocate(in + i);
    } else {
      held[u] = in[i];
    }
  }
#pragma unroll
  for (int u = 0; u < kUnroll; ++u) {
    const long long i = first + u * blockDim.x;
    if (i >= words) continue;
    if (kStore == Store::kStreaming) {
      __stcs(out + i, held[u]);
    } else if (kStore == Store::kL2) {
      __stcg(out + i, held[u]);
    } else {
      out[i] = held[u];
    }
  }
}

#define COPY(name, Word, unroll, load, store)                                       \
  extern "C" __global__ void __launch_bounds__(1024)                                \
      name(const Word* __restrict__ in, Word* __restrict__ out, long long words) {  \
    copy_words<Word, unroll, Load::load, Store::store>(in, out, words);             \
  }
#define COPY_STORES(prefix, Word, unroll, load)           \
  COPY(prefix##_default, Word, unroll, load, kPlain)      \
  COPY(prefix##_cs, Word, unroll, load, kStreaming)       \
  COPY(prefix##_cg, Word, unroll, load, kL2)
#define COPY_LOADS(prefix, Word, unroll)                             \
  COPY_STORES(prefix##_default, Word, unroll, kPlain)                \
  COPY_STORES(prefix##_cs, Word, unroll, kStreaming)                 \
  COPY_STORES(prefix##_no_allocate, Word, unroll, kNoAllocate)
#define COPIES(bytes, Word)              \
  COPY_LOADS(copy_##bytes##_1, Word, 1)  \
  COPY_LOADS(copy_##bytes##_2, Word, 2)  \
  COPY_LOADS(copy_##bytes##_4, Word, 4)  \
  COPY_LOADS(copy_##bytes##_8, Word, 8)
COPIES(8, uint2)
COPIES(16, uint4)

// ------------------------------------------------------------------ check

struct Report {
  unsigned long long wrong;
  unsigned long long first;       // index of the first wrong element
  unsigned long long error_bits;  // largest relative error, a non-negative double's bits
  unsigned long long nan;         // wrong elements that are NaN, or should be
};

__device__ bool is_right(Element output, double got, double truth) {
  if (isnan(truth)) return isnan(got);
  if (fabs(got - truth) <= kFlushed) return true;
#if defined(DTYPE_F16) || defined(DTYPE_BF16)
  if (isnan(got)) return false;
  const Element rounded = round_truth(truth);
  const int steps = reinterpret_cast<const short&>(output) - reinterpret_cast<const short&>(rounded);
  return -1 <= steps && steps <= 1;
#else
  return fabs(got - truth) <= 4e-6 * truth;
#endif
}

template <typename Combine>
__device__ double reduce_block(double value, double identity, Combine combine) {
  __shared__ double scratch[32];
  __syncthreads();  // the scratch may still be read by the reduction before
  for (int lanes = 16; lanes > 0; lanes /= 2) value = combine(value, __shfl_xor_sync(0xffffffffu, value, lanes));
  if (threadIdx.x % 32 == 0) scratch[threadIdx.x / 32] = value;
  __syncthreads();
  value = identity;
  for (int warp = 0; warp < blockDim.x / 32; ++warp) value = combine(value, scratch[warp]);
  return value;
}

// One block a row. Writes the truth too if `truths` is given, for the check of this check.
extern "C" __global__ void check_rows(const Element* input, const Element* output, long long rows, int cols,
                                      Report* report, double* truths) {
  for (long long row = blockIdx.x; row < rows; row += gridDim.x) {
    const Element* x = input + row * cols;
    const Element* y = output + row * cols;
    double maximum = -INFINITY_64;
    for (int i = threadIdx.x; i < cols; i += blockDim.x) maximum = fmax(maximum, widen(x[i]));
    maximum = reduce_block(maximum, -INFINITY_64, [](double a, double b) { return fmax(a, b); });
    double sum = 0.0;
    for (int i = threadIdx.x; i < cols; i += blockDim.x) sum += exp(widen(x[i]) - maximum);
    sum = reduce_block(sum, 0.0, [](double a, double b) { return a + b; });
    double error = 0.0;
    for (int i = threadIdx.x; i < cols; i += blockDim.x) {
      const double truth = exp(widen(x[i]) - maximum) / sum;
      const double got = widen(y[i]);
      if (truths != nullptr) truths[row * cols + i] = truth;
      if (!is_right(y[i], got, truth)) {
        atomicAdd(&report->wrong, 1ull);
        atomicMin(&report->first, static_cast<unsigned long long>(row * cols + i));
        if (isnan(got) || isnan(truth)) atomicAdd(&report->nan, 1ull);
      }
      const double off = fabs(got - truth) / truth;
      if (truth >= kSmallestNormal && off > error && !isinf(off)) error = off;
    }
    if (error > 0.0) atomicMax(&report->error_bits, static_cast<unsigned long long>(__double_as_longlong(error)));
  }
}
