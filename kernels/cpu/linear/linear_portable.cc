// Linear kernels for any processor. 8-row panels.
#include "kernels/cpu/vec/vec_portable.h"

#include "kernels/cpu/vec/vec_math.h"

#include "kernels/cpu/linear/linear_float.h"

#include "kernels/cpu/linear/linear_int8.h"

namespace heddle::kernels::cpu {
namespace {

// Adds one group of four columns of every row of the panel to `sums`.
template <typename Value>
inline void StepGroup(const uint8_t* w, const int8_t* x, const Value& value, int32_t* sums) {
  for (int r = 0; r < kPanelRows; ++r) {
    for (int j = 0; j < 4; ++j) sums[r] += value(w[r * 4 + j]) * x[j];
  }
}

template <typename Format>
struct PortablePanel : BlockPanel<Format> {
  using Base = BlockPanel<Format>;

  static void BlockSums(const uint8_t* w, const int8_t* x, int32_t* sums) {
    if constexpr (Format::kGroups == 8) {
      auto value = [](uint8_t byte) { return static_cast<int32_t>(static_cast<int8_t>(byte)); };
      for (int g = 0; g < 8; ++g) StepGroup(w + g * kPanelRows * 4, x + g * 4, value, sums);
    } else {
      auto low = [](uint8_t byte) { return (byte & 0xf) - 8; };
      auto high = [](uint8_t byte) { return (byte >> 4) - 8; };
      for (int g = 0; g < 4; ++g) {
        StepGroup(w + g * kPanelRows * 4, x + g * 4, low, sums);
        StepGroup(w + g * kPanelRows * 4, x + 16 + g * 4, high, sums);
      }
    }
  }

  template <int kRows>
  static void Multiply(const void* panel, const void* tile, int64_t cols, float* acc,
                       WeightsAhead weights_ahead) {
    const auto* block = static_cast<const uint8_t*>(panel);
    const auto* x = static_cast<const TileBlock<kRows>*>(tile);
    Accumulators<kRows> total;
    total.Start(acc);
    Prefetches<LinesOf(Base::kBytes)> ahead(weights_ahead, cols / kBlock);
    for (int64_t b = 0; b < cols / kBlock; ++b, block += Base::kBytes, ++x) {
      ahead.Next();
      const auto* scales = reinterpret_cast<const uint16_t*>(block);
      Vec w0 = FromF16(scales);
      Vec w1 = FromF16(scales + kLanes);
      for (int m = 0; m < kRows; ++m) {
        int32_t sums[kPanelRows] = {};
        BlockSums(block + kPanelRows * 2, x->x[m], sums);
        float values[kPanelRows];
        for (int r = 0; r < kPanelRows; ++r) values[r] = static_cast<float>(sums[r]);
        Vec scale = Set(x->scale[m]);
        total.sums[m][0] = Fma(Load(values), w0 * scale, total.sums[m][0]);
        total.sums[m][1] = Fma(Load(values + kLanes), w1 * scale, total.sums[m][1]);
      }
    }
    total.Save(acc);
  }
};

}  // namespace

extern const LinearKernels kLinearPortable;
const LinearKernels kLinearPortable = {
    kPanelRows,
    {{3, {1, 2, 4}, PrepareFloatTile}, {3, {1, 2, 4}, PrepareRoundedTile<Int8Tile>}},
    {MakeFormat<F32Panel, 1, 2, 4>(TileKind::kFloat),
     MakeFormat<F16Panel, 1, 2, 4>(TileKind::kFloat),
     MakeFormat<BF16Panel, 1, 2, 4>(TileKind::kFloat),
     MakeFormat<PortablePanel<Q80<0>>, 1, 2, 4>(TileKind::kInt8),
     MakeFormat<PortablePanel<Q40>, 1, 2, 4>(TileKind::kInt8)},
    FinishPanel,
    JoinSums,
    &kBlocksPortable,
    /*bf16_tile=*/{}};

}  // namespace heddle::kernels::cpu
