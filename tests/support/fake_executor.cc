#include "tests/support/fake_executor.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "engine/page_rule.h"
#include "tests/support/fake_tokens.h"

namespace heddle::test {

using engine::Index;
using engine::KvSpan;
using engine::SequenceSlice;
using engine::StepPlan;
using engine::TokenId;

absl::Status FakeExecutor::Broken(engine::SequenceId id, const char* rule) {
  return absl::InternalError(
      absl::StrCat("plan broken: sequence ", static_cast<uint64_t>(id), ": ", rule));
}

FakeExecutor::FakeExecutor(const engine::ExecutorLimits& limits, int32_t max_in_flight)
    : limits_(limits),
      max_in_flight_(max_in_flight),
      cells_(static_cast<size_t>(limits.num_pages) * limits.page_tokens),
      host_cells_(static_cast<size_t>(limits.num_host_pages) * limits.page_tokens),
      page_is_written_(limits.num_pages),
      factor_pages_(limits.num_pages),
      slots_(limits.adapter_slots) {}

FakeExecutor::Cell& FakeExecutor::At(engine::PageId page, int32_t offset) {
  return cells_[static_cast<size_t>(Index(page)) * limits_.page_tokens + offset];
}

absl::Status FakeExecutor::Submit(const StepPlan& plan, const engine::StepLocals& locals) {
  if (results_.size() == static_cast<size_t>(max_in_flight_)) {
    return absl::InternalError("plan broken: too many are in flight");
  }
  if (!results_.empty() && last_has_pools_) {
    return absl::InternalError("plan broken: submitted behind one that pools");
  }
  last_has_pools_ = !plan.pools.empty();
  num_ahead_ += results_.empty() ? 0 : 1;
  HEDDLE_RETURN_IF_ERROR(CheckShape(plan));
  for (const engine::SequenceBegin& begin : plan.begun) {
    if (!live_.emplace(begin.id, Live{begin.sampling}).second) {
      return Broken(begin.id, "begun twice");
    }
  }
  for (const engine::StepLocals::Grammar& grammar : locals.grammars) {
    if (!live_.contains(grammar.id)) return Broken(grammar.id, "has a grammar but was not begun");
  }
  HEDDLE_RETURN_IF_ERROR(SwapPages(plan));
  HEDDLE_RETURN_IF_ERROR(LoadAdapters(plan));
  HEDDLE_RETURN_IF_ERROR(BindAdapters(plan));
  HEDDLE_RETURN_IF_ERROR(CopyPages(plan));
  HEDDLE_RETURN_IF_ERROR(ResolveTokens(plan));
  row_history_.resize(plan.token_ids.size());
  for (size_t i = 0; i < plan.sequences.size(); ++i) {
    HEDDLE_RETURN_IF_ERROR(RunSequence(plan, i));
  }
  HEDDLE_RETURN_IF_ERROR(CheckAdapters(plan));
  engine::StepResult& result = results_.emplace_back();
  result.step = plan.step;
  result.timing.idle_ns = idle_ns_;
  HEDDLE_RETURN_IF_ERROR(Draw(plan, &result));
  HEDDLE_RETURN_IF_ERROR(Score(plan, &result));
  for (engine::SequenceId id : plan.ended) {
    if (live_.erase(id) == 0) return Broken(id, "ended but never begun");
  }
  num_live_ = static_cast<int64_t>(live_.size());
  num_rows_ += static_cast<int64_t>(plan.token_ids.size());
  return absl::OkStatus();
}

bool FakeExecutor::Abandon() {
  if (!recover_) return false;
  for (; !results_.empty(); results_.pop_back()) {
    for (const engine::SequenceGain& gain : results_.back().gains) {
      const auto it = live_.find(gain.id);
      if (it != live_.end()) it->second.next_position -= gain.num_tokens;
    }
  }
  cells_.assign(cells_.size(), {});
  host_cells_.assign(host_cells_.size(), {});
  last_has_pools_ = false;
  return true;
}

absl::Status FakeExecutor::Wait(engine::StepResult* result) {
  if (before_result_) HEDDLE_RETURN_IF_ERROR(before_result_());
  if (results_.empty()) return absl::InternalError("no plan is in flight");
  *result = std::move(results_.front());
  results_.pop_front();
  for (engine::SequenceGain& gain : result->gains) {
    if (gain.num_tokens != 1 || gain.rows_kept != 1) continue;
    if (!leaves_out_ || !leaves_out_(gain.id)) continue;
    gain.num_tokens = gain.rows_kept = 0;
    --live_.at(gain.id).next_position;
  }
  return absl::OkStatus();
}

// Rows that name a sample of a step in flight get its token, if it is their sequence's.
absl::Status FakeExecutor::ResolveTokens(const StepPlan& plan) {
  tokens_ = plan.token_ids;
  size_t next = 0;
  for (const SequenceSlice& slice : plan.sequences) {
    for (int32_t row = slice.token_begin; row < slice.token_begin + slice.num_tokens; ++row) {
      if (tokens_[row] != engine::kNoToken) continue;
      if (next == plan.undrawn.size() || plan.undrawn[next].row != row) {
        return Broken(slice.id, "has a row without a token");
      }
      const engine::UndrawnRow& undrawn = plan.undrawn[next++];
      const auto from = std::find_if(results_.begin(), results_.end(), [&](const auto& result) {
        return result.step == undrawn.step;
      });
      if (from == results_.end()) return Broken(slice.id, "names a token that must be known");
      const auto sample = static_cast<size_t>(undrawn.sample);
      if (sample >= from->gains.size() || from->gains[sample].id != slice.id) {
        return Broken(slice.id, "names a sample that is not its own");
      }
      if (from->gains[sample].num_tokens == 0) {
        return Broken(slice.id, "names a sample that brings nothing");
      }
      tokens_[row] = from->tokens[from->gains[sample].token_begin].token;
    }
  }
  if (next != plan.undrawn.size()) return absl::InternalError("plan broken: undrawn rows");
  return absl::OkStatus();
}

absl::Status FakeExecutor::CheckShape(const StepPlan& plan) const {
  size_t rows = plan.token_ids.size();
  if (rows > static_cast<size_t>(limits_.max_batch_tokens)) {
    return absl::InternalError(absl::StrCat("plan broken: ", rows, " rows"));
  }
  if (plan.sequences.size() > static_cast<size_t>(limits_.max_batch_seqs)) {
    return absl::InternalError(absl::StrCat("plan broken: ", plan.sequences.size(), " sequences"));
  }
  if (plan.positions.size() != rows || plan.kv_slots.size() != rows) {
    return absl::InternalError("plan broken: rows of different counts");
  }
  int32_t row = 0, span = 0;
  for (const SequenceSlice& slice : plan.sequences) {
    if (slice.token_begin != row || slice.num_tokens < 1 || slice.span_begin != span) {
      return Broken(slice.id, "slices must follow each other and hold a row");
    }
    if (slice.kind == engine::SliceKind::kDecode && slice.num_tokens != 1) {
      return Broken(slice.id, "decodes more than one token");
    }
    if (slice.kind == engine::SliceKind::kDraft && slice.num_tokens < 2) {
      return Broken(slice.id, "has a draft without a proposed token");
    }
    if (slice.num_masks != 0) return Broken(slice.id, "has a tree, which this executor has not");
    row += slice.num_tokens;
    span += slice.num_spans;
  }
  if (row != static_cast<int32_t>(rows) || span != static_cast<int32_t>(plan.spans.size())) {
    return absl::InternalError("plan broken: rows or spans of no sequence");
  }
  if (plan.more_groups.size() + 1 != limits_.windows.size()) {
    return absl::InternalError("plan broken: not all groups of layers");
  }
  for (const engine::GroupSpans& group : plan.more_groups) {
    HEDDLE_RETURN_IF_ERROR(CheckGroup(plan, group));
  }
  return absl::OkStatus();
}

absl::Status FakeExecutor::CheckGroup(const StepPlan& plan, const engine::GroupSpans& group) const {
  if (group.kv_slots.size() != plan.token_ids.size() ||
      group.ranges.size() != plan.sequences.size()) {
    return absl::InternalError("plan broken: rows or sequences that a group lacks");
  }
  int32_t span = 0;
  for (const engine::GroupSpans::Range& range : group.ranges) {
    if (range.span_begin != span) return absl::InternalError("plan broken: a group's spans");
    span += range.num_spans;
  }
  if (span != static_cast<int32_t>(group.spans.size())) {
    return absl::InternalError("plan broken: a group's spans of no sequence");
  }
  return absl::OkStatus();
}

absl::Status FakeExecutor::SwapPages(const StepPlan& plan) {
  const auto page_tokens = static_cast<size_t>(limits_.page_tokens);
  auto host = [&](int32_t slot) { return host_cells_.begin() + slot * limits_.page_tokens; };
  auto is_valid = [&](const engine::PageSwap& swap) {
    return swap.slot >= 0 && swap.slot < limits_.num_host_pages && Index(swap.page) >= 0 &&
           Index(swap.page) < limits_.num_pages;
  };
  std::vector<int32_t> slots, pages;  // written
  for (const engine::PageSwap& swap : plan.swaps_out) {
    if (!is_valid(swap)) return absl::InternalError("plan broken: a swap goes nowhere");
    std::copy_n(&At(swap.page, 0), page_tokens, host(swap.slot));
    slots.push_back(swap.slot);
  }
  for (const engine::PageSwap& swap : plan.swaps_in) {
    if (!is_valid(swap)) return absl::InternalError("plan broken: a swap comes from nowhere");
    std::copy_n(host(swap.slot), page_tokens, &At(swap.page, 0));
    factor_pages_[Index(swap.page)] = {};
    pages.push_back(Index(swap.page));
  }
  for (std::vector<int32_t>* written : {&slots, &pages}) {
    std::sort(written->begin(), written->end());
    if (std::adjacent_find(written->begin(), written->end()) != written->end()) {
      return absl::InternalError("plan broken: two swaps write to one place");
    }
  }
  return absl::OkStatus();
}

absl::Status FakeExecutor::LoadAdapters(const StepPlan& plan) {
  for (const engine::AdapterPageLoad& load : plan.adapter_loads) {
    if (load.adapter == engine::AdapterId{} || Index(load.page) < 0 ||
        Index(load.page) >= limits_.num_pages) {
      return absl::InternalError("plan broken: a load of an adapter goes nowhere");
    }
    const auto writes = [&load](const auto& other) { return other.page == load.page; };
    if (std::count_if(plan.adapter_loads.begin(), plan.adapter_loads.end(), writes) != 1 ||
        std::any_of(plan.swaps_in.begin(), plan.swaps_in.end(), writes)) {
      return absl::InternalError("plan broken: a page is loaded to twice");
    }
    factor_pages_[Index(load.page)] = {load.adapter, load.image_page};
    for (int32_t i = 0; i < limits_.page_tokens; ++i) At(load.page, i) = {};
  }
  return absl::OkStatus();
}

absl::Status FakeExecutor::BindAdapters(const StepPlan& plan) {
  size_t next = 0;
  for (const engine::AdapterBind& bind : plan.adapter_binds) {
    if (bind.slot < 0 || bind.slot >= limits_.adapter_slots) {
      return absl::InternalError("plan broken: an adapter is bound to no slot");
    }
    Slot& slot = slots_[bind.slot];
    if (!results_.empty() && slot.last_step >= results_.front().step) {
      return absl::InternalError("plan broken: a slot is bound that a step in flight has rows of");
    }
    if (bind.num_pages <= 0 || static_cast<size_t>(bind.page_begin) != next ||
        next + static_cast<size_t>(bind.num_pages) > plan.adapter_pages.size()) {
      return absl::InternalError("plan broken: the pages of a bound adapter");
    }
    const auto begin = plan.adapter_pages.begin() + bind.page_begin;
    slot = {.adapter = bind.adapter, .scale = bind.scale, .pages = {begin, begin + bind.num_pages}};
    next += static_cast<size_t>(bind.num_pages);
  }
  if (next != plan.adapter_pages.size()) {
    return absl::InternalError("plan broken: pages of no bound adapter");
  }
  return absl::OkStatus();
}

// The pages of each adapter that rows name still hold its factors when all rows are written.
absl::Status FakeExecutor::CheckAdapters(const StepPlan& plan) {
  for (const SequenceSlice& slice : plan.sequences) {
    if (slice.adapter_slot < 0) continue;
    Slot& slot = slots_[slice.adapter_slot];
    for (size_t i = 0; i < slot.pages.size(); ++i) {
      const FactorPage& held = factor_pages_[Index(slot.pages[i])];
      if (held.adapter != slot.adapter || held.image_page != static_cast<int32_t>(i)) {
        return Broken(slice.id, "has an adapter whose pages hold something else");
      }
    }
    slot.last_step = plan.step;
  }
  return absl::OkStatus();
}

uint64_t FakeExecutor::AdapterKey(engine::AdapterId id, float scale) {
  if (id == engine::AdapterId{}) return 0;
  return Mix(static_cast<uint64_t>(id) ^ Mix(static_cast<uint64_t>(scale * 1000)));
}

absl::Status FakeExecutor::CopyPages(const StepPlan& plan) {
  // In any order: so no page may be both read and written, or written twice.
  for (const engine::PageCopy& copy : plan.page_copies) {
    if (page_is_written_[Index(copy.to)]++) return absl::InternalError("page written twice");
  }
  absl::Status status;
  for (const engine::PageCopy& copy : plan.page_copies) {
    if (page_is_written_[Index(copy.from)]) {
      status = absl::InternalError("plan broken: page is read and written by copies");
    }
    factor_pages_[Index(copy.to)] = {};
    for (int32_t i = 0; i < copy.num_tokens; ++i) At(copy.to, i) = At(copy.from, i);
  }
  for (const engine::PageCopy& copy : plan.page_copies) page_is_written_[Index(copy.to)] = 0;
  return status;
}

// Writes the slice's tokens to their slots, then reads the whole context back through the spans;
// for every group.
absl::Status FakeExecutor::RunSequence(const StepPlan& plan, size_t index) {
  const SequenceSlice& slice = plan.sequences[index];
  if (!live_.contains(slice.id)) return Broken(slice.id, "runs but was not begun");
  if (slice.adapter_slot >= limits_.adapter_slots ||
      (slice.adapter_slot >= 0 && slots_[slice.adapter_slot].pages.empty())) {
    return Broken(slice.id, "names a slot that has no adapter");
  }
  const auto view = [&](size_t group) -> GroupView {
    if (group == 0) {
      return {0,
              plan.kv_slots,
              plan.spans.data() + slice.span_begin,
              {slice.span_begin, slice.num_spans, slice.context_tokens}};
    }
    const engine::GroupSpans& more = plan.more_groups[group - 1];
    const engine::GroupSpans::Range& range = more.ranges[index];
    return {static_cast<int32_t>(group), more.kv_slots, more.spans.data() + range.span_begin,
            range};
  };
  for (size_t group = 0; group <= plan.more_groups.size(); ++group) {
    HEDDLE_RETURN_IF_ERROR(WriteSlots(plan, slice, view(group)));
  }
  for (size_t group = 0; group <= plan.more_groups.size(); ++group) {
    HEDDLE_RETURN_IF_ERROR(sees_parts_ ? ReadParts(plan, slice, view(group))
                                       : ReadContext(plan, slice, view(group)));
  }
  return absl::OkStatus();
}

absl::Status FakeExecutor::WriteSlots(const StepPlan& plan, const SequenceSlice& slice,
                                      const GroupView& view) {
  for (int32_t row = slice.token_begin; row < slice.token_begin + slice.num_tokens; ++row) {
    engine::KvSlot slot = view.slots[row];
    if (Index(slot.page) < 0 || Index(slot.page) >= limits_.num_pages || slot.offset < 0 ||
        slot.offset >= limits_.page_tokens) {
      return Broken(slice.id, "slot outside of the pool");
    }
    if (tokens_[row] < 0 || tokens_[row] >= limits_.vocab) {
      return Broken(slice.id, "token outside of the vocabulary");
    }
    factor_pages_[Index(slot.page)] = {};
    Cell& first = At(slot.page, 0);
    const bool begins = row == slice.token_begin;
    if (IsSnapshot(view.group) && begins && slot.offset > 0 &&
        (slot.offset < first.next_first || slot.offset > first.next_last)) {
      return Broken(slice.id, "goes on from a state that its page does not have");
    }
    At(slot.page, slot.offset) = {true, tokens_[row], plan.positions[row], 0, view.group};
    // Rows of a draft may be taken back.
    const bool is_draft = slice.kind == engine::SliceKind::kDraft;
    if (!is_draft) first.next_first = slot.offset + 1;
    if (is_draft && begins) first.next_first = slot.offset;
    first.next_last = slot.offset + 1;
  }
  return absl::OkStatus();
}

std::vector<FakeExecutor::SeenPosition> FakeExecutor::PositionsOf(
    const StepPlan& plan, const SequenceSlice& slice) const {
  std::vector<SeenPosition> positions;
  for (int32_t i = slice.piece_begin; i < slice.piece_begin + slice.num_pieces; ++i) {
    const engine::ContextPiece& piece = plan.pieces[i];
    for (int32_t j = 0; j < piece.num_tokens; ++j)
      positions.push_back({piece.position + j, piece.turn});
  }
  if (slice.num_pieces > 0) return positions;
  const engine::Position end = plan.positions[slice.token_begin] + slice.num_tokens;
  for (engine::Position position = 0; position < end; ++position) positions.push_back({position});
  return positions;
}

// Without windows, positions are not the plan's to tell. With one, the first part may lack what no
// row of the slice sees; there the history behind a token is the token's own.
absl::Status FakeExecutor::ReadParts(const StepPlan& plan, const SequenceSlice& slice,
                                     const GroupView& view) {
  const bool tells =
      slice.num_pieces > 0 || std::any_of(limits_.windows.begin(), limits_.windows.end(),
                                          [](int32_t window) { return window > 0; });
  std::vector<SeenPosition> positions;
  if (tells) positions = PositionsOf(plan, slice);
  const int32_t lacks =
      tells ? static_cast<int32_t>(positions.size()) - view.range.context_tokens : 0;
  const int32_t window = limits_.windows[view.group];
  const engine::Position first_new = plan.positions[slice.token_begin];
  if (lacks < 0 || (lacks > 0 && (window == 0 || lacks > first_new + 1 - window))) {
    return Broken(slice.id, "lacks positions that its rows see");
  }
  if (lacks % limits_.window_grain != 0) return Broken(slice.id, "was cut within a grain");
  bool is_known = lacks == 0;
  uint64_t history = kEmptyHistory;
  int32_t row = slice.token_begin - (view.range.context_tokens - slice.num_tokens);
  auto position = positions.begin() + lacks;
  for (int32_t s = 0; s < view.range.num_spans; ++s) {
    const KvSpan& span = view.spans[s];
    for (int32_t offset = 0; offset < span.num_tokens; ++offset, ++row) {
      Cell& cell = At(span.page, offset);
      if (!cell.written) return Broken(slice.id, "reads a slot that was never written");
      if (cell.group != view.group) return Broken(slice.id, "reads another group's page");
      const int32_t turn = tells ? position->turn : 0;
      if (tells && cell.position != (position++)->position) {
        return Broken(slice.id, "reads a position of another place");
      }
      if (row < slice.token_begin) {
        history =
            is_known ? See(history, cell.token, cell.position - turn, cell.history) : cell.history;
        is_known = true;
        continue;
      }
      if (row >= slice.token_begin + slice.num_tokens || view.slots[row].page != span.page ||
          view.slots[row].offset != offset) {
        return Broken(slice.id, "spans do not end with the new slots");
      }
      history = cell.history = Extend(history, cell.token);
      if (view.group > 0 && row_history_[row] != history) {
        return Broken(slice.id, "its groups of layers see different histories");
      }
      row_history_[row] = history;
    }
  }
  if (row != slice.token_begin + slice.num_tokens) return Broken(slice.id, "spans do not add up");
  return absl::OkStatus();
}

absl::Status FakeExecutor::ReadContext(const StepPlan& plan, const SequenceSlice& slice,
                                       const GroupView& view) {
  uint64_t history = kEmptyHistory;
  if (slice.adapter_slot >= 0) {
    const Slot& slot = slots_[slice.adapter_slot];
    history ^= AdapterKey(slot.adapter, slot.scale);
  }
  const int32_t window = limits_.windows[view.group];
  // The first span's position: behind 0 where a window has passed all that was before.
  const engine::Position first_new = plan.positions[slice.token_begin];
  engine::Position position = first_new + slice.num_tokens - view.range.context_tokens;
  if (position < 0 || (window == 0 && position > 0) ||
      (position > 0 && position > first_new + 1 - window)) {
    return Broken(slice.id, "lacks positions that its rows see");
  }
  const engine::PageRule rule{.page_tokens = limits_.page_tokens,
                              .window_grain = limits_.window_grain,
                              .state_groups = limits_.state_groups};
  const int32_t grain = rule.GrainOf(view.group, static_cast<int64_t>(limits_.windows.size()));
  if (position % grain != 0) return Broken(slice.id, "was cut within a grain");
  bool is_known = position == 0;  // the history before the first span
  for (int32_t s = 0; s < view.range.num_spans; ++s) {
    KvSpan span = view.spans[s];
    if (IsSnapshot(view.group) && s + 1 < view.range.num_spans &&
        At(span.page, 0).next_last != limits_.page_tokens) {
      return Broken(slice.id, "goes on behind a page whose state is that of another position");
    }
    for (int32_t offset = 0; offset < span.num_tokens; ++offset, ++position) {
      Cell& cell = At(span.page, offset);
      if (!cell.written) return Broken(slice.id, "reads a slot that was never written");
      if (cell.position != position) return Broken(slice.id, "reads a position of another place");
      if (cell.group != view.group) return Broken(slice.id, "reads another group's page");
      if (!is_known) {
        history = cell.history;  // the token's own included
        is_known = true;
        continue;
      }
      history = Extend(history, cell.token);
      if (position < first_new) {
        if (cell.history != history) return Broken(slice.id, "reads another sequence's history");
        continue;
      }
      int32_t row = slice.token_begin + position - first_new;
      if (row >= slice.token_begin + slice.num_tokens || view.slots[row].page != span.page ||
          view.slots[row].offset != offset) {
        return Broken(slice.id, "spans do not end with the new slots");
      }
      if (view.group > 0 && row_history_[row] != history) {
        return Broken(slice.id, "its groups of layers see different histories");
      }
      cell.history = history;
      row_history_[row] = history;
    }
  }
  if (position != first_new + slice.num_tokens) return Broken(slice.id, "spans do not add up");
  return absl::OkStatus();
}

}  // namespace heddle::test
