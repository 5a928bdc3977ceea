// Launch parameters of the kernels behind Ops::SelectPositions. Rules for all launchers are in
// runtime/stream.h.
#pragma once

#include <cstdint>

#include "kernels/cuda/device_batch.h"
#include "kernels/cuda/runtime/stream.h"
#include "kernels/dtype.h"
#include "kernels/selection.h"

namespace heddle::kernels::cuda {

// Rows [row, row + n_rows) of the tensors, which are rows [batch_row, batch_row + n_rows) of the
// batch; out is theirs.
struct SelectParams {
  SelectArgs args;
  DeviceBatch batch;
  int32_t row = 0;
  int32_t batch_row = 0;
  int32_t n_rows = 0;
  int32_t context = 0;         // of the longest sequence
  float* scores = nullptr;     // [n_rows, stride]: of the places that a row may see
  int64_t stride = 0;          // >= context, a multiple of kScoreAlignment
  int32_t keys_per_block = 0;  // of LaunchSelectScores, which sets it
  int32_t kept = 0;            // places in shared memory, of LaunchChoosePlaces, which sets it
};
inline constexpr int64_t kScoreAlignment = 32;  // floats

// The device's limits for these launches.
struct SelectDevice {
  int32_t num_multiprocessors = 1;
  int32_t max_shared_bytes = 0;  // of a block
};
// Makes the scores of the rows that need a list. In F32 sums whose order depends on nothing but the
// number of heads and columns. In tiles with BF16 activations, keys of at most 128 columns in whole
// 8 that are not F32, queries at 16 bytes, and heads that fit a block's memory (some 700).
Error LaunchSelectScores(const SelectParams& params, const SelectDevice& device, DType act,
                         Stream stream);
// Writes the lists of all rows, of which some have none. `max_shared_bytes`: of a block; any number
// of places is handled with 12 KiB.
Error LaunchChoosePlaces(const SelectParams& params, int32_t max_shared_bytes, Stream stream);

}  // namespace heddle::kernels::cuda
