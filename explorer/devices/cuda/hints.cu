// ------------------------------------------------------------------ limit

// Kernels that move bytes and compute nothing. Each thread works on `kUnroll` words at a time, all
// loaded before the first is stored: the access pattern of a softmax whose rows are in registers. The
// cache policies are those of softmax variants.
enum class Load { kPlain, kStreaming, kNoAllocate };
enum class Store { kPlain, kStreaming, kL2 };

__device__ unsigned short load_no_allocate(const unsigned short* address) {
  unsigned short w;
  asm volatile("ld.global.nc.L1::no_allocate.u16 %0, [%1];" : "=h"(w) : "l"(address));
  return w;
}

__device__ unsigned load_no_allocate(const unsigned* address) {
  unsigned w;
  asm volatile("ld.global.nc.L1::no_allocate.u32 %0, [%1];" : "=r"(w) : "l"(address));
  return w;
}

__device__ uint2 load_no_allocate(const uint2* address) {
  uint2 w;
  asm volatile("ld.global.nc.L1::no_allocate.v2.u32 { %0, %1 }, [%2];" : "=r"(w.x), "=r"(w.y) : "l"(address));
  return w;
}

__device__ uint4 load_no_allocate(const uint4* address) {
  uint4 w;
  asm volatile("ld.global.nc.L1::no_allocate.v4.u32 { %0, %1, %2, %3 }, [%4];"
               : "=r"(w.x), "=r"(w.y), "=r"(w.z), "=r"(w.w)
               : "l"(address));
  return w;
}

template <Load kLoad, typename Word>
__device__ Word load_word(const Word* address) {
  if (kLoad == Load::kStreaming) return __ldcs(address);
  if (kLoad == Load::kNoAllocate) return load_no_allocate(address);
  return *address;
}

template <Store kStore, typename Word>
__device__ void store_word(Word* address, Word word) {
  if (kStore == Store::kStreaming) {
    __stcs(address, word);
  } else if (kStore == Store::kL2) {
    __stcg(address, word);
  } else {
    *address = word;
  }
}

// Combines two words into one that depends on both.
__device__ unsigned mixed(unsigned a, unsigned b) { return a ^ b; }
__device__ uint2 mixed(uint2 a, uint2 b) { return {a.x ^ b.x, a.y ^ b.y}; }
__device__ uint4 mixed(uint4 a, uint4 b) { return {a.x ^ b.x, a.y ^ b.y, a.z ^ b.z, a.w ^ b.w}; }
__device__ unsigned short mixed(unsigned short a, unsigned short b) {
  return static_cast<unsigned short>(a ^ b);
}

// Bits that depend on all of a word.
__device__ unsigned folded(unsigned short a) { return a; }
__device__ unsigned folded(unsigned a) { return a; }
__device__ unsigned folded(uint2 a) { return a.x ^ a.y; }
__device__ unsigned folded(uint4 a) { return a.x ^ a.y ^ a.z ^ a.w; }

// Makes a group of threads, a block or those of a warp, wait `waits` times for their loads, as a
// softmax does for its reductions; `loaded_bits` returns bits that depend on all loads. Returns 0. The
// stores must depend on the result, which the compiler does not know to be 0: else it would drop the
// exchange of a warp as unused.
template <typename Loaded>
__device__ int await_loads(int waits, int group_threads, const Loaded& loaded_bits) {
  if (waits == 0) return 0;
  asm volatile("" ::: "memory");  // else the compiler would compute the bits, and wait, in any case
  unsigned loaded = loaded_bits();
#pragma unroll 1  // the shorter text is fetched sooner
  for (int i = 0; i < waits; ++i) {
    loaded = group_threads > 32 ? __syncthreads_or(loaded) : __shfl_xor_sync(0xffffffffu, loaded, 1);
  }
  return loaded & (waits >> 16);
}

template <typename Word, int kUnroll>
__device__ Word all_mixed(const Word (&held)[kUnroll]) {
  Word all = held[0];
#pragma unroll
  for (int u = 1; u < kUnroll; ++u) all = mixed(all, held[u]);
  return all;
}

// From so many words of a thread on, two matrices are mixed as they arrive, in half of the registers.
// Fewer words are mixed only when they are stored, so that a copy that does not wait stores each word
// as soon as it has arrived.
constexpr int kMixedFirst = 8;

template <typename Word, int kUnroll>
__device__ void mix_into(Word (&held)[kUnroll], const Word (&more)[kUnroll]) {
#pragma unroll
  for (int u = 0; u < kUnroll; ++u) held[u] = mixed(held[u], more[u]);
}
