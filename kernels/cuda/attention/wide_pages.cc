#include "kernels/cuda/attention/wide_pages.h"

#include <algorithm>
#include <map>
#include <unordered_map>
#include <utility>

#include "kernels/cuda/attention/attention_params.h"

namespace heddle::kernels::cuda {
namespace {

constexpr int64_t kAlignment = 256;
constexpr int64_t kWideBytes = 2;  // of an element

int64_t RoundUp(int64_t n) { return (n + kAlignment - 1) / kAlignment * kAlignment; }

// The keys that tiles of a sequence read.
struct Keys {
  int32_t begin, end;
};

// The spans of a sequence that hold some of `keys`.
std::pair<int32_t, int32_t> SpansOf(const HostBatch& batch, int32_t seq, const Keys& keys) {
  int32_t first = batch.span_begin[seq], key = 0;
  for (; key + batch.span_tokens[first] <= keys.begin; ++first) key += batch.span_tokens[first];
  int32_t last = first;
  for (; key < keys.end; ++last) key += batch.span_tokens[last];
  return {first, last};
}

}  // namespace

bool FindWidePages(const HostBatch& batch, int64_t least_tiles, int64_t max_pages,
                   AttentionPlan* plan) {
  std::map<int32_t, Keys> keys_of;  // by sequence
  int64_t tile_keys = 0;
  for (const AttentionTile& tile : plan->prefill) {
    tile_keys += tile.key_end - tile.key_begin;
    const auto [found, is_new] = keys_of.try_emplace(tile.seq, Keys{tile.key_begin, tile.key_end});
    if (is_new) continue;
    found->second.begin = std::min(found->second.begin, tile.key_begin);
    found->second.end = std::max(found->second.end, tile.key_end);
  }
  int64_t keys = 0;
  for (const auto& [seq, range] : keys_of) keys += range.end - range.begin;
  if (tile_keys < least_tiles * keys) return false;

  std::vector<std::pair<int32_t, int32_t>> spans;
  spans.reserve(keys_of.size());
  for (const auto& [seq, range] : keys_of) spans.push_back(SpansOf(batch, seq, range));
  plan->first_wide_span = spans.front().first;
  plan->wide_of_span.assign(static_cast<size_t>(spans.back().second - plan->first_wide_span), 0);
  std::unordered_map<int32_t, int32_t> wide_of_page;
  for (const auto& [first, last] : spans) {
    for (int32_t span = first; span < last; ++span) {
      const int32_t page = batch.span_page[span];
      const auto [found, is_new] =
          wide_of_page.try_emplace(page, static_cast<int32_t>(plan->wide_pages.size()));
      if (is_new) plan->wide_pages.push_back(page);
      plan->wide_of_span[static_cast<size_t>(span - plan->first_wide_span)] = found->second;
    }
  }
  return static_cast<int64_t>(plan->wide_pages.size()) <= max_pages;
}

// Half is for partial results; of the other half, as much as they can have is for their lse, and
// the rest for the copy.
AttentionRoom RoomOf(int64_t workspace_bytes, const AttentionGrouping& grouping) {
  constexpr int64_t kMostPartials = 1 << 20;
  constexpr int64_t kFloat = sizeof(float);
  if (grouping.makes_queries) workspace_bytes = QueriesAt(workspace_bytes);
  const int64_t rows = int64_t{grouping.n_kv_heads} * grouping.head_dim;
  AttentionRoom room;
  room.max_partials = std::min(workspace_bytes / 2 / (rows * kFloat), kMostPartials);
  room.lse_at = RoundUp(room.max_partials * rows * kFloat);
  room.wide_at = RoundUp(room.lse_at + room.max_partials * grouping.n_kv_heads * kFloat);
  const int64_t arrays = grouping.copies_values_alone ? 1 : 2;
  const int64_t page_bytes = arrays * rows * kWideBytes * grouping.widened_page_tokens;
  if (page_bytes == 0 || room.wide_at >= workspace_bytes) return room;
  room.max_wide_pages =
      std::max<int64_t>(0, workspace_bytes - room.wide_at - kAlignment) / page_bytes;
  return room;
}

KvCacheView WideView(const KvCacheView& cache, int32_t n_pages, bool values_alone, void* at) {
  KvCacheView wide = cache;
  wide.dtype = cache.dtype == DType::kInt8 ? DType::kBF16 : DType::kF16;
  wide.num_pages = n_pages;
  wide.page_stride = 0;
  wide.keys = values_alone ? nullptr : at;
  wide.values =
      static_cast<uint8_t*>(at) + (values_alone ? 0 : RoundUp(n_pages * wide.block_bytes()));
  return wide;
}

}  // namespace heddle::kernels::cuda
