// The ranks in other processes as the head's executor sees them: halves of steps go out as
// messages.
//
// Thread-safety: none, as OtherRanks.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <thread>

#include "engine/model/other_ranks.h"
#include "engine/parallel/plan_codec.h"
#include "server/ranks/grpc_rank_head.h"

namespace heddle::server {

class RemoteRanks final : public engine::OtherRanks {
 public:
  RemoteRanks(std::shared_ptr<GrpcRankHead> head, const engine::ExecutorLimits& limits)
      : head_(std::move(head)), limits_(limits), encoder_(limits) {}
  ~RemoteRanks() override;

  void Begin(const engine::StepPlan& plan, Adapters adapters) override;
  void BeginLogits() override;
  absl::Status Join(const absl::Status& head) override;
  absl::Status Fail(const absl::Status& why) override;
  int32_t world() const override;
  absl::Status status() const override;
  bool may_regroup() const override;
  absl::Status Regroup(kernels::Device& device) override;

 private:
  struct Step {
    uint64_t layers_end = 0;  // halves up to this one
    uint64_t logits_end = 0;
  };
  const std::shared_ptr<GrpcRankHead> head_;
  const engine::ExecutorLimits limits_;
  engine::PlanEncoder encoder_;
  std::thread::id bound_;   // the head's thread that is on rank 0's processors
  std::deque<Step> steps_;  // begun and not joined
  uint64_t halves_ = 0;
  std::string message_;
};

}  // namespace heddle::server
