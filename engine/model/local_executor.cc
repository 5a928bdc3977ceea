#include "engine/model/local_executor.h"

#include <algorithm>
#include <chrono>
#include <span>
#include <utility>

#include "base/check.h"
#include "base/status.h"

namespace heddle::engine {
namespace {

int64_t NowNs() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

}  // namespace

LocalExecutor::LocalExecutor(Parts parts, const ExecutorLimits& limits)
    : parts_(std::move(parts)), limits_(limits) {}

absl::StatusOr<std::unique_ptr<LocalExecutor>> LocalExecutor::Create(Parts parts,
                                                                     const ExecutorLimits& limits) {
  HEDDLE_CHECK(parts.kv_layout.windows == limits.windows, "layout and limits differ in groups");
  std::unique_ptr<LocalExecutor> executor(new LocalExecutor(std::move(parts), limits));
  kernels::Device& device = *executor->parts_.device;
  const ModelSpec& spec = *executor->parts_.spec;
  HEDDLE_ASSIGN_OR_RETURN(
      executor->decoder_,
      Decoder::Create(device, spec, *executor->parts_.weights, limits.max_batch_tokens));
  HEDDLE_ASSIGN_OR_RETURN(executor->logits_, device.Allocate(int64_t{kLogitBlockRows} * spec.vocab *
                                                             int64_t{sizeof(float)}));
  HEDDLE_ASSIGN_OR_RETURN(KvStorage cache, KvStorage::Create(device, executor->parts_.kv_layout,
                                                             executor->parts_.kv_dtype,
                                                             limits.num_pages, limits.page_tokens));
  executor->cache_ = std::make_unique<KvStorage>(std::move(cache));
  if (limits.num_host_pages > 0) {
    HEDDLE_ASSIGN_OR_RETURN(executor->host_pages_,
                            HostPages::Create(limits.num_host_pages, executor->cache_->page_bytes(),
                                              executor->parts_.host_kv_directory));
  }
  return executor;
}

absl::Status LocalExecutor::Submit(const StepPlan& plan) {
  HEDDLE_CHECK(plan_ == nullptr, "Submit before the last step was waited for");
  HEDDLE_CHECK(static_cast<int32_t>(plan.token_ids.size()) <= limits_.max_batch_tokens,
               "a plan has more rows than max_batch_tokens");
  HEDDLE_CHECK(plan.token_ids.empty() || plan.more_groups.size() + 1 == limits_.windows.size(),
               "a plan has not the model's groups of layers");
  plan_ = &plan;
  return absl::OkStatus();
}

absl::Status LocalExecutor::Wait(StepResult* result) {
  HEDDLE_CHECK(plan_ != nullptr, "Wait without Submit");
  const StepPlan& plan = *std::exchange(plan_, nullptr);
  result->step = plan.step;
  result->samples.resize(plan.samples.size());
  result->scores.resize(plan.scores.size());
  result->pooled.clear();
  result->timing = {};
  for (const SequenceBegin& begin : plan.begun) sampler_.Begin(begin);
  HEDDLE_RETURN_IF_ERROR(SwapPages(plan, result));
  for (const PageCopy& copy : plan.page_copies) cache_->Copy(*parts_.device, copy);
  if (!plan.token_ids.empty()) HEDDLE_RETURN_IF_ERROR(Forward(plan, result));
  for (SequenceId id : plan.ended) {
    sampler_.End(id);
    pool_sums_.erase(id);
  }
  return absl::OkStatus();
}

absl::Status LocalExecutor::SwapPages(const StepPlan& plan, StepResult* result) {
  if (plan.swaps_out.empty() && plan.swaps_in.empty()) return absl::OkStatus();
  HEDDLE_CHECK(host_pages_ != nullptr, "a plan swaps pages and there is no host tier");
  const int64_t start_ns = NowNs();
  for (const PageSwap& swap : plan.swaps_out) {
    HEDDLE_RETURN_IF_ERROR(
        cache_->Download(*parts_.device, swap.page, host_pages_->Slot(swap.slot)));
  }
  for (const PageSwap& swap : plan.swaps_in) {
    HEDDLE_RETURN_IF_ERROR(cache_->Upload(*parts_.device, swap.page, host_pages_->Slot(swap.slot)));
  }
  result->timing.swap_ns = NowNs() - start_ns;
  return absl::OkStatus();
}

void LocalExecutor::BuildDraws(const StepPlan& plan) {
  draws_.clear();
  for (size_t i = 0; i < plan.samples.size(); ++i) {
    draws_.push_back({.row = plan.samples[i].row, .index = static_cast<int32_t>(i)});
  }
  for (size_t i = 0; i < plan.scores.size(); ++i) {
    draws_.push_back(
        {.row = plan.scores[i].row, .index = static_cast<int32_t>(i), .is_score = true});
  }
  std::sort(draws_.begin(), draws_.end(),
            [](const Draw& a, const Draw& b) { return a.row < b.row; });
  logit_rows_.clear();
  for (Draw& draw : draws_) {
    if (logit_rows_.empty() || logit_rows_.back() != draw.row) logit_rows_.push_back(draw.row);
    draw.logit_row = static_cast<int32_t>(logit_rows_.size()) - 1;
  }
  n_drawn_rows_ = static_cast<int32_t>(logit_rows_.size());
  for (const PoolRows& pool : plan.pools) {
    for (int32_t i = 0; i < pool.num_rows; ++i) logit_rows_.push_back(pool.row + i);
  }
}

absl::Status LocalExecutor::Forward(const StepPlan& plan, StepResult* result) {
  const int64_t start_ns = NowNs();
  int64_t forward_end_ns = start_ns;
  BuildDraws(plan);
  BuildSampleRows(plan);
  const kernels::HostBatch batch = batch_.Build(plan, limits_.page_tokens, logit_rows_);
  HEDDLE_RETURN_IF_ERROR(parts_.device->Plan(batch));
  const auto n_logit_rows = static_cast<int32_t>(logit_rows_.size());
  HEDDLE_RETURN_IF_ERROR(parts_.device->Run([&](kernels::Ops& ops) {
    decoder_->Forward(ops, batch.n_tokens(), n_logit_rows, *cache_);
    forward_end_ns = NowNs();
    FillMasks(plan);
    size_t next_draw = 0;
    for (int32_t row = 0; row < n_drawn_rows_; row += kLogitBlockRows) {
      DrawBlock(ops, row, &next_draw);
    }
  }));
  Report(plan, result);
  HEDDLE_RETURN_IF_ERROR(Pool(plan, result));
  result->timing.forward_ns = forward_end_ns - start_ns;
  result->timing.sample_ns = NowNs() - forward_end_ns;
  return absl::OkStatus();
}

void LocalExecutor::BuildSampleRows(const StepPlan& plan) {
  sampler_.ResetEdits();
  sample_rows_.clear();
  max_top_ = 0;
  for (const Draw& draw : draws_) {
    const int32_t row = draw.logit_row % kLogitBlockRows;
    if (draw.is_score) {
      const ScoreRow& score = plan.scores[draw.index];
      sample_rows_.push_back(
          {.logit_row = row, .num_top = std::max(0, score.num_top), .forced_token = score.target});
    } else {
      sample_rows_.push_back(sampler_.Row(plan.samples[draw.index], row));
    }
    max_top_ = std::max(max_top_, sample_rows_.back().num_top);
  }
  tokens_.resize(draws_.size());
  logprobs_.resize(draws_.size());
  top_tokens_.resize(draws_.size() * max_top_);
  top_logprobs_.resize(draws_.size() * max_top_);
}

// Behind the forward: masks are found meanwhile.
void LocalExecutor::FillMasks(const StepPlan& plan) {
  for (size_t i = 0; i < draws_.size(); ++i) {
    if (draws_[i].is_score) continue;
    sample_rows_[i].allowed = sampler_.Allowed(plan.samples[draws_[i].index].id);
  }
}

void LocalExecutor::DrawBlock(kernels::Ops& ops, int32_t first_row, size_t* next_draw) {
  const int32_t rows = std::min(kLogitBlockRows, n_drawn_rows_ - first_row);
  const int32_t vocab = parts_.spec->vocab;
  const kernels::Tensor logits{logits_->data(), rows, vocab, vocab};
  decoder_->Logits(ops, first_row, logits);
  last_block_rows_ = rows;

  const size_t first = *next_draw;
  while (*next_draw < draws_.size() && draws_[*next_draw].logit_row < first_row + rows) {
    ++*next_draw;
  }
  ops.Sample({.logits = logits,
              .rows = std::span(sample_rows_).subspan(first, *next_draw - first),
              .max_top = max_top_,
              .tokens = tokens_.data() + first,
              .logprobs = logprobs_.data() + first,
              .top_tokens = top_tokens_.data() + first * max_top_,
              .top_logprobs = top_logprobs_.data() + first * max_top_});
}

void LocalExecutor::Report(const StepPlan& plan, StepResult* result) {
  for (size_t i = 0; i < draws_.size(); ++i) {
    const Draw& draw = draws_[i];
    SampledToken& out = draw.is_score ? result->scores[draw.index] : result->samples[draw.index];
    out.id = draw.is_score ? plan.scores[draw.index].id : plan.samples[draw.index].id;
    out.token = tokens_[i];
    out.logprob = logprobs_[i];
    out.top.clear();
    for (int32_t t = 0; t < sample_rows_[i].num_top; ++t) {
      out.top.push_back({top_tokens_[i * max_top_ + t], top_logprobs_[i * max_top_ + t]});
    }
    out.forced.clear();
    if (!draw.is_score) sampler_.Accept(out.id, out.token, &out.forced);
  }
  sampler_.FindMasks();
}

absl::Status LocalExecutor::Pool(const StepPlan& plan, StepResult* result) {
  const int32_t hidden = parts_.spec->hidden;
  const kernels::DType dtype = decoder_->dtype();
  pool_row_.resize(static_cast<size_t>(kernels::RowBytes(dtype, hidden)));
  std::vector<float> values(static_cast<size_t>(hidden));
  int32_t row = n_drawn_rows_;
  for (const PoolRows& pool : plan.pools) {
    PoolSum& pooled = pool_sums_[pool.id];
    pooled.sum.resize(static_cast<size_t>(hidden));
    for (int32_t i = 0; i < pool.num_rows; ++i, ++row) {
      HEDDLE_RETURN_IF_ERROR(parts_.device->Download(pool_row_.data(), decoder_->HiddenRow(row),
                                                     static_cast<int64_t>(pool_row_.size())));
      kernels::DequantizeRow(dtype, pool_row_.data(), hidden, values.data());
      for (size_t j = 0; j < values.size(); ++j) pooled.sum[j] += values[j];
      ++pooled.count;
    }
    if (!pool.last) continue;
    for (size_t j = 0; j < values.size(); ++j) {
      values[j] = static_cast<float>(pooled.sum[j] / std::max(1, pooled.count));
    }
    result->pooled.push_back({pool.id, values});
    pool_sums_.erase(pool.id);
  }
  return absl::OkStatus();
}

std::vector<float> LocalExecutor::last_logits() const {
  std::vector<float> logits(static_cast<size_t>(last_block_rows_) * parts_.spec->vocab);
  absl::Status status = parts_.device->Download(
      logits.data(), logits_->data(), static_cast<int64_t>(logits.size() * sizeof(float)));
  HEDDLE_CHECK(status.ok(), status.ToString());
  return logits;
}

}  // namespace heddle::engine
