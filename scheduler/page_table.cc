#include "scheduler/page_table.h"

#include <algorithm>

#include "base/check.h"

namespace heddle::scheduler {

int32_t PageTable::PagesNeeded(int32_t count, const PageAllocator& pool) const {
  if (count == 0) return 0;
  int32_t beyond = std::max(0, count - Room(pool));
  int32_t fresh = (beyond + pool.page_tokens() - 1) / pool.page_tokens();
  return fresh + (MustCopy(pool) ? 1 : 0);
}

int32_t PageTable::Capacity(int32_t num_pages, const PageAllocator& pool) const {
  if (MustCopy(pool)) {
    if (num_pages == 0) return 0;
    --num_pages;
  }
  return Room(pool) + num_pages * pool.page_tokens();
}

void PageTable::Append(int32_t count, PageAllocator* pool, std::vector<engine::PageCopy>* copies) {
  if (count == 0) return;
  if (spans_.empty()) version_ = pool->NewListVersion();
  if (MustCopy(*pool)) {
    PageId shared = spans_.back().page;
    PageId fresh = pool->AllocateOne();
    copies->push_back({shared, fresh, spans_.back().num_tokens});
    spans_.back().page = fresh;
    version_ = pool->NewListVersion();
    if (pool->references(shared) > 1) {
      pool->Release(shared);  // at once, so that the last of several forks need not copy
    } else {
      pool->ReleaseLater(shared);
    }
  }
  num_tokens_ += count;
  int32_t in_last = std::min(count, Room(*pool));
  if (in_last > 0) spans_.back().num_tokens += in_last;
  for (count -= in_last; count > 0; count -= pool->page_tokens()) {
    spans_.push_back({pool->AllocateOne(), std::min(count, pool->page_tokens())});
  }
}

void PageTable::SkipPlaces(int32_t count) {
  if (count == 0) return;
  spans_.back().num_tokens += count;
  num_tokens_ += count;
}

void PageTable::AppendShared(PageId page, int32_t num_tokens, PageAllocator* pool) {
  HEDDLE_CHECK(Room(*pool) == 0, "a shared page may only follow full pages");
  HEDDLE_CHECK(num_tokens > 0 && num_tokens <= pool->page_tokens(), "bad number of positions");
  if (spans_.empty()) version_ = pool->NewListVersion();
  pool->Share(page);
  spans_.push_back({page, num_tokens});
  num_tokens_ += num_tokens;
}

void PageTable::ReplacePage(int32_t index, PageId page, PageAllocator* pool) {
  index -= num_dropped_ / pool->page_tokens();
  pool->Share(page);
  pool->ReleaseOfSequence(spans_[index].page);
  spans_[index].page = page;
  version_ = pool->NewListVersion();
}

void PageTable::StartAt(int32_t position) {
  HEDDLE_CHECK(empty() && spans_.empty(), "a table starts once");
  num_tokens_ = num_dropped_ = position;
}

void PageTable::ForkFrom(const PageTable& from, PageAllocator* pool) {
  HEDDLE_CHECK(empty(), "the fork's own pages would leak");
  spans_.insert(spans_.end(), from.spans_.begin(), from.spans_.end());
  num_tokens_ = from.num_tokens_;
  num_dropped_ = from.num_dropped_;
  version_ = pool->NewListVersion();
  for (const KvSpan& span : spans_) pool->Share(span.page);
}

void PageTable::Truncate(int32_t num_tokens, PageAllocator* pool) {
  HEDDLE_CHECK(num_tokens >= 0 && num_tokens <= num_tokens_, "truncation cannot add positions");
  HEDDLE_CHECK(num_tokens == 0 || num_tokens >= num_dropped_, "these positions are gone");
  while (num_tokens_ > num_tokens && !spans_.empty()) {
    KvSpan& last = spans_.back();
    int32_t excess = num_tokens_ - num_tokens;
    if (excess < last.num_tokens) {
      last.num_tokens -= excess;
      num_tokens_ = num_tokens;
      return;
    }
    num_tokens_ -= last.num_tokens;
    pool->ReleaseOfSequence(last.page);
    spans_.pop_back();
    version_ = pool->NewListVersion();
  }
  if (num_tokens == 0) num_tokens_ = num_dropped_ = 0;
}

void PageTable::DropFront(int32_t position, PageAllocator* pool) {
  size_t count = 0;
  while (count < spans_.size() && num_dropped_ + pool->page_tokens() <= position) {
    pool->ReleaseOfSequence(spans_[count++].page);
    num_dropped_ += pool->page_tokens();
  }
  if (count == 0) return;
  spans_.erase(spans_.begin(), spans_.begin() + static_cast<ptrdiff_t>(count));
  version_ = pool->NewListVersion();
}

}  // namespace heddle::scheduler
