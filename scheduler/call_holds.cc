#include "scheduler/call_holds.h"

#include <algorithm>

namespace heddle::scheduler {

namespace {

// A call has much if it has more than this part of all places, or pages. On small machines it has
// more places than people ask for at once.
constexpr int64_t kMuchPart = 16;
constexpr int64_t kFewPlaces = 4;

int64_t PagesOf(const Sequence& sequence) {
  int64_t pages = 0;
  for (int32_t group = 0; group < sequence.tables.num_groups(); ++group) {
    pages += sequence.tables[group].num_pages();
  }
  return pages;
}

}  // namespace

CallHolds::CallHolds(const SchedulerLimits& limits)
    : is_enabled_(limits.options.max_lead_us > 0),
      few_places_(std::max(kFewPlaces, limits.max_running / kMuchPart)),
      few_pages_(limits.options.num_pages / kMuchPart) {
  holds_.reserve(static_cast<size_t>(limits.max_running));
}

void CallHolds::Count(const RunningSet& running) {
  if (!is_enabled_) return;
  holds_.clear();
  for (const Sequence* sequence : running) Add(*sequence);
}

void CallHolds::Change(const Sequence& sequence, int64_t sign) {
  if (!is_enabled_) return;
  Hold& hold = holds_[CallOf(sequence.request->request)];
  hold.flow = sequence.request->flow;
  hold.branches += CountsAsOne(sequence) ? sign : 0;
  hold.places += sign * NumSlots(sequence);
  hold.pages += sign * PagesOf(sequence);
}

bool CallHolds::HasSome(const Sequence& waiting) const {
  const auto it = holds_.find(CallOf(waiting.request->request));
  return it != holds_.end() && it->second.branches > 0;
}

// The places and pages of the call of `waiting` once it has its own.
CallHolds::Hold CallHolds::HoldWith(const Sequence& waiting, int64_t pages) const {
  const auto it = holds_.find(CallOf(waiting.request->request));
  Hold hold = it == holds_.end() ? Hold{} : it->second;
  ++hold.branches;
  hold.places += NumSlots(waiting);
  hold.pages += pages;
  return hold;
}

bool CallHolds::WantsMuch(const Sequence& waiting, int64_t pages) const {
  if (!is_enabled_) return false;
  const Hold hold = HoldWith(waiting, pages);
  return hold.places > few_places_ || (hold.branches > 1 && hold.pages > few_pages_);
}

uint64_t CallHolds::LargestThatGives(const Sequence& waiting, const Want& want) const {
  const Hold taker = HoldWith(waiting, want.pages);
  const int64_t kept_places = std::max(few_places_, taker.places);
  const int64_t kept_pages = std::max(few_pages_, taker.pages);
  int64_t places = 0, pages = 0, most = 0;
  uint64_t largest = 0;
  for (const auto& [call, hold] : holds_) {
    if (hold.flow != waiting.request->flow || hold.branches < 2) continue;
    const int64_t gives_places = std::max<int64_t>(0, hold.places - kept_places);
    const int64_t gives_pages = std::max<int64_t>(0, hold.pages - kept_pages);
    places += gives_places;
    pages += gives_pages;
    const int64_t gives = want.missing_places > 0 ? gives_places : gives_pages;
    if (gives < most || gives == 0 || (gives == most && call < largest)) continue;
    most = gives;
    largest = call;
  }
  return places >= want.missing_places && pages >= want.missing_pages ? largest : 0;
}

uint64_t CallHolds::LargestOf(int32_t flow) const {
  int64_t most = few_pages_;
  uint64_t largest = 0;
  for (const auto& [call, hold] : holds_) {
    if (hold.flow != flow || hold.branches < 2 || hold.pages < most) continue;
    if (hold.pages == most && call < largest) continue;
    most = hold.pages;
    largest = call;
  }
  return most > few_pages_ ? largest : 0;
}

}  // namespace heddle::scheduler
