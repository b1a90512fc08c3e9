// Softmax over the rows of a row-major matrix of bf16, 4097 columns.
//
// Split:      one row a block of 256 threads.
// Access:     16 bytes at a time; rows may start anywhere, their ends are masked.
// Algorithm:  online-block-max, each thread's maximum, then its sum; one exchange for both.
// Traffic:    1 read of the matrix and 1 write: the row's exponentials stay in registers.
// Reduction:  shuffle.
// Exponent:   ex2.approx; normalised by multiplication with the reciprocal.
//
// Semantics: a -inf in a row gives 0; a row of -inf only, or with a NaN or +inf, gives NaN.
// Build and check:  nvcc -std=c++17 -arch=native -o softmax FILE.cu && ./softmax [rows]
// Use in a program: define SOFTMAX_NO_MAIN, include the file, call softmax_bf16_4097::launch().
// Launch:
//   blocks = rows
//   softmax_bf16_4097_kernel<<<blocks, kThreads>>>(input, output, rows)
// Emit again:
//   explorer emit '{"algorithm":"online-block-max","exp":"ex2.approx","store_hint":"cs"}' --cols 4097 --rows 8192 --dtype bf16 --main

#ifndef SOFTMAX_BF16_4097_2B6C066B
#define SOFTMAX_BF16_4097_2B6C066B
#ifdef __CUDACC_RTC__
#define SOFTMAX_API extern "C"  // kernels are found by their plain names
#else
#define SOFTMAX_API static  // every unit of a program that includes this file has its own
#endif

#include <cuda_bf16.h>

namespace softmax_bf16_4097_2b6c066b {

// ------------------------------------------------------------------ parameters

using Element = __nv_bfloat16;
using Word = uint4;  // what one access moves
constexpr int kCols = 4097;
constexpr int kThreads = 256;
constexpr int kThreadsPerRow = kThreads;  // a block works on one row
constexpr int kMinBlocks = 1;  // blocks that an SM is to hold at once, at least
constexpr int kWidth = sizeof(Word) / sizeof(Element);  // elements an access moves
constexpr int kRowVectors = (kCols + 2 * (kWidth - 1)) / kWidth;  // for the worst row start
// Vectors that a thread keeps.
constexpr int kSlots = (kRowVectors + kThreadsPerRow - 1) / kThreadsPerRow;

// ------------------------------------------------------------------ elements

// The elements of one access.
struct __align__(sizeof(Word)) Vector {
  Element elements[kWidth];
};

__device__ __forceinline__ Word& as_word(Vector& vector) { return reinterpret_cast<Word&>(vector); }

// Elements are converted in pairs.
__device__ __forceinline__ void to_floats(const Vector& vector, float* x) {
  const auto* pairs = reinterpret_cast<const __nv_bfloat162*>(vector.elements);
#pragma unroll
  for (int i = 0; i < kWidth / 2; ++i) {
    const float2 pair = __bfloat1622float2(pairs[i]);
    x[2 * i] = pair.x;
    x[2 * i + 1] = pair.y;
  }
}

__device__ __forceinline__ Vector from_floats(const float (&x)[kWidth]) {
  Vector vector;
  auto* pairs = reinterpret_cast<__nv_bfloat162*>(vector.elements);
#pragma unroll
  for (int i = 0; i < kWidth / 2; ++i) {
    pairs[i] = __floats2bfloat162_rn(x[2 * i], x[2 * i + 1]);
  }
  return vector;
}

__device__ __forceinline__ float infinity() { return __int_as_float(0x7f800000); }

// ------------------------------------------------------------------ load, store

// The vectors that cover a row: elements `begin` to `end` of them are the row's.
struct Row {
  const Element* input;
  Element* output;
  int begin;
  int end;
  bool in_step;  // the output row starts at the same place within a vector as the input row
  bool between;  // other rows of the matrix
};

__device__ __forceinline__ int place_in_vector(const Element* element) {
  const auto address = reinterpret_cast<unsigned long long>(element);
  return static_cast<int>(address % sizeof(Word) / sizeof(Element));
}

__device__ __forceinline__ Row
row_at(const Element* input, Element* output, long long index, long long rows) {
  input += index * kCols;
  output += index * kCols;
  const int begin = place_in_vector(input);
  const bool in_step = place_in_vector(output) == begin;
  const bool between = index > 0 && index + 1 < rows;
  return {input - begin, output - begin, begin, begin + kCols, in_step, between};
}

// Whether a thread's vector `slot` lies inside the row for every thread and row start.
__device__ __forceinline__ constexpr bool always_inside(int slot) {
  return slot > 0 && (slot + 1) * kThreadsPerRow * kWidth <= kCols;
}

__device__ __forceinline__ bool inside(const Row& row, int k) {
  return k * kWidth >= row.begin && (k + 1) * kWidth <= row.end;
}

__device__ __forceinline__ bool overlaps(const Row& row, int k) {
  return (k + 1) * kWidth > row.begin && k * kWidth < row.end;
}

// Vector `k` of the row, at its ends with elements of the neighbouring rows. Where there are none
// the matrix may end, and elements are loaded one by one.
__device__ __forceinline__ Vector load_vector(const Row& row, int k, bool is_inside) {
  Vector vector;
  if (is_inside || (row.between && overlaps(row, k))) {
    as_word(vector) = reinterpret_cast<const Word*>(row.input)[k];
  } else {
#pragma unroll
    for (int i = 0; i < kWidth; ++i) {
      const int place = k * kWidth + i;
      const bool in_row = place >= row.begin && place < row.end;
      vector.elements[i] = in_row ? row.input[place] : __float2bfloat16_rn(-infinity());
    }
  }
  return vector;
}

// Hides the elements of vector `k` that are not the row's: they count as -inf, which changes
// neither maximum nor sum. In pairs: to take it apart, the compiler would have every vector waited
// for before the next is loaded.
__device__ __forceinline__ void hide_others(const Row& row, int k, Vector& vector) {
  constexpr unsigned kHidden = 0xff80ff80u;
  auto* const pairs = reinterpret_cast<unsigned*>(vector.elements);
#pragma unroll
  for (int i = 0; i < kWidth / 2; ++i) {
    const int place = k * kWidth + 2 * i;
    const unsigned low = place >= row.begin && place < row.end ? 0x0000ffffu : 0u;
    const unsigned high = place + 1 >= row.begin && place + 1 < row.end ? 0xffff0000u : 0u;
    pairs[i] = (pairs[i] & (low | high)) | (kHidden & ~(low | high));
  }
}

// Streaming: the output is not read again by this kernel.
__device__ __forceinline__ void store_word(Word* address, Word word) { __stcs(address, word); }

__device__ __forceinline__ void store_vector(
    const Row& row, int k, bool is_inside, const float (&x)[kWidth]) {
  Vector vector = from_floats(x);
  if (is_inside && row.in_step) {
    store_word(reinterpret_cast<Word*>(row.output) + k, as_word(vector));
  } else if (overlaps(row, k)) {
#pragma unroll
    for (int i = 0; i < kWidth; ++i) {
      const int place = k * kWidth + i;
      if (place >= row.begin && place < row.end) row.output[place] = vector.elements[i];
    }
  }
}

// ------------------------------------------------------------------ exponentiate, normalise

constexpr float kLog2E = 1.44269504f;

// e^(x - maximum) as a power of two, by the bare instruction: results below 2^-126 are flushed to
// zero. The difference comes first: it is exactly 0 at the maximum, however large that is.
__device__ __forceinline__ float exponential(float x, float maximum) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"((x - maximum) * kLog2E));
  return y;
}

// ------------------------------------------------------------------ reduce

// The running maximum, to which exponents are relative, and the sum of the exponentials. Before the
// first element the maximum is the lowest finite number: with -inf, a thread that saw nothing but
// -inf would compute -inf - -inf.
struct State {
  float maximum;
  float sum;
  static __device__ __forceinline__ State identity() { return {__int_as_float(0xff7fffff), 0.0f}; }
};

__device__ __forceinline__ State combined(State a, State b) {
  const float reference = fmaxf(a.maximum, b.maximum);
  const float sum_a = a.sum * exponential(a.maximum, reference);
  return {reference, sum_a + b.sum * exponential(b.maximum, reference)};
}

constexpr unsigned kWholeWarp = 0xffffffffu;

__device__ __forceinline__ State shuffle_xor(State state, int lanes) {
  return {
      __shfl_xor_sync(kWholeWarp, state.maximum, lanes),
      __shfl_xor_sync(kWholeWarp, state.sum, lanes)};
}

// Combines the values of `kLanes` neighbouring lanes, a power of two; each lane gets the result.
template <int kLanes>
__device__ __forceinline__ State reduce_lanes(State value) {
#pragma unroll
  for (int lanes = kLanes / 2; lanes > 0; lanes /= 2) {
    value = combined(value, shuffle_xor(value, lanes));
  }
  return value;
}

constexpr int kWarpsPerRow = kThreadsPerRow / 32;
static_assert(kThreadsPerRow % 32 == 0, "a row's threads are whole warps");

// The smallest power of two that is not below `count`.
__device__ constexpr int power_of_two(int count) {
  return count <= 1 ? 1 : 2 * power_of_two((count + 1) / 2);
}

// Combines the values of a row's threads. Each warp leaves one value in shared memory, and after
// one barrier every warp combines all of them: no second barrier is needed.
__device__ __forceinline__ State reduce_row(State value) {
  __shared__ State scratch[kWarpsPerRow];
  const int warp = threadIdx.x / 32;
  const int lane = threadIdx.x % 32;
  value = reduce_lanes<32>(value);
  if (lane == 0) scratch[warp] = value;
  __syncthreads();
  constexpr int kLanes = power_of_two(kWarpsPerRow);
  const int source = lane % kLanes;
  value = source < kWarpsPerRow ? scratch[source] : State::identity();
  return reduce_lanes<kLanes>(value);
}

// ------------------------------------------------------------------ kernel

// `input` and `output` are dense (rows, kCols) matrices that do not overlap, at any element.
SOFTMAX_API __global__ void __launch_bounds__(kThreads, kMinBlocks) softmax_bf16_4097_kernel(
    const Element* __restrict__ input, Element* __restrict__ output, long long rows) {
  // All threads have the same row: the remainder is threadIdx.x and the quotient below is 0. So
  // written, the compiler does not see it; if it does, the loops it makes are up to 2 % slower.
  const int thread_in_row = threadIdx.x % kThreads;
  const long long index = blockIdx.x + threadIdx.x / kThreads;
  const Row row = row_at(input, output, index, rows);

  // Load this thread's share of the row, all of it in flight at once.
  Vector loaded[kSlots];
#pragma unroll
  for (int slot = 0; slot < kSlots; ++slot) {
    const int k = slot * kThreadsPerRow + thread_in_row;
    loaded[slot] = load_vector(row, k, always_inside(slot) || inside(row, k));
  }
#pragma unroll
  for (int slot = 0; slot < kSlots; ++slot) {
    const int k = slot * kThreadsPerRow + thread_in_row;
    if (!always_inside(slot) && !inside(row, k)) hide_others(row, k, loaded[slot]);
  }
  float x[kSlots * kWidth];
#pragma unroll
  for (int slot = 0; slot < kSlots; ++slot) to_floats(loaded[slot], x + slot * kWidth);

  // Exponentials relative to this thread's own maximum, and their sum.
  float maximum = State::identity().maximum;
#pragma unroll
  for (int i = 0; i < kSlots * kWidth; ++i) maximum = fmaxf(maximum, x[i]);
  State own = {maximum, 0.0f};
#pragma unroll
  for (int i = 0; i < kSlots * kWidth; ++i) {
    x[i] = exponential(x[i], own.maximum);
    own.sum += x[i];
  }

  // One exchange for maximum and sum; then the exponentials are brought to the row's maximum.
  const State state = reduce_row(own);
  const float correction = exponential(own.maximum, state.maximum);
  const float inverse_sum = 1.0f / state.sum;

  // Normalise and store.
#pragma unroll
  for (int slot = 0; slot < kSlots; ++slot) {
    float y[kWidth];
#pragma unroll
    for (int i = 0; i < kWidth; ++i) y[i] = x[slot * kWidth + i] * (correction * inverse_sum);
    const int k = slot * kThreadsPerRow + thread_in_row;
    store_vector(row, k, always_inside(slot) || inside(row, k), y);
  }
}

}  // namespace softmax_bf16_4097_2b6c066b

// ------------------------------------------------------------------ host
#ifndef __CUDACC_RTC__

#include <cuda_runtime.h>

#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <vector>

namespace softmax_bf16_4097_2b6c066b {

// Writes the softmax of each row of `input` to `output`, on `stream`; returns at once.
//
// Both are dense row-major (rows, kCols) matrices in device memory that do not overlap.
// Nothing is launched where there is no element. Returns what the launch returns, or
// - cudaErrorInvalidValue for a negative count or more rows than a grid has blocks for
inline cudaError_t launch(
    const Element* input, Element* output, long long rows, cudaStream_t stream = nullptr) {
  if (rows < 0) return cudaErrorInvalidValue;
  if (rows == 0) return cudaSuccess;
  const long long blocks = rows;
  if (blocks > 0x7fffffffLL) return cudaErrorInvalidValue;
  const unsigned grid = static_cast<unsigned>(blocks);
  softmax_bf16_4097_kernel<<<grid, kThreads, 0, stream>>>(input, output, rows);
  return cudaGetLastError();
}

}  // namespace softmax_bf16_4097_2b6c066b

// A unit may include files of several configs: then a program calls one by its namespace above.
namespace softmax_bf16_4097 {
using namespace softmax_bf16_4097_2b6c066b;
}  // namespace softmax_bf16_4097
#endif  // __CUDACC_RTC__

#if !defined(__CUDACC_RTC__) && defined(SOFTMAX_LIBRARY)
// launch() for programs in other languages, from a library that is built by
//   nvcc -std=c++17 -arch=native -shared -Xcompiler -fPIC -DSOFTMAX_LIBRARY -o softmax.so FILE.cu
// Arrays are addresses in device memory, `stream` is a cudaStream_t, the result a cudaError_t.
extern "C" int softmax_bf16_4097_launch(
    const void* input, void* output, long long rows, void* stream) {
  using namespace softmax_bf16_4097;
  return launch(
      static_cast<const Element*>(input), static_cast<Element*>(output), rows,
      static_cast<cudaStream_t>(stream));
}
#elif !defined(__CUDACC_RTC__) && !defined(SOFTMAX_NO_MAIN)
// Checks a few rows against double precision, then times the kernel.
int main(int argc, char** argv) {
  using namespace softmax_bf16_4097;
  const long long rows = argc > 1 ? std::atoll(argv[1]) : 8192;
  const int cols = kCols;
  unsigned random = 1;
  const auto noise = [&random](size_t count, float least, float most) {
    std::vector<Element> numbers(count);
    for (Element& x : numbers) {
      random = random * 1664525u + 1013904223u;
      x = __float2bfloat16_rn(least + (most - least) * (random >> 8) / (1 << 24));
    }
    return numbers;
  };
  const auto on_device = [](const auto& host) {
    void* array = nullptr;
    const size_t bytes = host.size() * sizeof(host[0]);
    const cudaError_t error = cudaMalloc(&array, bytes);
    if (error != cudaSuccess) {
      std::fprintf(stderr, "no %zu bytes on a GPU: %s\n", bytes, cudaGetErrorString(error));
      std::exit(2);
    }
    cudaMemcpy(array, host.data(), bytes, cudaMemcpyHostToDevice);
    return array;
  };
  const auto host = noise(static_cast<size_t>(rows) * cols, -8.0f, 8.0f);
  auto* const input = static_cast<Element*>(on_device(host));
  std::vector<Element> result(static_cast<size_t>(rows) * cols);
  auto* const output = static_cast<Element*>(on_device(result));

  cudaError_t error = launch(input, output, rows);
  if (error == cudaSuccess) error = cudaDeviceSynchronize();
  if (error != cudaSuccess) {
    std::fprintf(stderr, "launch failed: %s\n", cudaGetErrorString(error));
    return 2;
  }
  cudaMemcpy(result.data(), output, result.size() * sizeof(Element), cudaMemcpyDeviceToHost);
  const auto widen = [](Element x) -> double { return __bfloat162float(x); };
  const double smallest = 0x1p-126;  // normal number of the type
  double worst = 0.0;
  for (long long row = 0; row < rows; row += rows > 8 ? rows / 8 : 1) {
    const auto x = [&](int i) -> double { return widen(host[row * cols + i]); };
    double sum = 0.0;
    for (int i = 0; i < cols; ++i) sum += std::exp(x(i));
    for (int i = 0; i < cols; ++i) {
      const double expected = std::exp(x(i)) / sum;
      const double got = widen(result[row * cols + i]);
      const double off = std::fabs(got - expected) / std::fmax(expected, smallest);
      if (!(off <= worst) && !std::isnan(worst)) worst = off;
    }
  }

  cudaEvent_t begin, end;
  cudaEventCreate(&begin);
  cudaEventCreate(&end);
  const int launches = 100;
  cudaEventRecord(begin);
  for (int i = 0; i < launches; ++i) launch(input, output, rows);
  cudaEventRecord(end);
  cudaEventSynchronize(end);
  float milliseconds = 0.0f;
  cudaEventElapsedTime(&milliseconds, begin, end);
  const double us = 1e3 * milliseconds / launches;
  const double written = 1.0 * rows * cols;
  const double bytes = written * (sizeof(Element) + sizeof(Element));
  std::printf("%lld x %d: %.2f us, %.0f GB/s, ", rows, cols, us, 1e-3 * bytes / us);
  std::printf("largest relative error %.1e\n", worst);
  return worst <= 1e-2 ? 0 : 1;
}
#endif
#endif  // SOFTMAX_BF16_4097_2B6C066B
