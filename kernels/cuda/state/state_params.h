// Launch parameters of the kernels of layers with state in place of keys and values: short
// convolutions, recurrences, time mixes. Rules for all launchers are in runtime/stream.h. Shapes
// are those of kernels/recurrence.h and kernels/wkv.h; CudaOps and CheckOpsFor have checked them,
// so that an Error is the launch's alone.
//
// Bits of a row: as on the CPU they depend on its sequence's inputs up to it and on their places in
// pages alone. For that, no sum depends on how many rows a launch has, and the sources are compiled
// without fusing products and sums (kernels/cuda/sources.cmake): what is fused is written so
// (primitives/fused.cuh), and is then the same wherever a compiler puts the code.
#pragma once

#include <cstdint>

#include "kernels/cuda/device_batch.h"
#include "kernels/cuda/runtime/stream.h"
#include "kernels/dtype.h"
#include "kernels/ops.h"
#include "kernels/recurrence.h"
#include "kernels/tensor.h"
#include "kernels/wkv.h"

namespace heddle::kernels::cuda {

// The batch as the layer's group sees it, all of it, and the rows of it that the tensors have.
// These are whole sequences.
struct StateBatch {
  DeviceBatch all;
  int32_t first_row = 0;  // of the batch: the tensors' row 0
  int32_t n_rows = 0;
};

// Pages of snapshots.
struct StatePages {
  uint8_t* base = nullptr;
  int64_t stride = 0;  // bytes from a page to the next
  int32_t page_tokens = 0;
};

// REQUIRES: args.cache as ShortConvArgs says.
Error LaunchShortConv(const StateBatch& batch, const ShortConvArgs& args, DType act, Stream stream);

// The largest RecurrenceShape::key_dim, by the rows of S that fit a thread's registers: of
// kGatedDelta and kMamba2, and of kSelective.
inline constexpr int32_t kMaxStateRows = 256;
inline constexpr int32_t kMaxSelectedRows = 64;

// Makes q, k and v of all rows, [n, RecurrenceShape::channels()] F32: the convolution, and of
// kGatedDelta the lengths of q and k. What follows may take them from there or make them itself
// (`mixed` is nullptr), with the same bits.
Error LaunchRecurrenceMix(const StateBatch& batch, const RecurrenceArgs& args, float* mixed,
                          DType act, Stream stream);
// Convolution and recurrence of kGatedDelta and kMamba2. Writes o to args.out, and to pages what a
// head of v keeps. `max_shared_bytes`: of a block; where two parts of rows do not fit, blocks that
// could bring one while they compute another do so in turns, with the same bits.
Error LaunchRecurrenceScan(const StateBatch& batch, const RecurrenceArgs& args, const float* mixed,
                           int32_t max_shared_bytes, DType act, Stream stream);
// Norms and gates args.out, and writes to pages what heads of v share. Follows the scan.
Error LaunchRecurrenceEnd(const StateBatch& batch, const RecurrenceArgs& args, const float* mixed,
                          DType act, Stream stream);

// The two calls of kSelective: without and with args.factors.
Error LaunchSelectiveConv(const StateBatch& batch, const RecurrenceArgs& args, DType act,
                          Stream stream);
Error LaunchSelectiveScan(const StateBatch& batch, const RecurrenceArgs& args, DType act,
                          Stream stream);

// Ops::TokenShift and Ops::TimeMix. The largest WkvArgs::head_dim.
inline constexpr int32_t kMaxTimeMixDim = 64;
Error LaunchTokenShift(const StateBatch& batch, const TokenShiftArgs& args, DType act,
                       Stream stream);
Error LaunchTimeMix(const StateBatch& batch, const WkvArgs& args, DType act, Stream stream);

}  // namespace heddle::kernels::cuda
