// The page tables of one sequence, one for each group of layers (engine/step.h): they grow
// together, and lose their fronts each by its own window. Group 0, the only one of most models, is
// kept in place; its table counts for all where it is asked how far the sequence is.
//
// Invariant: all tables have the same num_tokens(), and so the same room in their last page.
// Like its tables it holds references and does not own the allocator: Drop it before it dies.
// Thread-safety: none; owned by a sequence of the scheduler.
#pragma once

#include <cstdint>
#include <vector>

#include "engine/step.h"
#include "scheduler/page_allocator.h"
#include "scheduler/page_table.h"

namespace heddle::scheduler {

class KvTables {
 public:
  // One group unless set, once, while empty.
  void SetGroups(int32_t num_groups) { more_.resize(static_cast<size_t>(num_groups) - 1); }
  int32_t num_groups() const { return static_cast<int32_t>(more_.size()) + 1; }

  PageTable& operator[](int32_t group) {
    return group == 0 ? first_ : more_[static_cast<size_t>(group) - 1];
  }
  const PageTable& operator[](int32_t group) const {
    return group == 0 ? first_ : more_[static_cast<size_t>(group) - 1];
  }

  int32_t num_tokens() const { return first_.num_tokens(); }
  bool empty() const { return first_.empty(); }

  // Pages that Append(count) would take from `pool` now, copied ones included.
  int32_t PagesNeeded(int32_t count, const PageAllocator& pool) const;

  // The most positions that Append takes with `num_pages` new pages.
  int32_t Capacity(int32_t num_pages, const PageAllocator& pool) const;

  // As PageTable::Append, in all groups. REQUIRES: pool->num_free() >= PagesNeeded(count).
  void Append(int32_t count, PageAllocator* pool, std::vector<engine::PageCopy>* copies);

  // Becomes a copy of `from`, which has as many groups, that shares all its pages. REQUIRES:
  // empty().
  void ForkFrom(const KvTables& from, PageAllocator* pool);

  // Gives back a half-filled last page that only the prefix cache keeps beside these tables: it
  // would have to be copied, and may be the very page that the copy needs. Returns whether it did.
  bool DropBorrowedTail(PageAllocator* pool);

  // Gives back every page, those of the last group first: in the prefix cache they hang on those of
  // the first. empty() afterwards; keeps the capacity.
  void Drop(PageAllocator* pool);

 private:
  int32_t NumCopies(const PageAllocator& pool) const;

  PageTable first_;
  std::vector<PageTable> more_;
};

}  // namespace heddle::scheduler
