// Drawing tokens from logits, a batch of rows at a time.
//
// Per row, in this order: sparse edits (bias, penalties: computed by engine/sample from its token
// counts), bit mask (grammars), the filters (base/sample_filters.h), then one draw with the random
// number of (seed, counter). The draw inverts the cumulative distribution of the kept tokens in
// order of id. NaN logits count as -infinity. If nothing can be drawn (all banned), the token is
// -1.
// Source: Salmon et al. 2011 (Philox, counter-based random numbers); Leviathan, Kalman and Matias,
// "Fast Inference from Transformers via Speculative Decoding", 2023 (rejection sampling).
#pragma once

#include <cstdint>
#include <span>

#include "base/sample_filters.h"
#include "kernels/tensor.h"

namespace heddle::kernels {

// x = logits[token] + bias; then x > 0 ? x / scale_div : x * scale_div; then += add. Repetition
// penalty is scale_div, presence and frequency penalties are in add; -infinity in add bans the
// token.
struct LogitEdit {
  int32_t token;
  float scale_div;
  float add;
  float bias = 0.0f;
};

struct SampleRowParams : base::SampleFilters {
  int32_t logit_row = 0;  // row of `logits`; several samples may read one row
  uint64_t seed = 0;
  uint64_t counter = 0;
  int32_t num_top = -1;               // alternatives to report; -1: no logprobs at all
  int32_t forced_token = -1;          // >= 0: draw nothing, report this token (prompt logprobs)
  std::span<const LogitEdit> edits;   // at most one per token
  const uint32_t* allowed = nullptr;  // [ceil(vocab / 32)] bit mask or nullptr

  // Rejection sampling, on devices that have it (Device::samples_by_rejection), where the
  // temperature is not 0. The row that guesses a token writes what it drew from to `shares`, which
  // sum up to 1. The row that verifies it gets both: `proposed` is drawn with probability
  // min(1, p / q), else a token from what p has beyond q. So each token has probability p. Host
  // memory, all of them.
  float* shares = nullptr;                 // [vocab] or nullptr
  int32_t proposed = -1;                   // -1: none
  const float* proposed_shares = nullptr;  // [vocab] where `proposed` is drawn from
};

// `logprob` and the alternatives are of log-softmax of the logits before edits and filters. Results
// go to host memory, by the end of Device::Run or Finish; `rows` and what they point to are host
// memory too.
struct SampleArgs {
  Tensor logits;                          // [n_logit_rows, vocab] F32; not changed
  std::span<const SampleRowParams> rows;  // [n]
  int32_t max_top = 0;                    // stride of top arrays; >= every num_top
  int32_t* tokens = nullptr;              // [n]
  // Written for rows with num_top >= 0 only; may be nullptr where no row asks.
  float* logprobs = nullptr;      // [n]
  int32_t* top_tokens = nullptr;  // [n, max_top], likely first, lower id first in ties
  float* top_logprobs = nullptr;  // [n, max_top]
};

// Uniform in (0, 1), from Philox4x32-10 with key = seed and counter = (counter, stream). Streams: 0
// draws a token, 1 tosses for XTC, 2 accepts a proposed token.
float CounterUniform(uint64_t seed, uint64_t counter, uint32_t stream);

}  // namespace heddle::kernels
