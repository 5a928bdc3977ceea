#include "scheduler/policy.h"

#include <algorithm>
#include <deque>
#include <iterator>

#include "absl/container/flat_hash_map.h"

namespace heddle::scheduler {
namespace {

// The entries are in the order of PolicyKind.
constexpr PolicyTraits kPolicies[] = {
    {PolicyKind::kFcfs, "fcfs"},
    {PolicyKind::kPriority, "priority", /*uses_priority=*/true},
    {PolicyKind::kDeadline, "deadline", /*uses_priority=*/false, /*uses_deadline=*/true},
    {PolicyKind::kFair, "fair"},
    {PolicyKind::kShortest, "shortest"},
};

class FcfsPolicy : public Policy {
 public:
  OrderKey Key(const GenerationRequest&, const Arrival& arrival) override {
    return {.rank = 0, .arrival = arrival.first, .number = arrival.number};
  }
};

class PriorityPolicy : public Policy {
 public:
  OrderKey Key(const GenerationRequest& request, const Arrival& arrival) override {
    return {.rank = request.priority, .arrival = arrival.first, .number = arrival.number};
  }
  bool Displaces(const OrderKey& waiting, const OrderKey& running) const override {
    return waiting.rank < running.rank;
  }
};

// Serves the least slack first. A request's slack is the time until its deadline minus the work
// that it still needs; all slacks shrink alike while requests wait, so their order is that of the
// latest start times. The requests of a workflow (such as the stages of an agent) share the
// deadline of the first of them: a late stage has less slack left.
// Without a deadline, the slack is the starvation limit.
// Source: Peng et al., "HexGen-Text2SQL", 2025, section 4 (urgency of a stage).
class DeadlinePolicy : public Policy {
 public:
  OrderKey Key(const GenerationRequest& request, const Arrival& arrival) override {
    int64_t deadline_us = DeadlineOf(request, arrival.now_us);
    int64_t start_us = deadline_us == kNone ? arrival.now_us + arrival.starvation_us
                                            : deadline_us - arrival.work_us;
    return {.rank = std::max(start_us, OrderKey::kOverdue + 1),
            .arrival = arrival.first,
            .number = arrival.number};
  }

 private:
  static constexpr int64_t kNone = std::numeric_limits<int64_t>::max();
  // Limit on remembered workflows; the oldest are forgotten. It is some MiB, and more than run at a
  // time.
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
    return {.rank = 0, .arrival = arrival.first, .number = arrival.number};
  }
  bool is_per_tenant() const override { return true; }
  // Displaces only tenants that have more than twice as many sequences: smaller differences even
  // out as requests end, and sequences are not swapped back and forth.
  bool Displaces(const OrderKey& waiting, const OrderKey& running) const override {
    return 2 * waiting.rank + 1 < running.rank;
  }
};

// Serves the shortest prompt first, so that the mean time to the first token is the least; prompts
// of one length keep their order. How long an answer will be is not known, and does not count.
class ShortestPolicy : public Policy {
 public:
  OrderKey Key(const GenerationRequest& request, const Arrival& arrival) override {
    return {.rank = static_cast<int64_t>(request.prompt.size()),
            .arrival = arrival.first,
            .number = arrival.number};
  }
};

}  // namespace

bool Policy::Displaces(const OrderKey&, const OrderKey&) const { return false; }

const PolicyTraits& TraitsOf(PolicyKind kind) { return kPolicies[static_cast<size_t>(kind)]; }

const PolicyTraits* FindPolicy(std::string_view name) {
  const auto* const found = std::find_if(std::begin(kPolicies), std::end(kPolicies),
                                         [name](const auto& p) { return p.name == name; });
  return found == std::end(kPolicies) ? nullptr : found;
}

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
    case PolicyKind::kShortest:
      return std::make_unique<ShortestPolicy>();
  }
  return nullptr;
}

}  // namespace heddle::scheduler
