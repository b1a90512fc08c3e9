// Plain copies: the limit of problems that read as much as they write.

template <typename Word, int kUnroll, Load kLoad, Store kStore>
__device__ void copy_words(const Word* __restrict__ in, Word* __restrict__ out, long long words) {
  const long long first = blockIdx.x * static_cast<long long>(blockDim.x) * kUnroll + threadIdx.x;
  Word held[kUnroll];
#pragma unroll
  for (int u = 0; u < kUnroll; ++u) {
    const long long i = first + u * blockDim.x;
    if (i < words) held[u] = load_word<kLoad>(in + i);
  }
#pragma unroll
  for (int u = 0; u < kUnroll; ++u) {
    const long long i = first + u * blockDim.x;
    if (i < words) store_word<kStore>(out + i, held[u]);
  }
}

#define COPY(name, Word, unroll, load, store)                                       \
  extern "C" __global__ void __launch_bounds__(1024)                                \
      name(const Word* __restrict__ in, Word* __restrict__ out, long long words) {  \
    copy_words<Word, unroll, Load::load, Store::store>(in, out, words);             \
  }
#define COPY_STORES(prefix, Word, unroll, load)           \
  COPY(prefix##_default, Word, unroll, load, kPlain)      \
  COPY(prefix##_cs, Word, unroll, load, kStreaming)       \
  COPY(prefix##_cg, Word, unroll, load, kL2)
#define COPY_LOADS(prefix, Word, unroll)                             \
  COPY_STORES(prefix##_default, Word, unroll, kPlain)                \
  COPY_STORES(prefix##_cs, Word, unroll, kStreaming)                 \
  COPY_STORES(prefix##_no_allocate, Word, unroll, kNoAllocate)
#define COPIES(bytes, Word)              \
  COPY_LOADS(copy_##bytes##_1, Word, 1)  \
  COPY_LOADS(copy_##bytes##_2, Word, 2)  \
  COPY_LOADS(copy_##bytes##_4, Word, 4)  \
  COPY_LOADS(copy_##bytes##_8, Word, 8)
COPIES(8, uint2)
COPIES(16, uint4)

