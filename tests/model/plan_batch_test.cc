// What a plan becomes for a device.
#include "engine/model/plan_batch.h"

#include <vector>

#include "catch2/catch.hpp"

namespace heddle::engine {
namespace {

// Sequences of one page each, with these rows and adapters.
StepPlan PlanOf(const std::vector<std::pair<int32_t, int32_t>>& rows_and_adapters) {
  StepPlan plan;
  for (const auto& [rows, adapter] : rows_and_adapters) {
    SequenceSlice slice;
    slice.token_begin = static_cast<int32_t>(plan.token_ids.size());
    slice.num_tokens = rows;
    slice.span_begin = static_cast<int32_t>(plan.spans.size());
    slice.num_spans = 1;
    slice.context_tokens = rows;
    slice.adapter_slot = adapter;
    const PageId page{static_cast<int32_t>(plan.spans.size())};
    plan.spans.push_back({page, rows});
    for (int32_t i = 0; i < rows; ++i) {
      plan.token_ids.push_back(7);
      plan.positions.push_back(i);
      plan.kv_slots.push_back({page, i});
    }
    plan.sequences.push_back(slice);
  }
  return plan;
}

std::vector<int32_t> SlotsOf(PlanBatch& batch, const StepPlan& plan) {
  const kernels::HostBatch built = batch.Build(plan, /*page_tokens=*/16, {});
  return {built.adapter_slot.begin(), built.adapter_slot.end()};
}

TEST_CASE("Every row of a batch has its sequence's adapter, and none has where none is used",
          "[model][unit]") {
  PlanBatch batch;
  CHECK(SlotsOf(batch, PlanOf({{2, -1}, {1, 3}, {3, -1}, {1, 0}})) ==
        std::vector<int32_t>{-1, -1, 3, -1, -1, -1, 0});
  CHECK(SlotsOf(batch, PlanOf({{2, -1}, {1, -1}})).empty());
  CHECK(SlotsOf(batch, PlanOf({{2, 5}})) == std::vector<int32_t>{5, 5});
}

}  // namespace
}  // namespace heddle::engine
