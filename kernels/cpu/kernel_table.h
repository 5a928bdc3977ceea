// The interface of an instruction set's kernel sources: tables of function pointers, chosen once at
// start. Plain types only; the kernel sources include nothing else of ours.
//
// Weights are stored in panels: `panel_rows` consecutive rows of W interleaved, so that one vector
// holds the same k of consecutive rows and an output element is one lane, summed over k in order.
// That order is the same in every kernel of a format: an output does not depend on which other rows
// of x were computed with it. Activations are prepared as tiles of rows of x.
#pragma once

#include <cstdint>

#include "kernels/block_format.h"
#include "kernels/cpu/recurrence_table.h"

namespace heddle::kernels::cpu {

// The layout of rows of x for a weight format.
enum class TileKind : uint8_t {
  kFloat,       // F32 [cols][tile_rows]
  kInt8,        // per block of 32 columns: int8 [tile_rows][32], F32 scale [tile_rows], int32 sum
                // [tile_rows], which is -128 times the sum of the block's int8
  kBf16,        // BF16 [(cols + 1) / 2][tile_rows][2]: neighbouring columns of a row side by side
  kInt8Shared,  // per 256 columns a group of eight blocks with scales base * 2^e:
                //   F32 base [tile_rows], int32 [12][tile_rows]: pairs of int16 sums, see
                //   linear_shared.h
                // and per block of 32 columns int8 [tile_rows][32], int32 [tile_rows]: e at the
                // place that F32 has it, int32 sums [tile_rows][2] of either half, F32 [tile_rows]:
                // sum * 2^e
};

constexpr int32_t kMaxTileSizes = 6;

struct TileKernels {
  int32_t num_sizes;
  int32_t sizes[kMaxTileSizes];  // rows, ascending
  // Prepares rows [0, rows) of x as a tile of tile_rows >= rows; missing rows are zero.
  void (*prepare)(const float* x, int64_t stride, int32_t rows, int32_t tile_rows, int64_t cols,
                  void* tile);
  // The size of tiles for prompts' numbers of rows (linear.cc); 0: the largest.
  int32_t size_of_many = 0;
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
  void (*multiply[kMaxTileSizes])(const void* panel, const void* tile, int64_t cols, float* acc);
  // Decodes a range once for many tiles, if there are expand_tiles or more: expand writes
  // expanded_bytes(cols), and multiply_expanded gives the bits of multiply with it. 0: never.
  int32_t expand_tiles = 0;
  int64_t (*expanded_bytes)(int64_t cols) = nullptr;
  void (*expand)(const void* panel, int64_t cols, void* out) = nullptr;
  void (*multiply_expanded[kMaxTileSizes])(const void* expanded, const void* tile, int64_t cols,
                                           float* acc) = {};
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

// Kernels of the formats in block_format.h.
struct BlockKernels {
  TileKernels shared_tile;                  // of kInt8Shared
  FormatKernels formats[kNumBlockFormats];  // by BlockFormat
};

struct LinearKernels {
  int32_t panel_rows;
  TileKernels tiles[2];      // of kFloat and kInt8; kInt8Shared's is in BlockKernels
  FormatKernels formats[5];  // by DType; the others are in BlockKernels
  void (*epilogue)(const EpilogueArgs& args);
  const BlockKernels* blocks;
  TileKernels bf16_tile;  // of kBf16, if the level has it
};

// Replaces the exact BF16 kernels if the processor multiplies BF16 itself.
struct Bf16DotKernels {
  TileKernels tile;
  FormatKernels format;
};

// Replaces the kernels of blocked formats whose codes are floats.
struct Bf16BlockKernels {
  FormatKernels f8_g32;
  FormatKernels f8_g128;
  FormatKernels nf4;
};

// Replaces the int8 kernels if the processor has AVX2's vectors and VNNI.
struct Int8DotKernels {
  TileKernels tile;
  FormatKernels q8_0;
  FormatKernels q4_0;
  const BlockKernels* blocks;
};

// Element types of the KV cache, as kernels/kv_cache.h describes them, and of adapters.
enum class KvType : uint8_t { kF32, kF16, kBF16, kInt8, kF8E4M3 };

struct NormRowArgs {
  const float* x;   // [dim]
  float* residual;  // [dim] or nullptr
  const float* weight;
  const float* bias;
  float eps;
  float weight_offset;
  bool layer;  // mean and variance instead of mean square
  int64_t dim;
  float* out;
};

struct RotateArgs {
  float* heads;  // [n_heads, head_dim]
  int32_t n_heads;
  int32_t head_dim;
  const float* norm;  // [head_dim] or nullptr
  float norm_eps;
  float norm_weight_offset;
  const float* cos_sin;  // [2, rotary_dim / 2] or nullptr
  int32_t rotary_dim;
  bool interleaved;
};

// out[r * out_stride + j] = scale * the sum over i of w[j][i] * x[r][i], for rank rows j and rows
// r. The order of a sum depends on n alone. `type`: kF32, kF16 or kBF16.
struct AdapterShrinkArgs {
  KvType type;
  const void* const* w;  // [num_ranks] rows of n elements
  int32_t num_ranks;
  const float* const* x;  // [num_rows] rows of n
  int32_t num_rows;
  int64_t n;
  float scale;
  float* out;
  int64_t out_stride;
};

// out[r * out_stride + i] = the sum over j of s[r * s_stride + j] * w[j][column + i], for rows r
// and i < n. The order of a sum depends on num_ranks alone.
struct AdapterExpandArgs {
  KvType type;
  const void* const* w;  // [num_ranks]
  int32_t num_ranks;
  const float* s;
  int64_t s_stride;
  int32_t num_rows;
  int64_t column;
  int32_t n;
  float* out;
  int64_t out_stride;
};

// The sum of parts as a binary tree: the lower half of them, a power of two, and the rest first.
// out = sum + bias, or out += sum + bias.
struct SumPartsArgs {
  const float* const* parts;  // [num_parts] of [dim]
  int32_t num_parts;          // 0: the sum is 0
  const float* bias;          // [dim] or nullptr
  bool add;
  int64_t dim;
  float* out;
};

// out = gate * (bias + the sum over j of weight[j] * inputs[j]), the first term first.
struct ConvRowArgs {
  const float* const* inputs;  // [taps] of [dim]; nullptr: zeros
  const float* weight;         // [taps, dim]
  const float* bias;           // [dim] or nullptr
  const float* gate;           // [dim]
  int32_t taps;
  int64_t dim;
  float* out;
};

struct RowKernels {
  void (*norm)(const NormRowArgs& args);
  void (*rotate)(const RotateArgs& args);
  // Converts one row of the cache. `scale`, F32 at any alignment, is written for kInt8 only.
  void (*to_kv)(KvType type, const float* x, int32_t n, void* out, void* scale);
  void (*scale)(float* x, int64_t n, float scale, float softcap);  // softcap 0: none
  // Writes x to out, with NaN as -infinity; returns the maximum.
  float (*copy_logits)(const float* x, int64_t n, float* out);
  // out[i] = exp((x[i] - max) * inv_temperature), possibly in place; returns the sum. `out` may be
  // nullptr. REQUIRES: no NaN, max finite.
  double (*exp_sum)(const float* x, int64_t n, float max, float inv_temperature, float* out);
  void (*adapter_shrink)(const AdapterShrinkArgs& args);
  void (*adapter_expand)(const AdapterExpandArgs& args);
  void (*sum_parts)(const SumPartsArgs& args);
  void (*multiply)(const float* a, const float* b, int64_t n, float* out);  // out = a * b
  void (*conv)(const ConvRowArgs& args);
};

// One run of consecutive positions in one page.
struct KeyRun {
  const void* keys;          // [num_tokens, head_dim] of the KV head
  const void* values;        // the same
  const void* key_scales;    // [num_tokens] F32 at any alignment, of kInt8 only
  const void* value_scales;  // the same
  int32_t num_tokens;
};

// Queries [num_queries] that read one KV head, over the positions [begin, end) of the context,
// which are within one chunk of kChunkTokens. Query q sees [lower[q], upper[q]) of them.
// Accumulates into max, sum and acc, which start at -infinity, 0 and 0.
struct AttendArgs {
  KvType type;
  const KeyRun* runs;  // consecutive, the first starting at position `begin`
  int32_t begin;       // multiple of kBlockTokens
  int32_t end;
  // The positions that the thread will probably read next, which are prefetched while the last
  // blocks here are computed. Same form as `runs`; ahead_tokens may be 0.
  const KeyRun* ahead;
  int32_t ahead_tokens;
  int32_t head_dim;
  int32_t padded_dim;           // head_dim rounded up to a multiple of kMaxLanes
  int32_t num_queries;          // <= kMaxQueries
  const float* const* queries;  // [num_queries] rows of head_dim
  float scale;                  // factor of the queries
  const int32_t* lower;         // ascending with the query, as `upper`
  const int32_t* upper;
  const uint64_t* tree;  // [num_queries] or nullptr: query q sees position tree_begin + j only if
                         // bit j of tree[q] is set
  int32_t tree_begin;    // positions before it are not restricted
  float softcap;
  float* max;      // [num_queries]
  float* sum;      // [num_queries]
  float* acc;      // [num_queries rounded up to a multiple of 8, padded_dim]; the rest is undefined
  float* scratch;  // AttendScratchFloats(padded_dim)
};

// Keys are handled in blocks that start at multiples of 32 positions of the context, and partial
// results in chunks of 512. They are fixed by position, so that neither the batch, nor the chunking
// of a prompt, nor the pages, nor the number of threads changes a bit of the result.
constexpr int32_t kBlockTokens = 32;
constexpr int32_t kChunkTokens = 512;
constexpr int32_t kMaxQueries = 64;
constexpr int32_t kMaxLanes = 16;

// Blocks that may be prefetched before they are computed.
constexpr int32_t kMaxBlocksAhead = 1;

constexpr int64_t AttendScratchFloats(int64_t padded_dim) {
  return padded_dim * (3 * kBlockTokens + kMaxQueries) + 2 * kMaxQueries * kBlockTokens;
}

struct AttentionKernels {
  void (*attend)(const AttendArgs& args);
  // Merges (max, sum, acc) of a chunk into those of the context before it.
  void (*merge)(float part_max, float part_sum, const float* part_acc, int32_t n, float* max,
                float* sum, float* acc);
  // out = acc / sum, and *lse = log(sum) + max unless it is nullptr, including `sink` (or
  // -infinity).
  void (*finish)(float max, float sum, const float* acc, int32_t n, float sink, float* out,
                 float* lse);
};

// Peak loops: each returns a value that depends on all its work.
struct PeakKernels {
  float (*read)(const void* data, int64_t bytes);
  float (*fma)(int64_t rounds);
  int64_t fma_flops;  // per round
  float (*int8)(int64_t rounds);
  int64_t int8_ops;  // per round
};

// Dot products of BF16 pairs, an instruction that not every processor of a level has.
struct Bf16PeakKernels {
  float (*bf16)(int64_t rounds);
  int64_t bf16_flops;  // per round
};

struct KernelTable {
  const LinearKernels* linear;
  const RowKernels* rows;
  const AttentionKernels* attention;
  const RecurrenceKernels* recurrence;
};

extern const LinearKernels kLinearPortable;
extern const BlockKernels kBlocksPortable;
extern const RowKernels kRowsPortable;
extern const AttentionKernels kAttentionPortable;
extern const PeakKernels kPeakPortable;
#if defined(__x86_64__)
extern const LinearKernels kLinearAvx2;
extern const BlockKernels kBlocksAvx2;
extern const RowKernels kRowsAvx2;
extern const AttentionKernels kAttentionAvx2;
extern const PeakKernels kPeakAvx2;
extern const Int8DotKernels kInt8DotAvx2Vnni;
extern const BlockKernels kBlocksAvx2Vnni;
extern const PeakKernels kPeakAvx2Vnni;
extern const LinearKernels kLinearAvx512;
extern const Bf16DotKernels kBf16DotAvx512;
extern const Bf16BlockKernels kBlocksAvx512Bf16;
extern const BlockKernels kBlocksAvx512;
extern const RowKernels kRowsAvx512;
extern const AttentionKernels kAttentionAvx512;
extern const AttentionKernels kAttentionAvx512Bf16;
extern const PeakKernels kPeakAvx512;
extern const Bf16PeakKernels kPeakAvx512Bf16;
#endif

}  // namespace heddle::kernels::cpu
