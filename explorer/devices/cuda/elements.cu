// Element types of inputs and results, which `check_sources` in tools.py defines by DEFINE_ELEMENT.

template <typename T>
struct Format;  // bits of mantissa, the smallest normal number

#define DEFINE_ELEMENT(T, MANTISSA, SMALLEST_NORMAL, TO_NUMBER, FROM_NUMBER, FROM_DOUBLE) \
  template <>                                                                            \
  struct Format<T> {                                                                     \
    static constexpr int kMantissa = MANTISSA;                                           \
    static constexpr double kSmallestNormal = SMALLEST_NORMAL;                           \
  };                                                                                     \
  __device__ double widen(T x) { return TO_NUMBER(x); }                                  \
  __device__ void narrow(float x, T& out) { out = FROM_NUMBER(x); }                      \
  __device__ T rounded(double x, T) { return FROM_DOUBLE(x); }
