// The scheduler's use of the prefix cache: which pages a sequence takes over at admission, which it
// leaves for others as its pages fill, and when it waits for a page that another sequence is
// computing rather than compute it twice.
//
// Owns the cache and the host's tier of pages behind it.
// Thread-safety: none; owned by the scheduler.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "engine/step.h"
#include "scheduler/kept_contexts.h"
#include "scheduler/page_allocator.h"
#include "scheduler/prefix_cache.h"
#include "scheduler/scheduler_limits.h"
#include "scheduler/sequence.h"
#include "scheduler/step_budget.h"

namespace heddle::scheduler {

class PrefixMatcher {
 public:
  // The arguments must outlive the matcher, which becomes the owner of cached pages of `pool`.
  PrefixMatcher(const SchedulerLimits& limits, PageAllocator* pool, const StepBudget& budget,
                const KeptContexts& contexts);

  // Hashes the full pages of a new request's prompt.
  void HashPrompt(RequestState* request) const;

  // Fills the empty tables of `sequence` with what the cache, or the context that its request
  // names, has of its tokens. The last token is always computed because its logits are wanted, and
  // so are prompt positions not yet scored. Pages of the host's tier are taken only if `may_fetch`,
  // which is for a sequence that will run now, whatever is found.
  void Take(Sequence* sequence, bool may_fetch);

  // Leads a sequence over what needs no computing behind what it has computed: holes between parts,
  // and parts of a join that the request's context has (kept_contexts.h).
  void GoOn(Sequence* sequence) const;

  // Gives back what Take has found, as if it had found nothing.
  void GiveUp(Sequence* sequence);

  // Makes the pages that `sequence` has filled with known tokens findable. If another sequence has
  // filled the same page first, its page replaces ours, which goes back to the pool.
  void Leave(Sequence* sequence);

  // Whether a more urgent sequence of `prompts` is computing the next page that `sequence` (which
  // has taken what the cache has) would compute. It then waits and takes over all they have in
  // common.
  bool FindsLeader(Sequence* sequence, std::span<Sequence* const> prompts) const;
  // Whether the sequence that FindsLeader found is still computing those pages.
  bool WaitsForLeader(RequestState* request, const RequestMap& requests) const;

  // BeginStep precedes a plan; EndStep follows when the plan is written and adds its swaps to
  // *plan.
  void BeginStep() { cache_.BeginStep(); }
  void EndStep(engine::StepPlan* plan);

  // Forgets all pages, in both tiers. REQUIRES: as PrefixCache::Clear.
  void Clear() { cache_.Clear(); }

  int32_t host_pages_used() const;
  absl::Status CheckIntegrity() const;  // as PageAllocator's and PrefixCache's

 private:
  std::span<const TokenId> PageTokens(const Sequence& sequence, int32_t page);
  static uint64_t HashAfter(const Sequence& sequence, int32_t page, uint64_t chain,
                            std::span<const TokenId> tokens);
  void FindPath(const Sequence& sequence, int32_t wanted, bool may_fetch);
  int32_t CoveredDepth(bool may_fetch) const;
  int32_t FirstSeen(int32_t group, int32_t position) const;
  bool IsWithinReach(PageId node, int32_t depth, bool may_fetch) const;
  bool TakePath(Sequence* sequence, int32_t depth);
  bool TakePages(PageTable* table, int32_t group, int32_t depth);
  void PinPath(int32_t depth);
  void TakePartial(Sequence* sequence, int32_t wanted);
  void TakeKept(Sequence* sequence, int32_t wanted);
  bool LeavePage(Sequence* sequence, int32_t page);
  static int32_t MostTaken(const Sequence& sequence);
  void LeaveCompanions(Sequence* sequence, int32_t page, PageId node);

  const SchedulerLimits& limits_;
  const int32_t page_tokens_;
  PageAllocator& pool_;
  const StepBudget& budget_;
  const KeptContexts& contexts_;
  std::unique_ptr<PageAllocator> host_pool_;  // slots of the host's tier, or null
  PrefixCache cache_;

  // State of one Take: the nodes that were found, page by page, and the pages that are held so that
  // fetching others does not evict them.
  std::vector<PageId> path_, pinned_;
  std::vector<TokenId> page_scratch_;
};

}  // namespace heddle::scheduler
