// Shows values of a request in messages.
#pragma once

#include <string>

#include "nlohmann/json_fwd.hpp"

namespace heddle::server {

// A string in double quotes, anything else as JSON; cut where it is long.
std::string ShowJson(const nlohmann::ordered_json& value);

}  // namespace heddle::server
