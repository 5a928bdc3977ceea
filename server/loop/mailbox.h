// Messages of other threads to the engine loop, which takes all of them at once.
//
// Plain data, guarded by its owner. Within a kind, messages keep their order; a request's
// cancellation and pauses come behind its submission, whatever the order of the kinds. Forks come
// behind both: a fork of what a request leaves may be posted before the request ends.
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

// A fork of a context, a join of several, or the end of one.
struct ContextOrder {
  scheduler::ContextId from{};
  int32_t num_tokens = 0;
  scheduler::ContextId to{};    // 0: `from` ends
  scheduler::ContextJoin join;  // without children: no join
};

struct Mailbox {
  std::vector<Submission> submissions;
  std::vector<Cancellation> cancellations;
  std::vector<PauseOrder> pause_orders;
  std::vector<ContextOrder> context_orders;
  bool cancel_all = false;
  bool checks_executor = false;  // whether there is anything to run or not

  bool empty() const {
    return submissions.empty() && cancellations.empty() && pause_orders.empty() &&
           context_orders.empty() && !cancel_all && !checks_executor;
  }
  // Keeps the capacity.
  void Clear();

  // Takes out the submissions whose request is cancelled as a whole in the same mail.
  std::vector<Submission> TakeCancelled();
};

}  // namespace heddle::server
