// Fills memory with inputs, and with the truth of a kernel's results for them.

// A 32-bit mixer: Wellons' "lowbias32", whose every output bit depends on every input bit.
__device__ unsigned mix(unsigned x) {
  x = (x ^ (x >> 16)) * 0x7feb352du;
  x = (x ^ (x >> 15)) * 0x846ca68bu;
  return x ^ (x >> 16);
}

__device__ unsigned random_of(long long i, unsigned seed) {
  return mix(static_cast<unsigned>(i) ^ mix(static_cast<unsigned>(i >> 32) ^ seed));
}

// Nearly normal, standard deviation 1; one element in 512 is raised by 8, so that maxima matter.
__device__ float noise(long long i, unsigned seed) {
  const unsigned a = random_of(i, seed);
  const unsigned b = mix(a + 0x9e3779b9u);
  const float sum = static_cast<float>((a & 0xffffu) + (a >> 16) + (b & 0xffffu)) * (1.0f / 65536.0f);
  return (sum - 1.5f) * 2.0f + (b >> 23 == 0 ? 8.0f : 0.0f);
}

template <typename T, typename Make>
__device__ void fill_with(T* out, long long count, Make make) {
  const long long stride = static_cast<long long>(gridDim.x) * blockDim.x;
  for (long long i = blockIdx.x * static_cast<long long>(blockDim.x) + threadIdx.x; i < count; i += stride) {
    make(i, out[i]);
  }
}

extern "C" __global__ void fill_noise(Element* out, long long count, unsigned seed) {
  fill_with(out, count, [=](long long i, Element& to) { narrow(noise(i, seed), to); });
}

// Similar to softmax of the noise, or its logarithm: rows of `cols` with a sum of about 1.
constexpr float kLogOfMeanExp = 2.4f;

extern "C" __global__ void fill_softmax(Element* out, long long count, int cols, unsigned seed) {
  const float log_sum = logf(static_cast<float>(cols)) + kLogOfMeanExp;
  fill_with(out, count, [=](long long i, Element& to) { narrow(expf(noise(i, seed) - log_sum), to); });
}

extern "C" __global__ void fill_log_softmax(Element* out, long long count, int cols, unsigned seed) {
  const float log_sum = logf(static_cast<float>(cols)) + kLogOfMeanExp;
  fill_with(out, count, [=](long long i, Element& to) { narrow(noise(i, seed) - log_sum, to); });
}

// Lengths of rows from 1 to `cols`; a quarter of the rows are whole.
extern "C" __global__ void fill_lengths(int* out, long long count, int cols, unsigned seed) {
  fill_with(out, count, [=](long long i, int& to) {
    const unsigned random = random_of(i, seed);
    to = random % 4 == 0 ? cols : 1 + static_cast<int>(mix(random) % static_cast<unsigned>(cols));
  });
}

// Numbers of rows, from 0 to 1.
extern "C" __global__ void fill_numbers(Number* out, long long count, unsigned seed) {
  fill_with(out, count, [=](long long i, Number& to) { to = static_cast<Number>(random_of(i, seed) % 4096u) / 4096; });
}

#if READS_IDS
extern "C" __global__ void fill_ids(Id* out, long long count, int cols, unsigned seed) {
  fill_with(out, count, [=](long long i, Id& to) { to = random_of(i, seed) % static_cast<unsigned>(cols); });
}
#endif

// The truth of a result, (rows, result_cols), to be compared with NumPy's; check.cu computes it by the same code.
extern "C" __global__ void __launch_bounds__(1024) write_truths(Question q, double* truths) {
  for (long long row = blockIdx.x; row < q.rows; row += gridDim.x) {
    const Row r = row_of(q, row);
    for (int i = threadIdx.x; i < q.result_cols; i += blockDim.x) {
      truths[row * q.result_cols + i] = truth_of(q, row, r, i).value;
    }
  }
}
