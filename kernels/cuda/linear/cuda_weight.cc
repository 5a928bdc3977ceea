#include "kernels/cuda/linear/cuda_weight.h"

#include <algorithm>
#include <atomic>
#include <functional>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include "base/status.h"
#include "kernels/block_codes.h"
#include "kernels/cuda/linear/pack_row.h"
#include "kernels/weight_sources.h"

namespace heddle::kernels::cuda {
namespace {

// Host memory through which a weight is uploaded.
constexpr int64_t kChunkBytes = int64_t{32} << 20;
constexpr int64_t kLeastRows = 16;  // fewest rows that are worth a thread

constexpr int64_t CeilDiv(int64_t n, int64_t size) { return (n + size - 1) / size; }

constexpr int64_t RoundUp(int64_t n, int64_t multiple) { return CeilDiv(n, multiple) * multiple; }

// Whether F32 activations may use `dtype` in its own layout, because its scales are F16 in the
// file.
bool IsKeptExactly(DType dtype) {
  switch (dtype) {
    case DType::kF16:
    case DType::kBF16:
    case DType::kQ8_0:
    case DType::kQ4_0:
    case DType::kQ4_1:
    case DType::kQ5_0:
    case DType::kQ5_1:
    case DType::kIQ4_NL:
      return true;
    default:
      return false;
  }
}

WeightLayout LayoutFor(DType dtype, DType activations) {
  if (activations == DType::kF32) {
    return IsKeptExactly(dtype) ? LayoutOf(dtype) : WeightLayout::kF32;
  }
  // With BF16 activations, F16 is rounded to BF16 once, here.
  const bool is_float = dtype == DType::kF32 || dtype == DType::kF16;
  return is_float ? WeightLayout::kBF16 : LayoutOf(dtype);
}

// Whether all sources have codes of the same table, and as wide groups: only then can they share a
// layout with one.
bool SameTable(std::span<const WeightSource> sources) {
  const auto is_same = [](DType a, DType b) {
    if (a == b) return true;
    const std::optional<BlockFormat> one = BlockFormatOf(a), other = BlockFormatOf(b);
    if (!one.has_value() || !other.has_value()) return false;
    const BlockTraits &x = Traits(*one), &y = Traits(*other);
    return x.values == y.values && x.bias == y.bias && LayoutOf(a) == LayoutOf(b);
  };
  return std::all_of(sources.begin(), sources.end(), [&](const WeightSource& source) {
    return is_same(source.dtype, sources[0].dtype);
  });
}

// Calls fn(begin, end) in parallel for parts of [0, count): packing 8-bit and 4-bit rows costs
// nanoseconds per weight, and files have billions. Starting a thread costs some 50 us, so each gets
// at least `least`.
void ForParts(int64_t count, int64_t least, const std::function<void(int64_t, int64_t)>& fn) {
  constexpr int64_t kMaxThreads = 16;
  const int64_t cores = std::max<int64_t>(1, std::thread::hardware_concurrency());
  const int64_t parts = std::clamp<int64_t>(count / least, 1, std::min(cores, kMaxThreads));
  std::vector<std::jthread> threads;
  for (int64_t i = 1; i < parts; ++i) {
    threads.emplace_back(fn, count * i / parts, count * (i + 1) / parts);
  }
  fn(0, count / parts);
}

// Whether every row of the source has one scale. Reads the matrix; with scales of blocks, the first
// row is enough to tell.
bool HasRowScales(const WeightSource& source) {
  const int64_t row_bytes = RowBytes(source.dtype, source.cols);
  const int64_t chunk_rows = std::max<int64_t>(1, kChunkBytes / row_bytes);
  std::vector<uint8_t> first;
  if (!HasOneScale(source, SourceRows(source, 0, 1, &first))) return false;
  std::atomic<bool> all = true;
  for (int64_t done = 0; done < source.rows && all; done += chunk_rows) {
    ForParts(std::min(chunk_rows, source.rows - done), kLeastRows, [&](int64_t begin, int64_t end) {
      std::vector<uint8_t> buffer;
      const uint8_t* rows = SourceRows(source, done + begin, end - begin, &buffer);
      for (int64_t r = 0; r < end - begin && all; ++r) {
        if (!HasOneScale(source, rows + r * row_bytes)) all = false;
      }
    });
  }
  return all;
}

// Whether the source's rows and columns have one scale for each kScaleTile of both. Reads the
// matrix; with other scales, the first rows mostly are enough to tell.
bool HasTileScales(const WeightSource& source) {
  const int64_t row_bytes = RowBytes(source.dtype, source.cols);
  const int64_t n_tiles = (source.rows + kScaleTile - 1) / kScaleTile;
  std::atomic<bool> all = true;
  auto check = [&](int64_t begin, int64_t end) {
    std::vector<uint8_t> buffer;
    for (int64_t tile = begin; tile < end && all; ++tile) {
      const int64_t count = std::min(kScaleTile, source.rows - tile * kScaleTile);
      const uint8_t* rows = SourceRows(source, tile * kScaleTile, count, &buffer);
      for (int64_t r = 0; r < count && all; ++r) {
        if (!HasScalesOf(source, rows + r * row_bytes, rows)) all = false;
      }
    }
  };
  check(0, 1);
  if (all) ForParts(n_tiles, 1, check);
  return all;
}

// Whether the tiles of scales of all sources make one grid.
bool AreTiled(std::span<const WeightSource> sources) {
  const auto all_but_last = sources.first(sources.size() - 1);
  return std::all_of(all_but_last.begin(), all_but_last.end(),
                     [](const WeightSource& s) { return s.rows % kScaleTile == 0; }) &&
         std::all_of(sources.begin(), sources.end(), HasTileScales);
}

// The same as LayoutOf, but with fewer scales if the values allow it.
WeightLayout BestLayoutOf(std::span<const WeightSource> sources, DType activations) {
  const WeightLayout layout = LayoutOf(sources, activations);
  const std::optional<WeightLayout> per_row = PerRowLayout(layout);
  if (per_row && std::all_of(sources.begin(), sources.end(), HasRowScales)) return *per_row;
  const std::optional<WeightLayout> tiled = TiledLayout(layout);
  return tiled && AreTiled(sources) ? *tiled : layout;
}

// Host copies of some packed rows.
struct Chunk {
  std::vector<uint8_t> data;
  std::vector<uint16_t> scales;
  std::vector<float> factors;
  std::vector<float> tiles;  // for tiles that begin with one of the rows

  // Packs rows [first, first + count) of the source, which are rows [done, ...) of the device's.
  void Pack(const WeightSource& source, int64_t first, int64_t count, int64_t done,
            const DeviceWeight& layout) {
    data.assign(static_cast<size_t>(count * layout.row_bytes), 0);
    scales.assign(static_cast<size_t>(count * layout.scales_stride), 0);
    factors.assign(static_cast<size_t>(count), 1.0f);
    const int64_t first_tile = CeilDiv(done, kScaleTile);
    const int64_t n_tiles = CeilDiv(done + count, kScaleTile) - first_tile;
    tiles.assign(static_cast<size_t>(n_tiles * layout.tiles_stride), 0.0f);
    const int64_t source_bytes = RowBytes(source.dtype, source.cols);
    ForParts(count, kLeastRows, [&](int64_t begin, int64_t end) {
      std::vector<uint8_t> buffer;
      const uint8_t* rows = SourceRows(source, first + begin, end - begin, &buffer);
      for (int64_t r = begin; r < end; ++r) {
        PackRow(source, rows + (r - begin) * source_bytes, layout,
                data.data() + r * layout.row_bytes, scales.data() + r * layout.scales_stride,
                &factors[static_cast<size_t>(r)]);
        if (tiles.empty() || (done + r) % kScaleTile != 0) continue;
        const int64_t tile = (done + r) / kScaleTile - first_tile;
        PackTileScales(source, rows + (r - begin) * source_bytes,
                       tiles.data() + tile * layout.tiles_stride);
      }
    });
  }

  // Sends the chunk to rows [done, ...) of the device's.
  absl::Status Send(Runtime& runtime, const DeviceWeight& layout, int64_t done) const {
    auto copy = [&](const void* to, const auto& from) {
      return runtime.CopyToDevice(const_cast<void*>(to), from.data(),
                                  static_cast<int64_t>(from.size() * sizeof(from[0])));
    };
    HEDDLE_RETURN_IF_ERROR(copy(layout.data + done * layout.row_bytes, data));
    if (!scales.empty()) {
      HEDDLE_RETURN_IF_ERROR(copy(layout.scales + done * layout.scales_stride, scales));
    }
    if (layout.row_factors != nullptr) {
      HEDDLE_RETURN_IF_ERROR(copy(layout.row_factors + done, factors));
    }
    if (!tiles.empty()) {
      const int64_t first_tile = CeilDiv(done, kScaleTile);
      HEDDLE_RETURN_IF_ERROR(copy(layout.tile_scales + first_tile * layout.tiles_stride, tiles));
    }
    return runtime.Synchronize();
  }
};

// Packs and uploads all rows, a chunk at a time.
absl::Status Upload(Runtime& runtime, std::span<const WeightSource> sources,
                    const DeviceWeight& layout) {
  const int64_t chunk_rows = std::max<int64_t>(1, kChunkBytes / layout.row_bytes);
  Chunk chunk;
  int64_t done = 0;
  for (const WeightSource& source : sources) {
    for (int64_t first = 0; first < source.rows; first += chunk_rows) {
      const int64_t count = std::min(chunk_rows, source.rows - first);
      chunk.Pack(source, first, count, done, layout);
      HEDDLE_RETURN_IF_ERROR(chunk.Send(runtime, layout, done));
      done += count;
    }
  }
  return absl::OkStatus();
}

}  // namespace

WeightLayout LayoutOf(std::span<const WeightSource> sources, DType activations) {
  const WeightLayout floats = activations == DType::kF32 ? WeightLayout::kF32 : WeightLayout::kBF16;
  const bool same_table = SameTable(sources);
  // Tables of integers meet others as the integers that they are.
  const auto own = [&](const WeightSource& source) {
    const WeightLayout layout = LayoutFor(source.dtype, activations);
    const bool keeps = !HasTable(layout) || same_table;
    return keeps ? layout : LayoutOfIntegers(source.dtype);
  };
  WeightLayout layout = own(sources[0]);
  for (const WeightSource& source : sources) {
    if (!source.column_order.empty()) return floats;
    layout = Join(layout, own(source));
    if (layout == WeightLayout::kF32) return floats;
  }
  return layout;
}

int64_t PackedRowBytes(DType dtype, int64_t cols, DType activations) {
  const WeightLayout layout = LayoutFor(dtype, activations);
  const DeviceWeight row = PackedLayout(layout, 1, cols);
  const bool coded = TraitsOf(layout).is_coded();
  return row.row_bytes + row.scales_stride * 2 + (coded ? int64_t{sizeof(float)} : 0);
}

absl::StatusOr<std::unique_ptr<PackedWeight>> PackWeight(Runtime& runtime,
                                                         std::span<const WeightSource> sources,
                                                         DType activations) {
  HEDDLE_ASSIGN_OR_RETURN(const StackedShape shape, CheckSources(sources));
  auto weight = std::make_unique<CudaWeight>(runtime);
  weight->view = PackedLayout(BestLayoutOf(sources, activations), shape.rows, shape.cols);
  if (HasTable(weight->view.layout)) SetTable(sources[0].dtype, &weight->view);
  weight->view.takes_int8_x = std::all_of(sources.begin(), sources.end(),
                                          [](const WeightSource& s) { return s.takes_int8_x; });
  const LayoutTraits traits = TraitsOf(weight->view.layout);
  const bool has_factors = traits.is_coded() && !traits.is_tiled;
  const int64_t scales_at = RoundUp(shape.rows * weight->view.row_bytes, 256);
  const int64_t factors_at = scales_at + shape.rows * weight->view.scales_stride * 2;
  const int64_t tiles = CeilDiv(shape.rows, kScaleTile) * weight->view.tiles_stride;
  const int64_t bytes =
      factors_at + ((has_factors ? shape.rows : 0) + tiles) * int64_t{sizeof(float)};
  HEDDLE_ASSIGN_OR_RETURN(weight->memory, runtime.AllocateDevice(bytes));
  weight->rows = shape.rows;
  weight->cols = shape.cols;
  weight->bytes = bytes;
  const auto* base = static_cast<const uint8_t*>(weight->memory);
  weight->view.data = base;
  weight->view.scales = reinterpret_cast<const uint16_t*>(base + scales_at);
  const auto* floats = reinterpret_cast<const float*>(base + factors_at);
  if (has_factors) weight->view.row_factors = floats;
  if (traits.is_tiled) weight->view.tile_scales = floats;
  HEDDLE_RETURN_IF_ERROR(Upload(runtime, sources, weight->view));
  return std::unique_ptr<PackedWeight>(std::move(weight));
}

}  // namespace heddle::kernels::cuda
