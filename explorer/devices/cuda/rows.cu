// The limit of any problem by row: a group of threads moves the words of one row, as a softmax does.
// It reads the visible part of a row, and writes all of it, or nothing if the macro READS is true. The
// macros COLS, IN_WORDS and OUT_WORDS are these numbers: a launch's arguments, in `m`, or constants.
// MASK_ROWS and MASK_ROW(row), the row of the mask for a row, are macros, too. kGroup threads, two to
// the power kShift, share a row; if kGroup is 0, both are arguments.

enum class Masked { kNone, kCausal, kLengths, kAdditive };

// The arguments of a launch: the words of each row, and how a group of threads shares them.
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
  int row_shift;   // log2 of the threads a row; if these are more than a block's, one row a block
  unsigned block_rows;  // that a block moves
  int last_first;  // with a causal mask only: whether the first block moves the last rows
  int waits;       // how often a row's threads wait for all their loads before they store
};

// The words of a row with at least one element that no mask hides.
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
  const bool is_turned = kMasked == Masked::kCausal && m.last_first;
  const long long block = is_turned ? gridDim.x - 1 - blockIdx.x : blockIdx.x;
  const long long own = block * m.block_rows + (threadIdx.x >> shift);
  // Threads without a row load the last one and store nothing, so that a row's address depends on no
  // comparison.
  const long long row = min(own, m.rows - 1);
  const int seen = words_seen<Word, kMasked>(m, row);
  const int written = own < m.rows ? OUT_WORDS : 0;
  const int lane = threadIdx.x & ((1u << shift) - 1);
  // These begin at the thread's first word: if the threads of a row are a constant, the compiler knows
  // the distances of the other words.
  const Word* in = static_cast<const Word*>(m.in) + row * IN_WORDS + lane;
  const Word* second = static_cast<const Word*>(m.second) + MASK_ROW(row) * IN_WORDS + lane;
  Word* out = static_cast<Word*>(m.out) + row * OUT_WORDS + lane;
  const int words = max(IN_WORDS, OUT_WORDS);
  for (int first = 0; first < words; first += group * kUnroll) {
    Word held[kUnroll], more[kUnroll];
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) {
      const int i = first + u * group;
      held[u] = lane + i < seen ? load_word<kLoad>(in + i) : Word{};
    }
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) {
      const int i = first + u * group;
      more[u] = kSecond && lane + i < IN_WORDS ? load_word<kLoad>(second + i) : Word{};
    }
    constexpr bool kMixes = kSecond && kUnroll >= kMixedFirst;
    if (kMixes) mix_into(held, more);
    const auto bits = [&] {
      return folded(kMixes ? all_mixed(held) : mixed(all_mixed(held), all_mixed(more)));
    };
    if (READS) {  // stores nothing: `m.out_words` is 0, which the compiler does not know
      if (bits() & m.out_words) store_word<kStore>(out, held[0]);
      continue;
    }
    const int end = written - await_loads(m.waits, group, bits);
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) {
      const int i = first + u * group;
      if (lane + i < end) store_word<kStore>(out + i, kMixes ? held[u] : mixed(held[u], more[u]));
    }
  }
}

#define ROWS(name, Word, threads, unroll, group, shift, load, store)                                  \
  extern "C" __global__ void __launch_bounds__(threads) name(const Rows m) {                         \
    move_rows<Word, unroll, group, shift, Load::load, Store::store, Masked::MASKED, SECOND>(m);      \
  }
