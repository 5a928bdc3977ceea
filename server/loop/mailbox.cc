#include "server/loop/mailbox.h"

#include <utility>

#include "absl/container/flat_hash_set.h"

namespace heddle::server {

void Mailbox::Clear() {
  submissions.clear();
  cancellations.clear();
  pause_orders.clear();
  context_orders.clear();
  cancel_all = false;
  checks_executor = false;
}

std::vector<Submission> Mailbox::TakeCancelled() {
  std::vector<Submission> taken;
  if (submissions.empty() || cancellations.empty()) return taken;
  absl::flat_hash_set<RequestId> cancelled;
  for (const Cancellation& cancellation : cancellations) {
    if (cancellation.branch < 0) cancelled.insert(cancellation.id);
  }
  std::erase_if(submissions, [&](Submission& submission) {
    if (!cancelled.contains(submission.request.id)) return false;
    taken.push_back(std::move(submission));
    return true;
  });
  return taken;
}

}  // namespace heddle::server
