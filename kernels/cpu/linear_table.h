// The interface of an instruction set's linear kernels: plain types and function pointers only.
//
// Weights are stored in panels: `panel_rows` consecutive rows of W interleaved, so that one vector
// holds the same k of consecutive rows and an output element is one lane, summed over k in order.
// The order of sums is the same in every kernel of a format: an output does not depend on which
// other rows of x were computed with it. Activations are prepared as tiles of rows of x.
#pragma once

#include <cstdint>
#include <limits>

#include "kernels/block_format.h"
#include "kernels/cpu/tile_registers.h"

namespace heddle::kernels::cpu {

// The layout of rows of x for a weight format.
enum class TileKind : uint8_t {
  kFloat,       // F32 [cols][tile_rows]
  kInt8,        // per block of 32 columns: int8 [tile_rows][32], F32 scale [tile_rows], int32 sum
                // [tile_rows], which is -128 times the sum of the block's int8
  kBf16,        // BF16 [(cols + 1) / 2][tile_rows][2]: neighbouring columns of a row side by side
  kBf16Rows,    // BF16 [(cols + 31) / 32][tile_rows][32]; columns behind the last are zero
  kInt8Shared,  // per 256 columns a group of eight blocks with scales base * 2^e:
                //   F32 base [tile_rows], int32 [12][tile_rows]: pairs of int16 sums, see
                //   linear_shared.h
                // and per block of 32 columns int8 [tile_rows][32], int32 [tile_rows]: e at the
                // place that F32 has it, int32 sums [tile_rows][2] of either half, F32 [tile_rows]:
                // sum * 2^e
  kInt8Sums16,  // the same groups and blocks with other sums, see sums16.h
  kInt8Pairs,   // per block of 32 columns and row int8 [32], int32 [4]: pairs of int16 sums, int32
                // sum, F32 scale; see pairs_tile.h
};

constexpr int32_t kMaxTileSizes = 6;

// From `from` rows on, tiles have `tile_rows` each. Larger ones would take fewer passes over the
// weights, but their arithmetic is slower.
struct ManyRows {
  int32_t from = std::numeric_limits<int32_t>::max();
  int32_t tile_rows = 0;  // one of the sizes
};

struct TileKernels {
  int32_t num_sizes;
  int32_t sizes[kMaxTileSizes];  // rows, ascending
  // Prepares rows [0, rows) of x as a tile of tile_rows >= rows; missing rows are zero.
  void (*prepare)(const float* x, int64_t stride, int32_t rows, int32_t tile_rows, int64_t cols,
                  void* tile);
  ManyRows many;  // with fewer rows, there are as few tiles as possible
  // The least size of the last of several tiles.
  int32_t least_of_several = 1;
};

// Weights that come after those of a product. It prefetches them, evenly over its columns, since
// memory would otherwise be idle during the arithmetic. Beyond a weight's end that has no effect.
struct WeightsAhead {
  const uint8_t* at;
  int64_t bytes;
};

// Rows of x as tiles, and panels one behind the other, for FormatKernels::multiply_panels.
struct PanelProductArgs {
  const void* panels;
  int64_t panel_bytes;
  int32_t num_panels;
  const void* tiles;  // [num_tiles], tile_bytes apart
  int64_t tile_bytes;
  int32_t num_tiles;
  int32_t tile_rows;  // of all but the last
  int32_t last_rows;  // of the last: one of TileKernels::sizes
  int64_t cols;
  float* sums;  // [rows of all tiles][panel_rows] for each panel, sums_stride floats apart
  int64_t sums_stride;
};

// One row of x times two panels.
struct RowPairArgs {
  const void* panels[2];
  const void* tile;  // of one row
  int64_t cols;
  float* sums[2];  // [panel_rows] each
  // From where weights are used to where they are prefetched then, in bytes; behind the end of the
  // panels `skipped` more, since the next pair begins two panels on.
  int64_t ahead;
  int64_t skipped;
};

// One weight format. All panels are multiples of 64 bytes.
struct FormatKernels {
  TileKind tile;
  int64_t (*panel_bytes)(int64_t cols);
  // Interleaves rows [0, rows) of a checkpoint matrix; missing rows are zero.
  void (*pack)(const void* source, int64_t row_bytes, int32_t rows, int64_t cols, void* panel);
  // Decodes one row of a panel.
  void (*unpack)(const void* panel, int32_t row, int64_t cols, float* out);
  // acc [tile_rows][panel_rows] += x W^T, indexed by the tile's size in TileKernels::sizes. Ranges
  // of columns that begin and end at multiples of 256 may be multiplied separately: consecutive
  // ranges give the same bits as the whole.
  void (*multiply[kMaxTileSizes])(const void* panel, const void* tile, int64_t cols, float* acc,
                                  WeightsAhead ahead);
  // Decodes a range once for many tiles, if there are expand_tiles or more: expand writes
  // expanded_bytes(cols), and multiply_expanded gives the bits of multiply with it. 0: never.
  int32_t expand_tiles = 0;
  int64_t (*expanded_bytes)(int64_t cols) = nullptr;
  void (*expand)(const void* panel, int64_t cols, void* out) = nullptr;
  void (*multiply_expanded[kMaxTileSizes])(const void* expanded, const void* tile, int64_t cols,
                                           float* acc, WeightsAhead ahead) = {};
  // Takes the place of multiply and multiply_expanded if it is not nullptr: sums = x W^T. It sets
  // up registers that LinearKernels::release_tiles releases.
  void (*multiply_panels)(const PanelProductArgs& args, TileRegisters& registers) = nullptr;
  // sums += x W^T with multiply's bits, where one row with one panel has fewer chains of additions
  // than hide their latency. nullptr: one panel has enough.
  void (*multiply_row_pair)(const RowPairArgs& args) = nullptr;
  // Multiply-adds per nanosecond of one core, approximately: to decide how many threads to wake.
  double macs_per_ns = 50;
};

// The values are those of kernels::Activation and kernels::Epilogue.
enum class ActivationCode : uint8_t {
  kNone,
  kSilu,
  kGelu,
  kGeluTanh,
  kRelu,
  kRelu2,
  kClampedSwiglu
};

struct EpilogueArgs {
  const float* acc;      // [rows][panel_rows]
  const float* acc_up;   // the same for the second factor of a gated product, or nullptr
  const float* bias;     // [cols] or nullptr
  const float* bias_up;  // [cols] or nullptr
  ActivationCode activation;
  bool add;  // out += instead of out =
  int32_t rows;
  int32_t cols;  // <= panel_rows
  float* out;
  int64_t out_stride;
};

// Outputs as tiles of kBf16Rows, for the only product that reads them.
struct OutputTiles {
  char* tiles;  // [num_tiles], tile_bytes apart
  int64_t tile_bytes;
  int64_t num_tiles;
  int32_t tile_rows;  // of all but the last
  int32_t last_rows;
};

// Kernels of the formats in block_format.h.
struct BlockKernels {
  TileKernels shared_tile;                  // of kInt8Shared or kInt8Sums16
  FormatKernels formats[kNumBlockFormats];  // by BlockFormat
};

struct LinearKernels {
  int32_t panel_rows;
  TileKernels tiles[2];      // of kFloat, and of kInt8 or kInt8Pairs; others are in BlockKernels
  FormatKernels formats[5];  // by DType; the others are in BlockKernels
  void (*epilogue)(const EpilogueArgs& args);
  // before += newest, and newest = 0. REQUIRES: count is whole rows of panels.
  void (*join)(int64_t count, float* newest, float* before);
  const BlockKernels* blocks;
  TileKernels bf16_tile;       // of kBf16, if the level has it
  TileKernels bf16_rows_tile;  // of kBf16Rows, likewise
  // Releases TileRegisters; nullptr if no format has any.
  void (*release_tiles)() = nullptr;
  // epilogue with outputs from row `row` and column `column`, a multiple of 32, on in tiles in
  // place of args.out. nullptr: the level has no such tiles. REQUIRES: args.cols is 32.
  void (*finish_tiles)(const EpilogueArgs& args, int64_t row, int64_t column,
                       const OutputTiles& to) = nullptr;
  // How far ahead of their use products of one tile of few rows ask for weights, in bytes.
  int64_t few_rows_ahead = 4096;
};

// Replaces the exact BF16 kernels if the processor has dot products of BF16 pairs.
struct Bf16DotKernels {
  TileKernels tile;
  FormatKernels format;
};

// The same if it multiplies BF16 by tiles.
struct Bf16TileKernels {
  TileKernels tile;
  FormatKernels format;
  void (*release)();
  void (*finish)(const EpilogueArgs& args, int64_t row, int64_t column, const OutputTiles& to);
};

// Replaces the kernels of blocked formats whose codes are floats.
struct Bf16BlockKernels {
  FormatKernels f8_g32;
  FormatKernels f8_g128;
  FormatKernels nf4;
  FormatKernels fp4;
};

// Replaces the int8 kernels if the processor has AVX2's vectors and VNNI.
struct Int8DotKernels {
  TileKernels tile;
  FormatKernels q8_0;
  FormatKernels q4_0;
  const BlockKernels* blocks;
};

}  // namespace heddle::kernels::cpu
