#include "scheduler/kv_tables.h"

#include "base/check.h"

namespace heddle::scheduler {

int32_t KvTables::PagesNeeded(int32_t count, const PageAllocator& pool) const {
  int32_t pages = first_.PagesNeeded(count, pool);
  for (const PageTable& table : more_) pages += table.PagesNeeded(count, pool);
  return pages;
}

// Half-filled last pages that Append would have to copy.
int32_t KvTables::NumCopies(const PageAllocator& pool) const {
  int32_t copies = first_.MustCopy(pool) ? 1 : 0;
  for (const PageTable& table : more_) copies += table.MustCopy(pool) ? 1 : 0;
  return copies;
}

int32_t KvTables::Capacity(int32_t num_pages, const PageAllocator& pool) const {
  num_pages -= NumCopies(pool);
  if (num_pages < 0) return 0;
  return first_.Room(pool) + num_pages / num_groups() * pool.page_tokens();
}

void KvTables::Append(int32_t count, PageAllocator* pool, std::vector<engine::PageCopy>* copies) {
  first_.Append(count, pool, copies);
  for (PageTable& table : more_) table.Append(count, pool, copies);
}

void KvTables::SkipPlaces(int32_t count) {
  for (int32_t group = 0; group < num_groups(); ++group) (*this)[group].SkipPlaces(count);
}

void KvTables::ForkFrom(const KvTables& from, PageAllocator* pool) {
  HEDDLE_CHECK(num_groups() == from.num_groups(), "a fork has other groups");
  for (int32_t group = 0; group < num_groups(); ++group) {
    (*this)[group].ForkFrom(from[group], pool);
  }
}

bool KvTables::TakeOverTail(PageAllocator* pool) {
  bool took = false;
  for (int32_t group = 0; group < num_groups(); ++group) {
    const PageTable& table = (*this)[group];
    if (!table.MustCopy(*pool)) continue;
    const PageId last = table.spans().back().page;
    if (pool->references(last) > 1) continue;
    pool->TakeOver(last);
    took = true;
  }
  return took;
}

void KvTables::Truncate(int32_t num_tokens, PageAllocator* pool) {
  for (int32_t group = num_groups() - 1; group >= 0; --group) {
    (*this)[group].Truncate(num_tokens, pool);
  }
}

void KvTables::Drop(PageAllocator* pool) { Truncate(0, pool); }

}  // namespace heddle::scheduler
