// In which order requests are served. The scheduler asks for a key when a request arrives (and when
// it is admitted), and serves, admits and (from the other end) preempts in the order of keys.
//
// Whatever the policy, a request that has waited for SchedulerOptions::starvation_us goes ahead of
// all that have not: that bound is the scheduler's, not the policy's.
#pragma once

#include <compare>
#include <cstdint>
#include <limits>
#include <memory>

#include "scheduler/request.h"

namespace heddle::scheduler {

enum class PolicyKind : uint8_t {
  kFcfs,      // first come, first served
  kPriority,  // the lowest `priority` first; it takes the place of running requests of higher ones
  kDeadline,  // the least slack first
  kFair,      // what was given to each tenant stays even
};

// Smaller is more urgent. `arrival` is unique per request and makes every order total.
struct OrderKey {
  static constexpr int64_t kOverdue = std::numeric_limits<int64_t>::min();

  int64_t rank = 0;
  uint64_t arrival = 0;
  auto operator<=>(const OrderKey&) const = default;
};

// What the scheduler knows when a request arrives.
struct Arrival {
  uint64_t number = 0;  // 1, 2, 3...
  int64_t now_us = 0;
  int64_t work_us = 0;        // what the request is thought to take; 0: not known yet
  int64_t starvation_us = 0;  // the bound
};

// Thread-safety: none; owned by the scheduler.
class Policy {
 public:
  virtual ~Policy() = default;

  virtual OrderKey Key(const GenerationRequest& request, const Arrival& arrival) = 0;

  // Whether tenants stand in line separately (WaitingQueue's flows), and a request's rank is how
  // many of its tenant's sequences ran when it was admitted: every tenant's first before anybody's
  // second.
  virtual bool is_per_tenant() const { return false; }

  // Whether a waiting request takes the place of the least urgent running one.
  virtual bool Displaces(const OrderKey& waiting, const OrderKey& running) const;
};

std::unique_ptr<Policy> MakePolicy(PolicyKind kind);

}  // namespace heddle::scheduler
