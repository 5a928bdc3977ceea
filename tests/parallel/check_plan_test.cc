// Plans that point to what is not there are refused, and the message says where.
#include "engine/parallel/check_plan.h"

#include <functional>
#include <string>

#include "catch2/catch.hpp"
#include "tests/parallel/plans.h"

namespace heddle::engine {
namespace {

StepPlan GoodPlan() {
  StepPlan plan = EmptyPlan(9);
  AddSlice(1, 10, 30, 20, &plan);
  AddSlice(2, 40, 5, 1, &plan);
  plan.scores = {{SequenceId{1}, 2, 5, 0}};
  plan.pools = {{SequenceId{1}, 0, 20, false}};
  plan.page_copies = {{PageId{1}, PageId{2}, 3}};
  plan.swaps_in = {{PageId{1}, 2}};
  plan.adapter_pages = {PageId{1}};
  plan.adapter_binds = {{AdapterId{1}, 0, 1.0f, 0, 1}};
  plan.drafts_ahead = {{0, 1, 0, 1, 0, 0}};
  plan.ahead_slots = {{PageId{1}, 1}};
  plan.more_groups[0].ahead_slots = {{PageId{1}, 1}};
  plan.begun.push_back({.id = SequenceId{1}, .sampling = {}, .prompt = {1, 2}});
  return plan;
}

TEST_CASE("A plan within its arrays and limits passes", "[parallel][unit]") {
  CHECK(CheckPlan(GoodPlan(), TestLimits()).ok());
  CHECK(CheckPlan(EmptyPlan(1), TestLimits()).ok());
}

TEST_CASE("A plan that points to what is not there is refused", "[parallel][unit]") {
  struct Case {
    const char* array;
    std::function<void(StepPlan&)> spoil;
  };
  const Case cases[] = {
      {"arrays that do not fit", [](StepPlan& p) { p.positions.pop_back(); }},
      {"arrays that do not fit", [](StepPlan& p) { p.more_groups.clear(); }},
      {"arrays that do not fit", [](StepPlan& p) { p.more_groups[0].ranges.pop_back(); }},
      {"positions", [](StepPlan& p) { p.positions[0] = -1; }},
      {"positions", [](StepPlan& p) { p.positions[0] = 100'000; }},
      {"token_ids", [](StepPlan& p) { p.token_ids[3] = 128'256; }},
      {"token_ids", [](StepPlan& p) { p.token_ids[3] = kNoToken; }},
      {"undrawn",
       [](StepPlan& p) {
         p.undrawn = {{3, 0, 8}};
       }},
      {"undrawn",
       [](StepPlan& p) {
         p.undrawn = {{21, 0, 8}};
       }},
      {"kv_slots", [](StepPlan& p) { p.kv_slots[0].page = PageId{100'000}; }},
      {"kv_slots", [](StepPlan& p) { p.kv_slots[0].offset = 16; }},
      {"kv_slots of a group", [](StepPlan& p) { p.more_groups[0].kv_slots[0].offset = -1; }},
      {"sequences", [](StepPlan& p) { p.spans[1].num_tokens = 17; }},
      {"sequences", [](StepPlan& p) { p.spans[1].page = PageId{-1}; }},
      {"sequences", [](StepPlan& p) { p.sequences[1].num_spans = 9; }},
      {"sequences", [](StepPlan& p) { p.sequences[1].context_tokens = 7; }},
      {"sequences", [](StepPlan& p) { p.sequences[1].token_begin = 19; }},
      {"sequences", [](StepPlan& p) { p.sequences[1].num_tokens = 2; }},
      {"sequences", [](StepPlan& p) { p.sequences[1].adapter_slot = 32; }},
      {"sequences", [](StepPlan& p) { p.sequences[1].num_masks = 1; }},
      {"sequences", [](StepPlan& p) { p.sequences[1].next_token = 128'256; }},
      {"sequences", [](StepPlan& p) { p.sequences[1].second_begin = 1 << 20; }},
      {"sequences", [](StepPlan& p) { p.sequences[1].second_begin = -2; }},
      {"sequences", [](StepPlan& p) { p.sequences[1].segment = 5; }},
      {"sequences", [](StepPlan& p) { p.sequences[1].segment = -1; }},
      {"sequences", [](StepPlan& p) { p.sequences[1].kind = static_cast<SliceKind>(3); }},
      {"sequences",
       [](StepPlan& p) { p.sequences.pop_back(), p.more_groups[0].ranges.pop_back(); }},
      {"sequences", [](StepPlan& p) { p.more_groups[0].ranges[1].span_begin = 99; }},
      {"samples", [](StepPlan& p) { p.samples[0].row = 21; }},
      {"samples", [](StepPlan& p) { p.samples[0].num_rows = 0; }},
      {"samples", [](StepPlan& p) { p.samples[1].num_rows = 2; }},
      {"scores", [](StepPlan& p) { p.scores[0].target = -1; }},
      {"pools", [](StepPlan& p) { p.pools[0].num_rows = 22; }},
      {"drafts_ahead", [](StepPlan& p) { p.drafts_ahead[0].sample = 2; }},
      {"drafts_ahead", [](StepPlan& p) { p.drafts_ahead[0].slot_begin = 1; }},
      {"drafts_ahead", [](StepPlan& p) { p.drafts_ahead[0].num_slots = 0; }},
      {"ahead_slots", [](StepPlan& p) { p.ahead_slots[0].offset = 16; }},
      {"page_copies", [](StepPlan& p) { p.page_copies[0].to = PageId{100'000}; }},
      {"swaps_in", [](StepPlan& p) { p.swaps_in[0].slot = 50; }},
      {"adapter_binds", [](StepPlan& p) { p.adapter_binds[0].num_pages = 2; }},
      {"adapter_pages", [](StepPlan& p) { p.adapter_pages[0] = PageId{-1}; }},
      {"begun",
       [](StepPlan& p) {
         p.begun[0].sampling.logit_bias = {{128'256, 1.0f}};
       }},
      {"begun", [](StepPlan& p) { p.begun[0].sampling.bad_words = {{}}; }},
  };
  for (const Case& spoiled : cases) {
    StepPlan plan = GoodPlan();
    spoiled.spoil(plan);
    const absl::Status status = CheckPlan(plan, TestLimits());
    INFO(spoiled.array << ": " << status.ToString());
    CHECK(absl::IsInvalidArgument(status));
    CHECK(std::string(status.message()).find(spoiled.array) != std::string::npos);
  }
}

}  // namespace
}  // namespace heddle::engine
