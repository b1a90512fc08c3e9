// Element types of input and output: macros IN and OUT name them F32, F16, BF16 or F64.

#include <cuda_bf16.h>
#include <cuda_fp16.h>

template <typename T>
struct Format;  // bits of mantissa, the smallest normal number

template <>
struct Format<float> {
  static constexpr int kMantissa = 23;
  static constexpr double kSmallestNormal = 0x1p-126;
};
template <>
struct Format<double> {
  static constexpr int kMantissa = 52;
  static constexpr double kSmallestNormal = 0x1p-1022;
};
template <>
struct Format<__half> {
  static constexpr int kMantissa = 10;
  static constexpr double kSmallestNormal = 0x1p-14;
};
template <>
struct Format<__nv_bfloat16> {
  static constexpr int kMantissa = 7;
  static constexpr double kSmallestNormal = 0x1p-126;
};

using F32 = float;
using F16 = __half;
using BF16 = __nv_bfloat16;
using F64 = double;
using Element = IN;
using Output = OUT;

__device__ double widen(float x) { return x; }
__device__ double widen(double x) { return x; }
__device__ double widen(__half x) { return __half2float(x); }
__device__ double widen(__nv_bfloat16 x) { return __bfloat162float(x); }

__device__ void narrow(float x, float& out) { out = x; }
__device__ void narrow(float x, double& out) { out = x; }
__device__ void narrow(float x, __half& out) { out = __float2half_rn(x); }
__device__ void narrow(float x, __nv_bfloat16& out) { out = __float2bfloat16_rn(x); }

__device__ __half rounded(double x, __half) { return __double2half(x); }
__device__ __nv_bfloat16 rounded(double x, __nv_bfloat16) { return __double2bfloat16(x); }

template <typename T>
struct Is64 {
  static constexpr bool value = false;
};
template <>
struct Is64<double> {
  static constexpr bool value = true;
};
constexpr bool kWide = Is64<Element>::value;  // arithmetic is fp64
