// Q8_0 by an instruction that adds four products of unsigned and signed bytes to an int32. The
// codes are stored plus 128; the excess is subtracted with the sums of x. REQUIRES: vec_*.h,
// vec_math.h, linear_float.h, linear_int8.h and a dot_*.h whose DotAdd takes unsigned weights
// included before.
#pragma once

#include <cstdint>
#include <cstring>

#include "kernels/cpu/kernel_table.h"

namespace heddle::kernels::cpu {
namespace {

constexpr int kGroupBytes = kPanelRows * 4;  // four columns of every row

// The sums of one block for kRows rows of x and the two vectors of the panel.
template <int kRows>
struct BlockSums {
  IntSums sums[kRows][2];

  // Multiplies a whole block whose stored weights begin at `w`.
  [[gnu::always_inline]] inline void Multiply(const uint8_t* w, const int8_t (*x)[kBlock],
                                              const int32_t* sum128) {
    Start(sum128);
#pragma GCC unroll 8
    for (int g = 0; g < 8; ++g) {
      Step(LoadBytes(w + g * kGroupBytes), LoadBytes(w + g * kGroupBytes + kLanes * 4), x, g * 4);
    }
  }

  // Starts with the correction for the bias of the weights.
  void Start(const int32_t* sum128) {
#pragma GCC unroll 8
    for (int m = 0; m < kRows; ++m) sums[m][0] = sums[m][1] = SetInts(sum128[m]);
  }
  // Adds four columns: 4 bytes of each row of x at `column`.
  void Step(ByteVec w0, ByteVec w1, const int8_t (*x)[kBlock], int column) {
#pragma GCC unroll 8
    for (int m = 0; m < kRows; ++m) {
      sums[m][0] = DotAdd<false>(sums[m][0], w0, x[m] + column);
      sums[m][1] = DotAdd<false>(sums[m][1], w1, x[m] + column);
    }
  }
  // w0, w1: the scales of the weights.
  void AddTo(Accumulators<kRows>& total, Vec w0, Vec w1, const float* x_scales) const {
#pragma GCC unroll 8
    for (int m = 0; m < kRows; ++m) {
      Vec x = Set(x_scales[m]);
      total.sums[m][0] = Fma(ToFloat(sums[m][0]), w0 * x, total.sums[m][0]);
      total.sums[m][1] = Fma(ToFloat(sums[m][1]), w1 * x, total.sums[m][1]);
    }
  }
};

using Q80Panel = BlockPanel<Q80<0x80>>;

// Blocks of a panel in memory: F16 scales before the codes.
struct PackedQ80 {
  static constexpr int64_t kBytes = Q80Panel::kBytes;
  static constexpr int kCodesAt = kPanelRows * 2;
  static constexpr int kAheadLines = LinesOf(kBytes);

  static Vec Scale(const uint8_t* block, int v) {
    return FromF16(reinterpret_cast<const uint16_t*>(block) + v * kLanes);
  }
};

struct Q80DotPanel : Q80Panel {
  template <int kRows, typename Block = PackedQ80>
  static void Multiply(const void* blocks, const void* tile, int64_t cols, float* acc,
                       WeightsAhead weights_ahead) {
    const auto* block = static_cast<const uint8_t*>(blocks);
    const auto* x = static_cast<const TileBlock<kRows>*>(tile);
    Accumulators<kRows> total;
    total.Start(acc);
    Prefetches<Block::kAheadLines> ahead(weights_ahead, cols / kBlock);
    for (int64_t b = 0; b < cols / kBlock; ++b, block += Block::kBytes, ++x) {
      ahead.Next();
      BlockSums<kRows> sums;
      sums.Multiply(block + Block::kCodesAt, x->x, x->sum128);
      sums.AddTo(total, Block::Scale(block, 0), Block::Scale(block, 1), x->scale);
    }
    total.Save(acc);
  }
};

// Q8_0's blocks with scales in F32, which need no conversion for each tile.
struct ExpandedQ80 {
  static constexpr int64_t kBytes = kPanelRows * 4 + 8 * kGroupBytes;
  static constexpr int kCodesAt = kPanelRows * 4;
  static constexpr int kAheadLines = 0;

  static Vec Scale(const uint8_t* block, int v) {
    return Load(reinterpret_cast<const float*>(block) + v * kLanes);
  }
};

struct ExpandingQ80Panel : Q80DotPanel {
  static int64_t ExpandedBytes(int64_t cols) { return cols / kBlock * ExpandedQ80::kBytes; }

  static void Expand(const void* panel, int64_t cols, void* out) {
    using Packed = PackedQ80;
    const auto* from = static_cast<const uint8_t*>(panel);
    auto* to = static_cast<uint8_t*>(out);
    for (int64_t b = 0; b < cols / kBlock; ++b, from += Packed::kBytes, to += ExpandedQ80::kBytes) {
      for (int v = 0; v < 2; ++v) {
        Store(reinterpret_cast<float*>(to) + v * kLanes, Packed::Scale(from, v));
      }
      std::memcpy(to + ExpandedQ80::kCodesAt, from + Packed::kCodesAt, 8 * kGroupBytes);
    }
  }
};

}  // namespace
}  // namespace heddle::kernels::cpu
