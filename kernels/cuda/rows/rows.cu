// Ops that look rows up, copy or scale them. One block per row; memory-bound and small.
#include "kernels/cuda/device_batch.h"
#include "kernels/cuda/linear/weight_element.cuh"
#include "kernels/cuda/primitives/group.cuh"
#include "kernels/cuda/primitives/launch.cuh"
#include "kernels/cuda/rows/row_params.h"
#include "kernels/cuda/runtime/find_code.h"

namespace heddle::kernels::cuda {
namespace {

constexpr int kThreads = 128;

struct TableParams {
  DeviceBatch batch;
  DeviceWeight table;
  float scale;
  int32_t offset;
  Tensor out;
  int64_t has_first_row_for_others = 0;  // tokens beyond the table are its first row
};

// Other ids outside the table give zeros instead of foreign memory: the engine lets none through,
// except for those of the step before if it drew nothing.
template <typename T, WeightLayout kLayout>
HEDDLE_KERNEL EmbedKernel(HEDDLE_PARAMS(TableParams, p)) {
  StartInTurn();
  const int t = BlockX();
  const int32_t draw = p.batch.draw_of_row == nullptr ? -1 : p.batch.draw_of_row[t];
  int64_t id = (draw >= 0 ? p.batch.drawn[draw] : p.batch.token_ids[t]) - int64_t{p.offset};
  if (p.has_first_row_for_others != 0 && id >= p.table.rows) id = 0;
  const bool known = id >= 0 && id < p.table.rows;
  for (int64_t i = ThreadX(); i < p.table.cols; i += ThreadCount()) {
    float value = known ? WeightElement<kLayout>(p.table, id, i) * p.scale : 0.0f;
    p.out.row<T>(t)[i] = RoundTo(value, T());
  }
}

template <typename T, WeightLayout kLayout>
HEDDLE_KERNEL AddPositionsKernel(HEDDLE_PARAMS(TableParams, p)) {
  StartInTurn();
  const int t = BlockX();
  const int64_t row = static_cast<int64_t>(p.batch.positions[t]) + p.offset;
  if (row < 0 || row >= p.table.rows) return;
  T* x = p.out.row<T>(t);
  for (int64_t i = ThreadX(); i < p.table.cols; i += ThreadCount()) {
    x[i] = RoundTo(ToFloat(x[i]) + WeightElement<kLayout>(p.table, row, i), T());
  }
}

// A type that the table lacks counts as 0, as on other devices.
template <typename T, WeightLayout kLayout>
HEDDLE_KERNEL AddTokenTypesKernel(HEDDLE_PARAMS(TableParams, p)) {
  StartInTurn();
  const int t = BlockX();
  const int64_t given = p.batch.token_types == nullptr ? 0 : p.batch.token_types[t];
  const int64_t row = given < p.table.rows ? given : 0;
  T* x = p.out.row<T>(t);
  for (int64_t i = ThreadX(); i < p.table.cols; i += ThreadCount()) {
    x[i] = RoundTo(ToFloat(x[i]) + WeightElement<kLayout>(p.table, row, i), T());
  }
}

struct GatherParams {
  const int32_t* rows;  // nullptr: all, in order
  Tensor x;
  Tensor out;
};

template <typename T>
HEDDLE_KERNEL GatherKernel(HEDDLE_PARAMS(GatherParams, p)) {
  StartInTurn();
  const T* from = p.x.row<T>(p.rows == nullptr ? BlockX() : p.rows[BlockX()]);
  T* to = p.out.row<T>(BlockX());
  for (int64_t i = ThreadX(); i < p.x.cols; i += ThreadCount()) to[i] = from[i];
}

// Sums of rows: a block takes kSumColumns columns of one sum, each of its warps some of the rows,
// two columns a lane. Rows are added in an order that depends on their number alone.
constexpr int kSumWarps = 8;
constexpr int kSumColumns = 64;
constexpr int kSumUnroll = 8;  // rows on their way per warp: 8 KiB a block in 16 bits

struct SumRowsParams {
  Tensor x;
  const RowRange* ranges;
  float* out;
};

// Columns [c, c + 2) of a row, of which there may be one.
template <typename T>
HEDDLE_DEVICE Group<float, 2> TwoColumns(const Tensor& x, int64_t t, int64_t c, bool pairs) {
  const T* from = x.row<T>(t) + c;
  if (pairs) {
    const Group<T, 2> both = LoadGroup<2>(from);
    return {{ToFloat(both.item[0]), ToFloat(both.item[1])}};
  }
  return {{ToFloat(from[0]), c + 1 < x.cols ? ToFloat(from[1]) : 0.0f}};
}

template <typename T>
HEDDLE_KERNEL SumRowsKernel(HEDDLE_PARAMS(SumRowsParams, p)) {
  StartInTurn();
  SharedArena arena;
  const Shared<float> sums = arena.Take<float>(kSumWarps * kSumColumns);
  const RowRange range = p.ranges[BlockY()];
  const int64_t c = static_cast<int64_t>(BlockX()) * kSumColumns + 2 * Lane();
  const bool pairs = reinterpret_cast<uint64_t>(p.x.data) % sizeof(Group<T, 2>) == 0 &&
                     p.x.stride % 2 == 0 && c + 1 < p.x.cols;
  float sum[2] = {};
  for (int first = WarpIndex() * kSumUnroll; c < p.x.cols && first < range.num_rows;
       first += kSumWarps * kSumUnroll) {
    Group<float, 2> rows[kSumUnroll];
    HEDDLE_UNROLL
    for (int i = 0; i < kSumUnroll; ++i) {
      rows[i] = {};
      if (first + i < range.num_rows) rows[i] = TwoColumns<T>(p.x, range.row + first + i, c, pairs);
    }
    HEDDLE_UNROLL
    for (int i = 0; i < kSumUnroll; ++i) {
      sum[0] += rows[i].item[0];
      sum[1] += rows[i].item[1];
    }
  }
  sums.Set(WarpIndex() * kSumColumns + 2 * Lane(), sum[0]);
  sums.Set(WarpIndex() * kSumColumns + 2 * Lane() + 1, sum[1]);
  SyncThreads();
  const int64_t column = static_cast<int64_t>(BlockX()) * kSumColumns + ThreadX();
  if (ThreadX() >= kSumColumns || column >= p.x.cols) return;
  float total = 0;
  for (int w = 0; w < kSumWarps; ++w) total += sums.Get(w * kSumColumns + ThreadX());
  p.out[BlockY() * p.x.cols + column] = total;
}

struct ScaleParams {
  Tensor logits;
  float scale;
  float softcap;
};

HEDDLE_KERNEL ScaleLogitsKernel(HEDDLE_PARAMS(ScaleParams, p)) {
  StartInTurn();
  float* row = p.logits.row<float>(BlockY());
  int64_t i = static_cast<int64_t>(BlockX()) * ThreadCount() + ThreadX();
  if (i >= p.logits.cols) return;
  float value = row[i] * p.scale;
  row[i] = p.softcap > 0 ? p.softcap * Tanh(value / p.softcap) : value;
}

// Bytes of a head that a block copies: a snapshot of a recurrence has megabytes.
constexpr int64_t kCopiedBytes = int64_t{64} << 10;

struct CopyPageParams {
  const uint8_t* from[2];  // keys, values
  uint8_t* to[2];
  int64_t head_bytes;   // bytes of a page's positions of one head
  int64_t bytes;        // bytes to copy, from the head's start on
  int64_t scales_at;    // byte offset of the head's scales
  int64_t scale_bytes;  // bytes of scales to copy
};

template <typename Wide>
HEDDLE_DEVICE void CopyBytes(uint8_t* to, const uint8_t* from, int64_t bytes) {
  const Wide* source = reinterpret_cast<const Wide*>(from);
  Wide* target = reinterpret_cast<Wide*>(to);
  for (int64_t i = ThreadX(); i < bytes / static_cast<int64_t>(sizeof(Wide)); i += ThreadCount()) {
    target[i] = source[i];
  }
}

template <typename Wide>
HEDDLE_KERNEL CopyPageKernel(HEDDLE_PARAMS(CopyPageParams, p)) {
  StartInTurn();
  const uint8_t* from = p.from[BlockY()] + BlockX() * p.head_bytes;
  uint8_t* to = p.to[BlockY()] + BlockX() * p.head_bytes;
  const int64_t begin = BlockZ() * kCopiedBytes;
  const int64_t left = p.bytes - begin;
  CopyBytes<Wide>(to + begin, from + begin, left < kCopiedBytes ? left : kCopiedBytes);
  if (BlockZ() > 0) return;
  CopyBytes<uint8_t>(to + p.scales_at, from + p.scales_at, p.scale_bytes);
}

Error LaunchLookUp(const TableParams& params, DType act, Stream stream) {
  const LaunchShape shape = {.grid_x = params.batch.n_tokens, .threads = kThreads};
  return ForActivation(act, [&]<typename T>(T) {
    return ForLayout(params.table.layout, [&]<WeightLayout kLayout>() {
      return Launch(EmbedKernel<T, kLayout>, shape, stream, params);
    });
  });
}

}  // namespace

int FindCode() {
#if defined(HEDDLE_CUDA_EMULATE)
  return kSuccess;
#else
  cudaFuncAttributes attributes;
  const auto* kernel = reinterpret_cast<const void*>(CopyPageKernel<uint8_t>);
  return static_cast<int>(cudaFuncGetAttributes(&attributes, kernel));
#endif
}

Error LaunchEmbed(const DeviceBatch& batch, const DeviceWeight& table, float scale, Tensor out,
                  DType act, Stream stream) {
  return LaunchLookUp({batch, table, scale, /*offset=*/0, out, /*has_first_row_for_others=*/1}, act,
                      stream);
}

Error LaunchEmbedShare(const DeviceBatch& batch, const DeviceWeight& table, int32_t first_row,
                       float scale, Tensor out, DType act, Stream stream) {
  return LaunchLookUp({batch, table, scale, first_row, out}, act, stream);
}

Error LaunchAddPositions(const DeviceBatch& batch, const DeviceWeight& table, int32_t offset,
                         Tensor x, DType act, Stream stream) {
  const TableParams params = {batch, table, 1.0f, offset, x};
  const LaunchShape shape = {.grid_x = batch.n_tokens, .threads = kThreads};
  return ForActivation(act, [&]<typename T>(T) {
    return ForLayout(table.layout, [&]<WeightLayout kLayout>() {
      return Launch(AddPositionsKernel<T, kLayout>, shape, stream, params);
    });
  });
}

Error LaunchAddTokenTypes(const DeviceBatch& batch, const DeviceWeight& table, Tensor x, DType act,
                          Stream stream) {
  const TableParams params = {batch, table, 1.0f, 0, x};
  const LaunchShape shape = {.grid_x = batch.n_tokens, .threads = kThreads};
  return ForActivation(act, [&]<typename T>(T) {
    return ForLayout(table.layout, [&]<WeightLayout kLayout>() {
      return Launch(AddTokenTypesKernel<T, kLayout>, shape, stream, params);
    });
  });
}

Error LaunchGatherRows(const DeviceBatch& batch, Tensor x, Tensor out, DType act, Stream stream) {
  const GatherParams params = {batch.logit_rows, x, out};
  const LaunchShape shape = {.grid_x = batch.n_logit_rows, .threads = kThreads};
  return ForActivation(
      act, [&]<typename T>(T) { return Launch(GatherKernel<T>, shape, stream, params); });
}

Error LaunchCopyRows(Tensor x, Tensor out, DType act, Stream stream) {
  const GatherParams params = {nullptr, x, out};
  const LaunchShape shape = {.grid_x = static_cast<int>(x.rows), .threads = kThreads};
  return ForActivation(
      act, [&]<typename T>(T) { return Launch(GatherKernel<T>, shape, stream, params); });
}

Error LaunchSumRows(Tensor x, const RowRange* ranges, int32_t n_ranges, float* out, DType act,
                    Stream stream) {
  const LaunchShape shape = {.grid_x = CeilDiv(x.cols, kSumColumns),
                             .grid_y = n_ranges,
                             .threads = 32 * kSumWarps,
                             .shared_bytes = SharedBytesFor<float>(kSumWarps * kSumColumns)};
  return ForActivation(act, [&]<typename T>(T) {
    return Launch(SumRowsKernel<T>, shape, stream, SumRowsParams{x, ranges, out});
  });
}

Error LaunchScaleLogits(Tensor logits_f32, float scale, float softcap, Stream stream) {
  const LaunchShape shape = {.grid_x = CeilDiv(logits_f32.cols, 256),
                             .grid_y = static_cast<int>(logits_f32.rows),
                             .threads = 256};
  return Launch(ScaleLogitsKernel, shape, stream, ScaleParams{logits_f32, scale, softcap});
}

Error LaunchCopyPage(const KvCacheView& cache, int32_t from, int32_t to, int32_t num_tokens,
                     Stream stream) {
  const int64_t row_bytes = cache.head_dim * KvElementBytes(cache.dtype);
  auto at = [&](void* base, int32_t page) {
    return static_cast<uint8_t*>(base) + cache.PageOffset(page);
  };
  const CopyPageParams params = {.from = {at(cache.keys, from), at(cache.values, from)},
                                 .to = {at(cache.keys, to), at(cache.values, to)},
                                 .head_bytes = cache.head_bytes(),
                                 .bytes = num_tokens * row_bytes,
                                 .scales_at = cache.page_tokens * row_bytes,
                                 .scale_bytes = num_tokens * KvScaleBytes(cache.dtype)};
  const LaunchShape shape = {.grid_x = cache.n_kv_heads,
                             .grid_y = cache.keys == cache.values ? 1 : 2,
                             .grid_z = CeilDiv(params.bytes, kCopiedBytes),
                             .threads = kThreads};
  if (from == to) return kSuccess;
  // Buffers begin at multiples of 16 bytes; this tests all heads and rows.
  const bool wide = row_bytes % 16 == 0 && cache.head_bytes() % 16 == 0;
  return wide ? Launch(CopyPageKernel<Vec16>, shape, stream, params)
              : Launch(CopyPageKernel<uint8_t>, shape, stream, params);
}

}  // namespace heddle::kernels::cuda
