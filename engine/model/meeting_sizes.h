// The most bytes that a model's ranks exchange in an op: the rows of a step in sums over ranks, of
// heads that are normed together, and between stages; and the columns of logits.
//
// Pure arithmetic.
#pragma once

#include <cstdint>

#include "engine/executor.h"
#include "engine/model/model_spec.h"
#include "kernels/dtype.h"
#include "kernels/host_meetings.h"

namespace heddle::engine {

// Room for a rank with the part `part` of a model. `logit_rows` are computed at a time.
kernels::HostMeetings::Room MeetingRoom(const ModelSpec& part, const ExecutorLimits& limits,
                                        int32_t logit_rows, kernels::DType activations);

// The host's memory for them, where neither the ranks that share layers nor stages reach each
// other's.
int64_t MeetingBytes(const ModelSpec& part, const ExecutorLimits& limits, int32_t logit_rows,
                     kernels::DType activations);

}  // namespace heddle::engine
