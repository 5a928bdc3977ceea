// Launch parameters of the matrix products. Rules for all launchers are in runtime/stream.h.
#pragma once

#include <cstdint>

#include "kernels/cuda/linear/code_rows.h"
#include "kernels/cuda/linear/weight_layout.h"
#include "kernels/cuda/runtime/stream.h"
#include "kernels/dtype.h"
#include "kernels/kv_cache.h"
#include "kernels/ops.h"
#include "kernels/tensor.h"

namespace heddle::kernels::cuda {

// The norm in front of a product, which then takes norm(x): NormKind::kRms with a weight, without
// bias. It gives exactly the values of LaunchNorm.
struct FoldedNorm {
  const float* weight = nullptr;  // [x.cols] at 16 bytes; nullptr: x is taken as it is
  float weight_offset = 0;
  float eps = 0;
};
// Where outputs are the columns of query, key and value heads, side by side, which the product
// rotates and writes to the cache as LaunchRopeKvWrite would, without norms: queries are left in
// `out`, keys and values in the cache alone.
struct HeadOutputs {
  const int64_t* kv_slot = nullptr;  // [x.rows]; nullptr: outputs are no heads
  const float* cos_sin = nullptr;    // RopeKvWriteArgs::cos_sin
  int32_t n_heads = 0;
  int32_t rotary_dim = 0;  // 0: nothing is rotated
  RopeLayout layout = RopeLayout::kHalf;
  KvCacheView cache;

  constexpr int32_t query_cols() const { return n_heads * cache.head_dim; }
  constexpr int32_t key_cols() const { return cache.n_kv_heads * cache.head_dim; }
};
// Whether LaunchLinearSkinny makes them: pairs of columns that are rotated together belong to one
// block of weight rows, whole heads do not.
constexpr bool SkinnyTakesHeads(const RopeKvWriteArgs& heads) {
  const int32_t dim = heads.cache.head_dim;
  const bool in_halves = heads.cos_sin != nullptr && heads.layout == RopeLayout::kHalf;
  const bool fits = in_halves ? dim % 32 == 0 && heads.rotary_dim % 32 == 0 : dim % 2 == 0;
  return fits && heads.q_norm == nullptr && heads.k_norm == nullptr &&
         heads.cache.dtype != DType::kInt8;
}

struct LinearParams {
  DeviceWeight weight;
  Tensor x;
  FoldedNorm norm;                 // for LaunchLinearSkinny only, if SkinnyTakesNorm
  const float* bias = nullptr;     // [output columns] or nullptr
  const float* bias_up = nullptr;  // kGated: bias of the up rows
  Epilogue epilogue = Epilogue::kNone;
  Activation activation = Activation::kNone;
  Tensor out;
  bool out_f32 = false;
  // For LaunchEpilogue: where outputs go as codes; codes == nullptr: they go to `out`.
  CodeRows out_codes;
  HeadOutputs heads;  // for LaunchLinearSkinny only, with kNone and outputs of the activation type
  int64_t half = 0;   // kGated: rows of the gate; output column r reads weight rows r and r + half
  // The adapters' contribution, column r to weight row r's product; or nullptr.
  const float* delta = nullptr;     // [x.rows, .] at delta_stride
  const float* delta_up = nullptr;  // kGated: that of the up rows
  const float* gains = nullptr;     // laid out as delta: first the products are multiplied by it
  const float* gains_up = nullptr;
  int64_t delta_stride = 0;
  const int32_t* delta_slots = nullptr;  // [x.rows]; below 0: the row has no delta
  int32_t outputs_per_slot = 1;          // outputs that share a slot, for experts' choices
  // For LaunchLinearBulkCodes, kF8Row: the scales of the rows of x, [x.rows].
  const float* x_scales = nullptr;
  // Whether LaunchLinearBulk may read the weights before earlier launches have ended; false if one
  // of those writes them.
  bool reads_ahead = true;
  // Memory in which blocks of one product that share rows add up; nullptr: they share none.
  float* partial = nullptr;  // [partial_floats]
  int64_t partial_floats = 0;
  int32_t* counters = nullptr;  // [n_counters] zeros, before and after
  int64_t n_counters = 0;
};
// Any shape, alignment, format and activation type; one warp per output. Exact but slow.
Error LaunchLinearPlain(const LinearParams& params, DType act, Stream stream);
// For few rows: reads the weights once at full bandwidth, beginning before earlier launches have
// ended, so no launch of a step may write them. BF16 activations, any layout except kF32 and kF16,
// x rows <= kSkinnyRows, x 16-byte aligned with cols and stride in multiples of 8.
inline constexpr int32_t kSkinnyRows = 32;
Error LaunchLinearSkinny(const LinearParams& params, Stream stream);
// For many rows of x and weights of codes, on sm_90a: codes are dequantised on their way to the
// matrix instructions. Any layout that LaunchLinearSkinny takes, alignment as above; also uses
// `partial` and `counters`.
Error LaunchLinearMixed(const LinearParams& params, int32_t num_multiprocessors, Stream stream);
// For some hundred rows of x and BF16 weights, on sm_90a, where other tiles leave multiprocessors
// without work. Alignment as above; also uses `partial` and `counters`.
inline constexpr int32_t kBulkBlockRows = 208;  // rows for which weights are read once
Error LaunchLinearBulk(const LinearParams& params, int32_t num_multiprocessors, Stream stream);
// The same for weights of kF8Row and kF8Block and rows of x as their codes, of which params.x gives
// only the number.
inline constexpr int32_t kBulkTiledRows = 96;  // kBulkBlockRows of kF8Block
Error LaunchLinearBulkCodes(const LinearParams& params, const CodeRows& x,
                            int32_t num_multiprocessors, Stream stream);
// Rows of x up to which every block norms all of them itself, into shared memory: for the few rows
// and columns where that costs less than a launch.
inline constexpr int32_t kNormedRows = 4;
inline constexpr int64_t kMaxNormedBytes = 72 << 10;
constexpr int64_t NormedStride(int64_t cols) { return cols + 32; }  // avoids bank conflicts
constexpr bool SkinnyTakesNorm(const Tensor& x) {
  return x.rows <= kNormedRows && x.rows * NormedStride(x.cols) * 2 <= kMaxNormedBytes;
}
// For many rows, on matrix instructions; BF16 activations and weights, alignment as above.
Error LaunchLinearTiled(const LinearParams& params, Stream stream);

// A library's output from x and W: the product, or sums of products of codes that still have to be
// multiplied by the scales of both.
struct LibraryProduct {
  enum class Type : uint8_t { kBF16, kF32, kInt32 };
  Type type = Type::kBF16;
  Tensor sums;                      // [x.rows, weight.rows]
  const float* x_scales = nullptr;  // [x.rows]; nullptr: products
  const float* w_scales = nullptr;  // [weight.rows]
};
// Runs only the epilogue; uses the fields of `params` that concern it. Codes are made from the F32
// values; outputs are in multiples of 8.
Error LaunchEpilogue(const LinearParams& params, const LibraryProduct& product, Stream stream);
// Rows [first, first + count) of `weight` as BF16 into `out`, laid out as kBF16.
Error LaunchDequantize(const DeviceWeight& weight, int64_t first, int64_t count, uint16_t* out,
                       Stream stream);

}  // namespace heddle::kernels::cuda
