// Which pages hold which tokens after which earlier pages, so that a new sequence can take over
// what others have computed. A tree of full pages; a page's identity is its chained hash (tokens,
// adapter, every earlier page), and every hit is verified against the tokens and the parent, so
// that two prompts with one hash never share.
//
// The cache holds no references: a page stays in it until the allocator needs the page for
// something else. Whoever holds a page holds all its ancestors, and tables give pages back from
// the end: so a page is released after its children, and eviction takes leaves first. Only tables
// of sliding windows give pages back from the front; when such a page is evicted its descendants,
// which can never be found again, leave the cache with it.
//
// With a second tier, an evicted page's content goes to a slot of it (one that was used longest
// ago) and can still be found: under an id behind those of the pool's pages. Fetch brings it back.
// So a preempted sequence, whose pages were left here, continues from where it was.
//
// Where layers are in several groups (engine/step.h), the tree is of the first group's pages, which
// see furthest. Those of the other groups hang on the node of the same positions: its companions. A
// companion can be evicted, or go to the second tier, by itself, and goes with its node. Hold,
// Fetch and Adopt take nodes and companions alike.
// Thread-safety: none; owned by the scheduler.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "engine/step.h"
#include "scheduler/page_allocator.h"

namespace heddle::scheduler {

class PrefixCache {
 public:
  // The parent of first pages, and the answer of a search that found nothing.
  static constexpr PageId kNone{-1};

  // `pool` and `host` (the slots of the second tier as pages; null: there is none) must outlive the
  // cache, which becomes their on_evict listener.
  explicit PrefixCache(PageAllocator* pool, PageAllocator* host = nullptr, int32_t num_groups = 1);

  // Asked before a page goes to the second tier: whether the page that is the depth-th of its
  // prefix (from 0) is worth it.
  void set_keeps(std::function<bool(int32_t depth)> keeps) { keeps_ = std::move(keeps); }

  // Only companions of the last pages of a prefix go to the second tier, so many per group (from
  // 1): further back windows look for them only where prefixes part. Any, unless set.
  void set_tails(std::vector<int32_t> pages) { tails_ = std::move(pages); }

  // Hash of no tokens. Sequences of different name spaces (adapters, tenants) share nothing.
  static uint64_t EmptyHash(uint64_t name_space);
  // Hash of what `previous` covers and one more page.
  static uint64_t Extend(uint64_t previous, std::span<const engine::TokenId> page_tokens);

  // The page that holds `tokens` [page_tokens] after `parent`, or kNone.
  PageId Find(uint64_t hash, uint64_t parent_hash, PageId parent,
              std::span<const engine::TokenId> tokens) const;

  // The child of `parent` that begins with most of `tokens` [<= page_tokens], of those that the
  // pool has for all groups; *num_common of them (0 with kNone). Looks at a bounded number of
  // children, the newest first.
  PageId FindPartial(uint64_t parent_hash, PageId parent, std::span<const engine::TokenId> tokens,
                     int32_t* num_common) const;

  // What the content of a page is worth that is the depth-th of its prefix (from 0): the time to
  // compute it, in any unit. A page is kept at least as long as those that follow from it. 1 unless
  // set.
  void set_worth(std::function<double(int32_t depth)> worth) { worth_ = std::move(worth); }

  bool IsOnHost(PageId node) const { return engine::Index(node) >= pool_.num_pages(); }

  // Keeps a node that IsOnHost where it is until the step is done: before its page is allocated,
  // which may need a slot.
  void Hold(PageId node);

  // Brings the content of a node that was held to `page`, which is in its place from now on: the
  // copy is among swaps_in(). REQUIRES: `page` is live, held by the caller only, not in the cache.
  void Fetch(PageId node, PageId page);

  // `page` has the same content as a node that IsOnHost, and takes its place; nothing is moved.
  // REQUIRES: `page` is live and not in the cache.
  void Adopt(PageId node, PageId page);

  // What the plan in the making has to move. BeginStep forgets it: that plan has been executed.
  // Pages that were fetched are not evicted until EndStep.
  const std::vector<engine::PageSwap>& swaps_out() const { return swaps_out_; }
  const std::vector<engine::PageSwap>& swaps_in() const { return swaps_in_; }
  void BeginStep();
  void EndStep();

  // Makes `page` findable. Returns false, and changes nothing, if the hash is taken.
  // REQUIRES: page is live, full and not in the cache; parent is kNone or in the cache.
  bool Insert(PageId page, uint64_t hash, uint64_t parent_hash, PageId parent,
              std::span<const engine::TokenId> tokens);

  // The page that holds the positions of `node` for a group: the node itself for the first, else
  // its companion, or kNone.
  PageId PageOf(PageId node, int32_t group) const {
    return group == 0 ? node : companions_[CompanionAt(node, group)];
  }
  uint64_t HashOf(PageId node) const { return At(node).hash; }

  // Makes `page` the companion of `node` for a group > 0. REQUIRES: `page` is live, full and not in
  // the cache; `node` is in it, and has no companion of that group.
  void Attach(PageId node, int32_t group, PageId page);

  // Nodes of the tree in both tiers.
  int32_t num_pages() const { return static_cast<int32_t>(by_hash_.size()); }

  // INTERNAL if a node's parent is gone, or a companion does not know its node. O(pages).
  absl::Status CheckIntegrity() const;

 private:
  struct Node {
    uint64_t hash = 0;
    uint64_t parent_hash = 0;  // tells name spaces apart where there is no parent
    int32_t depth = 0;
    double child_credit = 0;  // the largest that a child had when it was released
    int32_t group = 0;        // > 0: a companion, which has nothing but its node as `parent`
    PageId parent = kNone;
    PageId newest_child = kNone;
    PageId newer_sibling = kNone, older_sibling = kNone;
  };

  // An id of the second tier to the slot, as a page of host_, and back.
  PageId SlotOf(PageId node) const { return PageId{engine::Index(node) - pool_.num_pages()}; }
  PageId NodeOf(PageId slot) const { return PageId{engine::Index(slot) + pool_.num_pages()}; }

  size_t CompanionAt(PageId node, int32_t group) const {
    return static_cast<size_t>(engine::Index(node)) * (num_groups_ - 1) + group - 1;
  }
  bool IsInPool(PageId node) const;  // of all groups
  bool IsWorthASlot(PageId page) const;
  double CreditOf(PageId page, double evicted_last);
  void Evicted(PageId page);
  void Move(PageId from, PageId to);
  void Uncache(PageId node);
  bool Has(PageId node) const;
  void Forget(PageId page);
  void Unlink(PageId page);
  void DropCompanions(PageId node);
  absl::Status CheckCompanions(PageId node) const;
  PageId NewestChild(uint64_t parent_hash, PageId parent) const;
  void SetNewestChild(uint64_t parent_hash, PageId parent, PageId child);
  Node& At(PageId page) { return nodes_[engine::Index(page)]; }
  const Node& At(PageId page) const { return nodes_[engine::Index(page)]; }
  std::span<const engine::TokenId> TokensOf(PageId page) const;

  PageAllocator& pool_;
  PageAllocator* const host_;
  const int32_t num_groups_;
  std::function<bool(int32_t depth)> keeps_;
  std::function<double(int32_t depth)> worth_;
  std::vector<int32_t> tails_;  // [groups - 1], or empty
  // Of the pool's pages, then of the slots; valid where by_hash_ names the node.
  std::vector<Node> nodes_;              // [nodes]
  std::vector<engine::TokenId> tokens_;  // [nodes, page_tokens]
  std::vector<PageId> companions_;       // [nodes, groups - 1]; kNone but for nodes of the tree
  absl::flat_hash_map<uint64_t, PageId> by_hash_;
  absl::flat_hash_map<uint64_t, PageId> newest_first_page_;  // by the name space's EmptyHash
  std::vector<PageId> to_forget_;

  // The step in the making.
  std::vector<engine::PageSwap> swaps_out_, swaps_in_;
  std::vector<PageId> held_slots_;  // read or written by it
  std::vector<PageId> held_pages_;  // that were fetched
};

}  // namespace heddle::scheduler
