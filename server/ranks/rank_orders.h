// Orders of the head to a rank that it has let in, checked: the start of the group, and then the
// halves of steps in their order. It knows no connection and runs nothing.
//
// Thread-safety: none.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/adapter/image_codec.h"
#include "engine/executor.h"
#include "engine/model/rank_meeting.h"
#include "engine/parallel/plan_codec.h"
#include "engine/step.h"
#include "proto/heddle/ranks/v1/ranks.pb.h"
#include "server/ranks/rank_mesh.h"

namespace heddle::server {

struct GroupStart {
  engine::ExecutorLimits limits;
  std::vector<RankMesh::Peer> peers;  // [world] in the order of ranks
  std::vector<uint64_t> families;     // [world] GroupPlace::families
  uint64_t mesh_key = 0;
};

// INVALID_ARGUMENT: the head wants more than `own` offers, or another number of ranks.
absl::StatusOr<GroupStart> FromStart(const ranks::v1::Start& start, const engine::RankOffer& own,
                                     int32_t world);

class RankOrders {
 public:
  // Plans whose second half is to come: a pipeline has one more than stages.
  static constexpr size_t kMaxSteps = 80;

  // `rank`: whose orders they are.
  RankOrders(const engine::ExecutorLimits& limits, int32_t rank)
      : limits_(limits), rank_(rank), decoder_(limits) {}

  struct Order {
    enum class Kind : uint8_t { kStage, kLogits, kAdapter, kEnd };
    Kind kind = Kind::kEnd;                        // kAdapter: nothing to do before the next plan
    std::shared_ptr<const engine::StepPlan> plan;  // of the two halves
    // For kStage: what the plan loads and binds.
    std::vector<std::shared_ptr<const engine::AdapterImage>> adapters;
  };
  // INVALID_ARGUMENT: the message has no place here, or its plan is none of these limits. Nothing
  // is to be taken behind an error.
  absl::StatusOr<Order> Take(const ranks::v1::FromHead& message);

 private:
  absl::StatusOr<Order> TakePlan(const std::string& message);
  std::shared_ptr<engine::StepPlan> FreePlan();
  absl::Status CheckAdapters(const engine::StepPlan& plan) const;

  const engine::ExecutorLimits limits_;
  const int32_t rank_;
  engine::PlanDecoder decoder_;
  std::deque<std::shared_ptr<const engine::StepPlan>> plans_;  // whose second half is to come
  // All plans: one that nobody else holds is used again, with the memory of its arrays.
  std::vector<std::shared_ptr<engine::StepPlan>> kept_;
  std::vector<engine::DecodedImage> adapters_;  // of the next plan
};

}  // namespace heddle::server
