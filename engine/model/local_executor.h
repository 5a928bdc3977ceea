// Executor on one device: turns a StepPlan into the device's batch, runs the decoder, draws tokens.
//
// Logits are computed and sampled in blocks of rows, so that their memory is bounded whatever the
// number of rows asked for (prompt logprobs ask for all).
//
// On a device that runs steps by itself (Device::max_in_flight() > 1), Submit launches the plan and
// Wait reads its results; it blocks for the step before only where the plan swaps pages that the
// step before uses. Draws that depend on the tokens of the step before, for a grammar or a penalty,
// are launched when Wait has brought these, while the device computes the logits. On other devices
// Submit keeps the plan, and the work is done in Wait.
// Thread-safety: none. The work is done on the caller's thread and the device's own.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/status/statusor.h"
#include "engine/executor.h"
#include "engine/memory/host_pages.h"
#include "engine/memory/kv_storage.h"
#include "engine/model/decoder.h"
#include "engine/model/plan_batch.h"
#include "engine/sample/sampler_state.h"
#include "kernels/device.h"

namespace heddle::engine {

class LocalExecutor final : public Executor {
 public:
  static constexpr int32_t kLeastLogitRows = 64;
  struct Parts {
    std::unique_ptr<kernels::Device> device;
    std::unique_ptr<ModelSpec> spec;
    std::unique_ptr<ModelWeights> weights;
    kernels::DType kv_dtype = kernels::DType::kF16;
    KvLayout kv_layout;                    // of all layers; its groups are those of the limits
    int32_t logit_rows = kLeastLogitRows;  // held at a time, so that their memory is bounded
    std::string host_kv_directory;         // of the host's tier; empty: in memory
  };

  // Takes all memory that steps within `limits` need. RESOURCE_EXHAUSTED if there is not enough.
  static absl::StatusOr<std::unique_ptr<LocalExecutor>> Create(Parts parts,
                                                               const ExecutorLimits& limits);

  // Another pool and another host's tier; all else of `limits` is as it was. What the old pages
  // hold is lost. RESOURCE_EXHAUSTED as for Create; the executor is then good for nothing.
  // REQUIRES: nothing is in flight.
  absl::Status ReplacePool(const ExecutorLimits& limits);

  const ExecutorLimits& limits() const override { return limits_; }
  int32_t max_in_flight() const override { return parts_.device->max_in_flight(); }
  absl::Status Submit(const StepPlan& plan) override;
  absl::Status Wait(StepResult* result) override;

  // For measurements between steps.
  kernels::Device& device() const { return *parts_.device; }
  const ModelSpec& spec() const { return *parts_.spec; }
  const ModelWeights& weights() const { return *parts_.weights; }
  int64_t page_bytes() const { return cache_->page_bytes(); }

  // Logits of the last step's last block of rows, [rows, vocab]; for tests and inspection.
  std::vector<float> last_logits() const;

 private:
  // A sample or a score of the plan, and the logit row it reads.
  struct DrawnRow {
    int32_t row = 0;        // of the plan
    int32_t logit_row = 0;  // of the batch
    int32_t index = 0;      // into plan.samples or plan.scores
    bool is_score = false;
    bool is_void = false;  // the step before has forced tokens of its sequence
  };

  // A plan between Submit and the end of Wait: what its results will be read from. Capacity is
  // kept.
  struct Flight {
    const StepPlan* plan = nullptr;
    std::vector<DrawnRow> draws;
    bool draws_wait = false;  // for what the step before draws
    bool has_logits = false;  // those of all rows are there before the draws are launched
    // One per draw, and what the device says of it when the step has run.
    std::vector<kernels::SampleRowParams> sample_rows;
    int32_t max_top = 0;
    std::vector<int32_t> tokens, top_tokens;
    std::vector<float> logprobs, top_logprobs;
    StepTiming timing;  // of the launch
  };

  LocalExecutor(Parts parts, const ExecutorLimits& limits);

  absl::Status Launch(Flight* flight);
  void BuildDraws(Flight* flight);
  std::span<const TokenId> TokensOf(const StepPlan& plan);
  bool MaySwapBeside(const StepPlan& plan) const;
  absl::Status SwapPages(const StepPlan& plan, StepTiming* timing);
  absl::Status Forward(Flight* flight);
  bool DrawsWait(const StepPlan& plan) const;
  void BuildSampleRows(Flight* flight);
  void FillMasks(Flight* flight);
  absl::Status LaunchDraws(Flight* flight);
  void Draw(kernels::Ops& ops, Flight* flight);
  void DrawBlock(kernels::Ops& ops, int32_t first_row, Flight* flight, size_t* next_draw);
  kernels::Tensor LogitBlock(int32_t first_row) const;
  absl::Status Finish(Flight* flight, StepResult* result);
  void Report(const Flight& flight, StepResult* result);
  void ReportDraw(const Flight& flight, size_t i, StepResult* result);
  absl::Status Pool(const StepPlan& plan, StepResult* result);

  Parts parts_;
  ExecutorLimits limits_;
  std::unique_ptr<KvStorage> cache_;
  std::unique_ptr<HostPages> host_pages_;  // null: limits_.num_host_pages is 0
  std::unique_ptr<Decoder> decoder_;
  SamplerState sampler_;
  std::unique_ptr<kernels::Buffer> logits_;  // [Parts::logit_rows, vocab] F32
  int32_t last_block_rows_ = 0;
  // num_flights_ from oldest_flight_ on, in a ring.
  std::array<Flight, 2> flights_;
  size_t oldest_flight_ = 0;
  size_t num_flights_ = 0;

  // The batch that was launched last; capacity is kept.
  PlanBatch batch_;
  std::vector<TokenId> tokens_;               // with the draws of the step before by their number
  std::vector<int32_t> last_draw_of_sample_;  // of the plan launched last
  std::vector<int32_t> logit_rows_;
  absl::flat_hash_set<SequenceId> jumped_;  // had forced tokens in the step that ended last
  int32_t n_drawn_rows_ = 0;  // of logit_rows_; behind them those that are pooled, pool by pool
  // Sums of hidden states of prompts that are not through yet.
  struct PoolSum {
    std::vector<double> sum;  // [hidden]
    int32_t count = 0;
  };
  absl::flat_hash_map<SequenceId, PoolSum> pool_sums_;
  std::vector<char> pool_row_;  // one row as the device has it
};

}  // namespace heddle::engine
