// The parts of a step plan's message (plan_codec.h) that encoder and decoder share: its flags, and
// how they find what the message leaves out.
//
// Thread-safety: none.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <span>
#include <string_view>

#include "engine/executor.h"
#include "engine/step.h"

namespace heddle::engine {

inline constexpr std::string_view kPlanMagic = "HPLN";
inline constexpr uint8_t kPlanVersion = 2;
inline constexpr size_t kHeaderBytes = kPlanMagic.size() + 1;
inline constexpr size_t kChecksumBytes = 8;

// The first byte of a slice.
enum SliceFlag : uint8_t {
  kKindBits = 3,
  kOneRow = 4,
  kAsExpected = 8,  // adapter, positions, slots and segment, and there are no pieces
  kGrown = 16,      // the spans of all groups are those of the mirror and the rows of this slice
  kHasMasks = 32,
  kHasNextToken = 64,
  kHasSecond = 128,
};
// Those of the slices that are most: one row more of a context, and all else as it was.
inline constexpr uint8_t kUsualBits = kOneRow | kAsExpected | kGrown;

// The lists that a slice without kAsExpected has.
enum SliceList : uint8_t { kAdapter = 1, kPositions = 2, kSlots = 4, kSegment = 8, kPieces = 16 };

// A sample's number: its row behind that of the sample before, and in the lowest bits:
enum SampleFlag : uint8_t {
  kOneSampledRow = 1,
  kNextPosition = 2,  // draws for the row's sequence, for the position behind the row's
  kSampleFlagBits = 2,
};

// The row of a token that is not drawn yet, behind the row of the one before, and in the lowest
// bit: whether its sample is the next one of the same step.
inline constexpr int64_t kNextSample = 1;

// Sequences that the mirrors remember: those that run, and as many again that are preempted.
inline size_t MirroredSequences(const ExecutorLimits& limits) {
  return static_cast<size_t>(std::max(limits.max_batch_seqs, 1)) * 4 + 64;
}

// Calls visit(slot) for the last `count` positions of the list, in order; false if it has fewer, or
// once `visit` is false.
template <typename Visit>
bool VisitLastSlots(std::span<const KvSpan> spans, int32_t count, Visit&& visit) {
  size_t span = spans.size();
  int32_t missing = count;
  while (missing > 0 && span > 0) missing -= spans[--span].num_tokens;
  if (missing > 0) return false;
  int32_t offset = -missing;
  for (int32_t i = 0; i < count; ++i, ++offset) {
    while (offset >= spans[span].num_tokens) {
      ++span;
      offset = 0;
    }
    if (!visit(KvSlot{spans[span].page, offset})) return false;
  }
  return true;
}

// Finds the slices of rows, fastest where each row is in the slice of the row before or the next.
class RowOwners {
 public:
  explicit RowOwners(const StepPlan& plan) : slices_(plan.sequences) {}

  // The slice with `row`; nullptr: none has it.
  const SequenceSlice* Of(int64_t row) {
    for (size_t at = at_; at < std::min(at_ + 2, slices_.size()); ++at) {
      if (!Has(slices_[at], row)) continue;
      at_ = at;
      return &slices_[at];
    }
    const auto behind = std::upper_bound(
        slices_.begin(), slices_.end(), row,
        [](int64_t value, const SequenceSlice& slice) { return value < slice.token_begin; });
    if (behind == slices_.begin() || !Has(*std::prev(behind), row)) return nullptr;
    at_ = static_cast<size_t>(behind - slices_.begin()) - 1;
    return &slices_[at_];
  }

 private:
  static bool Has(const SequenceSlice& slice, int64_t row) {
    return row >= slice.token_begin && row < int64_t{slice.token_begin} + slice.num_tokens;
  }

  std::span<const SequenceSlice> slices_;
  size_t at_ = 0;
};

// The arrays that most plans have empty, in both directions: `transfer` writes or reads one.
template <typename Plan, typename Transfer>
void TransferRareArrays(Plan& plan, Transfer&& transfer) {
  transfer(plan.begun);
  transfer(plan.swaps_out);
  transfer(plan.swaps_in);
  transfer(plan.adapter_loads);
  transfer(plan.adapter_binds);
  transfer(plan.adapter_pages);
  transfer(plan.page_copies);
  transfer(plan.scores);
  transfer(plan.pools);
  transfer(plan.drafts_ahead);
  transfer(plan.ahead_slots);
  transfer(plan.ended);
  for (auto& group : plan.more_groups) transfer(group.ahead_slots);
}

}  // namespace heddle::engine
