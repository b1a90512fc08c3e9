// The limit of problems whose matrices are all as large: a plain copy or, where two matrices are read,
// a stream that mixes them. Every word that is read changes what is written, or the compiler would
// drop it. A block may wait for all that it loads before it stores anything, as those of a softmax do.

// Threads that have no word load the last one, as those of a softmax do. Where a load depends on a
// comparison, the compiler reads even the matrix's address after it: at 354 x 4 f32 a gradient's limit
// then took 2 % more time, of 1.6 us, on an H200.
template <typename Word, int kUnroll, Load kLoad>
__device__ void load_words(const Word* __restrict__ in, long long words, Word (&held)[kUnroll]) {
  const long long first = blockIdx.x * static_cast<long long>(blockDim.x) * kUnroll + threadIdx.x;
#pragma unroll
  for (int u = 0; u < kUnroll; ++u) {
    const long long i = first + u * blockDim.x;
    held[u] = load_word<kLoad>(in + min(i, words - 1));
  }
}

template <typename Word, int kUnroll, Store kStore>
__device__ void store_words(Word* __restrict__ out, long long words, const Word (&held)[kUnroll]) {
  const long long first = blockIdx.x * static_cast<long long>(blockDim.x) * kUnroll + threadIdx.x;
#pragma unroll
  for (int u = 0; u < kUnroll; ++u) {
    const long long i = first + u * blockDim.x;
    if (i < words) store_word<kStore>(out + i, held[u]);
  }
}

template <typename Word, int kUnroll, Load kLoad, Store kStore>
__device__ void copy_words(const Word* __restrict__ in, Word* __restrict__ out, long long words,
                           int waits) {
  Word held[kUnroll];
  load_words<Word, kUnroll, kLoad>(in, words, held);
  const auto bits = [&] { return folded(all_mixed(held)); };
  const long long end = words - await_loads(waits, blockDim.x, bits);
  store_words<Word, kUnroll, kStore>(out, end, held);
}

template <typename Word, int kUnroll, Load kLoad, Store kStore>
__device__ void mix_words(const Word* __restrict__ in, const Word* __restrict__ second,
                          Word* __restrict__ out, long long words, int waits) {
  Word held[kUnroll], more[kUnroll];
  load_words<Word, kUnroll, kLoad>(in, words, held);
  load_words<Word, kUnroll, kLoad>(second, words, more);
  const auto bits = [&] { return folded(mixed(all_mixed(held), all_mixed(more))); };
  const long long end = words - await_loads(waits, blockDim.x, bits);
#pragma unroll
  for (int u = 0; u < kUnroll; ++u) held[u] = mixed(held[u], more[u]);
  store_words<Word, kUnroll, kStore>(out, end, held);
}

#define COPY(name, Word, threads, unroll, load, store)                                      \
  extern "C" __global__ void __launch_bounds__(threads)                                     \
      name(const Word* __restrict__ in, Word* __restrict__ out, long long words, int waits) { \
    copy_words<Word, unroll, Load::load, Store::store>(in, out, words, waits);              \
  }
#define PAIR(name, Word, threads, unroll, load, store)                                           \
  extern "C" __global__ void __launch_bounds__(threads)                                          \
      name(const Word* __restrict__ in, const Word* __restrict__ second, Word* __restrict__ out, \
           long long words, int waits) {                                                         \
    mix_words<Word, unroll, Load::load, Store::store>(in, second, out, words, waits);            \
  }
