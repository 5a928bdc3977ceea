// The pages that the kernels of a step read and write, for uploads that take place beside it.
#pragma once

#include <span>

#include "absl/container/flat_hash_set.h"
#include "engine/step.h"

namespace heddle::engine {

class PagesInUse {
 public:
  explicit PagesInUse(const StepPlan& plan) {
    for (const PageCopy& copy : plan.page_copies) {
      read_.insert(copy.from);
      written_.insert(copy.to);
    }
    Add(plan.spans, plan.kv_slots);
    Add({}, plan.ahead_slots);
    for (const GroupSpans& group : plan.more_groups) {
      Add(group.spans, group.kv_slots);
      Add({}, group.ahead_slots);
    }
  }

  // Pages that are read beside those of the plan.
  void AddRead(std::span<const PageId> pages) { read_.insert(pages.begin(), pages.end()); }

  bool IsWritten(PageId page) const { return written_.contains(page); }
  bool IsUsed(PageId page) const { return IsWritten(page) || read_.contains(page); }

 private:
  void Add(std::span<const KvSpan> spans, std::span<const KvSlot> slots) {
    for (const KvSpan& span : spans) read_.insert(span.page);
    for (const KvSlot& slot : slots) written_.insert(slot.page);
  }

  absl::flat_hash_set<PageId> read_, written_;
};

}  // namespace heddle::engine
