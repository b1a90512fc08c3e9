// The limit of problems whose matrices have one size: a plain copy or, if two matrices are read, a
// stream that mixes them; and that of problems that write little: a plain reading. Every word that is
// read changes the output, or could, or the compiler would drop the load. A block may wait for all its loads before it stores anything, as the blocks of a softmax do.

// The words of a thread. Instead of a word beyond the end, it loads the last word of the matrix, and
// stores nothing, as a softmax does. If a load depends on a comparison, the compiler reads even the
// matrix's address after it: at 354 x 4 f32 a gradient's limit then took 2 % more time, of 1.6 us, on
// an H200. Offsets have 32 bits: with 64, the fastest copy of 100 x 50257 f32 took 5 % more time there
// and 8 % on an H100, because a thread of 12 words had 81 registers instead of 64, so that fewer
// blocks were resident.
struct Share {
  long long first;  // word of the matrix: the thread's first one, or the last of all
  int left;         // words after the thread's first one; less than 0 if it has none

  __device__ Share(long long words, int unroll) {
    const long long own = blockIdx.x * static_cast<long long>(blockDim.x) * unroll + threadIdx.x;
    first = min(own, words - 1);
    left = static_cast<int>(min(words - 1 - own, 0x7fffffffLL));
  }
};

template <typename Word, int kUnroll, Load kLoad>
__device__ void load_words(const Word* __restrict__ in, const Share& share, Word (&held)[kUnroll]) {
  const int most = max(share.left, 0);
#pragma unroll
  for (int u = 0; u < kUnroll; ++u) {
    held[u] = load_word<kLoad>(in + share.first + min(u * static_cast<int>(blockDim.x), most));
  }
}

// `waited` is 0, which the compiler does not know, so that all stores wait for it.
template <typename Word, int kUnroll, Store kStore>
__device__ void store_words(Word* __restrict__ out, const Share& share, int waited,
                            const Word (&held)[kUnroll]) {
#pragma unroll
  for (int u = 0; u < kUnroll; ++u) {
    const int i = u * static_cast<int>(blockDim.x);
    if (i <= share.left - waited) store_word<kStore>(out + share.first + i, held[u]);
  }
}

template <typename Word, int kUnroll, Load kLoad, Store kStore>
__device__ void copy_words(const Word* __restrict__ in, Word* __restrict__ out, long long words,
                           int waits) {
  const Share share(words, kUnroll);
  Word held[kUnroll];
  load_words<Word, kUnroll, kLoad>(in, share, held);
  const auto bits = [&] { return folded(all_mixed(held)); };
  store_words<Word, kUnroll, kStore>(out, share, await_loads(waits, blockDim.x, bits), held);
}

template <typename Word, int kUnroll, Load kLoad, Store kStore>
__device__ void mix_words(const Word* __restrict__ in, const Word* __restrict__ second,
                          Word* __restrict__ out, long long words, int waits) {
  const Share share(words, kUnroll);
  Word held[kUnroll], more[kUnroll];
  load_words<Word, kUnroll, kLoad>(in, share, held);
  load_words<Word, kUnroll, kLoad>(second, share, more);
  if (kUnroll >= kMixedFirst) mix_into(held, more);
  const auto bits = [&] {
    return folded(kUnroll >= kMixedFirst ? all_mixed(held) : mixed(all_mixed(held), all_mixed(more)));
  };
  const int waited = await_loads(waits, blockDim.x, bits);
  if (kUnroll < kMixedFirst) mix_into(held, more);
  store_words<Word, kUnroll, kStore>(out, share, waited, held);
}

// Stores nothing: `never` is 0, which the compiler does not know.
template <typename Word, int kUnroll, Load kLoad, Store kStore>
__device__ void read_words(const Word* __restrict__ in, Word* __restrict__ out, long long words,
                           int never) {
  Word held[kUnroll];
  load_words<Word, kUnroll, kLoad>(in, Share(words, kUnroll), held);
  const Word all = all_mixed(held);
  if (folded(all) & never) store_word<kStore>(out, all);
}

#define COPY(name, Word, threads, unroll, load, store)                                      \
  extern "C" __global__ void __launch_bounds__(threads)                                     \
      name(const Word* __restrict__ in, Word* __restrict__ out, long long words, int waits) { \
    copy_words<Word, unroll, Load::load, Store::store>(in, out, words, waits);              \
  }
#define READ(name, Word, threads, unroll, load, store)                                      \
  extern "C" __global__ void __launch_bounds__(threads)                                     \
      name(const Word* __restrict__ in, Word* __restrict__ out, long long words, int never) { \
    read_words<Word, unroll, Load::load, Store::store>(in, out, words, never);              \
  }
#define PAIR(name, Word, threads, unroll, load, store)                                           \
  extern "C" __global__ void __launch_bounds__(threads)                                          \
      name(const Word* __restrict__ in, const Word* __restrict__ second, Word* __restrict__ out, \
           long long words, int waits) {                                                         \
    mix_words<Word, unroll, Load::load, Store::store>(in, second, out, words, waits);            \
  }
