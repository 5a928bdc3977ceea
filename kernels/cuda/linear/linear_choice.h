// The ways in which a matrix product is made, and which is predicted to be fastest for quantised
// weights and more rows than LaunchLinearSkinny takes at once: by arithmetic, from what each way
// moves and multiplies. Devices that tune time the ways (linear_ways.h); this is what they start
// from, and what all others go by. Includes neither CUDA nor Abseil.
#pragma once

#include <cstdint>
#include <span>

#include "kernels/cuda/linear/weight_layout.h"

namespace heddle::kernels::cuda {

enum class LinearWay : uint8_t {
  kPlain,        // LaunchLinearPlain
  kFewRows,      // LaunchLinearSkinny, kSkinnyRows rows at a time
  kMixed,        // LaunchLinearMixed
  kBulk,         // LaunchLinearBulk
  kTiled,        // LaunchLinearTiled
  kLibrary,      // LibraryMatmul::Multiply
  kByCodes,      // LibraryMatmul's products of 8-bit codes, x quantised
  kDequantized,  // the weights as BF16 in memory, then as BF16 weights
};
const char* NameOf(LinearWay way);  // for people

// Numbers of rows of x, ascending, at which products of some ways take longer by a step: blocks of
// more rows, one block more, another tile of a library. What is the fastest way for such a number
// is, as a rule, for all down to the one before. Larger ones go on in powers of two.
std::span<const int32_t> RowSteps();
// The next of them from n on. REQUIRES: n > 0.
int64_t RowStepFrom(int64_t n);
// The largest number below `step`, one of them, that is one of them or 0.
int64_t RowStepBelow(int64_t step);

// kMixed, kFewRows or kDequantized. REQUIRES: n > kSkinnyRows; a layout of codes.
// `has_hopper_code`: see DeviceInfo.
LinearWay ChooseManyRows(const DeviceWeight& weight, int64_t n, bool has_hopper_code);

// Nanoseconds of kMixed and of kDequantized on sm_90a, without the time of launches: what the
// choice compares. For predictions beside measurements, too.
double PredictMixedNs(const DeviceWeight& weight, int64_t n);
double PredictDequantizedNs(const DeviceWeight& weight, int64_t n);

// Rows of a chunk of a mixture of experts, when n_pairs rows are dealt to n_experts: 8 and 32 are
// for LaunchExpertSkinny, 64 and 128 for LaunchExpertMixed.
int32_t ChooseChunkRows(int64_t n_pairs, int64_t n_experts, bool has_hopper_code);

}  // namespace heddle::kernels::cuda
