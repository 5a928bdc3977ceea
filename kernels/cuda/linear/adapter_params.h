// Launch parameters of the kernels for low-rank adapters. Rules for all launchers are in
// runtime/stream.h.
#pragma once

#include <cstdint>

#include "kernels/adapters.h"
#include "kernels/cuda/device_batch.h"
#include "kernels/cuda/runtime/stream.h"
#include "kernels/dtype.h"
#include "kernels/tensor.h"

namespace heddle::kernels::cuda {

// The rows of the whole batch, or its logit rows, that adapters add to; see kernels/adapters.h.
struct DeviceAdapters {
  const int32_t* slots = nullptr;  // [rows of the batch, or its logit rows]
  const int32_t* rows = nullptr;
  const AdapterSegment* segments = nullptr;  // of at most kAdapterRows rows
  int32_t n_segments = 0;
};
inline constexpr int32_t kAdapterRows = 8;  // rows whose sums a thread holds at once

// Products of a part of the rows. There may be several outputs for a row of the batch: its choices
// of experts, or its heads, which a block each takes by itself.
enum class AdapterOutputs : uint8_t { kRows, kChoices, kHeads };
struct AdapterParams {
  DeviceAdapters batch;
  int64_t first_row = 0;  // row of the batch that outputs 0, 1, ... belong to
  AdapterOutputs kind = AdapterOutputs::kRows;
  int32_t outputs_per_row = 1;
  int32_t outputs_per_x = 1;         // output i reads row i / outputs_per_x of x
  int64_t x_step = 0;                // kHeads: columns of x from head to head
  const int32_t* members = nullptr;  // kChoices: [n_outputs] the experts
  int32_t first_member = 0;          // kChoices: the first that has factors, and how many do
  int32_t n_members = 0;
  int64_t n_outputs = 0;
  Tensor x;
  int64_t cols = 0;                         // of A
  DType dtype = DType::kBF16;               // of the factors
  const AdapterFactors* factors = nullptr;  // as in AdapterMatrix
  int32_t slot_stride = 0;
  int32_t n_parts = 0;
  AdapterPart parts[kMaxAdapterParts];
  int32_t max_rank = 0;
  float* shrunk = nullptr;  // [n_outputs, n_parts, max_rank]: scale * A x
  float* delta = nullptr;   // [n_outputs, delta_stride]
  float* gains = nullptr;   // the same, factors of the products; nullptr: ones
  int64_t delta_stride = 0;
};
// Computes `shrunk` for outputs whose rows have adapters. BF16 or F32 activations.
Error LaunchAdapterShrink(const AdapterParams& params, DType act, Stream stream);
// The same for an embedding, whose columns of A are taken by token; kRows, `tokens` as x's rows.
Error LaunchAdapterGather(const AdapterParams& params, const DeviceBatch& tokens,
                          int64_t first_token, Stream stream);
// Then computes `delta` and `gains` for the same outputs, all columns: zeros and ones if an adapter
// has no factors.
Error LaunchAdapterExpand(const AdapterParams& params, Stream stream);
// Then out[i / outputs_per_row][first_col + i % outputs_per_row * step + c] of the same outputs is
// multiplied by its gain, and added to.
struct AdapterTarget {
  Tensor out;
  int64_t first_col = 0;
  int64_t step = 0;
};
Error LaunchAdapterAdd(const AdapterParams& params, const AdapterTarget& target, DType act,
                       Stream stream);

}  // namespace heddle::kernels::cuda
