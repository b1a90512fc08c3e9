// FlashInfer's decode attention as C functions. `flashinfer_decode.py` beside this file has it
// compiled by nvcc with FlashInfer's headers, for one element type (ELEMENT) and one head dimension
// (OF_HEAD) a library, as FlashInfer's own JIT does, and calls it with ctypes.
#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <exception>
#include <iterator>
#include <vector>

#include <flashinfer/attention/decode.cuh>
#include <flashinfer/attention/default_decode_params.cuh>
#include <flashinfer/attention/scheduler.cuh>
#include <flashinfer/attention/variants.cuh>

// `Call` of flashinfer_decode.py has the same fields. Its pointers are to device memory.
struct Call {
  void* query;
  void* key;
  void* value;
  void* output;
  float* lse;  // in base 2; null if it is not asked for
  void* parts;
  void* schedule;
  int32_t* pages;  // the index of each page, in strides of pages
  int32_t* page_starts;  // where a sequence's pages begin in `pages`
  int32_t* on_last_page;  // keys on a sequence's last page
  int64_t parts_bytes;
  int64_t schedule_bytes;
  int64_t plan[10];
  int32_t sequences;
  int32_t keys;
  int32_t query_heads;
  int32_t key_heads;
  int32_t page_keys;
  int32_t by_head;  // 1 for the layout HND, 0 for NHD
  int32_t overlapped;
  float scale;
};

// Named, since nvcc 13.0's stubs do not find types of a namespace without a name.
namespace decode {

using namespace flashinfer;

using Attention = DefaultAttention</*use_custom_mask=*/false, /*use_sliding_window=*/false,
                                   /*use_logits_soft_cap=*/false, /*use_alibi=*/false>;
using Single = SingleDecodeParams<ELEMENT, ELEMENT, ELEMENT>;
using Batch = BatchDecodeParams<ELEMENT, ELEMENT, ELEMENT, int32_t>;

constexpr auto kNone = PosEncodingMode::kNone;

// Strides of keys and of key heads, in elements.
static int64_t key_stride(const Call& call) {
  return call.by_head ? OF_HEAD : int64_t{call.key_heads} * OF_HEAD;
}

static int64_t head_stride(const Call& call) {
  return call.by_head ? int64_t{call.keys} * OF_HEAD : OF_HEAD;
}

static cudaError_t single(const Call& call, cudaStream_t stream) {
  const auto layout = call.by_head ? QKVLayout::kHND : QKVLayout::kNHD;
  Single params(
      static_cast<ELEMENT*>(call.query), static_cast<ELEMENT*>(call.key),
      static_cast<ELEMENT*>(call.value), static_cast<ELEMENT*>(call.output),
      /*maybe_alibi_slopes=*/nullptr, call.keys, call.query_heads, call.key_heads, layout, OF_HEAD,
      /*window_left=*/-1, /*logits_soft_cap=*/0.0f, call.scale,
      /*rope_scale=*/1.0f, /*rope_theta=*/1.0f);
  params.lse = call.lse;
  return SingleDecodeWithKVCacheDispatched<OF_HEAD, kNone, Attention>(
      params, static_cast<ELEMENT*>(call.parts), stream);
}

static cudaError_t plan(Call& call, int32_t* page_starts) {
  DecodePlanInfo made;
  std::vector<char> host(call.schedule_bytes);
  cudaError_t status = cudaErrorUnknown;
  DISPATCH_GQA_GROUP_SIZE(call.query_heads / call.key_heads, GROUP_SIZE, {
    auto estimate = BatchDecodeWithPagedKVCacheWorkEstimationDispatched<
        GROUP_SIZE, OF_HEAD, kNone, Attention, Batch>;
    status = DecodePlan<OF_HEAD, kNone, Attention, Batch>(
        call.parts, call.parts_bytes, call.schedule, host.data(), call.schedule_bytes, made,
        page_starts, call.sequences, call.query_heads, call.page_keys, /*enable_cuda_graph=*/false,
        /*stream=*/nullptr, estimate);
  });
  if (status != cudaSuccess) return status;
  const std::vector<int64_t> numbers = made.ToVector();
  if (numbers.size() != std::size(call.plan)) FLASHINFER_ERROR("a plan of another version");
  std::copy(numbers.begin(), numbers.end(), call.plan);
  return cudaStreamSynchronize(nullptr);  // `host` is copied from until then
}

static cudaError_t batch(const Call& call, cudaStream_t stream) {
  // Pages begin at any key: their stride is that of keys.
  const int64_t of_head = head_stride(call), of_key = key_stride(call);
  const int64_t strides[] = {
      of_key, call.by_head ? of_head : of_key, call.by_head ? of_key : of_head};
  paged_kv_t<ELEMENT, int32_t> cache(
      call.key_heads, call.page_keys, OF_HEAD, call.sequences,
      call.by_head ? QKVLayout::kHND : QKVLayout::kNHD, static_cast<ELEMENT*>(call.key),
      static_cast<ELEMENT*>(call.value), strides, call.pages, call.page_starts, call.on_last_page);
  Batch params(
      static_cast<ELEMENT*>(call.query), /*q_rope_offset=*/nullptr, cache,
      static_cast<ELEMENT*>(call.output), call.lse, /*maybe_alibi_slopes=*/nullptr,
      call.query_heads, /*q_stride_n=*/call.query_heads * OF_HEAD, /*q_stride_h=*/OF_HEAD,
      /*window_left=*/-1, /*logits_soft_cap=*/0.0f, call.scale, /*rope_scale=*/1.0f,
      /*rope_theta=*/1.0f);
  DecodePlanInfo made;
  made.FromVector(std::vector<int64_t>(std::begin(call.plan), std::end(call.plan)));
  const auto scheduled = [&](int64_t offset) {
    return GetPtrFromBaseOffset<int32_t>(call.schedule, offset);
  };
  params.padded_batch_size = made.padded_batch_size;
  params.request_indices = scheduled(made.request_indices_offset);
  params.kv_tile_indices = scheduled(made.kv_tile_indices_offset);
  params.o_indptr = scheduled(made.o_indptr_offset);
  params.kv_chunk_size_ptr = scheduled(made.kv_chunk_size_ptr_offset);
  ELEMENT* outputs = nullptr;
  float* sums = nullptr;
  if (made.split_kv) {
    outputs = GetPtrFromBaseOffset<ELEMENT>(call.parts, made.v_offset);
    sums = GetPtrFromBaseOffset<float>(call.parts, made.s_offset);
  }
  return BatchDecodeWithPagedKVCacheDispatched<OF_HEAD, kNone, Attention>(
      params, outputs, sums, call.overlapped != 0, stream);
}

static char failure[1024];

// Returns 0, CUDA's status, or -1 for what FlashInfer refuses; `failure` then says why.
template <typename Function>
static int told(Function call) {
  try {
    const cudaError_t status = call();
    if (status == cudaSuccess) return 0;
    std::snprintf(failure, sizeof failure, "%s", cudaGetErrorString(status));
    return status;
  } catch (const std::exception& error) {
    std::snprintf(failure, sizeof failure, "%s", error.what());
    return -1;
  }
}

}  // namespace decode

extern "C" const char* decode_failure() { return decode::failure; }

extern "C" int decode_single(const Call* call, void* stream) {
  return decode::told([&] { return decode::single(*call, static_cast<cudaStream_t>(stream)); });
}

// Fills in the plan, and its schedule in device memory. `page_starts` is the table in host memory.
extern "C" int decode_plan(Call* call, int32_t* page_starts) {
  return decode::told([&] { return decode::plan(*call, page_starts); });
}

extern "C" int decode_batch(const Call* call, void* stream) {
  return decode::told([&] { return decode::batch(*call, static_cast<cudaStream_t>(stream)); });
}
