// Outputs of a product of few rows that are query, key and value heads: which weight rows a warp
// takes, so that it has both columns of each pair that is rotated, and where the pairs go.
//
// A warp makes kUnitRows outputs. Where the halves of a head are rotated against each other, its
// first tile has rows of the first half and its second tile those of the second, as gate and up
// rows have; a unit elsewhere is 32 neighbouring columns, of which each thread stores two.
#pragma once

#include "kernels/cuda/attention/key_place.cuh"
#include "kernels/cuda/linear/linear_params.h"
#include "kernels/cuda/primitives/primitives.cuh"

namespace heddle::kernels::cuda {
namespace skinny {

constexpr int kTiles = 2;
constexpr int kTileRows = 16;
constexpr int kUnitRows = kTiles * kTileRows;

// Whether a unit has rows of both halves of a head. `unit` is its first output, a multiple of
// kUnitRows, as are head_dim and rotary_dim then.
HEDDLE_DEVICE bool HasHalves(const HeadOutputs& h, int unit) {
  return h.layout == RopeLayout::kHalf && unit < h.query_cols() + h.key_cols() &&
         unit % h.cache.head_dim < h.rotary_dim;
}

// The weight row at row i of tile `tile` of a unit.
HEDDLE_DEVICE int RowOfHeads(const HeadOutputs& h, int unit, int tile, int i) {
  if (!HasHalves(h, unit)) return unit + tile * kTileRows + i;
  return unit - unit % h.cache.head_dim / 2 + i + tile * (h.rotary_dim / 2);
}

// Two columns of the output that a thread makes. REQUIRES: j < kTileRows.
struct HeadPair {
  int first;
  int second;
  bool in_halves;  // rows j of the unit's two tiles; else its rows 2j and 2j + 1

  HEDDLE_DEVICE HeadPair(const HeadOutputs& h, int unit, int j)
      : first(unit + 2 * j), second(unit + 2 * j + 1), in_halves(HasHalves(h, unit)) {
    if (!in_halves) return;
    first = RowOfHeads(h, unit, 0, j);
    second = first + h.rotary_dim / 2;
  }
};

HEDDLE_DEVICE void StoreElement(void* to, int at, float value, DType dtype) {
  switch (dtype) {
    case DType::kF32:
      static_cast<float*>(to)[at] = value;
      return;
    case DType::kF16:
      static_cast<Half*>(to)[at] = RoundTo(value, Half());
      return;
    case DType::kF8E4M3:
      static_cast<Float8*>(to)[at] = RoundTo(value, Float8());
      return;
    default:
      static_cast<BFloat16*>(to)[at] = RoundTo(value, BFloat16());
  }
}

// Rotates the outputs of a pair of row t, which are rounded to BF16, and stores them. Columns
// behind the heads go to `out` as they are.
HEDDLE_DEVICE void StoreHeadPair(const LinearParams& p, int t, const HeadPair& pair, float first,
                                 float second) {
  const HeadOutputs& h = p.heads;
  const int dim = h.cache.head_dim;
  const int values = h.query_cols() + h.key_cols();
  const int column = pair.first % dim;  // of the head; the second one lies in the same head
  if (pair.first < values && column < h.rotary_dim) {
    const int half = h.rotary_dim / 2;
    const int angle = pair.in_halves ? column : column / 2;
    const float* cos_sin = h.cos_sin + int64_t{t} * h.rotary_dim + angle;
    const RotatedPair rotated = Rotate(first, second, cos_sin[0], cos_sin[half]);
    first = rotated.first;
    second = rotated.second;
  }
  if (pair.first < h.query_cols() || pair.first >= values + h.key_cols()) {
    BFloat16* out = p.out.row<BFloat16>(t);
    out[pair.first] = RoundTo(first, BFloat16());
    if (pair.second < p.weight.rows) out[pair.second] = RoundTo(second, BFloat16());
    return;
  }
  const bool is_value = pair.first >= values;
  const int kv_head = (pair.first - (is_value ? values : h.query_cols())) / dim;
  const int64_t slot = h.kv_slot[t];
  const KeyPlace place =
      PlaceOfKey(h.cache, slot / h.cache.page_tokens, slot % h.cache.page_tokens, kv_head);
  void* to = static_cast<uint8_t*>(is_value ? h.cache.values : h.cache.keys) + place.row;
  StoreElement(to, column, first, h.cache.dtype);
  StoreElement(to, column + pair.second - pair.first, second, h.cache.dtype);
}

}  // namespace skinny
}  // namespace heddle::kernels::cuda
