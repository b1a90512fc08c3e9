// Softmax kernels with what libraries give: cooperative groups, CUB, and the C++ library.

#include <algorithm>
#include <array>
#include <cfloat>
#include <cmath>
#include <cstdint>
#include <type_traits>

#include <cooperative_groups.h>
#include <cooperative_groups/reduce.h>
#include <cub/cub.cuh>

namespace cg = cooperative_groups;

#define CEIL_DIV(a, b) (((a) + (b) - 1) / (b))

// A warp computes a row, as a tile of cooperative groups.
__global__ void group_a_row(const float* in, float* out, int rows, int cols) {
  auto warp = cg::tiled_partition<32>(cg::this_thread_block());
  int row = blockIdx.x * warp.meta_group_size() + warp.meta_group_rank();
  if (row >= rows) return;
  in += (size_t)row * cols, out += (size_t)row * cols;
  float m = -INFINITY, sum = 0;
  for (int i = warp.thread_rank(); i < cols; i += 32) m = fmaxf(m, in[i]);
  m = cg::reduce(warp, m, cg::greater<float>());
  for (int i = warp.thread_rank(); i < cols; i += 32) sum += expf(in[i] - m);
  sum = cg::reduce(warp, sum, cg::plus<float>());
  for (int i = warp.thread_rank(); i < cols; i += 32) out[i] = expf(in[i] - m) / sum;
}

// A block computes a row, and CUB reduces it.
template <int kThreads = 128>
__global__ void block_of_cub(const float* in, float* out, int rows, int cols) {
  using Reduce = cub::BlockReduce<float, kThreads>;
  __shared__ typename Reduce::TempStorage held;
  __shared__ float greatest, total;
  in += (size_t)blockIdx.x * cols, out += (size_t)blockIdx.x * cols;
  float m = -FLT_MAX, sum = 0;
  for (int i = threadIdx.x; i < cols; i += kThreads) m = fmaxf(m, in[i]);
  m = Reduce(held).Reduce(m, cuda::maximum<>{});
  if (threadIdx.x == 0) greatest = m;
  __syncthreads();
  for (int i = threadIdx.x; i < cols; i += kThreads) sum += expf(in[i] - greatest);
  sum = Reduce(held).Sum(sum);
  if (threadIdx.x == 0) total = sum;
  __syncthreads();
  for (int i = threadIdx.x; i < cols; i += kThreads) out[i] = expf(in[i] - greatest) / total;
}

// The names of the C++ library that kernels use.
template <typename T>
__global__ void of_std(const T* in, T* out, const std::int64_t rows, const std::int64_t cols) {
  static_assert(std::is_same_v<std::decay_t<const float&>, float>, "");
  std::size_t row = blockIdx.x * std::size_t(4) + threadIdx.x / 32;
  if (row >= std::max<std::size_t>(rows, 0)) return;
  std::array<T, 2> of{-std::numeric_limits<T>::infinity(), T(0)};
  in += row * cols, out += row * cols;
  for (std::int64_t i = threadIdx.x % 32; i < cols; i += 32) of[0] = std::fmax(of[0], in[i]);
  for (int o = 16; o; o >>= 1) of[0] = std::max(of[0], __shfl_xor_sync(~0u, of[0], o));
  for (std::int64_t i = threadIdx.x % 32; i < cols; i += 32) of[1] += std::exp(in[i] - of[0]);
  for (int o = 16; o; o >>= 1) of[1] += __shfl_xor_sync(~0u, of[1], o);
  for (std::int64_t i = threadIdx.x % 32; i < cols; i += 32) out[i] = std::exp(in[i] - of[0]) / of[1];
}

int main() {
  const int64_t M = 64, N = 128;
  const int kBlock = 128;
  float *d_in, *d_out;
  dim3 grid(CEIL_DIV(M, kBlock / 32)), block(kBlock);
  group_a_row<<<grid, block>>>(d_in, d_out, M, N);
  of_std<<<CEIL_DIV(M, 4), kBlock>>>(d_in, d_out, M, N);
  int rows = M, cols = N;
  void* args[] = {&d_in, &d_out, &rows, &cols};
  cudaLaunchKernel((const void*)block_of_cub<>, dim3(rows), block, args, 0, nullptr);
}
