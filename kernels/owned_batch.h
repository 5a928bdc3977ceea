// A checked copy of a HostBatch, which a device on the host keeps from one Plan to the next. It
// reuses its memory, so that a steady state of equal sizes allocates nothing.
// Thread-safety: none while Assign runs; then read-only.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "kernels/batch.h"

namespace heddle::kernels {

class OwnedBatch {
 public:
  // INVALID_ARGUMENT, naming the array, if sizes or offsets contradict each other or a sequence's
  // context is shorter than its rows; the earlier content then stays.
  absl::Status Assign(const HostBatch& batch);

  const HostBatch& view() const { return view_; }

 private:
  // Copies `source` to the end of the stored data, which has room.
  std::span<const int32_t> Keep(std::span<const int32_t> source);
  std::span<const int64_t> KeepSlots(std::span<const int64_t> source);

  std::vector<int32_t> int32s_;
  std::vector<int64_t> kv_slots_;
  std::vector<uint64_t> tree_mask_;
  std::vector<int32_t> draw_of_row_;
  std::vector<int32_t> adapter_slot_;
  std::vector<int32_t> token_types_;
  std::vector<int32_t> segments_;
  std::vector<ContextPiece> pieces_;
  std::vector<int32_t> piece_begin_;
  std::vector<BatchSpans> more_groups_;
  HostBatch view_;
};

}  // namespace heddle::kernels
