// Whose place in the batch a waiting sequence takes (admission.h).
#include <algorithm>

#include "scheduler/admission.h"
#include "scheduler/client_shares.h"

namespace heddle::scheduler {

// Whether `next` may take the place of the least urgent running sequence: because the policy says
// so, or because `next` is overdue and arrived earlier.
bool Admission::DisplacesLast(const Sequence& next) const {
  const RunningSet& running = parts_.running;
  if (running.empty()) return false;
  const RequestState& last = *running.back()->request;
  if (last.overdue) return false;
  OrderKey key = next.request->key;
  if (next.request->overdue) return key.arrival < last.key.arrival;
  if (policy_->is_per_tenant()) {
    key.rank = running.NumOfFlow(next.request->flow);
    // The rank of `last` dates from its admission; the number of its tenant's running sequences now
    // counts as well.
    if (!policy_->Displaces(key, {.rank = running.NumOfFlow(last.flow)})) return false;
  }
  return policy_->Displaces(key, last.key);
}

// The least urgent running sequence of the client that has more than half of all places, if `next`
// is of a client that has none and is behind it; otherwise null. The last place of a client is
// never taken so: two would take it from each other and get nowhere. O(running): the one candidate
// is found by a vote (Boyer and Moore, 1991).
Sequence* Admission::LastOfHog(const Sequence& next) const {
  const RunningSet& running = parts_.running;
  if (!parts_.shares.is_enabled() || running.NumOfFlow(next.request->flow) > 0) return nullptr;
  int32_t hog = -1, votes = 0, all = 0;
  for (const Sequence* sequence : running) {
    if (!CountsAsOne(*sequence)) continue;
    ++all;
    if (votes == 0) hog = sequence->request->flow;
    votes += sequence->request->flow == hog ? 1 : -1;
  }
  const int32_t places = hog < 0 ? 0 : running.NumOfFlow(hog);
  if (places < 2 || 2 * places <= all) return nullptr;
  if (!parts_.shares.IsAhead(hog, next.request->flow)) return nullptr;
  size_t last = running.size() - 1;
  while (running[last]->request->flow != hog) --last;
  return running[last];
}

// The least urgent running sequence of `call` behind the index-th one; or null if there is none, or
// the policy puts it before `other`.
Sequence* Admission::LastOfCall(uint64_t call, size_t index, const Sequence& other) const {
  if (call == 0) return nullptr;
  const RunningSet& running = parts_.running;
  for (size_t i = running.size(); i-- > index;) {
    const RequestState& request = *running[i]->request;
    if (CallOf(request.request) != call) continue;
    return policy_->Displaces(request.key, other.request->key) ? nullptr : running[i];
  }
  return nullptr;
}

// The least urgent running sequence of the client's largest call, if `next` wants little, or waits
// for its call's first place and is overdue, and calls that have much can give what it lacks.
Sequence* Admission::LastOfLargestCall(const Sequence& next, const PlannedStep& step) const {
  const int64_t pages = parts_.limits.PagesToRun(next, parts_.pool);
  const bool is_due = next.request->overdue && !holds_.HasSome(next);
  if (holds_.WantsMuch(next, pages) && !is_due) return nullptr;
  const CallHolds::Want want{
      .pages = pages,
      .missing_places = step.slots + NumSlots(next) - parts_.limits.max_running,
      .missing_pages = pages - PagesBeside(next, step)};
  return LastOfCall(holds_.LargestThatGives(next, want), 0, next);
}

// The running sequence whose place `next` may take, or null.
Sequence* Admission::VictimFor(const Sequence& next, const PlannedStep& step) const {
  if (DisplacesLast(next)) return parts_.running.back();
  Sequence* const of_client = LastOfHog(next);
  return of_client != nullptr ? of_client : LastOfLargestCall(next, step);
}

void Admission::PreemptBehind(size_t index, PlannedStep* step) {
  RunningSet& running = parts_.running;
  Sequence* victim = running.back();
  holds_.Count(running);
  const uint64_t largest = holds_.LargestOf(victim->request->flow);
  if (Sequence* last = LastOfCall(largest, index + 1, *victim)) victim = last;
  Preempt(victim, step);
  running.Erase(victim);
}

}  // namespace heddle::scheduler
