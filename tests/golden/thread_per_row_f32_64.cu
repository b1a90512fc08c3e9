// Softmax over the rows of a row-major matrix of f32, 64 columns.
//
// Split:      128 rows a block of 128 threads, 1 thread a row.
// Access:     one element at a time; rows start aligned.
// Algorithm:  online-branchy, maximum and sum in one pass.
// Traffic:    2 reads and 1 write of the matrix: nothing is kept between passes.
// Reduction:  shuffle.
// Exponent:   expf; normalised by division.
//
// Semantics: a -inf in a row gives 0; a row of -inf only, or with a NaN or +inf, gives NaN.
// Build and check:  nvcc -std=c++17 -arch=native -o softmax FILE.cu && ./softmax [rows]
// Use in a program: define SOFTMAX_NO_MAIN, include the file, call softmax_f32_64::launch().
// Launch:
//   blocks = (rows + kRowsPerBlock - 1) / kRowsPerBlock
//   softmax_f32_64_kernel<<<blocks, kThreads>>>(input, output, rows)
// Emit again:
//   explorer emit '{"algorithm":"online-branchy","threads":128,"threads_per_row":1,"vector_bytes":4,"cache":"none","cache_holds":"input","exp":"expf","normalise":"divide"}' --cols 64 --rows 131072 --dtype f32

#ifndef __CUDACC_RTC__  // what the host part needs; the kernel alone needs none of it
#include <cuda_runtime.h>

#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <vector>
#endif

namespace softmax_f32_64 {

// ------------------------------------------------------------------ parameters

using Element = float;
using Word = float;  // what one access moves

constexpr int kCols = 64;
constexpr int kThreads = 128;
constexpr int kThreadsPerRow = 1;
constexpr int kRowsPerBlock = kThreads / kThreadsPerRow;
constexpr int kMinBlocks = 1;  // blocks an SM that registers must allow
constexpr int kWidth = sizeof(Word) / sizeof(Element);  // elements an access moves
constexpr int kRowVectors = kCols / kWidth;
constexpr int kUnroll = 1;  // vectors a thread loads before it uses the first

static_assert(sizeof(Word) == 4, "an access moves 4 bytes");
static_assert(kThreads % kThreadsPerRow == 0, "a block works on whole rows");
static_assert(kThreads % 32 == 0, "a block is whole warps");
static_assert(kCols % kWidth == 0, "every row starts on a vector boundary");

// ------------------------------------------------------------------ elements

// The elements of one access.
struct __align__(sizeof(Word)) Vector {
  Element elements[kWidth];
};

__device__ __forceinline__ Word& as_word(Vector& vector) { return reinterpret_cast<Word&>(vector); }

__device__ __forceinline__ Element from_float(float x) { return x; }

__device__ __forceinline__ void to_floats(const Vector& vector, float (&x)[kWidth]) {
#pragma unroll
  for (int i = 0; i < kWidth; ++i) x[i] = vector.elements[i];
}

__device__ __forceinline__ Vector from_floats(const float (&x)[kWidth]) {
  Vector vector;
#pragma unroll
  for (int i = 0; i < kWidth; ++i) vector.elements[i] = x[i];
  return vector;
}

__device__ __forceinline__ float infinity() { return __int_as_float(0x7f800000); }

// ------------------------------------------------------------------ load, store

__device__ __forceinline__ Word load_word(const Word* address) { return *address; }

__device__ __forceinline__ void store_word(Word* address, Word word) { *address = word; }

// A row, as vectors: all of them whole.
struct Row {
  const Element* input;
  Element* output;
};

__device__ __forceinline__ Row row_at(const Element* input, Element* output, long long index) {
  return {input + index * kCols, output + index * kCols};
}

// Vector `k` of the row; past the row's end -inf, which changes neither maximum nor sum.
__device__ __forceinline__ Vector load_vector(const Row& row, int k) {
  Vector vector;
  if (k < kRowVectors) {
    as_word(vector) = load_word(reinterpret_cast<const Word*>(row.input) + k);
  } else {
#pragma unroll
    for (int i = 0; i < kWidth; ++i) vector.elements[i] = from_float(-infinity());
  }
  return vector;
}

__device__ __forceinline__ void store_vector(const Row& row, int k, const float (&x)[kWidth]) {
  if (k < kRowVectors) {
    Vector vector = from_floats(x);
    store_word(reinterpret_cast<Word*>(row.output) + k, as_word(vector));
  }
}

// ------------------------------------------------------------------ exponentiate, normalise

// exponential(x, reference_of(maximum)) is e^(x - maximum).
__device__ __forceinline__ float reference_of(float maximum) { return maximum; }

__device__ __forceinline__ float exponential(float x, float reference) {
  return expf(x - reference);
}

// What a sum relative to reference `from` is multiplied with to be relative to `to`.
__device__ __forceinline__ float rescale(float from, float to) { return expf(from - to); }

__device__ __forceinline__ float normaliser(float sum) { return sum; }

__device__ __forceinline__ float normalise(float x, float sum) { return x / sum; }

// ------------------------------------------------------------------ reduce

// Sum of exponentials relative to the maximum seen, kept as its exponent's reference. Before
// the first element the reference is the lowest finite number: with -inf, a thread that saw
// nothing but -inf would compute -inf - -inf.
struct State {
  float reference;
  float sum;
};

struct Merge {
  using Value = State;
  static __device__ __forceinline__ State identity() { return {__int_as_float(0xff7fffff), 0.0f}; }
  __device__ __forceinline__ State operator()(State a, State b) const {
    const float reference = fmaxf(a.reference, b.reference);
    const float sum_a = a.sum * rescale(a.reference, reference);
    return {reference, sum_a + b.sum * rescale(b.reference, reference)};
  }
};

// Adds an element; the sum is rescaled only when the maximum moves.
__device__ __forceinline__ void accumulate(State& state, float x) {
  const float reference = reference_of(x);
  if (reference > state.reference) {
    state.sum *= rescale(state.reference, reference);
    state.reference = reference;
  }
  state.sum += exponential(x, state.reference);
}

template <typename Combine>
using ValueOf = typename Combine::Value;

// A row belongs to one thread: its value is the row's.
template <typename Combine>
__device__ __forceinline__ ValueOf<Combine> reduce_row(ValueOf<Combine> value, Combine) {
  return value;
}

// ------------------------------------------------------------------ kernel

// `input` and `output` are dense (rows, kCols) matrices that do not overlap, at any element.
extern "C" __global__ void __launch_bounds__(kThreads, kMinBlocks) softmax_f32_64_kernel(
    const Element* __restrict__ input, Element* __restrict__ output, long long rows) {
  const int lane = threadIdx.x % kThreadsPerRow;
  const long long first_row = static_cast<long long>(blockIdx.x) * kRowsPerBlock;
  const long long index = first_row + threadIdx.x / kThreadsPerRow;
  // Threads past the last row work on it too, to reach every barrier, and store nothing.
  const bool is_row = index < rows;
  const Row row = row_at(input, output, is_row ? index : rows - 1);
  const int vectors = kRowVectors;

  // Pass 1: maximum and sum of exponentials together.
  State state = Merge::identity();
  for (int first = lane; first < vectors; first += kUnroll * kThreadsPerRow) {
    Vector loaded[kUnroll];
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) loaded[u] = load_vector(row, first + u * kThreadsPerRow);
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) {
      float x[kWidth];
      to_floats(loaded[u], x);
#pragma unroll
      for (int i = 0; i < kWidth; ++i) accumulate(state, x[i]);
    }
  }
  state = reduce_row(state, Merge{});
  const float scale = normaliser(state.sum);

  // Pass 2: exponentiate, normalise and store.
  if (!is_row) return;
  for (int first = lane; first < vectors; first += kUnroll * kThreadsPerRow) {
    Vector loaded[kUnroll];
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) loaded[u] = load_vector(row, first + u * kThreadsPerRow);
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) {
      const int k = first + u * kThreadsPerRow;
      float x[kWidth];
      to_floats(loaded[u], x);
#pragma unroll
      for (int i = 0; i < kWidth; ++i) x[i] = normalise(exponential(x[i], state.reference), scale);
      store_vector(row, k, x);
    }
  }
}

#ifndef __CUDACC_RTC__
// ------------------------------------------------------------------ host

// Writes the softmax of each row of `input` to `output`, on `stream`; returns at once.
//
// Both are dense row-major (rows, kCols) matrices in device memory that do not overlap.
// Nothing is launched for an empty matrix. Returns what the launch returns, or
// - cudaErrorInvalidValue for a negative count or more rows than a grid has blocks for
inline cudaError_t launch(
    const Element* input, Element* output, long long rows, cudaStream_t stream = nullptr) {
  if (rows < 0) return cudaErrorInvalidValue;
  if (rows == 0) return cudaSuccess;
  const long long blocks = (rows + kRowsPerBlock - 1) / kRowsPerBlock;
  if (blocks > 0x7fffffffLL) return cudaErrorInvalidValue;
  const unsigned grid = static_cast<unsigned>(blocks);
  softmax_f32_64_kernel<<<grid, kThreads, 0, stream>>>(input, output, rows);
  return cudaGetLastError();
}
#endif  // __CUDACC_RTC__

}  // namespace softmax_f32_64

#if !defined(__CUDACC_RTC__) && !defined(SOFTMAX_NO_MAIN)
// Checks a few rows against double precision, then times the kernel.
int main(int argc, char** argv) {
  using namespace softmax_f32_64;
  const long long rows = argc > 1 ? std::atoll(argv[1]) : 131072;
  const int cols = kCols;
  const size_t count = static_cast<size_t>(rows) * cols;
  std::vector<Element> host(count);
  unsigned random = 1;
  for (Element& x : host) {
    random = random * 1664525u + 1013904223u;
    x = static_cast<Element>(static_cast<float>(random >> 8) / (1 << 20) - 8.0f);
  }
  Element *input, *output;
  if (cudaMalloc(&input, count * sizeof(Element)) != cudaSuccess ||
      cudaMalloc(&output, count * sizeof(Element)) != cudaSuccess) {
    std::fprintf(stderr, "no device memory for %lld x %d\n", rows, cols);
    return 2;
  }
  cudaMemcpy(input, host.data(), count * sizeof(Element), cudaMemcpyHostToDevice);

  cudaError_t error = launch(input, output, rows);
  if (error == cudaSuccess) error = cudaDeviceSynchronize();
  if (error != cudaSuccess) {
    std::fprintf(stderr, "launch failed: %s\n", cudaGetErrorString(error));
    return 2;
  }
  const auto widen = [](Element x) { return static_cast<double>(static_cast<float>(x)); };
  const double smallest = 0x1p-126;  // normal number of the type
  std::vector<Element> result(cols);
  double worst = 0.0;
  for (long long row = 0; row < rows; row += rows > 8 ? rows / 8 : 1) {
    const Element* x = host.data() + row * cols;
    const Element* y = output + row * cols;
    cudaMemcpy(result.data(), y, cols * sizeof(Element), cudaMemcpyDeviceToHost);
    double sum = 0.0;
    for (int i = 0; i < cols; ++i) sum += std::exp(widen(x[i]));
    for (int i = 0; i < cols; ++i) {
      const double expected = std::exp(widen(x[i])) / sum;
      const double off = std::fabs(widen(result[i]) - expected) / std::fmax(expected, smallest);
      if (!(off <= worst)) worst = off;
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
  const double gbps = 2e-3 * count * sizeof(Element) / us;
  std::printf("%lld x %d: %.2f us, %.0f GB/s, ", rows, cols, us, gbps);
  std::printf("largest relative error %.1e\n", worst);
  return worst <= 4e-6 ? 0 : 1;
}
#endif
