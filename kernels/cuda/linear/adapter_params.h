// What the sums of low-rank adapters are launched with.
// What holds for all launchers: runtime/stream.h.
#pragma once

#include <cstdint>

#include "kernels/adapters.h"
#include "kernels/cuda/runtime/stream.h"
#include "kernels/dtype.h"
#include "kernels/tensor.h"

namespace heddle::kernels::cuda {

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

}  // namespace heddle::kernels::cuda
