// The order in which requests are served. The scheduler asks for a key when a request arrives (and
// when it is admitted). It serves and admits in the order of keys, and preempts from its other end.
//
// Under every policy, a request that has waited for SchedulerOptions::starvation_us goes ahead of
// all that have not: the scheduler, not the policy, keeps that bound.
#pragma once

#include <compare>
#include <cstdint>
#include <limits>
#include <memory>
#include <string_view>

#include "scheduler/request.h"

namespace heddle::scheduler {

enum class PolicyKind : uint8_t {
  kFcfs,      // first come, first served
  kPriority,  // the lowest `priority` first, which also displaces running requests of higher ones
  kDeadline,  // the least slack first
  kFair,      // the service that each tenant got stays even
  kShortest,  // the shortest prompt first
};

// Properties of a policy that other code depends on, so that it need not ask for the kind.
struct PolicyTraits {
  PolicyKind kind;
  std::string_view name;       // in the configuration (--policy)
  bool uses_priority = false;  // GenerationRequest::priority matters
  bool uses_deadline = false;  // deadline_us and workflow matter
};

const PolicyTraits& TraitsOf(PolicyKind kind);
// The policy of that name, or null if there is none.
const PolicyTraits* FindPolicy(std::string_view name);

// Orders requests: smaller is more urgent. `number` is unique per request and makes the order
// total.
struct OrderKey {
  static constexpr int64_t kOverdue = std::numeric_limits<int64_t>::min();

  int64_t rank = 0;
  uint64_t arrival = 0;  // number of the first request of its call
  uint64_t number = 0;   // its own
  auto operator<=>(const OrderKey&) const = default;
};

// Facts about a request that a policy orders by, known when it arrives.
struct Arrival {
  uint64_t number = 0;  // 1, 2, 3...
  uint64_t first = 0;   // the number of the first request of its call
  int64_t now_us = 0;
  int64_t work_us = 0;        // estimated work; 0: unknown
  int64_t starvation_us = 0;  // SchedulerOptions::starvation_us
};

// Thread-safety: none; owned by the scheduler.
class Policy {
 public:
  virtual ~Policy() = default;

  virtual OrderKey Key(const GenerationRequest& request, const Arrival& arrival) = 0;

  // Whether each tenant has its own queue (WaitingQueue's flows). A request's rank is then the
  // number of its tenant's sequences that ran when it was admitted: every tenant's first sequence
  // goes before any tenant's second.
  virtual bool is_per_tenant() const { return false; }

  // Whether a waiting request takes the place of the least urgent running one.
  virtual bool Displaces(const OrderKey& waiting, const OrderKey& running) const;
};

std::unique_ptr<Policy> MakePolicy(PolicyKind kind);

}  // namespace heddle::scheduler
