// Compares a result with the truth by the rules of reference/SEMANTICS.md, as reference/check.py does.
// Whole numbers have a magnitude of 0: they are right only if they are equal.

constexpr double kFlushedBelow = 0x1p-126 * (1 + 1e-6);

struct Report {
  unsigned long long wrong;
  unsigned long long first;       // row * result_cols + col of the first wrong element
  unsigned long long error_bits;  // largest error over magnitude, a non-negative double's bits
  unsigned long long infinite;    // wrong elements that are NaN or infinite, or should be
  unsigned long long ulp_bits;    // largest error in ulps of the result's type, a double's bits
  double counted;                 // elements that are finite and should be
  double ulps;                    // sum of their errors in ulps
  unsigned long long certain;     // wrong elements that no rounding explains
};

// The truth with that of its values which is nearest to a number: exponentials that are no normal
// numbers are rounded as such, or flushed to zero.
__device__ Truth nearest(double got, Truth truth) {
  const double due = fabs(got - truth.flushed) < fabs(got - truth.value) ? truth.flushed : truth.value;
  const double moved = due + fmin(fmax(got - due, -truth.underflow), truth.underflow);
  truth.value = isfinite(moved) ? moved : due;
  return truth;
}

// 16-bit numbers as integers of the same order: neighbours differ by 1.
template <typename T>
__device__ int order_of(const T& number) {
  const short bits = reinterpret_cast<const short&>(number);
  return bits < 0 ? -(bits & 0x7fff) : bits;
}

template <typename T>
__device__ bool are_neighbours(const T& output, double truth, int most) {
  if constexpr (sizeof(T) > 2) return false;
  const int steps = order_of(output) - order_of(rounded(truth, output));
  return -most <= steps && steps <= most;
}

// Whether a number within `allowed` of the truth rounds to the output.
template <typename T>
__device__ bool is_rounded_within(const T& output, double truth, double allowed) {
  const double got = widen(output);
  return widen(rounded(truth - allowed, output)) <= got && got <= widen(rounded(truth + allowed, output));
}

// The spacing of a type's numbers at a magnitude.
template <typename T>
__device__ double spacing_at(double magnitude) {
  const double normal = fmax(magnitude, Format<T>::kSmallestNormal);
  return ldexp(1.0, ilogb(normal) - Format<T>::kMantissa);
}

// fp32 arithmetic may flush results that are no normal numbers to zero.
__device__ bool may_be_flushed(const Truth& truth) {
  return !kWide && truth.magnitude > 0.0 && fabs(truth.value) < kFlushedBelow;
}

template <typename T>
__device__ bool is_right(const Question& q, const T& output, double got, const Truth& truth) {
  if (isnan(truth.value)) return isnan(got);
  // Nothing is near an infinity but itself.
  if (isinf(truth.value) || isnan(got)) return got == truth.value;
  if (got == truth.value || (got == 0.0 && may_be_flushed(truth))) return true;
  if (!(truth.magnitude > 0.0)) return false;
  const double relative = truth.exact ? q.exact_tolerance : q.tolerance;
  const double allowed = relative * truth.magnitude + kSubnormalError;
  // A number stands for an infinity, or the reverse, only where rounding decides between the two.
  const double due = widen(rounded(truth.value, output));
  if (isinf(got) || isinf(due)) return got == due || is_rounded_within(output, truth.value, allowed);
  if (fabs(got - truth.value) <= allowed) return true;
  if (sizeof(T) == 2 && truth.exact) return is_rounded_within(output, truth.value, allowed);
  return are_neighbours(output, truth.value, q.steps);
}

// The findings of one thread in all its elements.
struct Found {
  unsigned long long wrong = 0;
  unsigned long long first = ~0ull;
  unsigned long long infinite = 0;
  double error = 0.0;
  double most_ulps = 0.0;
  double counted = 0.0;
  double ulps = 0.0;
  unsigned long long certain = 0;

  template <typename T>
  __device__ void add(const Question& q, const T& output, const Truth& exactly, unsigned long long index) {
    const double got = widen(output);
    const Truth truth = nearest(got, exactly);
    const bool are_finite = isfinite(got) && isfinite(truth.value);
    const bool lacks_plus_zero = truth.plus_zero && got == 0.0 && signbit(got);
    if (!is_right(q, output, got, truth) || lacks_plus_zero) {
      ++wrong;
      first = min(first, index);
      infinite += !are_finite;
      certain += are_finite && (truth.exact || truth.magnitude == 0.0 || lacks_plus_zero);
    }
    if (!are_finite) return;
    const bool flushed = got == 0.0 && may_be_flushed(truth);
    const double off = flushed ? 0.0 : fabs(got - truth.value);
    const double in_ulps = off / spacing_at<T>(truth.magnitude);
    counted += 1.0;
    ulps += in_ulps;
    most_ulps = fmax(most_ulps, in_ulps);
    if (truth.magnitude >= Format<T>::kSmallestNormal) error = fmax(error, off / truth.magnitude);
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

// Compares a result with the truth: a block works on one row, then on another.
template <typename T>
__device__ void check_rows(const Question& q, Report* report) {
  Found found;
  for (long long row = blockIdx.x; row < q.rows; row += gridDim.x) {
    const Row r = row_of(q, row);
    for (int i = threadIdx.x; i < q.result_cols; i += blockDim.x) {
      const T& got = static_cast<const T*>(q.output)[place_in_result(q, row, i)];
      found.add(q, got, truth_of(q, row, r, i), row * q.result_cols + i);
    }
  }
  report_block(found, report);
}

#define CHECK(name, T)                                                                        \
  extern "C" __global__ void __launch_bounds__(1024) name(Question q, Report* report) {      \
    check_rows<T>(q, report);                                                                \
  }
