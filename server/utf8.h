// Validation of UTF-8 for text that is about to leave the server.
// Source: Unicode Standard, table 3-7 (well-formed byte sequences).
#pragma once

#include <cstddef>
#include <string_view>

namespace heddle::server {

// Length in bytes of the well-formed sequence at the start of `text`, or 0 where there is none.
size_t Utf8SequenceLength(std::string_view text);

bool IsValidUtf8(std::string_view text);

// Code points of `text`; each byte of an ill-formed sequence counts as one.
size_t CountCodePoints(std::string_view text);

}  // namespace heddle::server
