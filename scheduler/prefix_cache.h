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
// Thread-safety: none; owned by the scheduler.
#pragma once

#include <cstdint>
#include <span>
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

  // `pool` must outlive the cache, which becomes its on_evict listener.
  explicit PrefixCache(PageAllocator* pool);

  // Hash of no tokens. Sequences of different name spaces (adapters, tenants) share nothing.
  static uint64_t EmptyHash(uint64_t name_space);
  // Hash of what `previous` covers and one more page.
  static uint64_t Extend(uint64_t previous, std::span<const engine::TokenId> page_tokens);

  // The page that holds `tokens` [page_tokens] after `parent`, or kNone.
  PageId Find(uint64_t hash, uint64_t parent_hash, PageId parent,
              std::span<const engine::TokenId> tokens) const;

  // The child of `parent` that begins with most of `tokens` [<= page_tokens]; *num_common of them
  // (0 with kNone). Looks at a bounded number of children, the newest first.
  PageId FindPartial(uint64_t parent_hash, PageId parent, std::span<const engine::TokenId> tokens,
                     int32_t* num_common) const;

  // Makes `page` findable. Returns false, and changes nothing, if the hash is taken.
  // REQUIRES: page is live, full and not in the cache; parent is kNone or in the cache.
  bool Insert(PageId page, uint64_t hash, uint64_t parent_hash, PageId parent,
              std::span<const engine::TokenId> tokens);

  int32_t num_pages() const { return static_cast<int32_t>(by_hash_.size()); }

  // INTERNAL if a node's parent is gone. O(pages).
  absl::Status CheckIntegrity() const;

 private:
  struct Node {
    uint64_t hash = 0;
    uint64_t parent_hash = 0;  // tells name spaces apart where there is no parent
    PageId parent = kNone;
    PageId newest_child = kNone;
    PageId newer_sibling = kNone, older_sibling = kNone;
  };

  void Forget(PageId page);
  void Unlink(PageId page);
  PageId NewestChild(uint64_t parent_hash, PageId parent) const;
  void SetNewestChild(uint64_t parent_hash, PageId parent, PageId child);
  Node& At(PageId page) { return nodes_[engine::Index(page)]; }
  const Node& At(PageId page) const { return nodes_[engine::Index(page)]; }
  std::span<const engine::TokenId> TokensOf(PageId page) const;

  PageAllocator& pool_;
  std::vector<Node> nodes_;              // [num_pages]; valid where by_hash_ names the page
  std::vector<engine::TokenId> tokens_;  // [num_pages, page_tokens]
  absl::flat_hash_map<uint64_t, PageId> by_hash_;
  absl::flat_hash_map<uint64_t, PageId> newest_first_page_;  // by the name space's EmptyHash
  std::vector<PageId> to_forget_;
};

}  // namespace heddle::scheduler
