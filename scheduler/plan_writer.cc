#include "scheduler/plan_writer.h"

#include <algorithm>

#include "scheduler/workers.h"

namespace heddle::scheduler {

using engine::StepPlan;

namespace {

// Writes the slots of the table's last `count` positions: positions are always computed in order.
void WriteSlots(const PageTable& table, int32_t count, int32_t page_tokens,
                std::vector<engine::KvSlot>* slots) {
  std::span<const KvSpan> spans = table.spans();
  // Finds the span, and the offset in it, of the first of these positions, searching from the end.
  const int32_t begin = table.num_tokens() - count;
  size_t span = spans.size();
  int32_t at = table.num_tokens();
  while (at > begin) at -= spans[--span].num_tokens;
  int32_t offset = begin - at;
  for (int32_t i = 0; i < count; ++i, ++offset) {
    if (offset == page_tokens) {
      ++span;
      offset = 0;
    }
    slots->push_back({spans[span].page, offset});
  }
}

// Adds what the table's last `count` places see of it, themselves included, to *spans.
engine::GroupSpans::Range WriteSpans(const ContextLayout& layout, const PageTable& table,
                                     int32_t count, std::vector<KvSpan>* spans) {
  const auto begin = static_cast<int32_t>(spans->size());
  int32_t context_tokens = table.num_tokens() - table.num_dropped();
  uint64_t version = 0;
  if (layout.is_plain()) {
    spans->insert(spans->end(), table.spans().begin(), table.spans().end());
    version = table.version();
  } else {
    const int32_t end = table.num_tokens();
    context_tokens = layout.AddSeen(table.spans(), end - count, end, spans, table.num_dropped());
  }
  return {begin, static_cast<int32_t>(spans->size()) - begin, context_tokens, version};
}

// Writes the scores of the prompt tokens that follow the rows of positions [begin, end).
void WriteScores(const Sequence& sequence, int32_t begin, int32_t end, int32_t first_row,
                 StepPlan* plan) {
  RequestState& request = *sequence.request;
  int32_t last = std::min(end, request.num_prompt() - 1);
  for (int32_t p = std::max(begin, request.num_scored); p < last; ++p) {
    plan->scores.push_back({sequence.id, first_row + p - begin, request.request.prompt[p + 1],
                            request.request.prompt_logprobs});
    request.num_scored = p + 1;
  }
}

// Writes what the rows of positions [begin, end) add to the prompt's embedding. A preempted
// sequence computes positions again: those that are already pooled are left out.
void WritePools(const Sequence& sequence, int32_t begin, int32_t end, int32_t first_row,
                StepPlan* plan) {
  RequestState& request = *sequence.request;
  bool last = end >= request.num_prompt();
  int32_t from = 0;
  int32_t to = 0;
  switch (request.request.pooling) {
    case engine::Pooling::kNone:
      return;
    case engine::Pooling::kLast:
      if (!last) return;
      from = request.num_prompt() - 1;
      to = request.num_prompt();
      break;
    case engine::Pooling::kMean:
      from = std::max(begin, request.num_pooled);
      to = std::max(from, std::min(end, request.num_prompt()));
      request.num_pooled = to;
      break;
    case engine::Pooling::kFirst:
      to = request.num_pooled == 0 ? 1 : 0;
      request.num_pooled = 1;
      break;
  }
  if (from == to && !last) return;
  int32_t row = from == to ? first_row : first_row + from - begin;
  plan->pools.push_back({sequence.id, row, to - from, last});
}

// The first of the rows of positions [begin, end) whose token has the type 1; -1: none.
int32_t SecondBegin(const Sequence& sequence, int32_t begin, int32_t end) {
  const int32_t second = sequence.request->request.second_begin;
  return second < 0 || second >= end ? -1 : std::max(0, second - begin);
}

void Begin(Sequence* sequence, StepPlan* plan, engine::StepLocals* locals) {
  if (sequence->begun) return;
  const GenerationRequest& request = sequence->request->request;
  engine::SequenceBegin& begin = plan->begun.emplace_back();
  begin.id = sequence->id;
  if (request.sampling_of.empty()) {
    begin.sampling = request.sampling;
    begin.sampling.seed += static_cast<uint64_t>(sequence->branch);
  } else {
    begin.sampling = request.sampling_of[static_cast<size_t>(sequence->branch)];
  }
  if (begin.sampling.has_penalties()) {
    begin.prompt = request.prompt;
    std::erase(begin.prompt, engine::kNoToken);
  }
  if (request.grammar) locals->grammars.push_back({sequence->id, request.grammar});
  sequence->begun = true;
}

}  // namespace

// A single token behind the prompt was drawn; several at a time are forced tokens, or those of an
// answer that is computed again.
engine::SliceKind SliceKindOf(const Sequence& sequence) {
  if (sequence.num_drafted > 0) return engine::SliceKind::kDraft;
  const bool is_prompt =
      sequence.num_planned > 1 || sequence.num_computed() <= sequence.request->num_prompt();
  return is_prompt ? engine::SliceKind::kPrompt : engine::SliceKind::kDecode;
}

int32_t WriteSlice(Sequence* writable, const SchedulerLimits& limits, StepPlan* plan,
                   engine::StepLocals* locals) {
  const int32_t page_tokens = limits.options.page_tokens;
  Begin(writable, plan, locals);
  const Sequence& sequence = *writable;
  const PageTable& table = sequence.tables[0];
  int32_t count = sequence.num_planned;
  int32_t end = table.num_tokens();
  int32_t first_row = static_cast<int32_t>(plan->token_ids.size());
  const ContextLayout& layout = sequence.request->layout;
  const bool is_worker = sequence.request->has_workers() && sequence.request->forked;
  const engine::GroupSpans::Range range =
      is_worker ? WriteWorkerSpans(sequence, /*group=*/0, page_tokens, &plan->spans)
                : WriteSpans(layout, table, count, &plan->spans);
  const auto first_piece = static_cast<int32_t>(plan->pieces.size());
  if (is_worker) {
    WriteWorkerPieces(sequence, &plan->pieces);
  } else if (limits.counts_positions && !layout.is_plain()) {
    layout.AddPieces(end - count, end, &plan->pieces);
  }
  plan->sequences.push_back({.id = sequence.id,
                             .kind = SliceKindOf(sequence),
                             .token_begin = first_row,
                             .num_tokens = count,
                             .span_begin = range.span_begin,
                             .num_spans = range.num_spans,
                             .context_tokens = range.context_tokens,
                             .adapter_slot = sequence.adapter_slot,
                             .next_token = sequence.TokenAt(end),
                             .second_begin = SecondBegin(sequence, end - count, end),
                             .segment = layout.SegmentAt(end - count),
                             .piece_begin = first_piece,
                             .num_pieces = static_cast<int32_t>(plan->pieces.size()) - first_piece,
                             .list_version = range.list_version});
  for (int32_t place = end - count; place < end; ++place) {
    plan->token_ids.push_back(sequence.TokenAt(place));
    plan->positions.push_back(layout.PositionAt(place));
  }
  if (end - sequence.num_drafted > sequence.num_tokens()) {
    plan->undrawn.push_back(
        {first_row + count - 1, sequence.expected_sample, sequence.expected_step});
  }
  WriteSlots(table, count, page_tokens, &plan->kv_slots);
  for (size_t i = 0; i < plan->more_groups.size(); ++i) {
    const auto group = static_cast<int32_t>(i) + 1;
    engine::GroupSpans& spans = plan->more_groups[i];
    spans.ranges.push_back(is_worker
                               ? WriteWorkerSpans(sequence, group, page_tokens, &spans.spans)
                               : WriteSpans(layout, sequence.tables[group], count, &spans.spans));
    WriteSlots(sequence.tables[group], count, page_tokens, &spans.kv_slots);
  }
  if (sequence.request->request.prompt_logprobs >= 0) {
    WriteScores(sequence, end - count, end, first_row, plan);
  }
  WritePools(sequence, end - count, end, first_row, plan);
  return first_row + count - 1;
}

void WriteAheadSlots(Sequence* sequence, int32_t page_tokens, StepPlan* plan) {
  sequence->ahead_slot = static_cast<int32_t>(plan->ahead_slots.size());
  WriteSlots(sequence->tables[0], sequence->num_ahead, page_tokens, &plan->ahead_slots);
  for (size_t i = 0; i < plan->more_groups.size(); ++i) {
    WriteSlots(sequence->tables[static_cast<int32_t>(i) + 1], sequence->num_ahead, page_tokens,
               &plan->more_groups[i].ahead_slots);
  }
}

void WriteSample(Sequence* sequence, int32_t row, StepPlan* plan, engine::StepLocals* locals) {
  Begin(sequence, plan, locals);
  const int32_t place = sequence->num_tokens() + sequence->num_expected;
  plan->samples.push_back(
      {sequence->id, row, sequence->request->layout.PositionAt(place), 1 + sequence->num_drafted});
}

}  // namespace heddle::scheduler
