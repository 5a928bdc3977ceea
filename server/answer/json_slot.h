// The place of an answer that is JSON in which its result stands: what samples of one question are
// compared by (sample_search.h). Thread-safety: pure functions.
// Source: RFC 6901 (JSON Pointer).
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace heddle::server {

// Whether `text` is a pointer: empty, or steps of which each begins with "/".
bool IsJsonPointer(std::string_view text);

// The value at `pointer` in a JSON text, as JSON without spaces; nullopt: the text is no JSON
// within the limits of requests, or has no such place. REQUIRES: IsJsonPointer(pointer).
std::optional<std::string> JsonSlot(std::string_view text, std::string_view pointer);

}  // namespace heddle::server
