// Merges an adapter into a checkpoint that is about to be loaded: its tensors read as what the
// adapter makes of them, row by row while they are packed, so that no second copy of the weights
// exists. Floats stay in their type; Q8_0 and Q4_0 are decoded, merged and encoded anew. Other
// quantised types are refused: their scales came from a search that a few rounded rows do not
// repeat.
#pragma once

#include <filesystem>

#include "absl/status/status.h"
#include "engine/family/model_description.h"
#include "engine/files/checkpoint.h"

namespace heddle::engine {

// Nothing has changed after an error. Errors as AdapterMerge::Load's, and UNIMPLEMENTED, naming the
// tensor, for a type that cannot be merged.
absl::Status MergeAdapter(const std::filesystem::path& adapter, const ModelDescription& model,
                          Checkpoint* checkpoint);

}  // namespace heddle::engine
