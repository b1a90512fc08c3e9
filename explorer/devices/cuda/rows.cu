// The limit of any problem by row: a group of threads moves the words of one row, as a softmax does.
// It reads what the problem's mask shows of a row, and writes all of it.

enum class Masked { kNone, kCausal, kLengths, kAdditive };

// What a launch moves: words of each row, and how a group of threads shares them.
struct Rows {
  const WORD* in;
  const WORD* second;  // a gradient, or an additive mask, whose rows repeat
  const int* lengths;
  WORD* out;
  long long rows;
  long long mask_rows;  // of the matrix `second`, or after which a causal mask repeats
  int cols;
  int in_words;   // of a row
  int out_words;  // of a row
  int threads_per_row;
  int last_first;  // whether the first block moves the last rows
};

// The words of a row that hold an element which no mask hides.
template <Masked kMasked>
__device__ int words_seen(const Rows& m, long long row) {
  if (kMasked == Masked::kNone || kMasked == Masked::kAdditive) return m.in_words;
  long long seen = m.cols;
  if (kMasked == Masked::kLengths) seen = m.lengths[row];
  if (kMasked == Masked::kCausal) seen = row % m.mask_rows + 1 + m.cols - m.mask_rows;
  seen = min(max(seen, 0LL), static_cast<long long>(m.cols));
  return static_cast<int>((seen * ITEM_BYTES + sizeof(WORD) - 1) / sizeof(WORD));
}

template <int kUnroll, Load kLoad, Store kStore, Masked kMasked, bool kSecond>
__device__ void move_rows(const Rows& m) {
  const long long block_rows = blockDim.x / m.threads_per_row;
  const long long block = m.last_first ? gridDim.x - 1 - blockIdx.x : blockIdx.x;
  const long long row = block * block_rows + threadIdx.x / m.threads_per_row;
  if (row >= m.rows) return;
  const int seen = words_seen<kMasked>(m, row), lane = threadIdx.x % m.threads_per_row;
  const WORD* in = m.in + row * m.in_words;
  const WORD* second = kSecond ? m.second + row % m.mask_rows * m.in_words : nullptr;
  WORD* out = m.out + row * m.out_words;
  const long long words = max(m.in_words, m.out_words);
  for (long long base = lane; base < words; base += m.threads_per_row * kUnroll) {
    WORD held[kUnroll], more[kUnroll];
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) {
      const long long i = base + u * m.threads_per_row;
      held[u] = i < seen ? load_word<kLoad>(in + i) : WORD{};
      if (kSecond) more[u] = i < m.in_words ? load_word<kLoad>(second + i) : WORD{};
    }
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) {
      const long long i = base + u * m.threads_per_row;
      if (i < m.out_words) store_word<kStore>(out + i, kSecond ? mixed(held[u], more[u]) : held[u]);
    }
  }
}

#define ROWS(name, threads, unroll, load, store)                                    \
  extern "C" __global__ void __launch_bounds__(threads) name(const Rows m) {        \
    move_rows<unroll, Load::load, Store::store, Masked::MASKED, SECOND>(m);         \
  }
