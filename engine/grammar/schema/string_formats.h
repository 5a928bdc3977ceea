// The formats of JSON Schema (draft 2020-12, section 7.3) and those that Pydantic writes, as
// regular expressions.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace heddle::engine::grammar {

// Whether the format restricts the text. All others are annotations.
bool IsKnownFormat(std::string_view format);

// A pattern of whole texts: every text that it matches has the format, but not the reverse.
// `max_length` (-1: none) is how long texts may be: where it is short, the pattern is of texts that
// are. REQUIRES: IsKnownFormat.
std::string FormatPattern(std::string_view format, int32_t max_length = -1);

}  // namespace heddle::engine::grammar
