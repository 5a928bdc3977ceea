// Launch parameters of the kernels for low-rank adapters. Rules for all launchers are in
// runtime/stream.h.
#pragma once

#include <cstdint>

#include "kernels/adapters.h"
#include "kernels/cuda/runtime/stream.h"
#include "kernels/dtype.h"
#include "kernels/tensor.h"

namespace heddle::kernels::cuda {

// The rows of the whole batch that adapters add to; see kernels/adapters.h.
struct DeviceAdapters {
  const int32_t* slots = nullptr;  // [n_tokens]
  const int32_t* rows = nullptr;
  const AdapterSegment* segments = nullptr;  // of at most kAdapterRows rows
  int32_t n_segments = 0;
};
inline constexpr int32_t kAdapterRows = 8;  // rows whose sums a thread holds at once
struct AdapterParams {
  DeviceAdapters batch;
  int64_t first_row = 0;  // row of the batch that is x's row 0
  Tensor x;
  DType dtype = DType::kBF16;               // of the factors
  const AdapterFactors* factors = nullptr;  // of slot s at [s * slot_stride], n_parts of them
  int32_t slot_stride = 0;
  int32_t n_parts = 0;
  AdapterPart parts[kMaxAdapterParts];
  int32_t max_rank = 0;
  float* shrunk = nullptr;  // [x.rows, n_parts, max_rank]: scale * A x
  float* delta = nullptr;   // [x.rows, delta_stride]
  int64_t delta_stride = 0;
};
// Computes `shrunk` for x's rows that have adapters. BF16 or F32 activations.
Error LaunchAdapterShrink(const AdapterParams& params, DType act, Stream stream);
// Then computes `delta` for the same rows, all columns: zeros if an adapter has no factors.
Error LaunchAdapterExpand(const AdapterParams& params, Stream stream);

}  // namespace heddle::kernels::cuda
