// The limit of any problem by row: a group of threads moves the words of one row, as a softmax does.
// It reads what the problem's mask shows of a row, and writes all of it. Whoever compiles it says by
// COLS, IN_WORDS and OUT_WORDS where these numbers are: in a launch's arguments, `m`, or in the text.
// MASK_ROWS and MASK_ROW(row), the row of the mask that is used for a row, are in the text. kGroup
// threads share a row, which is two to the power kShift; if it is 0, the arguments tell both.

enum class Masked { kNone, kCausal, kLengths, kAdditive };

// What a launch moves: words of each row, and how a group of threads shares them.
struct Rows {
  const void* in;
  const void* second;  // a gradient, or an additive mask
  const int* lengths;
  void* out;
  long long rows;
  int cols;
  int in_words;   // of a row
  int out_words;  // of a row
  int threads_per_row;
  int row_shift;   // a power of two of threads a row, or more than a block has: then one row a block
  int last_first;  // whether the first block moves the last rows
  int waits;       // whether nothing of a row is stored before all of it is loaded
};

// The words of a row that hold an element which no mask hides.
template <typename Word, Masked kMasked>
__device__ int words_seen(const Rows& m, long long row) {
  if (kMasked == Masked::kNone || kMasked == Masked::kAdditive) return IN_WORDS;
  long long seen = COLS;
  if (kMasked == Masked::kLengths) seen = m.lengths[row];
  if (kMasked == Masked::kCausal) seen = MASK_ROW(row) + 1 + COLS - MASK_ROWS;
  seen = min(max(seen, 0LL), static_cast<long long>(COLS));
  return static_cast<int>((seen * ITEM_BYTES + sizeof(Word) - 1) / sizeof(Word));
}

template <typename Word, int kUnroll, int kGroup, int kShift, Load kLoad, Store kStore, Masked kMasked,
          bool kSecond>
__device__ void move_rows(const Rows& m) {
  const int group = kGroup > 0 ? kGroup : m.threads_per_row;
  const int shift = kGroup > 0 ? kShift : m.row_shift;
  // By shifts: divisions would take 0.1 us, of 4 that a small problem's launch takes.
  const unsigned block_rows = max(blockDim.x >> shift, 1u);
  const long long block = m.last_first ? gridDim.x - 1 - blockIdx.x : blockIdx.x;
  const long long row = block * block_rows + (threadIdx.x >> shift);
  const bool is_row = row < m.rows;  // other threads wait with the block's, and move nothing
  const int seen = is_row ? words_seen<Word, kMasked>(m, row) : 0;
  const int read = is_row ? IN_WORDS : 0, written = is_row ? OUT_WORDS : 0;
  const int lane = threadIdx.x & ((1u << shift) - 1);
  const Word* in = static_cast<const Word*>(m.in) + row * IN_WORDS;
  const Word* second = static_cast<const Word*>(m.second) + MASK_ROW(row) * IN_WORDS;
  Word* out = static_cast<Word*>(m.out) + row * OUT_WORDS;
  const int words = max(IN_WORDS, OUT_WORDS);
  for (int first = 0; first < words; first += group * kUnroll) {
    Word held[kUnroll], more[kUnroll];
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) {
      const int i = first + lane + u * group;
      held[u] = i < seen ? load_word<kLoad>(in + i) : Word{};
      if (kSecond) more[u] = i < read ? load_word<kLoad>(second + i) : Word{};
    }
    if (kSecond) {
#pragma unroll
      for (int u = 0; u < kUnroll; ++u) held[u] = mixed(held[u], more[u]);
    }
    if (m.waits) await_words(group, held);
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) {
      const int i = first + lane + u * group;
      if (i < written) store_word<kStore>(out + i, held[u]);
    }
  }
}

#define ROWS(name, Word, threads, unroll, group, shift, load, store)                                  \
  extern "C" __global__ void __launch_bounds__(threads) name(const Rows m) {                         \
    move_rows<Word, unroll, group, shift, Load::load, Store::store, Masked::MASKED, SECOND>(m);      \
  }
