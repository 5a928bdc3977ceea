// Hands out KV-cache page ids and counts their users. Pure bookkeeping: touches no device
// memory, so that every scheduler test runs without a GPU and without a model.
//
// Unit: one page = `page_tokens` token positions, all layers of this rank, K and V together.
// Ids are dense in [0, num_pages) and index the storage that engine/memory allocates.
// Pages are reference counted, so that sequences with a common prefix share them.
// A page that nobody holds is either free or, if the prefix cache has marked it, evictable: its
// content stays until Allocate needs it. Both count as free. The page of the least credit goes
// first, and among equal ones that which was released longest ago. A page's credit is what its
// content is worth, counted from the credit of the page that was evicted last: so what is worth
// more stays longer, and what is not used goes at last. Sources: Kwon et al., "PagedAttention",
// SOSP 2023, section 4; Cao and Irani, "Cost-Aware WWW Proxy Caching Algorithms", USITS 1997
// (GreedyDual-Size; with equal worths it is LRU). Thread-safety: none; owned by the scheduler, used
// on the engine loop only.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "engine/step.h"

namespace heddle::scheduler {

using engine::PageId;

class PageAllocator {
 public:
  // Aborts unless num_pages > 0 and page_tokens is a power of two: config/ has validated user
  // input, so a bad value here is a bug in this program.
  PageAllocator(int32_t num_pages, int32_t page_tokens);

  // Appends `count` pages with one reference each to `*out`. All or nothing: on
  // RESOURCE_EXHAUSTED nothing has changed, and the caller evicts or preempts.
  absl::Status Allocate(int32_t count, std::vector<PageId>* out);

  // One page with one reference. REQUIRES: num_free() > 0.
  PageId AllocateOne();

  // +1 reference each; all must be live or evictable.
  void Share(std::span<const PageId> pages);
  void Share(PageId page);

  // -1 each; at zero, back to the pool.
  void Release(std::span<const PageId> pages);
  void Release(PageId page);

  // Release at the next FlushReleases: until then nobody else can get the page, because the plan
  // in the making copies from it.
  void ReleaseLater(PageId page) { release_later_.push_back(page); }
  void FlushReleases();

  // Keeps the page's content when nobody holds it any more. `on_evict` is told when it goes.
  void SetCached(PageId page);
  // Its content will not be asked for any more: like any other page from now on.
  void SetUncached(PageId page);
  // Asked when a page becomes evictable, with the credit of the page that was evicted last: the
  // page's credit from now on. Without it all pages are worth the same.
  void set_credit(std::function<double(PageId, double evicted_last)> credit) {
    credit_of_ = std::move(credit);
  }
  void set_on_evict(std::function<void(PageId)> on_evict) { on_evict_ = std::move(on_evict); }

  int32_t references(PageId page) const { return references_[engine::Index(page)]; }
  bool is_cached(PageId page) const { return is_cached_[engine::Index(page)] != 0; }
  // Whether its one holder may write to it.
  bool IsExclusive(PageId page) const { return references(page) == 1 && !is_cached(page); }

  int32_t num_pages() const { return static_cast<int32_t>(references_.size()); }
  int32_t num_free() const { return static_cast<int32_t>(free_.size()) + num_evictable(); }
  int32_t num_evictable() const { return static_cast<int32_t>(heap_.size()); }
  int32_t num_used() const { return num_pages() - num_free(); }
  int32_t page_tokens() const { return page_tokens_; }

  // Every page is free or evictable once with no reference, or live with at least one. INTERNAL
  // names the first page that is neither. O(num_pages); tests, and whenever the loop is idle.
  absl::Status CheckIntegrity() const;

 private:
  // Evictable pages are a binary heap, the next to be evicted on top: O(log n) for each.
  void PushEvictable(int32_t page);
  void RemoveEvictable(int32_t page);
  bool GoesBefore(int32_t a, int32_t b) const;
  void SiftUp(size_t at);
  void SiftDown(size_t at);
  void Place(int32_t page, size_t at);

  std::vector<int32_t> references_;  // [num_pages]
  std::vector<PageId> free_;         // a stack: the page used last is warm in some cache
  std::vector<uint8_t> is_cached_;   // [num_pages]
  std::vector<int32_t> heap_;        // evictable pages
  std::vector<size_t> heap_index_;   // [num_pages]; of evictable pages
  std::vector<double> credit_;       // [num_pages]; of evictable pages
  std::vector<uint64_t> released_;   // [num_pages]; when, of evictable pages
  uint64_t num_released_ = 0;
  double evicted_last_ = 0;
  std::function<double(PageId, double)> credit_of_;
  std::vector<PageId> release_later_;
  std::function<void(PageId)> on_evict_;
  int32_t page_tokens_;
};

}  // namespace heddle::scheduler
