// From files to a FeatureDraft, checked against the model. Private to engine/heads.
#pragma once

#include "absl/status/statusor.h"
#include "engine/family/model_description.h"
#include "engine/files/checkpoint.h"
#include "engine/heads/eagle_config.h"
#include "engine/heads/feature_draft.h"

namespace heddle::engine {

// EAGLE networks, and DFlash networks, which are told apart by their configuration.
absl::StatusOr<FeatureDraft> DescribeEagle(const Checkpoint& file, const Checkpoint& target,
                                           const ModelDescription& model);
absl::StatusOr<FeatureDraft> DescribeDflash(const Checkpoint& file, const EagleConfig& config,
                                            const ModelDescription& model);
absl::StatusOr<FeatureDraft> DescribeMtp(const Checkpoint& target, const ModelDescription& model);

}  // namespace heddle::engine
