// BF16 weights by dot products of BF16 pairs: activations are rounded to BF16 (nearest even) once
// per tile, two products at a time are added to an F32 sum, in order of k. This has twice the rate
// of F32 multiply-adds, and the weights need no conversion.
//
// Numerics, from the instruction (Intel SDM, VDPBF16PS): the products are exact, each of the two is
// added with one rounding to nearest even, denormal inputs and results count as zero.
#include "kernels/cpu/vec/vec_avx512.h"

#include "kernels/cpu/vec/vec_math.h"

#include "kernels/cpu/linear/linear_float.h"

namespace heddle::kernels::cpu {
namespace {

inline int32_t PairAt(const float* row, int64_t k, int64_t cols) {
  float values[kLanes] = {row[k], k + 1 < cols ? row[k + 1] : 0.0f};
  uint16_t halves[kLanes];
  ToBF16(halves, Load(values));
  int32_t pair;
  std::memcpy(&pair, halves, 4);
  return pair;
}

// Writes one row of x to its lane of a tile of int32 [(cols + 1) / 2][tile_rows].
inline void PrepareRow(const float* row, int64_t cols, int32_t tile_rows, int32_t* out) {
  int64_t k = 0;
  for (; k + kLanes <= cols; k += kLanes) {
    uint16_t halves[kLanes];
    ToBF16(halves, Load(row + k));
    int32_t pairs[kLanes / 2];
    std::memcpy(pairs, halves, sizeof(pairs));
    for (int i = 0; i < kLanes / 2; ++i) out[(k / 2 + i) * tile_rows] = pairs[i];
  }
  for (; k < cols; k += 2) out[k / 2 * tile_rows] = PairAt(row, k, cols);
}

void PrepareBf16Tile(const float* x, int64_t stride, int32_t rows, int32_t tile_rows, int64_t cols,
                     void* tile) {
  auto* out = static_cast<int32_t*>(tile);
  if (rows < tile_rows) {
    std::memset(out, 0, static_cast<size_t>((cols + 1) / 2 * tile_rows) * 4);
  }
  for (int32_t m = 0; m < rows; ++m) PrepareRow(x + m * stride, cols, tile_rows, out + m);
}

inline __m512bh AsPairs(__m512i v) { return reinterpret_cast<__m512bh>(v); }

struct Bf16DotPanel : BF16Panel {
  template <int kRows>
  static void Multiply(const void* panel, const void* tile, int64_t cols, float* acc,
                       WeightsAhead weights_ahead) {
    const auto* w = static_cast<const int32_t*>(panel);
    const auto* x = static_cast<const int32_t*>(tile);
    Accumulators<kRows> total;
    total.Start(acc);
    const int64_t pairs = (cols + 1) / 2;
    Prefetches<LinesOf(kPanelRows * 4)> ahead(weights_ahead, pairs);
    for (int64_t p = 0; p < pairs; ++p, w += kPanelRows, x += kRows) {
      ahead.Next();
      const __m512bh w0 = AsPairs(_mm512_loadu_si512(w));
      const __m512bh w1 = AsPairs(_mm512_loadu_si512(w + kLanes));
#pragma GCC unroll 12
      for (int m = 0; m < kRows; ++m) {
        const __m512bh pair = AsPairs(_mm512_set1_epi32(x[m]));
        total.sums[m][0] = _mm512_dpbf16_ps(total.sums[m][0], w0, pair);
        total.sums[m][1] = _mm512_dpbf16_ps(total.sums[m][1], w1, pair);
      }
    }
    total.Save(acc);
  }
};

}  // namespace

// 12 x 2 sums, as for F32.
extern const Bf16DotKernels kBf16DotAvx512;
const Bf16DotKernels kBf16DotAvx512 = {{5, {1, 2, 4, 8, 12}, PrepareBf16Tile},
                                       MakeFormat<Bf16DotPanel, 1, 2, 4, 8, 12>(TileKind::kBf16)};

}  // namespace heddle::kernels::cpu
