// The formats of JSON Schema (draft 2020-12, section 7.3) as regular expressions.
#pragma once

#include <string_view>

namespace heddle::engine::grammar {

// A pattern of whole texts: every text that it matches has the format, but not the reverse. Empty
// if the format is unknown.
std::string_view FormatPattern(std::string_view format);

// Whether a format of OpenAPI or of binary data does not restrict the text ("int32", "password").
bool IsAnnotationFormat(std::string_view format);

}  // namespace heddle::engine::grammar
