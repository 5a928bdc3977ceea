#include "kernels/cuda/emulate/shadow.h"

#include <algorithm>

namespace heddle::kernels::cuda::emulate {

void Shadow::Reset(int32_t bytes) { cells_.assign((bytes + kGranule - 1) / kGranule, Cell()); }

bool Shadow::Ordered(const Mark& mark, const Moment& now) const {
  if (mark.block_epoch != now.block_epoch) return true;  // includes never
  if (mark.thread == now.thread) return true;
  return mark.warp == now.warp() && mark.warp_epoch != now.warp_epoch;
}

Conflict Shadow::RecordCell(Cell& cell, Access access, const Moment& now) {
  Conflict found = Conflict::kNone;
  auto meet = [&](const Mark& mark) {
    if (Ordered(mark, now)) return;
    found = Conflict::kRace;
    other_thread_ = mark.thread;
  };
  auto merge = [&](Mark& mark) {
    // What is ordered before this access need not be remembered: who is ordered after this one is
    // ordered after that one too.
    bool alone = Ordered(mark, now);
    bool warp_alone = alone || mark.warp == now.warp();
    mark = {.thread = alone ? now.thread : kSeveral,
            .warp = warp_alone ? now.warp() : kSeveral,
            .block_epoch = now.block_epoch,
            .warp_epoch = now.warp_epoch,
            .atomic = access == Access::kAtomic};
  };
  bool atomics = access == Access::kAtomic && cell.write.atomic;
  if (!atomics) meet(cell.write);
  if (access == Access::kRead) {
    if (cell.write.block_epoch == 0) found = std::max(found, Conflict::kUninitialised);
    merge(cell.read);
    return found;
  }
  meet(cell.read);
  if (access == Access::kAtomic && cell.write.block_epoch == 0) {
    found = std::max(found, Conflict::kUninitialised);
  }
  merge(cell.write);
  return found;
}

Conflict Shadow::Record(int32_t offset, int32_t bytes, Access access, const Moment& now) {
  Conflict worst = Conflict::kNone;
  int32_t end = (offset + bytes + kGranule - 1) / kGranule;
  for (int32_t i = offset / kGranule; i < end; ++i) {
    worst = std::max(worst, RecordCell(cells_[i], access, now));
  }
  return worst;
}

}  // namespace heddle::kernels::cuda::emulate
