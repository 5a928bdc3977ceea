// Loading a drafter with weights beside a model (draft_network.h): what it takes is planned with
// the model's memory, and its weights are loaded behind the model's.
//
// Where ranks share the model, the drafter is the head's alone: its weights, its keys and values,
// and whole copies of the model's matrices that it reads and of which the head has a part.
// Thread-safety: none; used by the thread that loads.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/executor.h"
#include "engine/files/checkpoint.h"
#include "engine/model/capacity.h"
#include "engine/model/draft_network.h"
#include "engine/model/load.h"
#include "engine/model/local_executor.h"
#include "engine/model/quantize.h"
#include "kernels/device.h"

namespace heddle::engine {

struct OpenedDrafter {
  std::unique_ptr<DraftSource> source;  // null: none runs
  std::vector<std::string> vocabulary;  // tensors of the model that the head keeps whole for it
  std::string left_out;                 // why one that was found does not run; empty: none was
};

// Opens what options.open_draft says, if it does. `device`: where the model will run, or nullptr
// for the host.
absl::StatusOr<OpenedDrafter> OpenDrafter(const Checkpoint& checkpoint,
                                          const ModelDescription& model,
                                          const kernels::Device* device,
                                          const LoadOptions& options);

// Lets the model run without the drafter. REQUIRES: there is one.
void LeaveOut(const std::string& why, OpenedDrafter* drafter);

// UNIMPLEMENTED if ranks that are processes of their own would have to know the drafter's layers.
absl::Status CheckGroups(const LoadOptions& options, const Capacity& capacity);

// Adds what the drafter, if there is one, takes to what the model's memory is planned with. The
// model runs in so many stages.
void CountDrafter(const OpenedDrafter& drafter, const Checkpoint& checkpoint,
                  const ModelDescription& model, const WeightPolicy& policy,
                  const kernels::Device* device, int32_t n_stages, CapacityOptions* capacity);

// Loads it, if there is one, onto the head's device into the executor's parts, which have the
// model's weights. RESOURCE_EXHAUSTED if the device lacks the memory.
absl::Status LoadDrafter(const OpenedDrafter& drafter, const Checkpoint& checkpoint,
                         const ModelDescription& model, const WeightPolicy& policy,
                         const ExecutorLimits& limits, LocalExecutor::Parts* parts);

}  // namespace heddle::engine
