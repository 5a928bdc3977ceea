#include "server/ranks/rank_orders.h"

#include <string>
#include <utility>

#include "base/message.h"
#include "base/status.h"

namespace heddle::server {

using ranks::v1::FromHead;

absl::StatusOr<GroupStart> FromStart(const ranks::v1::Start& start, const engine::RankOffer& own,
                                     int32_t world) {
  const engine::ExecutorLimits& offered = own.limits;
  const bool fits = start.num_pages() >= 1 && start.num_pages() <= offered.num_pages &&
                    start.num_host_pages() >= 0 &&
                    start.num_host_pages() <= offered.num_host_pages && start.max_context() >= 1 &&
                    start.max_context() <= offered.max_context;
  if (!fits) return absl::InvalidArgumentError("the head has agreed to more than was offered");
  if (start.peers_size() != world) {
    return absl::InvalidArgumentError(
        base::StrCat("the head starts ", start.peers_size(), " ranks, and its layout has ", world));
  }
  GroupStart group;
  group.limits = offered;
  group.limits.num_pages = start.num_pages();
  group.limits.num_host_pages = start.num_host_pages();
  group.limits.max_context = start.max_context();
  for (const ranks::v1::Start::Peer& peer : start.peers()) {
    if (peer.mesh_address().empty()) {
      return absl::InvalidArgumentError("the head names a rank that has no address");
    }
    group.peers.push_back({peer.mesh_address(), peer.name()});
  }
  return group;
}

absl::StatusOr<RankOrders::Order> RankOrders::Take(const FromHead& message) {
  switch (message.message_case()) {
    case FromHead::kPlan:
      return TakePlan(message.plan());
    case FromHead::kLogits: {
      if (plans_.empty()) return absl::InvalidArgumentError("the head wants logits of no step");
      Order order{Order::Kind::kLogits, std::move(plans_.front())};
      plans_.pop_front();
      return order;
    }
    case FromHead::kEnd:
      return Order{};
    case FromHead::kWelcome:
    case FromHead::kStart:
    case FromHead::MESSAGE_NOT_SET:
      break;
  }
  return absl::InvalidArgumentError("the head sent a message that has no place there");
}

absl::StatusOr<RankOrders::Order> RankOrders::TakePlan(const std::string& message) {
  if (plans_.size() == kMaxSteps) {
    return absl::InvalidArgumentError("the head begins more steps than a pipeline has");
  }
  auto plan = std::make_shared<engine::StepPlan>();
  HEDDLE_RETURN_IF_ERROR(decoder_.Decode(message, plan.get()));
  if (!plan->adapter_loads.empty() || !plan->adapter_binds.empty()) {
    return absl::InvalidArgumentError("adapters do not travel");
  }
  plans_.push_back(std::move(plan));
  return Order{Order::Kind::kStage, plans_.back()};
}

}  // namespace heddle::server
