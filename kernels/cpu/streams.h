// One row of the ops of alternating updates and of sparse gates (kernels/ops.h), in an order of
// computation that depends on the row's length alone. Thread-safety: pure functions.
#pragma once

#include <cstdint>

#include "kernels/ops.h"

namespace heddle::kernels::cpu {

// REQUIRES: args.count <= kMaxStreams.
void PredictStreamsRow(const StreamsArgs& args, int64_t t);
void CorrectStreamsRow(const StreamsArgs& args, int64_t t);
void MatchMagnitudeRow(const float* like, float* x, int64_t cols);
void SparseGateRow(const SparseGateArgs& args, int64_t t);

}  // namespace heddle::kernels::cpu
