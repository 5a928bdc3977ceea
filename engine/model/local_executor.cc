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
    : parts_(std::move(parts)),
      limits_(limits),
      flights_(std::max(parts_.device->max_in_flight(), parts_.spec->steps_in_flight())) {}

absl::StatusOr<std::unique_ptr<LocalExecutor>> LocalExecutor::Create(Parts parts,
                                                                     const ExecutorLimits& limits) {
  HEDDLE_CHECK(parts.kv_layout.windows == limits.windows, "layout and limits differ in groups");
  std::unique_ptr<LocalExecutor> executor(new LocalExecutor(std::move(parts), limits));
  kernels::Device& device = *executor->parts_.device;
  const ModelSpec& spec = *executor->parts_.spec;
  HEDDLE_ASSIGN_OR_RETURN(
      executor->decoder_,
      Decoder::Create(device, spec, *executor->parts_.weights, limits.max_batch_tokens));
  HEDDLE_RETURN_IF_ERROR(executor->decoder_->ReserveLogits(device, executor->parts_.logit_rows));
  HEDDLE_ASSIGN_OR_RETURN(executor->logits_, device.Allocate(int64_t{executor->parts_.logit_rows} *
                                                             spec.vocab * int64_t{sizeof(float)}));
  if (limits.adapter_slots > 0) {
    HEDDLE_ASSIGN_OR_RETURN(executor->adapters_, AdapterResidency::Create(device, spec, limits));
    executor->decoder_->SetAdapters(&executor->adapters_->tables());
  }
  HEDDLE_RETURN_IF_ERROR(executor->CreateDrafter());
  HEDDLE_RETURN_IF_ERROR(executor->ReplacePool(limits));
  return executor;
}

absl::Status LocalExecutor::CreateDrafter() {
  if (parts_.drafter == nullptr) return absl::OkStatus();
  HEDDLE_RETURN_IF_ERROR(decoder_->KeepFeatures(*parts_.device, parts_.draft_traits.features,
                                                limits_.max_batch_tokens));
  HEDDLE_ASSIGN_OR_RETURN(drafts_, DraftRunner::Create(*parts_.device,
                                                       {.network = std::move(parts_.drafter),
                                                        .traits = parts_.draft_traits,
                                                        .first_kv_layer = parts_.spec->n_layers()},
                                                       limits_));
  return absl::OkStatus();
}

absl::Status LocalExecutor::ReplacePool(const ExecutorLimits& limits) {
  HEDDLE_CHECK(flights_.empty(), "a pool is replaced while steps are in flight");
  limits_ = limits;
  cache_.reset();
  host_pages_.reset();
  HEDDLE_ASSIGN_OR_RETURN(
      KvStorage cache,
      KvStorage::Create(*parts_.device, parts_.kv_layout, parts_.kv_dtype, limits.num_pages,
                        limits.page_tokens, parts_.least_page_bytes));
  cache_ = std::make_unique<KvStorage>(std::move(cache));
  if (drafts_ != nullptr) drafts_->ReplacePool(limits);
  if (limits.num_host_pages == 0) return absl::OkStatus();
  HEDDLE_ASSIGN_OR_RETURN(
      host_pages_,
      HostPages::Create(limits.num_host_pages, cache_->page_bytes(), parts_.host_kv_directory));
  return absl::OkStatus();
}

absl::Status LocalExecutor::Submit(const StepPlan& plan, const StepLocals& locals) {
  HEDDLE_CHECK(!flights_.full(), "Submit before an earlier step was waited for");
  HEDDLE_CHECK(static_cast<int32_t>(plan.token_ids.size()) <= limits_.max_batch_tokens,
               "a plan has more rows than max_batch_tokens");
  HEDDLE_CHECK(plan.token_ids.empty() || plan.more_groups.size() + 1 == limits_.windows.size(),
               "a plan has not the model's groups of layers");
  HEDDLE_CHECK(flights_.empty() || flights_.oldest().plan->pools.empty(),
               "Submit behind a plan whose hidden states were not read");
  Flight& flight = flights_.next();
  flight.plan = &plan;
  flight.locals = locals;
  flight.is_launched = max_in_flight() > 1 && !is_pipeline();
  if (flight.is_launched) HEDDLE_RETURN_IF_ERROR(Launch(&flight));
  if (is_pipeline()) parts_.ranks->Begin(plan, flight.locals.adapters);
  flights_.Push();
  return absl::OkStatus();
}

absl::Status LocalExecutor::Wait(StepResult* result) {
  HEDDLE_CHECK(!flights_.empty(), "Wait without Submit");
  if (is_pipeline()) {
    if (absl::Status status = LaunchStages(); !status.ok()) return parts_.ranks->Fail(status);
  }
  Flight& flight = flights_.oldest();
  flights_.Pop();
  if (parts_.ranks != nullptr) {
    if (!is_pipeline()) parts_.ranks->Begin(*flight.plan, flight.locals.adapters);
    parts_.ranks->BeginLogits();
  }
  absl::Status status = RunStep(&flight, result);
  if (parts_.ranks != nullptr) {
    const absl::Status joined = parts_.ranks->Join(status);
    // Tokens that the head has drawn from all parts count, whoever is lost behind that; the next
    // step fails.
    if (!status.ok() || !parts_.ranks->may_regroup()) status = joined;
  }
  if (!status.ok()) {
    EndSequences(*flight.plan);
    return status;
  }
  if (flights_.empty() || !flights_.oldest().draws_wait) return absl::OkStatus();
  return LaunchDraws(&flights_.oldest());
}

// Runs the layers of stage 0 for all plans in flight that have not been there.
absl::Status LocalExecutor::LaunchStages() {
  for (int i = 0; i < flights_.size(); ++i) {
    if (std::exchange(flights_[i].is_launched, true)) continue;
    HEDDLE_RETURN_IF_ERROR(Launch(&flights_[i]));
  }
  return absl::OkStatus();
}

absl::Status LocalExecutor::RunStep(Flight* flight, StepResult* result) {
  if (max_in_flight() == 1) HEDDLE_RETURN_IF_ERROR(Launch(flight));
  if (is_pipeline()) HEDDLE_RETURN_IF_ERROR(RunLogits(flight));
  // Ops of a step that was given up have no result.
  if (parts_.ranks != nullptr) HEDDLE_RETURN_IF_ERROR(parts_.ranks->status());
  return Finish(flight, result);
}

bool LocalExecutor::Abandon() {
  if (parts_.ranks == nullptr || !parts_.ranks->may_regroup()) return false;
  for (int i = 0; i < flights_.size(); ++i) {
    if (!flights_[i].is_launched) BeginSequences(&flights_[i]);
    EndSequences(*flights_[i].plan);
  }
  flights_.Clear();
  pool_sums_.clear();
  if (drafts_ != nullptr) drafts_->ReplacePool(limits_);
  return true;
}

// The second half of a step of a pipeline. The tokens of all steps before it are known.
absl::Status LocalExecutor::RunLogits(Flight* flight) {
  if (flight->plan->token_ids.empty()) return absl::OkStatus();
  const int64_t start_ns = NowNs();
  int64_t arrived_ns = start_ns;
  BuildSampleRows(flight);
  if (decoder_->AdaptsLogits()) {
    HEDDLE_RETURN_IF_ERROR(
        parts_.device->Plan(batch_.Build(*flight->plan, limits_.page_tokens, flight->logit_rows)));
  }
  HEDDLE_RETURN_IF_ERROR(parts_.device->Run([&](kernels::Ops& ops) {
    decoder_->NormLogitRows(ops, static_cast<int32_t>(flight->logit_rows.size()));
    arrived_ns = NowNs();
    Draw(ops, flight);
    if (!KeepsFeatures(*flight->plan)) return;
    decoder_->CollectFeatures(ops, static_cast<int32_t>(flight->plan->token_ids.size()),
                              flight->kept_place);
  }));
  flight->timing.forward_ns += arrived_ns - start_ns;
  flight->timing.sample_ns = NowNs() - arrived_ns;
  return absl::OkStatus();
}

void LocalExecutor::BeginSequences(Flight* flight) {
  size_t next = 0;  // index in the grammars, which are in the order of `begun`
  std::vector<StepLocals::Grammar>& grammars = flight->locals.grammars;
  for (const SequenceBegin& begin : flight->plan->begun) {
    const bool has_grammar = next < grammars.size() && grammars[next].id == begin.id;
    sampler_.Begin(begin, has_grammar ? std::move(grammars[next++].grammar) : nullptr);
  }
  HEDDLE_CHECK(next == grammars.size(), "a grammar of a sequence that the plan does not begin");
  grammars.clear();
}

absl::Status LocalExecutor::Launch(Flight* flight) {
  const StepPlan& plan = *flight->plan;
  flight->timing = {};
  flight->has_logits = false;
  flight->left_out.clear();
  flight->failed.clear();
  BeginSequences(flight);
  if (drafts_ != nullptr) drafts_->TakeStep(plan);
  HEDDLE_RETURN_IF_ERROR(MovePages(*flight, &flight->timing));
  flight->locals.adapters.clear();
  for (const PageCopy& copy : plan.page_copies) cache_->Copy(*parts_.device, copy);
  BuildDraws(flight);
  flight->draws_wait = !is_pipeline() && !flights_.empty() && DrawsWait(plan);
  return plan.token_ids.empty() ? absl::OkStatus() : Forward(flight);
}

// Sequences are forgotten last: one that ended in an earlier step may still have a row in this one.
absl::Status LocalExecutor::Finish(Flight* flight, StepResult* result) {
  const StepPlan& plan = *flight->plan;
  result->Clear();
  result->step = plan.step;
  result->timing = flight->timing;
  result->scores.resize(plan.scores.size());
  BeginGains(plan, result);
  if (!plan.token_ids.empty()) {
    kernels::RunTiming ran;
    if (!is_pipeline()) {
      HEDDLE_ASSIGN_OR_RETURN(ran, parts_.device->Finish());
    }
    const int64_t start_ns = NowNs();
    Report(*flight, result);
    HEDDLE_RETURN_IF_ERROR(Pool(*flight, result));
    const bool ran_by_itself = ran.run_ns >= 0;
    if (ran_by_itself) result->timing.forward_ns = ran.run_ns;
    if (ran_by_itself) result->timing.sample_ns = 0;
    result->timing.sample_ns += NowNs() - start_ns;
    result->timing.idle_ns = ran.idle_ns;
  }
  if (drafts_ != nullptr) {
    const auto rows = static_cast<int32_t>(plan.token_ids.size());
    drafts_->Run(*parts_.device, {plan, decoder_->Features(rows), *cache_, sampler_}, result);
  }
  EndSequences(plan);
  return absl::OkStatus();
}

void LocalExecutor::EndSequences(const StepPlan& plan) {
  for (SequenceId id : plan.ended) {
    sampler_.End(id);
    pool_sums_.erase(id);
  }
}

// Whether `plan` swaps and loads only pages that the step in flight, if any, does not use. That
// step's own swaps and loads are done.
bool LocalExecutor::MayMoveBeside(const StepPlan& plan) const {
  if (flights_.empty()) return true;
  const StepPlan& in_flight = *flights_.oldest().plan;
  PagesInUse in_use(in_flight);
  if (adapters_ != nullptr) {
    adapters_->AddPagesOf(in_flight, &in_use);
    if (!adapters_->MayApplyBeside(plan, in_flight, in_use)) return false;
  }
  return std::none_of(plan.swaps_out.begin(), plan.swaps_out.end(),
                      [&](const PageSwap& swap) { return in_use.IsWritten(swap.page); }) &&
         std::none_of(plan.swaps_in.begin(), plan.swaps_in.end(),
                      [&](const PageSwap& swap) { return in_use.IsUsed(swap.page); });
}

// Swaps pages and loads adapters. The measured time excludes the work that the device still has to
// do before.
absl::Status LocalExecutor::MovePages(const Flight& flight, StepTiming* timing) {
  const StepPlan& plan = *flight.plan;
  const bool swaps = !plan.swaps_out.empty() || !plan.swaps_in.empty();
  const bool loads = !plan.adapter_loads.empty() || !plan.adapter_binds.empty();
  if (!swaps && !loads) return absl::OkStatus();
  HEDDLE_CHECK(!swaps || host_pages_ != nullptr, "a plan swaps pages and there is no host tier");
  HEDDLE_CHECK(!loads || adapters_ != nullptr, "a plan loads adapters and there are no slots");
  kernels::Device& device = *parts_.device;
  if (!MayMoveBeside(plan)) HEDDLE_RETURN_IF_ERROR(device.Synchronize());
  const int64_t start_ns = NowNs();
  for (const PageSwap& swap : plan.swaps_out) {
    std::byte* to = host_pages_->Slot(swap.slot);
    HEDDLE_RETURN_IF_ERROR(cache_->Download(device, swap.page, to, /*beside=*/true));
  }
  for (const PageSwap& swap : plan.swaps_in) {
    const std::byte* from = host_pages_->Slot(swap.slot);
    HEDDLE_RETURN_IF_ERROR(cache_->Upload(device, swap.page, from, /*beside=*/true));
  }
  if (loads)
    HEDDLE_RETURN_IF_ERROR(adapters_->Apply(device, *cache_, plan, flight.locals.adapters));
  timing->swap_ns = NowNs() - start_ns;
  return absl::OkStatus();
}

// The draws of the step before that the plan's undrawn rows run, as devices take them
// (kernels/batch.h); empty: the plan has no such rows.
std::span<const int32_t> LocalExecutor::DrawsOfRows(const StepPlan& plan) {
  if (plan.undrawn.empty()) return {};
  draw_of_row_.assign(plan.token_ids.size(), -1);
  for (const UndrawnRow& undrawn : plan.undrawn) {
    HEDDLE_CHECK(!flights_.empty() && flights_.newest().plan->step == undrawn.step,
                 "a plan names a token of a step that is not the one before it");
    const std::vector<int32_t>& draws = flights_.newest().draw_of_sample;
    const auto sample = static_cast<size_t>(undrawn.sample);
    HEDDLE_CHECK(sample < draws.size(), "a plan names a sample that the step before has not");
    // A draw that was left out is -1: its row has no token, and nobody wants what comes of it.
    draw_of_row_[static_cast<size_t>(undrawn.row)] = draws[sample];
  }
  return draw_of_row_;
}

absl::Status LocalExecutor::Forward(Flight* flight) {
  const StepPlan& plan = *flight->plan;
  const int64_t start_ns = NowNs();
  int64_t forward_end_ns = start_ns;
  if (!flight->draws_wait && !is_pipeline()) BuildSampleRows(flight);
  kernels::HostBatch batch = batch_.Build(plan, limits_.page_tokens, flight->logit_rows);
  batch.draw_of_row = DrawsOfRows(plan);
  HEDDLE_RETURN_IF_ERROR(parts_.device->Plan(batch));
  const auto n_logit_rows = static_cast<int32_t>(flight->logit_rows.size());
  decoder_->set_keeps_features(KeepsFeatures(plan));
  const auto body = [&](kernels::Ops& ops) {
    decoder_->RunStage(ops, batch.n_tokens(), n_logit_rows, *cache_);
    flight->kept_place = decoder_->kept_place();
    if (!is_pipeline()) decoder_->NormLogitRows(ops, n_logit_rows);
    forward_end_ns = NowNs();
    if (is_pipeline()) return;
    if (!flight->draws_wait) return Draw(ops, flight);
    flight->has_logits = flight->n_drawn_rows <= parts_.logit_rows;
    if (flight->has_logits) decoder_->Logits(ops, 0, LogitBlock(*flight, 0));
  };
  // A step of a pipeline is two runs: its layers, and the logits (RunLogits).
  HEDDLE_RETURN_IF_ERROR(is_pipeline() ? parts_.device->Run(body) : parts_.device->Launch(body));
  flight->timing.forward_ns = forward_end_ns - start_ns;
  flight->timing.sample_ns = NowNs() - forward_end_ns;
  return absl::OkStatus();
}

// Whether a draw needs something that is unknown until the step in flight has drawn.
bool LocalExecutor::DrawsWait(const StepPlan& plan) const {
  return std::any_of(plan.samples.begin(), plan.samples.end(),
                     [this](const SampleRow& sample) { return sampler_.NeedsDraw(sample.id); });
}

// Launches the draws of a step whose logits are being computed. A draw is left out if forced tokens
// turned out to follow the token before it: its token is drawn after these have run.
absl::Status LocalExecutor::LaunchDraws(Flight* flight) {
  const int64_t start_ns = NowNs();
  std::erase_if(flight->draws, [&](const DrawnRow& draw) {
    if (draw.is_score) return false;
    const SampleRow& sample = flight->plan->samples[draw.index];
    if (sampler_.IsAhead(sample)) flight->left_out.push_back(draw.index);
    return sampler_.HasPassed(sample) || sampler_.IsAhead(sample);
  });
  NumberDraws(flight);
  BuildSampleRows(flight);
  HEDDLE_RETURN_IF_ERROR(parts_.device->Extend([&](kernels::Ops& ops) { Draw(ops, flight); }));
  flight->timing.sample_ns += NowNs() - start_ns;
  return absl::OkStatus();
}

void LocalExecutor::Draw(kernels::Ops& ops, Flight* flight) {
  FillMasks(flight);
  size_t next_draw = 0;
  for (int32_t row = 0; row < flight->n_drawn_rows; row += parts_.logit_rows) {
    DrawBlock(ops, row, flight, &next_draw);
  }
  SumRows(ops, flight);
}

// Lets the device sum the rows of as many pools as it can.
void LocalExecutor::SumRows(kernels::Ops& ops, Flight* flight) {
  const std::vector<PoolRows>& pools = flight->plan->pools;
  const int32_t hidden = parts_.spec->hidden;
  const auto count =
      std::min<size_t>(pools.size(), static_cast<size_t>(parts_.device->max_row_sums(hidden)));
  flight->summed.clear();
  int32_t row = flight->n_drawn_rows;
  for (size_t i = 0; i < count; row += pools[i++].num_rows) {
    flight->summed.push_back({row, pools[i].num_rows});
  }
  if (count == 0) return;
  flight->row_sums.resize(count * static_cast<size_t>(hidden));
  ops.SumRows(
      {.x = decoder_->HiddenRows(row), .ranges = flight->summed, .out = flight->row_sums.data()});
}

kernels::Tensor LocalExecutor::LogitBlock(const Flight& flight, int32_t first_row) const {
  const int32_t vocab = parts_.spec->vocab;
  const int32_t rows = std::min(parts_.logit_rows, flight.n_drawn_rows - first_row);
  return {logits_->data(), rows, vocab, vocab};
}

void LocalExecutor::DrawBlock(kernels::Ops& ops, int32_t first_row, Flight* flight,
                              size_t* next_draw) {
  const kernels::Tensor logits = LogitBlock(*flight, first_row);
  const auto rows = static_cast<int32_t>(logits.rows);
  if (!flight->has_logits) decoder_->Logits(ops, first_row, logits);
  last_block_rows_ = rows;

  const size_t first = *next_draw;
  while (*next_draw < flight->draws.size() &&
         flight->draws[*next_draw].logit_row < first_row + rows) {
    ++*next_draw;
  }
  if (*next_draw == first) return;  // all of them were left out
  ops.Sample({.logits = logits,
              .rows = std::span(flight->sample_rows).subspan(first, *next_draw - first),
              .max_top = flight->max_top,
              .tokens = flight->tokens.data() + first,
              .logprobs = flight->logprobs.data() + first,
              .top_tokens = flight->top_tokens.data() + first * flight->max_top,
              .top_logprobs = flight->top_logprobs.data() + first * flight->max_top});
}

// Adds the hidden rows from `first_row` on, one by one.
absl::Status LocalExecutor::AddRows(const PoolRows& pool, int32_t first_row, PoolSum* pooled) {
  const kernels::DType dtype = decoder_->dtype();
  const auto hidden = static_cast<int64_t>(pooled->sum.size());
  pool_row_.resize(static_cast<size_t>(kernels::RowBytes(dtype, hidden)));
  std::vector<float> values(pooled->sum.size());
  for (int32_t i = 0; i < pool.num_rows; ++i) {
    HEDDLE_RETURN_IF_ERROR(parts_.device->Download(pool_row_.data(),
                                                   decoder_->HiddenRow(first_row + i),
                                                   static_cast<int64_t>(pool_row_.size())));
    kernels::DequantizeRow(dtype, pool_row_.data(), hidden, values.data());
    for (size_t j = 0; j < values.size(); ++j) pooled->sum[j] += values[j];
  }
  return absl::OkStatus();
}

absl::Status LocalExecutor::Pool(const Flight& flight, StepResult* result) {
  const std::vector<PoolRows>& pools = flight.plan->pools;
  const auto hidden = static_cast<size_t>(parts_.spec->hidden);
  int32_t row = flight.n_drawn_rows;
  for (size_t p = 0; p < pools.size(); row += pools[p++].num_rows) {
    const PoolRows& pool = pools[p];
    PoolSum& pooled = pool_sums_[pool.id];
    pooled.sum.resize(hidden);
    if (p < flight.summed.size()) {
      const float* sums = flight.row_sums.data() + p * hidden;
      for (size_t j = 0; j < hidden; ++j) pooled.sum[j] += sums[j];
    } else {
      HEDDLE_RETURN_IF_ERROR(AddRows(pool, row, &pooled));
    }
    pooled.count += pool.num_rows;
    if (!pool.last) continue;
    std::vector<float> values(hidden);
    for (size_t j = 0; j < hidden; ++j) {
      values[j] = static_cast<float>(pooled.sum[j] / std::max(1, pooled.count));
    }
    result->pooled.push_back({pool.id, std::move(values)});
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

int64_t LocalExecutor::rows_left_out() const { return decoder_->rows_left_out(); }

}  // namespace heddle::engine
