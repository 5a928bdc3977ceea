// Rows of x as 8-bit codes with a scale for each row, in the order of columns of 8-bit weights. A
// block per row: one pass for the largest magnitude, a second, from the L1, for the codes. Moves 2
// bytes in and 1 out per element: a tenth of the time of a product of 4096 rows by 4096 columns.
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/primitives.cuh"

namespace heddle::kernels::cuda {
namespace {

constexpr int kMaxWarps = 8;
constexpr int kColumns = 8;  // that a thread takes at a time: a lane's share of a block of 32
// Magnitudes that are no more than noise: their inverse must stay a number.
constexpr float kLeast = 1e-20f;

struct QuantizeParams {
  Tensor x;
  CodeRows to;
};

HEDDLE_DEVICE Vec16 LoadColumns(const BFloat16* row, int64_t k, int64_t cols) {
  return k < cols ? *reinterpret_cast<const Vec16*>(row + k) : Vec16{};
}

HEDDLE_DEVICE float Column(const Vec16& columns, int i) {
  const uint32_t pair = columns.word[i / 2];
  return i % 2 == 0 ? LowFloat(pair, BFloat16()) : HighFloat(pair, BFloat16());
}

// The row's largest magnitude, infinity if one of them is no number.
HEDDLE_DEVICE float Largest(const BFloat16* row, int64_t cols, Shared<float> scratch) {
  float largest = 0;
  for (int64_t k = int64_t{kColumns} * ThreadX(); k < cols; k += kColumns * ThreadCount()) {
    const Vec16 columns = LoadColumns(row, k, cols);
    HEDDLE_UNROLL
    for (int i = 0; i < kColumns; ++i) {
      const float value = Column(columns, i);
      largest = Max(largest, IsNan(value) ? Infinity() : Abs(value));
    }
  }
  return BlockMax(largest, scratch);
}

template <bool kIsF8>
HEDDLE_DEVICE uint32_t Code(float value) {
  if constexpr (kIsF8) {
    return RoundTo(value, Float8()).bits;
  } else {  // NaN, of a row whose scale is infinite, becomes -127
    const float within = -Max(-127.0f, -Max(value, -127.0f));
    return static_cast<uint8_t>(static_cast<int8_t>(RoundToInteger(within)));
  }
}

template <bool kIsF8>
HEDDLE_KERNEL QuantizeKernel(HEDDLE_PARAMS(QuantizeParams, p)) {
  StartInTurn();
  SharedArena arena;
  const int64_t t = BlockX();
  const BFloat16* row = p.x.row<BFloat16>(t);
  const float largest = Max(Largest(row, p.x.cols, arena.Take<float>(kMaxWarps)), kLeast);
  constexpr float kEnd = kIsF8 ? 448.0f : 127.0f;
  const float inverse = kEnd / largest;
  if (ThreadX() == 0) p.to.scales[t] = largest / kEnd;
  uint8_t* codes = p.to.codes + t * p.to.row_bytes;
  for (int64_t k = int64_t{kColumns} * ThreadX(); k < p.to.row_bytes;
       k += kColumns * ThreadCount()) {
    const Vec16 columns = LoadColumns(row, k, p.x.cols);
    Vec8 packed = {};
    HEDDLE_UNROLL
    for (int i = 0; i < kColumns; ++i) {
      packed.word[i / 4] |= Code<kIsF8>(Column(columns, i) * inverse) << (8 * (i % 4));
    }
    // See weight_layout.h: in a group of 64 columns, lane t's bytes of both blocks of 32.
    const int64_t at = k / 64 * 64 + k % 32 / 8 * 16 + k % 64 / 32 * 8;
    *reinterpret_cast<Vec8*>(codes + at) = packed;
  }
}

}  // namespace

Error LaunchQuantizeRows(Tensor x, WeightLayout layout, const CodeRows& to, Stream stream) {
  const int warps = CeilDiv(to.row_bytes / kColumns, 32);
  const LaunchShape shape = {.grid_x = static_cast<int>(x.rows),
                             .threads = 32 * (warps < kMaxWarps ? warps : kMaxWarps),
                             .shared_bytes = SharedBytesFor<float>(kMaxWarps)};
  return IsF8(layout) ? Launch(QuantizeKernel<true>, shape, stream, QuantizeParams{x, to})
                      : Launch(QuantizeKernel<false>, shape, stream, QuantizeParams{x, to});
}

}  // namespace heddle::kernels::cuda
