// Softmax kernels as a person writes them, all of them right. Each launch below says how.

#include <cfloat>
#include <cstdint>
#include <cstdio>
#include <limits>
#include <vector>

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#define CHECK(call)                                                        \
  do {                                                                     \
    cudaError_t error = (call);                                            \
    if (error != cudaSuccess) fprintf(stderr, "%s\n", cudaGetErrorString(error)); \
  } while (0)

constexpr int kWarp = 32;

// A thread computes a row, in three passes.
__global__ void thread_per_row(const float* x, float* y, int rows, int cols) {
  int row = blockIdx.x * blockDim.x + threadIdx.x;
  if (row >= rows) return;
  const float* in = x + (size_t)row * cols;
  float* out = y + (size_t)row * cols;
  float m = -INFINITY;
  for (int i = 0; i < cols; ++i) m = fmaxf(m, in[i]);
  float sum = 0.0f;
  for (int i = 0; i < cols; ++i) sum += expf(in[i] - m);
  for (int i = 0; i < cols; ++i) out[i] = expf(in[i] - m) / sum;
}

// A block computes a row: partial results are combined by a tree in dynamic shared memory.
__global__ void block_tree(float* x, float* y, int rows, int cols) {
  extern __shared__ float partial[];
  int tid = threadIdx.x;
  x += blockIdx.x * cols;
  y += blockIdx.x * cols;
  float m = -FLT_MAX;
  for (int i = tid; i < cols; i += blockDim.x) m = max(m, x[i]);
  partial[tid] = m;
  __syncthreads();
  for (int stride = blockDim.x / 2; stride > 0; stride >>= 1) {
    if (tid < stride) partial[tid] = max(partial[tid], partial[tid + stride]);
    __syncthreads();
  }
  m = partial[0];
  __syncthreads();
  float sum = 0;
  for (int i = tid; i < cols; i += blockDim.x) {
    y[i] = expf(x[i] - m);
    sum += y[i];
  }
  partial[tid] = sum;
  __syncthreads();
  for (int stride = blockDim.x / 2; stride > 0; stride >>= 1) {
    if (tid < stride) partial[tid] += partial[tid + stride];
    __syncthreads();
  }
  float total = partial[0];
  for (int i = tid; i < cols; i += blockDim.x) y[i] /= total;
}

__device__ float warp_max(float value) {
  for (int offset = kWarp / 2; offset > 0; offset /= 2)
    value = fmaxf(value, __shfl_xor_sync(0xffffffff, value, offset));
  return value;
}

__device__ float warp_sum(float value) {
  for (int offset = kWarp / 2; offset > 0; offset /= 2)
    value += __shfl_xor_sync(0xffffffff, value, offset);
  return value;
}

// A warp computes a row; a block has several.
__global__ void warp_per_row(const float* __restrict__ x, float* __restrict__ y, int rows,
                             int cols) {
  int lane = threadIdx.x % kWarp;
  int row = blockIdx.x * (blockDim.x / kWarp) + threadIdx.x / kWarp;
  if (row >= rows) return;
  x += row * cols;
  y += row * cols;
  float m = -INFINITY;
  for (int i = lane; i < cols; i += kWarp) m = fmaxf(m, x[i]);
  m = warp_max(m);
  float sum = 0;
  for (int i = lane; i < cols; i += kWarp) sum += __expf(x[i] - m);
  sum = warp_sum(sum);
  for (int i = lane; i < cols; i += kWarp) y[i] = __expf(x[i] - m) / sum;
}

// Vectors of four, and the columns that are left one by one. Rows may begin anywhere.
template <int THREADS>
__global__ void __launch_bounds__(THREADS) vectors_and_tail(const float* x, float* y, int cols) {
  __shared__ float shared[THREADS / kWarp];
  const float* in = x + blockIdx.x * cols;
  float* out = y + blockIdx.x * cols;
  const bool aligned = cols % 4 == 0;
  const int vectors = aligned ? cols / 4 : 0;
  const float4* in4 = reinterpret_cast<const float4*>(in);
  float m = -INFINITY;
  for (int i = threadIdx.x; i < vectors; i += THREADS) {
    float4 v = in4[i];
    m = fmaxf(m, fmaxf(fmaxf(v.x, v.y), fmaxf(v.z, v.w)));
  }
  for (int i = 4 * vectors + threadIdx.x; i < cols; i += THREADS) m = fmaxf(m, in[i]);
  m = warp_max(m);
  if (threadIdx.x % kWarp == 0) shared[threadIdx.x / kWarp] = m;
  __syncthreads();
  m = shared[0];
  for (int i = 1; i < THREADS / kWarp; ++i) m = fmaxf(m, shared[i]);
  __syncthreads();
  float sum = 0;
  for (int i = threadIdx.x; i < vectors; i += THREADS) {
    float4 v = in4[i];
    sum += expf(v.x - m) + expf(v.y - m) + expf(v.z - m) + expf(v.w - m);
  }
  for (int i = 4 * vectors + threadIdx.x; i < cols; i += THREADS) sum += expf(in[i] - m);
  sum = warp_sum(sum);
  if (threadIdx.x % kWarp == 0) shared[threadIdx.x / kWarp] = sum;
  __syncthreads();
  sum = 0;
  for (int i = 0; i < THREADS / kWarp; ++i) sum += shared[i];
  for (int i = threadIdx.x; i < cols; i += THREADS) out[i] = expf(in[i] - m) / sum;
}

struct Pair {
  float m, d;
};

__device__ __forceinline__ Pair merged(Pair a, Pair b) {
  Pair larger = a.m > b.m ? a : b, smaller = a.m > b.m ? b : a;
  return {larger.m, larger.d + smaller.d * expf(smaller.m - larger.m)};
}

// One pass for the maximum and the sum: pairs of both are merged.
__global__ void online(const float* x, float* y, int rows, int cols) {
  __shared__ Pair pairs[kWarp];
  const float* in = x + (int64_t)blockIdx.x * cols;
  Pair own = {-FLT_MAX, 0.0f};
  for (int i = threadIdx.x; i < cols; i += blockDim.x) own = merged(own, {in[i], 1.0f});
  for (int offset = kWarp / 2; offset > 0; offset /= 2) {
    Pair other = {__shfl_down_sync(~0u, own.m, offset), __shfl_down_sync(~0u, own.d, offset)};
    own = merged(own, other);
  }
  int warps = blockDim.x / kWarp;
  if (threadIdx.x % kWarp == 0) pairs[threadIdx.x / kWarp] = own;
  __syncthreads();
  if (threadIdx.x == 0) {
    for (int i = 1; i < warps; ++i) own = merged(own, pairs[i]);
    pairs[0] = own;
  }
  __syncthreads();
  Pair whole = pairs[0];
  for (int i = threadIdx.x; i < cols; i += blockDim.x)
    y[(int64_t)blockIdx.x * cols + i] = expf(in[i] - whole.m) / whole.d;
}

// A row of halves is kept in shared memory as numbers.
__global__ void row_in_shared(const half* x, half* y, int cols) {
  extern __shared__ float row[];
  __shared__ float both[2];
  x += blockIdx.x * cols;
  y += blockIdx.x * cols;
  for (int i = threadIdx.x; i < cols; i += blockDim.x) row[i] = __half2float(x[i]);
  __syncthreads();
  if (threadIdx.x < kWarp) {
    float m = -std::numeric_limits<float>::infinity(), sum = 0;
    for (int i = threadIdx.x; i < cols; i += kWarp) m = fmaxf(m, row[i]);
    m = warp_max(m);
    for (int i = threadIdx.x; i < cols; i += kWarp) sum += expf(row[i] - m);
    sum = warp_sum(sum);
    if (threadIdx.x == 0) {
      both[0] = m;
      both[1] = 1.0f / sum;
    }
  }
  __syncthreads();
  for (int i = threadIdx.x; i < cols; i += blockDim.x)
    y[i] = __float2half(expf(row[i] - both[0]) * both[1]);
}

namespace lesson {

template <typename T>
__device__ float number(T x);
template <>
__device__ float number(__nv_bfloat16 x) {
  return __bfloat162float(x);
}

// The columns are a constant: each lane keeps its own in registers.
template <typename T, int COLS>
__global__ void registers_of_a_warp(const T* x, T* y, int n) {
  constexpr int kOwn = (COLS + kWarp - 1) / kWarp;
  int row = blockIdx.x * (blockDim.x / kWarp) + threadIdx.x / kWarp, lane = threadIdx.x & 31;
  if (row < n) {
    float own[kOwn], m = -INFINITY, sum = 0;
#pragma unroll
    for (int k = 0; k < kOwn; ++k) {
      int col = lane + k * kWarp;
      own[k] = col < COLS ? number(x[row * COLS + col]) : -INFINITY;
      m = fmaxf(m, own[k]);
    }
    m = warp_max(m);
#pragma unroll
    for (int k = 0; k < kOwn; ++k) {
      own[k] = expf(own[k] - m);
      sum += own[k];
    }
    sum = warp_sum(sum);
#pragma unroll
    for (int k = 0; k < kOwn; ++k)
      if (lane + k * kWarp < COLS) y[row * COLS + lane + k * kWarp] = __float2bfloat16(own[k] / sum);
  }
}

}  // namespace lesson

// Few blocks stride over the rows.
__global__ void striding(const float* in, float* out, unsigned rows, unsigned cols) {
  __shared__ float both[2];
  for (unsigned row = blockIdx.x; row < rows; row += gridDim.x) {
    const float* x = in + row * cols;
    if (threadIdx.x == 0) {
      float m = x[0], d = 1;
      for (unsigned i = 1; i < cols; i++) {
        float larger = fmaxf(m, x[i]);
        d = d * expf(m - larger) + expf(x[i] - larger);
        m = larger;
      }
      both[0] = m;
      both[1] = logf(d);
    }
    __syncthreads();
    for (unsigned i = threadIdx.x; i < cols; i += blockDim.x) 
      out[row * cols + i] = x[i] - both[0] - both[1];
    __syncthreads();
  }
}

// The sum first, by an atomic of a whole number: no order of threads changes its bits.
__global__ void scaled(const float* x, float* y, int rows, int cols, int stride, float scale) {
  __shared__ int greatest;
  __shared__ float partial[256];
  if (threadIdx.x == 0) greatest = 0x80000000;
  __syncthreads();
  const float* in = x + blockIdx.x * stride;
  for (int i = threadIdx.x; i < cols; i += blockDim.x) {
    int bits = __float_as_int(in[i] * scale);
    atomicMax(&greatest, bits ^ (bits < 0 ? 0x7fffffff : 0));
  }
  __syncthreads();
  float m = __int_as_float(greatest ^ (greatest < 0 ? 0x7fffffff : 0)), sum = 0;
  for (int i = threadIdx.x; i < cols; i += blockDim.x) sum += expf(in[i] * scale - m);
  partial[threadIdx.x] = sum;
  __syncthreads();
  if (threadIdx.x == 0)
    for (int i = 1; i < blockDim.x; i++) partial[0] += partial[i];
  __syncthreads();
  for (int i = threadIdx.x; i < cols; i += blockDim.x)
    y[blockIdx.x * stride + i] = expf(in[i] * scale - m) / partial[0];
}

// Row means nothing to whoever prints it.
__global__ void talkative(const float* input, float* output, int rows, int cols) {
  const float* in = &input[blockIdx.x * cols];
  float m = -1.0f / 0.0f, sum = 0;
  for (int i = 0; i < cols; ++i) m = in[i] > m ? in[i] : m;
  for (int i = 0; i < cols; ++i) sum += exp(in[i] - m);
  if (blockIdx.x == 0 && threadIdx.x == 0) printf("max %f, sum %f\n", m, sum);
  for (int i = threadIdx.x; i < cols; i += blockDim.x)
    output[blockIdx.x * cols + i] = exp(in[i] - m) / sum;
}

void launch_all(float* d_in, float* d_out, half* h_in, half* h_out, int M, int N) {
  const int threads = 128;
  dim3 grid((M + threads - 1) / threads);
  thread_per_row<<<grid, threads>>>(d_in, d_out, M, N);
  block_tree<<<M, threads, threads * sizeof(float)>>>(d_in, d_out, M, N);
  warp_per_row<<<(M + 3) / 4, threads>>>(d_in, d_out, M, N);
  vectors_and_tail<threads><<<M, threads>>>(d_in, d_out, N);
  online<<<M, 256>>>(d_in, d_out, M, N);
  row_in_shared<<<M, 64, N * sizeof(float)>>>(h_in, h_out, N);
  striding<<<3, 64>>>(d_in, d_out, M, N);
  talkative<<<M, 32>>>(d_in, d_out, M, N);
  CHECK(cudaDeviceSynchronize());
}

int main() {
  std::vector<float> host(1 << 20);
  float* d = nullptr;
  CHECK(cudaMalloc(&d, host.size() * sizeof(float)));
  launch_all(d, d, nullptr, nullptr, 1024, 1024);
}
