// The source of x for the product of few rows (linear_skinny.cuh): rows in memory, or up to 4 rows
// that the block norms first.
//
// Every block computes such a norm itself: x is some KiB in the L2, and the weights travel
// meanwhile. The alternative, applying weights and squares to x as it is loaded and scaling the
// sums at the end, would cost each warp some 30 slots per 32 columns, for the only row out of 8;
// 4-bit weights leave 110 for everything. The norm takes 100 per thread in all.
#pragma once

#include "kernels/cuda/linear/linear_params.h"
#include "kernels/cuda/primitives/primitives.cuh"

namespace heddle::kernels::cuda {
namespace skinny {

// The rows of x that a lane reads, one for each tile of 8, or nullptr.
template <int kXTiles>
struct XRows {
  const BFloat16* row[kXTiles];
};

// The rows of x and of the output that a block works on: the first `count` of both.
struct AllRows {
  static constexpr bool kMayBeHeads = true;
  int count;
  HEDDLE_DEVICE int64_t X(int t) const { return t; }
  HEDDLE_DEVICE int64_t Out(int t) const { return t; }
};

// The rows of some (row, choice) pairs of a mixture of experts.
struct PairRows {
  static constexpr bool kMayBeHeads = false;
  const int32_t* pairs;  // [count]
  int count;
  int pairs_per_row;
  HEDDLE_DEVICE int64_t X(int t) const { return pairs[t] / pairs_per_row; }
  HEDDLE_DEVICE int64_t Out(int t) const { return pairs[t]; }
};

template <int kXTiles, typename RowsOfBlock>
HEDDLE_DEVICE XRows<kXTiles> FindX(const LinearParams& p, const RowsOfBlock& rows) {
  XRows<kXTiles> x;
  HEDDLE_UNROLL
  for (int n = 0; n < kXTiles; ++n) {
    const int t = 8 * n + Lane() / 4;
    x.row[n] = t < rows.count ? p.x.row<BFloat16>(rows.X(t)) : nullptr;
  }
  return x;
}

// The lane's 8 activations of each tile of 8 rows of x in the block of columns that begins at k, in
// the order of the weights; zeros outside.
template <bool kFine, int kXTiles>
HEDDLE_DEVICE void LoadX(const XRows<kXTiles>& rows, int64_t cols, int64_t k, Vec16 (&x)[kXTiles]) {
  HEDDLE_UNROLL
  for (int n = 0; n < kXTiles; ++n) {
    if constexpr (kFine) {
      HEDDLE_UNROLL
      for (int j = 0; j < 2; ++j) {
        const int64_t at = k + 16 * j + 4 * (Lane() % 4);
        const bool inside = rows.row[n] != nullptr && at < cols;
        const Vec8 part = inside ? *reinterpret_cast<const Vec8*>(rows.row[n] + at) : Vec8{};
        x[n].word[2 * j] = part.word[0];
        x[n].word[2 * j + 1] = part.word[1];
      }
    } else {
      const int64_t at = k + 8 * (Lane() % 4);
      const bool inside = rows.row[n] != nullptr && at < cols;
      x[n] = inside ? *reinterpret_cast<const Vec16*>(rows.row[n] + at) : Vec16{};
    }
  }
}

// Few rows of x in shared memory, [count, stride].
struct NormedRows {
  Shared<BFloat16> x;
  int stride;
  int count;
};

template <bool kFine>
HEDDLE_DEVICE void LoadX(const NormedRows& rows, int64_t cols, int64_t k, Vec16 (&x)[1]) {
  const int row = Lane() / 4;
  const int from = row * rows.stride + static_cast<int>(k);
  x[0] = Vec16{};
  if constexpr (kFine) {
    HEDDLE_UNROLL
    for (int j = 0; j < 2; ++j) {
      const int at = 16 * j + 4 * (Lane() % 4);
      if (row >= rows.count || k + at >= cols) continue;
      const auto part = rows.x.template GetAs<Vec8>(from + at);
      x[0].word[2 * j] = part.word[0];
      x[0].word[2 * j + 1] = part.word[1];
    }
  } else {
    const int at = 8 * (Lane() % 4);
    if (row < rows.count && k + at < cols) x[0] = rows.x.template GetAs<Vec16>(from + at);
  }
}

// A pair of x times the row's scale and two weights.
HEDDLE_DEVICE uint32_t NormPair(const FoldedNorm& norm, uint32_t pair, float scale, int column) {
  const auto weights = *reinterpret_cast<const Vec8*>(norm.weight + column);
  return Pack2(
      LowFloat(pair, BFloat16()) * scale * (BitsToFloat(weights.word[0]) + norm.weight_offset),
      HighFloat(pair, BFloat16()) * scale * (BitsToFloat(weights.word[1]) + norm.weight_offset),
      BFloat16());
}

// Norms all rows of x: the numbers are those of LaunchNorm, because it adds in the same order.
// Until the end a thread reads only its own columns.
HEDDLE_DEVICE NormedRows NormRows(const LinearParams& p, SharedArena& arena) {
  const int units = static_cast<int>(p.x.cols) / 8;
  const NormedRows rows = {
      arena.Take<BFloat16>(static_cast<int>(p.x.rows * NormedStride(p.x.cols))),
      static_cast<int>(NormedStride(p.x.cols)), static_cast<int>(p.x.rows)};
  const Shared<float> scratch = arena.Take<float>(ThreadCount() / 32);
  float squares[kNormedRows] = {};
  for (int i = ThreadX(); i < units; i += ThreadCount()) {
    HEDDLE_UNROLL
    for (int t = 0; t < kNormedRows; ++t) {
      if (t >= rows.count) break;
      const Vec16 unit = *reinterpret_cast<const Vec16*>(p.x.row<BFloat16>(t) + 8 * i);
      rows.x.SetAs(t * rows.stride + 8 * i, unit);
      HEDDLE_UNROLL
      for (int j = 0; j < 4; ++j) {
        const float low = LowFloat(unit.word[j], BFloat16());
        const float high = HighFloat(unit.word[j], BFloat16());
        squares[t] += low * low;
        squares[t] += high * high;
      }
    }
  }
  HEDDLE_UNROLL
  for (int t = 0; t < kNormedRows; ++t) {
    if (t >= rows.count) break;
    const float mean = BlockSum(squares[t], scratch) / static_cast<float>(p.x.cols);
    const float scale = Rsqrt(mean + p.norm.eps);
    for (int i = ThreadX(); i < units; i += ThreadCount()) {
      const int at = t * rows.stride + 8 * i;
      auto unit = rows.x.template GetAs<Vec16>(at);
      HEDDLE_UNROLL
      for (int j = 0; j < 4; ++j) {
        unit.word[j] = NormPair(p.norm, unit.word[j], scale, 8 * i + 2 * j);
      }
      rows.x.SetAs(at, unit);
    }
  }
  SyncThreads();
  return rows;
}

}  // namespace skinny
}  // namespace heddle::kernels::cuda
