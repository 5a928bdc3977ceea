// Divides a model's layers among the stages of a pipeline by what the ranks' machines have.
//
// Thread-safety: pure, but for the meeting's calls.
#pragma once

#include "absl/status/status.h"
#include "engine/family/model_description.h"
#include "engine/files/checkpoint.h"
#include "engine/model/load.h"
#include "engine/model/quantize.h"
#include "kernels/device.h"

namespace heddle::engine {

// Fills layout.stage_layers of the options, if there is a pipeline and nobody has set it, and what
// the ranks have is known: ranks in processes say it (RankMeeting::StageLayers), those of one
// process have the processors of rank_cpus, or a device's memory each. Otherwise stages are alike.
// `device`: as ShareBytes.
absl::Status DivideStages(const Checkpoint& checkpoint, const ModelDescription& model,
                          const WeightPolicy& policy, const kernels::Device* device,
                          LoadOptions* options);

}  // namespace heddle::engine
