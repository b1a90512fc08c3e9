// Softmax over the rows of a row-major matrix of f32, 4096 columns.
//
// Split:      one row a block of 256 threads.
// Access:     16 bytes at a time; rows start aligned.
// Algorithm:  three-pass: maximum, then sum of exponentials, then normalise.
// Traffic:    1 read of the matrix and 1 write: the row's exponentials stay in registers.
// Reduction:  shuffle.
// Exponent:   exp2f; normalised by multiplication with the reciprocal.
//
// Semantics: a -inf in a row gives 0; a row of -inf only, or with a NaN or +inf, gives NaN.
// Build and check:  nvcc -std=c++17 -arch=native -o softmax FILE.cu && ./softmax [rows]
// Use in a program: define SOFTMAX_NO_MAIN, include the file, call softmax_f32_4096::launch().
// Launch:
//   blocks = rows
//   softmax_f32_4096_kernel<<<blocks, kThreads>>>(input, output)
// Emit again:
//   explorer emit '{}' --cols 4096 --rows 8192 --dtype f32 --main

#ifndef SOFTMAX_F32_4096_C6603AA7
#define SOFTMAX_F32_4096_C6603AA7
#ifdef __CUDACC_RTC__
#define SOFTMAX_API extern "C"  // kernels are found by their plain names
#else
#define SOFTMAX_API static  // every unit of a program that includes this file has its own
#endif

namespace softmax_f32_4096_c6603aa7 {

// ------------------------------------------------------------------ parameters

using Element = float;
using Word = float4;  // what one access moves
constexpr int kCols = 4096;
constexpr int kThreads = 256;
constexpr int kThreadsPerRow = kThreads;  // a block works on one row
constexpr int kMinBlocks = 1;  // blocks that an SM is to hold at once, at least
constexpr int kWidth = sizeof(Word) / sizeof(Element);  // elements an access moves
constexpr int kRowVectors = kCols / kWidth;
// Vectors that a thread keeps.
constexpr int kSlots = (kRowVectors + kThreadsPerRow - 1) / kThreadsPerRow;

static_assert(kCols % kWidth == 0, "every row starts on a vector boundary");

// ------------------------------------------------------------------ elements

// The elements of one access.
struct __align__(sizeof(Word)) Vector {
  Element elements[kWidth];
};

__device__ __forceinline__ Word& as_word(Vector& vector) { return reinterpret_cast<Word&>(vector); }

__device__ __forceinline__ void to_floats(const Vector& vector, float* x) {
#pragma unroll
  for (int i = 0; i < kWidth; ++i) x[i] = vector.elements[i];
}

__device__ __forceinline__ float infinity() { return __int_as_float(0x7f800000); }

// ------------------------------------------------------------------ load, store

// Vector `k` of the row.
__device__ __forceinline__ Vector load_vector(const Element* input, int k) {
  Vector vector;
  as_word(vector) = reinterpret_cast<const Word*>(input)[k];
  return vector;
}

__device__ __forceinline__ void store_vector(Element* output, int k, const float (&x)[kWidth]) {
  Vector vector;
#pragma unroll
  for (int i = 0; i < kWidth; ++i) vector.elements[i] = x[i];
  reinterpret_cast<Word*>(output)[k] = as_word(vector);
}

// ------------------------------------------------------------------ exponentiate, normalise

constexpr float kLog2E = 1.44269504f;

// e^(x - maximum) as a power of two. The difference comes first: it is exactly 0 at the maximum,
// however large that is.
__device__ __forceinline__ float exponential(float x, float maximum) {
  return exp2f((x - maximum) * kLog2E);
}

// ------------------------------------------------------------------ reduce

struct Max {
  using Value = float;
  static __device__ __forceinline__ float identity() { return -infinity(); }
  __device__ __forceinline__ float operator()(float a, float b) const { return fmaxf(a, b); }
};

struct Sum {
  using Value = float;
  static __device__ __forceinline__ float identity() { return 0.0f; }
  __device__ __forceinline__ float operator()(float a, float b) const { return a + b; }
};

template <typename Combine>
using ValueOf = typename Combine::Value;

constexpr unsigned kWholeWarp = 0xffffffffu;

__device__ __forceinline__ float shuffle_xor(float value, int lanes) {
  return __shfl_xor_sync(kWholeWarp, value, lanes);
}

// Combines the values of `kLanes` neighbouring lanes, a power of two; each lane gets the result.
template <int kLanes, typename Combine>
__device__ __forceinline__ ValueOf<Combine> reduce_lanes(ValueOf<Combine> value, Combine combine) {
#pragma unroll
  for (int lanes = kLanes / 2; lanes > 0; lanes /= 2) {
    value = combine(value, shuffle_xor(value, lanes));
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
// one barrier every warp combines all of them: no second barrier is needed. Each kind of reduction
// has scratch of its own, so that no warp can overwrite what another still reads.
template <typename Combine>
__device__ __forceinline__ ValueOf<Combine> reduce_row(ValueOf<Combine> value, Combine combine) {
  __shared__ ValueOf<Combine> scratch[kWarpsPerRow];
  const int warp = threadIdx.x / 32;
  const int lane = threadIdx.x % 32;
  value = reduce_lanes<32>(value, combine);
  if (lane == 0) scratch[warp] = value;
  __syncthreads();
  constexpr int kLanes = power_of_two(kWarpsPerRow);
  const int source = lane % kLanes;
  value = source < kWarpsPerRow ? scratch[source] : Combine::identity();
  return reduce_lanes<kLanes>(value, combine);
}

// ------------------------------------------------------------------ kernel

// `input` and `output` are dense (rows, kCols) matrices that do not overlap, at any multiple of
// sizeof(Word) bytes.
SOFTMAX_API __global__ void __launch_bounds__(kThreads, kMinBlocks)
    softmax_f32_4096_kernel(const Element* __restrict__ input, Element* __restrict__ output) {
  const int thread_in_row = threadIdx.x;
  const long long index = blockIdx.x;
  input += index * kCols;
  output += index * kCols;

  // Load this thread's share of the row, all of it in flight at once.
  Vector loaded[kSlots];
#pragma unroll
  for (int slot = 0; slot < kSlots; ++slot)
    loaded[slot] = load_vector(input, slot * kThreadsPerRow + thread_in_row);
  float x[kSlots * kWidth];
#pragma unroll
  for (int slot = 0; slot < kSlots; ++slot) to_floats(loaded[slot], x + slot * kWidth);

  // Maximum.
  float maximum = -infinity();
#pragma unroll
  for (int i = 0; i < kSlots * kWidth; ++i) maximum = fmaxf(maximum, x[i]);
  const float reference = reduce_row(maximum, Max{});

  // Exponentials and their sum.
  float sum = 0.0f;
#pragma unroll
  for (int i = 0; i < kSlots * kWidth; ++i) {
    x[i] = exponential(x[i], reference);
    sum += x[i];
  }
  const float inverse_sum = 1.0f / reduce_row(sum, Sum{});

  // Normalise and store.
#pragma unroll
  for (int slot = 0; slot < kSlots; ++slot) {
    float y[kWidth];
#pragma unroll
    for (int i = 0; i < kWidth; ++i) y[i] = x[slot * kWidth + i] * inverse_sum;
    store_vector(output, slot * kThreadsPerRow + thread_in_row, y);
  }
}

}  // namespace softmax_f32_4096_c6603aa7

// ------------------------------------------------------------------ host
#ifndef __CUDACC_RTC__

#include <cuda_runtime.h>

#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <vector>

namespace softmax_f32_4096_c6603aa7 {

// Writes the softmax of each row of `input` to `output`, on `stream`; returns at once.
//
// Both are dense row-major (rows, kCols) matrices in device memory that do not overlap.
// Nothing is launched where there is no element. Returns what the launch returns, or
// - cudaErrorInvalidValue for a negative count or more rows than a grid has blocks for
// - cudaErrorMisalignedAddress for an array that is no multiple of an access's bytes
inline cudaError_t launch(
    const Element* input, Element* output, long long rows, cudaStream_t stream = nullptr) {
  if (rows < 0) return cudaErrorInvalidValue;
  if (reinterpret_cast<size_t>(input) % sizeof(Word) != 0) return cudaErrorMisalignedAddress;
  if (reinterpret_cast<size_t>(output) % sizeof(Word) != 0) return cudaErrorMisalignedAddress;
  if (rows == 0) return cudaSuccess;
  const long long blocks = rows;
  if (blocks > 0x7fffffffLL) return cudaErrorInvalidValue;
  const unsigned grid = static_cast<unsigned>(blocks);
  softmax_f32_4096_kernel<<<grid, kThreads, 0, stream>>>(input, output);
  return cudaGetLastError();
}

}  // namespace softmax_f32_4096_c6603aa7

// A unit may include files of several configs: then a program calls one by its namespace above.
namespace softmax_f32_4096 {
using namespace softmax_f32_4096_c6603aa7;
}  // namespace softmax_f32_4096
#endif  // __CUDACC_RTC__

#if !defined(__CUDACC_RTC__) && defined(SOFTMAX_LIBRARY)
// launch() for programs in other languages, from a library that is built by
//   nvcc -std=c++17 -arch=native -shared -Xcompiler -fPIC -DSOFTMAX_LIBRARY -o softmax.so FILE.cu
// Arrays are addresses in device memory, `stream` is a cudaStream_t, the result a cudaError_t.
extern "C" int softmax_f32_4096_launch(
    const void* input, void* output, long long rows, void* stream) {
  using namespace softmax_f32_4096;
  return launch(
      static_cast<const Element*>(input), static_cast<Element*>(output), rows,
      static_cast<cudaStream_t>(stream));
}
#elif !defined(__CUDACC_RTC__) && !defined(SOFTMAX_NO_MAIN)
// Checks a few rows against double precision, then times the kernel.
int main(int argc, char** argv) {
  using namespace softmax_f32_4096;
  const long long rows = argc > 1 ? std::atoll(argv[1]) : 8192;
  const int cols = kCols;
  unsigned random = 1;
  const auto noise = [&random](size_t count, float least, float most) {
    std::vector<Element> numbers(count);
    for (Element& x : numbers) {
      random = random * 1664525u + 1013904223u;
      x = least + (most - least) * (random >> 8) / (1 << 24);
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
  const auto widen = [](Element x) -> double { return x; };
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
  return worst <= 4e-6 ? 0 : 1;
}
#endif
#endif  // SOFTMAX_F32_4096_C6603AA7
