// What the truths of all ops share: a truth, and what a block's threads combine for it.

constexpr double kSubnormalError = kWide ? 0x1p-1070 : 0x1p-145;
#define INFINITY_64 __longlong_as_double(0x7ff0000000000000ll)

// Whether a question is about a result. No code is compiled for results outside of kAsked.
template <typename Question>
__device__ bool asks(const Question& q, Asked result) {
  return kAsked == 1u << result || (kAsked >> result & 1u && q.asked == result);
}

template <typename Combine>
__device__ double reduce_block(double value, double identity, Combine combine) {
  __shared__ double scratch[32];
  __syncthreads();  // the scratch may still be read by the reduction before
  for (int lanes = 16; lanes > 0; lanes /= 2) value = combine(value, __shfl_xor_sync(0xffffffffu, value, lanes));
  if (threadIdx.x % 32 == 0) scratch[threadIdx.x / 32] = value;
  __syncthreads();
  value = identity;
  for (int warp = 0; warp < blockDim.x / 32; ++warp) value = combine(value, scratch[warp]);
  return value;
}

struct Truth {
  double value;
  double magnitude;  // its error is relative to this: of the subtracted terms if they cancel
  bool exact;        // its row's sum is exact in any arithmetic
  double underflow;  // absolute error of exponentials that are no normal numbers
  double flushed;    // the value in which they are 0, which is right as well
  bool plus_zero;    // a zero is +0, whatever kernel computes it
};

// A truth of which no exponential is multiplied.
__device__ Truth plain(double value, double magnitude, bool exact, bool plus_zero = false) {
  return {value, magnitude, exact, 0.0, value, plus_zero};
}
