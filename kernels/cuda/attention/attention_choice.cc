#include "kernels/cuda/attention/attention_choice.h"

#include <iterator>

namespace heddle::kernels::cuda {
namespace {

bool IsAligned(const Tensor& t, int64_t elements) {  // BF16
  return t.stride % elements == 0 &&
         reinterpret_cast<uintptr_t>(t.data) % static_cast<uintptr_t>(2 * elements) == 0;
}

bool Always(const AttentionArgs&) { return true; }

// The shared memory of a kernel that every device has enough of.
int64_t Little(const AttentionArgs&, int32_t) { return 0; }

// Shared memory of a block with `rows` rows: queries, and stages of 64 keys and values, whose rows
// are padded by 16 bytes, and the rest. See Layout in attention_flash_stages.cuh.
int64_t FlashSharedBytes(const AttentionArgs& args, int32_t rows) {
  constexpr int64_t kStageKeys = 64, kRestOfStage = 24 * kStageKeys, kRest = 1 << 10;
  const int32_t dim = args.cache.head_dim <= 64 ? 64 : args.cache.head_dim <= 128 ? 128 : 256;
  const int64_t element_bytes = KvElementBytes(args.cache.dtype);
  const int64_t stage = 2 * kStageKeys * (dim * element_bytes + 16) + kRestOfStage;
  const int64_t stages = FlashStages(element_bytes, rows == kDecodeTileRows, dim);
  return stages * stage + rows * (dim + 8) * 2 + kRest;
}

// The kernel moves 16 bytes at a time from the cache, and pairs to the output.
bool FlashCan(const AttentionArgs& args) {
  const KvCacheView& cache = args.cache;
  const auto width = static_cast<int32_t>(16 / KvElementBytes(cache.dtype));
  return cache.dtype != DType::kF32 && cache.head_dim % width == 0 &&
         (cache.dtype != DType::kInt8 || cache.page_tokens >= 4) && IsAligned(args.out, 2);
}

// The kernel moves lines of 128 bytes from the cache or its copy, whole patterns of 8 of them from
// each page, and 16 bytes at a time from the queries and to the output. Scores are compared before
// they are scaled.
bool HopperCan(const AttentionArgs& args) {
  const KvCacheView& cache = args.cache;
  return (cache.head_dim == 64 || cache.head_dim == 128) && cache.page_tokens >= 8 &&
         cache.page_tokens <= 128 && cache.rows() < int64_t{1} << 31 &&
         cache.page_stride % KvRowBytes(cache.dtype, cache.head_dim) == 0 && IsAligned(args.q, 8) &&
         IsAligned(args.out, 8) && args.scale > 0 &&
         reinterpret_cast<uintptr_t>(cache.keys) % 16 == 0 &&
         reinterpret_cast<uintptr_t>(cache.values) % 16 == 0;
}

// Shared memory of a block of attention_latent.cuh, whose rows have `dim` elements and are padded
// by 16 bytes: queries and `stages` of keys (and values); of 8 bits these, and one stage of 16.
int64_t StagedSharedBytes(const AttentionArgs& args, int32_t rows, int64_t dim, int64_t stages) {
  constexpr int64_t kRest = 11 << 10;
  const int64_t keys = rows == kDecodeTileRows ? 64 : 32;
  const bool is_raw = KvElementBytes(args.cache.dtype) == 1;
  const int64_t raw_bytes = is_raw ? stages * keys * (dim + 16) : 0;
  return (rows + (is_raw ? 1 : stages) * keys) * (2 * dim + 16) + raw_bytes + kRest;
}

int64_t LatentSharedBytes(const AttentionArgs& args, int32_t rows) {
  return StagedSharedBytes(args, rows, kMaxAttentionHeadDim, /*stages=*/2);
}

// Values of their own are one more stage; of 8 bits those become 16 where keys did.
int64_t WideHeadsSharedBytes(const AttentionArgs& args, int32_t rows) {
  return StagedSharedBytes(args, rows, kWideHeadDim, /*stages=*/3);
}

// The kernel moves 16 bytes at a time from the cache, whose values are its keys, and pairs to the
// output.
bool LatentCan(const AttentionArgs& args) {
  return args.cache.keys == args.cache.values && FlashCan(args);
}

bool HopperWideCan(const AttentionArgs& args) { return HopperCan(args) && FlashCan(args); }

struct Row {
  AttentionKernel kernel;
  bool needs_hopper;
  DType activations;         // kF32: any
  int64_t kv_element_bytes;  // 0: any
  int32_t max_head_dim;
  int32_t prefill_rows;  // per tile
  int32_t decode_rows;   // 0: not for decoding
  bool (*can)(const AttentionArgs& args);
  int64_t (*shared_bytes)(const AttentionArgs& args, int32_t rows);  // of a tile's block
};

// The first usable kernel is taken. Warpgroups can transpose only 16-bit tiles; making them from 8
// bits in shared memory would cost as much of its bandwidth as the products leave.
constexpr Row kRows[] = {
    {AttentionKernel::kHopper, true, DType::kBF16, 2, 128, kHopperTileRows, 0, HopperCan, Little},
    {AttentionKernel::kHopperWide, true, DType::kBF16, 1, 128, kHopperTileRows, 0, HopperWideCan,
     Little},
    {AttentionKernel::kFlash, false, DType::kBF16, 0, 256, kPrefillTileRows, kDecodeTileRows,
     FlashCan, FlashSharedBytes},
    {AttentionKernel::kLatent, false, DType::kBF16, 0, kMaxAttentionHeadDim, kPrefillTileRows,
     kDecodeTileRows, LatentCan, LatentSharedBytes},
    {AttentionKernel::kWideHeads, false, DType::kBF16, 0, kWideHeadDim, kPrefillTileRows,
     kDecodeTileRows, FlashCan, WideHeadsSharedBytes},
    {AttentionKernel::kPlain, false, DType::kF32, 0, kMaxAttentionHeadDim, kPrefillTileRows,
     kDecodeTileRows, Always, Little},
};

const Row& First(const AttentionArgs& args, DType activations, bool has_hopper_code,
                 int32_t max_shared_bytes, bool decodes) {
  for (const Row& row : kRows) {
    const bool right_kind = (!row.needs_hopper || has_hopper_code) &&
                            (!decodes || row.decode_rows > 0) &&
                            (row.activations == DType::kF32 || row.activations == activations);
    const bool right_size =
        args.cache.head_dim <= row.max_head_dim &&
        (row.kv_element_bytes == 0 || row.kv_element_bytes == KvElementBytes(args.cache.dtype));
    const int32_t rows = decodes ? row.decode_rows : row.prefill_rows;
    const bool fits = row.shared_bytes(args, rows) <= max_shared_bytes;
    const bool is_plain = row.kernel == AttentionKernel::kPlain;
    const bool right_scores = args.bias.table == nullptr || is_plain;
    const bool right_keys =
        args.chosen.rows == nullptr || is_plain || row.kernel == AttentionKernel::kLatent;
    if (right_kind && right_size && right_scores && right_keys && fits && row.can(args)) return row;
  }
  return kRows[std::size(kRows) - 1];
}

}  // namespace

AttentionChoice ChooseAttention(const AttentionArgs& args, DType activations, bool has_hopper_code,
                                int32_t max_shared_bytes) {
  const Row& prefill = First(args, activations, has_hopper_code, max_shared_bytes, false);
  const Row& decode = First(args, activations, has_hopper_code, max_shared_bytes, true);
  return {prefill.kernel, decode.kernel, prefill.prefill_rows};
}

}  // namespace heddle::kernels::cuda
