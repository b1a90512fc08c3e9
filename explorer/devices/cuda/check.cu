// The truth of every op in float64, as reference/truth.py has it, and how an output compares.

constexpr double kFlushedBelow = 0x1p-126 * (1 + 1e-6);
constexpr double kSubnormalError = kWide ? 0x1p-1070 : 0x1p-145;
constexpr double kNearGap = 32.0;
constexpr int kExactTerms = 1 << 24;
constexpr double kUnderflow = kWide ? 0x1p-1070 : 0x1p-125;
#define INFINITY_64 __longlong_as_double(0x7ff0000000000000ll)

enum Op { kSoftmax, kLogSoftmax, kSoftmaxBackward, kLogSoftmaxBackward };
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
  double exact_tolerance;  // the same in rows whose sum arithmetic cannot round
  int cols;
  int op;
  int masked;
  int scaled;
  int steps;  // 16-bit numbers that may lie between an output and the rounded truth
};

struct Report {
  unsigned long long wrong;
  unsigned long long first;       // row * cols + col of the first wrong element
  unsigned long long error_bits;  // largest error over magnitude, a non-negative double's bits
  unsigned long long infinite;    // wrong elements that are NaN or infinite, or should be
  unsigned long long ulp_bits;    // largest error in ulps of the output's type, a double's bits
  double counted;                 // elements that are finite and should be
  double ulps;                    // sum of their errors in ulps
  unsigned long long certain;     // wrong elements that no rounding explains
};

__device__ long long place(const Question& q, long long row, long long stride, int col) {
  if (q.inner == 1) return row * stride + col;
  return (row / q.inner * q.cols + col) * q.inner + row % q.inner;
}

// The first column that a causal mask or the row's length hides.
__device__ int limit_of(const Question& q, long long row) {
  if (q.masked == kCausal) {
    const long long seen = row % q.mask_rows + 1 + q.cols - q.mask_rows;
    return static_cast<int>(seen < 0 ? 0 : seen < q.cols ? seen : q.cols);
  }
  return q.masked == kLengths ? min(max(q.lengths[row], 0), q.cols) : q.cols;
}

// An element as it counts: scaled, masked, rounded once to the precision of the arithmetic.
__device__ double counted(const Question& q, long long row, int limit, int col) {
  if (col >= limit) return -INFINITY_64;
  double x = widen(q.input[place(q, row, q.input_stride, col)]);
  const double factor = q.scaled && x != -INFINITY_64 ? q.scale : 1.0;
  if (q.masked == kAdditive) {
    const double added = widen(q.mask[row % q.mask_rows * q.cols + col]);
    if (kWide) return fma(x, factor, added);
    return fmaf(static_cast<float>(x), static_cast<float>(factor), static_cast<float>(added));
  }
  x = __dmul_rn(x, factor);  // not to be contracted with what it is used in
  return kWide ? x : static_cast<double>(static_cast<float>(x));
}

__device__ double gradient(const Question& q, long long row, int col) {
  return widen(q.grad[place(q, row, q.input_stride, col)]);
}

// exp(x - y): what rounding takes from the difference, many ulps of the result, is put back.
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
  double magnitude;  // what its error is relative to: of what is subtracted where that cancels
  bool exact;        // its row's sum is exact in any arithmetic
  double underflow;  // absolute error that comes from exponentials which are no normal numbers
};

// What one row's elements have in common.
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
  if (q.op == kSoftmax || q.op == kLogSoftmax) {
    double maximum = -INFINITY_64;
    for (int i = threadIdx.x; i < q.cols; i += blockDim.x) maximum = fmax(maximum, counted(q, row, r.limit, i));
    r.maximum = reduce_block(maximum, -INFINITY_64, [](double a, double b) { return fmax(a, b); });
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
    return q.op == kSoftmaxBackward ? widen(q.input[place(q, row, q.input_stride, i)]) * dy : dy;
  };
  r.sum = sum_row(q, term);
  r.size = sum_row(q, [&](int i) { return fabs(term(i)); });
  const double share_of_1 = q.op == kSoftmaxBackward ? 1.0 : 0.0;
  const double share_of_0 = q.op == kSoftmaxBackward ? 0.0 : -INFINITY_64;
  const auto is_0_or_1 = [&](int i) {
    const double y = widen(q.input[place(q, row, q.input_stride, i)]);
    const double dy = gradient(q, row, i);
    return (y == share_of_0 || y == share_of_1) && (dy == 0.0 || dy == 1.0);
  };
  r.exact = r.sum == rint(r.sum) && holds_for_row(q, is_0_or_1);
  return r;
}

// The magnitude of what is not exactly 0, though float64 may hold nothing so small: fp64 arithmetic
// that rounds otherwise can come to its smallest number there. Of fp32 arithmetic it cannot happen.
__device__ double not_zero(double magnitude) {
  constexpr double kLeast = 4.9406564584124654e-324;
  return kWide ? fmax(magnitude, kLeast) : magnitude;
}

__device__ Truth truth_of(const Question& q, long long row, const Row& r, int col) {
  if (q.op == kSoftmax) {
    const double x = counted(q, row, r.limit, col);
    const double y = exp_of_difference(x, r.maximum) / r.sum;
    const double gap = isfinite(x) ? r.maximum - x : 0.0;
    const double growth = gap >= kNearGap && isfinite(gap) ? ldexp(2.0, ilogb(gap / kNearGap)) : 1.0;
    return {y, isfinite(x) ? not_zero(y * growth) : y * growth, r.exact, 0.0};
  }
  if (q.op == kLogSoftmax) {
    const double y = (counted(q, row, r.limit, col) - r.maximum) - log(r.sum);
    return {y, 1.0 + fabs(y), r.exact, 0.0};
  }
  const double y = widen(q.input[place(q, row, q.input_stride, col)]);
  const double dy = gradient(q, row, col);
  const double factor = q.scaled ? q.scale : 1.0;
  const double share = q.op == kSoftmaxBackward ? y : exp(y);
  if (q.op == kSoftmaxBackward) {
    const double size = fabs(dy) + r.size;
    const double magnitude = fabs(y) > 0.0 && size > 0.0 ? not_zero(fabs(y) * size) : fabs(y) * size;
    return {factor * (y * (dy - r.sum)), fabs(factor) * magnitude, r.exact, 0.0};
  }
  const double shared_out = isfinite(y) && r.size > 0.0 ? not_zero(share * r.size) : share * r.size;
  const double magnitude = fabs(factor) * (fabs(dy) + shared_out);
  return {factor * (dy - share * r.sum), magnitude, r.exact, fabs(factor) * kUnderflow * r.size};
}

// How far a finite number is from the truth, beyond what underflow explains.
__device__ double error_of(double got, const Truth& truth) {
  return fmax(fabs(got - truth.value) - truth.underflow, 0.0);
}

// 16-bit numbers as integers that are ordered, and as dense, as they are.
template <typename T>
__device__ int order_of(const T& number) {
  const short bits = reinterpret_cast<const short&>(number);
  return bits < 0 ? -(bits & 0x7fff) : bits;
}

template <typename T>
__device__ bool are_neighbours(const T& output, double truth, int most) {
  const int steps = order_of(output) - order_of(rounded(truth, output));
  return -most <= steps && steps <= most;
}
__device__ bool are_neighbours(float, double, int) { return false; }
__device__ bool are_neighbours(double, double, int) { return false; }

// Whether a number within `allowed` of the truth rounds to the output.
template <typename T>
__device__ bool is_rounded_within(const T& output, double truth, double allowed) {
  const int order = order_of(output);
  return order_of(rounded(truth - allowed, output)) <= order && order <= order_of(rounded(truth + allowed, output));
}
__device__ bool is_rounded_within(float, double, double) { return false; }
__device__ bool is_rounded_within(double, double, double) { return false; }

// From a number of the output's type to the next, at a magnitude.
__device__ double spacing_at(double magnitude) {
  const double normal = fmax(magnitude, Format<Output>::kSmallestNormal);
  return ldexp(1.0, ilogb(normal) - Format<Output>::kMantissa);
}

// fp32 arithmetic may flush results that are no normal numbers to zero.
__device__ bool may_be_flushed(const Truth& truth) {
  return !kWide && truth.magnitude > 0.0 && fabs(truth.value) < kFlushedBelow;
}

// The rules of reference/SEMANTICS.md, as reference/check.py has them.
__device__ bool is_right(const Question& q, const Output& output, double got, const Truth& truth) {
  if (isnan(truth.value)) return isnan(got);
  // Nothing is near an infinity but itself.
  if (isinf(truth.value) || isnan(got)) return got == truth.value;
  if (got == truth.value || (got == 0.0 && may_be_flushed(truth))) return true;
  if (!(truth.magnitude > 0.0)) return false;
  const double relative = truth.exact ? q.exact_tolerance : q.tolerance;
  const double allowed = relative * truth.magnitude + kSubnormalError;
  if (error_of(got, truth) <= allowed) return true;
  if (truth.exact) return is_rounded_within(output, truth.value, allowed);
  return are_neighbours(output, truth.value, q.steps);
}

// What one thread found in all its elements.
struct Found {
  unsigned long long wrong = 0;
  unsigned long long first = ~0ull;
  unsigned long long infinite = 0;
  double error = 0.0;
  double most_ulps = 0.0;
  double counted = 0.0;
  double ulps = 0.0;
  unsigned long long certain = 0;

  __device__ void add(const Question& q, const Output& output, const Truth& truth, unsigned long long index) {
    const double got = widen(output);
    const bool are_finite = isfinite(got) && isfinite(truth.value);
    if (!is_right(q, output, got, truth)) {
      ++wrong;
      first = min(first, index);
      infinite += !are_finite;
      certain += are_finite && (truth.exact || truth.magnitude == 0.0);
    }
    if (!are_finite) return;
    const bool flushed = got == 0.0 && may_be_flushed(truth);
    const double off = flushed ? 0.0 : error_of(got, truth);
    const double in_ulps = off / spacing_at(truth.magnitude);
    counted += 1.0;
    ulps += in_ulps;
    most_ulps = fmax(most_ulps, in_ulps);
    if (truth.magnitude >= Format<Output>::kSmallestNormal) error = fmax(error, off / truth.magnitude);
  }
};

__device__ void keep_largest(unsigned long long* bits, double value) {
  atomicMax(bits, static_cast<unsigned long long>(__double_as_longlong(value)));
}

// Called by all threads of a block, once: atomics for every row would take longer than the check.
__device__ void report_block(const Found& found, Report* report) {
  if (found.wrong > 0) {
    atomicAdd(&report->wrong, found.wrong);
    atomicMin(&report->first, found.first);
    atomicAdd(&report->infinite, found.infinite);
    atomicAdd(&report->certain, found.certain);
  }
  const auto larger = [](double a, double b) { return fmax(a, b); };
  const auto plus = [](double a, double b) { return a + b; };
  const double error = reduce_block(found.error, 0.0, larger);
  const double most_ulps = reduce_block(found.most_ulps, 0.0, larger);
  const double counted = reduce_block(found.counted, 0.0, plus);
  const double ulps = reduce_block(found.ulps, 0.0, plus);
  if (threadIdx.x > 0) return;
  keep_largest(&report->error_bits, error);
  keep_largest(&report->ulp_bits, most_ulps);
  atomicAdd(&report->counted, counted);
  atomicAdd(&report->ulps, ulps);
}

// Compares an output with the truth: a block works on one row, then on another.
extern "C" __global__ void __launch_bounds__(1024) check_rows(Question q, Report* report) {
  Found found;
  for (long long row = blockIdx.x; row < q.rows; row += gridDim.x) {
    const Row r = row_of(q, row);
    for (int i = threadIdx.x; i < q.cols; i += blockDim.x) {
      found.add(q, q.output[place(q, row, q.output_stride, i)], truth_of(q, row, r, i), row * q.cols + i);
    }
  }
  report_block(found, report);
}

// The truth itself, (rows, cols): for the check of this check.
extern "C" __global__ void __launch_bounds__(1024) write_truths(Question q, double* truths) {
  for (long long row = blockIdx.x; row < q.rows; row += gridDim.x) {
    const Row r = row_of(q, row);
    for (int i = threadIdx.x; i < q.cols; i += blockDim.x) truths[row * q.cols + i] = truth_of(q, row, r, i).value;
  }
}
