// The batch that a device gets for a plan.
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

TEST_CASE("Rows of a tree have their masks, other rows have none, and without trees nobody has",
          "[model][unit]") {
  PlanBatch batch;
  StepPlan plan = PlanOf({{2, -1}, {3, -1}, {1, -1}, {2, -1}});
  CHECK(batch.Build(plan, /*page_tokens=*/16, {}).tree_mask.empty());
  plan.ancestor_masks = {0b1, 0b11, 0b101, 0b1, 0b11};
  plan.sequences[1].num_masks = 3;
  plan.sequences[3].mask_begin = 3;
  plan.sequences[3].num_masks = 2;
  const auto masks = batch.Build(plan, /*page_tokens=*/16, {}).tree_mask;
  CHECK(std::vector<uint64_t>(masks.begin(), masks.end()) ==
        std::vector<uint64_t>{0, 0, 0b1, 0b11, 0b101, 0, 0b1, 0b11});
  // The next batch remembers nothing of it.
  CHECK(batch.Build(PlanOf({{2, -1}}), /*page_tokens=*/16, {}).tree_mask.empty());
}

TEST_CASE("Sequences have their pieces, and a batch without any has no list of them",
          "[model][unit]") {
  PlanBatch batch;
  StepPlan plan = PlanOf({{2, -1}, {3, -1}, {1, -1}});
  CHECK(batch.Build(plan, /*page_tokens=*/16, {}).piece_begin.empty());
  plan.pieces = {{.num_tokens = 1}, {.num_tokens = 2, .position = 7, .turn = 4}};
  plan.sequences[1].num_pieces = 2;
  const kernels::HostBatch built = batch.Build(plan, /*page_tokens=*/16, {});
  CHECK(std::vector<int32_t>(built.piece_begin.begin(), built.piece_begin.end()) ==
        std::vector<int32_t>{0, 0, 2, 2});
  REQUIRE(built.PiecesOf(1).size() == 2);
  CHECK(built.PiecesOf(1)[1].num_tokens == 2);
  CHECK(built.PiecesOf(1)[1].position == 7);
  CHECK(built.PiecesOf(1)[1].turn == 4);
  CHECK(built.PiecesOf(2).empty());
  CHECK(batch.Build(PlanOf({{2, -1}}), /*page_tokens=*/16, {}).PiecesOf(0).empty());
}

}  // namespace
}  // namespace heddle::engine
