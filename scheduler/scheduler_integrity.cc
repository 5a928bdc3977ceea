// The scheduler's checks of its own state.
#include <vector>

#include "absl/strings/str_cat.h"
#include "scheduler/scheduler.h"

namespace heddle::scheduler {

absl::Status Scheduler::CheckIntegrity() const {
  if (absl::Status pages = CheckPages(); !pages.ok()) return pages;
  if (absl::Status cache = prefixes_.CheckIntegrity(); !cache.ok()) return cache;
  if (absl::Status kept = contexts_.CheckIntegrity(); !kept.ok()) return kept;
  if (absl::Status own = adapters_.CheckIntegrity(running_); !own.ok()) return own;
  if (!running_.IsInOrder()) {
    return absl::InternalError("the running sequences are not in the order of service");
  }
  for (const Sequence* sequence = admission_.oldest(); sequence;
       sequence = sequence->waits_before) {
    if (sequence->phase != Phase::kWaiting || !sequence->tables.empty()) {
      return absl::InternalError(absl::StrCat("sequence ", static_cast<uint64_t>(sequence->id),
                                              " waits and holds pages, or is not waiting"));
    }
  }
  return admission_.CheckParked();
}

absl::Status Scheduler::CheckPages() const {
  if (absl::Status pool = pool_.CheckIntegrity(); !pool.ok()) return pool;
  std::vector<int32_t> references(pool_.num_pages(), 0);
  for (const Sequence* sequence : running_) {
    for (int32_t group = 0; group < limits_.num_groups; ++group) {
      const PageTable& table = sequence->tables[group];
      if (table.num_tokens() != sequence->num_computed()) {
        return absl::InternalError(absl::StrCat("group ", group, " has ", table.num_tokens(),
                                                " positions of ", sequence->num_computed()));
      }
      for (const KvSpan& span : table.spans()) ++references[engine::Index(span.page)];
    }
  }
  adapters_.AddReferences(references);
  pool_.AddHeld(references);
  for (int32_t page = 0; page < pool_.num_pages(); ++page) {
    if (references[page] != pool_.references(PageId{page})) {
      return absl::InternalError(absl::StrCat("page ", page, " is held ", references[page],
                                              " times and counts ", pool_.references(PageId{page}),
                                              " references"));
    }
  }
  return absl::OkStatus();
}

}  // namespace heddle::scheduler
