// The memory and the times of ranks that share a model, for `plan` and `simulate`.
// Private to server/cli. Thread-safety: pure functions.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "absl/status/statusor.h"
#include "engine/model/load.h"
#include "server/cli/planned_model.h"

namespace heddle::server {

using DescribeModelWith =
    std::function<absl::StatusOr<engine::ModelInfo>(const engine::LoadOptions& options)>;

// Describes a model each of whose ranks has a machine: as each of them would find out for itself,
// with the limits that they would agree on and the sums of what they take. Errors as DescribeModel,
// with the rank's number.
absl::StatusOr<engine::ModelInfo> DescribeMachines(const DescribeModelWith& describe,
                                                   const engine::LoadOptions& options);

// Fills in the times of a model that ranks share, and the speed of a stream. `whole`: of the model
// in one piece, which `describe` finds out whether one machine could hold.
void PredictRanks(const ModelCost& whole, const engine::LoadOptions& options,
                  const DescribeModelWith& describe, PlannedModel* planned);

// PlannedModel::host_meeting_bytes of GPUs of several machines.
int64_t MeetingBytesOf(const engine::ModelInfo& model, kernels::DType activations);

// "ranks ...", "link ...", "host ..." and "warning ..."; empty for one rank.
std::string RanksText(const PlannedModel& planned);

}  // namespace heddle::server
