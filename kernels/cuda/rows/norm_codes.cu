// RMSNorm and LayerNorm of rows that directly become 8-bit codes: their BF16 is never written. One
// block per row; the row stays in shared memory as F32 between the passes, first as read and, if
// its codes have one scale, then as normed.
#include "kernels/cuda/linear/code_rows.cuh"
#include "kernels/cuda/primitives/launch.cuh"
#include "kernels/cuda/rows/row_params.h"

namespace heddle::kernels::cuda {
namespace {

using code_rows::Columns;
using code_rows::kColumns;
using code_rows::Kept;

constexpr int kMaxWarps = 8;

struct NormCodesParams {
  NormArgs norm;
  CodeRows codes;
};

// Keeps the thread's columns; returns their sum.
HEDDLE_DEVICE float KeepRow(const NormArgs& p, int64_t t, const Kept& kept) {
  const BFloat16* row = p.x.row<BFloat16>(t);
  float sum = 0;
  for (int64_t k = kColumns * ThreadX(); k < p.x.cols; k += kColumns * ThreadCount()) {
    const Columns columns = code_rows::Read(row, k, p.x.cols);
    kept.Set(k, columns);
    HEDDLE_UNROLL
    for (int i = 0; i < kColumns; ++i) sum += columns.item[i];
  }
  return sum;
}

HEDDLE_DEVICE float SumOfSquares(const NormArgs& p, const Kept& kept, float mean) {
  float squares = 0;
  for (int64_t k = kColumns * ThreadX(); k < p.x.cols; k += kColumns * ThreadCount()) {
    const Columns columns = kept.Get(k);
    HEDDLE_UNROLL
    for (int i = 0; i < kColumns; ++i) {
      const float centred = columns.item[i] - mean;
      squares += centred * centred;
    }
  }
  return squares;
}

HEDDLE_DEVICE Columns NormedAt(const NormArgs& p, const Kept& kept, float mean, float scale,
                               int64_t k) {
  if (k >= p.x.cols) return Columns{};
  Columns out = kept.Get(k);
  Columns weight, bias = {};
  if (p.weight != nullptr) weight = LoadGroup<kColumns>(p.weight + k);
  if (p.bias != nullptr) bias = LoadGroup<kColumns>(p.bias + k);
  HEDDLE_UNROLL
  for (int i = 0; i < kColumns; ++i) {
    const float by = p.weight != nullptr ? weight.item[i] + p.weight_offset : 1.0f;
    out.item[i] = (out.item[i] - mean) * scale * by + bias.item[i];
  }
  return out;
}

template <WeightLayout kLayout>
HEDDLE_KERNEL NormCodesKernel(HEDDLE_PARAMS(NormCodesParams, p)) {
  StartInTurn();
  SharedArena arena;
  const Shared<float> scratch = arena.Take<float>(kMaxWarps);
  const Kept kept(arena.Take<float>(Kept::Floats(p.codes.row_bytes, ThreadCount())));
  const int64_t t = BlockX();
  const auto n = static_cast<float>(p.norm.x.cols);
  const float sum = KeepRow(p.norm, t, kept);
  const float mean = p.norm.kind == NormKind::kLayer ? BlockSum(sum, scratch) / n : 0.0f;
  const float squares = BlockSum(SumOfSquares(p.norm, kept, mean), scratch);
  const float scale = Rsqrt(squares / n + p.norm.eps);
  code_rows::StoreRowOnce<kLayout>(
      p.codes, t, scratch, kept, [&](int64_t k) { return NormedAt(p.norm, kept, mean, scale, k); });
}

}  // namespace

Error LaunchNormCodes(const NormArgs& args, const CodeRows& to, Stream stream) {
  const int warps = CeilDiv(to.row_bytes / kColumns, 32);
  LaunchShape shape = {.grid_x = static_cast<int>(args.x.rows),
                       .threads = 32 * (warps < kMaxWarps ? warps : kMaxWarps)};
  shape.shared_bytes = SharedBytesFor<float>(kMaxWarps) +
                       SharedBytesFor<float>(Kept::Floats(to.row_bytes, shape.threads));
  return code_rows::ForLayout(to.layout, [&]<WeightLayout kLayout>() {
    return Launch(NormCodesKernel<kLayout>, shape, stream, NormCodesParams{args, to});
  });
}

}  // namespace heddle::kernels::cuda
