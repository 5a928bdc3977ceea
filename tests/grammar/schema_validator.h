// A validator of JSON Schema for tests: checks values, generates nothing, shares no code with
// engine/grammar. Knows the keywords that engine/grammar honours; aborts on any other.
#pragma once

#include <string>

#include "nlohmann/json.hpp"

namespace heddle::test {

// Empty if `value` is valid; otherwise the keyword that it fails, and the place in the value.
std::string SchemaFault(const nlohmann::json& root, const nlohmann::json& schema,
                        const nlohmann::json& value, const std::string& place = "$");

}  // namespace heddle::test
