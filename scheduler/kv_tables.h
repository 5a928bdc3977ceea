// The page tables of one sequence, one per group of layers (engine/step.h). They grow together, and
// each drops its front by its own window. Most models have group 0 only, which is kept in place;
// its table answers how many tokens the sequence has.
//
// Invariant: all tables have the same num_tokens(), so the same room in their last page.
// Like its tables it holds references and does not own the allocator: call Drop before it dies.
// Thread-safety: none; owned by a sequence of the scheduler.
#pragma once

#include <cstdint>
#include <vector>

#include "engine/kv_spans.h"
#include "scheduler/page_allocator.h"
#include "scheduler/page_table.h"

namespace heddle::scheduler {

class KvTables {
 public:
  // Sets the number of groups (1 by default). REQUIRES: called once at most, while empty.
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

  // Pages that Append(count) would take from `pool` now, including copied ones.
  int32_t PagesNeeded(int32_t count, const PageAllocator& pool) const;

  // The most positions that Append takes with `num_pages` new pages.
  int32_t Capacity(int32_t num_pages, const PageAllocator& pool) const;

  // As PageTable::Append, in all groups. REQUIRES: pool->num_free() >= PagesNeeded(count).
  void Append(int32_t count, PageAllocator* pool, std::vector<engine::PageCopy>* copies);

  // As PageTable::SkipPlaces, in all groups.
  void SkipPlaces(int32_t count);

  // Becomes a copy of `from` that shares all its pages. REQUIRES: empty(); `from` has as many
  // groups.
  void ForkFrom(const KvTables& from, PageAllocator* pool);

  // Forgets all positions from `num_tokens` on, in all groups. REQUIRES: as PageTable::Truncate.
  void Truncate(int32_t num_tokens, PageAllocator* pool);

  // Takes half-filled last pages that no other sequence holds from their owners: Append would have
  // to copy them, and there may be no page for the copy. Returns whether there were any.
  bool TakeOverTail(PageAllocator* pool);

  // Gives back every page, those of the last group first because in the prefix cache they depend on
  // those of the first. empty() afterwards; keeps the capacity.
  void Drop(PageAllocator* pool);

 private:
  int32_t NumCopies(const PageAllocator& pool) const;

  PageTable first_;
  std::vector<PageTable> more_;
};

}  // namespace heddle::scheduler
