// Makes rows of x into 8-bit codes with their scales (CodeRows), for every kernel that writes such
// rows: one row per block, whose threads take 8 columns at a time.
//
// A scale is the largest magnitude of its columns / 448, or / 127. If a row has one scale, all
// columns must be known before the first code: they are computed once and kept in shared memory, or
// computed twice. If 128 columns share a scale, the 16 lanes that compute them find it among
// themselves. Codes are made from F32 values, with one rounding.
#pragma once

#include "kernels/cuda/linear/code_rows.h"
#include "kernels/cuda/primitives/group.cuh"
#include "kernels/cuda/primitives/primitives.cuh"

namespace heddle::kernels::cuda {
namespace code_rows {

constexpr int kColumns = 8;  // a lane's share of a block of 32 columns, see weight_layout.h
constexpr int kTileLanes = static_cast<int>(kScaleTile) / kColumns;
// Magnitudes no larger than noise; their inverse must be finite.
constexpr float kLeast = 1e-20f;

using Columns = Group<float, kColumns>;

// The offset of the codes of columns [k, k + 8) in a row. See weight_layout.h: in a group of 64
// columns, lane t's bytes of both blocks of 32.
HEDDLE_DEVICE int64_t PlaceOf(int64_t k) { return k / 64 * 64 + k % 32 / 8 * 16 + k % 64 / 32 * 8; }

template <WeightLayout kLayout>
HEDDLE_DEVICE uint32_t Code(float value) {
  if constexpr (IsF8(kLayout)) {
    return RoundTo(value, Float8()).bits;
  } else {  // NaN, in a row whose scale is infinite, becomes -127
    const float within = -Max(-127.0f, -Max(value, -127.0f));
    return static_cast<uint8_t>(static_cast<int8_t>(RoundToInteger(within)));
  }
}

// Columns [k, k + 8) of a row; zeros past its end.
HEDDLE_DEVICE Columns Read(const BFloat16* row, int64_t k, int64_t cols) {
  const Vec16 packed = k < cols ? *reinterpret_cast<const Vec16*>(row + k) : Vec16{};
  Columns columns;
  HEDDLE_UNROLL
  for (int i = 0; i < 4; ++i) {
    columns.item[2 * i] = LowFloat(packed.word[i], BFloat16());
    columns.item[2 * i + 1] = HighFloat(packed.word[i], BFloat16());
  }
  return columns;
}

// The larger of `largest` and the columns' magnitudes; infinity if one of them is NaN.
HEDDLE_DEVICE float Largest(const Columns& columns, float largest) {
  HEDDLE_UNROLL
  for (int i = 0; i < kColumns; ++i) {
    const float value = columns.item[i];
    largest = Max(largest, IsNan(value) ? Infinity() : Abs(value));
  }
  return largest;
}

// Writes columns [k, k + 8) times `inverse` as codes into a row of codes.
template <WeightLayout kLayout>
HEDDLE_DEVICE void Store(uint8_t* row, int64_t k, const Columns& columns, float inverse) {
  Vec8 packed = {};
  HEDDLE_UNROLL
  for (int i = 0; i < kColumns; ++i) {
    packed.word[i / 4] |= Code<kLayout>(columns.item[i] * inverse) << (8 * (i % 4));
  }
  *reinterpret_cast<Vec8*>(row + PlaceOf(k)) = packed;
}

template <WeightLayout kLayout>
constexpr float kEnd = IsF8(kLayout) ? 448.0f : 127.0f;

// The values of codes of columns [k, k + 8) of row t.
template <WeightLayout kLayout>
HEDDLE_DEVICE Columns Load(const CodeRows& from, int64_t t, int64_t k) {
  const auto packed = *reinterpret_cast<const Vec8*>(from.codes + t * from.row_bytes + PlaceOf(k));
  const int64_t tile = TraitsOf(kLayout).is_tiled ? k / kScaleTile : 0;
  const float scale = from.scales[tile * from.scales_stride + t];
  Columns columns;
  HEDDLE_UNROLL
  for (int i = 0; i < kColumns; ++i) {
    const auto code = static_cast<uint8_t>(packed.word[i / 4] >> (8 * (i % 4)));
    const float value =
        IsF8(kLayout) ? ToFloat(Float8{code}) : static_cast<float>(static_cast<int8_t>(code));
    columns.item[i] = value * scale;
  }
  return columns;
}

// Columns that only their own thread reads again. 16 bytes of each lane are adjacent, so that a
// warp's accesses have no bank conflicts.
class Kept {
 public:
  HEDDLE_DEVICE explicit Kept(Shared<float> floats) : floats_(floats) {}
  static constexpr int Floats(int64_t cols, int threads) {
    const int64_t share = int64_t{threads} * kColumns;
    return static_cast<int>((cols + share - 1) / share * share);
  }
  // `k` is the first of the columns, which belong to this thread.
  HEDDLE_DEVICE void Set(int64_t k, const Columns& columns) const {
    HEDDLE_UNROLL
    for (int i = 0; i < kColumns; ++i) floats_.Set(Place(k, i), columns.item[i]);
  }
  HEDDLE_DEVICE Columns Get(int64_t k) const {
    Columns columns;
    HEDDLE_UNROLL
    for (int i = 0; i < kColumns; ++i) columns.item[i] = floats_.Get(Place(k, i));
    return columns;
  }

 private:
  HEDDLE_DEVICE int Place(int64_t k, int i) const {
    const int turn = static_cast<int>(k) / (kColumns * ThreadCount());
    return ((turn * 2 + i / 4) * ThreadCount() + ThreadX()) * 4 + i % 4;
  }
  Shared<float> floats_;
};

// first(k) makes columns [k, k + 8) of the row, zeros beyond its end, and is called once for each
// k; again(k) makes the same later. All threads of the block call it; `scratch` has a float per
// warp.
template <WeightLayout kLayout, typename First, typename Again>
HEDDLE_DEVICE void StoreRow(const CodeRows& to, int64_t t, Shared<float> scratch, First first,
                            Again again) {
  uint8_t* codes = to.codes + t * to.row_bytes;
  const int step = kColumns * ThreadCount();
  if constexpr (TraitsOf(kLayout).is_tiled) {
    for (int64_t begin = 0; begin < to.row_bytes; begin += step) {  // whole warps
      const int64_t k = begin + kColumns * ThreadX();
      const bool inside = k < to.row_bytes;
      const Columns columns = inside ? first(k) : Columns{};
      float largest = Largest(columns, kLeast);
      HEDDLE_UNROLL
      for (int mask = kTileLanes / 2; mask > 0; mask /= 2) {
        largest = Max(largest, ShuffleXor(largest, mask));
      }
      if (!inside) continue;
      Store<kLayout>(codes, k, columns, kEnd<kLayout> / largest);
      if (k % kScaleTile == 0) {
        to.scales[k / kScaleTile * to.scales_stride + t] = largest / kEnd<kLayout>;
      }
    }
  } else {
    float largest = kLeast;
    for (int64_t k = kColumns * ThreadX(); k < to.row_bytes; k += step) {
      largest = Largest(first(k), largest);
    }
    largest = BlockMax(largest, scratch);
    if (ThreadX() == 0) to.scales[t] = largest / kEnd<kLayout>;
    const float inverse = kEnd<kLayout> / largest;
    for (int64_t k = kColumns * ThreadX(); k < to.row_bytes; k += step) {
      Store<kLayout>(codes, k, again(k), inverse);
    }
  }
}

// As above, but keeps the columns in `kept`, of Kept::Floats(row_bytes), if a row has one scale.
template <WeightLayout kLayout, typename Make>
HEDDLE_DEVICE void StoreRowOnce(const CodeRows& to, int64_t t, Shared<float> scratch,
                                const Kept& kept, Make make) {
  const auto first = [&](int64_t k) {
    const Columns columns = make(k);
    if constexpr (!TraitsOf(kLayout).is_tiled) kept.Set(k, columns);
    return columns;
  };
  StoreRow<kLayout>(to, t, scratch, first, [&](int64_t k) { return kept.Get(k); });
}

// Calls fn.template operator()<layout>() for a layout that uses codes.
template <typename Fn>
auto ForLayout(WeightLayout layout, Fn fn) {
  switch (layout) {
    case WeightLayout::kInt8Row:
      return fn.template operator()<WeightLayout::kInt8Row>();
    case WeightLayout::kF8Block:
      return fn.template operator()<WeightLayout::kF8Block>();
    default:
      return fn.template operator()<WeightLayout::kF8Row>();
  }
}

}  // namespace code_rows
}  // namespace heddle::kernels::cuda
