#include "tests/emulate/shadow.h"

#include <algorithm>

namespace heddle::kernels::cuda::emulate {

void Shadow::Reset(int32_t bytes, uint32_t epochs_before) {
  const auto count = static_cast<size_t>((bytes + kGranule - 1) / kGranule);
  if (cells_.size() < count) cells_.resize(count);
  base_ += epochs_before;
  readers_.clear();
}

bool Shadow::Ordered(const Mark& mark, const Moment& now) const {
  if (mark.block_epoch != base_ + now.block_epoch) return true;  // includes never
  if (mark.thread == now.thread) return true;
  if (mark.warp == now.warp() && mark.warp_epoch != now.warp_epoch) return true;
  return now.clocks != nullptr && mark.thread != kSeveral &&
         now.clocks->Knows(now.thread, mark.thread, mark.clock);
}

bool Shadow::ReadersOrdered(int32_t index, const Mark& mark, const Moment& now) const {
  if (Ordered(mark, now)) return true;
  const auto found = readers_.find(index);
  if (mark.thread != kSeveral || now.clocks == nullptr || found == readers_.end()) return false;
  return std::all_of(found->second.begin(), found->second.end(), [&](const auto& reader) {
    return now.clocks->Knows(now.thread, reader.first, reader.second);
  });
}

void Shadow::AddReader(int32_t index, const Mark& before, const Moment& now) {
  if (now.clocks == nullptr) return;
  Readers& readers = readers_[index];
  if (before.thread != kSeveral) readers = {{before.thread, before.clock}};
  for (auto& [thread, clock] : readers) {
    if (thread != now.thread) continue;
    clock = now.clock;
    return;
  }
  readers.emplace_back(now.thread, now.clock);
}

Conflict Shadow::RecordCell(int32_t index, Access access, const Moment& now) {
  Cell& cell = cells_[index];
  Conflict found = Conflict::kNone;
  auto meet = [&](const Mark& mark, bool ordered) {
    if (ordered) return;
    found = Conflict::kRace;
    other_thread_ = mark.thread;
  };
  auto merge = [&](Mark& mark, bool alone) {
    // Accesses that are ordered before this one need not be remembered: whatever is ordered after
    // this one is ordered after them too.
    bool warp_alone = alone || mark.warp == now.warp();
    mark = {.block_epoch = base_ + now.block_epoch,
            .warp_epoch = now.warp_epoch,
            .clock = now.clock,
            .thread = static_cast<int16_t>(alone ? now.thread : kSeveral),
            .warp = static_cast<int8_t>(warp_alone ? now.warp() : kSeveral),
            .atomic = access == Access::kAtomic};
  };
  bool atomics = access == Access::kAtomic && cell.write.atomic;
  if (!atomics) meet(cell.write, Ordered(cell.write, now));
  if (access == Access::kRead) {
    if (cell.write.block_epoch <= base_) found = std::max(found, Conflict::kUninitialised);
    const bool alone = ReadersOrdered(index, cell.read, now);
    if (!alone) AddReader(index, cell.read, now);
    merge(cell.read, alone);
    return found;
  }
  meet(cell.read, ReadersOrdered(index, cell.read, now));
  if (now.clocks != nullptr) {
    // Their readers have met: a later access is ordered after this write, or races with it.
    cell.read = Mark();
    if (!readers_.empty()) readers_.erase(index);
  }
  if (access == Access::kAtomic && cell.write.block_epoch <= base_) {
    found = std::max(found, Conflict::kUninitialised);
  }
  merge(cell.write, Ordered(cell.write, now));
  return found;
}

Conflict Shadow::Record(int32_t offset, int32_t bytes, Access access, const Moment& now) {
  Conflict worst = Conflict::kNone;
  int32_t end = (offset + bytes + kGranule - 1) / kGranule;
  for (int32_t i = offset / kGranule; i < end; ++i) {
    worst = std::max(worst, RecordCell(i, access, now));
  }
  return worst;
}

}  // namespace heddle::kernels::cuda::emulate
