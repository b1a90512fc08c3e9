// The truth of attention's results in float64, as in ops/attention.py. A warp takes a key, and a block a
// row: 4096 x 4096 of 128 elements are some 9e9 multiply-adds.

constexpr int kChunk = 256;  // keys whose exponentials are kept at once
constexpr int kMostThreads = 1024;
constexpr double kScoresOf1 = 16.0;

// A problem and one of its results, at most 128 bytes, as in truth.cu.
struct Question {
  const Element* query;
  const Element* key;
  const Element* value;
  const int* lengths;  // of sequences, or null
  const void* output;  // the result that is asked about
  long long rows;
  long long key_stride;   // elements from a key to the next of its head, and
  long long head_stride;  // from a key head's first key to the next one's
  double scale;
  double roundings;       // how often the tolerance counts
  float tolerance;        // relative to an element's magnitude
  float exact_tolerance;  // of no row: no sum is exact
  int cols;
  int group;  // rows that share a key head
  int key_heads;
  int result_cols;
  int asked;  // which result: an Asked
  int steps;  // 16-bit numbers that may lie between an output and the rounded truth
};

__device__ long long place_in_result(const Question& q, long long row, int col) {
  return row * q.result_cols + col;
}

// What a row attends to: `limit` keys from its head's first one on.
struct Cache {
  const Element* key;
  const Element* value;
  int limit;
};

__device__ Cache cache_of(const Question& q, long long row) {
  const long long head = row / q.group;
  const long long sequence = head / q.key_heads;
  const long long keys = static_cast<long long>(q.key_heads) * q.cols;
  const long long first = sequence * keys * kHeadDim + head % q.key_heads * q.head_stride;
  const int limit = q.lengths == nullptr ? q.cols : min(max(q.lengths[sequence], 0), q.cols);
  return {q.key + first, q.value + first, limit};
}

// What each lane of a warp has of a vector of the head dimension.
struct Query {
  double of[kHeadDim / 32];
};

__device__ double sum_warp(double x) {
  for (int lanes = 16; lanes > 0; lanes /= 2) x += __shfl_xor_sync(0xffffffffu, x, lanes);
  return x;
}

// A key's scaled product with a row's query, and the sum of the magnitudes of its terms.
struct Score {
  double value;
  double size;
};

__device__ Score score_of(const Question& q, const Query& query, const Element* key) {
  Score score = {};
  for (int i = 0; i < kHeadDim / 32; ++i) {
    const double x = widen(key[32 * i + threadIdx.x % 32]);
    score.value = fma(query.of[i], x, score.value);
    score.size = fma(fabs(query.of[i]), fabs(x), score.size);
  }
  return {q.scale * sum_warp(score.value), fabs(q.scale) * sum_warp(score.size)};
}

// The sums that threads have of the values, and of their magnitudes, weighted by exponentials. A thread
// has an element of the head dimension, of some of the keys.
__shared__ double sums[kMostThreads];
__shared__ double magnitudes[kMostThreads];

// The values that the elements of a row share.
struct Row {
  bool is_empty;
  double maximum;
  double sum;
  double most;  // the greatest sum of magnitudes of a score that counts
};

__device__ Row row_of(const Question& q, long long row) {
  __shared__ Score scores[kChunk];
  __shared__ double terms[kChunk];
  const Cache cache = cache_of(q, row);
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, warps = blockDim.x / 32;
  Query query;
  for (int i = 0; i < kHeadDim / 32; ++i) query.of[i] = widen(q.query[row * kHeadDim + 32 * i + lane]);
  double maximum = -INFINITY_64;
#pragma unroll 4
  for (int k = warp; k < cache.limit; k += warps) {
    maximum = fmax(maximum, score_of(q, query, cache.key + k * q.key_stride).value);
  }
  const auto larger = [](double a, double b) { return fmax(a, b); };
  Row r = {cache.limit == 0, reduce_block(maximum, -INFINITY_64, larger), 0.0, 0.0};
  const double reference = r.maximum == -INFINITY_64 ? 0.0 : r.maximum;
  double sum = 0.0, magnitude = 0.0;
  for (int first = 0; first < cache.limit; first += kChunk) {
    const int keys = min(kChunk, cache.limit - first);
#pragma unroll 2
    for (int i = warp; i < keys; i += warps) {
      const Score score = score_of(q, query, cache.key + (first + i) * q.key_stride);
      if (lane == 0) scores[i] = score;
    }
    __syncthreads();
    for (int i = threadIdx.x; i < keys; i += blockDim.x) {
      terms[i] = exp(scores[i].value - reference);
      r.sum += terms[i];
      if (asks(q, kLse) ? isfinite(scores[i].value) : terms[i] > 0.0) r.most = fmax(r.most, scores[i].size);
    }
    __syncthreads();
#pragma unroll 8
    for (int i = threadIdx.x / kHeadDim; i < keys; i += blockDim.x / kHeadDim) {
      const double x = widen(cache.value[(first + i) * q.key_stride + threadIdx.x % kHeadDim]);
      sum = fma(terms[i], x, sum);
      magnitude = fma(terms[i], fabs(x), magnitude);
    }
  }
  sums[threadIdx.x] = sum;
  magnitudes[threadIdx.x] = magnitude;
  r.sum = reduce_block(r.sum, 0.0, [](double a, double b) { return a + b; });
  r.most = reduce_block(r.most, 0.0, larger);
  return r;
}

// The truth of an element of a row that the block has just worked on.
__device__ Truth truth_of(const Question& q, long long row, const Row& r, int col) {
  if (asks(q, kLse)) {
    return plain(r.maximum + log(r.sum), 1.0 + fabs(log(fmax(r.sum, 1.0))) + r.most, false);
  }
  if (r.is_empty) return plain(0.0, 0.0, false);
  double sum = 0.0, magnitude = 0.0;
  for (int i = col; i < blockDim.x; i += kHeadDim) {
    sum += sums[i];
    magnitude += magnitudes[i];
  }
  return plain(sum / r.sum, q.roundings * (magnitude / r.sum) * (1.0 + r.most / kScoresOf1), false);
}
