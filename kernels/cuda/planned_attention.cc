#include "kernels/cuda/device_step.h"

namespace heddle::kernels::cuda {
namespace {

// The address where the entry of span 0 would be in an array that begins with that of span `first`.
// Entries before `first` are never read.
const int32_t* EntryOfSpanZero(const int32_t* entries, int32_t first) {
  const auto offset = static_cast<uintptr_t>(first) * sizeof(int32_t);
  return reinterpret_cast<const int32_t*>(reinterpret_cast<uintptr_t>(entries) - offset);
}

}  // namespace

PlannedAttention StagePlan(const AttentionPlan& plan, const AttentionGrouping& grouping,
                           Staging* staging) {
  const auto* wide_of_span = staging->Add(plan.wide_of_span);
  return {.grouping = grouping,
          .n_decode = static_cast<int32_t>(plan.decode.size()),
          .n_prefill = static_cast<int32_t>(plan.prefill.size()),
          .n_merges = static_cast<int32_t>(plan.merges.size()),
          .decode = staging->Add(plan.decode),
          .prefill = staging->Add(plan.prefill),
          .merges = staging->Add(plan.merges),
          .tile_merges = staging->Add(plan.tile_merges),
          .shared_rows = staging->Add(plan.shared_rows),
          .chunk_masks = staging->Add(plan.chunk_masks),
          .prefill_rows = plan.prefill_rows,
          .decode_rows = plan.decode_rows,
          .n_wide_pages = static_cast<int32_t>(plan.wide_pages.size()),
          .wide_pages = staging->Add(plan.wide_pages),
          .wide_of_span = EntryOfSpanZero(wide_of_span, plan.first_wide_span),
          .codes_queries = plan.codes_queries,
          .n_expanded_rows = static_cast<int32_t>(plan.expanded_rows.size()),
          .expanded_rows = staging->Add(plan.expanded_rows),
          .n_turned_rows = static_cast<int32_t>(plan.turned_rows.size()),
          .turned_rows = staging->Add(plan.turned_rows),
          .later_rounds = plan.later_rounds};
}

}  // namespace heddle::kernels::cuda
