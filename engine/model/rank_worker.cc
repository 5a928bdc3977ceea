#include "engine/model/rank_worker.h"

#include <algorithm>

#include "base/check.h"
#include "base/status.h"

namespace heddle::engine {

absl::StatusOr<std::unique_ptr<RankWorker>> RankWorker::Create(Parts parts,
                                                               const ExecutorLimits& limits) {
  std::unique_ptr<RankWorker> worker(new RankWorker(std::move(parts), limits));
  Parts& own = worker->parts_;
  HEDDLE_ASSIGN_OR_RETURN(worker->decoder_, Decoder::Create(*own.device, own.spec, own.weights,
                                                            limits.max_batch_tokens));
  HEDDLE_RETURN_IF_ERROR(worker->decoder_->ReserveLogits(*own.device, own.logit_rows));
  HEDDLE_RETURN_IF_ERROR(worker->decoder_->KeepFeatures(*own.device, limits.drafter_features,
                                                        limits.max_batch_tokens));
  HEDDLE_ASSIGN_OR_RETURN(
      KvStorage cache, KvStorage::Create(*own.device, own.kv_layout, own.kv_dtype, limits.num_pages,
                                         limits.page_tokens, own.least_page_bytes));
  if (limits.adapter_slots > 0) {
    HEDDLE_ASSIGN_OR_RETURN(worker->adapters_,
                            AdapterResidency::Create(*own.device, own.spec, limits));
    worker->decoder_->SetAdapters(&worker->adapters_->tables());
  }
  worker->cache_ = std::make_unique<KvStorage>(std::move(cache));
  if (limits.num_host_pages > 0) {
    HEDDLE_ASSIGN_OR_RETURN(worker->host_pages_,
                            HostPages::Create(limits.num_host_pages, worker->cache_->page_bytes(),
                                              own.host_kv_directory));
  }
  return worker;
}

absl::Status RankWorker::MovePages(const StepPlan& plan, Adapters adapters) {
  kernels::Device& device = *parts_.device;
  HEDDLE_CHECK(host_pages_ != nullptr || (plan.swaps_out.empty() && plan.swaps_in.empty()),
               "a plan swaps pages and there is no host tier");
  for (const PageSwap& swap : plan.swaps_out) {
    HEDDLE_RETURN_IF_ERROR(cache_->Download(device, swap.page, host_pages_->Slot(swap.slot)));
  }
  for (const PageSwap& swap : plan.swaps_in) {
    HEDDLE_RETURN_IF_ERROR(cache_->Upload(device, swap.page, host_pages_->Slot(swap.slot)));
  }
  if (adapters_ != nullptr) {
    HEDDLE_RETURN_IF_ERROR(adapters_->Apply(device, *cache_, plan, adapters));
  }
  for (const PageCopy& copy : plan.page_copies) cache_->Copy(device, copy);
  return absl::OkStatus();
}

// Fills logit_rows_ with the rows that are drawn from or scored, in order, and then those that are
// pooled; returns the number of the former.
int32_t RankWorker::FindLogitRows(const StepPlan& plan) {
  logit_rows_.clear();
  for (const SampleRow& sample : plan.samples) {
    for (int32_t i = 0; i < sample.num_rows; ++i) logit_rows_.push_back(sample.row + i);
  }
  for (const ScoreRow& score : plan.scores) logit_rows_.push_back(score.row);
  std::sort(logit_rows_.begin(), logit_rows_.end());
  logit_rows_.erase(std::unique(logit_rows_.begin(), logit_rows_.end()), logit_rows_.end());
  const auto drawn = static_cast<int32_t>(logit_rows_.size());
  for (const PoolRows& pool : plan.pools) {
    for (int32_t i = 0; i < pool.num_rows; ++i) logit_rows_.push_back(pool.row + i);
  }
  return drawn;
}

absl::Status RankWorker::RunStage(const StepPlan& plan, Adapters adapters) {
  HEDDLE_RETURN_IF_ERROR(MovePages(plan, adapters));
  if (plan.token_ids.empty()) return absl::OkStatus();
  FindLogitRows(plan);
  const kernels::HostBatch batch = batch_.Build(plan, limits_.page_tokens, logit_rows_);
  HEDDLE_RETURN_IF_ERROR(parts_.device->Plan(batch));
  decoder_->set_keeps_features(plan.feeds_drafter || !plan.drafts_ahead.empty());
  return parts_.device->Run([&](kernels::Ops& ops) {
    decoder_->RunStage(ops, batch.n_tokens(), static_cast<int32_t>(logit_rows_.size()), *cache_);
  });
}

absl::Status RankWorker::RunLogits(const StepPlan& plan) {
  if (parts_.spec.stage > 0 || plan.token_ids.empty()) return absl::OkStatus();
  const int32_t n_drawn = FindLogitRows(plan);
  if (parts_.spec.n_stages > 1 && decoder_->AdaptsLogits()) {
    HEDDLE_RETURN_IF_ERROR(
        parts_.device->Plan(batch_.Build(plan, limits_.page_tokens, logit_rows_)));
  }
  return parts_.device->Run([&](kernels::Ops& ops) {
    decoder_->NormLogitRows(ops, static_cast<int32_t>(logit_rows_.size()));
    const int32_t vocab = parts_.spec.vocab;
    for (int32_t row = 0; row < n_drawn; row += parts_.logit_rows) {
      const int32_t rows = std::min(parts_.logit_rows, n_drawn - row);
      decoder_->Logits(ops, row, {nullptr, rows, vocab, vocab});
    }
  });
}

}  // namespace heddle::engine
