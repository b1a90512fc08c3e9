// The truth of an op's results in float64, as in reference/truth.py. The macro OP names the op, because
// code for all of them takes 1.5 times as long to compile; kAsked has a bit for each result.

constexpr double kNearGap = 32.0;
constexpr int kExactTerms = 1 << 24;
constexpr double kFlushesBelow = kWide ? 0.0 : 0x1p-126 * (1 + 1e-3);  // exponentials that may be 0
constexpr double kLeastGap = 0x1p-90;  // smaller mean gaps may lose digits
constexpr double kGreatest = kWide ? 1.7976931348623157e308 : 3.4028234663852886e38;

enum Op {
  kSoftmax,
  kLogSoftmax,
  kSoftmaxBackward,
  kLogSoftmaxBackward,
  kLogsumexp,
  kLogProb,
  kCrossEntropy,
  kCrossEntropyBackward,
  kCrossEntropyWithGradient,
  kMultiplyRows
};
constexpr Op kOp = OP;
constexpr bool kIsCapped = SOFTCAP != 0.0;
// Ops whose rows have a target, which is added apart from the others.
constexpr bool kSetsApart = kOp == kCrossEntropy || kOp == kCrossEntropyWithGradient;
enum Mask { kNone, kCausal, kLengths, kAdditive };

// A problem and one of its results. Of a structure of more than 128 bytes NVRTC takes the address, which
// the emulator does not know: therefore some operands, of which a problem has one at most, share a field.
struct Question {
  const Element* input;
  const void* second;     // a gradient, an additive mask, or maxima of rows
  const void* columns;    // the rows' lengths, or ids
  const void* output;     // the result that is asked about
  const Number* log_sum;
  const Number* loss_grad;
  long long rows;
  long long inner;
  long long input_stride;
  long long output_stride;  // of the result
  long long ids_stride_or_mask_rows;  // by whether the op reads ids
  double scale;
  float tolerance;        // relative to an element's magnitude
  float exact_tolerance;  // the same in rows whose sum is exact
  int cols;
  int result_cols;  // elements of the result in a row
  int asked;        // which result: an Asked
  int masked;
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

__device__ long long place_in_result(const Question& q, long long row, int col) {
  return place(q, row, q.result_cols, q.output_stride, col);
}

// The first column that a causal mask or a row's length hides.
__device__ int limit_of(const Question& q, long long row) {
  if (q.masked == kCausal) {
    const long long mask_rows = q.ids_stride_or_mask_rows;
    const long long seen = row % mask_rows + 1 + q.cols - mask_rows;
    return static_cast<int>(seen < 0 ? 0 : seen < q.cols ? seen : q.cols);
  }
  return q.masked == kLengths ? min(max(static_cast<const int*>(q.columns)[row], 0), q.cols) : q.cols;
}

// An element that enters the op, or is capped: scaled, masked, rounded once to the precision of the arithmetic.
__device__ double scaled(const Question& q, long long row, int limit, int col) {
  if (col >= limit) return -INFINITY_64;
  double x = widen(q.input[place_in_input(q, row, col)]);
  const double factor = x != -INFINITY_64 ? q.scale : 1.0;
  if (q.masked == kAdditive) {
    const double added = widen(static_cast<const Element*>(q.second)[row % q.ids_stride_or_mask_rows * q.cols + col]);
    if (kWide) return fma(x, factor, added);
    return fmaf(static_cast<float>(x), static_cast<float>(factor), static_cast<float>(added));
  }
  x = __dmul_rn(x, factor);  // which keeps the compiler from contracting it with an addition
  return kWide ? x : static_cast<double>(static_cast<float>(x));
}

// An element that enters the op.
__device__ double counted(const Question& q, long long row, int limit, int col) {
  const double x = scaled(q, row, limit, col);
  return kIsCapped ? SOFTCAP * tanh(x / SOFTCAP) : x;
}

// The derivative of a capped element by what it was before, and how much its error grows.
struct Slope {
  double value, growth;
};

__device__ Slope slope_of(const Question& q, long long row, int limit, int col) {
  if (!kIsCapped) return {1.0, 1.0};
  const double u = scaled(q, row, limit, col) / SOFTCAP;
  const double small = exp(-2.0 * fabs(u));
  const double value = 4.0 * small / ((1.0 + small) * (1.0 + small));
  return {value, 1.0 + (value > 0.0 ? fabs(u) : 0.0) / 8.0};
}

// The error of a difference of capped numbers, in those that are allowed; 0 of others.
__device__ double rounding_of(double x, double y) {
  return kIsCapped ? ((isnan(x) ? 0.0 : fabs(x)) + (isnan(y) ? 0.0 : fabs(y))) / 16.0 : 0.0;
}

__device__ double gradient(const Question& q, long long row, int col) {
  return widen(static_cast<const Element*>(q.second)[place_in_input(q, row, col)]);
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

template <typename Term>
__device__ double sum_row(const Question& q, Term term) {
  double sum = 0.0;
  for (int i = threadIdx.x; i < q.cols; i += blockDim.x) sum += term(i);
  return reduce_block(sum, 0.0, [](double a, double b) { return a + b; });
}

// The values that the elements of a row share.
struct Row {
  int limit;
  double maximum;  // forward
  double sum;
  double size;  // backward: sum of absolute terms
  bool exact;   // all terms of the sum are 0 or 1
  double of_asked;  // what the result that is asked about needs beside these
  double rounding;  // of a row of capped numbers, the error of a difference from the maximum
};

// Whether all elements of a row satisfy a condition.
template <typename Condition>
__device__ bool holds_for_row(const Question& q, Condition condition) {
  return q.cols <= kExactTerms && sum_row(q, [&](int i) { return condition(i) ? 0.0 : 1.0; }) == 0.0;
}

__device__ Id id_of(const Question& q, long long row, int number) {
  return static_cast<const Id*>(q.columns)[row * q.ids_stride_or_mask_rows + number];
}

__device__ bool is_column(const Question& q, Id id) { return id >= 0 && id < q.cols; }

// The element of a row's id; NaN for an id that is no column.
__device__ double chosen(const Question& q, long long row, int limit, int number) {
  const Id id = id_of(q, row, number);
  return is_column(q, id) ? counted(q, row, limit, static_cast<int>(id)) : nan("");
}

// The first column of a row's greatest number; -1 if it has none.
__device__ double first_of(const Question& q, long long row, int limit, double greatest) {
  double first = INFINITY_64;
  for (int i = threadIdx.x; i < q.cols; i += blockDim.x) {
    if (counted(q, row, limit, i) == greatest) first = fmin(first, i);
  }
  first = reduce_block(first, INFINITY_64, [](double a, double b) { return fmin(a, b); });
  return first == INFINITY_64 ? -1.0 : first;
}

// What the result that is asked about needs of a row beside its maximum and the sum of its exponentials.
__device__ double of_asked(const Question& q, long long row, const Row& r, double greatest) {
  if (asks(q, kEntropy)) {
    return sum_row(q, [&](int i) {
      const double gap = counted(q, row, r.limit, i) - r.maximum;
      return exp(gap) == 0.0 ? 0.0 : exp(gap) * gap;
    });
  }
  if (asks(q, kRank)) {
    const double first = chosen(q, row, r.limit, 0);
    if (isnan(first)) return -1.0;
    return sum_row(q, [&](int i) { return counted(q, row, r.limit, i) > first ? 1.0 : 0.0; });
  }
  return asks(q, kArgmax) ? first_of(q, row, r.limit, greatest) : 0.0;
}

__device__ Row row_of(const Question& q, long long row) {
  Row r = {limit_of(q, row), 0.0, 0.0, 0.0, false, 0.0, 0.0};
  if (kOp == kCrossEntropyBackward || kOp == kMultiplyRows) return r;
  if (kOp == kSoftmax || kOp == kLogSoftmax || kOp == kLogsumexp || kOp == kLogProb || kSetsApart) {
    double maximum = -INFINITY_64;
    for (int i = threadIdx.x; i < q.cols; i += blockDim.x) maximum = fmax(maximum, counted(q, row, r.limit, i));
    const double greatest = reduce_block(maximum, -INFINITY_64, [](double a, double b) { return fmax(a, b); });
    // A finite maximum: the exponential of +inf is then infinite, and that of -inf is 0, in all rows.
    const bool is_clamped = kOp == kLogsumexp || kOp == kLogProb || kSetsApart;
    r.maximum = is_clamped ? fmax(fmin(greatest, kGreatest), -kGreatest) : greatest;
    if (kOp == kLogProb) r.of_asked = of_asked(q, row, r, greatest);
    if (kIsCapped) {
      double size = 0.0;
      for (int i = threadIdx.x; i < q.cols; i += blockDim.x) size = fmax(size, fabs(counted(q, row, r.limit, i)));
      size = reduce_block(size, 0.0, [](double a, double b) { return fmax(a, b); });
      r.rounding = rounding_of(r.maximum, size);
    }
    r.sum = sum_row(q, [&](int i) { return exp_of_difference(counted(q, row, r.limit, i), r.maximum); });
    if (kSetsApart && asks(q, kMeanGap)) {
      r.of_asked = sum_row(q, [&](int i) { return (r.maximum - counted(q, row, r.limit, i)) / q.cols; });
    } else if (kSetsApart) {
      const Id target = id_of(q, row, 0);
      r.of_asked = sum_row(q, [&](int i) {
        return i == target ? 0.0 : exp_of_difference(counted(q, row, r.limit, i), r.maximum);
      });
    }
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

// A truth whose error is relative to its size, and at least to 1.
__device__ Truth of_size(double value, double size, const Row& r) {
  return plain(value, fmax(1.0, size), r.exact);
}

// The truth of a result of log-sum-exp, or of log-probabilities.
__device__ Truth truth_of_row(const Question& q, long long row, const Row& r, int col) {
  const double log_sum = log(r.sum);
  if (asks(q, kMaximum)) return plain(r.maximum, 0.0, false);
  if (asks(q, kLogSum)) return of_size(log_sum, fabs(log_sum), r);
  if (kOp == kLogProb && asks(q, kOutput)) {
    const double y = (chosen(q, row, r.limit, col) - r.maximum) - log_sum;
    return plain(y, 1.0 + fabs(y), r.exact);
  }
  if (kOp == kLogProb && asks(q, kEntropy)) {
    const double entropy = log_sum - r.of_asked / r.sum;
    return of_size(entropy, fabs(entropy), r);
  }
  if (kOp == kLogProb && (asks(q, kRank) || asks(q, kArgmax))) return plain(r.of_asked, 0.0, false);
  return of_size(r.maximum + log_sum, fmax(fabs(r.maximum), fabs(log_sum)), r);
}

// How much an exponential's error grows with its distance from the maximum.
__device__ double growth_of(double gap) {
  return gap >= kNearGap && isfinite(gap) ? ldexp(2.0, ilogb(gap / kNearGap)) : 1.0;
}

// The same of the sum of all but the target, whose terms are as small as their mean.
__device__ double growth_of_others(const Question& q, const Row& r) {
  return growth_of(log(static_cast<double>(q.cols)) - log(r.of_asked)) + r.rounding;
}

// The truth of a result of a row that has a target: its loss, or what is kept of it.
__device__ Truth truth_of_target(const Question& q, long long row, const Row& r) {
  if (asks(q, kMaximum)) return plain(r.maximum, kIsCapped ? fabs(r.maximum) : 0.0, false);
  if (asks(q, kMeanGap)) {
    const double size = fmax(fabs(r.of_asked) + r.rounding, kLeastGap);
    return plain(r.of_asked, r.of_asked == 0.0 && !kIsCapped ? 0.0 : size, false);
  }
  const double target = chosen(q, row, r.limit, 0);
  const double log_sum = target == r.maximum ? log1p(r.of_asked) : log(r.sum);
  if (asks(q, kLse)) return of_size(r.maximum + log_sum, fmax(fabs(r.maximum), fabs(log_sum)), r);
  if (asks(q, kLogSum)) {
    const double size = fabs(log_sum) * growth_of_others(q, r);
    return plain(log_sum, fmax(target == r.maximum ? 0.0 : 1.0, size), r.exact);
  }
  const bool is_ignored = id_of(q, row, 0) == IGNORED;
  const double loss = is_ignored ? 0.0 : (r.maximum - target) + log_sum;
  const double taken = is_ignored || target == r.maximum ? 0.0 : rounding_of(r.maximum, target);
  return plain(loss, fabs(loss) * growth_of_others(q, r) + taken, r.exact, is_ignored);
}

// The truth of an element of the gradient of a loss.
__device__ Truth truth_of_loss_gradient(const Question& q, long long row, const Row& r, int col) {
  const Id target = id_of(q, row, 0);
  if (!is_column(q, target) || target == IGNORED) return plain(0.0, 0.0, r.exact, true);
  const double factor = q.scale * static_cast<double>(q.loss_grad[row]);
  const bool is_known = kOp == kCrossEntropyBackward;
  const double maximum = is_known ? static_cast<double>(static_cast<const Number*>(q.second)[row]) : r.maximum;
  const double x = counted(q, row, r.limit, col);
  const double log_sum = is_known ? static_cast<double>(q.log_sum[row]) : log(r.sum);
  double share, less, lost = 1.0;  // an element's share of the sum, and the same less 1 for the target
  double least = exp_of_difference(x, maximum);  // of the exponentials that it may be computed by
  if (is_known) {
    share = exp((x - maximum) - log_sum);
    less = col == target ? expm1((x - maximum) - log_sum) : share;
    lost = fmax(1.0, exp(-log_sum));
    least = fmin(least, share);
  } else {
    share = exp_of_difference(x, maximum) / r.sum;
    less = col == target ? -(r.of_asked + (r.sum - r.sum)) / r.sum : share;
  }
  const double rounding = rounding_of(maximum, x);
  const Slope slope = slope_of(q, row, r.limit, col);
  double growth = (isfinite(x) ? growth_of(maximum - x) : 1.0) + rounding;
  if (col == target) growth = is_known ? 1.0 : growth_of_others(q, r);
  const double each = SMOOTHING / q.cols, given_back = col == target ? SMOOTHING : 0.0;
  const bool gone = least < kFlushesBelow && col != target;
  double y = less + given_back - each;
  double size = fabs(factor) * (fabs(less) * growth + given_back + each);
  if (is_known && col == target) size += fabs(factor) * rounding * share;
  if (Z_LOSS != 0.0) {
    const double more = 2.0 * Z_LOSS * (maximum + log_sum) * share;
    y += more;
    size += fabs(factor * more) * growth;
  }
  const bool is_some = isfinite(x) && factor != 0.0;
  const double times = fabs(2.0 * Z_LOSS * (maximum + log_sum));
  const double underflow = kSubnormalError * (fabs(factor) * lost * (1.0 + times) + times);
  const double flushed = (gone ? given_back - each : y) * slope.value;
  y *= slope.value;
  size *= slope.value * slope.growth;
  const bool is_positive = is_some && slope.value > 0.0;
  return {factor * y, is_positive ? not_zero(size) : size, r.exact, underflow, factor * flushed, false};
}

__device__ Truth truth_of(const Question& q, long long row, const Row& r, int col) {
  if (kOp == kMultiplyRows) {
    const double y = counted(q, row, r.limit, col) * static_cast<double>(q.loss_grad[row]);
    return {y, fabs(y), false, kSubnormalError, y, false};
  }
  if (kOp == kCrossEntropyBackward) return truth_of_loss_gradient(q, row, r, col);
  if (kSetsApart) {
    const bool is_gradient = kOp == kCrossEntropyWithGradient && asks(q, kOutput);
    return is_gradient ? truth_of_loss_gradient(q, row, r, col) : truth_of_target(q, row, r);
  }
  if (kOp == kSoftmax) {
    const double x = counted(q, row, r.limit, col);
    const double y = exp_of_difference(x, r.maximum) / r.sum;
    const double growth = growth_of(isfinite(x) ? r.maximum - x : 0.0);
    return plain(y, isfinite(x) ? not_zero(y * growth) : y * growth, r.exact, true);
  }
  if (kOp == kLogSoftmax) {
    const double y = (counted(q, row, r.limit, col) - r.maximum) - log(r.sum);
    return plain(y, 1.0 + fabs(y), r.exact);
  }
  if (kOp == kLogsumexp || kOp == kLogProb) return truth_of_row(q, row, r, col);
  const double y = widen(q.input[place_in_input(q, row, col)]);
  const double dy = gradient(q, row, col);
  const double factor = q.scale;
  const double share = kOp == kSoftmaxBackward ? y : exp(y);
  if (kOp == kSoftmaxBackward) {
    const double size = fabs(dy) + r.size;
    const double magnitude = fabs(y) > 0.0 && size > 0.0 ? not_zero(fabs(y) * size) : fabs(y) * size;
    return plain(factor * (y * (dy - r.sum)), fabs(factor) * magnitude, r.exact);
  }
  const double shared_out = isfinite(y) && r.size > 0.0 ? not_zero(share * r.size) : share * r.size;
  const double magnitude = fabs(factor) * (fabs(dy) + shared_out);
  const double due = factor * (dy - share * r.sum);
  const double flushed = share < kFlushesBelow ? factor * dy : due;
  return {due, magnitude, r.exact, fabs(factor) * kSubnormalError * r.size, flushed, false};
}
