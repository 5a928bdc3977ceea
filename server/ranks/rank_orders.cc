#include "server/ranks/rank_orders.h"

#include <algorithm>
#include <string>
#include <utility>

#include "base/message.h"
#include "base/status.h"

namespace heddle::server {

using ranks::v1::FromHead;

namespace {

// Drafters read three to five; each takes memory of a step's rows.
constexpr int kMostFeatures = 64;

}  // namespace

absl::StatusOr<GroupStart> FromStart(const ranks::v1::Start& start, const engine::RankOffer& own,
                                     int32_t world) {
  const engine::ExecutorLimits& offered = own.limits;
  const bool fits = start.num_pages() >= 1 && start.num_pages() <= offered.num_pages &&
                    start.num_host_pages() >= 0 &&
                    start.num_host_pages() <= offered.num_host_pages && start.max_context() >= 1 &&
                    start.max_context() <= offered.max_context;
  if (!fits) return absl::InvalidArgumentError("the head has agreed to more than was offered");
  const bool is_drafter = start.max_ahead_tokens() >= 0 && start.rows_beyond_guesses() >= 0 &&
                          start.drafter_features_size() <= kMostFeatures;
  if (!is_drafter) return absl::InvalidArgumentError("the head names a drafter that cannot be");
  if (start.peers_size() != world) {
    return absl::InvalidArgumentError(
        base::StrCat("the head starts ", start.peers_size(), " ranks, and its layout has ", world));
  }
  GroupStart group;
  group.mesh_key = start.mesh_key();
  group.limits = offered;
  group.limits.num_pages = start.num_pages();
  group.limits.num_host_pages = start.num_host_pages();
  group.limits.max_context = start.max_context();
  group.limits.max_ahead_tokens = start.max_ahead_tokens();
  group.limits.rows_beyond_guesses = start.rows_beyond_guesses();
  group.limits.drafter_features.assign(start.drafter_features().begin(),
                                       start.drafter_features().end());
  for (const ranks::v1::Start::Peer& peer : start.peers()) {
    if (peer.mesh_address().empty()) {
      return absl::InvalidArgumentError("the head names a rank that has no address");
    }
    group.peers.push_back({peer.mesh_address(), peer.name()});
    group.families.push_back(peer.family());
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
    case FromHead::kAdapter: {
      HEDDLE_ASSIGN_OR_RETURN(
          engine::DecodedImage image,
          engine::DecodeImage(message.adapter(), rank_,
                              {.page_bytes = limits_.page_bytes,
                               .dtype = limits_.adapter_dtype,
                               .max_pages = limits_.adapter_slots > 0 ? limits_.num_pages : 0}));
      // Each is bound to a slot, or loads a page.
      if (static_cast<int64_t>(adapters_.size()) >=
          int64_t{limits_.adapter_slots} + limits_.num_pages) {
        return absl::InvalidArgumentError("the head sends more adapters than a step can have");
      }
      adapters_.push_back(std::move(image));
      return Order{Order::Kind::kAdapter, {}, {}};
    }
    case FromHead::kEnd:
      return Order{};
    case FromHead::kWelcome:
    case FromHead::kStart:
    case FromHead::kStages:
    case FromHead::MESSAGE_NOT_SET:
      break;
  }
  return absl::InvalidArgumentError("the head sent a message that has no place there");
}

std::shared_ptr<engine::StepPlan> RankOrders::FreePlan() {
  for (const auto& plan : kept_) {
    if (plan.use_count() == 1) return plan;
  }
  return kept_.emplace_back(std::make_shared<engine::StepPlan>());
}

absl::StatusOr<RankOrders::Order> RankOrders::TakePlan(const std::string& message) {
  if (plans_.size() == kMaxSteps) {
    return absl::InvalidArgumentError("the head begins more steps than a pipeline has");
  }
  std::shared_ptr<engine::StepPlan> plan = FreePlan();
  HEDDLE_RETURN_IF_ERROR(decoder_.Decode(message, plan.get()));
  HEDDLE_RETURN_IF_ERROR(CheckAdapters(*plan));
  plans_.push_back(std::move(plan));
  Order order{Order::Kind::kStage, plans_.back(), {}};
  for (engine::DecodedImage& adapter : adapters_) order.adapters.push_back(adapter.image);
  adapters_.clear();
  return order;
}

// Whether everything that the plan loads and binds has come before it.
absl::Status RankOrders::CheckAdapters(const engine::StepPlan& plan) const {
  const auto find = [this](engine::AdapterId id) {
    return std::find_if(adapters_.begin(), adapters_.end(),
                        [id](const engine::DecodedImage& one) { return one.image->id == id; });
  };
  const auto is_there = [&](const engine::AdapterPageLoad& load) {
    const auto found = find(load.adapter);
    if (found == adapters_.end() || load.image_page >= found->image->num_pages) return false;
    const bool is_own = load.image_page < found->image->OfRank(rank_).num_pages;
    return !is_own || std::find(found->pages.begin(), found->pages.end(), load.image_page) !=
                          found->pages.end();
  };
  const auto is_known = [&](const engine::AdapterBind& bind) {
    const auto found = find(bind.adapter);
    return found != adapters_.end() && found->has_factors &&
           bind.num_pages >= found->image->OfRank(rank_).num_pages;
  };
  if (std::all_of(plan.adapter_loads.begin(), plan.adapter_loads.end(), is_there) &&
      std::all_of(plan.adapter_binds.begin(), plan.adapter_binds.end(), is_known)) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError("a plan names an adapter that has not come");
}

}  // namespace heddle::server
