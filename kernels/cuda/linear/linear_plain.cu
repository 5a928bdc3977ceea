// Matrix product for any shape, and conversion of packed weights to BF16.
#include "kernels/cuda/linear/epilogue.cuh"
#include "kernels/cuda/linear/fragments.cuh"
#include "kernels/cuda/linear/weight_element.cuh"
#include "kernels/cuda/primitives/launch.cuh"

namespace heddle::kernels::cuda {
namespace {

constexpr int kWarps = 4;
// Rows of x in BlockY; more of them in BlockZ, as both are 16 bits wide.
constexpr int kGridRows = 32768;

// One warp per output.
template <typename T, WeightLayout kLayout>
HEDDLE_KERNEL LinearPlainKernel(HEDDLE_PARAMS(LinearParams, p)) {
  StartInTurn();
  const int64_t r = static_cast<int64_t>(BlockX()) * kWarps + WarpIndex();
  const int64_t t = static_cast<int64_t>(BlockZ()) * kGridRows + BlockY();
  if (r >= OutputCols(p) || t >= p.x.rows) return;
  const T* x = p.x.row<T>(t);
  float y = DotRow<T, kLayout>(p.weight, x, r);
  float y_up = p.epilogue == Epilogue::kGated ? DotRow<T, kLayout>(p.weight, x, r + p.half) : 0.0f;
  if (Lane() == 0) StoreOutput<T>(p, t, r, y, y_up);
}

struct DequantizeParams {
  DeviceWeight weight;
  int64_t first;
  uint16_t* out;
  int64_t out_stride;
};

// Columns [k, k + 8) of a row whose weights are not codes.
template <WeightLayout kLayout>
HEDDLE_DEVICE void ConvertColumns(const DequantizeParams& p, int64_t r, int64_t k, uint16_t* out) {
  Vec16 packed;
  HEDDLE_UNROLL
  for (int j = 0; j < 4; ++j) {
    float pair[2];
    HEDDLE_UNROLL
    for (int e = 0; e < 2; ++e) {
      const int64_t column = k + 2 * j + e;
      pair[e] = column < p.weight.cols ? WeightElement<kLayout>(p.weight, r, column) : 0.0f;
    }
    packed.word[j] = Pack2(pair[0], pair[1], BFloat16());
  }
  *reinterpret_cast<Vec16*>(out + k) = packed;
}

// The scales of a group of columns in a row, loaded at once for all of its blocks.
template <WeightLayout kLayout>
struct GroupScales {
  static constexpr LayoutTraits kTraits = TraitsOf(kLayout);
  static constexpr int kCount = kTraits.blocks() * kTraits.entries();  // F16 numbers
  Words<kCount == 0 ? 1 : kCount / 2> words;

  HEDDLE_DEVICE GroupScales(const DeviceWeight& w, int64_t r, int64_t group) {
    if constexpr (kTraits.is_tiled) {
      words.word[0] = FloatToBits(w.tiles_of(r)[group * kTraits.blocks() * 32 / kScaleTile]);
    } else if constexpr (kCount > 0) {
      words = *reinterpret_cast<const decltype(words)*>(w.scales + r * w.scales_stride +
                                                        group * kCount);
    } else {
      words.word[0] = FloatToBits(1.0f);
    }
  }
  HEDDLE_DEVICE float At(int block, int entry) const {
    if constexpr (kCount == 0) return BitsToFloat(words.word[0]);
    const int i = block * kTraits.entries() + entry;
    const uint32_t pair = words.word[i / 2];
    return i % 2 == 0 ? LowFloat(pair, Half()) : HighFloat(pair, Half());
  }
};

// The values of a lane's codes in block `block` of a group: scales are applied in F32 and rounded
// once.
template <WeightLayout kLayout>
HEDDLE_DEVICE Pairs Dequantized(const DeviceWeight& w, const Vec16& raw,
                                const GroupScales<kLayout>& scales, float factor, int block) {
  constexpr LayoutTraits kTraits = TraitsOf(kLayout);
  constexpr int kEntries = kTraits.has_offset ? 2 : 1;
  Pairs pairs = Fragment<kLayout>(w, raw, block);
  HEDDLE_UNROLL
  for (int i = 0; i < 4; ++i) {
    const int entry = i / (4 / kTraits.subs()) * kEntries;
    const float scale = scales.At(block, entry);
    float low = LowFloat(pairs.pair[i], BFloat16()) * scale;
    float high = HighFloat(pairs.pair[i], BFloat16()) * scale;
    if constexpr (kTraits.has_offset) {
      low += scales.At(block, entry + 1);
      high += scales.At(block, entry + 1);
    }
    pairs.pair[i] = Pack2(low * factor, high * factor, BFloat16());
  }
  return pairs;
}

// Stores such pairs, of which `left` columns exist and the others become zeros: 8 neighbouring
// columns, or twice 4 if scales are per 16 columns.
template <WeightLayout kLayout>
HEDDLE_DEVICE void StorePairs(Pairs pairs, int left, uint16_t* out) {
  constexpr bool kIsFine = TraitsOf(kLayout).is_fine;
  HEDDLE_UNROLL
  for (int i = 0; i < 4; ++i) {
    const int there = left - (kIsFine ? i / 2 * 16 + i % 2 * 2 : 2 * i);
    if (there < 2) pairs.pair[i] &= there == 1 ? 0xFFFFu : 0u;
  }
  if constexpr (kIsFine) {
    *reinterpret_cast<Vec8*>(out) = {{pairs.pair[0], pairs.pair[1]}};
    *reinterpret_cast<Vec8*>(out + 16) = {{pairs.pair[2], pairs.pair[3]}};
  } else {
    StoreGlobal16(out, {{pairs.pair[0], pairs.pair[1], pairs.pair[2], pairs.pair[3]}});
  }
}

// Unit `i` of a row: 16 bytes, the codes of one lane in a group of columns, 8 of each block of 32.
template <WeightLayout kLayout>
HEDDLE_DEVICE void DequantizeUnit(const DequantizeParams& p, int64_t r, float factor, int64_t i,
                                  uint16_t* out) {
  constexpr int kBlocks = TraitsOf(kLayout).blocks();
  const Vec16 raw = LoadStreaming16(p.weight.data + r * p.weight.row_bytes + 16 * i);
  const int64_t group = i / 4;
  const GroupScales<kLayout> scales(p.weight, r, group);
  const int lane_first = static_cast<int>(i % 4) * (8 / TraitsOf(kLayout).subs());
  const int64_t left = p.weight.cols - group * (kBlocks * 32);  // of the group
  uint16_t* to = out + group * (kBlocks * 32) + lane_first;
  HEDDLE_UNROLL
  for (int block = 0; block < kBlocks; ++block) {
    if (32 * block >= left) break;
    const Pairs pairs = Dequantized<kLayout>(p.weight, raw, scales, factor, block);
    const int64_t of_lane = left - 32 * block - lane_first;
    StorePairs<kLayout>(pairs, of_lane < 32 ? static_cast<int>(of_lane) : 32, to + 32 * block);
  }
}

// BlockX: a row.
template <WeightLayout kLayout>
HEDDLE_KERNEL DequantizeKernel(HEDDLE_PARAMS(DequantizeParams, p)) {
  StartInTurn();
  const int64_t r = p.first + BlockX();
  uint16_t* out = p.out + BlockX() * p.out_stride;
  if constexpr (TraitsOf(kLayout).is_coded()) {
    const float factor = p.weight.row_factors != nullptr ? p.weight.row_factors[r] : 1.0f;
    for (int64_t i = ThreadX(); i < p.weight.row_bytes / 16; i += ThreadCount()) {
      DequantizeUnit<kLayout>(p, r, factor, i, out);
    }
  } else {
    for (int64_t k = 8 * ThreadX(); k < p.out_stride; k += 8 * ThreadCount()) {
      ConvertColumns<kLayout>(p, r, k, out);
    }
  }
}

}  // namespace

Error LaunchLinearPlain(const LinearParams& params, DType act, Stream stream) {
  const LaunchShape shape = {
      .grid_x = CeilDiv(OutputCols(params), kWarps),
      .grid_y = static_cast<int>(params.x.rows < kGridRows ? params.x.rows : kGridRows),
      .grid_z = CeilDiv(params.x.rows, kGridRows),
      .threads = 32 * kWarps};
  return ForActivation(act, [&]<typename T>(T) {
    return ForLayout(params.weight.layout, [&]<WeightLayout kLayout>() {
      return Launch(LinearPlainKernel<T, kLayout>, shape, stream, params);
    });
  });
}

Error LaunchDequantize(const DeviceWeight& weight, int64_t first, int64_t count, uint16_t* out,
                       Stream stream) {
  const DequantizeParams params = {weight, first, out, (weight.cols + 31) / 32 * 32};
  const LaunchShape shape = {.grid_x = static_cast<int>(count), .threads = 256};
  return ForLayout(weight.layout, [&]<WeightLayout kLayout>() {
    return Launch(DequantizeKernel<kLayout>, shape, stream, params);
  });
}

}  // namespace heddle::kernels::cuda
