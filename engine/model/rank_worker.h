// A rank that draws nothing: it runs the same steps as the head's LocalExecutor on its part of the
// model. In the head's stage it gives the head its part of the logits.
//
// Thread-safety: none; owned by its thread (rank_threads.h).
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/executor.h"
#include "engine/memory/host_pages.h"
#include "engine/memory/kv_storage.h"
#include "engine/model/adapter_residency.h"
#include "engine/model/decoder.h"
#include "engine/model/plan_batch.h"
#include "engine/step.h"
#include "kernels/device.h"

namespace heddle::engine {

class RankWorker {
 public:
  struct Parts {
    std::unique_ptr<kernels::Device> device;  // has joined its groups
    ModelSpec spec;                           // of the rank's share
    ModelWeights weights;
    kernels::DType kv_dtype = kernels::DType::kF16;
    KvLayout kv_layout;            // of its heads, with the groups of the limits
    int64_t least_page_bytes = 0;  // of a page, if keys and values take less
    int32_t logit_rows = 0;        // that the head asks for at a time
    std::string host_kv_directory;
  };

  // Takes all memory that steps within `limits` need. RESOURCE_EXHAUSTED if there is not enough.
  static absl::StatusOr<std::unique_ptr<RankWorker>> Create(Parts parts,
                                                            const ExecutorLimits& limits);

  using Adapters = std::span<const std::shared_ptr<const AdapterImage>>;
  // Runs a step in two halves, which end when this rank's part of them is done: up to the end of
  // its stage's layers, and, in stage 0, the logits. In a pipeline later steps' first halves may
  // lie in between. `adapters`: StepLocals::adapters.
  absl::Status RunStage(const StepPlan& plan, Adapters adapters);
  absl::Status RunLogits(const StepPlan& plan);

  // For joining new groups behind a failure. The content of all pages counts as lost then.
  kernels::Device& device() const { return *parts_.device; }
  int32_t stage() const { return parts_.spec.stage; }

 private:
  RankWorker(Parts parts, const ExecutorLimits& limits)
      : parts_(std::move(parts)), limits_(limits) {}

  absl::Status MovePages(const StepPlan& plan, Adapters adapters);
  int32_t FindLogitRows(const StepPlan& plan);

  Parts parts_;
  const ExecutorLimits limits_;
  std::unique_ptr<KvStorage> cache_;
  std::unique_ptr<HostPages> host_pages_;       // null: limits_.num_host_pages is 0
  std::unique_ptr<AdapterResidency> adapters_;  // null: limits_.adapter_slots is 0
  std::unique_ptr<Decoder> decoder_;
  PlanBatch batch_;
  std::vector<int32_t> logit_rows_;  // as LocalExecutor has them
};

}  // namespace heddle::engine
