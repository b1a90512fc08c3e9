// Softmax over the rows of a row-major matrix of f16.
//
// Split:      4 rows a block of 256 threads, 64 threads a row.
// Access:     16 bytes at a time; rows start aligned.
// Algorithm:  three-pass: maximum, then sum of exponentials, then normalise.
// Traffic:    1 read of the matrix and 1 write: the row's exponentials stay in shared memory.
// Reduction:  shared-tree.
// Exponent:   exp2f; normalised by multiplication with the reciprocal.
//
// Semantics: a -inf in a row gives 0; a row of -inf only, or with a NaN or +inf, gives NaN.
// Build and check:  nvcc -std=c++17 -arch=native -o softmax FILE.cu && ./softmax [rows] [cols]
// Use in a program: define SOFTMAX_NO_MAIN, include the file, call softmax_f16::launch().
// Launch:
//   blocks = (rows + kRowsPerBlock - 1) / kRowsPerBlock
//   vectors = cols / kWidth
//   shared = kRowsPerBlock * vectors * kWidth * 4
//   softmax_f16_kernel<<<blocks, kThreads, shared>>>(input, output, rows, cols)
// Emit again:
//   explorer emit '{"threads_per_row":64,"reduction":"shared-tree","cache":"shared","unroll":2,"static_cols":false}' --cols 1000 --rows 65536 --dtype f16 --main

#ifndef SOFTMAX_F16_158914D4
#define SOFTMAX_F16_158914D4
#ifdef __CUDACC_RTC__
#define SOFTMAX_API extern "C"  // kernels are found by their plain names
#else
#define SOFTMAX_API static  // every unit of a program that includes this file has its own
#endif

#include <cuda_fp16.h>

namespace softmax_f16_158914d4 {

// ------------------------------------------------------------------ parameters

using Element = __half;
using Word = uint4;  // what one access moves
constexpr int kThreads = 256;
constexpr int kThreadsPerRow = 64;
constexpr int kRowsPerBlock = kThreads / kThreadsPerRow;
constexpr int kMinBlocks = 1;  // blocks that an SM is to hold at once, at least
constexpr int kWidth = sizeof(Word) / sizeof(Element);  // elements an access moves
constexpr int kUnroll = 2;  // vectors a thread loads before it uses the first

// ------------------------------------------------------------------ elements

// The elements of one access.
struct __align__(sizeof(Word)) Vector {
  Element elements[kWidth];
};

__device__ __forceinline__ Word& as_word(Vector& vector) { return reinterpret_cast<Word&>(vector); }

// Elements are converted in pairs.
__device__ __forceinline__ void to_floats(const Vector& vector, float* x) {
  const auto* pairs = reinterpret_cast<const __half2*>(vector.elements);
#pragma unroll
  for (int i = 0; i < kWidth / 2; ++i) {
    const float2 pair = __half22float2(pairs[i]);
    x[2 * i] = pair.x;
    x[2 * i + 1] = pair.y;
  }
}

__device__ __forceinline__ Vector from_floats(const float (&x)[kWidth]) {
  Vector vector;
  auto* pairs = reinterpret_cast<__half2*>(vector.elements);
#pragma unroll
  for (int i = 0; i < kWidth / 2; ++i) {
    pairs[i] = __floats2half2_rn(x[2 * i], x[2 * i + 1]);
  }
  return vector;
}

__device__ __forceinline__ float infinity() { return __int_as_float(0x7f800000); }

// ------------------------------------------------------------------ load, store

// A row, as vectors: all of them whole.
struct Row {
  const Element* input;
  Element* output;
  int vectors;
};

__device__ __forceinline__ Row
row_at(const Element* input, Element* output, long long index, int cols) {
  return {input + index * cols, output + index * cols, cols / kWidth};
}

// Vector `k` of the row; past the row's end -inf, which changes neither maximum nor sum.
__device__ __forceinline__ Vector load_vector(const Row& row, int k) {
  Vector vector;
  if (k < row.vectors) {
    as_word(vector) = reinterpret_cast<const Word*>(row.input)[k];
  } else {
#pragma unroll
    for (int i = 0; i < kWidth; ++i) vector.elements[i] = __float2half_rn(-infinity());
  }
  return vector;
}

__device__ __forceinline__ void store_vector(const Row& row, int k, const float (&x)[kWidth]) {
  if (k < row.vectors) {
    Vector vector = from_floats(x);
    reinterpret_cast<Word*>(row.output)[k] = as_word(vector);
  }
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

// A row's threads are several warps. The barrier is the block's, so every thread must reach it.
__device__ __forceinline__ void synchronise_row() { __syncthreads(); }

// Combines the values of a row's threads by halving: at each step the upper half of the values is
// combined with the lower. Each kind of reduction has scratch of its own.
template <typename Combine>
__device__ __forceinline__ ValueOf<Combine> reduce_row(ValueOf<Combine> value, Combine combine) {
  __shared__ ValueOf<Combine> scratch[kRowsPerBlock][kThreadsPerRow];
  const int row = threadIdx.x / kThreadsPerRow;
  const int thread_in_row = threadIdx.x % kThreadsPerRow;
  scratch[row][thread_in_row] = value;
  synchronise_row();
#pragma unroll
  for (int count = kThreadsPerRow; count > 1; count = (count + 1) / 2) {
    const int half = (count + 1) / 2;
    if (thread_in_row + half < count) {
      scratch[row][thread_in_row] =
          combine(scratch[row][thread_in_row], scratch[row][thread_in_row + half]);
    }
    synchronise_row();
  }
  return scratch[row][0];
}

// ------------------------------------------------------------------ kernel

// What the cache keeps of one vector: its elements as floats.
struct __align__(16) FloatVector {
  float elements[kWidth];
};

// `input` and `output` are dense (rows, cols) matrices that do not overlap, at any multiple of
// sizeof(Word) bytes.
SOFTMAX_API __global__ void __launch_bounds__(kThreads, kMinBlocks) softmax_f16_kernel(
    const Element* __restrict__ input, Element* __restrict__ output, long long rows, int cols) {
  const int thread_in_row = threadIdx.x % kThreadsPerRow;
  const long long first_row = static_cast<long long>(blockIdx.x) * kRowsPerBlock;
  const long long index = first_row + threadIdx.x / kThreadsPerRow;
  // Threads past the last row work on it too, to reach every barrier, and store nothing.
  const bool is_row = index < rows;
  const Row row = row_at(input, output, is_row ? index : rows - 1, cols);
  const int vectors = row.vectors;

  const int stride = vectors;
  // Each thread reads back only what it wrote itself, so the cache needs no barrier.
  extern __shared__ __align__(16) unsigned char shared[];
  const int row_in_block = threadIdx.x / kThreadsPerRow;
  auto* const cache = reinterpret_cast<FloatVector*>(shared) + row_in_block * stride;

  // Pass 1: maximum.
  float maximum = -infinity();
  for (int first = thread_in_row; first < vectors; first += kUnroll * kThreadsPerRow) {
    Vector loaded[kUnroll];
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) loaded[u] = load_vector(row, first + u * kThreadsPerRow);
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) {
      const int k = first + u * kThreadsPerRow;
      float x[kWidth];
      to_floats(loaded[u], x);
#pragma unroll
      for (int i = 0; i < kWidth; ++i) maximum = fmaxf(maximum, x[i]);
      if (k < vectors) {
#pragma unroll
        for (int i = 0; i < kWidth; ++i) cache[k].elements[i] = x[i];
      }
    }
  }
  const float reference = reduce_row(maximum, Max{});

  // Pass 2: sum of exponentials.
  float sum = 0.0f;
#pragma unroll kUnroll
  for (int k = thread_in_row; k < vectors; k += kThreadsPerRow) {
    float x[kWidth];
#pragma unroll
    for (int i = 0; i < kWidth; ++i) x[i] = cache[k].elements[i];
    float part = 0.0f;  // of one vector: small terms are not lost against a large sum
#pragma unroll
    for (int i = 0; i < kWidth; ++i) {
      x[i] = exponential(x[i], reference);
      part += x[i];
    }
#pragma unroll
    for (int i = 0; i < kWidth; ++i) cache[k].elements[i] = x[i];
    sum += part;
  }
  const float inverse_sum = 1.0f / reduce_row(sum, Sum{});

  // Pass 3: normalise and store.
  if (!is_row) return;
#pragma unroll kUnroll
  for (int k = thread_in_row; k < vectors; k += kThreadsPerRow) {
    float x[kWidth];
#pragma unroll
    for (int i = 0; i < kWidth; ++i) x[i] = cache[k].elements[i];
#pragma unroll
    for (int i = 0; i < kWidth; ++i) x[i] = x[i] * inverse_sum;
    store_vector(row, k, x);
  }
}

}  // namespace softmax_f16_158914d4

// ------------------------------------------------------------------ host
#ifndef __CUDACC_RTC__

#include <cuda_runtime.h>

#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <vector>

namespace softmax_f16_158914d4 {

// Bytes of dynamic shared memory a block needs: the rows that it works on.
inline size_t shared_bytes(int cols) {
  const int row_vectors = cols / kWidth;
  const size_t vectors = static_cast<size_t>(kRowsPerBlock) * row_vectors;
  return vectors * sizeof(FloatVector);
}

// Writes the softmax of each row of `input` to `output`, on `stream`; returns at once.
//
// Both are dense row-major (rows, cols) matrices in device memory that do not overlap.
// Nothing is launched where there is no element. Returns what the launch returns, or
// - cudaErrorInvalidValue for a negative count or more rows than a grid has blocks for
// - cudaErrorInvalidValue for `cols` that are no multiple of kWidth
// - cudaErrorMisalignedAddress for an array that is no multiple of an access's bytes
inline cudaError_t launch(
    const Element* input, Element* output, long long rows, int cols,
    cudaStream_t stream = nullptr) {
  if (rows < 0 || cols < 0) return cudaErrorInvalidValue;
  if (cols % kWidth != 0) return cudaErrorInvalidValue;
  if (reinterpret_cast<size_t>(input) % sizeof(Word) != 0) return cudaErrorMisalignedAddress;
  if (reinterpret_cast<size_t>(output) % sizeof(Word) != 0) return cudaErrorMisalignedAddress;
  if (rows == 0 || cols == 0) return cudaSuccess;
  const long long blocks = (rows + kRowsPerBlock - 1) / kRowsPerBlock;
  if (blocks > 0x7fffffffLL) return cudaErrorInvalidValue;
  if (shared_bytes(cols) > 1u << 30) return cudaErrorInvalidValue;
  const int shared = static_cast<int>(shared_bytes(cols));
  constexpr auto kLimit = cudaFuncAttributeMaxDynamicSharedMemorySize;
  const cudaError_t allowed = cudaFuncSetAttribute(softmax_f16_kernel, kLimit, shared);
  if (allowed != cudaSuccess) return allowed;
  const unsigned grid = static_cast<unsigned>(blocks);
  softmax_f16_kernel<<<grid, kThreads, shared, stream>>>(input, output, rows, cols);
  return cudaGetLastError();
}

}  // namespace softmax_f16_158914d4

// A unit may include files of several configs: then a program calls one by its namespace above.
namespace softmax_f16 {
using namespace softmax_f16_158914d4;
}  // namespace softmax_f16
#endif  // __CUDACC_RTC__

#if !defined(__CUDACC_RTC__) && defined(SOFTMAX_LIBRARY)
// launch() for programs in other languages, from a library that is built by
//   nvcc -std=c++17 -arch=native -shared -Xcompiler -fPIC -DSOFTMAX_LIBRARY -o softmax.so FILE.cu
// Arrays are addresses in device memory, `stream` is a cudaStream_t, the result a cudaError_t.
extern "C" int softmax_f16_launch(
    const void* input, void* output, long long rows, int cols, void* stream) {
  using namespace softmax_f16;
  return launch(
      static_cast<const Element*>(input), static_cast<Element*>(output), rows, cols,
      static_cast<cudaStream_t>(stream));
}
#elif !defined(__CUDACC_RTC__) && !defined(SOFTMAX_NO_MAIN)
// Checks a few rows against double precision, then times the kernel.
int main(int argc, char** argv) {
  using namespace softmax_f16;
  const long long rows = argc > 1 ? std::atoll(argv[1]) : 65536;
  const int cols = argc > 2 ? std::atoi(argv[2]) : 1000;
  unsigned random = 1;
  const auto noise = [&random](size_t count, float least, float most) {
    std::vector<Element> numbers(count);
    for (Element& x : numbers) {
      random = random * 1664525u + 1013904223u;
      x = __float2half_rn(least + (most - least) * (random >> 8) / (1 << 24));
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

  cudaError_t error = launch(input, output, rows, cols);
  if (error == cudaSuccess) error = cudaDeviceSynchronize();
  if (error != cudaSuccess) {
    std::fprintf(stderr, "launch failed: %s\n", cudaGetErrorString(error));
    return 2;
  }
  cudaMemcpy(result.data(), output, result.size() * sizeof(Element), cudaMemcpyDeviceToHost);
  const auto widen = [](Element x) -> double { return __half2float(x); };
  const double smallest = 0x1p-14;  // normal number of the type
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
  for (int i = 0; i < launches; ++i) launch(input, output, rows, cols);
  cudaEventRecord(end);
  cudaEventSynchronize(end);
  float milliseconds = 0.0f;
  cudaEventElapsedTime(&milliseconds, begin, end);
  const double us = 1e3 * milliseconds / launches;
  const double written = 1.0 * rows * cols;
  const double bytes = written * (sizeof(Element) + sizeof(Element));
  std::printf("%lld x %d: %.2f us, %.0f GB/s, ", rows, cols, us, 1e-3 * bytes / us);
  std::printf("largest relative error %.1e\n", worst);
  return worst <= 2e-3 ? 0 : 1;
}
#endif
#endif  // SOFTMAX_F16_158914D4
