// ------------------------------------------------------------------ limit

// What moves bytes and computes nothing. Each block works on one contiguous span, each thread on
// `kUnroll` words of it, all loaded before the first is stored: the access pattern of a softmax that
// keeps its rows in registers. Cache hints are those that softmax variants have.
enum class Load { kPlain, kStreaming, kNoAllocate };
enum class Store { kPlain, kStreaming, kL2 };

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
