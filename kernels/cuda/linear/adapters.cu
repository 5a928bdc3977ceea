// The contribution of low-rank adapters to a product: gathered products of each row with its own
// adapter's factors, in F32. There are two kernels: shrink, with a warp per rank row, and expand,
// with a thread per few columns. Both read an adapter's factors once for each segment of rows; the
// order of a row's sums does not depend on the rest of the batch. Decoding is bound by the factors'
// bytes: at rank 16 on 4096 x 4096, 256 KiB per adapter, beside 32 MiB of weights.
#include "kernels/cuda/linear/adapter_params.h"
#include "kernels/cuda/linear/weight_element.cuh"
#include "kernels/cuda/primitives/group.cuh"
#include "kernels/cuda/primitives/launch.cuh"

namespace heddle::kernels::cuda {
namespace {

constexpr int kWarps = 4;
constexpr int kThreads = 32 * kWarps;
constexpr int kShrinkWidth = 8;  // columns that a lane takes at a time: 16 bytes of 16-bit factors
constexpr int kExpandWidth = 4;

// The rows of x in a segment; -1 for rows outside of x, or beyond its count.
struct SegmentRows {
  int64_t row[kAdapterRows];
  bool any = false;

  HEDDLE_DEVICE SegmentRows(const AdapterParams& p, const AdapterSegment& segment) {
    HEDDLE_UNROLL
    for (int i = 0; i < kAdapterRows; ++i) {
      row[i] = -1;
      if (i >= segment.count) continue;
      const int64_t t = p.batch.rows[segment.begin + i] - p.first_row;
      if (t < 0 || t >= p.x.rows) continue;
      row[i] = t;
      any = true;
    }
  }
};

HEDDLE_DEVICE float* ShrunkRow(const AdapterParams& p, int64_t t, int part) {
  return p.shrunk + (t * p.n_parts + part) * p.max_rank;
}

// BlockX: four rank rows; BlockY: the segment; BlockZ: the part.
template <typename T, typename F, int kWidth>
HEDDLE_KERNEL ShrinkKernel(HEDDLE_PARAMS(AdapterParams, p)) {
  StartInTurn();
  const AdapterSegment segment = p.batch.segments[BlockY()];
  const AdapterFactors factors = p.factors[segment.slot * p.slot_stride + BlockZ()];
  const int j = BlockX() * kWarps + WarpIndex();
  if (j >= factors.rank) return;
  const SegmentRows rows(p, segment);
  if (!rows.any) return;
  const F* a =
      static_cast<const F*>(factors.a[j / factors.block_rows]) + j % factors.block_rows * p.x.cols;
  float sums[kAdapterRows] = {};
  for (int64_t c = int64_t{kWidth} * Lane(); c < p.x.cols; c += 32 * kWidth) {
    const Group<F, kWidth> factor = LoadGroup<kWidth>(a + c);
    HEDDLE_UNROLL
    for (int i = 0; i < kAdapterRows; ++i) {
      if (rows.row[i] < 0) continue;
      const Group<T, kWidth> x = LoadGroup<kWidth>(p.x.row<T>(rows.row[i]) + c);
      HEDDLE_UNROLL
      for (int e = 0; e < kWidth; ++e) sums[i] += ToFloat(factor.item[e]) * ToFloat(x.item[e]);
    }
  }
  HEDDLE_UNROLL
  for (int i = 0; i < kAdapterRows; ++i) {
    const float sum = WarpSum(sums[i]);
    if (Lane() == 0 && rows.row[i] >= 0) {
      ShrunkRow(p, rows.row[i], BlockZ())[j] = factors.scale * sum;
    }
  }
}

// BlockX: columns of the part; BlockY: the segment; BlockZ: the part.
template <typename F, int kWidth>
HEDDLE_KERNEL ExpandKernel(HEDDLE_PARAMS(AdapterParams, p)) {
  StartInTurn();
  SharedArena arena;
  const Shared<float> shrunk = arena.Take<float>(kAdapterRows * p.max_rank);
  const AdapterSegment segment = p.batch.segments[BlockY()];
  const AdapterFactors factors = p.factors[segment.slot * p.slot_stride + BlockZ()];
  const AdapterPart part = p.parts[BlockZ()];
  const SegmentRows rows(p, segment);
  if (!rows.any) return;
  HEDDLE_UNROLL
  for (int i = 0; i < kAdapterRows; ++i) {
    if (rows.row[i] < 0) continue;
    const float* from = ShrunkRow(p, rows.row[i], BlockZ());
    for (int j = ThreadX(); j < factors.rank; j += kThreads) {
      shrunk.Set(i * p.max_rank + j, from[j]);
    }
  }
  SyncThreads();
  const int64_t c = (static_cast<int64_t>(BlockX()) * kThreads + ThreadX()) * kWidth;
  if (c >= part.rows) return;
  float sums[kAdapterRows][kWidth] = {};
  for (int j = 0; j < factors.rank; ++j) {
    const F* b = static_cast<const F*>(factors.b[j / factors.block_rows]) +
                 j % factors.block_rows * part.rows;
    const Group<F, kWidth> factor = LoadGroup<kWidth>(b + c);
    HEDDLE_UNROLL
    for (int i = 0; i < kAdapterRows; ++i) {
      if (rows.row[i] < 0) continue;
      const float s = shrunk.Get(i * p.max_rank + j);
      HEDDLE_UNROLL
      for (int e = 0; e < kWidth; ++e) sums[i][e] += s * ToFloat(factor.item[e]);
    }
  }
  HEDDLE_UNROLL
  for (int i = 0; i < kAdapterRows; ++i) {
    if (rows.row[i] < 0) continue;
    Group<float, kWidth> own;
    HEDDLE_UNROLL
    for (int e = 0; e < kWidth; ++e) own.item[e] = sums[i][e];
    StoreGroup(p.delta + rows.row[i] * p.delta_stride + part.first_row + c, own);
  }
}

// Calls fn with a value of the factors' storage type.
template <typename Fn>
auto ForFactors(DType dtype, Fn fn) {
  if (dtype == DType::kF32) return fn(float());
  return dtype == DType::kF16 ? fn(Half()) : fn(BFloat16());
}

}  // namespace

Error LaunchAdapterShrink(const AdapterParams& params, DType act, Stream stream) {
  const LaunchShape shape = {.grid_x = CeilDiv(params.max_rank, kWarps),
                             .grid_y = params.batch.n_segments,
                             .grid_z = params.n_parts,
                             .threads = kThreads};
  const Tensor& x = params.x;
  const bool wide = reinterpret_cast<uintptr_t>(x.data) % 16 == 0 && x.stride % kShrinkWidth == 0 &&
                    x.cols % kShrinkWidth == 0;
  return ForActivation(act, [&]<typename T>(T) {
    return ForFactors(params.dtype, [&]<typename F>(F) {
      return wide ? Launch(ShrinkKernel<T, F, kShrinkWidth>, shape, stream, params)
                  : Launch(ShrinkKernel<T, F, 1>, shape, stream, params);
    });
  });
}

Error LaunchAdapterExpand(const AdapterParams& params, Stream stream) {
  int64_t widest = 0;
  bool wide = true;
  for (int32_t i = 0; i < params.n_parts; ++i) {
    const AdapterPart& part = params.parts[i];
    if (part.rows > widest) widest = part.rows;
    wide = wide && part.rows % kExpandWidth == 0 && part.first_row % kExpandWidth == 0;
  }
  const LaunchShape shape = {
      .grid_x = CeilDiv(widest, int64_t{kThreads} * (wide ? kExpandWidth : 1)),
      .grid_y = params.batch.n_segments,
      .grid_z = params.n_parts,
      .threads = kThreads,
      .shared_bytes = SharedBytesFor<float>(kAdapterRows * params.max_rank)};
  return ForFactors(params.dtype, [&]<typename F>(F) {
    return wide ? Launch(ExpandKernel<F, kExpandWidth>, shape, stream, params)
                : Launch(ExpandKernel<F, 1>, shape, stream, params);
  });
}

}  // namespace heddle::kernels::cuda
