// Contexts that branches leave for others (kept_contexts.h), also while they still run.
#include <algorithm>

#include "scheduler/scheduler.h"

namespace heddle::scheduler {

namespace {

// Pages that a sequence grows by until its lists follow: few enough that a fork has little to add,
// and enough that copying the lists' pointers costs a token a few nanoseconds.
constexpr int32_t kFollowPages = 8;

}  // namespace

// Leaves what an ended branch has computed, unless somebody has dropped the context before.
void Scheduler::KeepContext(Sequence* sequence, FinishReason reason) {
  if (sequence->request->request.keep == ContextId{}) return;
  const ContextId id = ContextOf(*sequence);
  const auto keeper = keepers_.find(id);
  if (keeper == keepers_.end() || keeper->second != sequence) return;
  keepers_.erase(keeper);
  if (reason != FinishReason::kError) contexts_.Keep(id, *sequence, sequence->num_tokens());
  contexts_.Unfollow(id);
}

// Keeps the lists of running sequences that leave contexts up to date as these grow, so that a fork
// and the end of a branch have little to add.
void Scheduler::FollowKeepers() {
  if (keepers_.empty()) return;
  for (Sequence* sequence : running_) {
    const int32_t known = std::min(sequence->num_computed(), sequence->num_tokens());
    if (known - sequence->num_followed < kFollowPages * pool_.page_tokens()) continue;
    const auto keeper = keepers_.find(ContextOf(*sequence));
    if (keeper == keepers_.end() || keeper->second != sequence) continue;
    prefixes_.Leave(sequence);
    contexts_.Follow(*sequence);
    sequence->num_followed = known;
  }
}

void Scheduler::ForkContext(ContextId from, int32_t num_tokens, ContextId to) {
  const auto keeper = keepers_.find(from);
  if (keeper == keepers_.end()) return contexts_.Fork(from, num_tokens, to);
  Sequence* sequence = keeper->second;
  // A waiting branch holds no page: what its request came with may still be there.
  if (sequence->tables.empty()) {
    const ContextId origin = sequence->request->request.from;
    return contexts_.Fork(contexts_.has(from) ? from : origin, num_tokens, to);
  }
  prefixes_.Leave(sequence);
  contexts_.Keep(to, *sequence, sequence->request->layout.PlaceOf(num_tokens));
}

void Scheduler::DropContext(ContextId id) {
  keepers_.erase(id);
  contexts_.Unfollow(id);
  contexts_.Drop(id);
}

}  // namespace heddle::scheduler
