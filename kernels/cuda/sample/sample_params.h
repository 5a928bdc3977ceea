// Parameters of the launches that sample. Rules for all launchers are in runtime/stream.h.
#pragma once

#include <cstdint>

#include "base/sample_filters.h"
#include "kernels/cuda/runtime/stream.h"
#include "kernels/ops.h"

namespace heddle::kernels::cuda {

// One row to draw; SampleRowParams with device pointers.
struct SampleRow : base::SampleFilters {
  int32_t logit_row;
  bool filters;  // CutsAnything()
  int32_t num_top;
  int32_t forced_token;
  int32_t num_edits;
  uint64_t seed;
  uint64_t counter;
  const LogitEdit* edits;
  const uint32_t* allowed;
  float* edited;  // [vocab] scratch of rows with edits or typical_p, 16-byte aligned
};
// Summary of a few neighbouring tokens of a row; see sample_pieces.cuh.
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
// Bytes of summaries that each row of a launch takes.
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
