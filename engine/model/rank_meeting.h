// How a rank finds those that are processes of their own: what a loader asks of whoever connects
// them. A process has one of them, or several that each load by themselves.
//
// Life: Agree, when this process knows what it has room for; JoinGroups, on the rank's device; then
// the head's Others, or the worker's steps. Thread-safety: none.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/executor.h"
#include "engine/model/other_ranks.h"
#include "engine/parallel/shard.h"
#include "kernels/device.h"

namespace heddle::engine {

// The things that ranks must have in common, and the room that each has.
struct RankOffer {
  ExecutorLimits limits;
  int32_t logit_rows = 0;
  std::string kv_type;
  // Pages whose memory goes to the rows of each hidden state that the head's drafter reads
  // (ExecutorLimits::drafter_features): a rank learns of the drafter when it has made its offer.
  int32_t feature_pages = 0;
};

// The means of a rank's machine. 0: not known.
struct RankMeans {
  double read_gb_s = 0;      // of memory, by the rank's threads
  int64_t memory_bytes = 0;  // free
};
// The layers of each stage, for ranks with these means [world].
using DivideStagesFn = std::function<std::vector<int32_t>(std::span<const RankMeans> ranks)>;

class RankMeeting {
 public:
  virtual ~RankMeeting() = default;

  virtual int32_t rank() const = 0;
  // The layers of each stage of a pipeline: rank 0 waits for all ranks, divides, and tells the
  // others. Once, before Agree, and on all ranks or none.
  virtual absl::StatusOr<std::vector<int32_t>> StageLayers(const DivideStagesFn& divide) = 0;
  // Waits for the offers of all ranks; the limits of the group: the least of all. An error names
  // the rank and what it has otherwise.
  virtual absl::StatusOr<ExecutorLimits> Agree(const RankOffer& own) = 0;
  virtual absl::Status JoinGroups(kernels::Device& device) = 0;
  // Waits until all others are loaded. REQUIRES: rank() is 0.
  virtual absl::StatusOr<std::unique_ptr<OtherRanks>> Others(const ExecutorLimits& limits) = 0;
};

}  // namespace heddle::engine
