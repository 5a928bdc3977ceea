// The ways of making a matrix product, and the prediction of the fastest for quantised weights and
// more rows than LaunchLinearSkinny takes at once: by arithmetic, from the bytes that each way
// moves and the products that it computes. Devices that tune start from it and time the ways
// (linear_ways.h); all others rely on it. Includes neither CUDA nor Abseil.
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
  kBulkCodes,    // LaunchLinearBulkCodes, x quantised
  kDequantized,  // the weights converted to BF16 in memory, then used as such
};
const char* NameOf(LinearWay way);  // for people
constexpr bool IsByCodes(LinearWay way) {
  return way == LinearWay::kByCodes || way == LinearWay::kBulkCodes;
}

// Ascending numbers of rows of x at which products of some ways take longer by a step: blocks of
// more rows, one block more, another tile of a library. The fastest way for such a number usually
// is the fastest for all down to the previous one. Larger numbers continue in powers of two.
std::span<const int32_t> RowSteps();
// The smallest of them that is at least n. REQUIRES: n > 0.
int64_t RowStepFrom(int64_t n);
// The largest of them below `step`, which is one of them, or 0.
int64_t RowStepBelow(int64_t step);

// kMixed, kFewRows or kDequantized. REQUIRES: n > kSkinnyRows; a layout of codes.
// `has_hopper_code`: see DeviceInfo.
LinearWay ChooseManyRows(const DeviceWeight& weight, int64_t n, bool has_hopper_code);

// Rows of x up to which kBulkCodes is predicted to be faster than kByCodes, on sm_90a: two blocks.
int64_t MostBulkCodes(const DeviceWeight& weight);

// Nanoseconds of kMixed and of kDequantized on sm_90a, without the time of launches, which the
// choice compares. Also used to compare predictions with measurements.
double PredictMixedNs(const DeviceWeight& weight, int64_t n);
double PredictDequantizedNs(const DeviceWeight& weight, int64_t n);

// Whether experts that are FP8 get so many rows that codes of x pay (LaunchExpertBulkCodes), and
// the rows of a chunk then. Up to 64 rows an expert, weights are read for as long as BF16 takes.
bool ExpertsTakeCodes(int64_t n_pairs, int64_t n_experts);
int32_t ChunkRowsOfCodes(WeightLayout layout);
// Rows of a chunk of a mixture of experts for n_pairs rows and n_experts: 8 and 32 are for
// LaunchExpertSkinny, 64 and 128 for LaunchExpertMixed.
int32_t ChooseChunkRows(int64_t n_pairs, int64_t n_experts, bool has_hopper_code);

}  // namespace heddle::kernels::cuda
