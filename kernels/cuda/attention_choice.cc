#include "kernels/cuda/attention_choice.h"

#include <iterator>

namespace heddle::kernels::cuda {
namespace {

bool IsAligned(const Tensor& t, int64_t elements) {  // BF16
  return t.stride % elements == 0 &&
         reinterpret_cast<uintptr_t>(t.data) % static_cast<uintptr_t>(2 * elements) == 0;
}

bool Always(const AttentionArgs&) { return true; }

// Units of 16 bytes from the cache, pairs to the output.
bool FlashCan(const AttentionArgs& args) {
  const KvCacheView& cache = args.cache;
  const auto width = static_cast<int32_t>(16 / KvElementBytes(cache.dtype));
  return cache.dtype != DType::kF32 && cache.head_dim % width == 0 &&
         (cache.dtype != DType::kInt8 || cache.page_tokens >= 4) && IsAligned(args.out, 2);
}

// Lines of 128 bytes from the cache, whole patterns of 8 of them from each page; units of 16 bytes
// from the queries and to the output. Scores are compared before they are scaled.
bool HopperCan(const AttentionArgs& args) {
  const KvCacheView& cache = args.cache;
  const int64_t lines = int64_t{cache.num_pages} * cache.n_kv_heads * cache.page_tokens;
  return (cache.head_dim == 64 || cache.head_dim == 128) && cache.page_tokens >= 8 &&
         cache.page_tokens <= 128 && lines < int64_t{1} << 31 && IsAligned(args.q, 8) &&
         IsAligned(args.out, 8) && args.scale > 0 &&
         reinterpret_cast<uintptr_t>(cache.keys) % 16 == 0 &&
         reinterpret_cast<uintptr_t>(cache.values) % 16 == 0;
}

struct Row {
  AttentionKernel kernel;
  bool needs_hopper;
  DType activations;         // kF32: any
  int64_t kv_element_bytes;  // 0: any
  int32_t max_head_dim;
  int32_t prefill_rows;  // of a tile
  int32_t decode_rows;   // 0: not for decoding
  bool (*can)(const AttentionArgs& args);
};

// The first that can is taken. F8 and int8 caches on Hopper stay with kFlash: their values would
// have to become 16 bits in shared memory first, as only 16-bit tiles can be transposed.
constexpr Row kRows[] = {
    {AttentionKernel::kHopper, true, DType::kBF16, 2, 128, kHopperTileRows, 0, HopperCan},
    {AttentionKernel::kFlash, false, DType::kBF16, 0, 256, kPrefillTileRows, kDecodeTileRows,
     FlashCan},
    {AttentionKernel::kPlain, false, DType::kF32, 0, kMaxAttentionHeadDim, kPrefillTileRows,
     kDecodeTileRows, Always},
};

const Row& First(const AttentionArgs& args, DType activations, bool has_hopper_code, bool decodes) {
  for (const Row& row : kRows) {
    const bool right_kind = (!row.needs_hopper || has_hopper_code) &&
                            (!decodes || row.decode_rows > 0) &&
                            (row.activations == DType::kF32 || row.activations == activations);
    const bool right_size =
        args.cache.head_dim <= row.max_head_dim &&
        (row.kv_element_bytes == 0 || row.kv_element_bytes == KvElementBytes(args.cache.dtype));
    if (right_kind && right_size && row.can(args)) return row;
  }
  return kRows[std::size(kRows) - 1];
}

}  // namespace

AttentionChoice ChooseAttention(const AttentionArgs& args, DType activations,
                                bool has_hopper_code) {
  const Row& prefill = First(args, activations, has_hopper_code, false);
  const Row& decode = First(args, activations, has_hopper_code, true);
  return {prefill.kernel, decode.kernel, prefill.prefill_rows};
}

}  // namespace heddle::kernels::cuda
