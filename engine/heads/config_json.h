// Helpers that the readers of draft networks' configurations share. Private to engine/heads.
// Thread-safety: pure functions.
#pragma once

#include <cstdint>
#include <string_view>

#include "absl/status/statusor.h"
#include "engine/files/checkpoint.h"
#include "nlohmann/json.hpp"

namespace heddle::engine {

// The speculators library's key, of layers by what enters them.
inline constexpr std::string_view kInputsKey = "aux_hidden_state_layer_ids";
// Copies `from`'s members over those of `to`.
void MergeMembers(const nlohmann::json& from, nlohmann::json* to);

// A list with at least one entry, or nullptr.
const nlohmann::json* FindList(const nlohmann::json& config, std::string_view key);

// An integer from 1 to `max`; `absent` if the key is missing or null.
absl::StatusOr<int32_t> ReadDim(const Checkpoint& file, const nlohmann::json& config,
                                std::string_view key, int64_t absent, int64_t max);

}  // namespace heddle::engine
