#include "scheduler/page_allocator.h"

#include <algorithm>
#include <bit>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/check.h"

namespace heddle::scheduler {

using engine::Index;

PageAllocator::PageAllocator(int32_t num_pages, int32_t page_tokens) : page_tokens_(page_tokens) {
  HEDDLE_CHECK(num_pages > 0, absl::StrCat("num_pages is ", num_pages));
  HEDDLE_CHECK(page_tokens > 0 && std::has_single_bit(static_cast<uint32_t>(page_tokens)),
               absl::StrCat("page_tokens is ", page_tokens, ", not a power of two"));
  references_.assign(num_pages, 0);
  generations_.assign(num_pages, 0);
  owners_.assign(num_pages, nullptr);
  heap_.reserve(num_pages);
  heap_index_.assign(num_pages, 0);
  credit_.assign(num_pages, 0);
  released_.assign(num_pages, 0);
  free_.reserve(num_pages);
  for (int32_t page = num_pages - 1; page >= 0; --page) free_.push_back(PageId{page});
}

absl::Status PageAllocator::Allocate(int32_t count, std::vector<PageId>* out) {
  if (count > num_free()) {
    return absl::ResourceExhaustedError(
        absl::StrCat(count, " KV pages wanted, ", num_free(), " of ", num_pages(), " are free"));
  }
  for (int32_t i = 0; i < count; ++i) out->push_back(AllocateOne());
  return absl::OkStatus();
}

PageId PageAllocator::AllocateOne() {
  HEDDLE_CHECK(num_free() > 0, "no free page; the caller must look at num_free()");
  PageId page;
  if (!free_.empty()) {
    page = free_.back();
    free_.pop_back();
  } else {
    page = PageId{heap_.front()};
    evicted_last_ = credit_[Index(page)];
    RemoveEvictable(Index(page));
    std::exchange(owners_[Index(page)], nullptr)->Evicted(page);
  }
  references_[Index(page)] = 1;
  ++generations_[Index(page)];
  return page;
}

void PageAllocator::Share(PageId page) {
  HEDDLE_CHECK(references(page) > 0 || is_owned(page),
               absl::StrCat("page ", Index(page), " is free"));
  if (references_[Index(page)]++ == 0) RemoveEvictable(Index(page));
}

void PageAllocator::Release(PageId page) {
  HEDDLE_CHECK(references(page) > 0, absl::StrCat("page ", Index(page), " is free already"));
  if (--references_[Index(page)] > 0) return;
  if (is_owned(page)) {
    PushEvictable(Index(page));
  } else {
    free_.push_back(page);
  }
}

void PageAllocator::FlushReleases() {
  for (PageId page : release_later_) ReleaseOfSequence(page);
  release_later_.clear();
}

void PageAllocator::FreeHeld(uint64_t step) {
  const auto end = std::find_if(held_.begin(), held_.end(),
                                [step](const Held& held) { return held.step >= step; });
  std::for_each(held_.begin(), end, [this](const Held& held) { Release(held.page); });
  held_.erase(held_.begin(), end);
  if (held_for_ < step) held_for_ = 0;
}

void PageAllocator::AddHeld(std::span<int32_t> references) const {
  for (const Held& held : held_) ++references[static_cast<size_t>(Index(held.page))];
}

void PageAllocator::SetOwner(PageId page, PageOwner* owner) {
  HEDDLE_CHECK(references(page) > 0, "only a page in use has content to keep");
  owners_[Index(page)] = owner;
}

void PageAllocator::TakeOver(PageId page) {
  HEDDLE_CHECK(references(page) == 1 && is_owned(page), "only a borrowed page is taken over");
  std::exchange(owners_[Index(page)], nullptr)->Evicted(page);
  ++generations_[Index(page)];
}

void PageAllocator::ClearOwner(PageId page) {
  if (!is_owned(page)) return;
  owners_[Index(page)] = nullptr;
  if (references(page) > 0) return;
  RemoveEvictable(Index(page));
  free_.push_back(page);
}

void PageAllocator::ForgetContents() {
  HEDDLE_CHECK(num_used() == 0, "a page in use cannot lose its content");
  while (!heap_.empty()) {
    const PageId page{heap_.back()};
    RemoveEvictable(Index(page));
    free_.push_back(page);
    std::exchange(owners_[Index(page)], nullptr)->Evicted(page);
  }
  for (uint32_t& generation : generations_) ++generation;
}

bool PageAllocator::GoesBefore(int32_t a, int32_t b) const {
  if (credit_[a] != credit_[b]) return credit_[a] < credit_[b];
  return released_[a] < released_[b];
}

void PageAllocator::Place(int32_t page, size_t at) {
  heap_[at] = page;
  heap_index_[page] = at;
}

void PageAllocator::SiftUp(size_t at) {
  const int32_t page = heap_[at];
  for (; at > 0 && GoesBefore(page, heap_[(at - 1) / 2]); at = (at - 1) / 2) {
    Place(heap_[(at - 1) / 2], at);
  }
  Place(page, at);
}

void PageAllocator::SiftDown(size_t at) {
  const int32_t page = heap_[at];
  for (size_t child = 2 * at + 1; child < heap_.size(); child = 2 * at + 1) {
    if (child + 1 < heap_.size() && GoesBefore(heap_[child + 1], heap_[child])) ++child;
    if (!GoesBefore(heap_[child], page)) break;
    Place(heap_[child], at);
    at = child;
  }
  Place(page, at);
}

void PageAllocator::PushEvictable(int32_t page) {
  credit_[page] = owners_[page]->Credit(PageId{page}, evicted_last_);
  released_[page] = ++num_released_;
  heap_.push_back(page);
  SiftUp(heap_.size() - 1);
}

void PageAllocator::RemoveEvictable(int32_t page) {
  const size_t at = heap_index_[page];
  const int32_t last = heap_.back();
  heap_.pop_back();
  if (last == page) return;
  Place(last, at);
  SiftUp(at);
  SiftDown(heap_index_[last]);
}

void PageAllocator::Share(std::span<const PageId> pages) {
  for (PageId page : pages) Share(page);
}

void PageAllocator::Release(std::span<const PageId> pages) {
  for (PageId page : pages) Release(page);
}

absl::Status PageAllocator::CheckIntegrity() const {
  std::vector<bool> is_free(references_.size(), false);
  for (PageId page : free_) {
    if (Index(page) < 0 || Index(page) >= num_pages() || is_free[Index(page)]) {
      return absl::InternalError(
          absl::StrCat("page ", Index(page), " is in the free list twice or does not exist"));
    }
    is_free[Index(page)] = true;
  }
  for (size_t i = 0; i < heap_.size(); ++i) {
    const int32_t page = heap_[i];
    if (is_free[page] || owners_[page] == nullptr || heap_index_[page] != i ||
        (i > 0 && GoesBefore(page, heap_[(i - 1) / 2]))) {
      return absl::InternalError(
          absl::StrCat("page ", page, " has no owner, is listed twice, or is in the wrong place"));
    }
    is_free[page] = true;
  }
  for (int32_t page = 0; page < num_pages(); ++page) {
    if (is_free[page] != (references_[page] == 0)) {
      return absl::InternalError(absl::StrCat("page ", page, " has ", references_[page],
                                              " references and is ", is_free[page] ? "" : "not ",
                                              "free or evictable"));
    }
  }
  return absl::OkStatus();
}

}  // namespace heddle::scheduler
