// HTML's character references ("&amp;", "&#65;"), as Python's html.unescape reads them. Of the
// names it knows those of Latin-1, of punctuation and of arrows that texts contain; others are an
// error. Source: HTML Living Standard, 13.2.5.72 to 13.2.5.80.
// Thread-safety: pure function.
#pragma once

#include <string>
#include <string_view>

#include "absl/status/statusor.h"

namespace heddle::engine::text::jinja {

// Replaces every reference. INVALID_ARGUMENT: "&name;" that is not known here.
absl::StatusOr<std::string> ReplaceCharacterReferences(std::string_view text);

}  // namespace heddle::engine::text::jinja
