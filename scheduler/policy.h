// In which order requests are served. The scheduler asks for a key once, when a request arrives,
// and serves, admits and (from the other end) preempts in the order of keys.
#pragma once

#include <compare>
#include <cstdint>

#include "scheduler/request.h"

namespace heddle::scheduler {

// Smaller is more urgent. `arrival` is unique per request and makes every order total.
struct OrderKey {
  int64_t rank = 0;
  uint64_t arrival = 0;
  auto operator<=>(const OrderKey&) const = default;
};

// Thread-safety: none; owned by the scheduler.
class Policy {
 public:
  virtual ~Policy() = default;
  // The `arrival`-th request has arrived at `now_us`.
  virtual OrderKey Key(const GenerationRequest& request, uint64_t arrival, int64_t now_us) = 0;
};

// First come, first served.
class FcfsPolicy : public Policy {
 public:
  OrderKey Key(const GenerationRequest& request, uint64_t arrival, int64_t now_us) override;
};

}  // namespace heddle::scheduler
