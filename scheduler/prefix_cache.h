// Finds computed pages by their tokens and all earlier pages, so that a new sequence can take over
// what others have computed. The cache is a tree of full pages. A page is identified by its chained
// hash (tokens, adapter, every earlier page), and every hit is verified against the tokens and the
// parent, so that prompts whose hashes collide never share pages.
//
// The cache holds no references: a page stays in it until the allocator needs it for other content.
// A sequence that holds a page holds all its ancestors, and tables give pages back from the end: a
// page is released after its children, and eviction takes leaves first. Only tables of sliding
// windows give pages back from the front. When such a page is evicted, its descendants can never be
// found again and leave the cache with it.
//
// With a second tier, the content of an evicted page moves to the tier's slot that was used longest
// ago and can still be found, under an id behind those of the pool's pages. Fetch brings it back. A
// preempted sequence leaves its pages here and so continues where it stopped.
//
// Where layers are in several groups (engine/step.h), the tree holds the pages of the first group,
// whose window is the longest. A page of another group is the companion of the node of the same
// positions. A companion can be evicted or moved to the second tier by itself, and leaves the cache
// with its node. Hold, Fetch and Adopt take nodes and companions alike.
// Thread-safety: none; owned by the scheduler.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "engine/kv_spans.h"
#include "scheduler/page_allocator.h"

namespace heddle::scheduler {

class PrefixCache final : private PageOwner {
 public:
  // The parent of first pages, and the result of a search that found nothing.
  static constexpr PageId kNone{-1};

  // `pool` and `host` (the slots of the second tier as pages; null: no second tier) must outlive
  // the cache, which becomes the owner of some of their pages.
  explicit PrefixCache(PageAllocator* pool, PageAllocator* host = nullptr, int32_t num_groups = 1);

  // Sets the question that is asked before a page goes to the second tier: whether the depth-th
  // page of its prefix (from 0) is worth it.
  void set_keeps(std::function<bool(int32_t depth)> keeps) { keeps_ = std::move(keeps); }

  // Restricts the companions that go to the second tier to those of a prefix's last pages: pages[g
  // - 1] of group g. Windows look further back only where prefixes part. Unless set, all go.
  void set_tails(std::vector<int32_t> pages) { tails_ = std::move(pages); }

  // The hash of no tokens. Sequences of different name spaces (adapters, tenants) share nothing.
  static uint64_t EmptyHash(uint64_t name_space);
  // The hash of what `previous` covers followed by one more page.
  static uint64_t Extend(uint64_t previous, std::span<const engine::TokenId> page_tokens);

  // The page that holds `tokens` [page_tokens] after `parent`, or kNone.
  PageId Find(uint64_t hash, uint64_t parent_hash, PageId parent,
              std::span<const engine::TokenId> tokens) const;

  // The child of `parent` with the most leading tokens in common with `tokens` [<= page_tokens],
  // among those that the pool has for all groups; writes their number to *num_common (0 with
  // kNone). Looks at a bounded number of children, the newest first.
  PageId FindPartial(uint64_t parent_hash, PageId parent, std::span<const engine::TokenId> tokens,
                     int32_t* num_common) const;

  // Sets what the content of the depth-th page of a prefix (from 0) is worth: the time to compute
  // it, in any unit (1 unless set). A page is kept at least as long as its descendants.
  void set_worth(std::function<double(int32_t depth)> worth) { worth_ = std::move(worth); }

  bool IsOnHost(PageId node) const { return engine::Index(node) >= pool_.num_pages(); }

  // Keeps the content of a node that IsOnHost in its slot until the step is done. Call it before
  // allocating the page to fetch to, because that allocation may need a slot.
  void Hold(PageId node);

  // Brings the content of a held node to `page`, which replaces the node; the copy is among
  // swaps_in(). REQUIRES: `page` is live, held by the caller only, not in the cache.
  void Fetch(PageId node, PageId page);

  // Replaces a node that IsOnHost by `page`, which has the same content; nothing is copied.
  // REQUIRES: `page` is live and not in the cache.
  void Adopt(PageId node, PageId page);

  // The copies that the plan being made has to do. BeginStep forgets them, because that plan has
  // been executed. Fetched pages are not evicted until EndStep.
  const std::vector<engine::PageSwap>& swaps_out() const { return swaps_out_; }
  const std::vector<engine::PageSwap>& swaps_in() const { return swaps_in_; }
  void BeginStep();
  void EndStep();

  // Makes `page` findable and becomes its owner. Returns false, and changes nothing, if the hash is
  // taken.
  // REQUIRES: page is live, full and not in the cache; parent is kNone or in the cache.
  bool Insert(PageId page, uint64_t hash, uint64_t parent_hash, PageId parent,
              std::span<const engine::TokenId> tokens);

  // The page that holds the positions of `node` for a group: the node itself for the first, else
  // its companion, or kNone.
  PageId PageOf(PageId node, int32_t group) const {
    return group == 0 ? node : companions_[CompanionAt(node, group)];
  }
  uint64_t HashOf(PageId node) const { return At(node).hash; }

  // Forgets all pages, in both tiers, and the copies of the plan. REQUIRES: between steps, behind
  // BeginStep.
  void Clear();

  // Makes `page` the companion of `node` for a group > 0 and becomes its owner. REQUIRES: `page` is
  // live, full and not in the cache; `node` is in it and has no companion of that group.
  void Attach(PageId node, int32_t group, PageId page);

  // Whether `page`, of the pool, has content that is in the cache.
  bool Owns(PageId page) const { return pool_.IsOwnedBy(page, this); }

  // Nodes of the tree in both tiers.
  int32_t num_pages() const { return static_cast<int32_t>(by_hash_.size()); }

  // INTERNAL if a node's parent is gone, or a companion does not know its node. O(pages).
  absl::Status CheckIntegrity() const;

 private:
  struct Node {
    uint64_t hash = 0;
    uint64_t parent_hash = 0;  // tells name spaces apart where there is no parent
    int32_t depth = 0;
    double child_credit = 0;  // the largest credit of a released child
    int32_t group = 0;        // > 0: a companion, which uses only `parent`, its node
    PageId parent = kNone;
    PageId newest_child = kNone;
    PageId newer_sibling = kNone, older_sibling = kNone;
  };

  // Converts between an id of the second tier and its slot, a page of host_.
  PageId SlotOf(PageId node) const { return PageId{engine::Index(node) - pool_.num_pages()}; }
  PageId NodeOf(PageId slot) const { return PageId{engine::Index(slot) + pool_.num_pages()}; }

  size_t CompanionAt(PageId node, int32_t group) const {
    return static_cast<size_t>(engine::Index(node)) * (num_groups_ - 1) + group - 1;
  }
  bool IsInPool(PageId node) const;  // of all groups
  bool IsWorthASlot(PageId page) const;
  // These implement PageOwner for pages of the pool.
  double Credit(PageId page, double evicted_last) override;
  void Evicted(PageId page) override;
  bool IsOwned(PageId node) const;
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

  // The owner of the second tier's slots: the slot released longest ago is evicted first.
  struct SlotOwner final : PageOwner {
    explicit SlotOwner(PrefixCache* its_cache) : cache(*its_cache) {}
    double Credit(PageId, double) override { return 0; }
    void Evicted(PageId slot) override { cache.Forget(cache.NodeOf(slot)); }
    PrefixCache& cache;
  };

  PageAllocator& pool_;
  PageAllocator* const host_;
  SlotOwner slot_owner_{this};
  const int32_t num_groups_;
  std::function<bool(int32_t depth)> keeps_;
  std::function<double(int32_t depth)> worth_;
  std::vector<int32_t> tails_;  // [groups - 1], or empty
  // Indexed by the pool's pages, then by the slots; valid where by_hash_ names the node.
  std::vector<Node> nodes_;              // [nodes]
  std::vector<engine::TokenId> tokens_;  // [nodes, page_tokens]
  std::vector<PageId> companions_;       // [nodes, groups - 1]; kNone except for tree nodes
  absl::flat_hash_map<uint64_t, PageId> by_hash_;
  absl::flat_hash_map<uint64_t, PageId> newest_first_page_;  // by the name space's EmptyHash
  std::vector<PageId> to_forget_;

  // These belong to the step being planned.
  std::vector<engine::PageSwap> swaps_out_, swaps_in_;
  std::vector<PageId> held_slots_;  // slots that the step reads or writes
  std::vector<PageId> held_pages_;  // pages that were fetched
};

}  // namespace heddle::scheduler
