// The truth of an op in float64, as in reference/truth.py. The macro OP names the op, because code for
// all of them takes 1.5 times as long to compile.

constexpr double kNearGap = 32.0;
constexpr int kExactTerms = 1 << 24;
constexpr double kUnderflow = kWide ? 0x1p-1070 : 0x1p-125;
#define INFINITY_64 __longlong_as_double(0x7ff0000000000000ll)
constexpr double kGreatest = 1.7976931348623157e308;

enum Op { kSoftmax, kLogSoftmax, kSoftmaxBackward, kLogSoftmaxBackward, kLogsumexp };
constexpr Op kOp = OP;
enum Mask { kNone, kCausal, kLengths, kAdditive };

struct Question {
  const Element* input;
  const Element* grad;
  const Element* mask;
  const int* lengths;
  const Output* output;
  long long rows;
  long long inner;
  long long input_stride;
  long long output_stride;
  long long mask_rows;
  double scale;
  double tolerance;        // relative to an element's magnitude
  double exact_tolerance;  // the same in rows whose sum is exact
  int cols;
  int result_cols;  // results of a row
  int masked;
  int scaled;
  int steps;  // 16-bit numbers that may lie between an output and the rounded truth
};

// Where element `col` of a row of a matrix of `cols` columns lies.
__device__ long long place(const Question& q, long long row, int cols, long long stride, int col) {
  if (q.inner == 1) return row * stride + col;
  return (row / q.inner * cols + col) * q.inner + row % q.inner;
}

__device__ long long place_in_input(const Question& q, long long row, int col) {
  return place(q, row, q.cols, q.input_stride, col);
}

// The first column that a causal mask or a row's length hides.
__device__ int limit_of(const Question& q, long long row) {
  if (q.masked == kCausal) {
    const long long seen = row % q.mask_rows + 1 + q.cols - q.mask_rows;
    return static_cast<int>(seen < 0 ? 0 : seen < q.cols ? seen : q.cols);
  }
  return q.masked == kLengths ? min(max(q.lengths[row], 0), q.cols) : q.cols;
}

// An element that enters the op: scaled, masked, rounded once to the precision of the arithmetic.
__device__ double counted(const Question& q, long long row, int limit, int col) {
  if (col >= limit) return -INFINITY_64;
  double x = widen(q.input[place_in_input(q, row, col)]);
  const double factor = q.scaled && x != -INFINITY_64 ? q.scale : 1.0;
  if (q.masked == kAdditive) {
    const double added = widen(q.mask[row % q.mask_rows * q.cols + col]);
    if (kWide) return fma(x, factor, added);
    return fmaf(static_cast<float>(x), static_cast<float>(factor), static_cast<float>(added));
  }
  x = __dmul_rn(x, factor);  // which keeps the compiler from contracting it with an addition
  return kWide ? x : static_cast<double>(static_cast<float>(x));
}

__device__ double gradient(const Question& q, long long row, int col) {
  return widen(q.grad[place_in_input(q, row, col)]);
}

// exp(x - y), corrected for the rounding of the difference, which would be many ulps of the result.
__device__ double exp_of_difference(double x, double y) {
  const double difference = x - y;
  const double result = exp(difference);
  if (!isfinite(difference)) return result;
  const double of_y = difference - x;
  const double taken = (x - (difference - of_y)) - (y + of_y);
  return fma(result, taken, result);
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

template <typename Term>
__device__ double sum_row(const Question& q, Term term) {
  double sum = 0.0;
  for (int i = threadIdx.x; i < q.cols; i += blockDim.x) sum += term(i);
  return reduce_block(sum, 0.0, [](double a, double b) { return a + b; });
}

struct Truth {
  double value;
  double magnitude;  // its error is relative to this: of the subtracted terms if they cancel
  bool exact;        // its row's sum is exact in any arithmetic
  double underflow;  // absolute error of exponentials that are no normal numbers
};

// The values that the elements of a row share.
struct Row {
  int limit;
  double maximum;  // forward
  double sum;
  double size;  // backward: sum of absolute terms
  bool exact;   // all terms of the sum are 0 or 1
};

// Whether all elements of a row satisfy a condition.
template <typename Condition>
__device__ bool holds_for_row(const Question& q, Condition condition) {
  return q.cols <= kExactTerms && sum_row(q, [&](int i) { return condition(i) ? 0.0 : 1.0; }) == 0.0;
}

__device__ Row row_of(const Question& q, long long row) {
  Row r = {limit_of(q, row), 0.0, 0.0, 0.0, false};
  if (kOp == kSoftmax || kOp == kLogSoftmax || kOp == kLogsumexp) {
    double maximum = -INFINITY_64;
    for (int i = threadIdx.x; i < q.cols; i += blockDim.x) maximum = fmax(maximum, counted(q, row, r.limit, i));
    r.maximum = reduce_block(maximum, -INFINITY_64, [](double a, double b) { return fmax(a, b); });
    // A finite maximum: the exponential of +inf is then infinite, and that of -inf is 0, in all rows.
    if (kOp == kLogsumexp) r.maximum = fmax(fmin(r.maximum, kGreatest), -kGreatest);
    r.sum = sum_row(q, [&](int i) { return exp_of_difference(counted(q, row, r.limit, i), r.maximum); });
    const auto is_0_or_masked = [&](int i) {
      const double x = counted(q, row, r.limit, i);
      return x == 0.0 || x == -INFINITY_64;
    };
    r.exact = r.maximum == 0.0 && holds_for_row(q, is_0_or_masked);
    return r;
  }
  const auto term = [&](int i) {
    const double dy = gradient(q, row, i);
    return kOp == kSoftmaxBackward ? widen(q.input[place_in_input(q, row, i)]) * dy : dy;
  };
  r.sum = sum_row(q, term);
  r.size = sum_row(q, [&](int i) { return fabs(term(i)); });
  const double share_of_1 = kOp == kSoftmaxBackward ? 1.0 : 0.0;
  const double share_of_0 = kOp == kSoftmaxBackward ? 0.0 : -INFINITY_64;
  const auto is_0_or_1 = [&](int i) {
    const double y = widen(q.input[place_in_input(q, row, i)]);
    const double dy = gradient(q, row, i);
    return (y == share_of_0 || y == share_of_1) && (dy == 0.0 || dy == 1.0);
  };
  r.exact = r.sum == rint(r.sum) && holds_for_row(q, is_0_or_1);
  return r;
}

// The magnitude of a number that is not exactly 0, although it may be too small for float64: fp64
// arithmetic that rounds otherwise may give its smallest number there; fp32 arithmetic never does.
__device__ double not_zero(double magnitude) {
  constexpr double kLeast = 4.9406564584124654e-324;
  return kWide ? fmax(magnitude, kLeast) : magnitude;
}

__device__ Truth truth_of(const Question& q, long long row, const Row& r, int col) {
  if (kOp == kSoftmax) {
    const double x = counted(q, row, r.limit, col);
    const double y = exp_of_difference(x, r.maximum) / r.sum;
    const double gap = isfinite(x) ? r.maximum - x : 0.0;
    const double growth = gap >= kNearGap && isfinite(gap) ? ldexp(2.0, ilogb(gap / kNearGap)) : 1.0;
    return {y, isfinite(x) ? not_zero(y * growth) : y * growth, r.exact, 0.0};
  }
  if (kOp == kLogSoftmax) {
    const double y = (counted(q, row, r.limit, col) - r.maximum) - log(r.sum);
    return {y, 1.0 + fabs(y), r.exact, 0.0};
  }
  if (kOp == kLogsumexp) {
    const double log_sum = log(r.sum);
    return {r.maximum + log_sum, fmax(1.0, fmax(fabs(r.maximum), fabs(log_sum))), r.exact, 0.0};
  }
  const double y = widen(q.input[place_in_input(q, row, col)]);
  const double dy = gradient(q, row, col);
  const double factor = q.scaled ? q.scale : 1.0;
  const double share = kOp == kSoftmaxBackward ? y : exp(y);
  if (kOp == kSoftmaxBackward) {
    const double size = fabs(dy) + r.size;
    const double magnitude = fabs(y) > 0.0 && size > 0.0 ? not_zero(fabs(y) * size) : fabs(y) * size;
    return {factor * (y * (dy - r.sum)), fabs(factor) * magnitude, r.exact, 0.0};
  }
  const double shared_out = isfinite(y) && r.size > 0.0 ? not_zero(share * r.size) : share * r.size;
  const double magnitude = fabs(factor) * (fabs(dy) + shared_out);
  return {factor * (dy - share * r.sum), magnitude, r.exact, fabs(factor) * kUnderflow * r.size};
}
