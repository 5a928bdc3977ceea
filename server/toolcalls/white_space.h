// White space in the texts of tool calls is JSON's.
#pragma once

#include <string_view>

namespace heddle::server {

inline constexpr std::string_view kWhite = " \t\r\n";

}  // namespace heddle::server
