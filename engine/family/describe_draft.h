// The configuration of a draft network, which is that of a decoder with keys of its own beside it.
// Thread-safety: pure functions.
#pragma once

#include <string_view>

#include "absl/status/statusor.h"
#include "engine/family/model_description.h"
#include "nlohmann/json_fwd.hpp"

namespace heddle::engine {

// As DescribeConfig, but keys that nobody reads here are left to the caller.
absl::StatusOr<ModelDescription> DescribeDraftConfig(const nlohmann::json& config,
                                                     std::string_view file);

}  // namespace heddle::engine
