// The limit of problems that read another number of bytes than they write: a stream of the same
// numbers. Every word that is read changes the output, or the compiler would drop the load.

// The first of a block's words of `total`: blocks share them as evenly as whole lines allow.
template <typename Word>
__device__ long long share(long long total, long long block) {
  constexpr long long kLine = 128 / sizeof(Word);
  return block == gridDim.x ? total : total * block / gridDim.x / kLine * kLine;
}

// One block's words of a matrix: from this thread's `first` to `end`.
struct Share {
  long long first;
  long long end;
};

template <typename Word>
__device__ Share share_of(long long words) {
  return {share<Word>(words, blockIdx.x) + threadIdx.x, share<Word>(words, blockIdx.x + 1)};
}

template <typename Word, int kUnroll, Load kLoad>
__device__ void read_first(const Word* in, Share s, Word (&held)[kUnroll]) {
#pragma unroll
  for (int u = 0; u < kUnroll; ++u) {
    const long long i = s.first + u * blockDim.x;
    held[u] = i < s.end ? load_word<kLoad>(in + i) : Word{};
  }
}

// The rest of a share after its first words: about a word a thread, because shares are rounded.
template <typename Word, int kUnroll, Load kLoad>
__device__ Word read_rest(const Word* in, Share s, Word all) {
  for (long long i = s.first + kUnroll * blockDim.x; i < s.end; i += blockDim.x) {
    all = mixed(all, load_word<kLoad>(in + i));
  }
  return all;
}

template <typename Word, int kUnroll, Load kLoad, Store kStore>
__device__ void stream_words(const Word* in, long long in_words, const Word* second,
                             long long second_words, Word* out, long long out_words,
                             int waits) {
  const Share ours = share_of<Word>(in_words), also = share_of<Word>(second_words);
  const Share written = share_of<Word>(out_words);
  Word held[kUnroll], more[kUnroll];
  read_first<Word, kUnroll, kLoad>(in, ours, held);
  read_first<Word, kUnroll, kLoad>(second, also, more);
  Word all = read_rest<Word, kUnroll, kLoad>(in, ours, Word{});
  all = read_rest<Word, kUnroll, kLoad>(second, also, all);
#pragma unroll
  for (int u = 0; u < kUnroll; ++u) all = mixed(all, mixed(held[u], more[u]));
  const long long end = written.end - await_loads(waits, blockDim.x, [&] { return folded(all); });
#pragma unroll 4
  for (long long i = written.first; i < end; i += blockDim.x) {
    store_word<kStore>(out + i, all);
  }
}

#define STREAM(name, Word, threads, unroll, load, store)                                         \
  extern "C" __global__ void __launch_bounds__(threads)                                          \
      name(const Word* __restrict__ in, long long in_words, const Word* __restrict__ second,     \
           long long second_words, Word* __restrict__ out, long long out_words, int waits) {     \
    stream_words<Word, unroll, Load::load, Store::store>(in, in_words, second, second_words, out, \
                                                         out_words, waits);                      \
  }
