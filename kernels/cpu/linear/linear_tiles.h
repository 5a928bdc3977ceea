// Products of BF16 rows with BF16 panels by tiles: 16 or 32 rows of x and 32 outputs at a time, 32
// columns a step. The panels are those of BF16Panel, whose pairs of columns are what the
// instruction takes. The numerics are at AddBf16 in tiles_amx.h; they are the same for every number
// of rows, so that a row has the same bits alone and in any batch.
// REQUIRES: tiles_amx.h or tiles_plain.h included before.
#pragma once

#include <cstdint>
#include <cstring>

namespace heddle::kernels::cpu {
namespace {

constexpr int kTileColumns = 32;    // of a step: 16 pairs
constexpr int kTilePanelRows = 32;  // two registers of 16
constexpr int64_t kPairsBytes = kTilePanelRows * 4;
constexpr int64_t kStepBytes = kTileColumns / 2 * kPairsBytes;
constexpr int64_t kSumsBytes = kTilePanelRows * 4;

// Prefetches the weights of a step that is to come, so that memory's latency is hidden if one pass
// over the weights is all there is.
inline void PrefetchStep(const char* w) {
  constexpr int64_t kAhead = 8192;
  for (int64_t i = 0; i < kStepBytes; i += 64) __builtin_prefetch(w + kAhead + i);
}

// kRows: 1 to 16, or 32.
template <typename Tiles, int kRows>
class Bf16TileProduct {
 public:
  // acc [kRows][kTilePanelRows] += x W^T over `cols` columns. `panel`: BF16 [(cols + 1) / 2]
  // [kTilePanelRows][2]; `tile`: BF16 [(cols + 31) / 32][kRows][32], zeros behind the last column.
  static void Multiply(const void* panel, const void* tile, int64_t cols, float* acc) {
    const auto* w = static_cast<const char*>(panel);
    const auto* x = static_cast<const char*>(tile);
    Tiles tiles;
    tiles.template Configure<kOwn>();
    LoadSums(tiles, acc);
    for (; cols >= kTileColumns; cols -= kTileColumns, w += kStepBytes, x += kRows * kRowBytes) {
      if constexpr (kRows <= 16) PrefetchStep(w);
      Step(tiles, w, x);
    }
    if (cols > 0) {
      alignas(64) char last[kStepBytes] = {};
      std::memcpy(last, w, static_cast<size_t>((cols + 1) / 2 * kPairsBytes));
      Step(tiles, last, x);
    }
    StoreSums(tiles, acc);
    tiles.Release();
  }

 private:
  static constexpr int kRegisters = kRows > 16 ? 2 : 1;  // of rows of x
  static constexpr bool kTwo = kRegisters == 2;
  static constexpr int kOwn = kRows / kRegisters;  // rows of a register
  static constexpr int64_t kRowBytes = 64;

  static void LoadSums(Tiles& tiles, const float* acc) {
    tiles.template Load<kC>(acc, kSumsBytes);
    tiles.template Load<kC + 1>(acc + 16, kSumsBytes);
    if constexpr (kTwo) {
      tiles.template Load<kC + 2>(acc + 16 * kTilePanelRows, kSumsBytes);
      tiles.template Load<kC + 3>(acc + 16 * kTilePanelRows + 16, kSumsBytes);
    }
  }
  static void StoreSums(Tiles& tiles, float* acc) {
    tiles.template Store<kC>(acc, kSumsBytes);
    tiles.template Store<kC + 1>(acc + 16, kSumsBytes);
    if constexpr (kTwo) {
      tiles.template Store<kC + 2>(acc + 16 * kTilePanelRows, kSumsBytes);
      tiles.template Store<kC + 3>(acc + 16 * kTilePanelRows + 16, kSumsBytes);
    }
  }
  // Four sums, so that one's 52 cycles are hidden behind the others' 16 each.
  static void Step(Tiles& tiles, const char* w, const char* x) {
    tiles.template Load<kB>(w, kPairsBytes);
    tiles.template Load<kA>(x, kRowBytes);
    tiles.template AddBf16<kC, kA, kB>();
    tiles.template Load<kB + 1>(w + 64, kPairsBytes);
    tiles.template AddBf16<kC + 1, kA, kB + 1>();
    if constexpr (kTwo) {
      tiles.template Load<kA + 1>(x + 16 * kRowBytes, kRowBytes);
      tiles.template AddBf16<kC + 2, kA + 1, kB>();
      tiles.template AddBf16<kC + 3, kA + 1, kB + 1>();
    }
  }
};

}  // namespace
}  // namespace heddle::kernels::cpu
