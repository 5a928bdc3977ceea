#include "kernels/cpu/linear/row_tiles.h"
#include <algorithm>

namespace heddle::kernels::cpu {
namespace {

// The smallest size that holds `rows`, which are no more than the largest holds.
int32_t SizeIndex(const TileKernels& kernels, int64_t rows) {
  int32_t index = 0;
  while (kernels.sizes[index] < rows) ++index;
  return index;
}

// As few tiles as possible, of about equal sizes: a small one takes almost as long as a larger one.
int32_t TileRows(const TileKernels& kernels, int64_t rows) {
  if (rows >= kernels.many.from) return kernels.many.tile_rows;
  const int64_t largest = kernels.sizes[kernels.num_sizes - 1];
  const int64_t num_tiles = (rows + largest - 1) / largest;
  return kernels.sizes[SizeIndex(kernels, (rows + num_tiles - 1) / num_tiles)];
}

}  // namespace

int32_t Tiles::SizeIndexOf(int64_t tile) const {
  const int32_t least = count() > 1 ? kernels->least_of_several : 1;
  return SizeIndex(*kernels, std::max(RowsOf(tile), least));
}

int64_t TileBytes(TileKind kind, int64_t tile_rows, int64_t cols) {
  switch (kind) {  // the layouts are at TileKind
    case TileKind::kFloat:
      return tile_rows * cols * 4;
    case TileKind::kInt8:
      return tile_rows * (cols / 32) * 40;
    case TileKind::kBf16:
      return tile_rows * ((cols + 1) / 2) * 4;
    case TileKind::kBf16Rows:
      return tile_rows * ((cols + 31) / 32) * 64;
    case TileKind::kInt8Shared:
      return tile_rows * ((cols / 32) * 48 + (cols + 255) / 256 * 52);
    case TileKind::kInt8Sums16:
      return tile_rows * ((cols / 32) * 56 + (cols + 255) / 256 * 52);
    case TileKind::kInt8Pairs:
      return tile_rows * (cols / 32) * 56;
  }
  return 0;
}

Tiles TilesFor(TileKind kind, int64_t rows, std::span<const ColumnRange> ranges,
               const TileKernels& kernels) {
  Tiles tiles{&kernels, kind, rows, TileRows(kernels, rows), 0, nullptr, {}};
  int64_t row_bytes = 0;
  for (const ColumnRange& range : ranges) {
    tiles.range_bytes.push_back(row_bytes);
    row_bytes += TileBytes(kind, 1, range.cols);
  }
  tiles.tile_bytes = tiles.tile_rows * row_bytes;
  return tiles;
}

Tiles PrepareTiles(TileKind kind, const Tensor& x, std::span<const ColumnRange> ranges,
                   const TileKernels& kernels, ThreadPool& pool, Scratch& scratch) {
  Tiles tiles = TilesFor(kind, x.rows, ranges, kernels);
  if (kind == TileKind::kFloat && x.rows == 1) {  // a tile of one row is the row
    tiles.data = reinterpret_cast<const char*>(x.row<float>(0));
    return tiles;
  }
  auto* data = static_cast<char*>(scratch.Get(tiles.tile_bytes * tiles.count()));
  tiles.data = data;
  pool.ForRange(tiles.count(), static_cast<double>(tiles.tile_bytes) / 4,
                [&](int64_t begin, int64_t end, int32_t) {
                  for (int64_t i = begin; i < end; ++i) {
                    const int32_t size = kernels.sizes[tiles.SizeIndexOf(i)];
                    const float* rows = x.row<float>(i * tiles.tile_rows);
                    char* tile = data + i * tiles.tile_bytes;
                    for (size_t r = 0; r < ranges.size(); ++r) {
                      kernels.prepare(rows + ranges[r].begin, x.stride, tiles.RowsOf(i), size,
                                      ranges[r].cols,
                                      tile + tiles.tile_rows * tiles.range_bytes[r]);
                    }
                  }
                });
  return tiles;
}

}  // namespace heddle::kernels::cpu
