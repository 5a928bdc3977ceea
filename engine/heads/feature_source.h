// A FeatureDraft with its files, before its weights are loaded. Private to engine/heads.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "engine/files/checkpoint.h"
#include "engine/heads/feature_draft.h"
#include "engine/model/draft_network.h"

namespace heddle::engine {

// `own` is the network's file, which the source keeps; without it `target` has the tensors, which
// must outlive Load. REQUIRES: the draft was checked against that file.
std::unique_ptr<DraftSource> MakeFeatureSource(FeatureDraft draft, std::optional<Checkpoint> own,
                                               const Checkpoint& target);

}  // namespace heddle::engine
