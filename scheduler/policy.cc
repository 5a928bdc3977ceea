#include "scheduler/policy.h"

#include <algorithm>
#include <deque>

#include "absl/container/flat_hash_map.h"

namespace heddle::scheduler {
namespace {

class FcfsPolicy : public Policy {
 public:
  OrderKey Key(const GenerationRequest&, const Arrival& arrival) override {
    return {.rank = 0, .arrival = arrival.number};
  }
};

class PriorityPolicy : public Policy {
 public:
  OrderKey Key(const GenerationRequest& request, const Arrival& arrival) override {
    return {.rank = request.priority, .arrival = arrival.number};
  }
  bool Displaces(const OrderKey& waiting, const OrderKey& running) const override {
    return waiting.rank < running.rank;
  }
};

// Least slack first. A request's slack is what is left until its deadline when the work that it
// still needs is taken away; as all slacks shrink alike while requests wait, their order is that of
// the latest moments at which to start. The requests of a workflow (the stages of an agent, say)
// share the deadline that the first of them brought: a stage that comes late finds less slack left.
// A request without a deadline has as much slack as nobody may wait longer than.
// Source: Peng et al., "HexGen-Text2SQL", 2025, section 4 (urgency of a stage).
class DeadlinePolicy : public Policy {
 public:
  OrderKey Key(const GenerationRequest& request, const Arrival& arrival) override {
    int64_t deadline_us = DeadlineOf(request, arrival.now_us);
    int64_t start_us = deadline_us == kNone ? arrival.now_us + arrival.starvation_us
                                            : deadline_us - arrival.work_us;
    return {.rank = std::max(start_us, OrderKey::kOverdue + 1), .arrival = arrival.number};
  }

 private:
  static constexpr int64_t kNone = std::numeric_limits<int64_t>::max();
  // Workflows that are remembered, the newest: some MiB, and more than run at a time.
  static constexpr size_t kMaxWorkflows = 65536;

  int64_t DeadlineOf(const GenerationRequest& request, int64_t now_us) {
    int64_t own = request.deadline_us > 0 ? now_us + request.deadline_us : kNone;
    if (request.workflow == 0) return own;
    auto it = deadline_of_workflow_.find(request.workflow);
    if (it != deadline_of_workflow_.end()) return std::min(own, it->second);
    if (own == kNone) return own;
    if (workflows_.size() == kMaxWorkflows) {
      deadline_of_workflow_.erase(workflows_.front());
      workflows_.pop_front();
    }
    workflows_.push_back(request.workflow);
    deadline_of_workflow_.emplace(request.workflow, own);
    return own;
  }

  absl::flat_hash_map<uint64_t, int64_t> deadline_of_workflow_;
  std::deque<uint64_t> workflows_;  // by age
};

class FairPolicy : public Policy {
 public:
  OrderKey Key(const GenerationRequest&, const Arrival& arrival) override {
    return {.rank = 0, .arrival = arrival.number};
  }
  bool is_per_tenant() const override { return true; }
  // Only from those that have more than twice as much: the rest evens out as requests end, and
  // places do not go to and fro.
  bool Displaces(const OrderKey& waiting, const OrderKey& running) const override {
    return 2 * waiting.rank + 1 < running.rank;
  }
};

}  // namespace

bool Policy::Displaces(const OrderKey&, const OrderKey&) const { return false; }

std::unique_ptr<Policy> MakePolicy(PolicyKind kind) {
  switch (kind) {
    case PolicyKind::kFcfs:
      return std::make_unique<FcfsPolicy>();
    case PolicyKind::kPriority:
      return std::make_unique<PriorityPolicy>();
    case PolicyKind::kDeadline:
      return std::make_unique<DeadlinePolicy>();
    case PolicyKind::kFair:
      return std::make_unique<FairPolicy>();
  }
  return nullptr;
}

}  // namespace heddle::scheduler
