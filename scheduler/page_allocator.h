// Hands out KV-cache page ids and counts their users. Pure bookkeeping: touches no device
// memory, so that every scheduler test runs without a GPU and without a model.
//
// Unit: one page = `page_tokens` token positions, all layers of this rank, K and V together.
// Ids are dense in [0, num_pages) and index the storage that engine/memory allocates.
// Pages are reference counted, so that sequences with a common prefix share them.
// Source: Kwon et al., "PagedAttention", SOSP 2023, section 4.
// Thread-safety: none; owned by the scheduler, used on the engine loop only.
#pragma once

#include <cstdint>
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

  void Share(std::span<const PageId> pages);    // +1 reference each; all must be live
  void Release(std::span<const PageId> pages);  // -1 each; at zero, back to the pool
  void Share(PageId page);
  void Release(PageId page);

  int32_t references(PageId page) const { return references_[engine::Index(page)]; }
  bool IsShared(PageId page) const { return references(page) > 1; }

  int32_t num_pages() const { return static_cast<int32_t>(references_.size()); }
  int32_t num_free() const { return static_cast<int32_t>(free_.size()); }
  int32_t num_used() const { return num_pages() - num_free(); }
  int32_t page_tokens() const { return page_tokens_; }

  // Every page is either free once with no reference, or live with at least one. INTERNAL names
  // the first page that is neither. O(num_pages); tests, and whenever the loop is idle.
  absl::Status CheckIntegrity() const;

 private:
  std::vector<int32_t> references_;  // [num_pages]
  std::vector<PageId> free_;         // a stack: the page used last is warm in some cache
  int32_t page_tokens_;
};

}  // namespace heddle::scheduler
