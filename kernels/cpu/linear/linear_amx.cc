// BF16 weights by tiles, with AMX, which has many times the rate of dot products of pairs.
// Activations are rounded to BF16 (nearest even, denormals to zero) once per tile of rows.
#include "kernels/cpu/vec/vec_avx512.h"

#include "kernels/cpu/vec/vec_math.h"

#include "kernels/cpu/linear/linear_float.h"

#include "kernels/cpu/tiles_amx.h"

#include "kernels/cpu/linear/linear_tiles.h"

namespace heddle::kernels::cpu {
namespace {

static_assert(kTilePanelRows == kPanelRows);

// 32 neighbouring columns of a row, rounded.
inline __m512i RoundedColumns(const float* x) {
  return reinterpret_cast<__m512i>(_mm512_cvtne2ps_pbh(Load(x + kLanes), Load(x)));
}

// Writes one row of x to its rows of 64 bytes in a tile, `step` bytes apart.
inline void WriteRow(const float* row, int64_t cols, int64_t step, char* out) {
  for (; cols >= kTileColumns; cols -= kTileColumns, row += kTileColumns, out += step) {
    _mm512_storeu_si512(out, RoundedColumns(row));
  }
  if (cols == 0) return;
  float last[kTileColumns] = {};
  std::memcpy(last, row, static_cast<size_t>(cols) * sizeof(float));
  _mm512_storeu_si512(out, RoundedColumns(last));
}

void PrepareRows(const float* x, int64_t stride, int32_t rows, int32_t tile_rows, int64_t cols,
                 void* tile) {
  auto* out = static_cast<char*>(tile);
  const int64_t step = int64_t{tile_rows} * 64;
  if (rows < tile_rows) {
    const int64_t steps = (cols + kTileColumns - 1) / kTileColumns;
    std::memset(out, 0, static_cast<size_t>(steps * step));
  }
  for (int32_t m = 0; m < rows; ++m) WriteRow(x + m * stride, cols, step, out + int64_t{m} * 64);
}

void FinishTiles(const EpilogueArgs& args, int64_t row, int64_t column, const OutputTiles& to) {
  static_assert(kPanelRows == kTileColumns);
  const EpilogueArgs own = args;  // which no store can change
  int64_t tile = row / to.tile_rows;
  int64_t r = row % to.tile_rows;
  for (int32_t m = 0; m < own.rows; ++m) {
    const int64_t rows = tile + 1 < to.num_tiles ? to.tile_rows : to.last_rows;
    char* const at =
        to.tiles + tile * to.tile_bytes + (column / kTileColumns * rows + r) * kTileRowBytes;
    const Vec low = OutputOf(own, m, 0, kLanes);
    const Vec high = OutputOf(own, m, kLanes, kLanes);
    _mm512_storeu_si512(at, reinterpret_cast<__m512i>(_mm512_cvtne2ps_pbh(high, low)));
    if (++r < to.tile_rows) continue;
    r = 0;
    ++tile;
  }
}

void ReleaseTiles() { AmxTiles().Release(); }

// Half of the peak, and some twenty times the rate of dot products of pairs.
constexpr double kMacsPerNs = 700;

constexpr FormatKernels MakeTiles() {
  FormatKernels format = {
      TileKind::kBf16Rows, BF16Panel::Bytes, BF16Panel::Pack, BF16Panel::Unpack, {}};
  format.multiply_panels = Bf16TileProduct<AmxTiles>::Multiply;
  format.macs_per_ns = kMacsPerNs;
  return format;
}

constexpr TileKernels MakeRows() {
  TileKernels tile = {6, {1, 2, 4, 8, 16, 32}, PrepareRows};
  tile.least_of_several = kRegisterRows;
  return tile;
}

}  // namespace

extern const Bf16TileKernels kBf16TilesAmx;
const Bf16TileKernels kBf16TilesAmx = {MakeRows(), MakeTiles(), ReleaseTiles, FinishTiles};

}  // namespace heddle::kernels::cpu
