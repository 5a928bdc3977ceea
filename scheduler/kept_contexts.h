// Contexts with names: what branches of a tree of thoughts fork from, go on from and are joined on.
// A context is a list of tokens and the pages that hold their first positions. A request that names
// one takes over its pages instead of computing these positions again.
//
// A context holds no references, so that it takes no page from anybody: when nobody else holds a
// page of it, the pool may give that page to others, as it does with pages of the prefix cache.
// Pages that are lost are computed again. So contexts need no preemption, and cannot leak a page.
// Whether a page still has the same content is known from how often the pool has handed it out
// (PageAllocator::generation), and a page of a context is never written to, because the pool counts
// it as owned: who appends behind it copies it first.
//
// Unlike the prefix cache, a context keeps a half-filled page, keeps pages without any cache, and
// does so for the tokens of a sequence that still runs.
//
// Contexts that were forked from each other share the memory of their lists (shared_list.h), and a
// page's users are the blocks of such lists that have it. A running sequence that is forked is
// followed: its full pages and tokens are kept as such a list, to which later forks add what has
// come since. The scheduler has sequences that leave contexts followed as they grow, so that their
// first fork, too, finds nearly all of it.
// Thread-safety: none; owned by the scheduler.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "scheduler/context_layout.h"
#include "scheduler/page_allocator.h"
#include "scheduler/scheduler_limits.h"
#include "scheduler/sequence.h"
#include "scheduler/shared_list.h"
#include "scheduler/step_budget.h"

namespace heddle::scheduler {

class KeptContexts final : private PageOwner {
 public:
  // The arguments must outlive it. It becomes the owner of pages of `pool` that have no other.
  KeptContexts(const SchedulerLimits& limits, PageAllocator* pool, const StepBudget& budget)
      : limits_(limits), pool_(*pool), budget_(budget) {
    uses_.resize(static_cast<size_t>(pool->num_pages()));
  }

  // Remembers the first `num_tokens` tokens (places) of `sequence` as context `id`, in place of
  // what was known by that name, and the pages of those that are computed or planned. Cost: that
  // of Follow, and O(pages / 64).
  void Keep(ContextId id, const Sequence& sequence, int32_t num_tokens);

  // Brings the lists of a sequence that will leave a context up to date. O(pages / 64 + what has
  // come since the last time), or O(pages) where pages were replaced. The first time it begins with
  // what the context has that the request came with, or with the lists of another branch of the
  // request, which costs a comparison of the tokens, and adds the rest.
  void Follow(const Sequence& sequence) { Update(sequence); }

  // Forgets the lists of the sequence that will leave context `id`. O(1) if there are none.
  void Unfollow(ContextId id);

  // Remembers the first `num_tokens` tokens of `from` as context `to`, too. Does nothing if there
  // is no `from`. O(pages / 64).
  void Fork(ContextId from, int32_t num_tokens, ContextId to);

  // Remembers a concurrent join as context `join.to`. Pages of a child that do not begin at the
  // fork, or that hold other tokens than the join has there, are left out. O(tokens + pages).
  void Join(const ContextJoin& join);

  // Forgets a context; unknown ones are ignored. O(pages / 64), and of pages that no other has.
  void Drop(ContextId id);

  // Leading positions of `sequence`, at most `wanted`, that context `id` has in pages. 0 also if
  // another adapter, or a sequence of another space of the prefix cache, computed them. O(tokens).
  int32_t NumHeld(ContextId id, const Sequence& sequence, int32_t wanted) const;

  // Makes these positions the sequence's. REQUIRES: its tables are empty; num_tokens is positive
  // and not more than NumHeld.
  void Take(ContextId id, int32_t num_tokens, Sequence* sequence) const;

  // Appends the positions behind those of the sequence that context `id` has in pages, at most up
  // to `wanted`: where a part of a join lacks its end, the next one may be there. Returns whether
  // there are any. REQUIRES: its last page is full. O(tokens).
  bool TakeMore(ContextId id, int32_t wanted, Sequence* sequence) const;

  bool has(ContextId id) const { return contexts_.contains(id); }
  int32_t size() const { return static_cast<int32_t>(contexts_.size()); }
  // INTERNAL if a page's users are not the contexts that have it. O(pages of contexts).
  absl::Status CheckIntegrity() const;

 private:
  static constexpr uint32_t kLost = ~0u;  // generation of a page that a join lacks
  struct KeptSpan {
    PageId page;
    int32_t num_tokens;
    uint32_t generation;
  };
  using KeptSpans = SharedList<KeptSpan, 64>;  // marked blocks: their pages count them as users
  struct KeptTable {
    int32_t num_dropped = 0;  // positions before the first span
    KeptSpans spans;
  };
  struct Context {
    SharedList<TokenId, 1024> tokens;  // with kNoToken in holes
    ContextLayout layout;
    uint64_t cache_space = 0;
    engine::AdapterId adapter{};
    float adapter_scale = 1.0f;
    std::vector<KeptTable> tables;  // [groups]
  };
  // The tokens and full pages of a sequence that runs.
  struct Followed {
    RequestId request{};
    Context context;
    std::vector<uint64_t> versions;  // [groups] of its lists, PageTable::version
  };
  // Blocks that have a page of this content.
  struct PageUse {
    uint32_t generation = 0;
    int32_t users = 0;
    int32_t depth = 0;  // index of the page in its sequence
  };

  double Credit(PageId page, double evicted_last) override;
  void Evicted(PageId page) override { uses_[engine::Index(page)].users = 0; }

  const Context& Update(const Sequence& sequence);
  Context BeginOf(const Sequence& sequence) const;
  const Context* Relative(const Sequence& sequence) const;
  bool FollowTable(const PageTable& table, int32_t num_tokens, bool is_same, KeptTable* kept) const;
  void AddSpans(const PageTable& table, int32_t group, int32_t num_tokens, KeptTable* kept) const;
  void Cut(int32_t num_places, Context* context) const;
  void FillPages(int32_t end, KeptTable* table) const;
  void JoinOne(const Context& child, int32_t at, int32_t before, int32_t end,
               std::span<const TokenId> tokens, Context* joined) const;
  void Insert(ContextId id, Context&& context);
  void Enter(const Context& context);
  void EnterPage(const KeptSpan& span, int32_t depth);
  void Leave(const Context& context);
  void LeaveBlock(const KeptSpans::Block& block);
  bool IsThere(const KeptSpan& span) const;
  int32_t NumSame(const Context& context, const Sequence& sequence, int32_t wanted) const;
  int32_t NumThere(const Context& context, int32_t group, int32_t wanted) const;
  int32_t FirstSeen(int32_t group, int32_t place) const;
  void ForgetPassed(int32_t length, Context* context) const;

  const SchedulerLimits& limits_;
  PageAllocator& pool_;
  const StepBudget& budget_;
  absl::flat_hash_map<ContextId, Context> contexts_;
  absl::flat_hash_map<ContextId, Followed> followed_;  // by the context that each will leave
  std::vector<PageUse> uses_;                          // [num_pages]
};

}  // namespace heddle::scheduler
