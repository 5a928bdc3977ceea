// An executor on one device: turns a StepPlan into the device's batch, runs the decoder, draws
// tokens.
//
// Logits are computed and sampled in blocks of rows, so that their memory is bounded however many
// rows are asked for (prompt logprobs ask for all).
//
// On a device that runs steps by itself (Device::max_in_flight() > 1), Submit launches the plan and
// Wait reads its results; Submit waits for the step before only if the plan swaps pages that this
// step uses. Draws that depend on the tokens of the step before, because of a grammar or a penalty,
// are launched when Wait has read these tokens, while the device computes the logits. On other
// devices Submit keeps the plan, and Wait does the work.
// Where ranks share the model, this is the head, rank 0: the other ranks run each step on their
// parts of the model at the same time, and the head alone draws. Of a pipeline it is stage 0:
// Wait runs its layers for all plans that were submitted, and then draws from what the last stage
// returns of the oldest one. A step waits at most MaskPatience for a grammar's mask and then leaves
// that draw out: the sequence runs the row again in a later step, and the other sequences get their
// tokens. Thread-safety: none. The work is done on the caller's thread and the device's own.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"
#include "base/in_flight.h"
#include "engine/executor.h"
#include "engine/memory/host_pages.h"
#include "engine/memory/kv_storage.h"
#include "engine/model/adapter_residency.h"
#include "engine/model/decoder.h"
#include "engine/model/draft_runner.h"
#include "engine/model/other_ranks.h"
#include "engine/model/plan_batch.h"
#include "engine/sample/sampler_state.h"
#include "kernels/device.h"

namespace heddle::engine {

class LocalExecutor final : public Executor {
 public:
  static constexpr int32_t kLeastLogitRows = 64;
  // The most proposed tokens of a sample. A draft takes memory like other rows of a step; longer
  // ones than this are hardly ever right to the end.
  static constexpr int32_t kMaxDraftTokens = 64;
  // How long a step waits for masks beside other draws that are ready, and how long without.
  struct MaskPatience {
    std::chrono::microseconds beside_others{2'000};
    std::chrono::microseconds alone{20'000};
  };
  struct Parts {
    std::unique_ptr<kernels::Device> device;
    std::unique_ptr<ModelSpec> spec;
    std::unique_ptr<ModelWeights> weights;
    kernels::DType kv_dtype = kernels::DType::kF16;
    KvLayout kv_layout;                     // of all layers; its groups are those of the limits
    int64_t least_page_bytes = 0;           // of a page, if keys and values take less
    int32_t logit_rows = kLeastLogitRows;   // held at a time, which bounds their memory
    std::string host_kv_directory;          // directory of the host's tier; empty: in memory
    std::unique_ptr<DraftNetwork> drafter;  // beside the model; null: none
    DraftTraits draft_traits;
    std::unique_ptr<ModelWeights> draft_vocabulary;  // whole, if `weights` has a part; or null
    std::unique_ptr<OtherRanks> ranks;  // the others that share the model; null: none do
  };

  // Takes all memory that steps within `limits` need. RESOURCE_EXHAUSTED if there is not enough.
  static absl::StatusOr<std::unique_ptr<LocalExecutor>> Create(Parts parts,
                                                               const ExecutorLimits& limits);

  // Replaces the pool and the host's tier; the rest of `limits` must be as before. The old pages'
  // content is lost. RESOURCE_EXHAUSTED as for Create; the executor can then not be used any more.
  // REQUIRES: nothing is in flight.
  absl::Status ReplacePool(const ExecutorLimits& limits);

  const ExecutorLimits& limits() const override { return limits_; }
  // A drafter runs when the step's tokens are known, before the next step.
  int32_t max_in_flight() const override {
    if (is_pipeline()) return parts_.spec->steps_in_flight();
    // The other ranks learn a step's tokens when they are known here.
    return drafts_ == nullptr && parts_.ranks == nullptr ? parts_.device->max_in_flight() : 1;
  }
  absl::Status Submit(const StepPlan& plan, const StepLocals& locals) override;
  absl::Status Wait(StepResult* result) override;

  absl::Status status() const override {
    return parts_.ranks == nullptr ? absl::OkStatus() : parts_.ranks->status();
  }
  bool Abandon() override;
  absl::Status Recover() override { return parts_.ranks->Regroup(*parts_.device); }

  // REQUIRES: nothing is in flight.
  void set_mask_patience(const MaskPatience& patience) { mask_patience_ = patience; }

  // The device, for measurements between steps.
  kernels::Device& device() const { return *parts_.device; }
  const ModelSpec& spec() const { return *parts_.spec; }
  const ModelWeights& weights() const { return *parts_.weights; }
  int64_t page_bytes() const { return cache_->page_bytes(); }

  // Logits of the last step's last block of rows, [rows, vocab]; for tests and inspection.
  std::vector<float> last_logits() const;
  // Rows of all steps so far that ended before the last layer, since nothing needed them there; for
  // tests and inspection.
  int64_t rows_left_out() const;

 private:
  // A sample or a score of the plan, and the logit row it reads.
  struct DrawnRow {
    int32_t row = 0;           // of the plan
    int32_t logit_row = 0;     // of the batch
    int32_t index = 0;         // into plan.samples or plan.scores
    int32_t row_of_draft = 0;  // behind the first row of its sample
    bool is_score = false;
    bool is_known = true;  // the tokens that its grammar allows are known
    bool is_cut = false;   // a row of a draft that cannot be verified
    DrawFailure failure = DrawFailure::kNone;
  };

  // A plan between Submit and the end of Wait, with what its results are read from. The capacity is
  // kept.
  struct Flight {
    const StepPlan* plan = nullptr;
    StepLocals locals;
    std::vector<DrawnRow> draws;
    std::vector<int32_t> draw_of_sample;  // [n_samples] index into `draws`; -1: none
    std::vector<int32_t> left_out;        // samples that a later step draws
    std::vector<std::pair<int32_t, DrawFailure>> failed;  // samples that cannot be drawn
    bool is_launched = false;
    bool draws_wait = false;  // for the tokens of the step before
    bool has_logits = false;  // all rows' logits are computed before the draws are launched
    size_t kept_place = 0;    // of the step's hidden states (Decoder::kept_place)
    // One entry per draw, and the device's results of the step.
    std::vector<kernels::SampleRowParams> sample_rows;
    int32_t max_top = 0;
    std::vector<int32_t> tokens, top_tokens;
    std::vector<float> logprobs, top_logprobs;
    std::vector<int32_t> logit_rows;  // rows that are drawn from, then rows that are pooled
    int32_t n_drawn_rows = 0;         // how many of logit_rows are drawn from
    // Sums over rows of the plan's first pools, which the device makes, [n, hidden].
    std::vector<kernels::RowRange> summed;
    std::vector<float> row_sums;
    StepTiming timing;  // of the launch
  };

  // A sum of hidden states.
  struct PoolSum {
    std::vector<double> sum;  // [hidden]
    int32_t count = 0;
  };

  LocalExecutor(Parts parts, const ExecutorLimits& limits);

  bool is_pipeline() const { return parts_.spec->n_stages > 1; }
  absl::Status RunStep(Flight* flight, StepResult* result);
  absl::Status LaunchStages();
  absl::Status RunLogits(Flight* flight);
  absl::Status Launch(Flight* flight);
  void BeginSequences(Flight* flight);
  void EndSequences(const StepPlan& plan);
  void BuildDraws(Flight* flight);
  std::span<const int32_t> DrawsOfRows(const StepPlan& plan);
  static void NumberDraws(Flight* flight);
  static void BeginGains(const StepPlan& plan, StepResult* result);
  bool MayMoveBeside(const StepPlan& plan) const;
  absl::Status MovePages(const Flight& flight, StepTiming* timing);
  absl::Status Forward(Flight* flight);
  bool DrawsWait(const StepPlan& plan) const;
  void BuildSampleRows(Flight* flight);
  void FillMasks(Flight* flight);
  void CutDrafts(Flight* flight);
  void LeaveOut(Flight* flight);
  absl::Status LaunchDraws(Flight* flight);
  void Draw(kernels::Ops& ops, Flight* flight);
  void DrawBlock(kernels::Ops& ops, int32_t first_row, Flight* flight, size_t* next_draw);
  kernels::Tensor LogitBlock(const Flight& flight, int32_t first_row) const;
  absl::Status Finish(Flight* flight, StepResult* result);
  absl::Status CreateDrafter();
  // Whether the drafter reads hidden states of the step.
  static bool KeepsFeatures(const StepPlan& plan) {
    return !plan.token_ids.empty() && (plan.feeds_drafter || !plan.drafts_ahead.empty());
  }
  void Report(const Flight& flight, StepResult* result);
  static void Fill(const Flight& flight, size_t i, SampledToken* out);
  static bool HasDraw(const Flight& flight, size_t i, int32_t sample);
  void ReportSample(const Flight& flight, size_t first, StepResult* result);
  void SumRows(kernels::Ops& ops, Flight* flight);
  absl::Status AddRows(const PoolRows& pool, int32_t first_row, PoolSum* pooled);
  absl::Status Pool(const Flight& flight, StepResult* result);

  Parts parts_;
  ExecutorLimits limits_;
  std::unique_ptr<KvStorage> cache_;
  std::unique_ptr<HostPages> host_pages_;       // null: limits_.num_host_pages is 0
  std::unique_ptr<AdapterResidency> adapters_;  // null: limits_.adapter_slots is 0
  std::unique_ptr<Decoder> decoder_;
  std::unique_ptr<DraftRunner> drafts_;  // null: no drafter runs beside the model
  SamplerState sampler_;
  MaskPatience mask_patience_;
  std::unique_ptr<kernels::Buffer> logits_;  // [Parts::logit_rows, vocab] F32
  int32_t last_block_rows_ = 0;
  base::InFlight<Flight> flights_;

  // The batch that was launched last; its capacity is kept.
  PlanBatch batch_;
  std::vector<int32_t> draw_of_row_;
  std::vector<const uint32_t*> draft_masks_;
  // Those of prompts that are not complete yet.
  absl::flat_hash_map<SequenceId, PoolSum> pool_sums_;
  std::vector<char> pool_row_;  // one row in the device's type
};

}  // namespace heddle::engine
