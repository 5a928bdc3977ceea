// JSON from clients: parsing with bounds on its shape, and access with errors that name the field.
// The header has only the forward declaration; the tree's own header is for .cc files.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "nlohmann/json_fwd.hpp"

namespace heddle::server {

// Objects keep the order of their keys, because templates print tools and schemas as received.
using Json = nlohmann::ordered_json;

// Depth bound: real requests (nested tool schemas) stay below 20.
inline constexpr int kMaxJsonDepth = 64;
// Members per object. Lookup and insertion are linear in an ordered object, so that this bounds
// the work per byte; the largest real objects are logit_bias maps of at most 300 entries.
inline constexpr int kMaxJsonMembers = 1024;

// Whether a text keeps both limits, without building anything. Invalid JSON passes, because the
// parser reports it. Trees are copied and printed by recursion: call this before making one.
absl::Status CheckJsonShape(std::string_view text);

// A JSON object, or INVALID_ARGUMENT with line and column of the fault. Text must be UTF-8.
absl::StatusOr<Json> ParseJsonObject(std::string_view text);
// The same for an array.
absl::StatusOr<Json> ParseJsonArray(std::string_view text);

// The member, or nullptr if it is missing or null (every optional field may be null), or if
// `object` is not an object.
const Json* Find(const Json& object, std::string_view name);

// The text of a string; nullptr if there is no value, or another type.
const std::string* TextOf(const Json* value);

// A whole number written without a fraction, or the nearest that the type holds; empty for any
// other value.
std::optional<int64_t> IntegerOf(const Json& value);

// Any number.
std::optional<double> NumberOf(const Json& value);

// The member `name` if it is a string, or else `fallback`.
std::string TextOr(const Json& object, std::string_view name, std::string_view fallback);

// Name of a value's kind, for messages: "a string", "an array"...
std::string_view JsonKind(const Json& value);

}  // namespace heddle::server
