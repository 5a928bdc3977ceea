#include "scheduler/plan_writer.h"

#include <algorithm>

namespace heddle::scheduler {

using engine::StepPlan;

namespace {

bool HasPenalties(const engine::SamplingParams& sampling) {
  return sampling.repetition_penalty != 1.0f || sampling.presence_penalty != 0.0f ||
         sampling.frequency_penalty != 0.0f;
}

// Token ids, positions and slots of positions [begin, begin + count). The table's last `count`
// positions are these, because no position is ever computed out of order.
void WriteRows(const Sequence& sequence, int32_t begin, int32_t count, int32_t page_tokens,
               StepPlan* plan) {
  std::span<const KvSpan> spans = sequence.table.spans();
  // The span and the offset in it that position `begin` falls on, looked for from the end.
  size_t span = spans.size();
  int32_t at = sequence.table.num_tokens();
  while (at > begin) at -= spans[--span].num_tokens;
  int32_t offset = begin - at;
  for (int32_t i = 0; i < count; ++i, ++offset) {
    if (offset == page_tokens) {
      ++span;
      offset = 0;
    }
    plan->token_ids.push_back(sequence.TokenAt(begin + i));
    plan->positions.push_back(begin + i);
    plan->kv_slots.push_back({spans[span].page, offset});
  }
}

// Scores of the prompt tokens that follow the rows of positions [begin, end).
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

// What rows of positions [begin, end) add to the prompt's embedding. A preempted sequence computes
// positions again: those that are pooled already are left out.
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

void Begin(Sequence* sequence, StepPlan* plan) {
  if (sequence->begun) return;
  const GenerationRequest& request = sequence->request->request;
  engine::SequenceBegin& begin = plan->begun.emplace_back();
  begin.id = sequence->id;
  begin.sampling = request.sampling;
  begin.sampling.seed += static_cast<uint64_t>(sequence->branch);
  if (HasPenalties(request.sampling)) begin.prompt = request.prompt;
  sequence->begun = true;
}

}  // namespace

int32_t WriteSlice(Sequence* writable, int32_t page_tokens, StepPlan* plan) {
  Begin(writable, plan);
  const Sequence& sequence = *writable;
  int32_t count = sequence.num_planned;
  int32_t end = sequence.table.num_tokens();
  int32_t first_row = static_cast<int32_t>(plan->token_ids.size());
  std::span<const KvSpan> spans = sequence.table.spans();
  plan->sequences.push_back({.id = sequence.id,
                             .token_begin = first_row,
                             .num_tokens = count,
                             .span_begin = static_cast<int32_t>(plan->spans.size()),
                             .num_spans = static_cast<int32_t>(spans.size()),
                             .context_tokens = end - sequence.table.num_dropped()});
  plan->spans.insert(plan->spans.end(), spans.begin(), spans.end());
  WriteRows(sequence, end - count, count, page_tokens, plan);
  if (sequence.request->request.prompt_logprobs >= 0) {
    WriteScores(sequence, end - count, end, first_row, plan);
  }
  WritePools(sequence, end - count, end, first_row, plan);
  return first_row + count - 1;
}

void WriteSample(Sequence* sequence, int32_t row, StepPlan* plan) {
  Begin(sequence, plan);
  plan->samples.push_back({sequence->id, row, sequence->num_tokens()});
}

}  // namespace heddle::scheduler
