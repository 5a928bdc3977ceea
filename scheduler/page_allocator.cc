#include "scheduler/page_allocator.h"

#include <bit>

#include "absl/strings/str_cat.h"
#include "base/check.h"

namespace heddle::scheduler {

using engine::Index;

PageAllocator::PageAllocator(int32_t num_pages, int32_t page_tokens) : page_tokens_(page_tokens) {
  HEDDLE_CHECK(num_pages > 0, absl::StrCat("num_pages is ", num_pages));
  HEDDLE_CHECK(page_tokens > 0 && std::has_single_bit(static_cast<uint32_t>(page_tokens)),
               absl::StrCat("page_tokens is ", page_tokens, ", not a power of two"));
  references_.assign(num_pages, 0);
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
  HEDDLE_CHECK(!free_.empty(), "no free page; the caller must look at num_free()");
  PageId page = free_.back();
  free_.pop_back();
  references_[Index(page)] = 1;
  return page;
}

void PageAllocator::Share(PageId page) {
  HEDDLE_CHECK(references(page) > 0, absl::StrCat("page ", Index(page), " is free"));
  ++references_[Index(page)];
}

void PageAllocator::Release(PageId page) {
  HEDDLE_CHECK(references(page) > 0, absl::StrCat("page ", Index(page), " is free already"));
  if (--references_[Index(page)] == 0) free_.push_back(page);
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
  for (int32_t page = 0; page < num_pages(); ++page) {
    if (is_free[page] != (references_[page] == 0)) {
      return absl::InternalError(absl::StrCat("page ", page, " has ", references_[page],
                                              " references and is ", is_free[page] ? "" : "not ",
                                              "in the free list"));
    }
  }
  return absl::OkStatus();
}

}  // namespace heddle::scheduler
