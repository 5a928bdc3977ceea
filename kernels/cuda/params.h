// What kernels are launched with: plain structs of device pointers, and the launchers.
//
// Includes neither CUDA nor Abseil, so that .cc and .cu files share it. Launchers enqueue on
// `stream` and return at once: no synchronisation, no allocation. Tensors hold `act` (kBF16 or
// kF32) unless said otherwise. Shapes are the caller's to check (cuda_ops.cc).
#pragma once

#include <cstdint>

#include "kernels/adapters.h"
#include "kernels/cuda/linear/weight_layout.h"
#include "kernels/cuda/runtime/tape.h"
#include "kernels/cuda/runtime/tensor_map.h"
#include "kernels/dtype.h"
#include "kernels/kv_cache.h"
#include "kernels/ops.h"
#include "kernels/tensor.h"

namespace heddle::kernels::cuda {

using Stream = const LaunchQueue*;
using Error = int;  // cudaError_t as its number
inline constexpr Error kSuccess = 0;
inline constexpr Error kEmulatedFault = 9999;  // see emulate::TakeFindings

// Starts a kernel; part of the runtime. `params` is copied.
Error LaunchKernel(const void* kernel, Tape::Caller call, const LaunchShape& shape, void* stream,
                   const void* params, size_t params_bytes);
// Describes `matrix` to bulk copies; part of the runtime. kSuccess on devices of sm_90 only.
Error EncodeTensorMap(const TiledMatrix& matrix, TensorMap* map);

// The step's batch in device memory; see kernels/batch.h.
struct DeviceBatch {
  const int32_t* token_ids = nullptr;
  const int32_t* drawn = nullptr;  // by the step before: what negative token_ids name
  const int32_t* positions = nullptr;
  const int64_t* kv_slot = nullptr;
  const int32_t* q_begin = nullptr;
  const int32_t* span_begin = nullptr;
  const int32_t* span_page = nullptr;
  const int32_t* span_first = nullptr;   // [n_spans] place of its first key in the sequence
  const int32_t* span_tokens = nullptr;  // [n_spans]
  const int32_t* context_len = nullptr;
  const int32_t* logit_rows = nullptr;
  const uint64_t* tree_mask = nullptr;  // [n_tokens], or nullptr: no trees
  int32_t n_tokens = 0;
  int32_t n_seqs = 0;
  int32_t n_logit_rows = 0;
};

Error LaunchEmbed(const DeviceBatch& batch, const DeviceWeight& table, float scale, Tensor out,
                  DType act, Stream stream);
Error LaunchAddPositions(const DeviceBatch& batch, const DeviceWeight& table, int32_t offset,
                         Tensor x, DType act, Stream stream);
Error LaunchGatherRows(const DeviceBatch& batch, Tensor x, Tensor out, DType act, Stream stream);
Error LaunchScaleLogits(Tensor logits_f32, float scale, float softcap, Stream stream);
// Positions [0, num_tokens) of a page, keys and values.
Error LaunchCopyPage(const KvCacheView& cache, int32_t from, int32_t to, int32_t num_tokens,
                     Stream stream);
Error LaunchNorm(const NormArgs& args, DType act, Stream stream);

inline constexpr int32_t kMaxFrequencies = 256;
struct RopeAnglesParams {
  DeviceBatch batch;
  int32_t half = 0;  // frequencies
  float scale = 1.0f;
  float* cos_sin = nullptr;
  float inv_freq[kMaxFrequencies];
};
Error LaunchRopeAngles(const RopeAnglesParams& params, Stream stream);
Error LaunchRopeKvWrite(const DeviceBatch& batch, const RopeKvWriteArgs& args, DType act,
                        Stream stream);

// Rows of x as 8-bit codes, which a library multiplies by the codes of kF8Row, kInt8Row or kF8Block
// weights. Each row has a scale of its own, for kF8Block one for each kScaleTile columns: their
// largest magnitude / 448, or / 127. Codes lie in the order of columns that weights have within a
// group, padded with zeros.
struct CodeRows {
  WeightLayout layout = WeightLayout::kF8Row;  // of the weight
  uint8_t* codes = nullptr;                    // [n, row_bytes]
  int64_t row_bytes = 0;
  float* scales = nullptr;  // [n]; kF8Block: [row_bytes / kScaleTile rounded up, scales_stride]
  int64_t scales_stride = 0;
};
// Of a row that is kept as F32 in shared memory until its scale is known: norms and epilogues.
inline constexpr int64_t kMaxKeptCodes = 40960;

// The norm in front of a product, which then takes norm(x): NormKind::kRms with a weight, without
// bias. Exactly what LaunchNorm leaves.
struct FoldedNorm {
  const float* weight = nullptr;  // [x.cols] at 16 bytes; nullptr: x is taken as it is
  float weight_offset = 0;
  float eps = 0;
};
struct LinearParams {
  DeviceWeight weight;
  Tensor x;
  FoldedNorm norm;                 // LaunchLinearSkinny alone, where SkinnyTakesNorm says so
  const float* bias = nullptr;     // [output columns] or nullptr
  const float* bias_up = nullptr;  // kGated: of the up rows
  Epilogue epilogue = Epilogue::kNone;
  Activation activation = Activation::kNone;
  Tensor out;
  bool out_f32 = false;
  // Of LaunchEpilogue: where outputs go as codes instead; codes == nullptr: to `out`.
  CodeRows out_codes;
  int64_t half = 0;  // kGated: rows of the gate; output column r reads weight rows r and r + half
  // What adapters add to the products, column r to weight row r's; or nullptr.
  const float* delta = nullptr;     // [x.rows, .] at delta_stride
  const float* delta_up = nullptr;  // kGated: of the up rows
  int64_t delta_stride = 0;
  const int32_t* delta_slots = nullptr;  // [x.rows]; below 0: the row has no delta
  // LaunchLinearBulk reads the weights from before earlier launches have ended; false where one of
  // those makes them.
  bool reads_ahead = true;
  // Where blocks of one product that share rows add up; nullptr: they do not share any.
  float* partial = nullptr;  // [partial_floats]
  int64_t partial_floats = 0;
  int32_t* counters = nullptr;  // [n_counters] zeros, before and after
  int64_t n_counters = 0;
};
// Any shape, alignment, format and activation type; a warp per output. Exact but slow.
Error LaunchLinearPlain(const LinearParams& params, DType act, Stream stream);
// Few rows: the weights are read once at full bandwidth, from before earlier launches have ended:
// none of a step may write them. BF16 activations, any layout but kF32 and
// kF16, x rows <= kSkinnyRows, x 16-byte aligned with cols and stride in multiples of 8.
inline constexpr int32_t kSkinnyRows = 32;
Error LaunchLinearSkinny(const LinearParams& params, Stream stream);
// Many rows of x and weights of codes, on sm_90a: dequantised on their way to the matrix
// instructions. Any layout that LaunchLinearSkinny takes, alignment as above; reads `partial` and
// `counters` too.
Error LaunchLinearMixed(const LinearParams& params, int32_t num_multiprocessors, Stream stream);
// Many rows of x and BF16 weights, on sm_90a: for some hundred rows, where other tiles leave
// multiprocessors without work. Alignment as above; reads `partial` and `counters` too.
inline constexpr int32_t kBulkBlockRows = 208;  // for which weights are read once
Error LaunchLinearBulk(const LinearParams& params, int32_t num_multiprocessors, Stream stream);
// Every block norms all rows of x for itself, into shared memory: for the few rows and columns
// where that costs less than a launch.
inline constexpr int32_t kNormedRows = 4;
inline constexpr int64_t kMaxNormedBytes = 72 << 10;
constexpr int64_t NormedStride(int64_t cols) { return cols + 32; }  // so that banks differ
constexpr bool SkinnyTakesNorm(const Tensor& x) {
  return x.rows <= kNormedRows && x.rows * NormedStride(x.cols) * 2 <= kMaxNormedBytes;
}
// Many rows, on matrix instructions; BF16 activations and weights, alignment as above.
Error LaunchLinearTiled(const LinearParams& params, Stream stream);
// x in BF16, aligned as for LaunchLinearSkinny. E4M3 rounds to nearest even, as integers do. A row
// with NaN or infinity gives products that are no finite numbers.
Error LaunchQuantizeRows(Tensor x, const CodeRows& to, Stream stream);
// The same of what Norm(args) leaves, which is not written: codes are made of the F32 values.
// REQUIRES: args.x aligned as above, weight and bias to 16 bytes, no residual.
Error LaunchNormCodes(const NormArgs& args, const CodeRows& to, Stream stream);
// The values of codes, rounded to BF16; `x` as above.
Error LaunchRestoreRows(const CodeRows& from, Tensor x, Stream stream);

// What a library made of x and W: the product, or sums of products of codes that are still to be
// multiplied by the scales of both.
struct LibraryProduct {
  enum class Type : uint8_t { kBF16, kF32, kInt32 };
  Type type = Type::kBF16;
  Tensor sums;                      // [x.rows, weight.rows]
  const float* x_scales = nullptr;  // [x.rows]; nullptr: of products
  const float* w_scales = nullptr;  // [weight.rows]
};
// The epilogue alone; reads of `params` what concerns it. Codes are made of the F32 values; outputs
// in multiples of 8.
Error LaunchEpilogue(const LinearParams& params, const LibraryProduct& product, Stream stream);
// Rows [first, first + count) of `weight` as BF16 into `out`, laid out as kBF16.
Error LaunchDequantize(const DeviceWeight& weight, int64_t first, int64_t count, uint16_t* out,
                       Stream stream);

// The rows that adapters add to, of the whole batch; see kernels/adapters.h.
struct DeviceAdapters {
  const int32_t* slots = nullptr;  // [n_tokens]
  const int32_t* rows = nullptr;
  const AdapterSegment* segments = nullptr;  // of kAdapterRows rows at most
  int32_t n_segments = 0;
};
inline constexpr int32_t kAdapterRows = 8;  // whose sums a thread holds at once
struct AdapterParams {
  DeviceAdapters batch;
  int64_t first_row = 0;  // the batch's row that is x's row 0
  Tensor x;
  DType dtype = DType::kBF16;               // of the factors
  const AdapterFactors* factors = nullptr;  // [slots, n_parts]
  int32_t n_parts = 0;
  AdapterPart parts[kMaxAdapterParts];
  int32_t max_rank = 0;
  float* shrunk = nullptr;  // [x.rows, n_parts, max_rank]: scale * A x
  float* delta = nullptr;   // [x.rows, delta_stride]
  int64_t delta_stride = 0;
};
// `shrunk` of x's rows that have adapters. BF16 or F32 activations.
Error LaunchAdapterShrink(const AdapterParams& params, DType act, Stream stream);
// Then `delta` of the same rows, all of their columns: zeros where an adapter has no factors.
Error LaunchAdapterExpand(const AdapterParams& params, Stream stream);

// Some of the pairs that chose one expert.
struct ExpertChunk {
  int32_t expert;
  int32_t begin;  // in ExpertGroups::pairs
  int32_t count;
};

// The (row, choice) pairs of a step in the order of their experts, cut into chunks that a block can
// take at once; made on the device, where alone it is known who chose what.
struct ExpertGroups {
  int32_t* pairs = nullptr;       // [n_pairs]
  ExpertChunk* chunks = nullptr;  // [max_chunks]
  int32_t* n_chunks = nullptr;    // one number, <= max_chunks
  int32_t max_chunks = 0;
  int32_t chunk_rows = 0;  // pairs of a chunk at most: 8, 32, 64 or 128
};

// One of a stack's matrices for each (row, choice) pair: output row `pair` is of x row
// pair / pairs_per_row and matrix experts[pair].
struct ExpertLinearParams {
  LinearParams linear;  // weight: all matrices; biases: of the first one
  const int32_t* experts = nullptr;
  int32_t pairs_per_row = 1;
  int64_t matrix_rows = 0;
  ExpertGroups groups;  // for LaunchExpertSkinny and LaunchExpertMixed
};
Error LaunchRoute(const RouteArgs& args, Stream stream);
Error LaunchExpertLinear(const ExpertLinearParams& params, int64_t n_pairs, DType act,
                         Stream stream);
// Fills what `groups` points to from experts [n_pairs], each below `count` <= kMaxExperts.
Error LaunchGroupExperts(const int32_t* experts, int64_t n_pairs, int32_t count,
                         const ExpertGroups& groups, Stream stream);
// As LaunchExpertLinear, with every expert's weights read once per chunk; requirements of
// LaunchLinearSkinny, but for the number of rows.
Error LaunchExpertSkinny(const ExpertLinearParams& params, Stream stream);
// The same with chunks of 64 or 128 rows, on sm_90a; requirements of LaunchLinearMixed, and kBF16.
Error LaunchExpertMixed(const ExpertLinearParams& params, Stream stream);
// out[t] += sum over i of weights[t, i] * rows[t * top_k + i].
Error LaunchExpertSum(Tensor rows, const float* weights, int32_t top_k, Tensor out, DType act,
                      Stream stream);
Error LaunchHeadLinear(const HeadLinearArgs& args, const DeviceWeight& heads, DType act,
                       Stream stream);
Error LaunchGateRows(Tensor gate_f32, Tensor x, DType act, Stream stream);

// A piece of attention: packed rows of a sequence against a range of its keys, for each KV head.
// Packed row p of a sequence is query row p / group, query head kv_head * group + p % group.
struct AttentionTile {
  int32_t seq;
  int32_t first;      // packed row
  int32_t key_begin;  // in the sequence's order; some row of the tile sees some of the range
  int32_t key_end;
  int32_t partial;  // where its first row's partial result goes, the others' follow; -1: these are
                    // all keys that the rows see, straight to `out`
  // n_shared > 0: the tile is not of the sequence's rows, but of rows shared_rows[shared_begin,
  // shared_begin + n_shared) of the batch, packed in that order, and all of them see the whole
  // range of `seq`'s keys. Such results are partial ones.
  int32_t shared_begin = 0;
  int32_t n_shared = 0;
};
// Partial results begin + i * stride, i < count, are of one packed row.
struct PartialRange {
  int32_t begin = 0;
  int32_t stride = 0;
  int32_t count = 0;
};
// kDecodeTileRows packed rows of a sequence, or those that are left of it; the ranges are those of
// the first one, and those of the next ones lie next to them.
struct AttentionMerge {
  int32_t seq;
  int32_t first;
  PartialRange own;
  PartialRange shared;  // of a prefix that other sequences have too
};
inline constexpr int32_t kDecodeTileRows = 16;
inline constexpr int32_t kNarrowTileRows = 8;  // of decode tiles, where all have so few
inline constexpr int32_t kPrefillTileRows = 64;
inline constexpr int32_t kHopperTileRows = 128;
// Stages of 64 keys and values in a block of attention_flash.cuh, all but one of them on their way.
// A multiprocessor holds three decoding blocks up to head_dim 128: 96 KiB on their way at 128,
// where latency asks for 23.
constexpr int32_t FlashStages(int64_t kv_element_bytes, bool decodes, int32_t head_dim) {
  return kv_element_bytes == 1 && decodes && head_dim <= 128 ? 3 : 2;
}
inline constexpr int32_t kMaxAttentionHeadDim = 576;  // DeepSeek's latent and rotated dimensions

struct AttentionParams {
  AttentionArgs args;
  DeviceBatch batch;
  const AttentionTile* tiles = nullptr;
  int32_t n_tiles = 0;
  int32_t tile_rows = 0;   // one of these four
  int32_t max_blocks = 0;  // that may run at once; 0: as many as there are
  const int32_t* shared_rows = nullptr;
  float* partial_out = nullptr;  // [partials, n_kv_heads, head_dim], normalised
  float* partial_lse = nullptr;  // [partials, n_kv_heads] natural logarithm
};
// Any shape and type, F32 arithmetic; a warp per key. Exact but slow. No tiles of shared rows.
Error LaunchAttentionPlain(const AttentionParams& params, DType act, Stream stream);
// Matrix instructions: BF16 activations; a cache of F16 or BF16 and head_dim a multiple of 8, or of
// 8 bits and head_dim a multiple of 16 (kInt8: pages of 4 positions at least); head_dim up to 256,
// q and out rows even.
Error LaunchAttentionFlash(const AttentionParams& params, Stream stream);
// Prefill tiles of kHopperTileRows on sm_90a; what it can do is in attention_choice.cc. As many
// blocks as there are multiprocessors share the tiles.
Error LaunchAttentionHopper(const AttentionParams& params, int32_t num_multiprocessors,
                            Stream stream);
// Page i of `to`, of kF16 if `from` is of kF8E4M3 and of kBF16 if it is of kInt8, becomes page
// pages[i] of `from`. head_dim a multiple of 16; rows of both at multiples of 16 bytes.
struct WidenParams {
  KvCacheView from;
  KvCacheView to;
  const int32_t* pages = nullptr;  // [n_pages]
  int32_t n_pages = 0;
};
Error LaunchWidenPages(const WidenParams& params, Stream stream);
Error LaunchAttentionMerge(const AttentionParams& params, const AttentionMerge* merges,
                           int32_t n_merges, DType act, Stream stream);

// One row to draw; SampleRowParams with device pointers.
struct SampleRow {
  int32_t logit_row;
  float temperature;
  int32_t top_k;
  float top_p;
  float min_p;
  float typical_p;
  int32_t num_top;
  int32_t forced_token;
  int32_t num_edits;
  uint64_t seed;
  uint64_t counter;
  const LogitEdit* edits;
  const uint32_t* allowed;
  float* edited;  // [vocab] scratch of rows with edits or typical_p, 16-byte aligned
};
// What is known of a few neighbouring tokens of a row; see sample_pieces.cuh.
inline constexpr int32_t kSamplePieceTokens = 512;
struct alignas(16) SamplePiece {
  float max;
  int32_t id;    // the first that has it
  float sum;     // of weights, relative to that of `max`
  int32_t ties;  // at a filter's threshold
};
constexpr int64_t SamplePieces(int64_t vocab) {
  return (vocab + kSamplePieceTokens - 1) / kSamplePieceTokens;
}
// Of the rows of a launch that take no `edited`.
constexpr int64_t SampleRowBytes(int64_t vocab) {
  return 2 * SamplePieces(vocab) * int64_t{sizeof(SamplePiece)};
}
struct SampleParams {
  const float* logits = nullptr;  // [n_logit_rows, vocab] at `stride`
  int64_t stride = 0;
  int32_t vocab = 0;
  int32_t max_top = 0;
  int32_t first = 0;                // row of this launch's first
  const SampleRow* rows = nullptr;  // [n]
  SamplePiece* pieces = nullptr;    // [rows of a launch, 2, SamplePieces(vocab)] scratch
  int32_t* counters = nullptr;      // [rows of a launch] zeros, before and after
  int32_t* tokens = nullptr;        // [n]
  float* logprobs = nullptr;        // [n]
  int32_t* top_tokens = nullptr;    // [n, max_top]
  float* top_logprobs = nullptr;    // [n, max_top]
};
// Draws rows [params.first, params.first + count), count <= 65535. The number of blocks changes no
// result.
Error LaunchSample(const SampleParams& params, int32_t count, int32_t num_multiprocessors,
                   Stream stream);

}  // namespace heddle::kernels::cuda
