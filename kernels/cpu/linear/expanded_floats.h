// Panels of 16-bit floats that are widened to F32 once for many tiles of rows, where the level has
// no products of 16-bit floats: shifts take the place of multiply-adds otherwise (BF16: one in 13
// with 6 rows, and more instructions than the processor takes). The products are the same, in the
// same order.
// REQUIRES: linear_float.h and row_pairs.h included before.
#pragma once

#include <cstdint>

namespace heddle::kernels::cpu {
namespace {

inline void Widen(F16Panel, const void* panel, int64_t cols, float* out) {
  const auto* w = static_cast<const uint16_t*>(panel);
  for (int64_t k = 0; k < cols; ++k, w += kPanelRows, out += kPanelRows) {
    Store(out, FromF16(w));
    Store(out + kLanes, FromF16(w + kLanes));
  }
}
inline void Widen(BF16Panel, const void* panel, int64_t cols, float* out) {
  const auto* w = static_cast<const int32_t*>(panel);
  for (int64_t k = 0; k < cols; k += 2, w += kPanelRows, out += 2 * kPanelRows) {
    Store(out, BF16Panel::Even(w));
    Store(out + kLanes, BF16Panel::Even(w + kLanes));
    if (k + 1 == cols) return;
    Store(out + kPanelRows, BF16Panel::Odd(w));
    Store(out + kPanelRows + kLanes, BF16Panel::Odd(w + kLanes));
  }
}

template <typename Panel>
struct Widening {
  static int64_t Bytes(int64_t cols) { return cols * kPanelRows * 4; }
  static void Expand(const void* panel, int64_t cols, void* out) {
    Widen(Panel{}, panel, cols, static_cast<float*>(out));
  }
};

template <typename Panel, int... kSizes>
constexpr FormatKernels MakeWidened() {
  FormatKernels kernels = {TileKind::kFloat,
                           Panel::Bytes,
                           Panel::Pack,
                           Panel::Unpack,
                           {Panel::template Multiply<kSizes>...},
                           /*expand_tiles=*/3,
                           Widening<Panel>::Bytes,
                           Widening<Panel>::Expand,
                           {F32Panel::Multiply<kSizes>...}};
  kernels.multiply_row_pair = MultiplyRowPair<Panel>;
  return kernels;
}

}  // namespace
}  // namespace heddle::kernels::cpu
