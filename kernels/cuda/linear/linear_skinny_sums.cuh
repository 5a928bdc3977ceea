// The layout of the sums of a product of few rows (linear_skinny.cuh): the weight rows of a block,
// and how the sums of its warps, and of the blocks that share rows, become outputs. The order is
// fixed: the result does not depend on the rest of the batch.
#pragma once

#include "kernels/cuda/linear/epilogue.cuh"
#include "kernels/cuda/linear/linear_params.h"
#include "kernels/cuda/linear/linear_skinny_heads.cuh"
#include "kernels/cuda/primitives/primitives.cuh"

namespace heddle::kernels::cuda {
namespace skinny {

constexpr int kColLanes = 8;  // warps that share columns of the same rows, over all blocks

template <WeightLayout kLayout, int kXTiles, bool kWide>
struct Shape {
  static constexpr int kRowWarps = kWide ? 4 : kXTiles == 2 ? 2 : 1;
  // Blocks that share rows: enough that a matrix of 4096 rows has one block for every
  // multiprocessor.
  static constexpr int kSplits = kWide ? 4 : 1;
  static constexpr int kColWarps = kColLanes / kSplits;
  static constexpr int kThreads = 32 * kColWarps * kRowWarps;
  // Blocks per multiprocessor, as far as their registers allow.
  static constexpr int kBlocks = kXTiles <= 2 && kThreads == 256 ? 2 : 1;
  static constexpr int kRows = kRowWarps * kTiles * kTileRows;  // of weights, in a block
  static constexpr int kCols = 8 * kXTiles;
  // Sums of warps in shared memory: columns of so many floats, so that neither the lanes of a
  // fragment (8 rows, every second of 8 columns) nor 32 rows of a column have bank conflicts.
  static constexpr int kPitch = kRows + 4;
  static constexpr int kSums = kColWarps * kCols * kPitch;  // floats
};

// The weight row at row i of tile `tile` of row warp `warp`, in the `block`-th block of weight
// rows. Beyond the end it is the last row, which is not used.
template <int kRowWarps>
HEDDLE_DEVICE int64_t WeightRow(const LinearParams& p, int block, int warp, int tile, int i) {
  const int64_t first = static_cast<int64_t>(block) * kRowWarps + warp;
  if (p.epilogue == Epilogue::kGated) {
    const int64_t r = first * kTileRows + i;
    return (r < p.half ? r : p.half - 1) + tile * p.half;
  }
  const int64_t r = p.heads.kv_slot != nullptr
                        ? RowOfHeads(p.heads, static_cast<int>(first) * kUnitRows, tile, i)
                        : (first * kTiles + tile) * kTileRows + i;
  return r < p.weight.rows ? r : p.weight.rows - 1;
}

// Sums neighbours, then neighbouring sums: the result is the same whether warps or blocks have
// them.
template <int kCount, typename At>
HEDDLE_DEVICE float TreeSum(int first, At at) {
  if constexpr (kCount == 1) {
    return at(first);
  } else {
    return TreeSum<kCount / 2>(first, at) + TreeSum<kCount / 2>(first + kCount / 2, at);
  }
}

// The warps' sums in shared memory, [kColWarps, kCols, kPitch].
template <WeightLayout kLayout, int kXTiles, bool kWide>
HEDDLE_DEVICE void ShareSums(const float (&sums)[kTiles][kXTiles][4], Shared<float> part) {
  using S = Shape<kLayout, kXTiles, kWide>;
  const int first_row = WarpIndex() % S::kRowWarps * kTiles * kTileRows;
  const int at = WarpIndex() / S::kRowWarps * S::kCols * S::kPitch + first_row;
  HEDDLE_UNROLL
  for (int tile = 0; tile < kTiles; ++tile) {
    HEDDLE_UNROLL
    for (int n = 0; n < kXTiles; ++n) {
      HEDDLE_UNROLL
      for (int e = 0; e < 4; ++e) {
        const int row = tile * kTileRows + Lane() / 4 + 8 * (e / 2);
        const int col = 8 * n + 2 * (Lane() % 4) + e % 2;
        part.Set(at + col * S::kPitch + row, sums[tile][n][e]);
      }
    }
  }
  SyncThreads();
}

// The sum of all warps for a row of the block and one of x.
template <typename S>
HEDDLE_DEVICE float SumOfWarps(Shared<float> part, int row, int t) {
  return TreeSum<S::kColWarps>(
      0, [&](int w) { return part.Get((w * S::kCols + t) * S::kPitch + row); });
}

// Stores this block's sums in memory, [kCols, kRows]. Returns true for the last of the blocks that
// share rows, which then finds all of their sums.
template <typename S>
HEDDLE_DEVICE bool LeaveSums(const LinearParams& p, int split, Shared<float> part,
                             Shared<int32_t> arrived) {
  float* mine =
      p.partial + (static_cast<int64_t>(BlockX()) * S::kSplits + split) * S::kRows * S::kCols;
  for (int i = ThreadX(); i < S::kRows * S::kCols; i += ThreadCount()) {
    mine[i] = SumOfWarps<S>(part, i % S::kRows, i / S::kRows);
  }
  FenceDevice();
  SyncThreads();
  if (ThreadX() == 0) arrived.Set(0, AtomicAddGlobal(p.counters + BlockX(), 1));
  SyncThreads();
  if (arrived.Get(0) != S::kSplits - 1) return false;
  FenceDevice();
  if (ThreadX() == 0) p.counters[BlockX()] = 0;  // for the next product
  return true;
}

// Stores the outputs of a block that are heads; sum_of(row of the block, row of x). A thread makes
// two columns of a row, which are rotated together if they are rotated.
template <typename S, typename SumOf>
HEDDLE_DEVICE void StoreHeads(const LinearParams& p, int count, SumOf sum_of) {
  constexpr int kPairs = S::kRows / 2;
  for (int i = ThreadX(); i < kPairs * count; i += ThreadCount()) {
    const int t = i / kPairs;
    const int warp = i % kPairs / kTileRows;
    const int j = i % kTileRows;
    const int unit = (BlockX() * S::kRowWarps + warp) * kUnitRows;
    const HeadPair pair(p.heads, unit, j);
    if (pair.first >= p.weight.rows) continue;
    const auto output = [&](int row, int column) {
      if (column >= p.weight.rows) return 0.0f;
      float sum = sum_of(warp * kUnitRows + row, t);
      if (p.weight.row_factors != nullptr) sum *= p.weight.row_factors[column];
      return ToFloat(RoundTo(OutputOf(p, t, column, sum, 0.0f), BFloat16()));
    };
    const float first = output(pair.in_halves ? j : 2 * j, pair.first);
    const float second = output(pair.in_halves ? j + kTileRows : 2 * j + 1, pair.second);
    StoreHeadPair(p, t, pair, first, second);
  }
}

// Stores the outputs of a block; sum_of(row of the block, row of x).
template <typename S, typename RowsOfBlock, typename SumOf>
HEDDLE_DEVICE void StoreSums(const LinearParams& p, const RowsOfBlock& rows_of_block,
                             SumOf sum_of) {
  if constexpr (RowsOfBlock::kMayBeHeads) {
    if (p.heads.kv_slot != nullptr) return StoreHeads<S>(p, rows_of_block.count, sum_of);
  }
  const bool gated = p.epilogue == Epilogue::kGated;
  // The sum of row i of tile `tile` of row warp `warp`, with its weight row's factor.
  auto total = [&](int warp, int tile, int i, int t) {
    const float sum = sum_of((warp * kTiles + tile) * kTileRows + i, t);
    if (p.weight.row_factors == nullptr) return sum;
    return sum * p.weight.row_factors[WeightRow<S::kRowWarps>(p, BlockX(), warp, tile, i)];
  };
  const int rows = gated ? S::kRows / kTiles : S::kRows;
  const int per_warp = rows / S::kRowWarps;
  for (int i = ThreadX(); i < rows * rows_of_block.count; i += ThreadCount()) {
    const int t = i / rows;
    const int row = i % rows;
    const int64_t r = static_cast<int64_t>(BlockX()) * rows + row;
    if (r >= OutputCols(p)) continue;
    const int warp = row / per_warp;
    const int within = row % per_warp;
    const float y = total(warp, within / kTileRows, within % kTileRows, t);
    StoreOutput<BFloat16>(p, rows_of_block.Out(t), r, y, gated ? total(warp, 1, within, t) : 0.0f);
  }
}

// Adds up the sums of all warps and blocks, and stores.
template <WeightLayout kLayout, int kXTiles, bool kWide, typename RowsOfBlock>
HEDDLE_DEVICE void Reduce(const LinearParams& p, int split, const RowsOfBlock& rows_of_block,
                          const float (&sums)[kTiles][kXTiles][4], SharedArena arena) {
  using S = Shape<kLayout, kXTiles, kWide>;
  const Shared<float> part = arena.Take<float>(S::kSums);
  ShareSums<kLayout, kXTiles, kWide>(sums, part);
  if constexpr (S::kSplits == 1) {
    StoreSums<S>(p, rows_of_block, [&](int row, int t) { return SumOfWarps<S>(part, row, t); });
  } else {
    if (!LeaveSums<S>(p, split, part, arena.Take<int32_t>(1))) return;
    const float* all =
        p.partial + static_cast<int64_t>(BlockX()) * S::kSplits * S::kRows * S::kCols;
    StoreSums<S>(p, rows_of_block, [&](int row, int t) {
      return TreeSum<S::kSplits>(
          0, [&](int s) { return LoadFresh(all + (s * S::kCols + t) * S::kRows + row); });
    });
  }
}

}  // namespace skinny
}  // namespace heddle::kernels::cuda
