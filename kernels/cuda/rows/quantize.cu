// Converts rows of x to 8-bit codes, in the order of columns of 8-bit weights, and back: see
// code_rows.cuh. If a row has one scale, one pass finds the largest magnitude and a second, from
// the L1, makes the codes; otherwise one pass does both. It moves 2 bytes in and 1 out per element:
// a tenth of the time of a product of 4096 rows by 4096 columns.
#include "kernels/cuda/linear/code_rows.cuh"
#include "kernels/cuda/primitives/launch.cuh"
#include "kernels/cuda/rows/row_params.h"

namespace heddle::kernels::cuda {
namespace {

constexpr int kMaxWarps = 8;

struct QuantizeParams {
  Tensor x;
  CodeRows codes;
  const int32_t* pairs = nullptr;  // of QuantizeKernel: row t of codes is row pairs[t] /
  int32_t pairs_per_row = 1;       // pairs_per_row of x; nullptr: row t
};

template <WeightLayout kLayout>
HEDDLE_KERNEL RestoreKernel(HEDDLE_PARAMS(QuantizeParams, p)) {
  StartInTurn();
  const int64_t t = BlockX();
  BFloat16* row = p.x.row<BFloat16>(t);
  const int step = code_rows::kColumns * ThreadCount();
  for (int64_t k = code_rows::kColumns * ThreadX(); k < p.x.cols; k += step) {
    const code_rows::Columns columns = code_rows::Load<kLayout>(p.codes, t, k);
    Vec16 packed;
    HEDDLE_UNROLL
    for (int i = 0; i < 4; ++i) {
      packed.word[i] = Pack2(columns.item[2 * i], columns.item[2 * i + 1], BFloat16());
    }
    *reinterpret_cast<Vec16*>(row + k) = packed;
  }
}

template <WeightLayout kLayout>
HEDDLE_KERNEL QuantizeKernel(HEDDLE_PARAMS(QuantizeParams, p)) {
  StartInTurn();
  SharedArena arena;
  const int64_t t = BlockX();
  const int64_t from = p.pairs == nullptr ? t : p.pairs[t] / p.pairs_per_row;
  const BFloat16* row = p.x.row<BFloat16>(from);
  const auto load = [&](int64_t k) { return code_rows::Read(row, k, p.x.cols); };
  code_rows::StoreRow<kLayout>(p.codes, t, arena.Take<float>(kMaxWarps), load, load);
}

LaunchShape ShapeOf(int64_t rows, const CodeRows& codes, int shared_bytes) {
  const int warps = CeilDiv(codes.row_bytes / code_rows::kColumns, 32);
  return {.grid_x = static_cast<int>(rows),
          .threads = 32 * (warps < kMaxWarps ? warps : kMaxWarps),
          .shared_bytes = shared_bytes};
}

}  // namespace

Error LaunchQuantizeRows(Tensor x, const CodeRows& to, Stream stream) {
  return LaunchQuantizePairs(x, nullptr, 1, x.rows, to, stream);
}

Error LaunchQuantizePairs(Tensor x, const int32_t* pairs, int32_t pairs_per_row, int64_t n,
                          const CodeRows& to, Stream stream) {
  const LaunchShape shape = ShapeOf(n, to, SharedBytesFor<float>(kMaxWarps));
  const QuantizeParams params = {x, to, pairs, pairs_per_row};
  return code_rows::ForLayout(to.layout, [&]<WeightLayout kLayout>() {
    return Launch(QuantizeKernel<kLayout>, shape, stream, params);
  });
}

Error LaunchRestoreRows(const CodeRows& from, Tensor x, Stream stream) {
  return code_rows::ForLayout(from.layout, [&]<WeightLayout kLayout>() {
    return Launch(RestoreKernel<kLayout>, ShapeOf(x.rows, from, 0), stream,
                  QuantizeParams{x, from});
  });
}

}  // namespace heddle::kernels::cuda
