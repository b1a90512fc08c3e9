// Softmax kernels with one mistake each. The lines that may be named for it end in "// here".

#include <cuda_fp16.h>
#include <float.h>

__device__ __forceinline__ float warp_max(float value) {
  for (int offset = 16; offset > 0; offset >>= 1)
    value = fmaxf(value, __shfl_xor_sync(0xffffffffu, value, offset));
  return value;
}

__device__ __forceinline__ float warp_sum(float value) {
  for (int offset = 16; offset > 0; offset >>= 1)
    value += __shfl_xor_sync(0xffffffffu, value, offset);
  return value;
}

// The maximum begins at 0.
__global__ void identity_of_max(const float* in, float* out, int rows, int cols) {
  int row = blockIdx.x * blockDim.x + threadIdx.x;
  if (row >= rows) return;
  in += row * cols, out += row * cols;
  float greatest = 0;  // here
  for (int i = 0; i < cols; i++)
    if (in[i] > greatest) greatest = in[i];
  float sum = 0;
  for (int i = 0; i < cols; i++) sum += expf(in[i] - greatest);
  for (int i = 0; i < cols; i++) out[i] = expf(in[i] - greatest) / sum;
}

// Nothing keeps the first sums from being written while the maximum is still read.
__global__ void missing_barrier(const float* in, float* out, int rows, int cols) {
  __shared__ float partial[128];
  in += blockIdx.x * cols, out += blockIdx.x * cols;
  int t = threadIdx.x;
  float m = -INFINITY;
  for (int i = t; i < cols; i += 128) m = fmaxf(m, in[i]);
  partial[t] = m;
  __syncthreads();
  for (int s = 64; s > 0; s >>= 1) {
    if (t < s) partial[t] = fmaxf(partial[t], partial[t + s]);
    __syncthreads();
  }
  m = partial[0];  // here
  float sum = 0;
  for (int i = t; i < cols; i += 128) sum += expf(in[i] - m);
  partial[t] = sum;  // here
  __syncthreads();
  for (int s = 64; s > 0; s >>= 1) {
    if (t < s) partial[t] += partial[t + s];
    __syncthreads();
  }
  for (int i = t; i < cols; i += 128) out[i] = expf(in[i] - m) / partial[0];
}

// Columns that are no whole vector are not added up.
__global__ void tail_of_sum(const float* in, float* out, int rows, int cols) {
  in += blockIdx.x * cols, out += blockIdx.x * cols;
  float m = -INFINITY, sum = 0;
  for (int i = threadIdx.x; i < cols; i += 32) m = fmaxf(m, in[i]);
  m = warp_max(m);
  for (int i = threadIdx.x; i < cols / 4; i += 32)  // here
    for (int k = 0; k < 4; k++) sum += expf(in[4 * i + k] - m);  // here
  sum = warp_sum(sum);
  for (int i = threadIdx.x; i < cols; i += 32) out[i] = expf(in[i] - m) / sum;
}

// Columns that are no whole vector are not written.
__global__ void tail_of_output(const float* in, float* out, int rows, int cols) {
  in += blockIdx.x * cols, out += blockIdx.x * cols;
  float m = -INFINITY, sum = 0;
  for (int i = threadIdx.x; i < cols; i += 32) m = fmaxf(m, in[i]);
  m = warp_max(m);
  for (int i = threadIdx.x; i < cols; i += 32) sum += expf(in[i] - m);
  sum = warp_sum(sum);
  for (int i = threadIdx.x; i < cols / 2; i += 32) {
    out[2 * i] = expf(in[2 * i] - m) / sum;  // here
    out[2 * i + 1] = expf(in[2 * i + 1] - m) / sum;  // here
  }
}

// The first warp reads 32 partial results, and there are as many as warps.
__global__ void unwritten_partials(const float* in, float* out, int rows, int cols) {
  __shared__ float partial[32];
  in += blockIdx.x * cols, out += blockIdx.x * cols;
  float m = -INFINITY, sum = 0;
  for (int i = threadIdx.x; i < cols; i += blockDim.x) m = fmaxf(m, in[i]);
  m = warp_max(m);
  if (threadIdx.x % 32 == 0) partial[threadIdx.x / 32] = m;
  __syncthreads();
  m = warp_max(partial[threadIdx.x % 32]);  // here
  __syncthreads();
  for (int i = threadIdx.x; i < cols; i += blockDim.x) sum += expf(in[i] - m);
  sum = warp_sum(sum);
  if (threadIdx.x % 32 == 0) partial[threadIdx.x / 32] = sum;
  __syncthreads();
  sum = 0;
  for (int i = 0; i < blockDim.x / 32; i++) sum += partial[i];
  for (int i = threadIdx.x; i < cols; i += blockDim.x) out[i] = expf(in[i] - m) / sum;
}

// Threads without a column of their own do not reach the barrier.
__global__ void barrier_of_some(const float* in, float* out, int rows, int cols) {
  __shared__ float e[128];
  int i = threadIdx.x;
  in += blockIdx.x * cols, out += blockIdx.x * cols;
  if (i < cols) {
    float m = in[0], sum = 0;
    for (int k = 1; k < cols; k++) m = fmaxf(m, in[k]);
    e[i] = expf(in[i] - m);
    __syncthreads();  // here
    for (int k = 0; k < cols; k++) sum += e[k];
    out[i] = e[i] / sum;
  }
}

// The last block has more warps than there are rows left.
__global__ void missing_guard(const float* in, float* out, int rows, int cols) {
  int row = blockIdx.x * 4 + threadIdx.x / 32, lane = threadIdx.x % 32;
  in += row * cols, out += row * cols;
  float m = -INFINITY, sum = 0;
  for (int i = lane; i < cols; i += 32) m = fmaxf(m, in[i]);  // here
  m = warp_max(m);
  for (int i = lane; i < cols; i += 32) sum += expf(in[i] - m);  // here
  sum = warp_sum(sum);
  for (int i = lane; i < cols; i += 32) out[i] = expf(in[i] - m) / sum;  // here
}

// The running sum is not rescaled.
__global__ void not_rescaled(const float* in, float* out, int rows, int cols) {
  int row = blockIdx.x * blockDim.x + threadIdx.x;
  if (row >= rows) return;
  in += row * cols, out += row * cols;
  float m = in[0], d = 0;
  for (int i = 0; i < cols; i++) {
    m = fmaxf(m, in[i]);
    d += expf(in[i] - m);  // here
  }
  for (int i = 0; i < cols; i++) out[i] = expf(in[i] - m) / d;  // here
}

// The upper half of the warp is lost.
__global__ void half_a_warp(const float* in, float* out, int rows, int cols) {
  in += blockIdx.x * cols, out += blockIdx.x * cols;
  float m = -INFINITY, sum = 0;
  for (int i = threadIdx.x; i < cols; i += 32) m = fmaxf(m, in[i]);
  m = warp_max(m);
  for (int i = threadIdx.x; i < cols; i += 32) sum += expf(in[i] - m);
  for (int offset = 8; offset > 0; offset >>= 1)
    sum += __shfl_down_sync(0xffffffffu, sum, offset);  // here
  sum = __shfl_sync(0xffffffffu, sum, 0);
  for (int i = threadIdx.x; i < cols; i += 32) out[i] = expf(in[i] - m) / sum;
}

// Lanes without a column have left before the shuffle that waits for them.
__global__ void lanes_that_left(const half* in, half* out, int cols) {
  in += blockIdx.x * cols, out += blockIdx.x * cols;
  float m = -FLT_MAX, sum = 0;
  for (int i = threadIdx.x; i < cols; i += 32) {
    m = fmaxf(m, __half2float(in[i]));
    for (int offset = 16; offset > 0; offset >>= 1)
      m = fmaxf(m, __shfl_xor_sync(0xffffffffu, m, offset));  // here
  }
  for (int i = 0; i < cols; i++) sum += expf(__half2float(in[i]) - m);
  for (int i = threadIdx.x; i < cols; i += 32)
    out[i] = __float2half(expf(__half2float(in[i]) - m) / sum);
}

// The lanes' sums are of several maxima; the warps' are merged as they should be.
__global__ void lanes_not_rescaled(const float* in, float* out, int rows, int cols) {
  __shared__ float maxima[2], sums[2];
  in += blockIdx.x * cols, out += blockIdx.x * cols;
  float m = -INFINITY, sum = 0;
  for (int i = threadIdx.x; i < cols; i += 64) {
    float before = m;
    m = fmaxf(m, in[i]);
    sum = sum * expf(before - m) + expf(in[i] - m);
  }
  m = warp_max(m);
  for (int offset = 16; offset > 0; offset >>= 1)
    sum += __shfl_xor_sync(0xffffffffu, sum, offset);  // here
  if (threadIdx.x % 32 == 0) maxima[threadIdx.x / 32] = m, sums[threadIdx.x / 32] = sum;
  __syncthreads();
  float greatest = fmaxf(maxima[0], maxima[1]);
  sum = sums[0] * expf(maxima[0] - greatest) + sums[1] * expf(maxima[1] - greatest);
  for (int i = threadIdx.x; i < cols; i += 64) out[i] = expf(in[i] - greatest) / sum;
}

// The loop never goes on.
__global__ void endless(const float* in, float* out, int rows, int cols) {
  in += blockIdx.x * cols, out += blockIdx.x * cols;
  float m = -INFINITY, sum = 0;
  int i = threadIdx.x;
  while (i < cols) m = fmaxf(m, in[i]);  // here
  m = warp_max(m);
  for (i = threadIdx.x; i < cols; i += 32) sum += expf(in[i] - m);
  sum = warp_sum(sum);
  for (i = threadIdx.x; i < cols; i += 32) out[i] = expf(in[i] - m) / sum;
}

void launches(const float* x, float* y, const half* hx, half* hy, int rows, int cols) {
  identity_of_max<<<(rows + 63) / 64, 64>>>(x, y, rows, cols);
  missing_barrier<<<rows, 128>>>(x, y, rows, cols);
  tail_of_sum<<<rows, 32>>>(x, y, rows, cols);
  tail_of_output<<<rows, 32>>>(x, y, rows, cols);
  unwritten_partials<<<rows, 256>>>(x, y, rows, cols);
  barrier_of_some<<<rows, 128>>>(x, y, rows, cols);
  missing_guard<<<(rows + 3) / 4, 128>>>(x, y, rows, cols);
  not_rescaled<<<(rows + 63) / 64, 64>>>(x, y, rows, cols);
  half_a_warp<<<rows, 32>>>(x, y, rows, cols);
  lanes_not_rescaled<<<rows, 64>>>(x, y, rows, cols);
  endless<<<rows, 32>>>(x, y, rows, cols);
  lanes_that_left<<<rows, 32>>>(hx, hy, cols);
}
