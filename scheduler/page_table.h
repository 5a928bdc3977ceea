// The context of one sequence in one group of layers: a list of spans over pages, with fork,
// append, truncate and drop. These change references and lists only; the only keys and values ever
// copied are those of a half-filled last page that somebody else also holds (copy on write).
//
// A table holds one reference on each of its pages. It does not own the allocator and so cannot
// release them itself: call Drop before it dies.
// Thread-safety: none; owned by a sequence of the scheduler.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "engine/kv_spans.h"
#include "scheduler/page_allocator.h"

namespace heddle::scheduler {

using engine::KvSpan;

class PageTable {
 public:
  std::span<const KvSpan> spans() const { return spans_; }
  int32_t num_tokens() const { return num_tokens_; }  // including those given back by DropFront
  int32_t num_pages() const { return static_cast<int32_t>(spans_.size()); }
  bool empty() const { return num_tokens_ == 0; }
  // Another one whenever the list changes other than at its end: two lists with the same version,
  // not 0, have the same spans up to the last one of the shorter list.
  uint64_t version() const { return version_; }
  // Positions before the first span: those of whole pages that DropFront gave back.
  int32_t num_dropped() const { return num_dropped_; }
  // The page of positions [index * page_tokens, ...). REQUIRES: it was not dropped.
  PageId PageAt(int32_t index, const PageAllocator& pool) const {
    return spans_[index - num_dropped_ / pool.page_tokens()].page;
  }

  // Pages that Append(count) would take from `pool` now, including the copied one.
  int32_t PagesNeeded(int32_t count, const PageAllocator& pool) const;

  // The most positions that Append takes with `num_pages` new pages.
  int32_t Capacity(int32_t num_pages, const PageAllocator& pool) const;

  // Makes room for `count` more positions at the end. If the last page is half filled and not
  // exclusive to this table (shared, or kept by the prefix cache), a new page replaces it and the
  // copy is added to `*copies`; the old page stays live until pool->FlushReleases().
  // REQUIRES: pool->num_free() >= PagesNeeded(count).
  void Append(int32_t count, PageAllocator* pool, std::vector<engine::PageCopy>* copies);

  // Adds `count` places at the end that nobody will write or read. REQUIRES: count <= Room.
  void SkipPlaces(int32_t count);

  // Adds a page that holds `num_tokens` computed positions, with a new reference on it.
  // REQUIRES: the last page of this table is full; 0 < num_tokens <= page_tokens.
  void AppendShared(PageId page, int32_t num_tokens, PageAllocator* pool);

  // Replaces the page of PageAt(index) by `page`, which holds the same positions.
  void ReplacePage(int32_t index, PageId page, PageAllocator* pool);

  // Gives back the leading pages whose positions are all before `position`, which no row will read
  // again. Tables that share these pages keep their own spans. O(spans).
  void DropFront(int32_t position, PageAllocator* pool);

  // Begins at `position`, as if all positions before it had been dropped. REQUIRES: empty();
  // `position` is a multiple of the page size.
  void StartAt(int32_t position);

  // Becomes a copy of `from` that shares all its pages. REQUIRES: empty().
  void ForkFrom(const PageTable& from, PageAllocator* pool);

  // Forgets all positions from `num_tokens` on. REQUIRES: 0 or num_dropped() <= num_tokens <=
  // num_tokens().
  void Truncate(int32_t num_tokens, PageAllocator* pool);

  // Gives back every page; empty() afterwards. Keeps the capacity.
  void Drop(PageAllocator* pool) { Truncate(0, pool); }

  // Reserves room for the spans of `num_tokens` positions.
  void Reserve(int32_t num_tokens, int32_t page_tokens) {
    spans_.reserve((num_tokens + page_tokens - 1) / page_tokens);
  }

  // Free positions in the last page.
  int32_t Room(const PageAllocator& pool) const {
    return spans_.empty() ? 0 : pool.page_tokens() - spans_.back().num_tokens;
  }
  // Whether appending has to copy the last page first.
  bool MustCopy(const PageAllocator& pool) const {
    return Room(pool) > 0 && !pool.IsExclusive(spans_.back().page);
  }

 private:
  std::vector<KvSpan> spans_;
  int32_t num_tokens_ = 0;
  int32_t num_dropped_ = 0;
  uint64_t version_ = 0;
};

}  // namespace heddle::scheduler
