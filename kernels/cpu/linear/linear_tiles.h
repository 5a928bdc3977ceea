// Products of BF16 rows with BF16 panels by tiles: 16 or 32 rows of x and 32 outputs at a time, 32
// columns a step. The panels are those of BF16Panel, whose pairs of columns are what the
// instruction takes. The numerics are at AddBf16 in tiles_amx.h; they are the same for every number
// of rows and for any order of the work, so that a row has the same bits alone and in any batch.
//
// Several tiles of rows are multiplied with a slice of 256 columns of a panel before the next
// slice: the slice (16 KB), the tile's part beside it (16 KB) and their sums (4 KB) stay in an L1
// of 48 KB, so that one of a step's two kilobytes each of weights and rows comes from L2. Sums go
// to L2 and back once per slice.
// REQUIRES: tiles_amx.h or tiles_plain.h included before.
#pragma once

#include <cstdint>
#include <cstring>

#include "kernels/cpu/linear_table.h"

namespace heddle::kernels::cpu {
namespace {

constexpr int kTileColumns = 32;    // of a step: 16 pairs
constexpr int kTilePanelRows = 32;  // two registers of 16
constexpr int kRegisterRows = 16;
constexpr int64_t kTileRowBytes = 64;
constexpr int64_t kPairsBytes = kTilePanelRows * 4;
constexpr int64_t kStepBytes = kTileColumns / 2 * kPairsBytes;
constexpr int64_t kSumsBytes = kTilePanelRows * 4;
constexpr int64_t kSliceColumns = 256;

// Prefetches weights that are to come, some lines a step, so that memory's latency is hidden.
class WeightsAhead {
 public:
  // `lines` a step from `at` on. kNear: to L1, for weights that are multiplied soon; otherwise to
  // L2.
  WeightsAhead(const char* at, int64_t lines, bool near) : at_(at), lines_(lines), near_(near) {}

  void Next() {
    const char* const end = at_ + lines_ * 64;
    if (near_) {
      for (; at_ < end; at_ += 64) __builtin_prefetch(at_);
    } else {
      for (; at_ < end; at_ += 64) __builtin_prefetch(at_, 0, 2);
    }
  }

 private:
  const char* at_;
  int64_t lines_;
  bool near_;
};

template <typename Tiles>
class Bf16TileProduct {
 public:
  // FormatKernels::multiply_panels. Tiles: BF16 [(cols + 31) / 32][rows][32], zeros behind the last
  // column.
  static void Multiply(const PanelProductArgs& args, TileRegisters& registers) {
    Bf16TileProduct product(args);
    const int32_t whole = args.last_rows > kRegisterRows ? args.num_tiles : args.num_tiles - 1;
    if (whole > 0) {
      product.Configure(kRegisterRows, registers);
      const bool two = whole == args.num_tiles || args.tile_rows > kRegisterRows;
      two ? product.MultiplyTiles<true>(0, whole) : product.MultiplyTiles<false>(0, whole);
    }
    if (whole < args.num_tiles) {
      product.Configure(args.last_rows, registers);
      product.MultiplyTiles<false>(whole, 1);
    }
  }

 private:
  explicit Bf16TileProduct(const PanelProductArgs& args) : args_(args) {}

  void Configure(int32_t rows, TileRegisters& registers) {
    if (registers.rows == rows) return;
    tiles_.Configure(rows);
    registers.rows = rows;
  }

  // Tiles [first, first + count), which have two registers of rows each, or one (kTwo).
  template <bool kTwo>
  void MultiplyTiles(int32_t first, int32_t count) {
    const int64_t slice = count == 1 ? args_.cols : kSliceColumns;
    for (int64_t begin = 0; begin < args_.cols; begin += slice) {
      const int64_t left = args_.cols - begin;
      const int64_t cols = left < slice ? left : slice;
      for (int32_t p = 0; p < args_.num_panels; ++p) {
        for (int32_t i = first; i < first + count; ++i) {
          WeightsAhead ahead = AheadOf(p, begin, i - first, count);
          MultiplySlice<kTwo>(p, i, begin, cols, ahead);
        }
      }
    }
  }

  const char* WeightsOf(int32_t panel, int64_t begin) const {
    return static_cast<const char*>(args_.panels) + panel * args_.panel_bytes +
           begin / 2 * kPairsBytes;
  }

  // The prefetches of the i-th of `count` tiles: a part of the panel's next slice, or of the first
  // slice of the panel that takes its place in the next call. A single tile prefetches what it
  // multiplies itself a little later.
  WeightsAhead AheadOf(int32_t panel, int64_t begin, int32_t i, int32_t count) const {
    constexpr int64_t kNear = 8192;
    constexpr int64_t kLines = kStepBytes / 64;
    const char* const from = WeightsOf(panel, begin);
    if (count == 1) return {from + kNear, kLines, /*near=*/true};
    constexpr int64_t kSliceSteps = kSliceColumns / kTileColumns;
    const bool is_last = begin + kSliceColumns >= args_.cols;
    const char* const next =
        is_last ? WeightsOf(panel + args_.num_panels, 0) : from + kSliceSteps * kStepBytes;
    const int64_t lines = (kLines + count - 1) / count;
    return {next + i * kSliceSteps * lines * 64, lines, /*near=*/false};
  }

  // sums [rows][kTilePanelRows] = or += x W^T over columns [begin, begin + cols).
  template <bool kTwo>
  void MultiplySlice(int32_t panel, int32_t tile, int64_t begin, int64_t cols,
                     WeightsAhead& ahead) {
    const int32_t rows = tile + 1 < args_.num_tiles ? args_.tile_rows : args_.last_rows;
    const int64_t step_bytes = rows * kTileRowBytes;
    const char* w = WeightsOf(panel, begin);
    const char* x = static_cast<const char*>(args_.tiles) + tile * args_.tile_bytes +
                    begin / kTileColumns * step_bytes;
    float* const sums =
        args_.sums + panel * args_.sums_stride + int64_t{tile} * args_.tile_rows * kTilePanelRows;
    begin == 0 ? ClearSums<kTwo>() : LoadSums<kTwo>(sums);
    for (; cols >= kTileColumns; cols -= kTileColumns, w += kStepBytes, x += step_bytes) {
      ahead.Next();
      Step<kTwo>(w, x);
    }
    if (cols > 0) {
      alignas(64) char last[kStepBytes] = {};
      std::memcpy(last, w, static_cast<size_t>((cols + 1) / 2 * kPairsBytes));
      Step<kTwo>(last, x);
    }
    StoreSums<kTwo>(sums);
  }

  template <bool kTwo>
  void ClearSums() {
    tiles_.template Clear<kC>();
    tiles_.template Clear<kC + 1>();
    if constexpr (kTwo) {
      tiles_.template Clear<kC + 2>();
      tiles_.template Clear<kC + 3>();
    }
  }
  template <bool kTwo>
  void LoadSums(const float* sums) {
    tiles_.template Load<kC>(sums, kSumsBytes);
    tiles_.template Load<kC + 1>(sums + 16, kSumsBytes);
    if constexpr (kTwo) {
      tiles_.template Load<kC + 2>(sums + 16 * kTilePanelRows, kSumsBytes);
      tiles_.template Load<kC + 3>(sums + 16 * kTilePanelRows + 16, kSumsBytes);
    }
  }
  template <bool kTwo>
  void StoreSums(float* sums) {
    tiles_.template Store<kC>(sums, kSumsBytes);
    tiles_.template Store<kC + 1>(sums + 16, kSumsBytes);
    if constexpr (kTwo) {
      tiles_.template Store<kC + 2>(sums + 16 * kTilePanelRows, kSumsBytes);
      tiles_.template Store<kC + 3>(sums + 16 * kTilePanelRows + 16, kSumsBytes);
    }
  }
  // Four sums, so that one's 52 cycles are hidden behind the others' 16 each.
  template <bool kTwo>
  void Step(const char* w, const char* x) {
    tiles_.template Load<kB>(w, kPairsBytes);
    tiles_.template Load<kA>(x, kTileRowBytes);
    tiles_.template AddBf16<kC, kA, kB>();
    tiles_.template Load<kB + 1>(w + 64, kPairsBytes);
    tiles_.template AddBf16<kC + 1, kA, kB + 1>();
    if constexpr (kTwo) {
      tiles_.template Load<kA + 1>(x + kRegisterRows * kTileRowBytes, kTileRowBytes);
      tiles_.template AddBf16<kC + 2, kA + 1, kB>();
      tiles_.template AddBf16<kC + 3, kA + 1, kB + 1>();
    }
  }

  const PanelProductArgs& args_;
  Tiles tiles_;
};

}  // namespace
}  // namespace heddle::kernels::cpu
