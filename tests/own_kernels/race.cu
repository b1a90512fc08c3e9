__global__ void softmax_kernel(const float* x, float* y, int rows, int cols) {
  __shared__ float partial[128];
  const float* in = x + blockIdx.x * cols;
  float largest = -INFINITY;
  for (int i = threadIdx.x; i < cols; i += 128) largest = fmaxf(largest, in[i]);
  partial[threadIdx.x] = largest;
  __syncthreads();
  for (int i = 0; i < 128; i++) largest = fmaxf(largest, partial[i]);
  float sum = 0;
  for (int i = threadIdx.x; i < cols; i += 128) sum += expf(in[i] - largest);
  partial[threadIdx.x] = sum;
  __syncthreads();
  sum = 0;
  for (int i = 0; i < 128; i++) sum += partial[i];
  for (int i = threadIdx.x; i < cols; i += 128) y[blockIdx.x * cols + i] = expf(in[i] - largest) / sum;
}
