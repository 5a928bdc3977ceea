// JSON from clients: parsing with bounds on its shape, and access with errors that name the field.
//
// Includers get only the forward declaration; the tree's own header is for .cc files.
#pragma once

#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "nlohmann/json_fwd.hpp"

namespace heddle::server {

// Objects keep the order of their keys: templates print tools and schemas as they came.
using Json = nlohmann::ordered_json;

// Depth bound: real requests (nested tool schemas) stay below 20.
inline constexpr int kMaxJsonDepth = 64;
// Members per object. Lookup and insertion are linear in an ordered object, so that this bounds
// the work per byte; the largest real objects are logit_bias maps of at most 300 entries.
inline constexpr int kMaxJsonMembers = 1024;

// Whether both hold for a text, without building anything. What is not JSON at all passes: the
// parser says where. A tree is copied and printed by recursion: ask before making one.
absl::Status CheckJsonShape(std::string_view text);

// A JSON object, or INVALID_ARGUMENT with line and column of the fault. Text must be UTF-8.
absl::StatusOr<Json> ParseJsonObject(std::string_view text);

// The member, or nullptr where it is missing or null: every optional field may be null.
const Json* Find(const Json& object, std::string_view name);

// "a string", "an array"...: what was found, for messages.
std::string_view JsonKind(const Json& value);

}  // namespace heddle::server
