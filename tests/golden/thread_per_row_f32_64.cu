// Softmax over the rows of a row-major matrix of f32, 64 columns.
//
// Split:      128 rows a block of 128 threads, 1 thread a row.
// Access:     one element at a time.
// Algorithm:  online-branchy, maximum and sum in one pass.
// Traffic:    2 reads of the matrix and 1 write: nothing is kept between passes.
// Exponent:   expf; normalised by division.
//
// Semantics: a -inf in a row gives 0; a row of -inf only, or with a NaN or +inf, gives NaN.
// Build and check:  nvcc -std=c++17 -arch=native -o softmax FILE.cu && ./softmax [rows]
// Use in a program: define SOFTMAX_NO_MAIN, include the file, call softmax_f32_64::launch().
// Launch:
//   blocks = (rows + kRowsPerBlock - 1) / kRowsPerBlock
//   softmax_f32_64_kernel<<<blocks, kThreads>>>(input, output, rows)
// Emit again:
//   explorer emit '{"algorithm":"online-branchy","threads":128,"threads_per_row":1,"vector_bytes":4,"cache":"none","cache_holds":"input","exp":"expf","normalise":"divide"}' --cols 64 --rows 131072 --dtype f32 --main

#ifndef SOFTMAX_F32_64_02767946
#define SOFTMAX_F32_64_02767946
#ifdef __CUDACC_RTC__
#define SOFTMAX_API extern "C"  // kernels are found by their plain names
#else
#define SOFTMAX_API static  // every unit of a program that includes this file has its own
#endif

namespace softmax_f32_64_02767946 {

using Element = float;
constexpr int kCols = 64;
constexpr int kThreads = 128;  // of a block: each has a row
constexpr int kRowsPerBlock = kThreads;

__device__ __forceinline__ float exponential(float x, float maximum) { return expf(x - maximum); }

// The running maximum, to which exponents are relative, and the sum of the exponentials. Before the
// first element the maximum is the lowest finite number: with -inf, a thread that saw nothing but
// -inf would compute -inf - -inf.
struct State {
  float maximum;
  float sum;
  static __device__ __forceinline__ State identity() { return {__int_as_float(0xff7fffff), 0.0f}; }
};

// Adds an element; the sum is rescaled only when the maximum moves.
__device__ __forceinline__ void accumulate(State& state, float x) {
  if (x > state.maximum) {
    state.sum *= exponential(state.maximum, x);
    state.maximum = x;
  }
  state.sum += exponential(x, state.maximum);
}

// `input` and `output` are dense (rows, kCols) matrices that do not overlap.
SOFTMAX_API __global__ void __launch_bounds__(kThreads) softmax_f32_64_kernel(
    const Element* __restrict__ input, Element* __restrict__ output, long long rows) {
  const long long row = static_cast<long long>(blockIdx.x) * kThreads + threadIdx.x;
  if (row >= rows) return;
  input += row * kCols;
  output += row * kCols;

  // Pass 1: maximum and sum of exponentials together.
  State state = State::identity();
  for (int i = 0; i < kCols; ++i) accumulate(state, input[i]);

  // Pass 2: exponentiate, normalise and store.
  for (int i = 0; i < kCols; ++i) output[i] = expf(input[i] - state.maximum) / state.sum;
}

}  // namespace softmax_f32_64_02767946

// ------------------------------------------------------------------ host
#ifndef __CUDACC_RTC__

#include <cuda_runtime.h>

#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <vector>

namespace softmax_f32_64_02767946 {

// Writes the softmax of each row of `input` to `output`, on `stream`; returns at once.
//
// Both are dense row-major (rows, kCols) matrices in device memory that do not overlap.
// Nothing is launched where there is no element. Returns what the launch returns, or
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

}  // namespace softmax_f32_64_02767946

// A unit may include files of several configs: then a program calls one by its namespace above.
namespace softmax_f32_64 {
using namespace softmax_f32_64_02767946;
}  // namespace softmax_f32_64
#endif  // __CUDACC_RTC__

#if !defined(__CUDACC_RTC__) && defined(SOFTMAX_LIBRARY)
// launch() for programs in other languages, from a library that is built by
//   nvcc -std=c++17 -arch=native -shared -Xcompiler -fPIC -DSOFTMAX_LIBRARY -o softmax.so FILE.cu
// Arrays are addresses in device memory, `stream` is a cudaStream_t, the result a cudaError_t.
extern "C" int softmax_f32_64_launch(
    const void* input, void* output, long long rows, void* stream) {
  using namespace softmax_f32_64;
  return launch(
      static_cast<const Element*>(input), static_cast<Element*>(output), rows,
      static_cast<cudaStream_t>(stream));
}
#elif !defined(__CUDACC_RTC__) && !defined(SOFTMAX_NO_MAIN)
// Checks a few rows against double precision, then times the kernel.
int main(int argc, char** argv) {
  using namespace softmax_f32_64;
  const long long rows = argc > 1 ? std::atoll(argv[1]) : 131072;
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
#endif  // SOFTMAX_F32_64_02767946
