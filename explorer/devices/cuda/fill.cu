// What the explorer itself runs on the GPU: inputs.

// A 32-bit mixer: Wellons' "lowbias32", whose every output bit depends on every input bit.
__device__ unsigned mix(unsigned x) {
  x = (x ^ (x >> 16)) * 0x7feb352du;
  x = (x ^ (x >> 15)) * 0x846ca68bu;
  return x ^ (x >> 16);
}

// About normal, standard deviation 1; one element in 512 lifted by 8, so that maxima matter.
extern "C" __global__ void fill_input(Element* out, long long count, unsigned seed) {
  const long long stride = static_cast<long long>(gridDim.x) * blockDim.x;
  for (long long i = blockIdx.x * static_cast<long long>(blockDim.x) + threadIdx.x; i < count; i += stride) {
    const unsigned a = mix(static_cast<unsigned>(i) ^ mix(static_cast<unsigned>(i >> 32) ^ seed));
    const unsigned b = mix(a + 0x9e3779b9u);
    const float sum = static_cast<float>((a & 0xffffu) + (a >> 16) + (b & 0xffffu)) * (1.0f / 65536.0f);
    narrow((sum - 1.5f) * 2.0f + (b >> 23 == 0 ? 8.0f : 0.0f), out[i]);
  }
}

// Lengths of rows from 1 to `most`, every fourth of them whole.
extern "C" __global__ void fill_lengths(int* out, long long count, int most, unsigned seed) {
  const long long stride = static_cast<long long>(gridDim.x) * blockDim.x;
  for (long long i = blockIdx.x * static_cast<long long>(blockDim.x) + threadIdx.x; i < count; i += stride) {
    const unsigned random = mix(static_cast<unsigned>(i) ^ mix(static_cast<unsigned>(i >> 32) ^ seed));
    out[i] = random % 4 == 0 ? most : 1 + static_cast<int>(mix(random) % static_cast<unsigned>(most));
  }
}
