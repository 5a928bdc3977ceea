// The formats of JSON Schema (draft 2020-12, section 7.3) as regular expressions.
#pragma once

#include <string_view>

namespace heddle::engine::grammar {

// A pattern for whole texts; each text that it matches has the format, though not each that has
// the format matches. Empty: the format is not known.
std::string_view FormatPattern(std::string_view format);

// Formats of OpenAPI and of binary data that say nothing about the text ("int32", "password").
bool IsAnnotationFormat(std::string_view format);

}  // namespace heddle::engine::grammar
