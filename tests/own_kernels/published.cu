// Kernels after the designs of published series, written anew. Those that were published with a
// fault have it here; the lines that are named for it end in "// here".

#include <cfloat>

#include <cuda_fp16.h>

// ---------------------------------------------------------------- a worklog of fused softmax

__global__ void one_thread_a_block(float* x, float* y, int M, int N) {
  const int row = blockIdx.x;
  float m = -INFINITY, norm = 0.0f;
  for (int i = 0; i < N; i++) m = max(m, x[row * N + i]);
  for (int i = 0; i < N; i++) norm += expf(x[row * N + i] - m);
  for (int i = 0; i < N; i++) y[row * N + i] = expf(x[row * N + i] - m) / norm;
}

__global__ void shared_serial(float* x, float* y, int M, int N) {
  __shared__ float partial[256];
  const int row = blockIdx.x, t = threadIdx.x;
  float m = -INFINITY, norm = 0.0f;
  for (int i = t; i < N; i += blockDim.x) m = max(m, x[row * N + i]);
  partial[t] = m;
  __syncthreads();
  if (t == 0)
    for (int i = 1; i < blockDim.x; i++) partial[0] = max(partial[0], partial[i]);
  __syncthreads();
  m = partial[0];
  __syncthreads();
  for (int i = t; i < N; i += blockDim.x) norm += expf(x[row * N + i] - m);
  partial[t] = norm;
  __syncthreads();
  if (t == 0)
    for (int i = 1; i < blockDim.x; i++) partial[0] += partial[i];
  __syncthreads();
  for (int i = t; i < N; i += blockDim.x) y[row * N + i] = expf(x[row * N + i] - m) / partial[0];
}

__device__ float reduced(float* partial, float value, bool is_sum) {
  partial[threadIdx.x] = value;
  __syncthreads();
  for (int half = blockDim.x / 2; half > 0; half /= 2) {
    if (threadIdx.x < half) {
      float other = partial[threadIdx.x + half];
      float& own = partial[threadIdx.x];
      own = is_sum ? own + other : max(own, other);
    }
    __syncthreads();
  }
  value = partial[0];
  __syncthreads();
  return value;
}

// Exponentials wait in the output. Vectors of four, then single columns.
__global__ void tree_of_float4(float* x, float* y, int M, int N) {
  extern __shared__ float partial[];
  x += blockIdx.x * N;
  y += blockIdx.x * N;
  const int vectors = N % 4 ? 0 : N / 4;
  float m = -INFINITY, norm = 0.0f;
  for (int i = threadIdx.x; i < vectors; i += blockDim.x) {
    float4 v = ((float4*)x)[i];
    m = max(m, max(max(v.x, v.y), max(v.z, v.w)));
  }
  for (int i = 4 * vectors + threadIdx.x; i < N; i += blockDim.x) m = max(m, x[i]);
  m = reduced(partial, m, false);
  for (int i = threadIdx.x; i < vectors; i += blockDim.x) {
    float4 v = ((float4*)x)[i];
    v = {expf(v.x - m), expf(v.y - m), expf(v.z - m), expf(v.w - m)};
    norm += v.x + v.y + v.z + v.w;
    ((float4*)y)[i] = v;
  }
  for (int i = 4 * vectors + threadIdx.x; i < N; i += blockDim.x) norm += y[i] = expf(x[i] - m);
  norm = reduced(partial, norm, true);
  for (int i = threadIdx.x; i < N; i += blockDim.x) y[i] /= norm;
}

// ---------------------------------------------------------------- float4 registers and shuffles

// A thread keeps a vector in registers. Published with 0 as the identity of the maximum.
template <int COLS>
__global__ void register_float4(const float* x, float* y) {
  constexpr int kWarps = (COLS / 4 + 31) / 32;
  __shared__ float maxima[kWarps], sums[kWarps];
  const int t = threadIdx.x;
  const bool has = t < COLS / 4;
  float4 v = {};
  float m = 0;  // here
  if (has) {
    v = reinterpret_cast<const float4*>(x + blockIdx.x * COLS)[t];
    m = fmaxf(m, fmaxf(fmaxf(v.x, v.y), fmaxf(v.z, v.w)));
  }
  for (int lanes = 16; lanes > 0; lanes /= 2)
    m = fmaxf(m, __shfl_xor_sync(0xffffffff, m, lanes));
  if (t % 32 == 0) maxima[t / 32] = m;
  __syncthreads();
  for (int warp = 0; warp < kWarps; warp++) m = fmaxf(m, maxima[warp]);
  v = {__expf(v.x - m), __expf(v.y - m), __expf(v.z - m), __expf(v.w - m)};
  float sum = has ? v.x + v.y + v.z + v.w : 0;
  for (int lanes = 16; lanes > 0; lanes /= 2) sum += __shfl_xor_sync(0xffffffff, sum, lanes);
  if (t % 32 == 0) sums[t / 32] = sum;
  __syncthreads();
  sum = 0;
  for (int warp = 0; warp < kWarps; warp++) sum += sums[warp];
  if (has)
    reinterpret_cast<float4*>(y + blockIdx.x * COLS)[t] = {v.x / sum, v.y / sum, v.z / sum,
                                                           v.w / sum};
}

// ---------------------------------------------------------------- three kernels in half precision

__global__ void unfused_max(const half* x, float* maxima, int rows, int cols) {
  int row = blockIdx.x * blockDim.x + threadIdx.x;
  if (row >= rows) return;
  float m = -INFINITY;
  for (int i = 0; i < cols; i++) m = fmaxf(m, __half2float(x[row * cols + i]));
  maxima[row] = m;
}

__global__ void fused(const half* x, half* y, int rows, int cols) {
  int row = blockIdx.x * blockDim.x + threadIdx.x;
  if (row >= rows) return;
  float m = -INFINITY, sum = 0;
  for (int i = 0; i < cols; i++) m = fmaxf(m, __half2float(x[row * cols + i]));
  for (int i = 0; i < cols; i++) sum += expf(__half2float(x[row * cols + i]) - m);
  for (int i = 0; i < cols; i++)
    y[row * cols + i] = __float2half(expf(__half2float(x[row * cols + i]) - m) / sum);
}

__global__ void online(const half* x, half* y, int rows, int cols) {
  int row = blockIdx.x * blockDim.x + threadIdx.x;
  if (row >= rows) return;
  float m = -INFINITY, sum = 0;
  for (int i = 0; i < cols; i++) {
    float value = __half2float(x[row * cols + i]), before = m;
    m = fmaxf(m, value);
    sum = sum * expf(before - m) + expf(value - m);
  }
  for (int i = 0; i < cols; i++)
    y[row * cols + i] = __float2half(expf(__half2float(x[row * cols + i]) - m) / sum);
}

// ---------------------------------------------------------------- a journey in three kernels

// Pairs of maximum and sum. Published for 1024 threads: with fewer, the first warp reads slots that
// no warp has written.
__global__ void warp_state(const float* x, float* y, int M, int N) {
  __shared__ float maxima[32], sums[32];
  const int t = threadIdx.x, row = blockIdx.x;
  float m = -FLT_MAX, d = 0;
  for (int i = t; i < N; i += blockDim.x) {
    float larger = fmaxf(m, x[row * N + i]);
    d = d * __expf(m - larger) + __expf(x[row * N + i] - larger);
    m = larger;
  }
  for (int turn = 0; turn < 2; turn++) {
    for (int lanes = 16; lanes > 0; lanes /= 2) {
      float m2 = __shfl_down_sync(0xffffffff, m, lanes), d2 = __shfl_down_sync(0xffffffff, d, lanes);
      float larger = fmaxf(m, m2);
      d = d * __expf(m - larger) + d2 * __expf(m2 - larger);
      m = larger;
    }
    if (turn == 0) {
      if (t % 32 == 0) maxima[t / 32] = m, sums[t / 32] = d;
      __syncthreads();
      m = maxima[t % 32];  // here
      d = sums[t % 32];  // here
    }
  }
  __syncthreads();
  if (t == 0) maxima[0] = m, sums[0] = d;
  __syncthreads();
  for (int i = t; i < N; i += blockDim.x) y[row * N + i] = __expf(x[row * N + i] - maxima[0]) / sums[0];
}

// ---------------------------------------------------------------- kernels of a language model

// A row a warp. Published with a return before a barrier that all warps of a block are to reach.
__global__ void early_return(float* out, const float* inp, int N, int C) {
  extern __shared__ float shared[];
  const int warps = blockDim.x / 32, warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int row = blockIdx.x * warps + warp;
  if (row >= N) return;
  const float* x = inp + row * C;
  float m = -INFINITY, sum = 0;
  for (int i = lane; i < C; i += 32) m = fmaxf(m, x[i]);
  for (int lanes = 16; lanes > 0; lanes /= 2)
    m = fmaxf(m, __shfl_down_sync(0xFFFFFFFF, m, lanes));
  m = __shfl_sync(0xFFFFFFFF, m, 0);
  for (int i = lane; i < C; i += 32) sum += expf(x[i] - m);
  for (int lanes = 16; lanes > 0; lanes /= 2) sum += __shfl_down_sync(0xFFFFFFFF, sum, lanes);
  if (lane == 0) shared[warp] = sum;
  __syncthreads();  // here
  for (int i = lane; i < C; i += 32) out[row * C + i] = expf(x[i] - m) / shared[warp];
}
