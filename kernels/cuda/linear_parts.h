// Matrix products in pieces: rows at a time, in parts of the workspace.
#pragma once

#include <algorithm>
#include <cstdint>

#include "base/check.h"
#include "kernels/cuda/device_step.h"
#include "kernels/cuda/linear/linear_params.h"

namespace heddle::kernels::cuda {

// Whether the product itself is the output, or is added to it.
inline bool IsPlain(const LinearParams& params) {
  return params.bias == nullptr && params.delta == nullptr && params.epilogue != Epilogue::kGated &&
         params.activation == Activation::kNone && params.out_codes.codes == nullptr;
}

inline Tensor RowsOf(const Tensor& tensor, int64_t first, int64_t count, int64_t element_bytes) {
  return {static_cast<uint8_t*>(tensor.data) + first * tensor.stride * element_bytes, count,
          tensor.cols, tensor.stride};
}

// The rows from `first` on; with tile scales the result is not suitable for a library.
inline CodeRows RowsFrom(CodeRows rows, int64_t first) {
  rows.codes += first * rows.row_bytes;
  rows.scales += first;
  return rows;
}

// Rows [first, first + count) of x and of the outputs.
inline LinearParams PartOf(const LinearParams& params, int64_t first, int64_t count, DType act) {
  const int64_t bytes = Info(act).block_bytes;
  LinearParams part = params;
  part.x = RowsOf(params.x, first, count, bytes);
  part.out = RowsOf(params.out, first, count, params.out_f32 ? 4 : bytes);
  if (params.out_codes.codes != nullptr) part.out_codes = RowsFrom(params.out_codes, first);
  if (params.heads.kv_slot != nullptr) {
    part.heads.kv_slot += first;
    part.heads.cos_sin += first * params.heads.rotary_dim;
  }
  if (params.delta == nullptr) return part;
  part.delta += first * params.delta_stride;
  part.delta_up += first * params.delta_stride;
  part.delta_slots += first;
  if (params.gains == nullptr) return part;
  part.gains += first * params.delta_stride;
  part.gains_up += first * params.delta_stride;
  return part;
}

constexpr int64_t RoundUp(int64_t n, int64_t multiple) {
  return (n + multiple - 1) / multiple * multiple;
}

// Rows per part if [0, rows) is cut into the fewest parts of at most `at_once`, of about equal
// size, in multiples of `multiple`, which divides at_once.
inline int64_t RowsOfPart(int64_t rows, int64_t at_once, int64_t multiple = 1) {
  HEDDLE_CHECK(at_once > 0, "the workspace does not hold one row of a product");
  const int64_t parts = (rows + at_once - 1) / at_once;
  return RoundUp((rows + parts - 1) / parts, multiple);
}

// Rows of codes that a library must be given for `n` rows of x; the excess ones are never looked
// at.
inline int64_t LibraryRows(const DeviceWeight& weight, int64_t n) {
  return TraitsOf(weight.layout).is_tiled ? RoundUp(n, kTiledRows) : n;
}

// Scales of a row of codes.
inline int64_t ScalesOfRow(const DeviceWeight& weight) {
  return TraitsOf(weight.layout).is_tiled ? RoundUp(weight.row_bytes, kScaleTile) / kScaleTile : 1;
}

// Bytes of `n` rows of codes for a product with `weight`, at 16 bytes.
inline int64_t BytesOfCodes(const DeviceWeight& weight, int64_t n) {
  const int64_t rows = LibraryRows(weight, n);
  return RoundUp(rows * weight.row_bytes, 16) + rows * ScalesOfRow(weight) * int64_t{sizeof(float)};
}

// `n` rows of codes at `at`, of BytesOfCodes.
inline CodeRows CodesAt(uint8_t* at, const DeviceWeight& weight, int64_t n) {
  const int64_t rows = LibraryRows(weight, n);
  uint8_t* scales = at + RoundUp(rows * weight.row_bytes, 16);
  return {.layout = weight.layout,
          .codes = at,
          .row_bytes = weight.row_bytes,
          .scales = reinterpret_cast<float*>(scales),
          .scales_stride = TraitsOf(weight.layout).is_tiled ? rows : 0};
}

inline Workspace Behind(const Workspace& workspace, int64_t bytes) {
  const int64_t used = RoundUp(bytes, 256);
  return {workspace.data + used, std::max<int64_t>(0, workspace.bytes - used)};
}

}  // namespace heddle::kernels::cuda
