// Messages of other threads to the engine loop, which takes all of them at once.
//
// Plain data, guarded by its owner. Within a kind, messages keep their order; a request's
// cancellation and pauses come behind its submission, whatever the order of the kinds.
#pragma once

#include <cstdint>
#include <vector>

#include "server/generation.h"

namespace heddle::server {

struct Submission {
  GenerationRequest request;
  EventSink sink;
  int64_t arrival_us;
};

struct Cancellation {
  RequestId id;
  int32_t branch;  // -1: all
};

struct PauseOrder {
  RequestId id;
  bool begins;  // or ends
};

struct Mailbox {
  std::vector<Submission> submissions;
  std::vector<Cancellation> cancellations;
  std::vector<PauseOrder> pause_orders;
  bool cancel_all = false;

  bool empty() const {
    return submissions.empty() && cancellations.empty() && pause_orders.empty() && !cancel_all;
  }
  // Keeps the capacity.
  void Clear();

  // Takes out the submissions whose request is cancelled as a whole in the same mail.
  std::vector<Submission> TakeCancelled();
};

}  // namespace heddle::server
