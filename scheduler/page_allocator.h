// Hands out KV-cache page ids and counts their users. Pure bookkeeping: touches no device
// memory, so that every scheduler test runs without a GPU and without a model.
//
// Unit: one page = `page_tokens` token positions of one group of layers (engine/kv_spans.h) on this
// rank, K and V together.
// Ids are dense in [0, num_pages) and index the storage that engine/memory allocates.
// Pages are reference counted, so that sequences with a common prefix share them.
// A page without holders is either free or, if its content belongs to an owner (such as the prefix
// cache), evictable: the content stays until Allocate needs the page. Both count as free. Allocate
// evicts the page with the least credit first, and among equals the one released longest ago. A
// page's credit is what its content is worth, counted from the credit of the last evicted page:
// content that is worth more stays longer, and unused content goes in the end.
// Sources: Kwon et al., "PagedAttention", SOSP 2023, section 4; Cao and Irani, "Cost-Aware WWW
// Proxy Caching Algorithms", USITS 1997 (GreedyDual-Size; with equal worths it is LRU).
// Thread-safety: none; owned by the scheduler, used on the engine loop only.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "engine/ids.h"

namespace heddle::scheduler {

using engine::PageId;

// An owner of content that may stay in pages without holders. Several owners share one pool: their
// credits have the same unit. PageAllocator calls it, and it must not change the allocator's state,
// except that Evicted may clear the owner of other pages.
class PageOwner {
 public:
  virtual ~PageOwner() = default;

  // The credit of a page that has just lost its last holder. `evicted_last` is the credit of the
  // last evicted page: returning that plus a constant makes the order LRU.
  virtual double Credit(PageId page, double evicted_last) = 0;

  // The pool takes the page for other content; the page no longer belongs to the owner.
  virtual void Evicted(PageId page) = 0;
};

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

  // Release by a sequence, or of its adapter, whose steps in flight may still read and write the
  // page. Where a step is done on one device later than the next ones begin on another, its pages
  // must not get other content meanwhile: with HoldReleases(step) they stay held until FreeHeld of
  // a later step.
  void ReleaseOfSequence(PageId page) {
    if (held_for_ == 0) return Release(page);
    held_.push_back({held_for_, page});
  }
  void HoldReleases(uint64_t step) { held_for_ = step; }
  // Steps before `step` are done; with it, and none later, ends what HoldReleases began.
  void FreeHeld(uint64_t step);
  // Adds the pages that are held in this way to the counts of references, [num_pages].
  void AddHeld(std::span<int32_t> references) const;

  // Keeps the page's content for `owner`, which must outlive the pool's use, when nobody holds the
  // page any more. REQUIRES: the page is live.
  void SetOwner(PageId page, PageOwner* owner);
  // Takes the page from its owner, who loses its content, for its one holder. REQUIRES: it has an
  // owner and one reference.
  void TakeOver(PageId page);
  // Its content will not be asked for any more: like any other page from now on. The owner is not
  // told.
  void ClearOwner(PageId page);

  // Nothing that was written to any page is there any more: owners lose what they have. REQUIRES:
  // no page is live. O(num_pages).
  void ForgetContents();

  int32_t references(PageId page) const { return references_[engine::Index(page)]; }
  bool is_owned(PageId page) const { return owners_[engine::Index(page)] != nullptr; }
  bool IsOwnedBy(PageId page, const PageOwner* owner) const {
    return owners_[engine::Index(page)] == owner;
  }
  // Changes whenever the page is allocated: while it is the same, what has been written to the page
  // is still there.
  uint32_t generation(PageId page) const { return generations_[engine::Index(page)]; }
  // A number that no list of this pool's pages has had (PageTable::version); never 0.
  uint64_t NewListVersion() { return ++last_list_version_; }
  // Whether its one holder may write to it.
  bool IsExclusive(PageId page) const { return references(page) == 1 && !is_owned(page); }

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

  std::vector<int32_t> references_;    // [num_pages]
  std::vector<uint32_t> generations_;  // [num_pages]
  std::vector<PageId> free_;           // a stack: the page used last is warm in some cache
  std::vector<PageOwner*> owners_;     // [num_pages]; null: none
  std::vector<int32_t> heap_;          // evictable pages
  std::vector<size_t> heap_index_;     // [num_pages]; of evictable pages
  std::vector<double> credit_;         // [num_pages]; of evictable pages
  std::vector<uint64_t> released_;     // [num_pages]; when, of evictable pages
  uint64_t num_released_ = 0;
  double evicted_last_ = 0;
  uint64_t last_list_version_ = 0;
  std::vector<PageId> release_later_;
  struct Held {
    uint64_t step;
    PageId page;
  };
  std::vector<Held> held_;  // the oldest first
  uint64_t held_for_ = 0;   // 0: nothing is held
  int32_t page_tokens_;
};

}  // namespace heddle::scheduler
