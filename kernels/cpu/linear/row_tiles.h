// The rows of x in the form that a weight's kernels read: tiles of several rows (linear_table.h).
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>

#include "absl/container/inlined_vector.h"
#include "kernels/cpu/linear/column_ranges.h"
#include "kernels/cpu/linear_table.h"
#include "kernels/cpu/scratch.h"
#include "kernels/cpu/thread_pool.h"
#include "kernels/tensor.h"

namespace heddle::kernels::cpu {

// The rows of x as tiles of one kind: all of the same size except the last, which takes the
// smallest size that holds the rest.
struct Tiles {
  const TileKernels* kernels;
  TileKind kind;
  int64_t rows;
  int32_t tile_rows;   // except in the last tile
  int64_t tile_bytes;  // of such a tile
  const char* data;
  // Where a weight's ranges of columns begin in a tile, for each of tile_rows.
  absl::InlinedVector<int64_t, 8> range_bytes;

  int64_t count() const { return (rows + tile_rows - 1) / tile_rows; }
  int32_t RowsOf(int64_t tile) const {
    return static_cast<int32_t>(std::min<int64_t>(tile_rows, rows - tile * tile_rows));
  }
  int32_t SizeIndexOf(int64_t tile) const;
  // A range of a tile; the last tile has them at the same places.
  const char* DataOf(int64_t tile, size_t range) const {
    return data + tile * tile_bytes + tile_rows * range_bytes[range];
  }
};

// Bytes of so many columns of a tile.
int64_t TileBytes(TileKind kind, int64_t tile_rows, int64_t cols);

// Tiles without memory.
Tiles TilesFor(TileKind kind, int64_t rows, std::span<const ColumnRange> ranges,
               const TileKernels& kernels);

// Tiles of the rows of x, which hold the ranges of columns one behind the other, each as if there
// were no others. They lie in `scratch`, or are x itself.
Tiles PrepareTiles(TileKind kind, const Tensor& x, std::span<const ColumnRange> ranges,
                   const TileKernels& kernels, ThreadPool& pool, Scratch& scratch);

}  // namespace heddle::kernels::cpu
