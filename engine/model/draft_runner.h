// Runs the drafter beside a model, when a step of the model is done: the passes of draft_network.h,
// the draws of the guesses, and the record of which positions the drafter has computed.
//
// A drafter that reads tokens only catches up: what it has not computed of a sequence is part of
// its next first pass, up to the rows that a step may have. One that reads the model's hidden
// states cannot: it sees every step that the plan feeds it, and guesses for sequences of which it
// has seen all.
// Thread-safety: none; owned by the executor.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/executor.h"
#include "engine/memory/kv_storage.h"
#include "engine/model/chain_batch.h"
#include "engine/model/draft_network.h"
#include "engine/model/draft_pages.h"
#include "engine/model/guess_shares.h"
#include "engine/model/plan_batch.h"
#include "engine/sample/sampler_state.h"
#include "kernels/device.h"

namespace heddle::engine {

class DraftRunner {
 public:
  // A longer chain of guesses is hardly ever right to the end.
  static constexpr int32_t kMaxGuesses = 16;

  struct Parts {
    std::unique_ptr<DraftNetwork> network;
    DraftTraits traits;
    int32_t first_kv_layer = 0;
  };
  // RESOURCE_EXHAUSTED if the device lacks the memory for the logits.
  static absl::StatusOr<std::unique_ptr<DraftRunner>> Create(kernels::Device& device, Parts parts,
                                                             const ExecutorLimits& limits);
  static int64_t WorkspaceBytes(const DraftTraits& traits);

  const DraftTraits& traits() const { return parts_.traits; }

  // The executor's pool has been replaced; what was known of its pages is void.
  void ReplacePool(const ExecutorLimits& limits);

  // The pages that a step moves and the rows that it writes. Call it for every plan, in order, when
  // the model begins it; in a pipeline earlier plans may not have come to Run yet.
  void TakeStep(const StepPlan& plan) { pages_.TakeStep(plan); }

  // Results of a step that its drafter reads.
  struct Step {
    const StepPlan& plan;
    kernels::Tensor features;  // of the plan's rows
    const KvStorage& cache;
    SamplerState& sampler;
  };
  // Runs the passes of a step whose tokens are in *result, and adds the guesses to it. A drafter
  // that fails is not run again, and result->draft_failure says why. Call it for every plan.
  void Run(kernels::Device& device, const Step& step, StepResult* result);

  // The guesses for rejection sampling, which the model's draws verify.
  const GuessShares& shares() const { return shares_; }

 private:
  DraftRunner(Parts parts, const ExecutorLimits& limits);

  absl::Status RunPasses(kernels::Device& device, const Step& step, StepResult* result);
  absl::Status RunLaterGuesses(kernels::Device& device, const Step& step, DraftPass pass,
                               StepResult* result);
  absl::Status RunBlocks(kernels::Device& device, const Step& step, StepResult* result);
  void FitBlocks();
  kernels::HostBatch BlockBatch(const StepPlan& plan);
  void ListChains(const StepPlan& plan, const StepResult& result);
  void AddChain(const StepPlan& plan, const DraftAhead& ask, const StepResult& result);
  int32_t FirstUnknown(const StepPlan& plan, const Chain& chain) const;
  kernels::HostBatch StepBatch(const Step& step, const StepResult& result);
  void CountSeen(const StepPlan& plan);
  kernels::HostBatch CatchUpBatch(const Step& step);
  kernels::HostBatch NextBatch(const Step& step, int32_t pass, int32_t n_chains);
  void SampleRows(kernels::Ops& ops, int32_t n_logit_rows, int32_t begin, int32_t end);
  absl::Status RunPass(kernels::Device& device, const Step& step, const DraftPass& pass,
                       int32_t guess, StepResult* result);
  int32_t BuildRows(SamplerState& sampler, int32_t n_chains, int32_t first_logit_row);
  const uint32_t* GuessableOf(int32_t chain, const uint32_t* allowed);
  void TakeGuesses(int32_t n_chains);
  int32_t NumGoingOn(int32_t guess) const;
  void Report(StepResult* result);

  Parts parts_;
  ExecutorLimits limits_;
  DraftPages pages_;
  std::unique_ptr<kernels::Buffer> logits_;  // [DraftLogits::kMaxRows, vocab] F32
  // The pass whose guesses are drawn has logits of so many guesses, each with so many rows.
  int32_t guesses_at_once_ = 0;
  int32_t rows_per_guess_ = 0;
  bool keeps_shares_ = false;  // the device and the network have rejection sampling
  GuessShares shares_;
  bool has_failed_ = false;
  int32_t passes_without_draw_ = 0;

  // State of the step that is run; the memory is kept.
  std::vector<Chain> chains_;  // those that want most guesses first
  PlanBatch plan_batch_;
  ChainBatch chain_batch_;
  std::vector<TokenId> next_tokens_;
  std::vector<int32_t> rows_kept_;  // of each slice
  std::vector<int32_t> logit_rows_;
  std::vector<int32_t> guess_rows_;  // DraftPass::guess_rows
  std::vector<kernels::SampleRowParams> sample_rows_;
  std::vector<int32_t> sampled_chain_;  // the chain of each of them
  std::vector<uint32_t> masks_;         // [chains, words of a mask] where GuessableOf combines two
  std::vector<int32_t> drawn_;
  std::vector<float> logprobs_;
};

}  // namespace heddle::engine
