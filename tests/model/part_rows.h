// The logits of contexts whose parts lie side by side, computed part by part over spans as the
// scheduler lays them out. For tests of one sequence.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "catch2/catch.hpp"
#include "engine/model/local_executor.h"
#include "engine/step.h"
#include "engine/whole_context.h"
#include "scheduler/context_layout.h"

namespace heddle::test {

// Runs one step; the logits of its last rows.
inline std::vector<float> RunStep(engine::LocalExecutor& executor, engine::StepPlan* plan) {
  const auto groups = static_cast<int32_t>(executor.limits().windows.size());
  engine::AddWholeGroups(groups, executor.limits().num_pages / groups, plan);
  engine::StepResult result;
  REQUIRE(executor.Submit(*plan, {}).ok());
  const absl::Status status = executor.Wait(&result);
  INFO(status.ToString());
  REQUIRE(status.ok());
  return executor.last_logits();
}

// The logits of all `tokens` of sequence `id`, which `plan` may begin, on pages from 0 on.
inline std::vector<float> LogitsByParts(engine::LocalExecutor& executor,
                                        const scheduler::ContextParts& parts,
                                        const std::vector<engine::TokenId>& tokens,
                                        engine::SequenceId id, engine::StepPlan* plan) {
  const int32_t page_tokens = executor.limits().page_tokens;
  const scheduler::ContextLayout layout(parts, page_tokens);
  const int32_t num_places = layout.PlaceOf(static_cast<int32_t>(tokens.size()));
  std::vector<engine::KvSpan> pages;
  for (int32_t page = 0; page * page_tokens < num_places; ++page) {
    pages.push_back({engine::PageId{page}, page_tokens});
  }
  std::vector<float> logits;
  for (int32_t place = 0; place < num_places; place += layout.HolesAt(place)) {
    const int32_t count = std::min(layout.RowsAt(place), num_places - place);
    for (int32_t i = place; i < place + count; ++i) {
      plan->token_ids.push_back(tokens[static_cast<size_t>(layout.LengthOf(i))]);
      plan->positions.push_back(layout.PositionAt(i));
      plan->kv_slots.push_back({pages[static_cast<size_t>(i / page_tokens)].page, i % page_tokens});
      plan->scores.push_back({id, i - place, 1, 0});
    }
    const int32_t context = layout.AddSeen(pages, place, place + count, &plan->spans);
    if (executor.limits().layers_have_windows) {
      layout.AddPieces(place, place + count, &plan->pieces);
    }
    plan->sequences.push_back({.id = id,
                               .num_tokens = count,
                               .num_spans = static_cast<int32_t>(plan->spans.size()),
                               .context_tokens = context,
                               .segment = layout.SegmentAt(place),
                               .num_pieces = static_cast<int32_t>(plan->pieces.size())});
    const std::vector<float> of_part = RunStep(executor, plan);
    logits.insert(logits.end(), of_part.begin(), of_part.end());
    place += count;
    plan->Clear();
  }
  return logits;
}

}  // namespace heddle::test
