// Decides which pages of an 8-bit cache are worth copying as 16-bit ones before the prefill tiles
// of a step read them (attention_widen.cu), and where the copy is in the workspace of attention.
#pragma once

#include <cstdint>
#include <vector>

#include "kernels/batch.h"
#include "kernels/cuda/attention/attention_plan.h"
#include "kernels/kv_cache.h"

namespace heddle::kernels::cuda {

// The mean number of tiles that must read a key. By arithmetic, for 8 KV heads of 128 and 128
// packed rows: a tile and a key take 1.7 ns on warps (300 TFLOP/s, expected) and 1.0 ns on
// warpgroups (500); the copy of a key takes 1.4 ns (2 KiB in, 4 KiB out, at 4.3 TB/s).
inline constexpr int64_t kLeastTilesOfWideKey = 3;

// The same for keys and values made of latents: for each head making them of a key takes 262,144
// operations (2 x 512 x (128 + 128)), and a tile of 128 rows and a key 81,920 where it takes
// 278,528 over latents. Twice as many pay in any case.
inline constexpr int64_t kLeastTilesOfExpandedKey = 2;

// Fills in the wide pages of `plan`, those that its tiles read, and returns true if the copy pays,
// with `least_tiles` for a key, and has at most `max_pages`.
bool FindWidePages(const HostBatch& batch, int64_t least_tiles, int64_t max_pages,
                   AttentionPlan* plan);

// Where queries are in the workspace if the grouping makes them: its second half.
constexpr int64_t QueriesAt(int64_t workspace_bytes) { return workspace_bytes / 512 * 256; }

// The parts of the workspace of attention, or of its first half. Offsets are multiples of 256
// bytes.
struct AttentionRoom {
  int64_t max_partials = 0;
  int64_t lse_at = 0;   // after the partial results
  int64_t wide_at = 0;  // the copy's keys, if it has any, followed by its values
  int64_t max_wide_pages = 0;
};
AttentionRoom RoomOf(int64_t workspace_bytes, const AttentionGrouping& grouping);

// The copy of n_pages of `cache`, kF16 or kBF16, in memory from `at` on; without keys (nullptr) if
// `values_alone`.
KvCacheView WideView(const KvCacheView& cache, int32_t n_pages, bool values_alone, void* at);

}  // namespace heddle::kernels::cuda
