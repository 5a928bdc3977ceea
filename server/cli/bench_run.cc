#include "server/cli/bench_run.h"

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <span>

#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "engine/model/spec_traffic.h"
#include "engine/whole_context.h"
#include "scheduler/pipeline.h"

namespace heddle::server {
namespace {

using engine::KvSpan;
using engine::PageId;
using engine::SequenceId;

double NowSeconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

int32_t PagesPerSequence(const BenchShape& shape, int32_t page_tokens) {
  return (ContextOf(shape) + page_tokens - 1) / page_tokens;
}

// Pages of sequences that grow together are interleaved, as an allocator would assign them.
PageId PageOf(int32_t sequence, int32_t page, int32_t batch) {
  return static_cast<PageId>(page * batch + sequence);
}

// Any valid ids will do: a multiplicative hash of position and sequence (Knuth's constant).
engine::TokenId TokenAt(int32_t sequence, int32_t position, int32_t vocab) {
  const uint32_t hash = (static_cast<uint32_t>(sequence) * 7919 + position + 1) * 2654435761u;
  return static_cast<engine::TokenId>((hash >> 8) % static_cast<uint32_t>(vocab));
}

}  // namespace

BenchWork WorkOf(const BenchShape& shape, const engine::ModelSpec& spec,
                 const engine::WeightTraffic& weights, int64_t kv_bytes_per_token) {
  const double batch = shape.batch;
  const double prompt = shape.prompt_tokens;
  const double steps = shape.output_tokens;
  BenchWork work;
  work.prefill_ops = 2.0 * batch *
                     (prompt * static_cast<double>(weights.macs_per_token) +
                      static_cast<double>(weights.macs_per_logit_row));
  const auto layers = std::span(spec.layers);
  for (const engine::LayerSpec& layer :
       layers.first(static_cast<size_t>(engine::NarrowingLayer(spec)))) {
    // Scores and values take a multiply-add each per query, visible position and dimension.
    work.prefill_ops += 4.0 * batch * prompt * (prompt + 1) / 2 * layer.attention.n_heads *
                        layer.attention.head_dim;
  }
  const double positions = steps * prompt + steps * (steps + 1) / 2;  // summed over the steps
  work.decode_bytes = steps * weights.StepBytes(batch) +
                      batch * positions * static_cast<double>(kv_bytes_per_token);
  return work;
}

absl::StatusOr<BenchRun> BenchRun::Create(engine::Executor& executor, const BenchShape& shape) {
  const engine::ExecutorLimits& limits = executor.limits();
  if (ContextOf(shape) > limits.max_context) {
    return absl::InvalidArgumentError(
        absl::StrCat("a sequence of ", shape.prompt_tokens, " + ", shape.output_tokens,
                     " tokens is longer than the context of ", limits.max_context,
                     "; lower --prompt-tokens or --output-tokens"));
  }
  const int64_t pages = int64_t{PagesPerSequence(shape, limits.page_tokens)} * shape.batch;
  const int64_t pages_of_group = limits.num_pages / static_cast<int64_t>(limits.windows.size());
  if (pages > pages_of_group) {
    return absl::InvalidArgumentError(absl::StrCat(
        "--batch ", shape.batch, " needs ", pages * limits.page_tokens, " tokens of KV cache, ",
        pages_of_group * limits.page_tokens, " fit; raise --kv-memory"));
  }
  if (shape.batch > limits.max_batch_tokens) {
    return absl::InvalidArgumentError(absl::StrCat(
        "--batch ", shape.batch, " is more than --max-batch-tokens ", limits.max_batch_tokens));
  }
  return BenchRun(executor, shape);
}

void BenchRun::AddRows(int32_t index, int32_t begin, int32_t end, bool draw) {
  const int32_t page_tokens = executor_.limits().page_tokens;
  engine::SequenceSlice slice{
      .id = static_cast<SequenceId>(index + 1),
      .kind = end - begin == 1 ? engine::SliceKind::kDecode : engine::SliceKind::kPrompt,
      .token_begin = static_cast<int32_t>(plan().token_ids.size()),
      .num_tokens = end - begin,
      .span_begin = static_cast<int32_t>(plan().spans.size()),
      .num_spans = (end + page_tokens - 1) / page_tokens,
      .context_tokens = end};
  for (int32_t position = begin; position < end; ++position) {
    plan().token_ids.push_back(TokenAt(index, position, executor_.limits().vocab));
    plan().positions.push_back(position);
    plan().kv_slots.push_back(
        {PageOf(index, position / page_tokens, shape_.batch), position % page_tokens});
  }
  for (int32_t page = 0; page < slice.num_spans; ++page) {
    plan().spans.push_back(
        {PageOf(index, page, shape_.batch), std::min(page_tokens, end - page * page_tokens)});
  }
  if (draw) {
    plan().samples.push_back(
        {.id = slice.id, .row = slice.token_begin + slice.num_tokens - 1, .position = end});
  }
  plan().sequences.push_back(slice);
}

// Submits the plan; one must be waited for if no more may be in flight.
absl::Status BenchRun::Submit() {
  const engine::ExecutorLimits& limits = executor_.limits();
  const auto groups = static_cast<int32_t>(limits.windows.size());
  engine::AddWholeGroups(groups, limits.num_pages / groups, &plan());
  plan().step = ++step_;
  HEDDLE_RETURN_IF_ERROR(executor_.Submit(plan(), {}));
  flights_.Push();
  if (flights_.full()) HEDDLE_RETURN_IF_ERROR(WaitOldest());
  plan().Clear();
  return absl::OkStatus();
}

absl::Status BenchRun::WaitOldest() {
  HEDDLE_RETURN_IF_ERROR(executor_.Wait(&result_));
  flights_.Pop();
  return absl::OkStatus();
}

absl::Status BenchRun::WaitAll() {
  while (!flights_.empty()) HEDDLE_RETURN_IF_ERROR(WaitOldest());
  return absl::OkStatus();
}

void BenchRun::Begin() {
  engine::SamplingParams greedy;
  greedy.temperature = 0.0f;
  for (int32_t i = 0; i < shape_.batch; ++i) {
    plan().begun.push_back(
        {.id = static_cast<SequenceId>(i + 1), .sampling = greedy, .prompt = {}});
  }
}

absl::Status BenchRun::End() {
  for (int32_t i = 0; i < shape_.batch; ++i) {
    plan().ended.push_back(static_cast<SequenceId>(i + 1));
  }
  HEDDLE_RETURN_IF_ERROR(Submit());
  return WaitAll();
}

absl::StatusOr<double> BenchRun::MeasureDecodes() {
  Begin();
  for (int32_t i = 0; i < shape_.batch; ++i) {
    AddRows(i, shape_.prompt_tokens - 1, shape_.prompt_tokens, /*draw=*/true);
  }
  HEDDLE_RETURN_IF_ERROR(Submit());
  HEDDLE_RETURN_IF_ERROR(WaitAll());
  const double start = NowSeconds();
  HEDDLE_RETURN_IF_ERROR(Decode());
  const double seconds = NowSeconds() - start;
  HEDDLE_RETURN_IF_ERROR(End());
  return seconds;
}

absl::StatusOr<double> BenchRun::MeasureChunks(int32_t rows) {
  Begin();
  double start = 0;
  for (int32_t step = 0; step <= shape_.output_tokens; ++step) {
    AddRows(0, shape_.prompt_tokens - rows, shape_.prompt_tokens, /*draw=*/false);
    HEDDLE_RETURN_IF_ERROR(Submit());
    if (step > 0) continue;
    HEDDLE_RETURN_IF_ERROR(WaitAll());
    start = NowSeconds();
  }
  HEDDLE_RETURN_IF_ERROR(WaitAll());
  const double seconds = NowSeconds() - start;
  HEDDLE_RETURN_IF_ERROR(End());
  return seconds;
}

absl::Status BenchRun::Prefill() {
  Begin();
  const int64_t rows = int64_t{shape_.batch} * shape_.prompt_tokens;
  int32_t room_of_step = executor_.limits().max_batch_tokens;
  if (stages_ > 1) room_of_step = std::min(room_of_step, scheduler::PipelineRows(rows, stages_));
  int32_t room = room_of_step;
  for (int32_t i = 0; i < shape_.batch; ++i) {
    for (int32_t begin = 0; begin < shape_.prompt_tokens;) {
      const int32_t end = std::min(shape_.prompt_tokens, begin + room);
      AddRows(i, begin, end, /*draw=*/end == shape_.prompt_tokens);
      room -= end - begin;
      begin = end;
      if (room > 0) continue;
      HEDDLE_RETURN_IF_ERROR(Submit());
      room = room_of_step;
    }
  }
  if (!plan().empty()) HEDDLE_RETURN_IF_ERROR(Submit());
  return WaitAll();
}

// In a pipeline groups of sequences take turns, as many as stages: a sequence runs again when it
// has its token.
absl::Status BenchRun::Decode() {
  const int32_t group = (shape_.batch + stages_ - 1) / stages_;
  const int32_t groups = (shape_.batch + group - 1) / group;
  for (int32_t step = 0; step < shape_.output_tokens; ++step) {
    const int32_t position = shape_.prompt_tokens + step;
    for (int32_t first = 0; first < shape_.batch; first += group) {
      while (flights_.size() >= groups) HEDDLE_RETURN_IF_ERROR(WaitOldest());
      const int32_t end = std::min(shape_.batch, first + group);
      for (int32_t i = first; i < end; ++i) AddRows(i, position, position + 1, /*draw=*/true);
      HEDDLE_RETURN_IF_ERROR(Submit());
    }
  }
  return WaitAll();
}

absl::StatusOr<BenchTiming> BenchRun::Measure() {
  BenchTiming timing;
  const double start = NowSeconds();
  HEDDLE_RETURN_IF_ERROR(Prefill());
  const double prefilled = NowSeconds();
  HEDDLE_RETURN_IF_ERROR(Decode());
  timing.prefill_s = prefilled - start;
  timing.decode_s = NowSeconds() - prefilled;
  HEDDLE_RETURN_IF_ERROR(End());
  return timing;
}

}  // namespace heddle::server
