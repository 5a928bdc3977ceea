// Shared memory of a block of linear_mixed.cuh, the rows of x that it works on, and its producers:
// the warps that bring x, a stage of columns at a time, in the order that weights have within their
// groups (fragments.cuh).
//
// A lane copies the pair of columns that belongs to its place of a line of 64, asynchronously and
// four bytes at a time: rows of x are read and written line by line without bank conflicts, and
// neither registers nor other lanes take part. Bulk copies, which move units of 16 bytes, could not
// reorder the pairs; a pass over x beforehand would cost a launch, and one more for each product
// that shares x but has another layout. Rows may be any rows, so those that chose an expert cost
// nothing more.
#pragma once

#include "kernels/cuda/linear/expert_params.h"
#include "kernels/cuda/linear/linear_skinny.cuh"
#include "kernels/cuda/linear/linear_sums.cuh"

namespace heddle::kernels::cuda {

// A dense product, or one of a stack's matrices for each chunk of `experts.groups`.
struct MixedParams {
  ExpertLinearParams experts;  // nullptr chunks: a dense product, only `linear` counts
  int32_t splits = 1;          // parts of the columns, one block each (dense products)
  int32_t stages = 0;          // per part
};

namespace mixed {

using sums::BlockPlace;
using sums::BlockRows;
using sums::kConsumerThreads;
using sums::kConsumerWarps;
using sums::kTiles;

constexpr int kProducerWarps = kGroupThreads / 32;
constexpr int kThreads = kConsumerThreads + kGroupThreads;
constexpr int kStages = 4;
constexpr int kAhead = 2;  // stages that are copied while an older one arrives

template <WeightLayout kLayoutOf, int kXRowsOf>
struct Shape {
  static constexpr WeightLayout kLayout = kLayoutOf;
  static constexpr LayoutTraits kTraits = TraitsOf(kLayout);
  static constexpr bool kScalesX = false;  // of x, which is in BF16
  static constexpr int kXRows = kXRowsOf;  // per block
  static constexpr int kUnit = skinny::kTileRows;
  static constexpr int kRows = sums::kRows;                                    // of weights
  static constexpr int kBlocks = kTraits.blocks() > 2 ? kTraits.blocks() : 2;  // of 32 columns
  static constexpr int kGroups = kBlocks / kTraits.blocks();  // groups of the layout per stage
  static constexpr int kCols = 32 * kBlocks;
  static constexpr int kLines = kCols / kLineElements;
  static constexpr int kStage = kXRows * kCols;  // elements
  // Stages of weights in flight behind the one that is multiplied.
  static constexpr int kDepth = kXRows <= 64 ? 2 : 1;
};

template <typename S>
struct Memory {
  // [kStages, kLines, kXRows, kLineElements], swizzled; patterns begin at multiples of 1024 bytes.
  Shared<BFloat16> x;
  BlockBarriers barriers;
  Shared<int32_t> arrived;  // see sums::Store
  HEDDLE_DEVICE explicit Memory(SharedArena arena)
      : x(arena.Take<BFloat16>(kElements)),
        barriers(arena.Take<uint64_t>(2 * kStages)),
        arrived(arena.Take<int32_t>(sums::Slices<S>())) {}
  // Sums on their way out use the memory of x.
  static constexpr int kOutElements = sums::kSliceFloats * 2;
  static constexpr int kElements =
      kStages * S::kStage > kOutElements ? kStages* S::kStage : kOutElements;
  static constexpr int kSharedBytes = SharedBytesFor<BFloat16>(kElements) +
                                      SharedBytesFor<uint64_t>(2 * kStages) +
                                      SharedBytesFor<int32_t>(sums::Slices<S>());
};

// Indices into Memory::barriers; stages follow each other.
constexpr int kFull = 0;
constexpr int kEmpty = kStages;

// Stage `count` of a block, and the parity of its place's use.
struct Turn {
  int count;
  HEDDLE_DEVICE int place() const { return count % kStages; }
  HEDDLE_DEVICE uint32_t parity() const { return count / kStages & 1; }
};

// The part of the columns that a block works on, in stages.
struct BlockStages {
  int first;
  int count;
};

// The place of columns 2 l, 2 l + 1 of a line, in pairs. See fragments.cuh: instruction j takes
// from lane t columns 8t + 4j + 2h (or 16j + 4t + 2h) and the next as 16j + 8h + 2t.
template <bool kFine>
HEDDLE_DEVICE int DealtPair(int l) {
  if constexpr (kFine) {
    return l / 8 * 8 + l % 2 * 4 + l % 8 / 2;
  } else {
    return l / 16 * 16 + l / 2 % 2 * 8 + l % 2 * 4 + l % 16 / 4;
  }
}

// Starts this warp's copies of the stage at element `at`: every kProducerWarps-th row. Lane i knows
// row kProducerWarps * i + warp of the block, x_row. Missing rows of the block keep their old
// content, and their results are not used.
template <typename S>
HEDDLE_DEVICE void CopyStage(const LinearParams& p, int count, int x_row, int64_t first_col,
                             Shared<BFloat16> to, int at) {
  const int warp = WarpIndex() - kConsumerWarps;
  const int pair = DealtPair<S::kTraits.is_fine>(Lane());
  HEDDLE_UNROLL_BY(4)
  for (int i = 0; i < S::kXRows / kProducerWarps; ++i) {
    const int row = kProducerWarps * i + warp;
    if (row >= count) break;
    const BFloat16* x = p.x.row<BFloat16>(Shuffle(x_row, i));
    HEDDLE_UNROLL
    for (int line = 0; line < S::kLines; ++line) {
      const int64_t col = first_col + line * kLineElements + 2 * Lane();
      const bool inside = col < p.x.cols;
      CopyAsync4(to,
                 at + line * S::kXRows * kLineElements + SwizzledUnit(row, pair / 4) + pair % 4 * 2,
                 inside ? x + col : x, inside);
    }
  }
  CopyAsyncCommit();
}

// Publishes that this thread's copies of the stage have arrived.
HEDDLE_DEVICE void PublishStage(BlockBarriers barriers, const Turn& turn) {
  FenceProxies();
  SyncWarp();
  if (Lane() == 0) BarrierArrive(barriers, kFull + turn.place());
}

template <typename S>
HEDDLE_DEVICE void Produce(const LinearParams& p, const BlockRows& rows, const BlockStages& stages,
                           const Memory<S>& memory) {
  static_assert(S::kXRows / kProducerWarps <= 32);
  const int mine = kProducerWarps * Lane() + WarpIndex() - kConsumerWarps;
  const int x_row = mine < rows.count ? rows.X(mine) : 0;
  for (Turn turn = {0}; turn.count < stages.count; ++turn.count) {
    BarrierWait(memory.barriers, kEmpty + turn.place(), turn.parity() ^ 1);
    CopyStage<S>(p, rows.count, x_row, static_cast<int64_t>(stages.first + turn.count) * S::kCols,
                 memory.x, turn.place() * S::kStage);
    if (turn.count < kAhead) continue;
    CopyAsyncWait<kAhead>();
    PublishStage(memory.barriers, {turn.count - kAhead});
  }
  CopyAsyncWait<0>();
  const int left = stages.count < kAhead ? stages.count : kAhead;
  for (int i = left; i > 0; --i) PublishStage(memory.barriers, {stages.count - i});
}

}  // namespace mixed
}  // namespace heddle::kernels::cuda
